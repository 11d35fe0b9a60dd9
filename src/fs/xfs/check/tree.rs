//! Walks the B+trees of a group, and the B+trees in the data fork of an internal file, block by block.

use std::collections::HashSet;

use zerocopy::FromBytes;

use super::super::disk::btree::{HEADER_V5 as FILE_HEADER, NONE as NO_FILE_BLOCK, RawRoot};
use super::super::disk::tree::{HEADER, HEADER_V5, NONE, owner, owner_bits};
use super::super::header::{Header, array};
use super::Checker;
use super::found::Found;
use super::owners::Space;
use crate::error::Place;
use crate::fs::check::{FindingSite, Kind};
use crate::units::{FsBlock, InodeNo};

/// The maximum number of levels of a tree.
const MAX_LEVELS: u32 = 12;

/// The sort key of records. Keys are compared lexicographically.
pub(super) type Key = [u64; 3];

/// The properties of a kind of tree.
pub(super) struct Shape {
    pub(super) name: &'static str,
    /// Magic numbers, without and with checksums.
    pub(super) magic: [[u8; 4]; 2],
    /// The lengths of a record and of a key in bytes.
    pub(super) record: usize,
    pub(super) key: usize,
    /// Whether records can overlap. If so, a node also contains the highest key of each child.
    pub(super) overlaps: bool,
    /// The owner of the tree's blocks, as the reverse-mapping tree encodes it.
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

/// The tree of free space, sorted by position.
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

/// The tree of free space, sorted by length.
pub(super) const BY_LENGTH: Shape = Shape {
    name: "free space by length",
    magic: [*b"ABTC", *b"AB3C"],
    key_of_record: |raw| [be32(raw, 4), be32(raw, 0), 0],
    key_of_key: |raw| [be32(raw, 4), be32(raw, 0), 0],
    ..BY_PLACE
};

/// The tree of inode chunks.
pub(super) const INODES: Shape = Shape {
    name: "inode tree",
    magic: [*b"IABT", *b"IAB3"],
    record: 16,
    key: 4,
    owner: owner::INODE_TREES,
    ..BY_PLACE
};

/// The tree of inode chunks that contain free inodes.
pub(super) const FREE_INODES: Shape =
    Shape { name: "tree of free inodes", magic: [*b"FIBT", *b"FIB3"], ..INODES };

/// The tree of block owners (reverse mapping).
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

/// The tree of the reference counts of shared blocks.
pub(super) const REFCOUNTS: Shape = Shape {
    name: "tree of reference counts",
    magic: [*b"R3FC", *b"R3FC"],
    record: 12,
    key: 4,
    owner: owner::REFCOUNTS,
    ..BY_PLACE
};

/// The tree of the owners of realtime blocks (reverse mapping).
pub(super) const REALTIME_OWNERS: Shape =
    Shape { name: "tree of realtime owners", magic: [*b"MAPR", *b"MAPR"], ..OWNERS };

/// The tree of the reference counts of shared realtime blocks.
pub(super) const REALTIME_REFCOUNTS: Shape =
    Shape { name: "tree of realtime reference counts", magic: [*b"RCNT", *b"RCNT"], ..REFCOUNTS };

/// The location of a tree. The format of the block numbers in the tree depends on the location.
#[derive(Clone, Copy)]
enum Home {
    Group(u32),
    File(InodeNo),
}

impl Home {
    /// The length of a block number in bytes.
    fn width(self) -> usize {
        match self {
            Self::Group(_) => size_of::<u32>(),
            Self::File(_) => size_of::<u64>(),
        }
    }

    /// The block number that means "no block".
    fn none(self) -> u64 {
        match self {
            Self::Group(_) => NONE.into(),
            Self::File(_) => NO_FILE_BLOCK,
        }
    }
}

/// Reads a block number.
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    if width == size_of::<u32>() { be32(bytes, at) } else { be64(bytes, at) }
}

/// The result of a walk.
#[derive(Default)]
pub(super) struct Walked {
    /// All records of the tree, concatenated.
    pub(super) records: Vec<u8>,
    /// The number of blocks of the tree.
    pub(super) blocks: u32,
    /// Whether all parts of the tree could be read.
    pub(super) whole: bool,
}

/// A walk in progress.
struct Walk<'s> {
    home: Home,
    shape: &'s Shape,
    seen: HashSet<u64>,
    /// For each level, the last block that was visited and its right sibling.
    last: Vec<Option<(u64, u64)>>,
    previous: Option<Key>,
    found: Walked,
}

impl<'s> Walk<'s> {
    fn new(home: Home, shape: &'s Shape, levels: usize) -> Self {
        let found = Walked { whole: true, ..Walked::default() };
        let (seen, last) = (HashSet::new(), vec![None; levels]);
        Self { home, shape, seen, last, previous: None, found }
    }

    /// The length of a child's keys, and the length of a child's pointer.
    fn child(&self) -> (usize, usize) {
        let keys = if self.shape.overlaps { 2 * self.shape.key } else { self.shape.key };
        (keys, self.home.width())
    }
}

/// The decoded header of a block. The lengths of headers and block numbers depend on the location of the tree.
struct Decoded {
    magic: [u8; 4],
    level: u16,
    records: usize,
    /// The left sibling and the right sibling.
    siblings: [u64; 2],
    /// The length of the header in bytes.
    len: usize,
}

impl Decoded {
    fn new(home: Home, content: &[u8], is_v5: bool) -> Self {
        let width = home.width();
        Self {
            magic: array(content, 0),
            level: u16::from_be_bytes(array(content, 4)),
            records: u16::from_be_bytes(array(content, 6)).into(),
            siblings: [0, 1].map(|at| number(content, 8 + at * width, width)),
            len: match home {
                Home::Group(_) if is_v5 => HEADER_V5,
                Home::Group(_) => HEADER,
                Home::File(_) => FILE_HEADER,
            },
        }
    }
}

impl Checker<'_> {
    /// Walks a tree in the data fork of a file, from the root in its inode. The tree's blocks are recorded as used.
    pub(super) fn walk_file_tree(&mut self, found: &Found, shape: &Shape) -> Walked {
        let place = found.part(shape.name);
        let Ok((root, rest)) = RawRoot::ref_from_prefix(found.data()) else {
            self.wrong(place, "the root of the tree is truncated");
            return Walked::default();
        };
        let (level, count) = (root.bb_level.get(), usize::from(root.bb_numrecs.get()));
        if u32::from(level) >= MAX_LEVELS {
            self.wrong(
                place.field("bb_level"),
                format!("the root of the tree has the invalid level {level}"),
            );
            return Walked::default();
        }
        let mut walk = Walk::new(Home::File(found.number), shape, level.into());
        let (keys, pointer) = walk.child();
        let width = if level == 0 { shape.record } else { keys + pointer };
        let room = rest.len() / width;
        if count > room || count == 0 && level > 0 {
            let what = format!("the root of the tree has {count} records, but space for {room}");
            self.wrong(place.field("bb_numrecs"), what);
            return Walked::default();
        }
        if level == 0 {
            self.tree_records(&mut walk, None, &rest[..count * width]);
        } else {
            self.tree_children(&mut walk, (None, level.into()), rest, (count, room));
        }
        self.end_of_walk(walk)
    }

    /// Walks a tree from its root. The tree's blocks are recorded as used.
    pub(super) fn walk_tree(
        &mut self,
        group: u32,
        shape: &Shape,
        root: u32,
        levels: u32,
    ) -> Walked {
        let site = FindingSite::of_group(group, Place::new(shape.name));
        if levels == 0 || levels > MAX_LEVELS {
            self.wrong(site, format!("the tree has an invalid number of levels, {levels}"));
            return Walked::default();
        }
        let mut walk = Walk::new(Home::Group(group), shape, levels as usize);
        self.tree_block(&mut walk, root.into(), levels - 1);
        self.end_of_walk(walk)
    }

    /// Checks that the last block of each level has no right sibling.
    fn end_of_walk(&mut self, walk: Walk<'_>) -> Walked {
        for (block, right) in walk.last.iter().flatten().copied() {
            if right != walk.home.none() {
                let site = self.site_of(&walk, Some(block), "bb_rightsib");
                self.wrong(
                    site,
                    format!("the last block of a level has the right sibling {right}"),
                );
            }
        }
        walk.found
    }

    /// The place of a block of the tree, or of the tree's root in an inode.
    fn site_of(&self, walk: &Walk<'_>, block: Option<u64>, field: &'static str) -> FindingSite {
        let place = Place::new(walk.shape.name).field(field);
        let at = block.and_then(|block| self.block_of(walk, block));
        let place = at.map_or(place, |at| place.block(at));
        match walk.home {
            Home::Group(group) => FindingSite::of_group(group, place),
            Home::File(number) => place.inode(number).into(),
        }
    }

    /// Converts a block number in the tree to a block of the volume.
    fn block_of(&self, walk: &Walk<'_>, block: u64) -> Option<FsBlock> {
        let geometry = &self.fs.superblock.geometry;
        match walk.home {
            Home::Group(group) => (block != 0 && block < geometry.group_len(group))
                .then(|| FsBlock(geometry.group_block(group).0 + block)),
            Home::File(_) => geometry.fs_block(block, 1, Place::new(walk.shape.name)).ok(),
        }
    }

    /// Checks a block and the subtree below it. Returns the lowest and the highest key, or `None` if the block belongs to another
    /// structure.
    fn tree_block(&mut self, walk: &mut Walk<'_>, block: u64, level: u32) -> Option<(Key, Key)> {
        let site = self.site_of(walk, Some(block), "");
        let Some(number) = self.block_of(walk, block) else {
            walk.found.whole = false;
            self.findings.add(site, Kind::Outside { block, count: 1 });
            return None;
        };
        let is_new = match walk.home {
            Home::Group(_) => true,
            Home::File(_) => self.in_file_trees.insert(number),
        };
        if !is_new || !walk.seen.insert(block) {
            walk.found.whole = false;
            self.findings.add(site, Kind::ClaimedTwice { block, count: 1 });
            return None;
        }
        let Some(content) = self.read(site, &[number]) else {
            walk.found.whole = false;
            return None;
        };
        let is_v5 = self.fs.superblock.is_v5();
        let header = Decoded::new(walk.home, &content, is_v5);
        let field = |name| FindingSite { place: site.place.field(name), ..site };
        if header.magic != walk.shape.magic[usize::from(is_v5)] {
            walk.found.whole = false;
            let what = format!("the magic number {:02x?} does not match this tree", header.magic);
            self.findings.add(field("bb_magic"), Kind::Damaged { what });
            return None;
        }
        walk.found.blocks += 1;
        self.claim_tree_block(walk, number);
        match walk.home {
            Home::Group(_) => {
                self.fs.check_tree_seal(&mut self.findings, &content, number, site);
            }
            Home::File(owner) => {
                let owner = (owner, site.place);
                self.fs.check_seal(&mut self.findings, &content, Header::MAP, &[number], owner);
            }
        }
        if !self.findings.expect(field("bb_level"), header.level, level) {
            walk.found.whole = false;
            return None;
        }
        let (keys, pointer) = walk.child();
        let width = if level == 0 { walk.shape.record } else { keys + pointer };
        let (room, count) = ((content.len() - header.len) / width, header.records);
        let is_top = level as usize + 1 == walk.last.len();
        let least = match walk.home {
            Home::Group(_) if is_top => usize::from(level > 0),
            // A root in an inode can have a single child. Such a child may be less than half full. The child only has to contain more
            // records than fit into the inode.
            Home::File(_) if is_top => 1,
            _ => room / 2,
        };
        if count < least || count > room {
            let what =
                format!("the block has {count} records, but must have from {least} to {room}");
            self.findings.add(field("bb_numrecs"), Kind::Damaged { what });
            walk.found.whole &= count <= room;
        }
        let count = count.min(room);
        self.check_siblings(walk, block, level, header.siblings);
        let content = &content[header.len..];
        if level == 0 {
            return self.tree_records(walk, Some(block), &content[..count * width]);
        }
        self.tree_children(walk, (Some(block), level), content, (count, room))
    }

    fn claim_tree_block(&mut self, walk: &Walk<'_>, block: FsBlock) {
        let (group, within) = self.fs.superblock.geometry.in_group(block);
        let (owner, offset) = match walk.home {
            Home::Group(_) => (walk.shape.owner, 0),
            Home::File(number) => (number.0, owner_bits::MAP_BLOCK),
        };
        self.claim(Space::Data(group), (within, 1), owner, offset);
    }

    fn check_siblings(
        &mut self,
        walk: &mut Walk<'_>,
        block: u64,
        level: u32,
        [left, right]: [u64; 2],
    ) {
        let before = walk.last[level as usize].replace((block, right));
        let expected = before.map_or(walk.home.none(), |(before, _)| before);
        let site = self.site_of(walk, Some(block), "bb_leftsib");
        self.findings.expect(site, left, expected);
        if let Some((before, stored)) = before {
            let site = self.site_of(walk, Some(before), "bb_rightsib");
            self.findings.expect(site, stored, block);
        }
    }

    fn tree_records(
        &mut self,
        walk: &mut Walk<'_>,
        block: Option<u64>,
        records: &[u8],
    ) -> Option<(Key, Key)> {
        let mut range: Option<(Key, Key)> = None;
        for record in records.chunks_exact(walk.shape.record) {
            let (key, high) =
                ((walk.shape.key_of_record)(record), (walk.shape.high_of_record)(record));
            if walk.previous.is_some_and(|previous| previous >= key) {
                let site = self.site_of(walk, block, "record");
                self.wrong(site, format!("the record {} is out of order", shown(key)));
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
        (block, level): (Option<u64>, u32),
        content: &[u8],
        (count, room): (usize, usize),
    ) -> Option<(Key, Key)> {
        let (key, overlaps) = (walk.shape.key, walk.shape.overlaps);
        let (width, pointer) = walk.child();
        let mut range: Option<(Key, Key)> = None;
        for index in 0..count {
            let child = number(content, room * width + index * pointer, pointer);
            let Some((low, high)) = self.tree_block(walk, child, level - 1) else { continue };
            let at = index * width;
            let stored = (walk.shape.key_of_key)(&content[at..at + key]);
            let site = self.site_of(walk, block, "key");
            if stored != low {
                let what =
                    format!("key {index} is {}, but should be {}", shown(stored), shown(low));
                self.wrong(site, what);
            }
            if overlaps {
                let stored = (walk.shape.key_of_key)(&content[at + key..at + width]);
                if stored != high {
                    let what = format!(
                        "high key {index} is {}, but should be {}",
                        shown(stored),
                        shown(high)
                    );
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
