//! The B+trees of a group, walked block by block.

use std::collections::HashSet;

use zerocopy::FromBytes;

use super::super::disk::tree::{HEADER, HEADER_V5, NONE, RawHeader, owner};
use super::super::header::array;
use super::Checker;
use crate::error::Place;
use crate::fs::check::{FindingSite, Kind};
use crate::units::FsBlock;

/// No tree has more levels.
const MAX_LEVELS: u32 = 12;

/// The order of records: by the first number, then the others.
pub(super) type Key = [u64; 3];

/// The shape of one of the trees.
pub(super) struct Shape {
    pub(super) name: &'static str,
    /// Magic numbers, without and with checksums.
    pub(super) magic: [[u8; 4]; 2],
    /// Bytes of a record, and of a key.
    pub(super) record: usize,
    pub(super) key: usize,
    /// Whether records can overlap: then a node has the highest key of each child too.
    pub(super) overlaps: bool,
    /// The owner of its blocks.
    pub(super) owner: u64,
    pub(super) key_of_record: fn(&[u8]) -> Key,
    pub(super) key_of_key: fn(&[u8]) -> Key,
    pub(super) high_of_record: fn(&[u8]) -> Key,
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32::from_be_bytes(array(bytes, at)))
}

pub(super) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

/// Free space by place.
pub(super) const BY_PLACE: Shape = Shape {
    name: "free space by place",
    magic: [*b"ABTB", *b"AB3B"],
    record: 8,
    key: 8,
    overlaps: false,
    owner: owner::GROUP,
    key_of_record: |raw| [be32(raw, 0), 0, 0],
    key_of_key: |raw| [be32(raw, 0), 0, 0],
    high_of_record: |_| [0; 3],
};

/// Free space by length.
pub(super) const BY_LENGTH: Shape = Shape {
    name: "free space by length",
    magic: [*b"ABTC", *b"AB3C"],
    key_of_record: |raw| [be32(raw, 4), be32(raw, 0), 0],
    key_of_key: |raw| [be32(raw, 4), be32(raw, 0), 0],
    ..BY_PLACE
};

/// Chunks of inodes.
pub(super) const INODES: Shape = Shape {
    name: "inode tree",
    magic: [*b"IABT", *b"IAB3"],
    record: 16,
    key: 4,
    owner: owner::INODE_TREES,
    ..BY_PLACE
};

/// Chunks with free inodes.
pub(super) const FREE_INODES: Shape =
    Shape { name: "tree of free inodes", magic: [*b"FIBT", *b"FIB3"], ..INODES };

/// Owners of blocks.
pub(super) const OWNERS: Shape = Shape {
    name: "tree of owners",
    magic: [*b"RMB3", *b"RMB3"],
    record: 24,
    key: 20,
    overlaps: true,
    owner: owner::GROUP,
    key_of_record: |raw| super::rmap::key(be32(raw, 0), be64(raw, 8), be64(raw, 16)),
    key_of_key: |raw| super::rmap::key(be32(raw, 0), be64(raw, 4), be64(raw, 12)),
    high_of_record: super::rmap::high_key,
};

/// Reference counts of shared blocks.
pub(super) const REFCOUNTS: Shape = Shape {
    name: "tree of reference counts",
    magic: [*b"R3FC", *b"R3FC"],
    record: 12,
    key: 4,
    owner: owner::REFCOUNTS,
    ..BY_PLACE
};

/// The result of a walk.
#[derive(Default)]
pub(super) struct Walked {
    /// All records, one after the other.
    pub(super) records: Vec<u8>,
    /// How many blocks the tree has.
    pub(super) blocks: u32,
    /// No part of it was missing.
    pub(super) whole: bool,
}

/// A walk at work.
struct Walk<'s> {
    group: u32,
    shape: &'s Shape,
    seen: HashSet<u32>,
    /// The last block of each level, and its right sibling.
    last: Vec<Option<(u32, u32)>>,
    previous: Option<Key>,
    root: u32,
    found: Walked,
}

impl Checker<'_> {
    /// Walks a tree from its root on. Its blocks are taken down as in use.
    pub(super) fn walk_tree(
        &mut self,
        group: u32,
        shape: &Shape,
        root: u32,
        levels: u32,
    ) -> Walked {
        let site = FindingSite::of_group(group, Place::new(shape.name));
        if levels == 0 || levels > MAX_LEVELS {
            self.wrong(site, format!("it has {levels} levels"));
            return Walked::default();
        }
        let mut walk = Walk {
            group,
            shape,
            seen: HashSet::new(),
            last: vec![None; levels as usize],
            previous: None,
            root,
            found: Walked { whole: true, ..Walked::default() },
        };
        self.tree_block(&mut walk, root, levels - 1);
        for (block, right) in walk.last.iter().flatten().copied() {
            if right != NONE {
                let site = self.site_of(&walk, block, "bb_rightsib");
                self.wrong(site, format!("block {right} of the group follows the last block"));
            }
        }
        walk.found
    }

    fn site_of(&self, walk: &Walk<'_>, block: u32, field: &'static str) -> FindingSite {
        let number = self.fs.superblock.geometry.group_block(walk.group).0 + u64::from(block);
        let place = Place::new(walk.shape.name).field(field);
        FindingSite::of_group(walk.group, place.block(FsBlock(number)))
    }

    /// A block and all below it; the lowest and the highest key of them. A block of something else has none.
    fn tree_block(&mut self, walk: &mut Walk<'_>, block: u32, level: u32) -> Option<(Key, Key)> {
        let geometry = self.fs.superblock.geometry;
        let site = self.site_of(walk, block, "");
        if u64::from(block) >= geometry.group_len(walk.group) || block == 0 {
            walk.found.whole = false;
            self.findings.add(site, Kind::Outside { block: block.into(), count: 1 });
            return None;
        }
        if !walk.seen.insert(block) {
            walk.found.whole = false;
            self.findings.add(site, Kind::ClaimedTwice { block: block.into(), count: 1 });
            return None;
        }
        let number = FsBlock(geometry.group_block(walk.group).0 + u64::from(block));
        let Some(content) = self.read(site, &[number]) else {
            walk.found.whole = false;
            return None;
        };
        let is_v5 = self.fs.superblock.is_v5();
        let Ok((raw, _)) = RawHeader::ref_from_prefix(&content) else { return None };
        let field = |name| FindingSite { place: site.place.field(name), ..site };
        if raw.bb_magic != walk.shape.magic[usize::from(is_v5)] {
            walk.found.whole = false;
            let what = format!("{:02x?} is not of this tree", raw.bb_magic);
            self.findings.add(field("bb_magic"), Kind::Damaged { what });
            return None;
        }
        walk.found.blocks += 1;
        self.claim(walk.group, (block, 1), walk.shape.owner, 0);
        self.fs.check_tree_seal(&mut self.findings, &content, number, site);
        if !self.findings.expect(field("bb_level"), raw.bb_level.get(), level) {
            walk.found.whole = false;
            return None;
        }
        let header = if is_v5 { HEADER_V5 } else { HEADER };
        let width = if level == 0 {
            walk.shape.record
        } else {
            walk.shape.key * if walk.shape.overlaps { 2 } else { 1 } + 4
        };
        let (room, count) = ((content.len() - header) / width, usize::from(raw.bb_numrecs.get()));
        let is_root = block == walk.root;
        let least = if is_root { usize::from(level > 0) } else { room / 2 };
        if count < least || count > room {
            let what = format!("{count} records, of {least} to {room}");
            self.findings.add(field("bb_numrecs"), Kind::Damaged { what });
            walk.found.whole &= count <= room;
        }
        let count = count.min(room);
        self.check_siblings(walk, block, level, (raw.bb_leftsib.get(), raw.bb_rightsib.get()));
        if level == 0 {
            return self.tree_records(walk, block, &content[header..header + count * width]);
        }
        self.tree_children(walk, (block, level), &content[header..], (count, room))
    }

    fn check_siblings(
        &mut self,
        walk: &mut Walk<'_>,
        block: u32,
        level: u32,
        (left, right): (u32, u32),
    ) {
        let before = walk.last[level as usize].replace((block, right));
        let expected = before.map_or(NONE, |(before, _)| before);
        let site = self.site_of(walk, block, "bb_leftsib");
        self.findings.expect(site, left, expected);
        if let Some((before, stored)) = before {
            let site = self.site_of(walk, before, "bb_rightsib");
            self.findings.expect(site, stored, block);
        }
    }

    fn tree_records(
        &mut self,
        walk: &mut Walk<'_>,
        block: u32,
        records: &[u8],
    ) -> Option<(Key, Key)> {
        let mut range: Option<(Key, Key)> = None;
        for record in records.chunks_exact(walk.shape.record) {
            let (key, high) =
                ((walk.shape.key_of_record)(record), (walk.shape.high_of_record)(record));
            if walk.previous.is_some_and(|previous| previous >= key) {
                let site = self.site_of(walk, block, "record");
                self.wrong(site, format!("{} is out of order", shown(key)));
            }
            walk.previous = Some(key);
            range = Some(range.map_or((key, high), |(low, most)| (low, most.max(high))));
        }
        walk.found.records.extend_from_slice(records);
        range
    }

    fn tree_children(
        &mut self,
        walk: &mut Walk<'_>,
        (block, level): (u32, u32),
        content: &[u8],
        (count, room): (usize, usize),
    ) -> Option<(Key, Key)> {
        let (key, overlaps) = (walk.shape.key, walk.shape.overlaps);
        let width = if overlaps { 2 * key } else { key };
        let mut range: Option<(Key, Key)> = None;
        for index in 0..count {
            let child = u32::from_be_bytes(array(content, room * width + index * 4));
            let Some((low, high)) = self.tree_block(walk, child, level - 1) else { continue };
            let at = index * width;
            let stored = (walk.shape.key_of_key)(&content[at..at + key]);
            let site = self.site_of(walk, block, "key");
            if stored != low {
                let what = format!("key {index} is {}, should be {}", shown(stored), shown(low));
                self.wrong(site, what);
            }
            if overlaps {
                let stored = (walk.shape.key_of_key)(&content[at + key..at + width]);
                if stored != high {
                    let what =
                        format!("high key {index} is {}, should be {}", shown(stored), shown(high));
                    self.wrong(site, what);
                }
            }
            range = Some(range.map_or((low, high), |(first, most)| (first, most.max(high))));
        }
        range
    }
}

fn shown([first, second, third]: Key) -> String {
    match (second, third) {
        (0, 0) => format!("{first}"),
        _ => format!("{first}/{second:#x}/{third:#x}"),
    }
}
