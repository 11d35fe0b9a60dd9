//! The free blocks of a volume.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use crate::error::{Place, Result};
use crate::fs::block::Block;
use crate::fs::ext4::Ext4;
use crate::units::FsBlock;

const PLACE: Place = Place::new("block bitmap");

/// The free blocks of a volume. The caller requests ranges of blocks one after another. If several requests contain the same free block,
/// the block is counted only for the first of them.
pub(super) struct FreeBlocks<'a> {
    fs: &'a Ext4,
    /// The block bitmaps of the groups that were read. `None` stands for an uninitialised bitmap: all blocks of the group count as free.
    bitmaps: HashMap<u32, Option<Block>>,
    /// The start and the end of each range that was requested so far. The ranges do not overlap.
    taken: BTreeMap<u64, u64>,
}

impl<'a> FreeBlocks<'a> {
    pub(super) fn new(fs: &'a Ext4) -> Self {
        Self { fs, bitmaps: HashMap::new(), taken: BTreeMap::new() }
    }

    /// The number of free blocks in a range, without the blocks of earlier requests. Each block is checked only once.
    pub(super) fn take(&mut self, start: FsBlock, len: u32) -> Result<u64> {
        let (mut start, mut end) = (start.0, start.0 + u64::from(len));
        let (mut count, mut next) = (0, start);
        let first = self.taken.range(..=start).next_back().filter(|(_, stop)| **stop >= start);
        let from = first.map_or(start, |(first, _)| *first);
        let known: Vec<_> = self.taken.range(from..end).map(|(a, b)| (*a, *b)).collect();
        for (first, stop) in known {
            count += self.count(next..first)?;
            next = next.max(stop);
            self.taken.remove(&first);
            (start, end) = (start.min(first), end.max(stop));
        }
        count += self.count(next..end)?;
        self.taken.insert(start, end);
        Ok(count)
    }

    fn count(&mut self, blocks: std::ops::Range<u64>) -> Result<u64> {
        let mut count = 0;
        for block in blocks {
            count += u64::from(self.is_free(FsBlock(block))?);
        }
        Ok(count)
    }

    fn is_free(&mut self, block: FsBlock) -> Result<bool> {
        let sb = &self.fs.superblock;
        let Some(group) = sb.group_of_block(block) else { return Ok(false) };
        let bitmap = match self.bitmaps.entry(group) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                // The blocks of a group without a usable descriptor may be in use.
                let Ok(found) = self.fs.group(group) else { return Ok(false) };
                let read =
                    || self.fs.blocks.read(found.block_bitmap, PLACE.block(found.block_bitmap));
                new.insert((!found.blocks_uninit).then(read).transpose()?)
            }
        };
        let Some(bitmap) = bitmap else { return Ok(true) };
        let bit = (block.0 - sb.group_start(group).0) / u64::from(sb.cluster_blocks);
        let byte = bitmap.get(bit as usize / 8).copied().unwrap_or(0xFF);
        Ok(byte >> (bit % 8) & 1 == 0)
    }
}
