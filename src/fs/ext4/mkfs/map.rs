//! The map of a file that is written once: extents, or the older indirect blocks.

use std::ops::Range;

use zerocopy::IntoBytes;

use super::space::Space;
use crate::error::{Error, Result};
use crate::fs::ext4::disk::extent::{
    INIT_MAX_LEN, MAGIC, RawExtent, RawExtentHeader, RawExtentIndex, RawExtentTail,
};
use crate::fs::ext4::tree::read_extents::seal_extent_block;
use crate::sys::Buffer;
use crate::units::BlockSize;

const HEADER: usize = size_of::<RawExtentHeader>();
const ENTRY: usize = size_of::<RawExtent>();
/// The entries that fit into `i_block` after the header.
const IN_ROOT: usize = 4;
/// Block numbers in `i_block` that point to data.
pub(super) const DIRECT: usize = 12;

/// A map, and the blocks that it needs beside the inode.
pub(super) struct FileMap {
    pub(super) i_block: [u8; 60],
    pub(super) blocks: Vec<(u64, Buffer)>,
}

/// Maps a file by extents; `seed` is the inode's.
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
            entries.push(RawExtent {
                ee_block: logical.into(),
                ee_len: len.into(),
                ee_start_hi: ((start >> 32) as u16).into(),
                ee_start_lo: (start as u32).into(),
            });
            start += u64::from(len);
            logical += u32::from(len);
        }
    }
    let mut i_block = [0; 60];
    let mut blocks = Vec::new();
    if entries.len() <= IN_ROOT {
        fill(&mut i_block, 0, IN_ROOT, entries.as_bytes());
        return Ok(FileMap { i_block, blocks });
    }
    let room = (size.bytes() - HEADER - size_of::<RawExtentTail>()) / ENTRY;
    let mut indexes = Vec::new();
    for leaf in entries.chunks(room) {
        let at = allocate_one(space, runs)?;
        let mut block = Buffer::aligned(size.bytes())?;
        fill(&mut block, 0, room, leaf.as_bytes());
        seal_extent_block(seed, &mut block);
        blocks.push((at, block));
        indexes.push(RawExtentIndex {
            ei_block: leaf[0].ee_block,
            ei_leaf_lo: (at as u32).into(),
            ei_leaf_hi: ((at >> 32) as u16).into(),
            ei_unused: 0.into(),
        });
    }
    if indexes.len() > IN_ROOT {
        return Err(Error::unsupported("a file in more extents than two levels of the tree hold"));
    }
    fill(&mut i_block, 1, IN_ROOT, indexes.as_bytes());
    Ok(FileMap { i_block, blocks })
}

/// Writes a node of the tree: its header and its entries, which are 12 bytes each.
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

/// Maps a file by block numbers: twelve in the inode, then one, two and three levels of blocks full of numbers. The caller has
/// seen to it that all numbers have 32 bits.
pub(super) fn indirect(runs: &[Range<u64>], size: BlockSize, space: &mut Space) -> Result<FileMap> {
    let mut data = runs.iter().flat_map(Clone::clone).map(|block| block as u32).peekable();
    let mut map = FileMap { i_block: [0; 60], blocks: Vec::new() };
    for slot in 0..15 {
        if data.peek().is_none() {
            break;
        }
        let levels = (slot + 1_usize).saturating_sub(DIRECT);
        let mut tree = Tree { size, space: &mut *space, runs, blocks: &mut map.blocks };
        let number = tree.below(levels, &mut data)?;
        put(&mut map.i_block, slot, number);
    }
    if data.peek().is_some() {
        return Err(Error::unsupported("a file beyond three levels of indirect blocks"));
    }
    Ok(map)
}

/// The `slot`th number of a block of numbers.
pub(super) fn put(block: &mut [u8], slot: usize, number: u32) {
    block[slot * 4..slot * 4 + 4].copy_from_slice(&number.to_le_bytes());
}

struct Tree<'a> {
    size: BlockSize,
    space: &'a mut Space,
    runs: &'a [Range<u64>],
    blocks: &'a mut Vec<(u64, Buffer)>,
}

impl Tree<'_> {
    /// The number of the next data block, or of a block that leads to as many as are left; three levels at most.
    fn below(
        &mut self,
        levels: usize,
        data: &mut std::iter::Peekable<impl Iterator<Item = u32>>,
    ) -> Result<u32> {
        if levels == 0 {
            return Ok(data.next().unwrap_or(0));
        }
        let at = allocate_one(self.space, self.runs)?;
        let mut block = Buffer::aligned(self.size.bytes())?;
        for slot in 0..self.size.bytes() / 4 {
            if data.peek().is_none() {
                break;
            }
            put(&mut block, slot, self.below(levels - 1, data)?);
        }
        self.blocks.push((at, block));
        Ok(at as u32)
    }
}

/// A block of the map, after the file's data.
fn allocate_one(space: &mut Space, runs: &[Range<u64>]) -> Result<u64> {
    let goal = runs.last().map_or(0, |run| run.end);
    let ranges = space.allocate(goal, 1)?;
    Ok(ranges[0].start)
}
