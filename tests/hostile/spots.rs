//! Finds the structures of an undamaged volume. This code shares no code with the crate. It is written from the documentation of the
//! format, and only for the volumes of these tests.

use super::repair::crc;

/// The kinds of structures that a change can damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The superblock and the group descriptors.
    Superblock,
    Inode,
    /// Extent trees and indirect blocks, including the roots in the inodes.
    Map,
    /// Directory blocks, linear and hashed.
    Directory,
    /// Attributes, in inodes and in separate blocks.
    Xattr,
    /// Inodes with inline data.
    Inline,
    /// The superblock of the journal, the log, and fast commits.
    Journal,
    /// Multiple mount protection, the list of orphans, and the orphan file.
    Orphan,
}

/// The kind of checksum that a structure has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sum {
    /// The structure has no checksum, or the checksum of a larger structure covers it.
    None,
    Superblock,
    Group(u32),
    Inode,
    Extent,
    Directory,
    Htree {
        root: bool,
    },
    XattrBlock,
    /// Attributes in an inode. They have hashes and no checksum.
    XattrList,
    JournalSuperblock,
    Journal {
        index: u32,
    },
    Mmp,
    Orphan,
}

/// A structure, with its position and the inode that owns it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub(crate) target: Target,
    pub(crate) sum: Sum,
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) inode: u32,
    /// The position of the inode that owns the structure. An inode is its own owner.
    pub(crate) owner: usize,
}

/// The bytes of a volume. Its functions read the fields that the tests need.
#[derive(Clone, Copy)]
pub(crate) struct Raw<'a>(pub(crate) &'a [u8]);

impl Raw<'_> {
    pub(crate) fn u16(&self, at: usize) -> usize {
        usize::from(u16::from_le_bytes([self.0[at], self.0[at + 1]]))
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().unwrap())
    }

    pub(crate) fn be32(&self, at: usize) -> u32 {
        self.u32(at).swap_bytes()
    }

    pub(crate) fn block_size(&self) -> usize {
        1024 << self.u32(SUPERBLOCK + 0x18)
    }

    fn has(&self, field: usize, bit: u32) -> bool {
        self.u32(SUPERBLOCK + field) & bit != 0
    }

    pub(crate) fn checksums(&self) -> bool {
        self.has(0x64, 0x400)
    }

    fn descriptor_size(&self) -> usize {
        if self.has(0x60, 0x80) { self.u16(SUPERBLOCK + 0xFE) } else { 32 }
    }

    /// The position of a group descriptor. In these volumes, the block after the superblock contains all descriptors.
    fn group(&self, group: u32) -> usize {
        (1024 / self.block_size() + 1) * self.block_size() + group as usize * self.descriptor_size()
    }

    fn inode(&self, number: u32) -> usize {
        let per_group = self.u32(SUPERBLOCK + 0x28);
        let table = self.u32(self.group((number - 1) / per_group) + 8) as usize;
        table * self.block_size() + ((number - 1) % per_group) as usize * INODE
    }

    /// The data blocks of a file, each with its position in the file, and the blocks of the file's map.
    fn map(&self, inode: usize) -> (Vec<(u32, u32)>, Vec<u32>) {
        let (mut data, mut nodes) = (Vec::new(), Vec::new());
        if self.u32(inode + 0x20) & EXTENTS != 0 {
            self.extents(inode + 0x28, &mut data, &mut nodes);
        } else {
            let mut next = 0;
            for index in 0..15 {
                let level = (index as u32).saturating_sub(11);
                self.pointers(
                    self.u32(inode + 0x28 + index * 4),
                    level,
                    &mut next,
                    &mut data,
                    &mut nodes,
                );
            }
        }
        (data, nodes)
    }

    fn extents(&self, node: usize, data: &mut Vec<(u32, u32)>, nodes: &mut Vec<u32>) {
        let (entries, depth) = (self.u16(node + 2), self.u16(node + 6));
        for at in (0..entries).map(|entry| node + 12 + entry * 12) {
            if depth == 0 {
                let (first, start) = (self.u32(at), self.u32(at + 8));
                data.extend((0..self.u16(at + 4) as u32 & 0x7FFF).map(|i| (first + i, start + i)));
            } else {
                nodes.push(self.u32(at + 4));
                self.extents(self.u32(at + 4) as usize * self.block_size(), data, nodes);
            }
        }
    }

    fn pointers(
        &self,
        block: u32,
        level: u32,
        next: &mut u32,
        data: &mut Vec<(u32, u32)>,
        nodes: &mut Vec<u32>,
    ) {
        let fan_out = self.block_size() / 4;
        if block == 0 {
            *next = next.saturating_add((fan_out as u32).saturating_pow(level));
        } else if level == 0 {
            data.push((*next, block));
            *next += 1;
        } else {
            nodes.push(block);
            for index in 0..fan_out {
                let pointer = self.u32(block as usize * self.block_size() + index * 4);
                self.pointers(pointer, level - 1, next, data, nodes);
            }
        }
    }
}

pub(crate) const SUPERBLOCK: usize = 1024;
pub(crate) const INODE: usize = 256;
pub(crate) const JOURNAL_MAGIC: u32 = 0xC03B_3998;
const EXTENTS: u32 = 0x80000;
const INDEX: u32 = 0x1000;
const INLINE: u32 = 0x1000_0000;
const FAST_COMMIT: u32 = 0x20;
/// How many blocks of the log are examined. The transactions of these volumes use fewer blocks.
const LOG: u32 = 24;

impl Spot {
    /// All structures of a volume.
    pub(crate) fn all(bytes: &[u8]) -> Vec<Self> {
        let raw = Raw(bytes);
        let mut spots = Self::of_volume(raw);
        for number in 1..=raw.u32(SUPERBLOCK) {
            let at = raw.inode(number);
            let (mode, flags) = (raw.u16(at), raw.u32(at + 0x20));
            if mode == 0 || number == 7 {
                continue;
            }
            spots.extend(Self::of_inode(raw, number));
            let mapped = matches!(mode & 0xF000, 0x4000 | 0x8000) && flags & INLINE == 0;
            if mapped {
                spots.extend(Self::of_content(raw, number));
            }
        }
        spots
    }

    /// The structures of a volume that belong to no inode.
    fn of_volume(raw: Raw<'_>) -> Vec<Self> {
        let spot = |target, sum, at, len| Self { target, sum, at, len, inode: 0, owner: 0 };
        let mut spots = vec![spot(Target::Superblock, Sum::Superblock, SUPERBLOCK, 1024)];
        for group in 0..raw.u32(SUPERBLOCK) / raw.u32(SUPERBLOCK + 0x28) {
            let (at, len) = (raw.group(group), raw.descriptor_size());
            spots.push(spot(Target::Superblock, Sum::Group(group), at, len));
        }
        if raw.has(0x60, 0x100) {
            let mmp = raw.u32(SUPERBLOCK + 0x168) as usize * raw.block_size();
            spots.push(spot(Target::Orphan, Sum::Mmp, mmp, 1024));
            // The field `s_last_orphan`.
            spots.push(spot(Target::Orphan, Sum::None, SUPERBLOCK + 0xE8, 4));
        }
        spots
    }

    /// An inode, with its inline data and its attributes.
    fn of_inode(raw: Raw<'_>, number: u32) -> Vec<Self> {
        let (owner, block) = (raw.inode(number), raw.block_size());
        let spot = |target, sum, at, len| Self { target, sum, at, len, inode: number, owner };
        let mut spots = vec![spot(Target::Inode, Sum::Inode, owner, INODE)];
        let inline = 128 + raw.u16(owner + 128);
        let attributes = owner + inline;
        if raw.u32(owner + 0x20) & INLINE != 0 {
            spots.push(spot(Target::Inline, Sum::None, owner + 0x28, 60));
            spots.push(spot(Target::Inline, Sum::None, owner, 0x28));
            spots.push(spot(Target::Inline, Sum::None, attributes, INODE - inline));
        }
        if raw.u32(attributes) == 0xEA02_0000 {
            spots.push(spot(Target::Xattr, Sum::XattrList, attributes, INODE - inline));
        }
        let xattrs = raw.u32(owner + 0x68) as usize;
        if xattrs != 0 {
            spots.push(spot(Target::Xattr, Sum::XattrBlock, xattrs * block, block));
        }
        spots
    }

    /// The nodes of the map of a file or directory, and all data blocks that contain a structure.
    fn of_content(raw: Raw<'_>, number: u32) -> Vec<Self> {
        let (owner, block) = (raw.inode(number), raw.block_size());
        let spot = |target, sum, at, len| Self { target, sum, at, len, inode: number, owner };
        let (is_directory, flags) = (raw.u16(owner) & 0xF000 == 0x4000, raw.u32(owner + 0x20));
        let journal = raw.u32(SUPERBLOCK + 0xE0);
        let orphans = if raw.has(0x5C, 0x1000) { raw.u32(SUPERBLOCK + 0x280) } else { 0 };
        let (data, nodes) = raw.map(owner);
        let mut spots = vec![spot(Target::Map, Sum::None, owner + 0x28, 60)];
        for node in nodes {
            let sum = if flags & EXTENTS != 0 { Sum::Extent } else { Sum::None };
            spots.push(spot(Target::Map, sum, node as usize * block, block));
        }
        for (index, physical) in data {
            let place = physical as usize * block;
            if is_directory {
                let unused = raw.u32(place) == 0 && raw.u16(place + 4) == block;
                let node = flags & INDEX != 0 && (index == 0 || unused);
                let sum = if node { Sum::Htree { root: index == 0 } } else { Sum::Directory };
                spots.push(spot(Target::Directory, sum, place, block));
            } else if number == journal && index == 0 {
                spots.push(spot(Target::Journal, Sum::JournalSuperblock, place, 1024));
            } else if number == journal {
                if index < LOG || fast_commit_index(raw.0) == Some(index) {
                    spots.push(spot(Target::Journal, Sum::Journal { index }, place, block));
                }
            } else if number == orphans {
                spots.push(spot(Target::Orphan, Sum::Orphan, place, block));
            }
        }
        spots
    }
}

/// The index of the first block of the fast-commit area, from the superblock of the journal.
fn fast_commit_index(bytes: &[u8]) -> Option<u32> {
    let raw = Raw(bytes);
    let journal = raw.map(raw.inode(raw.u32(SUPERBLOCK + 0xE0))).0[0].1 as usize * raw.block_size();
    (raw.be32(journal + 0x28) & FAST_COMMIT != 0)
        .then(|| raw.be32(journal + 0x10) - raw.be32(journal + 0x54) + 1)
}

/// If the journal has a fast-commit area, writes fast commits with every kind of record into this area, after the log.
pub(crate) fn fast_commits(bytes: &mut [u8]) {
    let raw = Raw(bytes);
    if !raw.has(0x5C, 0x400) {
        return;
    }
    let block = raw.block_size();
    let blocks = raw.map(raw.inode(raw.u32(SUPERBLOCK + 0xE0))).0;
    let journal = blocks[0].1 as usize * block;
    let features = raw.be32(journal + 0x28) | FAST_COMMIT;
    let start = raw.be32(journal + 0x1C);
    let first = raw.be32(journal + 0x18);
    let commits = (start..LOG).filter(|index| {
        let at = blocks[*index as usize].1 as usize * block;
        raw.be32(at) == JOURNAL_MAGIC && raw.be32(at + 4) == 2
    });
    let tid = first + commits.count() as u32;
    // The inodes of a linear directory, of a file in it, and of another file.
    let (file, dir, new) = (file_with_extents(&raw), 2_u32, file_with_extents(&raw));
    let free = (bytes.len() / block) as u32 - 8;
    let mut area = Vec::new();
    let mut record = |tag: u16, value: &[&[u8]]| {
        let value = value.concat();
        area.extend_from_slice(&tag.to_le_bytes());
        area.extend_from_slice(&(value.len() as u16).to_le_bytes());
        area.extend_from_slice(&value);
    };
    let word = |value: u32| value.to_le_bytes();
    record(9, &[&word(0), &word(tid)]);
    let inode = raw.inode(file);
    record(6, &[&word(file), &bytes[inode..inode + 160]]);
    record(1, &[&word(file), &word(3), &4_u16.to_le_bytes(), &[0, 0], &word(free)]);
    record(2, &[&word(file), &word(9), &word(2)]);
    record(4, &[&word(dir), &word(new), b"linked"]);
    record(5, &[&word(dir), &word(new), b"inline"]);
    record(3, &[&word(dir), &word(new), b"created"]);
    record(7, &[&[0; 8]]);
    record(8, &[&word(tid), &word(0)]);
    let index = {
        let count = match raw.be32(journal + 0x54) {
            0 => 256,
            count => count,
        };
        bytes[journal + 0x54..][..4].copy_from_slice(&u32::to_be_bytes(count));
        Raw(bytes).be32(journal + 0x10) - count + 1
    };
    bytes[journal + 0x28..][..4].copy_from_slice(&features.to_be_bytes());
    let at = blocks[index as usize].1 as usize * block;
    bytes[at..][..area.len()].copy_from_slice(&area);
    // The checksum in the tail record covers all bytes of the area before it. When a test later changes the area, the same function
    // computes the checksum again.
    super::repair::fast_commit(&mut bytes[at..at + block]);
    let mut superblock = bytes[journal..journal + 1024].to_vec();
    superblock[0xFC..0x100].fill(0);
    let sum = crc(!0, &superblock);
    bytes[journal + 0xFC..][..4].copy_from_slice(&sum.to_be_bytes());
}

/// The largest regular file, except the journal.
fn file_with_extents(raw: &Raw<'_>) -> u32 {
    let regular = |number: &u32| raw.u16(raw.inode(*number)) & 0xF000 == 0x8000;
    let first = raw.u32(SUPERBLOCK + 0x54);
    let files = (first..=raw.u32(SUPERBLOCK)).filter(regular);
    files.max_by_key(|number| raw.u32(raw.inode(*number) + 4)).unwrap()
}
