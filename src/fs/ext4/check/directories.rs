//! Checks every directory entry, in all blocks of all directories.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use zerocopy::FromBytes;

use super::bits::Bits;
use super::found::Found;
use super::htree::Tree;
use super::map::{Data, Piece, Walk};
use super::reader::Bytes;
use super::table::Directory;
use super::{Checker, Pass};
use crate::device::BATCH;
use crate::error::Place;
use crate::fs::check::{Findings, Kind, Severity};
use crate::fs::ext4::casefold::fold;
use crate::fs::ext4::dir_block::{entry_code, record_length, verify_tail};
use crate::fs::ext4::disk::dir::{RawDirEntry, RawDirTail};
use crate::fs::ext4::{Incompat, ROOT};
use crate::fs::{FileType, InodeFlags};
use crate::units::{FsBlock, InodeNo};

const PLACE: Place = Place::new("directory entry");
const HEADER: usize = size_of::<RawDirEntry>();
const TAIL: usize = size_of::<RawDirTail>();
/// The length of the parent's inode number at the start of an inline directory.
const INLINE_PARENT: usize = 4;
/// The number of directories that are read together.
const STEP: usize = 256;

/// A directory that is being read.
pub(super) struct Reading {
    pub(super) inode: Found,
    /// The index in the list of directories.
    index: usize,
    /// 64-bit hashes of the names found so far. The random key of the hash function prevents collisions in crafted directories.
    names: HashSet<u64>,
    keys: RandomState,
    pub(super) tree: Option<Tree>,
    /// The number of entries found so far.
    entries: u64,
}

/// An entry of a directory.
pub(super) struct Entry<'a> {
    pub(super) name: &'a [u8],
    pub(super) target: u32,
    file_type: u8,
}

impl Checker<'_> {
    pub(super) fn check_directories(&mut self) {
        let count = self.directories.len();
        for first in (0..count).step_by(STEP) {
            let end = count.min(first + STEP);
            let inodes = self.announce_directories(first..end);
            for (index, inode) in (first..end).zip(inodes) {
                let Some(inode) = inode else { continue };
                let names = HashSet::new();
                let keys = RandomState::new();
                let mut reading = Reading { inode, index, names, keys, tree: None, entries: 0 };
                self.check_directory(&mut reading, self.directories[index].broken);
            }
            self.tell(Pass::Directories, end as u64, count as u64);
        }
    }

    /// Returns the inodes of some directories, and reads the blocks of these directories ahead.
    fn announce_directories(&mut self, range: Range<usize>) -> Vec<Option<Found>> {
        let unread = range.clone().filter(|index| *index >= self.kept.len());
        let numbers: Vec<_> = unread.map(|index| self.directories[index].number).collect();
        let blocks: Vec<_> = numbers.iter().filter_map(|number| self.position(*number)).collect();
        self.reader.announce(blocks.into_iter().map(|(block, _)| (block, 1)));
        let inodes: Vec<_> = range.clone().map(|index| self.directory_inode(index)).collect();
        let (mut blocks, mut left) = (Vec::new(), BATCH >> self.fs.superblock.block_size.shift());
        for (index, inode) in range.zip(&inodes) {
            if let Some(inode) = inode
                && left > 0
                && !self.directories[index].broken
                && !inode.flags().contains(InodeFlags::INLINE_DATA)
            {
                for data in self.blocks_of(inode, false) {
                    blocks.push((FsBlock(data.start), data.count));
                    left = left.saturating_sub(data.count);
                }
            }
        }
        self.reader.announce(blocks.into_iter());
        inodes
    }

    fn directory_inode(&mut self, index: usize) -> Option<Found> {
        let Directory { number, inode_block, .. } = self.directories[index];
        match self.kept.get(index) {
            Some(bytes) => Found::new(number, inode_block, bytes.clone()),
            None => self.inode(number),
        }
    }

    fn check_directory(&mut self, reading: &mut Reading, broken: bool) {
        if reading.inode.flags().contains(InodeFlags::INLINE_DATA) {
            return self.check_inline_directory(reading);
        }
        let blocks = self.blocks_of(&reading.inode, broken);
        let unit = self.fs.superblock.block_size.bytes() as u64;
        let size = reading.inode.size() / unit;
        // The pass over inodes has reported the damaged map. The htree is not checked, because a damaged map may be endless.
        if reading.inode.flags().contains(InodeFlags::INDEX) && !broken {
            reading.tree = self.check_tree(&reading.inode, &blocks);
        }
        let mut next = 0;
        for data in &blocks {
            self.check_hole(reading, next..data.first.min(size));
            next = data.first + data.count;
            for offset in 0..data.count {
                let (block, at) = (data.first + offset, FsBlock(data.start + offset));
                if broken && !self.first_reading(at) {
                    continue;
                }
                let place = PLACE.inode(reading.inode.number).block(at);
                match self.reader.block(at, place) {
                    Ok(content) => self.check_directory_block(reading, block, &content, place),
                    Err(error) => self.findings.error(place, &error),
                }
            }
        }
        if !broken {
            self.check_hole(reading, next..size);
        }
        if reading.entries < 2 {
            self.findings.add(PLACE.inode(reading.inode.number), Kind::MissingDots);
        }
    }

    /// Whether this is the first read of a block of a directory with a damaged map. A damaged map may contain the same block many times.
    fn first_reading(&mut self, block: FsBlock) -> bool {
        let count = self.fs.superblock.blocks_count;
        !self.broken_blocks.get_or_insert_with(|| Bits::new(count)).set(block.0)
    }

    /// The runs of blocks in the map of an inode, up to the first fault. The walk stops there, because a damaged map may be endless.
    pub(super) fn blocks_of(&mut self, inode: &Found, broken: bool) -> Vec<Data> {
        let mut blocks = Vec::new();
        // The walk ends even in a damaged map. It accepts each block at most once as a node and at most once as data.
        let mut nodes = HashSet::new();
        let (fs, mut quiet) = (self.fs, Findings::default());
        let (reader, findings) = (&mut self.reader, &mut quiet);
        Walk { fs, reader, findings, inode, sound: true }.run(&mut |_, piece| match piece {
            Piece::Node(block) => !broken || nodes.insert(block),
            Piece::Data(data) => {
                blocks.push(data);
                true
            }
        });
        blocks
    }

    fn check_hole(&mut self, reading: &Reading, hole: Range<u64>) {
        if !hole.is_empty() {
            let place = Place::new("directory").inode(reading.inode.number);
            let what =
                format!("blocks {} to {} of the directory are a hole", hole.start, hole.end - 1);
            self.findings.add(place, Kind::Damaged { what });
        }
    }

    fn check_directory_block(
        &mut self,
        reading: &mut Reading,
        block: u64,
        content: &Bytes,
        place: Place,
    ) {
        let mut end = content.len();
        let node = reading.tree.as_ref().is_some_and(|tree| tree.is_node(block));
        if let (Some(seed), false) = (reading.inode.seed(self.fs), node) {
            end -= TAIL;
            if let Err(error) = verify_tail(seed, &content[..end], &content[end..], place) {
                self.findings.error(place, &error);
                // If the block has no space for a checksum, its entries may extend to the end of the block.
                if content[end + 7] != crate::fs::ext4::disk::dir::TAIL_FILE_TYPE {
                    end += TAIL;
                }
            }
        }
        self.check_entries(reading, block, &content[..end], place);
    }

    /// Checks the entries of a block, or of a part of an inline directory, up to the first damaged entry.
    fn check_entries(&mut self, reading: &mut Reading, block: u64, bytes: &[u8], place: Place) {
        let size = self.fs.superblock.block_size;
        let mut at = 0;
        while at < bytes.len() {
            let Ok((raw, behind)) = RawDirEntry::ref_from_prefix(&bytes[at..]) else {
                let rule = "the rest of the block is too small for an entry";
                let stored = (bytes.len() - at) as u64;
                return self.findings.add(place.field("rec_len"), Kind::Invalid { stored, rule });
            };
            let (len, name_len) =
                (record_length(raw.rec_len.get(), size), usize::from(raw.name_len));
            if !len.is_multiple_of(4) || len < HEADER + name_len || at + len > bytes.len() {
                let (stored, rule) = (len as u64, "the length of the entry is not valid");
                return self.findings.add(place.field("rec_len"), Kind::Invalid { stored, rule });
            }
            at += len;
            let target = raw.inode.get();
            if target != 0 {
                let name = &behind[..name_len];
                let entry = Entry { name, target, file_type: raw.file_type };
                if block == 0 && reading.entries < 2 && behind.get(name_len) != Some(&0) {
                    let (stored, rule) =
                        (name_len as u64, "the name . or .. is not followed by a NUL");
                    self.findings.add(place.field("name"), Kind::Invalid { stored, rule });
                }
                self.check_entry(reading, block, &entry, place);
            } else if block == 0 && reading.entries < 2 {
                self.findings.add(place, Kind::MissingDots);
                reading.entries += 1;
            }
        }
    }

    fn check_entry(&mut self, reading: &mut Reading, block: u64, entry: &Entry<'_>, place: Place) {
        let order = reading.entries;
        reading.entries += 1;
        let sb = &self.fs.superblock;
        let target = InodeNo(u64::from(entry.target));
        let name = || entry.name.to_vec();
        match order {
            0 if block == 0 => {
                if entry.name != b"." || target != reading.inode.number {
                    return self.findings.add(place, Kind::MissingDots);
                }
            }
            1 if block == 0 => {
                if entry.name != b".." {
                    return self.findings.add(place, Kind::MissingDots);
                }
                self.directories[reading.index].dot_dot = entry.target;
            }
            _ => {
                if !self.check_name(reading, entry, place) {
                    return;
                }
                if let Some(tree) = &reading.tree
                    && let Some(hash) = tree.misplaced(block, entry.name)
                {
                    self.findings.add(place, Kind::WrongLeaf { name: name(), hash });
                }
            }
        }
        let invalid = entry.target > sb.inodes_count
            || (entry.target < sb.first_inode && target != ROOT)
            || (target == ROOT && order >= 2);
        if invalid {
            return self.findings.add(place, Kind::EntryToInvalid { name: name(), target });
        }
        let Some(record) = self.inodes.get(entry.target).copied() else {
            return self.findings.add(place, Kind::EntryToUnused { name: name(), target });
        };
        if record.is_value {
            return self.findings.add(place, Kind::EntryToInvalid { name: name(), target });
        }
        self.check_type(entry, record.file_type, place);
        if order >= 2 {
            self.check_encrypted(reading, entry, record, place);
        }
        if record.is_directory() && order >= 2 {
            let parent = self.directories[reading.index].number;
            let below = self.directories.binary_search_by_key(&entry.target, |dir| dir.number);
            let Ok(below) = below.map(|index| &mut self.directories[index]) else { return };
            if below.parent != 0 {
                return self.findings.add(place, Kind::SecondName { name: name(), target });
            }
            below.parent = parent;
        }
        if order < 2 && self.is_removed(reading) {
            return;
        }
        self.inodes.count_name(entry.target);
    }

    /// Whether a directory is an orphan without a name. The former parent's link count does not include such a directory.
    fn is_removed(&self, reading: &Reading) -> bool {
        reading.inode.raw().i_links_count.get() == 0 && self.is_orphan(&reading.inode)
    }

    /// Checks that a name is valid and that the directory has no other entry with this name.
    fn check_name(&mut self, reading: &mut Reading, entry: &Entry<'_>, place: Place) -> bool {
        let encrypted = reading.inode.flags().contains(InodeFlags::ENCRYPT);
        let bad = entry.name.is_empty()
            || matches!(entry.name, b"." | b"..")
            || !encrypted && entry.name.iter().any(|byte| matches!(byte, 0 | b'/'));
        if bad {
            self.findings.add(place, Kind::BadName { name: entry.name.to_vec() });
            return false;
        }
        let folded = reading.inode.flags().contains(InodeFlags::CASEFOLD) && !encrypted;
        let hash = match fold(entry.name).filter(|_| folded) {
            Some(folded) => reading.keys.hash_one(folded.as_bytes()),
            None => reading.keys.hash_one(entry.name),
        };
        if !reading.names.insert(hash) {
            self.findings.add(place, Kind::DuplicateName { name: entry.name.to_vec() });
        }
        true
    }

    fn check_type(&mut self, entry: &Entry<'_>, actual: u8, place: Place) {
        let typed = self.fs.superblock.incompat.contains(Incompat::FILETYPE);
        let types = [
            FileType::Regular,
            FileType::Directory,
            FileType::CharDevice,
            FileType::BlockDevice,
            FileType::Fifo,
            FileType::Socket,
            FileType::Symlink,
        ];
        if !typed {
            self.findings.expect(place.field("name_len"), entry.file_type, 0_u8);
        } else if entry.file_type != actual
            && let Some(actual) = types.into_iter().find(|known| entry_code(*known) == actual)
        {
            let (name, stored) = (entry.name.to_vec(), entry.file_type);
            let what = Kind::EntryType { name, stored, actual };
            // Type 0 means "unknown". Readers then use the type in the inode.
            let severity = if stored == 0 { Severity::Note } else { what.severity() };
            self.findings.add_as(severity, place.field("file_type"), what);
        }
    }

    /// Checks the entries in `i_block` after the parent's inode number, and then the entries in the attribute `system.data`.
    fn check_inline_directory(&mut self, reading: &mut Reading) {
        let number = reading.inode.number;
        let place = Place::new("inline directory").inode(number);
        let i_block = reading.inode.raw().i_block;
        let [a, b, c, d, ..] = i_block;
        self.directories[reading.index].dot_dot = u32::from_le_bytes([a, b, c, d]);
        let removed = self.is_removed(reading);
        if !removed {
            self.inodes.count_name(self.directories[reading.index].number);
        }
        let parent = self.directories[reading.index].dot_dot;
        if !removed && (1..=self.fs.superblock.inodes_count).contains(&parent) {
            self.inodes.count_name(parent);
        }
        // An inline directory does not store `.` and `..`.
        reading.entries = 2;
        self.check_entries(reading, 0, &i_block[INLINE_PARENT..], place);
        let rest = self.fs.inode(number).and_then(|inode| Ok(inode.inline_rest()?.to_vec()));
        if let Ok(rest) = rest {
            self.check_entries(reading, 1, &rest, place);
        }
    }
}
