//! The names of deleted files. They are found in unused space of directory blocks, and in older changes of directories in the log.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::versions::Version;
use crate::error::Result;
use crate::fs::xfs::Xfs;
use crate::fs::xfs::dir::OnFault;
use crate::fs::xfs::disk::dir::{
    ALIGN, BLOCK_V5, DATA_HEADER, DATA_HEADER_V5, DATA_V5, DIRECTORY, FREE_TAG, LEAF_OFFSET,
    REGULAR,
};
use crate::fs::xfs::disk::inode::{FORKS_V2, FORKS_V3, format};
use crate::fs::xfs::header::array;
use crate::fs::xfs::inode::XfsInode;
use crate::fs::xfs::log::history::{InodeChange, Past};
use crate::fs::{DirCursor, FileType, deleted};
use crate::units::{DevOffset, FileBlock, FsBlock, InodeNo};

/// The maximum depth of nested directories in a path.
const MAX_DEPTH: usize = 256;
/// The maximum number of directory blocks that are read.
const MAX_BLOCKS: usize = 4 << 20;
/// The maximum total length of the paths of existing directories. If there are more, the remaining directories contribute no names.
const MAX_PATHS: usize = 64 << 20;
/// The maximum number of names that are stored for a file.
const MAX_NAMES: usize = 64;

/// A name in a directory.
#[derive(PartialEq)]
struct Name {
    dir: InodeNo,
    name: Box<[u8]>,
    /// The last transaction that contains the name; `None` if the name was found only in unused space of a block.
    seen: Option<u64>,
}

/// The names of the requested inode numbers.
pub(super) struct Names {
    of: HashMap<InodeNo, Vec<Name>>,
    /// The requested inode numbers. The key is the lower 32 bits, because the upper bits in a removed entry are overwritten.
    by_low: HashMap<u32, InodeNo>,
    /// The paths of existing directories.
    paths: HashMap<InodeNo, Vec<u8>>,
    /// The directory of each directory block. The key is the byte position of the block on the device.
    owners: HashMap<u64, InodeNo>,
}

impl Names {
    /// Creates the list without names. Requests the names of the inodes in `versions`.
    pub(super) fn new(versions: &[Version]) -> Self {
        let of: HashMap<_, _> = versions.iter().map(|one| (one.number, Vec::new())).collect();
        let by_low = of.keys().map(|number| (number.0 as u32, *number)).collect();
        Self { of, by_low, paths: HashMap::new(), owners: HashMap::new() }
    }

    /// Finds the names on the volume. If `log` is set, also finds the names in the log.
    pub(super) fn find(&mut self, fs: &Arc<Xfs>, log: bool) -> Result<()> {
        if self.of.is_empty() {
            return Ok(());
        }
        self.walk(fs);
        if !log {
            return Ok(());
        }
        fs.for_each_past(|order, past| {
            match past {
                Past::Inode(change) => self.add_short(fs, &change, order),
                Past::Buffer(at, offset, content) => {
                    if let Some(dir) = self.owner(fs, at, offset, content) {
                        self.add_logged(fs, dir, offset, content, order);
                    }
                }
            }
            Ok(())
        })
    }

    /// The path of an inode at the time of a transaction.
    pub(super) fn path(&self, number: InodeNo, order: u64) -> Option<Vec<u8>> {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = number;
        for _ in 0..MAX_DEPTH {
            let of = self.of.get(&at).into_iter().flatten();
            // Uses the newest name before the transaction. A name from unused space has no known time, and is used only if there is no
            // other name.
            let name = of.filter(|name| name.seen.is_none_or(|seen| seen <= order));
            let Some(name) = name.max_by_key(|name| name.seen) else {
                let below = names.iter().rev().flat_map(|name| [b"/", *name].concat());
                return deleted::below_unnamed(at, &below.collect::<Vec<_>>());
            };
            names.push(&name.name);
            if let Some(path) = self.paths.get(&name.dir) {
                let mut path = path.clone();
                for name in names.iter().rev() {
                    path.push(b'/');
                    path.extend(*name);
                }
                return Some(path);
            }
            at = name.dir;
        }
        None
    }

    fn add(&mut self, number: InodeNo, dir: InodeNo, name: &[u8], seen: Option<u64>) {
        let is_name = !name.is_empty() && !name.contains(&b'/') && !name.contains(&0);
        if !is_name || matches!(name, b"." | b"..") {
            return;
        }
        let Some(names) = self.of.get_mut(&number) else { return };
        let has_room = names.len() < MAX_NAMES;
        match names.iter_mut().find(|other| other.dir == dir && *other.name == *name) {
            Some(known) => known.seen = known.seen.max(seen),
            None if has_room => names.push(Name { dir, name: name.into(), seen }),
            None => {}
        }
    }

    /// Walks all existing directories from the root on. A directory that cannot be read contributes no names.
    fn walk(&mut self, fs: &Arc<Xfs>) {
        let root = fs.superblock.root;
        let mut waiting = vec![(root, Vec::new())];
        let (mut met, mut left) = (HashSet::from([root]), MAX_PATHS);
        while let Some((number, path)) = waiting.pop() {
            let Ok(dir) = fs.inode(number) else { continue };
            let entries = dir.list(DirCursor::START, OnFault::Report).into_iter().flatten();
            for entry in entries.flatten() {
                let is_below = entry.file_type.is_none_or(|kind| kind == FileType::Directory)
                    && !matches!(&*entry.name, b"." | b"..");
                let is_directory = || {
                    fs.inode(entry.inode)
                        .is_ok_and(|inode| inode.stat.file_type == FileType::Directory)
                };
                if !is_below || !is_directory() || !met.insert(entry.inode) {
                    continue;
                }
                let below = [&path[..], b"/", &entry.name].concat();
                let Some(rest) = left.checked_sub(below.len()) else { continue };
                left = rest;
                waiting.push((entry.inode, below));
            }
            self.add_gaps(fs, &dir);
            self.paths.insert(number, path);
        }
    }

    /// Adds the names in unused space of a directory's blocks.
    fn add_gaps(&mut self, fs: &Xfs, dir: &XfsInode) {
        let geometry = &fs.superblock.geometry;
        let end = FileBlock(LEAF_OFFSET >> geometry.block.shift());
        let per_block = 1_u32 << geometry.dir_block_log;
        let Ok(Some(map)) = dir.data_map() else { return };
        for extent in map.extents().iter().take_while(|extent| extent.first < end) {
            for step in (0..extent.len).step_by(per_block as usize) {
                let first = FsBlock(extent.start.0 + u64::from(step));
                let at = geometry.block.offset_of(first).0;
                // A hostile volume can have the same block in all directories. Each block is therefore read only once.
                if self.owners.len() >= MAX_BLOCKS
                    || self.owners.insert(at, dir.stat.inode).is_some()
                {
                    continue;
                }
                let last = first.0 + u64::from(per_block);
                let blocks: Vec<_> = (first.0..last.min(geometry.blocks)).map(FsBlock).collect();
                if let Ok(content) = fs.metadata.blocks(&blocks) {
                    self.add_block(fs, dir.stat.inode, &content);
                }
            }
        }
    }

    /// Adds the names in the unused space of a block.
    fn add_block(&mut self, fs: &Xfs, dir: InodeNo, content: &[u8]) {
        let is_v5 = fs.superblock.is_v5();
        let mut at = if is_v5 { DATA_HEADER_V5 } else { DATA_HEADER };
        while at + ALIGN <= content.len() {
            let len = if u16::from_be_bytes(array(content, at)) == FREE_TAG {
                let len = usize::from(u16::from_be_bytes(array(content, at + 2)));
                let end = (at + len).min(content.len());
                self.add_gap(fs, dir, &content[..end], at);
                len
            } else {
                fs.entry_len(content.get(at + 8).copied().unwrap_or(0).into())
            };
            at += len.next_multiple_of(ALIGN).max(ALIGN);
        }
    }

    /// Adds the names in an unused run of a directory block. The run begins at `start` and ends at the end of `content`.
    fn add_gap(&mut self, fs: &Xfs, dir: InodeNo, content: &[u8], start: usize) {
        let mut at = start;
        while at < content.len() {
            match entry(fs, content, at, Place::Gap(start)) {
                // The first bytes of a removed entry's inode number are overwritten by the mark and the length of the unused run.
                Some((number, name, len)) => {
                    if let Some(number) = self.by_low.get(&(number.0 as u32)).copied() {
                        self.add(number, dir, name, None);
                    }
                    at += len;
                }
                None => at += ALIGN,
            }
        }
    }

    /// The directory to which a block with a logged part belongs.
    fn owner(&self, fs: &Xfs, at: u64, offset: usize, content: &[u8]) -> Option<InodeNo> {
        let mut header = [0; DATA_HEADER_V5];
        if offset == 0 && content.len() >= header.len() {
            header.copy_from_slice(&content[..DATA_HEADER_V5]);
        } else if let Some(dir) = self.owners.get(&at) {
            return Some(*dir);
        } else {
            let unit = u64::from(fs.metadata.device().limits().logical_block);
            let mut bytes = vec![0; unit.max(512) as usize];
            fs.metadata.device().read_exact_at(&mut bytes, DevOffset(at / unit * unit)).ok()?;
            header.copy_from_slice(bytes.get((at % unit) as usize..)?.get(..DATA_HEADER_V5)?);
        }
        let magic = u32::from_be_bytes(array(&header, 0));
        let is_v5 = matches!(magic, BLOCK_V5 | DATA_V5);
        let own = is_v5.then(|| InodeNo(u64::from_be_bytes(array(&header, 40))));
        own.or_else(|| self.owners.get(&at).copied())
    }

    /// Adds the names in a logged part of a directory block. `offset` is the position of the part in the block.
    fn add_logged(&mut self, fs: &Xfs, dir: InodeNo, offset: usize, content: &[u8], order: u64) {
        let mut at = 0;
        while at < content.len() {
            match entry(fs, content, at, Place::Part(offset)) {
                Some((number, name, len)) if self.of.contains_key(&number) => {
                    self.add(number, dir, name, Some(order));
                    at += len;
                }
                _ => at += ALIGN,
            }
        }
    }

    /// Adds the names in a logged directory whose entries are in its inode.
    fn add_short(&mut self, fs: &Arc<Xfs>, change: &InodeChange, order: u64) {
        let mut bytes = vec![0; fs.superblock.geometry.inode];
        let is_local = change.apply(&fs.superblock, &mut bytes).is_ok_and(|has_fork| has_fork)
            && bytes[5] == format::LOCAL;
        if !is_local || u16::from_be_bytes(array(&bytes, 2)) >> 12 != 4 {
            return;
        }
        let start = if fs.superblock.is_v5() { FORKS_V3 } else { FORKS_V2 };
        let mut rest = &bytes[start..];
        let count = rest[0];
        let wide = if rest[1] > 0 { 8 } else { 4 };
        let has_type = usize::from(fs.superblock.has_ftype);
        rest = &rest[2 + wide..];
        for _ in 0..count {
            let len = usize::from(rest.first().copied().unwrap_or(0));
            let Some((entry, after)) = rest.split_at_checked(3 + len + has_type + wide) else {
                return;
            };
            let number = entry[3 + len + has_type..]
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte));
            self.add(InodeNo(number), change.number, &entry[3..3 + len], Some(order));
            rest = after;
        }
    }
}

/// The position of a byte sequence in a directory block.
#[derive(Clone, Copy)]
enum Place {
    /// The bytes begin at this position in the block.
    Part(usize),
    /// The bytes begin at the start of the block, and end with an unused run. The run begins at this position.
    Gap(usize),
}

/// The entry at byte `at` of `content`: its inode, its name and its length. The last two bytes of an entry contain the entry's position in
/// the block. In an unused run, the two bytes may have been overwritten at the end of the run, or may contain the position of an earlier
/// unused run.
fn entry<'a>(
    fs: &Xfs,
    content: &'a [u8],
    at: usize,
    place: Place,
) -> Option<(InodeNo, &'a [u8], usize)> {
    let len = usize::from(*content.get(at + 8)?);
    let whole = fs.entry_len(len);
    let bytes = content.get(at..at + whole).filter(|_| len > 0)?;
    let kind = bytes[9 + len];
    let is_file = !fs.superblock.has_ftype || matches!(kind, REGULAR | DIRECTORY);
    let tag = usize::from(u16::from_be_bytes(array(bytes, whole - 2)));
    let is_tagged = match place {
        Place::Part(base) => tag == base + at,
        Place::Gap(start) => (start..=at).contains(&tag) || at + whole == content.len(),
    };
    let number = InodeNo(u64::from_be_bytes(array(bytes, 0)));
    (is_file && is_tagged).then_some((number, &bytes[9..9 + len], whole))
}
