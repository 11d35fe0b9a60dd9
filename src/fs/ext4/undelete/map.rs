//! The block map of a deleted file, or the part of it that still exists.

use std::ops::Range;

use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::InodeFlags;
use crate::fs::ext4::RoCompat;
use crate::fs::ext4::inode::Inode;
use crate::fs::ext4::tree::read_extents::{MAX_BLOCKS, Node, node};
use crate::iomap::Extent;
use crate::units::FileBlock;

/// The maximum number of map blocks that are read, for all files together.
const MAX_STEPS: u64 = 16 << 20;
/// The maximum number of extents and relocated blocks (blocks whose content is in the log) in memory, for all files together. This number
/// of extents and blocks needs 150 MiB.
const MAX_KEPT: usize = 4 << 20;
const PLACE: Place = Place::new("extent header");

/// The blocks of a file.
pub(super) struct Blocks {
    pub(super) extents: Vec<Extent>,
    /// The reason why the map is incomplete.
    pub(super) problem: Option<String>,
}

/// The numbers of map blocks, extents and relocated blocks of all files so far. `MAX_STEPS` and `MAX_KEPT` limit these sums, because a
/// hostile volume can have many maps with the same blocks.
#[derive(Default)]
pub(super) struct Budget {
    steps: u64,
    kept: usize,
}

impl Budget {
    fn step(&mut self, extents: usize) -> Result<()> {
        self.steps += 1;
        if self.steps > MAX_STEPS || extents > MAX_KEPT {
            return Err(Error::new(
                ErrorKind::LimitExceeded,
                "the map of the deleted file is too large",
            ));
        }
        Ok(())
    }

    /// Counts the extents and the relocated blocks of a file, which stay in memory.
    ///
    /// # Errors
    /// `LimitExceeded`.
    pub(super) fn keep(&mut self, count: usize) -> Result<()> {
        self.kept += count;
        if self.kept > MAX_KEPT {
            let what = format!("the deleted files have more than {MAX_KEPT} extents");
            return Err(Error::new(ErrorKind::LimitExceeded, what));
        }
        Ok(())
    }
}

impl Blocks {
    /// Reads the blocks of an inode. `inode` may refer to an earlier state of the volume. The blocks are read from this state.
    pub(super) fn of(inode: &Inode, budget: &mut Budget) -> Self {
        let mut extents = Vec::new();
        if inode.flags().contains(InodeFlags::INLINE_DATA) {
            return Self { extents, problem: None };
        }
        let problem = match walk(inode, &mut extents, budget) {
            Ok(nodes) => missing(inode, &extents, nodes),
            Err(error) => Some(error.to_string()),
        };
        Self { extents, problem }
    }
}

/// Adds all extents to `into`. Returns the number of blocks of the map itself.
fn walk(inode: &Inode, into: &mut Vec<Extent>, budget: &mut Budget) -> Result<u64> {
    let extents = inode.flags().contains(InodeFlags::EXTENTS);
    let fan_out = inode.block_size().bytes() as u64 / 4;
    let mut next = FileBlock(0);
    // The walk continues past the file's size, because `i_blocks` also counts the blocks past the size.
    while next.0 < MAX_BLOCKS {
        let after = inode.home_leaf(next, into)?;
        budget.step(into.len())?;
        if after <= next {
            return Err(PLACE
                .inode(inode.number())
                .corrupt("the map of the deleted file does not end"));
        }
        next = after;
    }
    if !extents {
        return Ok(pointer_blocks(into, fan_out));
    }
    let root = node(&inode.i_block, None, PLACE.inode(inode.number()))?;
    nodes_below(inode, &root, budget)
}

/// The number of blocks of an extent tree below a node. The depth decreases with each level. The recursion therefore ends.
fn nodes_below(inode: &Inode, above: &Node<'_>, budget: &mut Budget) -> Result<u64> {
    let place = PLACE.inode(inode.number());
    if above.depth == 0 {
        return Ok(0);
    }
    let below = above.indexes(&(0..MAX_BLOCKS), place)?;
    let mut count = below.len() as u64;
    if above.depth > 1 {
        for index in below {
            budget.step(0)?;
            let content = inode.file_system().blocks.read(index.child(), place)?;
            let node = node(&content, Some(above.depth - 1), place.block(index.child()))?;
            count += nodes_below(inode, &node, budget)?;
        }
    }
    Ok(count)
}

/// The number of pointer blocks in the map of a file with these extents, if the map consists of pointers.
fn pointer_blocks(extents: &[Extent], fan_out: u64) -> u64 {
    let mut count = 0;
    let mut first = 12;
    for level in 1..=3_u32 {
        let span = fan_out.pow(level);
        let tree = first..first + span;
        // A pointer block on level n maps fan_out^n file blocks. Each part of this size that contains mapped blocks needs one pointer
        // block.
        for below in 1..=level {
            let part = fan_out.pow(below);
            let mut last = None;
            for extent in extents {
                let Range { start, end } = within(extent, &tree);
                if start >= end {
                    continue;
                }
                let (from, to) = ((start - tree.start) / part, (end - 1 - tree.start) / part);
                let from = last.map_or(from, |last| from.max(last + 1));
                if from <= to {
                    count += to - from + 1;
                    last = Some(to);
                }
            }
        }
        first += span;
    }
    count
}

fn within(extent: &Extent, range: &Range<u64>) -> Range<u64> {
    extent.first.0.max(range.start)..extent.end().0.min(range.end)
}

/// Describes the problem if the inode counts more blocks than its map contains; otherwise `None`.
fn missing(inode: &Inode, extents: &[Extent], nodes: u64) -> Option<String> {
    let fs = inode.file_system();
    if fs.superblock.ro_compat.contains(RoCompat::BIGALLOC) {
        return None;
    }
    let data: u64 = extents.iter().map(|extent| u64::from(extent.len)).sum();
    let attributes = u64::from(inode.xattr_block.is_some());
    let found = data + nodes + attributes;
    let had = inode.stat().blocks >> (inode.block_size().shift() - 9);
    (found < had).then(|| {
        format!("the file had {had} blocks; the positions of {} blocks are lost", had - found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iomap::ExtentState;
    use crate::units::FsBlock;

    fn extent(first: u64, len: u32) -> Extent {
        Extent { first: FileBlock(first), start: FsBlock(1000), len, state: ExtentState::Written }
    }

    /// The computed number of pointer blocks equals the number in volumes that mke2fs makes with 1 KiB blocks. A pointer block of this size
    /// contains 256 pointers.
    #[test]
    fn blocks_of_pointers_are_counted() {
        for (extents, expected) in [
            (vec![extent(0, 12)], 0),
            (vec![extent(0, 13)], 1),
            (vec![extent(0, 268)], 1),
            (vec![extent(0, 269)], 3),
            (vec![extent(0, 268 + 257)], 4),
            (vec![extent(20, 1), extent(30, 1)], 1),
            (vec![extent(268, 1), extent(268 + 256, 1)], 3),
            (vec![extent(268 + 65536, 1)], 3),
        ] {
            assert_eq!(pointer_blocks(&extents, 256), expected, "{extents:?}");
        }
    }
}
