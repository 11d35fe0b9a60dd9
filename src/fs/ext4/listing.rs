//! Listings of a directory that may change during the listing. An entry that exists throughout the listing appears exactly once.
//!
//! A directory with a hash tree splits full blocks, and a split moves entries to other blocks. A position in a block therefore does not say
//! which entries were already listed. The hash of a name, however, does not change. Two kinds of directories are therefore listed in the
//! order of the hashes, as in Linux: directories with a hash tree, and directories that will get one when they grow. In all other
//! directories, entries do not move, and are listed in the order of their positions. The listing reads one leaf or one block at a time,
//! under the directory's lock.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Ext4;
use super::checksum::crc32c_raw;
use super::dir_block::{Area, Home};
use super::disk::dir::{DX_BLOCK_MASK, RawDxEntry};
use super::features::Compat;
use super::hash::{HashVersion, LAST_HASH, NameHash};
use super::htree::dx_position;
use super::inode::Inode;
use super::ops::Ext4Held;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{DirCursor, DirEntry, InodeFlags};
use crate::units::{FileBlock, InodeNo};

impl DirCursor {
    /// The position after all entries.
    const END: Self = Self(i64::MAX as u64);

    /// The position before the first name with this hash. `.` and `..` precede all names.
    fn at_hash(hash: u32) -> Self {
        Self((u64::from(hash.min(LAST_HASH) >> 1) << 32) + 2)
    }

    fn hash(self) -> u32 {
        (self.0.saturating_sub(2) >> 31) as u32 & !1
    }

    fn behind(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The entries of a directory that may change, with `.` and `..` first. An entry that exists throughout the listing appears exactly once,
/// and the order is stable. [`Inode::list`] creates the listing. The listing has the entries of one block in memory. While the listing
/// exists, the directory's inode is not freed. On a volume that is open read-only, a damaged block is skipped and
/// [reported](Ext4::take_left), as in the kernel. Any other error ends the listing.
pub struct Ext4Listing {
    fs: Arc<Ext4>,
    number: InodeNo,
    /// While this value exists, the directory's inode is not freed. `None` on a volume on which no operation can remove a directory.
    held: Option<Ext4Held>,
    next: DirCursor,
    /// The entries that were read and not yet returned, in reverse order.
    part: Vec<(DirCursor, DirEntry)>,
    /// The cursor after the entries that were read.
    behind_part: DirCursor,
}

/// The entries that are read together, with their cursors, and the cursor after these entries.
type Part = (Vec<(DirCursor, DirEntry)>, DirCursor);

impl Ext4Listing {
    fn new(dir: &Inode, from: DirCursor) -> Result<Self> {
        let (fs, number) = (Arc::clone(&dir.fs), dir.number);
        let (held, now) = fs.hold_decoded(dir.stat())?;
        if now.is_some_and(|now| now.stat().links == 0) {
            return Err(Error::new(ErrorKind::NotFound, "the directory has been removed"));
        }
        let held = fs.is_writable().then_some(held);
        Ok(Self { fs, number, held, next: from, part: Vec::new(), behind_part: from })
    }

    /// The cursor after the last entry that was returned.
    #[must_use]
    pub fn cursor(&self) -> DirCursor {
        self.next
    }

    fn step(&mut self) -> Result<Option<DirEntry>> {
        while self.part.is_empty() && self.behind_part < DirCursor::END {
            (self.part, self.behind_part) = self.fs.watch(|| self.read(self.behind_part))?;
            self.part.sort_unstable_by(|(a, _), (b, _)| b.cmp(a));
        }
        let Some((at, entry)) = self.part.pop() else { return Ok(None) };
        self.next = at.behind();
        Ok(Some(entry))
    }

    fn read(&self, from: DirCursor) -> Result<Part> {
        let _lock = self.held.as_ref().and_then(|_| self.fs.share(self.number));
        let dir = self.fs.inode_or_orphan(self.number)?;
        if dir.stat().links == 0 {
            return Ok((Vec::new(), DirCursor::END));
        }
        dir.part(from)
    }
}

impl Iterator for Ext4Listing {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            self.behind_part = DirCursor::END;
        }
        step.transpose()
    }
}

impl Inode {
    /// The entries of this directory from a cursor on. An entry that is added or removed during the listing may or may not appear. Every
    /// other entry appears exactly once. If the directory is removed during the listing, the listing ends.
    ///
    /// # Errors
    /// The errors of [`read_dir`](Self::read_dir); `NotFound` if the directory has already been removed.
    pub fn list(&self, from: DirCursor) -> Result<Ext4Listing> {
        self.check_directory()?;
        self.check_readable_names()?;
        Ext4Listing::new(self, from)
    }

    /// Reads the next entries from a cursor on: a part of the directory, for example one block or one leaf.
    fn part(&self, from: DirCursor) -> Result<Part> {
        let grows_a_tree = self.fs.superblock.compat.contains(Compat::DIR_INDEX)
            && !self.flags.contains(InodeFlags::INDEX)
            && self.dir_blocks().is_ok_and(|blocks| blocks == 1);
        if self.has_inline_data() || grows_a_tree || self.fast_commit_edit().is_some() {
            self.whole(from)
        } else if self.is_hashed() && self.has_tree() {
            self.leaves(from)
        } else {
            self.row(from)
        }
    }

    /// Whether the listing uses the hash tree. If the root of the tree is damaged, a directory on a read-only volume is listed block by
    /// block, as in the kernel. On a volume that is open for writing, the listing uses the tree and returns the error.
    fn has_tree(&self) -> bool {
        let root = || self.dx_root().and_then(|root| self.dx_entries(&root.area).map(drop));
        self.fs.writing.is_some() || root().is_ok()
    }

    /// All entries of the directory from a cursor on, sorted by their hashes.
    fn whole(&self, from: DirCursor) -> Result<Part> {
        let hash = if self.is_hashed() && self.has_tree() {
            self.dx_root()?.hash
        } else {
            self.later_hash()
        };
        let mut entries = Vec::new();
        let mut found = self.entries()?;
        while let Some(entry) = found.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.fs.left.pass_over_names(self.number, found.block(), error)?;
                    continue;
                }
            };
            let at = match &entry.name[..] {
                b"." => DirCursor::START,
                b".." => DirCursor::START.behind(),
                name => place(name, self.hash_of(&hash, name)?),
            };
            entries.push((at, entry));
        }
        entries.retain(|(at, _)| *at >= from);
        Ok((entries, DirCursor::END))
    }

    /// The hash function of the tree that this directory will get when the directory grows.
    fn later_hash(&self) -> NameHash {
        let sb = &self.fs.superblock;
        let version = HashVersion::from_raw(sb.hash_version).unwrap_or(HashVersion::HalfMd4);
        NameHash { version, unsigned: sb.hash_unsigned, seed: sb.hash_seed }
    }

    fn hash_of(&self, hash: &NameHash, name: &[u8]) -> Result<u32> {
        Ok(hash.of(self.wanted(name)?.hashed_bytes()))
    }

    /// The entries of the first leaf that has entries. If the following leaves may contain names with the last hash of this leaf, their
    /// entries are also included.
    fn leaves(&self, from: DirCursor) -> Result<Part> {
        let mut walk = Walk::new(self, from.hash())?;
        let hash = walk.hash;
        let mut entries = Vec::new();
        if from <= DirCursor::START.behind() {
            // The root block contains the entries `.` and `..`, and no other entries.
            for (dot, (_, entry)) in self.used(&walk.nodes[0].area)?.into_iter().enumerate().take(2)
            {
                entries.push((DirCursor(dot as u64), entry));
            }
        }
        loop {
            let next = walk.next_hash()?;
            match walk.child() {
                Ok((leaf, least)) => {
                    let most = next.map_or(LAST_HASH, |next| next.saturating_sub(1) & !1);
                    for (_, entry) in self.used(&leaf)? {
                        // A damaged tree may contain a name in a wrong leaf. Such a name is listed together with the leaf's other names,
                        // although the hash of the name is outside the leaf's range.
                        let hash = self.hash_of(&hash, &entry.name)?.clamp(least, most.max(least));
                        entries.push((place(&entry.name, hash), entry));
                    }
                }
                Err(error) => {
                    self.fs.left.pass_over_names(self.number, walk.leaf_block()?, error)?;
                }
            }
            entries.retain(|(at, _)| *at >= from);
            match next {
                None => return Ok((entries, DirCursor::END)),
                Some(next) => {
                    // If the lowest bit of the leaf's hash is set, the leaf may contain names with the previous leaf's last hash.
                    let behind = DirCursor::at_hash(next);
                    let ends = next & 1 == 0 && next <= LAST_HASH && behind > from;
                    if ends && !entries.is_empty() {
                        return Ok((entries, behind));
                    }
                    walk.advance()?;
                }
            }
        }
    }

    /// The entries of one block of a linear directory: the first block that has entries, from the position `from` on.
    fn row(&self, from: DirCursor) -> Result<Part> {
        let size = self.fs.superblock.block_size;
        let mut block = FileBlock(from.0 >> size.shift());
        loop {
            let (at, area) = match self.area_from(block) {
                Ok(Some(found)) => found,
                Ok(None) => return Ok((Vec::new(), DirCursor::END)),
                Err(error) => {
                    self.fs.left.pass_over_names(self.number, block, error)?;
                    if block.0 >= self.dir_blocks()? {
                        return Ok((Vec::new(), DirCursor::END));
                    }
                    block = FileBlock(block.0 + 1);
                    continue;
                }
            };
            block = FileBlock(at.0 + 1);
            let start = at.0 << size.shift();
            let entries = self.used(&area)?.into_iter();
            let mut entries: Vec<_> =
                entries.map(|(at, entry)| (DirCursor(start + at as u64), entry)).collect();
            entries.retain(|(at, _)| *at >= from);
            if !entries.is_empty() {
                return Ok((entries, DirCursor(block.0 << size.shift())));
            }
        }
    }

    /// The entries in a block, or in a part of an inline directory, each with its offset.
    fn used(&self, area: &Area) -> Result<Vec<(usize, DirEntry)>> {
        let (mut at, mut entries) = (0, Vec::new());
        while at < area.end {
            let entry = match area.entry(at, &self.fs) {
                Ok(entry) => entry,
                Err(error) => {
                    let block = match area.home {
                        Home::Block(block, _) => block,
                        Home::Inline(part) => FileBlock(part),
                    };
                    self.fs.left.pass_over_names(self.number, block, error)?;
                    break;
                }
            };
            if let Some(inode) = entry.inode {
                let (name, file_type) = (entry.name.to_vec(), entry.file_type);
                entries.push((at, DirEntry { name, inode, file_type }));
            }
            at = entry.next;
        }
        Ok(entries)
    }
}

/// The position of a name in the order of hashes.
fn place(name: &[u8], hash: u32) -> DirCursor {
    // Names with the same hash need a fixed order that depends only on the names. The format defines no such order. The position therefore
    // also contains a checksum of the name.
    DirCursor(DirCursor::at_hash(hash).0 + u64::from(crc32c_raw(!0, name)))
}

/// A walk through a hash tree, from leaf to leaf.
struct Walk<'a> {
    dir: &'a Inode,
    hash: NameHash,
    levels: usize,
    /// The nodes from the root downwards.
    nodes: SmallVec<[Step; 3]>,
    /// The number of further blocks that the walk may visit. The limit ends a walk through a damaged tree. A valid tree contains each block
    /// of the directory at most once.
    budget: u64,
}

struct Step {
    area: Area,
    /// The index of the current entry.
    entry: usize,
    /// The lowest hash below this node.
    least: u32,
}

impl<'a> Walk<'a> {
    fn new(dir: &'a Inode, hash: u32) -> Result<Self> {
        let root = dir.dx_root()?;
        let entry = dx_position(dir.dx_entries(&root.area)?, hash);
        let mut nodes = SmallVec::new();
        nodes.push(Step { area: root.area, entry, least: 0 });
        let (levels, budget) = (usize::from(root.levels), dir.dir_blocks()?);
        let mut walk = Self { dir, hash: root.hash, levels, nodes, budget };
        walk.descend(|entries| dx_position(entries, hash))?;
        Ok(walk)
    }

    /// Descends from the current node to the lowest level of nodes. In each node on the way, `choose` selects the entry to follow.
    fn descend(&mut self, choose: impl Fn(&[RawDxEntry]) -> usize) -> Result<()> {
        while self.nodes.len() <= self.levels {
            let (area, least) = self.child()?;
            let entry = choose(self.dir.dx_entries(&area)?);
            self.nodes.push(Step { area, entry, least });
        }
        Ok(())
    }

    /// The block to which the current entry of the lowest node points, and the lowest hash of the entry's range.
    fn child(&mut self) -> Result<(Area, u32)> {
        let node = &self.nodes[self.nodes.len() - 1];
        let Some(budget) = self.budget.checked_sub(1) else {
            let place = node.area.place.field("block");
            return Err(place.corrupt("the hash tree contains more blocks than the directory"));
        };
        self.budget = budget;
        let entry = &self.dir.dx_entries(&node.area)?[node.entry];
        // The first entry of a node has no hash. The entry's range of hashes begins at the lowest hash of the node.
        let least = if node.entry == 0 { node.least } else { entry.hash.get() & !1 };
        Ok((self.dir.dx_child(entry, &node.area)?, least))
    }

    /// The hash in the entry of the next leaf; `None` if the current leaf is the last leaf.
    fn next_hash(&self) -> Result<Option<u32>> {
        for node in self.nodes.iter().rev() {
            if let Some(next) = self.dir.dx_entries(&node.area)?.get(node.entry + 1) {
                return Ok(Some(next.hash.get()));
            }
        }
        Ok(None)
    }

    /// The block of the current leaf.
    fn leaf_block(&self) -> Result<FileBlock> {
        let node = &self.nodes[self.nodes.len() - 1];
        let entry = &self.dir.dx_entries(&node.area)?[node.entry];
        Ok(FileBlock(u64::from(entry.block.get() & DX_BLOCK_MASK)))
    }

    /// Advances to the next leaf. The caller has checked that there is a next leaf.
    fn advance(&mut self) -> Result<()> {
        while let Some(node) = self.nodes.last_mut() {
            node.entry += 1;
            if node.entry < self.dir.dx_entries(&node.area)?.len() {
                break;
            }
            self.nodes.pop();
        }
        self.descend(|_| 0)
    }
}
