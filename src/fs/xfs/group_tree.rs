//! The B+trees of an allocation group that have 32-bit keys: the tree of inodes and the tree of shared blocks.

use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::Xfs;
use super::disk::tree::{HEADER, HEADER_V5, NONE, RawHeader};
use crate::error::{Error, Place, Result};
use crate::fs::block::{Block, Part};
use crate::units::{FsBlock, InodeNo};

/// The maximum number of levels of a tree. 2^31 records need fewer levels, even with the smallest blocks.
const MAX_LEVELS: u32 = 12;
/// The code for blocks of a group tree in [`Part`], which identifies the structures whose checksums were verified.
const KIND: u8 = 5;

/// A B+tree of an allocation group. A header of the group contains the number of the root block.
#[derive(Clone, Copy)]
pub(super) struct GroupTree {
    pub(super) group: u32,
    /// The root: a block of the group.
    pub(super) root: u32,
    pub(super) levels: u32,
    /// `bb_magic` of the tree's blocks.
    pub(super) magic: [u8; 4],
    /// The name of the structure, for errors.
    pub(super) name: &'static str,
}

/// A checked block of the tree.
struct Node {
    content: Block,
    place: Place,
    records: usize,
    right: u32,
}

impl GroupTree {
    /// Calls `each` with the records of every leaf, beginning at the first leaf.
    pub(super) fn leaves<R>(
        &self,
        fs: &Xfs,
        mut each: impl FnMut(&[R], Place) -> Result<()>,
    ) -> Result<()>
    where
        R: FromBytes + Immutable + KnownLayout + Unaligned,
    {
        let mut leaf = self.leaf(fs, 0)?;
        for _ in 0..fs.superblock.geometry.group_len(self.group) {
            each(leaf.records(fs)?, leaf.place)?;
            if leaf.right == NONE {
                return Ok(());
            }
            // The caller detects a circular chain of leaves with records, because the records are out of order. A circular chain of empty
            // leaves would cause as many steps as the group has blocks. Therefore an empty leaf with a successor is refused.
            if leaf.records == 0 {
                return Err(leaf
                    .place
                    .field("bb_numrecs")
                    .corrupt("an empty leaf has a right sibling"));
            }
            leaf = self.node(fs, leaf.right, 0)?;
        }
        Err(leaf.place.field("bb_rightsib").corrupt("the chain of leaves is circular"))
    }

    /// Returns the last record whose key is at most `key`. `key_of` returns the key of a record.
    pub(super) fn find<R>(
        &self,
        fs: &Xfs,
        key: u32,
        key_of: impl Fn(&R) -> u32,
    ) -> Result<Option<R>>
    where
        R: FromBytes + Immutable + KnownLayout + Unaligned + Copy,
    {
        let leaf = self.leaf(fs, key)?;
        let records = leaf.records::<R>(fs)?;
        let after = records.partition_point(|record| key_of(record) <= key);
        Ok(after.checked_sub(1).map(|at| records[at]))
    }

    /// The leaf whose range contains a key.
    fn leaf(&self, fs: &Xfs, key: u32) -> Result<Node> {
        if self.levels == 0 || self.levels > MAX_LEVELS {
            let what = format!("{} levels", self.levels);
            return Err(self.place(fs).field("level").corrupt(what));
        }
        let mut node = self.node(fs, self.root, self.levels - 1)?;
        for level in (0..self.levels - 1).rev() {
            let bytes = node.bytes(fs);
            let room = bytes.len() / 8;
            let numbers =
                |from: usize| <[U32]>::ref_from_prefix_with_elems(&bytes[from..], node.records);
            let (Ok((keys, _)), Ok((pointers, _)), 1..) =
                (numbers(0), numbers(room * 4), node.records)
            else {
                return Err(node.cut());
            };
            let at = keys.partition_point(|first| first.get() <= key).saturating_sub(1);
            let child = pointers[at].get();
            node = self.node(fs, child, level)?;
        }
        Ok(node)
    }

    fn place(&self, fs: &Xfs) -> Place {
        Place::new(self.name).block(fs.superblock.geometry.group_block(self.group))
    }

    fn node(&self, fs: &Xfs, at: u32, level: u32) -> Result<Node> {
        let place = self.place(fs);
        let geometry = &fs.superblock.geometry;
        if at == 0 || u64::from(at) >= geometry.group_len(self.group) {
            let what = format!("block {at} of group {} is outside the group", self.group);
            return Err(place.field("bb_ptr").corrupt(what));
        }
        let block = FsBlock(geometry.group_block(self.group).0 + u64::from(at));
        let place = place.block(block);
        let content = fs.metadata.block(block)?;
        let Ok((raw, _)) = RawHeader::read_from_prefix(&content) else {
            return Err(place.corrupt("the block of the tree is truncated"));
        };
        if raw.bb_magic != self.magic {
            return Err(place
                .field("bb_magic")
                .corrupt(format!("the magic number does not match the {}", self.name)));
        }
        content.verify_once(Part::whole(KIND, InodeNo(self.group.into())), || {
            fs.check_group_header(&content, block, self.group, place)
        })?;
        if u32::from(raw.bb_level.get()) != level {
            let what = format!("the level is {} instead of {level}", raw.bb_level);
            return Err(place.field("bb_level").corrupt(what));
        }
        let (records, right) = (raw.bb_numrecs.get().into(), raw.bb_rightsib.get());
        Ok(Node { content, place, records, right })
    }
}

impl Node {
    /// The bytes after the header.
    fn bytes(&self, fs: &Xfs) -> &[u8] {
        let header = if fs.superblock.is_v5() { HEADER_V5 } else { HEADER };
        self.content.get(header..).unwrap_or_default()
    }

    fn records<R>(&self, fs: &Xfs) -> Result<&[R]>
    where
        R: FromBytes + Immutable + KnownLayout + Unaligned,
    {
        match <[R]>::ref_from_prefix_with_elems(self.bytes(fs), self.records) {
            Ok((records, _)) => Ok(records),
            Err(_) => Err(self.cut()),
        }
    }

    fn cut(&self) -> Error {
        self.place.field("bb_numrecs").corrupt(format!("{} records", self.records))
    }
}
