//! Reads a damaged leaf of a map, so that only the damaged range of the file is lost.
//!
//! A damaged range becomes an extent whose content is not on the device. `read_inline` of the inode then fails with the fault of the map.
//! Volumes that are open for writing never use such a map.

use std::ops::Range;

use super::read_extents::{MAX_BLOCKS, Node, node};
use crate::error::{Error, Place, Result};
use crate::fs::InodeFlags;
use crate::fs::ext4::inode::Inode;
use crate::iomap::{Extent, ExtentState};
use crate::units::{FileBlock, FsBlock};

/// The maximum length of a damaged extent. A longer range becomes several extents.
const LONGEST: u64 = 1 << 28;

impl Inode {
    /// Appends the sound extents of the leaf for `block` to `into`, and an extent for each damaged range. `why` is the first fault of the leaf.
    /// Returns the first block after the leaf's range.
    ///
    /// # Errors
    /// The error `why` if the complete map is damaged.
    #[cold]
    pub(in crate::fs::ext4) fn damaged_leaf(
        &self,
        block: FileBlock,
        why: Error,
        into: &mut Vec<Extent>,
    ) -> Result<FileBlock> {
        let end = match self.flags.contains(InodeFlags::EXTENTS) {
            true => match node(&self.i_block, None, Place::new("extent header")) {
                Ok(root) if root.check_depth(Place::new("extent header")).is_ok() => {
                    self.damaged_below(&root, 0..MAX_BLOCKS, block, into)
                }
                _ => return Err(why),
            },
            false => self.damaged_pointers(block, into),
        };
        self.fs.left.keep_map_fault(self.number, &why);
        Ok(end)
    }

    /// Appends an extent for a damaged range. Returns the end of the extent.
    fn damaged(&self, range: Range<u64>, into: &mut Vec<Extent>) -> FileBlock {
        let len = (range.end - range.start).min(LONGEST);
        into.push(Extent {
            first: FileBlock(range.start),
            // No block of the volume has this number.
            start: FsBlock(self.fs.superblock.blocks_count),
            len: len as u32,
            state: ExtentState::Memory,
        });
        FileBlock(range.start + len)
    }

    /// Descends by one level. The depth decreases at each step. The recursion therefore ends.
    fn damaged_below(
        &self,
        above: &Node<'_>,
        bounds: Range<u64>,
        block: FileBlock,
        into: &mut Vec<Extent>,
    ) -> FileBlock {
        let place = Place::new("extent header").inode(self.number);
        if above.depth == 0 {
            return self.damaged_extents(above, bounds, block, into);
        }
        let Ok(indexes) = above.indexes(&bounds, place) else {
            return self.damaged(block.0..bounds.end, into);
        };
        let after = indexes.partition_point(|index| index.key() <= block.0);
        let end = indexes.get(after).map_or(bounds.end, |index| index.key());
        let Some(index) = after.checked_sub(1).map(|at| &indexes[at]) else {
            return FileBlock(end);
        };
        let Ok(content) = self.fs.blocks.read(index.child(), place) else {
            return self.damaged(block.0..end, into);
        };
        let place = place.block(index.child());
        let below = node(&content, Some(above.depth - 1), place);
        match (self.verify_extent_block(&content, place), below) {
            (Ok(()), Ok(below)) => self.damaged_below(&below, index.key()..end, block, into),
            _ => self.damaged(block.0..end, into),
        }
    }

    /// Appends the extents of a leaf. An extent outside the volume loses its own range. After an extent that is out of order, the rest of the
    /// leaf is lost.
    fn damaged_extents(
        &self,
        leaf: &Node<'_>,
        bounds: Range<u64>,
        block: FileBlock,
        into: &mut Vec<Extent>,
    ) -> FileBlock {
        let place = Place::new("extent header").inode(self.number);
        let mut next = bounds.start;
        for entry in leaf.each() {
            let rest = next..bounds.end;
            if self.leaf_extents(&entry, &rest, place, into).is_ok() {
                next = into.last().map_or(next, |extent| extent.end().0);
                continue;
            }
            match entry.range().filter(|range| next <= range.start && range.end <= bounds.end) {
                Some(range) => {
                    next = range.end;
                    self.damaged(range, into);
                }
                None => return self.damaged(next.max(block.0)..bounds.end, into),
            }
        }
        FileBlock(bounds.end)
    }

    /// Appends the runs of a pointer block in which some pointers are damaged, or a range for a damaged pointer block.
    fn damaged_pointers(&self, block: FileBlock, into: &mut Vec<Extent>) -> FileBlock {
        let place = Place::new("indirect block").inode(self.number);
        let (range, found) = self.pointer_block(block);
        let content = match found {
            Ok(Some(content)) => content,
            Ok(None) => return FileBlock(range.end),
            Err(_) => return self.damaged(block.0..range.end, into),
        };
        for (at, word) in (range.start..).zip(content.as_chunks::<4>().0) {
            if self.pointers(FileBlock(at), word, place, into).is_err() {
                self.damaged(at..at + 1, into);
            }
        }
        FileBlock(range.end)
    }
}
