//! Changes a file's extents: maps, unmaps or shifts them, or changes their state. A long change processes the leaves one after the other.
//! The tree is valid after each leaf, so that a transaction may end between two leaves.

use std::ops::Range;

use super::path::{Path, Tree};
use super::pieces::{Pieces, join};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::ext4::alloc::Freed;
use crate::fs::ext4::disk::extent::INIT_MAX_LEN;
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::tree::read_extents::MAX_BLOCKS;
use crate::iomap::{Extent, ExtentState};
use crate::units::FileBlock;

/// The maximum number of groups whose bitmaps one step of an unmapping changes. Only a step with a single extent may exceed this number.
const GROUPS_AT_ONCE: u64 = 16;

impl Tree<'_> {
    /// Maps an extent into a hole of the file.
    pub(super) fn map(&self, handle: &mut Handle<'_>, extent: Extent) -> Result<()> {
        let path = self.find(extent.first)?;
        let at = path.beginning_at(extent.first);
        let end = extent.end();
        // The leaf's range ends where the first extent of the next leaf begins. A new extent that ends after this range therefore overlaps
        // the first extent of the next leaf.
        let overlaps = path.ending_after(extent.first) < at
            || path.extents.get(at).is_some_and(|next| next.first < end)
            || end.0 > path.range.end;
        if overlaps {
            return Err(Error::invalid(format!(
                "block {} of the file is already mapped",
                extent.first
            )));
        }
        let window = at.saturating_sub(1)..(at + 1).min(path.extents.len());
        let (left, right) = (&path.extents[window.start..at], &path.extents[at..window.end]);
        let pieces = join(left.iter().chain([&extent]).chain(right).copied());
        let own = self.own_clusters(extent.first.0..end.0)?;
        self.replace(handle, &path, window, &pieces, (own.end - own.start) as i64)
    }

    /// Unmaps a range and frees its space, working from the end of the range to its start.
    pub(super) fn unmap(&self, handle: &mut Handle<'_>, range: Range<FileBlock>) -> Result<()> {
        let (mut end, mut changed) = (range.end, false);
        while end > range.start {
            end = self.unmap_last(handle, range.start..end, &mut changed)?;
        }
        self.lower(handle)
    }

    /// Unmaps the last part of a range. The part lies in one leaf and is short enough for one step. Later steps may run in another
    /// transaction. Returns the end of the range that remains to be unmapped.
    fn unmap_last(
        &self,
        handle: &mut Handle<'_>,
        range: Range<FileBlock>,
        changed: &mut bool,
    ) -> Result<FileBlock> {
        let path = self.find(FileBlock(range.end.0 - 1))?;
        let leaf_start = range.start.max(FileBlock(path.range.start));
        let part = path.ending_after(leaf_start)..path.beginning_at(range.end);
        let Some(from) = self.last_few(&path, part.clone()) else {
            if path.extents.is_empty() && path.depth() > 0 {
                // The leaf was already empty. It is removed, because it occupies a block.
                self.renew_after(handle, changed)?;
                self.replace(handle, &path, 0..0, &[], 0)?;
            }
            return Ok(leaf_start);
        };
        self.renew_after(handle, changed)?;
        let to = part.end;
        let start = if from == part.start { leaf_start } else { path.extents[from].first };

        let old = &path.extents[from..to];
        let inside = |extent: &Extent| extent.from(start)?.before(range.end);
        let gone: Vec<_> = old.iter().filter_map(inside).collect();
        let outside = |extent: &Extent| [extent.before(start), extent.from(range.end)];
        let kept: Pieces = old.iter().flat_map(outside).flatten().collect();
        let own = self.own_clusters(start.0..range.end.0)?;
        let space = self.space(&gone, own)?;
        self.replace(handle, &path, from..to, &kept, -(space.clusters as i64))?;
        for (start, count) in space.ranges {
            let kind = Freed::content_of(self.inode);
            handle.free_blocks(start, count, kind)?;
        }
        Ok(start)
    }

    /// Selects the last extents of `part` that one step can free. Returns the index of the first of them, or `None` if the part has no
    /// extents. If the map consists only of the root, one step frees all extents. A small file is thus freed in one transaction.
    fn last_few(&self, path: &Path, part: Range<usize>) -> Option<usize> {
        let sb = &self.inode.fs.superblock;
        let group = |block: u64| {
            block.saturating_sub(u64::from(sb.first_data_block)) / u64::from(sb.blocks_per_group)
        };
        let (mut groups, mut last_group) = (0, u64::MAX);
        let few = part.clone().rev().take_while(|at| {
            let extent = &path.extents[*at];
            let (first, last) =
                (group(extent.start.0), group(extent.start.0 + u64::from(extent.len) - 1));
            groups += if first == last && last == last_group { 0 } else { last - first + 1 };
            last_group = first;
            groups <= GROUPS_AT_ONCE || *at + 1 == part.end || path.depth() == 0
        });
        few.last()
    }

    /// Changes the state of the mapped blocks in a range.
    pub(super) fn set_state(
        &self,
        handle: &mut Handle<'_>,
        range: Range<FileBlock>,
        state: ExtentState,
    ) -> Result<()> {
        let (mut start, mut changed) = (range.start, false);
        while start < range.end {
            let path = self.find(start)?;
            let end = range.end.min(FileBlock(path.range.end));
            let inner = path.ending_after(start)..path.beginning_at(end);
            if path.extents[inner.clone()].iter().any(|extent| extent.state != state) {
                self.renew_after(handle, &mut changed)?;
                // The changed extents may be merged with the adjacent extents. The replaced extents therefore include the adjacent extents.
                let window = inner.start.saturating_sub(1)..(inner.end + 1).min(path.extents.len());
                let converted = |extent: &Extent| {
                    let inside = extent.from(start)?.before(end)?;
                    Some(Extent { state, ..inside })
                };
                let cut =
                    |extent: &Extent| [extent.before(start), converted(extent), extent.from(end)];
                let pieces = join(path.extents[window.clone()].iter().flat_map(cut).flatten());
                self.replace(handle, &path, window, &pieces, 0)?;
            }
            start = end;
        }
        Ok(())
    }

    /// Moves all extents from a file block on. If `by` is negative, the extents move to lower file blocks. If `by` is positive, they move
    /// to higher file blocks.
    pub(super) fn shift(&self, handle: &mut Handle<'_>, from: FileBlock, by: i64) -> Result<()> {
        let blocks = self.cluster_blocks();
        if !from.0.is_multiple_of(blocks) || !by.unsigned_abs().is_multiple_of(blocks) {
            return Err(Error::invalid("extents can only be shifted by whole clusters"));
        }
        if by < 0 {
            let to = from.0.checked_add_signed(by);
            let to = to.ok_or_else(|| {
                Error::invalid("extents cannot be shifted before the beginning of the file")
            })?;
            if self.maps_any(to..from.0)? {
                return Err(Error::invalid(format!(
                    "the blocks from {to} to {from} are mapped, so extents cannot be shifted there"
                )));
            }
            return self.shift_down(handle, from, by);
        }
        let last = self.find(FileBlock(MAX_BLOCKS - 1))?;
        let end = last.extents.last().map_or(0, |extent| extent.end().0);
        if end.checked_add_signed(by).is_none_or(|end| end > super::FILE_BLOCKS) {
            return Err(Error::new(
                ErrorKind::FileTooLarge,
                format!("a file of {end} blocks cannot be lengthened by {by} blocks"),
            ));
        }
        self.shift_up(handle, from, by)
    }

    /// Shifts extents to lower file blocks. The first leaf is shifted first. Each leaf moves into the hole before it.
    fn shift_down(&self, handle: &mut Handle<'_>, from: FileBlock, by: i64) -> Result<()> {
        let (mut next, mut changed) = (from, false);
        while next.0 < MAX_BLOCKS {
            let path = self.find(next)?;
            // `next` is never within an extent: the file block before it is a hole, or belongs to the previous leaf.
            let first = path.beginning_at(next);
            let window = first.saturating_sub(1)..path.extents.len();
            if first < window.end {
                self.renew_after(handle, &mut changed)?;
                let moved = path.extents[first..].iter().map(|extent| shifted(extent, by));
                let before = path.extents[window.start..first].iter().copied();
                let pieces = join(before.chain(moved));
                self.replace(handle, &path, window, &pieces, 0)?;
            }
            next = FileBlock(path.range.end);
        }
        Ok(())
    }

    /// Shifts extents to higher file blocks. The last leaf is shifted first.
    fn shift_up(&self, handle: &mut Handle<'_>, from: FileBlock, by: i64) -> Result<()> {
        self.cut(handle, from)?;
        let (mut end, mut changed) = (MAX_BLOCKS, false);
        while end > from.0 {
            let path = self.find(FileBlock(end - 1))?;
            let window = path.beginning_at(from)..path.extents.len();
            if !window.is_empty() {
                self.renew_after(handle, &mut changed)?;
                let moved = path.extents[window.clone()].iter();
                let moved: Pieces = moved.map(|extent| shifted(extent, by)).collect();
                self.replace(handle, &path, window, &moved, 0)?;
            }
            // The loop ends after the first leaf. The first leaf is also responsible for the file blocks before its own range.
            end = if path.is_first() { 0 } else { path.range.start };
        }
        Ok(())
    }

    /// Splits the extent that contains a block into two extents. The second extent begins with this block.
    fn cut(&self, handle: &mut Handle<'_>, block: FileBlock) -> Result<()> {
        let path = self.find(block)?;
        let at = path.ending_after(block);
        let Some(extent) = path.extents.get(at).filter(|extent| extent.first < block) else {
            return Ok(());
        };
        let halves: Pieces =
            [extent.before(block), extent.from(block)].into_iter().flatten().collect();
        self.replace(handle, &path, at..at + 1, &halves, 0)
    }

    /// Makes sure that the handle has enough credits for a step. The caller calls this function before each step that changes the tree. The
    /// first step uses the caller's credits and stays in the caller's transaction. A later step starts a new transaction if the remaining
    /// credits may be too few.
    fn renew_after(&self, handle: &mut Handle<'_>, changed: &mut bool) -> Result<()> {
        let credits = self.credits_for_step()?;
        if std::mem::replace(changed, true) && handle.credits_left() < credits {
            return handle.renew(credits);
        }
        Ok(())
    }

    /// The maximum number of blocks that one step changes.
    fn credits_for_step(&self) -> Result<u32> {
        let root = self.raw_inode()?.i_block;
        Ok(super::credits_for_replace(&root) + self.credits_for_freeing())
    }

    /// The maximum number of bitmaps and descriptors that change when one step frees blocks.
    pub(super) fn credits_for_freeing(&self) -> u32 {
        let of_one = u32::from(INIT_MAX_LEN) / self.inode.fs.superblock.blocks_per_group + 2;
        2 * of_one.max(GROUPS_AT_ONCE as u32)
    }
}

fn shifted(extent: &Extent, by: i64) -> Extent {
    Extent { first: FileBlock(extent.first.0.wrapping_add_signed(by)), ..*extent }
}
