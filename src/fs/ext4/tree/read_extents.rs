//! Reads the extent tree from the root in the inode to the leaf for a block. Other modules of [`tree`](super) change the tree.

use std::ops::Range;

use zerocopy::FromBytes;

use crate::error::{Place, Result};
use crate::fs::block::{Block, Part};
use crate::fs::ext4::checksum::{Kind, crc32c_raw};
use crate::fs::ext4::disk::extent::{
    INIT_MAX_LEN, MAGIC, MAX_DEPTH, MOST_LEVELS, RawExtent, RawExtentHeader, RawExtentIndex,
    RawExtentTail,
};
use crate::fs::ext4::inode::Inode;
use crate::iomap::{Extent, ExtentState};
use crate::units::{FileBlock, FsBlock};

const HEADER: usize = size_of::<RawExtentHeader>();
const ENTRY: usize = size_of::<RawExtent>();
/// The maximum number of blocks of a file. File block numbers have 32 bits.
pub(in crate::fs::ext4) const MAX_BLOCKS: u64 = 1 << 32;

/// A node with a checked header.
pub(in crate::fs::ext4) struct Node<'a> {
    pub(in crate::fs::ext4) depth: u16,
    /// The maximum number of entries in the node.
    pub(in crate::fs::ext4) max: usize,
    entries: &'a [u8],
}

/// Checks a node's header. `depth` is the expected depth, which is known for every node except the root.
pub(in crate::fs::ext4) fn node(
    bytes: &[u8],
    depth: Option<u16>,
    place: Place,
) -> Result<Node<'_>> {
    let Ok((header, rest)) = RawExtentHeader::ref_from_prefix(bytes) else {
        return Err(place.corrupt("the extent node is truncated"));
    };
    let magic = header.eh_magic.get();
    if magic != MAGIC {
        return Err(place
            .field("eh_magic")
            .corrupt(format!("the magic number is {magic:#06x} instead of {MAGIC:#06x}")));
    }
    let found = header.eh_depth.get();
    if found > MOST_LEVELS || depth.is_some_and(|expected| expected != found) {
        let expected = depth.map_or(format!("at most {MOST_LEVELS}"), |depth| depth.to_string());
        return Err(place
            .field("eh_depth")
            .corrupt(format!("the depth is {found} instead of {expected}")));
    }
    let (entries, max) = (usize::from(header.eh_entries.get()), usize::from(header.eh_max.get()));
    if max == 0 || max > rest.len() / ENTRY {
        return Err(place
            .field("eh_max")
            .corrupt(format!("a maximum of {max} entries does not match the size of the node")));
    }
    if entries > max {
        return Err(place
            .field("eh_entries")
            .corrupt(format!("the number of entries is {entries}, but the maximum is {max}")));
    }
    if entries == 0 && found > 0 {
        // Without this check, the blocks of this damaged node would read as a hole.
        return Err(place.field("eh_entries").corrupt("an index node has no entries"));
    }
    Ok(Node { depth: found, max, entries: &rest[..entries * ENTRY] })
}

impl<'a> Node<'a> {
    /// Refuses a tree that is deeper than the trees that Linux creates and reads. ironmap can free a deeper tree, but not read it.
    pub(in crate::fs::ext4) fn check_depth(&self, place: Place) -> Result<()> {
        if self.depth <= MAX_DEPTH {
            return Ok(());
        }
        let what = format!("the depth is {} instead of at most {MAX_DEPTH}", self.depth);
        Err(place.field("eh_depth").corrupt(what))
    }

    /// The number of entries.
    pub(in crate::fs::ext4) fn len(&self) -> usize {
        self.entries.len() / ENTRY
    }

    /// The entries of an inner node. Checks that they are sorted and within the bounds that the parent sets.
    pub(in crate::fs::ext4) fn indexes(
        &self,
        bounds: &Range<u64>,
        place: Place,
    ) -> Result<&'a [RawExtentIndex]> {
        let Ok(indexes) = <[RawExtentIndex]>::ref_from_bytes(self.entries) else {
            return Err(place.corrupt("the entries of the node are truncated"));
        };
        if !indexes.is_sorted_by(|a, b| a.key() < b.key()) {
            return Err(place
                .field("ei_block")
                .corrupt("the entries of the node are out of order"));
        }
        let outside = |key: &u64| !bounds.contains(key);
        if let Some(key) = indexes.iter().map(RawExtentIndex::key).find(outside) {
            return Err(place.field("ei_block").corrupt(format!(
                "block {key} is outside the range {bounds:?} of the parent node"
            )));
        }
        Ok(indexes)
    }
}

impl RawExtentIndex {
    /// The first block of the file that the entry covers.
    pub(in crate::fs::ext4) fn key(&self) -> u64 {
        u64::from(self.ei_block.get())
    }

    /// The number of the block with the child node.
    pub(in crate::fs::ext4) fn child(&self) -> FsBlock {
        FsBlock(u64::from(self.ei_leaf_lo.get()) | u64::from(self.ei_leaf_hi.get()) << 32)
    }
}

impl Inode {
    /// Appends the extents of the leaf for `block` to `into`, in order. Returns the first block after the leaf's range.
    pub(in crate::fs::ext4) fn extent_leaf(
        &self,
        block: FileBlock,
        into: &mut Vec<Extent>,
    ) -> Result<FileBlock> {
        let place = Place::new("extent header").inode(self.number);
        let root = node(&self.i_block, None, place)?;
        root.check_depth(place)?;
        self.leaf_below(&root, 0..MAX_BLOCKS, block, place, into)
    }

    /// Descends by one level. The depth decreases at each step. The recursion therefore ends.
    fn leaf_below(
        &self,
        above: &Node<'_>,
        bounds: Range<u64>,
        block: FileBlock,
        place: Place,
        into: &mut Vec<Extent>,
    ) -> Result<FileBlock> {
        if above.depth == 0 {
            self.leaf_extents(above, &bounds, place, into)?;
            return Ok(FileBlock(bounds.end));
        }
        let indexes = above.indexes(&bounds, place)?;
        let after = indexes.partition_point(|index| index.key() <= block.0);
        let end = indexes.get(after).map_or(bounds.end, RawExtentIndex::key);
        // The block is in a hole before the first child's key.
        let index = after.checked_sub(1).map(|at| &indexes[at]);
        let bounds = index.map_or(bounds.start, RawExtentIndex::key)..end;
        let child = index.map(RawExtentIndex::child);
        let Some(child) = child else { return Ok(FileBlock(bounds.end)) };
        let content = self.fs.blocks.read(child, place.field("ei_leaf"))?;
        let place = place.block(child);
        self.verify_extent_block(&content, place)?;
        let below = node(&content, Some(above.depth - 1), place)?;
        self.leaf_below(&below, bounds, block, place, into)
    }

    /// Appends the extents of a leaf to `into`. Checks that they are sorted and within the bounds that the parent sets.
    pub(in crate::fs::ext4) fn leaf_extents(
        &self,
        node: &Node<'_>,
        bounds: &Range<u64>,
        place: Place,
        into: &mut Vec<Extent>,
    ) -> Result<()> {
        let Ok(extents) = <[RawExtent]>::ref_from_bytes(node.entries) else {
            return Err(place.corrupt("the entries of the node are truncated"));
        };
        let mut next = bounds.start;
        for raw in extents {
            let first = u64::from(raw.ee_block.get());
            let (len, state) = match raw.ee_len.get() {
                len @ 0..=INIT_MAX_LEN => (len, ExtentState::Written),
                len => (len - INIT_MAX_LEN, ExtentState::Unwritten),
            };
            let start = u64::from(raw.ee_start_lo.get()) | u64::from(raw.ee_start_hi.get()) << 32;
            if len == 0 {
                return Err(place
                    .field("ee_len")
                    .corrupt(format!("the extent of block {first} has length 0")));
            }
            if first < next || first + u64::from(len) > bounds.end {
                return Err(place
                    .field("ee_block")
                    .corrupt(format!("the extent {first}+{len} is out of order, or outside the range {bounds:?} of its node")));
            }
            if start == 0 || !self.fs.blocks.contain(FsBlock(start), u64::from(len)) {
                return Err(place
                    .field("ee_start")
                    .corrupt(format!("the blocks {start}+{len} are outside the volume")));
            }
            next = first + u64::from(len);
            into.push(Extent {
                first: FileBlock(first),
                start: FsBlock(start),
                len: u32::from(len),
                state,
            });
        }
        Ok(())
    }

    pub(in crate::fs::ext4) fn verify_extent_block(
        &self,
        block: &Block,
        place: Place,
    ) -> Result<()> {
        let sb = &self.fs.superblock;
        block.verify_once(Part::whole(Kind::Extents, self.number), || {
            let seed = sb.inode_seed(self.number, self.generation);
            seed.map_or(Ok(()), |seed| verify_node(seed, block, place))
        })
    }
}

/// Verifies the checksum of a node below the root.
fn verify_node(seed: u32, bytes: &[u8], place: Place) -> Result<()> {
    let Some((at, computed)) = extent_checksum(seed, bytes) else {
        return Err(place
            .field("eh_max")
            .corrupt("the node has no space for the checksum after the entries"));
    };
    let (tail, _) = RawExtentTail::ref_from_prefix(&bytes[at..])
        .map_err(|_| place.corrupt("the extent node is truncated"))?;
    let stored = tail.et_checksum.get();
    if stored == computed {
        Ok(())
    } else {
        Err(place.field("et_checksum").bad_checksum(stored, computed))
    }
}

/// The offset of the checksum in a node's block, and the checksum of all bytes before this offset. The checksum is stored after the space
/// for `eh_max` entries. `None` if the block has no space for the checksum.
fn extent_checksum(seed: u32, bytes: &[u8]) -> Option<(usize, u32)> {
    let (header, _) = RawExtentHeader::ref_from_prefix(bytes).ok()?;
    let at = HEADER + usize::from(header.eh_max.get()) * ENTRY;
    bytes.get(at..at + size_of::<RawExtentTail>())?;
    Some((at, crc32c_raw(seed, &bytes[..at])))
}

/// Stores the checksum of a node below the root. `seed` is the inode's seed.
pub(crate) fn seal_extent_block(seed: Option<u32>, bytes: &mut [u8]) {
    if let Some((at, sum)) = seed.and_then(|seed| extent_checksum(seed, bytes)) {
        bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node with a capacity of 0 entries is refused. A split of this node would divide by zero.
    #[test]
    fn a_node_without_room_is_refused() {
        let mut root = [0; 60];
        root[..2].copy_from_slice(&MAGIC.to_le_bytes());
        let field = |root: &[u8]| node(root, None, Place::new("extent header")).map(drop);
        assert_eq!(field(&root).unwrap_err().place().unwrap().field, "eh_max");
        root[4] = 4;
        field(&root).unwrap();
    }
}
