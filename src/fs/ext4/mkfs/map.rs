//! Builds the block map of a file: an extent tree or indirect blocks. The input is the list of all blocks of the file.

use std::ops::Range;

use zerocopy::IntoBytes;

use super::space::Space;
use crate::error::{Error, Result};
use crate::fs::ext4::disk::extent::{
    INIT_MAX_LEN, MAGIC, MAX_DEPTH, RawExtent, RawExtentHeader, RawExtentIndex, RawExtentTail,
};
use crate::fs::ext4::tree::read_extents::seal_extent_block;
use crate::sys::Buffer;
use crate::units::BlockSize;

const HEADER: usize = size_of::<RawExtentHeader>();
const ENTRY: usize = size_of::<RawExtent>();
/// The maximum number of entries after the header in `i_block`.
const IN_ROOT: usize = 4;
/// The number of data pointers in `i_block`.
pub(in crate::fs::ext4) const DIRECT: usize = 12;

/// A block map: the root in the inode, and the map's blocks outside the inode.
pub(in crate::fs::ext4) struct FileMap {
    pub(in crate::fs::ext4) i_block: [u8; 60],
    pub(in crate::fs::ext4) blocks: Vec<(u64, Buffer)>,
}

/// Builds an extent tree for a file. `seed` is the checksum seed of the inode.
pub(super) fn extents(
    runs: &[Range<u64>],
    size: BlockSize,
    seed: Option<u32>,
    space: &mut Space,
) -> Result<FileMap> {
    let mut entries = Vec::new();
    let mut logical = 0_u32;
    for run in runs {
        let mut start = run.start;
        while start < run.end {
            let len = (run.end - start).min(u64::from(INIT_MAX_LEN)) as u16;
            entries.push(extent(logical, start, len));
            start += u64::from(len);
            logical += u32::from(len);
        }
    }
    tree(&entries, size, seed, &mut || allocate_one(space, runs))
}

/// An entry of a leaf of an extent tree. `len` is the value of `ee_len`, as it is stored on disk.
pub(in crate::fs::ext4) fn extent(logical: u32, start: u64, len: u16) -> RawExtent {
    RawExtent {
        ee_block: logical.into(),
        ee_len: len.into(),
        ee_start_hi: ((start >> 32) as u16).into(),
        ee_start_lo: (start as u32).into(),
    }
}

/// Builds the extent tree for extents that are sorted by file block. `allocate` is called for each node, and returns the block for the
/// node.
pub(in crate::fs::ext4) fn tree(
    extents: &[RawExtent],
    size: BlockSize,
    seed: Option<u32>,
    allocate: &mut dyn FnMut() -> Result<u64>,
) -> Result<FileMap> {
    let mut map = FileMap { i_block: [0; 60], blocks: Vec::new() };
    let room = (size.bytes() - HEADER - size_of::<RawExtentTail>()) / ENTRY;
    let firsts = extents.iter().map(|extent| extent.ee_block).collect::<Vec<_>>();
    let (mut firsts, mut entries) = (firsts, extents.as_bytes().to_vec());
    for depth in 0..=MAX_DEPTH {
        if firsts.len() <= IN_ROOT {
            fill(&mut map.i_block, depth, IN_ROOT, &entries);
            return Ok(map);
        }
        let (mut indexes, mut above) = (Vec::new(), Vec::new());
        for (node, firsts) in entries.chunks(room * ENTRY).zip(firsts.chunks(room)) {
            let at = allocate()?;
            let mut block = Buffer::aligned(size.bytes())?;
            fill(&mut block, depth, room, node);
            seal_extent_block(seed, &mut block);
            map.blocks.push((at, block));
            above.push(firsts[0]);
            indexes.push(RawExtentIndex {
                ei_block: firsts[0],
                ei_leaf_lo: (at as u32).into(),
                ei_leaf_hi: ((at >> 32) as u16).into(),
                ei_unused: 0.into(),
            });
        }
        (firsts, entries) = (above, indexes.as_bytes().to_vec());
    }
    Err(Error::unsupported("the file has more extents than a tree can hold"))
}

/// Fills a node of an extent tree with its header and its entries. An entry has 12 bytes.
fn fill(node: &mut [u8], depth: u16, max: usize, entries: &[u8]) {
    let header = RawExtentHeader {
        eh_magic: MAGIC.into(),
        eh_entries: ((entries.len() / ENTRY) as u16).into(),
        eh_max: (max as u16).into(),
        eh_depth: depth.into(),
        eh_generation: 0.into(),
    };
    node[..HEADER].copy_from_slice(header.as_bytes());
    node[HEADER..HEADER + entries.len()].copy_from_slice(entries);
}

/// Builds a map of indirect blocks for a file. The caller must ensure that all block numbers fit into 32 bits.
pub(super) fn indirect(runs: &[Range<u64>], size: BlockSize, space: &mut Space) -> Result<FileMap> {
    let data = (0..).zip(runs.iter().flat_map(Clone::clone));
    pointers(data, size, &mut || allocate_one(space, runs))
}

/// Builds a map of indirect blocks. `data` contains pairs of a file block and its block number, in the order of the file blocks. The inode
/// maps the first twelve file blocks. Trees with one, two and three levels of pointer blocks map the other file blocks. `allocate` is
/// called for each pointer block, and returns the block for it.
pub(in crate::fs::ext4) fn pointers(
    data: impl Iterator<Item = (u64, u64)>,
    size: BlockSize,
    allocate: &mut dyn FnMut() -> Result<u64>,
) -> Result<FileMap> {
    let mut map = FileMap { i_block: [0; 60], blocks: Vec::new() };
    let mut data = data.peekable();
    let mut first = 0;
    for slot in 0..15 {
        let levels = (slot + 1_usize).saturating_sub(DIRECT) as u32;
        let mut tree = Tree { size, allocate: &mut *allocate, blocks: &mut map.blocks };
        let number = tree.below(levels, &mut first, &mut data)?;
        put(&mut map.i_block, slot, number);
    }
    if data.peek().is_some() {
        return Err(Error::unsupported(
            "the file is too large for three levels of indirect blocks",
        ));
    }
    Ok(map)
}

/// Stores a number in slot `slot` of a block of numbers.
pub(super) fn put(block: &mut [u8], slot: usize, number: u32) {
    block[slot * 4..slot * 4 + 4].copy_from_slice(&number.to_le_bytes());
}

struct Tree<'a> {
    size: BlockSize,
    allocate: &'a mut dyn FnMut() -> Result<u64>,
    blocks: &'a mut Vec<(u64, Buffer)>,
}

impl Tree<'_> {
    /// Builds the subtree that maps file block `first` and the following file blocks. Returns the block number of the subtree's root. The
    /// root is a pointer block, or a data block if `levels` is 0. Returns 0 for a hole. `first` is set to the first file block after the
    /// subtree. The recursion has at most three levels.
    fn below(
        &mut self,
        levels: u32,
        first: &mut u64,
        data: &mut std::iter::Peekable<impl Iterator<Item = (u64, u64)>>,
    ) -> Result<u32> {
        let slots = self.size.bytes() / 4;
        let end = *first + (slots as u64).pow(levels);
        if data.peek().is_none_or(|(logical, _)| *logical >= end) {
            *first = end;
            return Ok(0);
        }
        if levels == 0 {
            *first = end;
            return Ok(data.next().map_or(0, |(_, block)| block as u32));
        }
        let at = (self.allocate)()?;
        let mut block = Buffer::aligned(self.size.bytes())?;
        for slot in 0..slots {
            put(&mut block, slot, self.below(levels - 1, first, data)?);
        }
        self.blocks.push((at, block));
        Ok(at as u32)
    }
}

/// Allocates a block of the map, near the end of the file's data.
fn allocate_one(space: &mut Space, runs: &[Range<u64>]) -> Result<u64> {
    let goal = runs.last().map_or(0, |run| run.end);
    let ranges = space.allocate(goal, 1)?;
    Ok(ranges[0].start)
}
