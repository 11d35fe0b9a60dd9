//! Changes directories: adds names, removes names, and changes the inode of a name.
//!
//! A directory has one of three forms: the entries are in the inode, in a linear sequence of blocks, or in the leaves of a hash tree. A
//! full directory is converted to the next form, and a full tree grows by splits. After each conversion or split, the directory is valid
//! and contains the same names as before. If the next step finds no free space, the completed steps are therefore not undone. A directory
//! never shrinks.
//!
//! Before a change, the caller locks the directory. The caller also updates the directory's link count and time stamps.

mod entries;
mod hashed;
mod inline;
mod linear;
mod split;
#[cfg(test)]
mod tests;

use std::ops::Deref;

use self::entries::{Entries, Target};
use super::alloc::Freed;
use super::casefold::Wanted;
use super::dir_block::{Home, seal_dir_block};
use super::disk::dir::MAX_NAME;
use super::features::{Compat, Incompat};
use super::htree::seal_dx_block;
use super::inode::Inode;
use super::jbd2::Handle;
use super::operation::InodeToChange;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::{FileType, InodeFlags};
use crate::iomap::{Extent, ExtentState};
use crate::units::{FileBlock, FsBlock, InodeNo};

/// The maximum number of blocks that change when a name is added. There are two worst cases: a tree of the maximum depth gets a new leaf
/// and a new node; a linear directory becomes hashed. Each new block also changes a bitmap, a group descriptor and the directory's block
/// map. Every step changes the inode.
pub(crate) const ADD_CREDITS: u32 = 24;
/// The maximum number of blocks that change when a name is removed, or when the inode of a name changes.
pub(crate) const CHANGE_CREDITS: u32 = 1;

/// The maximum number of steps to add a name. The steps are two conversions (to a linear directory, to a tree), one split at each level of
/// the tree, and the addition to the leaf.
const MOST_STEPS: usize = 8;
/// The maximum number of blocks of a directory. A hash tree stores a block number in 28 bits.
const MAX_BLOCKS: u64 = 1 << 28;

const PLACE: Place = Place::new("directory");

/// The entry to add.
struct Addition<'a> {
    wanted: Wanted<'a>,
    target: Target,
}

/// The result of one step of the addition of a name to a directory.
#[derive(PartialEq, Eq)]
enum Step {
    Added,
    /// The directory has grown, and may have another form. The name is not added yet.
    Grown,
}

/// A directory whose names may be changed.
#[derive(Clone, Copy)]
pub(crate) struct Directory<'d>(&'d InodeToChange<'d>);

impl<'d> Directory<'d> {
    pub(crate) fn of(inode: &'d InodeToChange<'d>) -> Self {
        Self(inode)
    }
}

impl<'d> Deref for Directory<'d> {
    type Target = InodeToChange<'d>;

    fn deref(&self) -> &InodeToChange<'d> {
        self.0
    }
}

impl Directory<'_> {
    /// Adds a name. The directory must not contain the name.
    ///
    /// # Errors
    /// `InvalidInput` and `NameTooLong` for an invalid name; `NoSpace` if no blocks are free, or if the hash tree has its maximum size. An
    /// error does not change the names in the directory.
    pub(crate) fn add_entry(
        &self,
        h: &mut Handle<'_>,
        name: &[u8],
        target: InodeNo,
        kind: FileType,
    ) -> Result<()> {
        check_name(name)?;
        self.check_directory()?;
        let wanted = self.wanted(name)?;
        if self.flags.contains(InodeFlags::CASEFOLD) {
            wanted.check_new(&self.fs)?;
        }
        let addition = Addition { wanted, target: Target::new(&self.fs, target, kind)? };
        let mut step = self.add_step(h, &addition)?;
        for _ in 1..MOST_STEPS {
            if step == Step::Added {
                return Ok(());
            }
            let grown = self.again()?;
            step = Directory(&grown).add_step(h, &addition)?;
        }
        Err(PLACE
            .inode(self.number)
            .corrupt("the directory has grown repeatedly, but still has no space for the name"))
    }

    fn add_step(&self, h: &mut Handle<'_>, addition: &Addition<'_>) -> Result<Step> {
        if self.has_inline_data() {
            self.add_inline(h, addition)
        } else if self.is_hashed() {
            self.add_hashed(h, addition)
        } else {
            self.add_linear(h, addition)
        }
    }

    /// Removes a name.
    ///
    /// # Errors
    /// `NotFound`; `InvalidInput` and `NameTooLong` for an invalid name.
    pub(crate) fn remove_entry(&self, h: &mut Handle<'_>, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.check_directory()?;
        let found = self.find(name)?.ok_or_else(|| not_found(name))?;
        let (home, spot) = (found.area.home, found.spot);
        drop(found);
        self.change_entries(h, home, |mut entries| entries.remove(spot))
    }

    /// Changes the inode of a name. The name may be `..`.
    ///
    /// # Errors
    /// The errors of [`remove_entry`](Self::remove_entry).
    pub(crate) fn set_entry(
        &self,
        h: &mut Handle<'_>,
        name: &[u8],
        target: InodeNo,
        kind: FileType,
    ) -> Result<()> {
        if name != b".." {
            check_name(name)?;
        }
        self.check_directory()?;
        let target = Target::new(&self.fs, target, kind)?;
        let found = self.find(name)?.ok_or_else(|| not_found(name))?;
        let (home, at) = (found.area.home, found.spot.at);
        drop(found);
        if home == Home::Inline(0) {
            return self.set_inline_parent(h, target);
        }
        self.change_entries(h, home, |mut entries| entries.set_target(at, target))
    }

    /// Creates the entries `.` and `..` of a new directory. The directory's inode must have an empty block map and no attributes.
    ///
    /// # Errors
    /// `NoSpace`. With this error, nothing is changed.
    pub(crate) fn init(&self, h: &mut Handle<'_>, parent: InodeNo) -> Result<()> {
        if self.init_inline_directory(h, parent)? {
            return Ok(());
        }
        let dots = self.dots(parent)?;
        self.append_leaf(h, |mut entries| entries.pack(dots.into_iter()))?;
        Ok(())
    }

    /// Changes the entries of an area, which may be in a block or in the inode.
    fn change_entries(
        &self,
        h: &mut Handle<'_>,
        home: Home,
        change: impl FnOnce(Entries<'_>),
    ) -> Result<()> {
        match home {
            Home::Inline(part) => self.change_inline(h, part, change),
            Home::Block(block, at) => h.update(at, PLACE.inode(self.number), |bytes| {
                // `..` is stored in the root of the tree.
                if self.is_hashed() && block.0 == 0 {
                    change(Entries(bytes));
                    self.seal_node(block, bytes);
                } else {
                    change(Entries(&mut bytes[..self.fs.superblock.entries_end()]));
                    self.seal_entries(bytes);
                }
                Ok(())
            }),
        }
    }

    /// Adds a block of entries to a directory. After the call, the caller's `Inode` of the directory is outdated, and the caller must read
    /// it again.
    fn append_leaf(&self, h: &mut Handle<'_>, fill: impl FnOnce(Entries<'_>)) -> Result<FileBlock> {
        self.append_block(h, |bytes| {
            fill(Entries(&mut bytes[..self.fs.superblock.entries_end()]));
            self.seal_entries(bytes);
        })
    }

    /// Adds a block to a directory. If the volume has no free block, nothing is changed.
    fn append_block(&self, h: &mut Handle<'_>, fill: impl FnOnce(&mut [u8])) -> Result<FileBlock> {
        let sb = &self.fs.superblock;
        let block = FileBlock(self.dir_blocks()?);
        let size = self.size + sb.block_size.bytes() as u64;
        let large = sb.incompat.contains(Incompat::LARGEDIR);
        if block.0 >= MAX_BLOCKS || (size > u64::from(u32::MAX) && !large) {
            let what = format!("directory inode {} already has the maximum size", self.number);
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        let start = self.map_next_block(h, block)?;
        h.create(start, fill)?;
        h.update_inode(self.0, |inode| inode.set_size(size))?;
        Ok(block)
    }

    /// The entries `.` and `..` of this directory.
    fn dots(&self, parent: InodeNo) -> Result<[(&'static [u8], Target); 2]> {
        let target = |inode| Target::new(&self.fs, inode, FileType::Directory);
        Ok([(b".", target(self.number)?), (b"..", target(parent)?)])
    }

    /// Whether a directory on this volume becomes hashed when its first block is full.
    fn hashes_directories(&self) -> bool {
        self.fs.superblock.compat.contains(Compat::DIR_INDEX)
    }
}

impl InodeToChange<'_> {
    /// Allocates the next block of a directory, or of another file without holes. The block after the file's last block is preferred.
    pub(crate) fn map_next_block(&self, h: &mut Handle<'_>, block: FileBlock) -> Result<FsBlock> {
        let last = block.0.checked_sub(1).map(|last| self.fs_block(FileBlock(last)));
        let last = last.transpose()?.flatten();
        let extent = |start| Extent { first: block, start, len: 1, state: ExtentState::Written };
        if let Some(last) = last
            && !block.0.is_multiple_of(u64::from(self.fs.superblock.cluster_blocks))
        {
            // The file's last block is not at the end of its cluster. The next block is in the same cluster, which already belongs to the
            // file. Therefore nothing is allocated.
            let start = FsBlock(last.0 + 1);
            self.map_extent(h, extent(start))?;
            return Ok(start);
        }
        let goal = last
            .map_or_else(|| self.fs.superblock.goal_of(self.number), |last| FsBlock(last.0 + 1));
        self.check_quota(1, 0)?;
        let (start, count) = h.allocate_blocks(goal, 1)?;
        if let Err(error) = self.map_extent(h, extent(start)) {
            h.free_blocks(start, u64::from(count), Freed::Data)?;
            return Err(error);
        }
        Ok(start)
    }
}

impl Inode {
    /// Whether a directory has no entries except `.` and `..`.
    ///
    /// # Errors
    /// The errors of [`Inode::entries`].
    pub(crate) fn is_empty_directory(&self) -> Result<bool> {
        for entry in self.entries()? {
            if !matches!(&entry?.name[..], b"." | b"..") {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The seed of this directory's checksums.
    fn seed(&self) -> Option<u32> {
        self.fs.superblock.inode_seed(self.number, self.generation)
    }

    fn seal_entries(&self, block: &mut [u8]) {
        seal_dir_block(self.seed(), block);
    }

    fn seal_node(&self, block: FileBlock, bytes: &mut [u8]) {
        seal_dx_block(self.seed(), block, bytes);
    }
}

/// Refuses an invalid name, and the names `.` and `..`, which cannot be added or removed.
fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > MAX_NAME {
        let len = name.len();
        return Err(Error::new(
            ErrorKind::NameTooLong,
            format!("a name has at most 255 bytes, but this name has {len}"),
        ));
    }
    let shown = String::from_utf8_lossy(name);
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err(Error::invalid(format!("{shown:?} is not a valid name")));
    }
    Ok(())
}

#[cold]
fn not_found(name: &[u8]) -> Error {
    Error::new(ErrorKind::NotFound, "no such entry").at(String::from_utf8_lossy(name))
}
