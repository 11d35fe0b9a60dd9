//! Changes the indirect maps of ext2 and ext3 files: 12 direct pointers in the inode, then trees of one, two and three levels of pointer
//! blocks.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::path::Tree;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::ext4::alloc::Freed;
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::operation::InodeToChange;
use crate::iomap::{Extent, ExtentState};
use crate::units::{FileBlock, FsBlock};

const PLACE: Place = Place::new("indirect block");
const DIRECT: u64 = 12;
const LEVELS: u64 = 3;
/// The maximum number of groups whose bitmaps one step of an unmapping changes.
const GROUPS_AT_ONCE: u32 = 16;

/// The indirect map of an inode.
#[derive(Clone, Copy)]
pub(super) struct Pointers<'a> {
    pub(super) inode: &'a InodeToChange<'a>,
}

/// The route to the pointer for a block of the file. It consists of a slot in the inode, and of a slot in each pointer block on the way.
struct Route {
    /// The slot in the inode, and then the slot in each pointer block.
    slots: SmallVec<[usize; 4]>,
    /// The distance, in file blocks, from the first file block that the pointer tree of the route maps.
    distance: u64,
}

pub(super) fn no_unwritten() -> Error {
    Error::unsupported("a file without extents cannot have an unwritten extent")
}

impl Pointers<'_> {
    fn place(&self) -> Place {
        PLACE.inode(self.inode.number)
    }

    /// The number of pointers in a block.
    fn fan_out(&self) -> u64 {
        self.inode.block_size().bytes() as u64 / 4
    }

    /// The maximum number of blocks of a file.
    fn limit(&self) -> u64 {
        let fan_out = self.fan_out();
        (DIRECT + fan_out + fan_out.pow(2) + fan_out.pow(3)).min(super::FILE_BLOCKS)
    }

    /// The route to a file block. The file block must be below the limit.
    fn route(&self, block: u64) -> Route {
        let Some(mut distance) = block.checked_sub(DIRECT) else {
            return Route { slots: smallvec![block as usize], distance: block };
        };
        let fan_out = self.fan_out();
        let mut level = 1;
        while distance >= fan_out.pow(level) {
            distance -= fan_out.pow(level);
            level += 1;
        }
        let mut slots = smallvec![(DIRECT - 1 + u64::from(level)) as usize];
        let of_level = |level| (distance / fan_out.pow(level) % fan_out) as usize;
        slots.extend((0..level).rev().map(of_level));
        Route { slots, distance }
    }

    /// The pointers in the pointer block `node`, or in the inode if `node` is `None`.
    fn pointers(&self, node: Option<FsBlock>) -> Result<Vec<u32>> {
        let of = |bytes: &[u8]| {
            bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
        };
        match node {
            None => Ok(of(&Tree { inode: self.inode }.raw_inode()?.i_block)),
            Some(block) => Ok(of(&self.inode.fs.blocks.read(block, self.place())?)),
        }
    }

    /// Sets consecutive pointers.
    fn set(
        &self,
        handle: &mut Handle<'_>,
        node: Option<FsBlock>,
        slot: usize,
        pointers: impl Iterator<Item = u32>,
    ) -> Result<()> {
        let store = |bytes: &mut [u8]| {
            let words = bytes.as_chunks_mut::<4>().0;
            for (word, pointer) in words[slot..].iter_mut().zip(pointers) {
                *word = pointer.to_le_bytes();
            }
            Ok(())
        };
        match node {
            None => handle.update_inode(self.inode, |inode| store(inode.i_block()?)),
            Some(block) => handle.update(block, self.place().block(block), store),
        }
    }

    /// Adds `blocks` to the inode's count of blocks.
    fn count(&self, handle: &mut Handle<'_>, blocks: i64) -> Result<()> {
        let sb = &self.inode.fs.superblock;
        handle.update_inode(self.inode, |inode| inode.add_blocks(sb, blocks))
    }

    /// Splits a range into parts. All pointers of a part are in the same block, or in the inode.
    fn parts(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let (fan_out, mut at) = (self.fan_out(), range.start);
        std::iter::from_fn(move || {
            let start = at;
            at = if at < DIRECT { DIRECT } else { at + fan_out - (at - DIRECT) % fan_out };
            at = at.min(range.end);
            (start < range.end).then_some(start..at)
        })
    }

    /// Maps an extent into a hole of the file.
    pub(super) fn map(&self, handle: &mut Handle<'_>, extent: Extent) -> Result<()> {
        if extent.state == ExtentState::Unwritten {
            return Err(no_unwritten());
        }
        if extent.start.0 + u64::from(extent.len) > 1 << 32 {
            return Err(Error::unsupported(
                "a file without extents cannot have blocks beyond 2^32",
            ));
        }
        let range = extent.first.0..extent.end().0;
        if range.end > self.limit() {
            let what = format!("a file without extents cannot have {} blocks", range.end);
            return Err(Error::new(ErrorKind::FileTooLarge, what));
        }
        let tree = Tree { inode: self.inode };
        let new = self.missing(range.clone())?;
        let blocks = new as i64 + i64::from(extent.len);
        tree.check_count(blocks)?;
        let reserve = self.inode.fs.writing()?.alloc.reserve();
        let mut spare = tree.reserve(handle, extent.start, new, reserve)?;
        for part in self.parts(range) {
            let route = self.route(part.start);
            let mut node = None;
            for slot in &route.slots[..route.slots.len() - 1] {
                node = Some(self.child(handle, node, *slot, &mut spare)?);
            }
            let slot = route.slots[route.slots.len() - 1];
            let first = extent.start.0 + (part.start - extent.first.0);
            let pointers = (first..).take((part.end - part.start) as usize);
            self.set(handle, node, slot, pointers.map(|pointer| pointer as u32))?;
        }
        self.count(handle, blocks)
    }

    /// The number of pointer blocks that must be created for a range. The complete range must be a hole.
    fn missing(&self, range: Range<u64>) -> Result<usize> {
        let mut missing = 0;
        let mut last: SmallVec<[usize; 4]> = SmallVec::new();
        for part in self.parts(range) {
            let slots = self.route(part.start).slots;
            let mut node = Some(None);
            for depth in 1..slots.len() {
                node = match node {
                    Some(there) => self.follow(there, slots[depth - 1])?.map(Some),
                    None => None,
                };
                // Two parts may need the same missing pointer block. Such a pointer block is counted only for the first of these parts.
                let known = last.len() == slots.len() && last[..depth] == slots[..depth];
                missing += usize::from(node.is_none() && !known);
            }
            if let Some(node) = node {
                let pointers = self.pointers(node)?;
                let slot = slots[slots.len() - 1];
                let there = &pointers[slot..slot + (part.end - part.start) as usize];
                if there.iter().any(|pointer| *pointer != 0) {
                    let what = format!(
                        "blocks {} to {} of the file are already mapped",
                        part.start, part.end
                    );
                    return Err(Error::invalid(what));
                }
            }
            last = slots;
        }
        Ok(missing)
    }

    /// The target of a pointer.
    fn follow(&self, node: Option<FsBlock>, slot: usize) -> Result<Option<FsBlock>> {
        let pointer = self.pointers(node)?.get(slot).copied().unwrap_or(0);
        Ok((pointer != 0).then_some(FsBlock(u64::from(pointer))))
    }

    /// The pointer block to which a pointer points. If the block is missing, it is created.
    fn child(
        &self,
        handle: &mut Handle<'_>,
        node: Option<FsBlock>,
        slot: usize,
        spare: &mut Vec<FsBlock>,
    ) -> Result<FsBlock> {
        if let Some(block) = self.follow(node, slot)? {
            return Ok(block);
        }
        let Some(block) = spare.pop() else {
            return Err(self.place().corrupt("the map needs more blocks than were reserved"));
        };
        let Ok(pointer) = u32::try_from(block.0) else {
            return Err(Error::unsupported(
                "a file without extents cannot have blocks beyond 2^32",
            ));
        };
        handle.create(block, |_| ())?;
        self.set(handle, node, slot, [pointer].into_iter())?;
        Ok(block)
    }

    /// Unmaps a range, working from its end to its start.
    pub(super) fn unmap(&self, handle: &mut Handle<'_>, range: Range<FileBlock>) -> Result<()> {
        let (mut end, mut changed) = (range.end.0.min(self.limit()), false);
        while end > range.start.0 {
            end = self.unmap_last(handle, range.start.0..end, &mut changed)?;
        }
        Ok(())
    }

    /// Unmaps the last part of a range. The pointers of the part are in one block, and the part is short enough for one step. Later steps
    /// may run in another transaction. Returns the end of the range that remains to be unmapped.
    fn unmap_last(
        &self,
        handle: &mut Handle<'_>,
        range: Range<u64>,
        changed: &mut bool,
    ) -> Result<u64> {
        let last = range.end - 1;
        let Route { slots, distance } = self.route(last);
        let mut nodes: SmallVec<[Option<FsBlock>; 4]> = smallvec![None];
        for (depth, slot) in slots[..slots.len() - 1].iter().enumerate() {
            match self.follow(nodes[depth], *slot)? {
                Some(below) => nodes.push(Some(below)),
                None => break,
            }
        }
        let depth = nodes.len() - 1;
        let (mut node, slot) = (nodes[depth], slots[depth]);
        let mut pointers = self.pointers(node)?;
        let below = (slots.len() - 1 - depth) as u32;
        let (low, gone) = if below == 0 {
            let low = (slot as u64).saturating_sub(last - range.start) as usize;
            self.last_few(&pointers, low..slot + 1)?
        } else {
            (slot, Vec::new())
        };
        // If a pointer on the route is 0, the complete subtree below it is a hole and is skipped.
        let span = self.fan_out().pow(below);
        let start = (last - distance % span).max(range.start) - (slot - low) as u64;
        pointers[low..=slot].fill(0);
        // A pointer block without pointers is also freed. Linux leaves such a block if it punches a hole into a part of the block's range.
        let is_empty = |pointers: &[u32]| pointers.iter().all(|pointer| *pointer == 0);
        let goes = node.is_some() && is_empty(&pointers);
        if gone.is_empty() && !goes {
            return Ok(start);
        }
        let credits = self.credits_for_step();
        if std::mem::replace(changed, true) && handle.credits_left() < credits {
            handle.renew(credits)?;
        }
        let mut freed: i64 = gone.iter().map(|(_, count)| *count as i64).sum();
        if !goes {
            self.set(handle, node, low, std::iter::repeat_n(0, slot + 1 - low))?;
        }
        for (first, count) in gone {
            handle.free_blocks(first, count, Freed::content_of(self.inode))?;
        }
        let above = nodes[..depth].iter().zip(&slots).rev();
        for (parent, slot) in above {
            let Some(block) = node.filter(|_| is_empty(&pointers)) else { break };
            self.set(handle, *parent, *slot, [0].into_iter())?;
            handle.free_blocks(block, 1, Freed::Metadata)?;
            freed += 1;
            (node, pointers) = (*parent, self.pointers(*parent)?);
        }
        self.count(handle, -freed)?;
        Ok(start)
    }

    /// Selects the last blocks of a part that one step can free. Returns the index of the first pointer to these blocks, and the runs of
    /// the blocks.
    fn last_few(
        &self,
        pointers: &[u32],
        part: Range<usize>,
    ) -> Result<(usize, Vec<(FsBlock, u64)>)> {
        let sb = &self.inode.fs.superblock;
        let mut runs: Vec<(FsBlock, u64)> = Vec::new();
        let (mut groups, mut last_group) = (0, None);
        for slot in part.clone().rev() {
            let block = u64::from(pointers[slot]);
            if block == 0 {
                continue;
            }
            if !self.inode.fs.blocks.contain(FsBlock(block), 1) {
                let what =
                    format!("pointer {slot} leads to block {block}, which is outside the volume");
                return Err(self.place().corrupt(what));
            }
            let group = (block.saturating_sub(u64::from(sb.first_data_block)))
                / u64::from(sb.blocks_per_group);
            if last_group != Some(group) {
                if groups == GROUPS_AT_ONCE {
                    return Ok((slot + 1, runs));
                }
                (groups, last_group) = (groups + 1, Some(group));
            }
            match runs.last_mut() {
                Some((first, count)) if first.0 == block + 1 => {
                    (first.0, *count) = (block, *count + 1);
                }
                _ => runs.push((FsBlock(block), 1)),
            }
        }
        Ok((part.start, runs))
    }

    /// The maximum number of blocks that one step changes: the inode; the pointer blocks of a route; a bitmap and a descriptor for each
    /// freed or created pointer block; bitmaps and descriptors for the freed blocks.
    pub(super) fn credits_for_step(&self) -> u32 {
        1 + 3 * LEVELS as u32 + 2 * GROUPS_AT_ONCE
    }

    /// The maximum number of blocks that the mapping of an extent changes: the inode; the pointer blocks for all blocks of a group, and one
    /// pointer block on each level above; a bitmap and a descriptor for each level. New pointer blocks are usually adjacent.
    pub(super) fn credits_for_map(&self) -> u32 {
        let blocks = self.inode.fs.superblock.blocks_per_group.div_ceil(self.fan_out() as u32);
        2 + blocks + 3 * LEVELS as u32
    }
}
