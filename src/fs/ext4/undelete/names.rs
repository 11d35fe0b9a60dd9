//! The names of deleted files. They are found in removed entries of directory blocks, and in older copies of directory blocks in the log.
//!
//! When an entry is removed, its bytes become a gap after the previous entry. debugfs, and Linux before version 5.13, do not change these
//! bytes. Linux from version 5.13 on clears these bytes, so that only the log contains the name.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use zerocopy::FromBytes;

use crate::error::{Place, Result};
use crate::fs::ext4::dir_block::record_length;
use crate::fs::ext4::disk::dir::RawDirEntry;
use crate::fs::ext4::inode::Inode;
use crate::fs::ext4::jbd2::History;
use crate::fs::ext4::{Ext4, Incompat, ROOT};
use crate::fs::{FileType, deleted};
use crate::iomap::Extent;
use crate::units::{BlockSize, FileBlock, FsBlock, InodeNo};

const PLACE: Place = Place::new("directory block");
const HEADER: usize = size_of::<RawDirEntry>();
/// The maximum depth of nested directories in a path.
const MAX_DEPTH: usize = 256;
/// The maximum number of directory blocks that are read. With blocks of 4 KiB, this number of blocks is 16 GiB.
const MAX_BLOCKS: usize = 4 << 20;
/// The maximum number of names that are stored for a file.
const MAX_NAMES: usize = 64;
/// The maximum number of transactions that are stored for a name. If a name has more transactions, the newest are stored.
const MAX_SEEN: usize = 1024;
/// The type codes in directory entries.
const REGULAR: u8 = 1;
const DIRECTORY: u8 = 2;

/// A name in a directory, for a requested inode number.
struct Name {
    dir: InodeNo,
    name: Box<[u8]>,
    /// The type code in the name's entry; 0 if the volume does not have the feature filetype.
    kind: u8,
    /// The transactions in which the name was in use, in ascending order. Each of these transactions contains a copy of the directory block
    /// in which the name is a used entry. The list is empty for a name that was found only in a gap.
    seen: Vec<usize>,
}

impl Name {
    /// The last transaction before `end` in which the name was in use.
    fn last_before(&self, end: Option<usize>) -> Option<usize> {
        let before = self.seen.partition_point(|seen| end.is_none_or(|end| *seen < end));
        before.checked_sub(1).map(|last| self.seen[last])
    }

    fn is_of(&self, kind: u8) -> bool {
        self.kind == 0 || self.kind == kind
    }
}

/// The names of the requested inode numbers.
#[derive(Default)]
pub(super) struct Names {
    wanted: HashMap<InodeNo, Vec<Name>>,
    /// The directory to which each block belongs.
    owners: HashMap<FsBlock, InodeNo>,
    deleted_blocks: Vec<(FsBlock, InodeNo)>,
    /// The paths of existing directories.
    paths: HashMap<InodeNo, Vec<u8>>,
}

impl Names {
    /// Requests all names that refer to an inode number.
    pub(super) fn want(&mut self, number: InodeNo) {
        self.wanted.entry(number).or_default();
    }

    /// Adds a deleted directory. Its blocks are searched for names, and its own name is requested.
    pub(super) fn add_deleted(&mut self, dir: InodeNo, extents: &[Extent]) {
        self.want(dir);
        let blocks = extents.iter().flat_map(|extent| {
            (extent.start.0..extent.start.0 + u64::from(extent.len)).map(FsBlock)
        });
        let room = MAX_BLOCKS.saturating_sub(self.deleted_blocks.len());
        self.deleted_blocks.extend(blocks.take(room).map(|block| (block, dir)));
    }

    /// Searches all directories and the log for the requested names.
    pub(super) fn find(&mut self, fs: &Arc<Ext4>, history: &History) -> Result<()> {
        if self.wanted.is_empty() {
            return Ok(());
        }
        self.walk(fs);
        for (block, dir) in std::mem::take(&mut self.deleted_blocks) {
            if let std::collections::hash_map::Entry::Vacant(new) = self.owners.entry(block) {
                new.insert(dir);
                let content = fs.blocks.read(block, PLACE.block(block))?;
                self.add_block(fs, dir, &content, None, false);
            }
        }
        for (index, past) in history.transactions.iter().enumerate() {
            for (block, copy) in &past.copies {
                let Some(dir) = self.owners.get(block).copied() else { continue };
                let content = fs.blocks.read_relocated(*copy)?;
                self.add_block(fs, dir, &content, Some(index), false);
            }
        }
        Ok(())
    }

    /// Walks all existing directories from the root on. A directory that cannot be read contributes no names.
    fn walk(&mut self, fs: &Arc<Ext4>) {
        let mut waiting = vec![(ROOT, Vec::new())];
        let mut met = HashSet::from([ROOT]);
        while let Some((number, path)) = waiting.pop() {
            let Ok(dir) = fs.inode(number) else { continue };
            for entry in dir.read_dir().into_iter().flatten().flatten() {
                let below = entry.file_type.is_none_or(|kind| kind == FileType::Directory)
                    && !matches!(entry.name.as_slice(), b"." | b"..");
                let is_directory = |dir: &Inode| dir.file_type() == FileType::Directory;
                if below
                    && fs.inode(entry.inode).is_ok_and(|inode| is_directory(&inode))
                    && met.insert(entry.inode)
                {
                    waiting.push((entry.inode, [&path[..], b"/", &entry.name].concat()));
                }
            }
            let end = FileBlock(dir.dir_blocks().unwrap_or(0).min(MAX_BLOCKS as u64));
            for extent in dir.home_extents(FileBlock(0)..end).unwrap_or_default() {
                for block in extent.start.0..extent.start.0 + u64::from(extent.len) {
                    // A hostile volume can have the same block in all directories. Each block is therefore read only once.
                    let new = self.owners.len() < MAX_BLOCKS
                        && self.owners.insert(FsBlock(block), number).is_none();
                    if new && let Ok(content) = fs.blocks.read(FsBlock(block), PLACE) {
                        self.add_block(fs, number, &content, None, true);
                    }
                }
            }
            self.paths.insert(number, path);
        }
    }

    /// Adds the names in a directory block, including the removed entries between the used entries. If `is_current` is true, skips used
    /// entries, because they refer to files that exist.
    fn add_block(
        &mut self,
        fs: &Ext4,
        dir: InodeNo,
        content: &[u8],
        seen: Option<usize>,
        is_current: bool,
    ) {
        let size = fs.superblock.block_size;
        let typed = fs.superblock.incompat.contains(Incompat::FILETYPE);
        let mut at = 0;
        while let Some((number, kind, name, next)) = entry(content, at, size) {
            if number != 0 && !is_current {
                self.add(dir, (number, kind, name), seen, typed);
            }
            let used = if number == 0 { 0 } else { (HEADER + name.len()).next_multiple_of(4) };
            let mut gap = at + used;
            // A removed entry still contains the length of its record. The record of a valid removed entry ends before the next used entry.
            while gap + HEADER < next {
                let Some((number, kind, name, _)) = entry(&content[..next], gap, size) else {
                    break;
                };
                self.add(dir, (number, kind, name), None, typed);
                gap += (HEADER + name.len()).next_multiple_of(4);
            }
            at = next;
        }
    }

    fn add(
        &mut self,
        dir: InodeNo,
        (number, kind, name): (u32, u8, &[u8]),
        seen: Option<usize>,
        typed: bool,
    ) {
        let bad = |byte: &u8| matches!(byte, 0 | b'/');
        let regular_or_directory = !typed || matches!(kind, REGULAR | DIRECTORY);
        let kind = if typed { kind } else { 0 };
        let is_name = !name.is_empty() && !name.iter().any(bad) && !matches!(name, b"." | b"..");
        if !is_name || !regular_or_directory {
            return;
        }
        let Some(names) = self.wanted.get_mut(&InodeNo(u64::from(number))) else { return };
        let is_known =
            |known: &Name| known.dir == dir && known.kind == kind && *known.name == *name;
        let index = names.iter().position(is_known).unwrap_or(names.len());
        if index == MAX_NAMES {
            return;
        }
        if index == names.len() {
            names.push(Name { dir, name: name.into(), kind, seen: Vec::new() });
        }
        let known = &mut names[index];
        // The list `seen` stays sorted, because the transactions of the log are read in ascending order.
        let new = seen.filter(|seen| known.seen.last() != Some(seen));
        if new.is_some() && known.seen.len() == MAX_SEEN {
            known.seen.remove(0);
        }
        known.seen.extend(new);
    }

    /// The path of a file in the state before transaction `end`, or in the current state if `end` is `None`: see
    /// [`Deleted::path`](crate::fs::Deleted::path).
    pub(super) fn path(&self, number: InodeNo, end: Option<usize>) -> Option<Vec<u8>> {
        let (mut number, mut path, mut kind) = (number, Vec::new(), REGULAR);
        for _ in 0..MAX_DEPTH {
            let Some(name) = self.name(number, kind, end) else {
                return deleted::below_unnamed(number, &path);
            };
            path = [b"/", &name.name[..], &path].concat();
            if let Some(above) = self.paths.get(&name.dir) {
                return Some([&above[..], &path].concat());
            }
            (number, kind) = (name.dir, DIRECTORY);
        }
        None
    }

    /// The newest name of a file or directory before transaction `end`.
    fn name(&self, number: InodeNo, kind: u8, end: Option<usize>) -> Option<&Name> {
        let names = self.wanted.get(&number)?.iter().filter(|name| name.is_of(kind));
        let seen = names.map(|name| (name, name.last_before(end)));
        // If a name was in use only from transaction `end` on, the name referred to another file.
        let possible = seen.filter(|(name, last)| last.is_some() || name.seen.is_empty());
        possible.max_by_key(|(_, last)| *last).map(|(name, _)| name)
    }
}

/// The fields of the entry at byte `at`: the inode number, the type code and the name. Also returns the offset of the next entry. Returns
/// `None` if the entry is invalid.
fn entry(content: &[u8], at: usize, size: BlockSize) -> Option<(u32, u8, &[u8], usize)> {
    let (raw, rest) = RawDirEntry::ref_from_prefix(content.get(at..)?).ok()?;
    let len = record_length(raw.rec_len.get(), size);
    let name = rest.get(..usize::from(raw.name_len))?;
    let sound = len.is_multiple_of(4) && len >= HEADER + name.len() && len <= content.len() - at;
    sound.then_some((raw.inode.get(), raw.file_type, name, at + len))
}
