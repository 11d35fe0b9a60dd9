//! The maps of files, for reads and changes: extent trees, and the direct and indirect pointers of ext2 and ext3.
//!
//! A thread with the inode's lock changes a map within a transaction. The inode argument is a snapshot: only its number is used, and the
//! root of the map comes from the table, so several changes can follow each other. After a change the snapshot's own map is outdated: a
//! reader of the file must decode the inode again.
//!
//! - [`path`]: the path to a leaf, read and checked again for each change.
//! - [`node`]: a node's bytes.
//! - [`splice`]: the basic change of a tree, with its splits and removals of nodes.
//! - [`pieces`]: cuts and joins of extents.
//! - [`extents`]: map, unmap, change of state and shift, built from these.
//! - [`clusters`]: the space of a file that is allocated in clusters.
//! - [`indirect`]: the changes of pointer maps.
//! - [`read_extents`] and [`read_indirect`]: decoded maps for readers.

mod clusters;
mod extents;
mod indirect;
mod node;
mod path;
mod pieces;
pub(in crate::fs::ext4) mod read_extents;
mod read_indirect;
mod splice;

#[cfg(test)]
mod tests;

use std::ops::Range;

use self::indirect::Pointers;
use self::path::Tree;
use super::jbd2::Handle;
use super::operation::InodeToChange;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::InodeFlags;
use crate::iomap::{Extent, ExtentState};
use crate::units::FileBlock;

/// The maximum number of blocks of a file: one less than 32-bit numbers could count, because Linux uses the last one as a mark.
pub(crate) const FILE_BLOCKS: u64 = u32::MAX as u64;

/// The kind of an inode's map.
enum Map<'a> {
    Extents(Tree<'a>),
    Pointers(Pointers<'a>),
}

impl<'a> Map<'a> {
    fn of(inode: &'a InodeToChange<'a>) -> Result<Self> {
        if inode.has_inline_data() {
            return Err(Error::invalid("the content lies in the inode: it has no map"));
        }
        if inode.flags.contains(InodeFlags::EXTENTS) {
            return Ok(Self::Extents(Tree { inode }));
        }
        if inode.fs.superblock.cluster_blocks > 1 {
            return Err(Error::unsupported("a file without extents on a volume with bigalloc"));
        }
        Ok(Self::Pointers(Pointers { inode }))
    }
}

impl InodeToChange<'_> {
    /// Maps an extent in a hole, and merges it with adjoining extents. The caller has allocated its blocks; nodes are allocated near them.
    /// The inode's count includes nodes and data afterwards.
    ///
    /// # Errors
    /// `NoSpace` for its nodes, `FileTooLarge`, `InvalidInput` if something is already mapped: nothing is changed in these cases.
    /// `Unsupported` for an unwritten extent in a file without extents. As [`Handle::update`].
    pub(crate) fn map_extent(&self, handle: &mut Handle<'_>, extent: Extent) -> Result<()> {
        if extent.end().0 > FILE_BLOCKS {
            let what =
                format!("block {} is beyond the last possible block of a file", extent.end());
            return Err(Error::new(ErrorKind::FileTooLarge, what));
        }
        if extent.len == 0 || !self.fs.blocks.contain(extent.start, u64::from(extent.len)) {
            return Err(Error::invalid(format!("an extent {extent:?} of no blocks of the volume")));
        }
        match Map::of(self)? {
            Map::Extents(tree) => tree.map(handle, extent),
            Map::Pointers(pointers) => pointers.map(handle, extent),
        }
    }

    /// Unmaps a range and frees its space: its blocks, and the nodes that become empty.
    ///
    /// It works from the end of the range to its start, and uses further transactions if the handle has too few credits for the next leaf:
    /// the part that was already unmapped stays unmapped. A map whose extents are all in the inode is unmapped in one transaction.
    ///
    /// # Errors
    /// `NoSpace` if an extent must be split and that needs a node: nothing is changed in that case. As [`Handle::update`].
    pub(crate) fn unmap_range(
        &self,
        handle: &mut Handle<'_>,
        range: Range<FileBlock>,
    ) -> Result<()> {
        let range = range.start..range.end.min(FileBlock(FILE_BLOCKS));
        match Map::of(self)? {
            Map::Extents(tree) => tree.unmap(handle, range),
            Map::Pointers(pointers) => pointers.unmap(handle, range),
        }
    }

    /// Changes the state of the extents in a range. As [`unmap_range`](Self::unmap_range), it may use several transactions.
    ///
    /// # Errors
    /// `NoSpace` if an extent must be split and that needs a node: a first part of the range may have the new state by then. `Unsupported`
    /// for the unwritten state in a file without extents. As [`Handle::update`].
    pub(crate) fn set_range_state(
        &self,
        handle: &mut Handle<'_>,
        range: Range<FileBlock>,
        state: ExtentState,
    ) -> Result<()> {
        let range = range.start..range.end.min(FileBlock(FILE_BLOCKS));
        match (Map::of(self)?, state) {
            (_, ExtentState::Journal | ExtentState::Memory) => {
                Err(Error::invalid("a state that no map has"))
            }
            (Map::Extents(tree), _) => tree.set_state(handle, range, state),
            (Map::Pointers(_), ExtentState::Written) => Ok(()),
            (Map::Pointers(_), ExtentState::Unwritten) => Err(indirect::no_unwritten()),
        }
    }

    /// Shifts everything that is mapped from a block on: down, into a sufficient hole, or up, after a split of an extent that begins before
    /// the block. As [`unmap_range`](Self::unmap_range), it may use several transactions.
    ///
    /// # Errors
    /// `NoSpace` for a split, `FileTooLarge`, `InvalidInput` if there is no such hole or a cluster would be split: nothing is changed in
    /// these cases. `Unsupported` in a file without extents. As [`Handle::update`].
    pub(crate) fn shift_range(
        &self,
        handle: &mut Handle<'_>,
        from: FileBlock,
        by: i64,
    ) -> Result<()> {
        match Map::of(self)? {
            Map::Extents(tree) => tree.shift(handle, from, by),
            Map::Pointers(_) => {
                Err(Error::unsupported("shifting the blocks of a file without extents"))
            }
        }
    }

    /// The maximum number of blocks that [`map_extent`](Self::map_extent) changes, or a [`set_range_state`](Self::set_range_state) within
    /// one extent.
    pub(crate) fn credits_for_map(&self) -> u32 {
        match Map::of(self) {
            Ok(Map::Extents(_)) => credits_for_replace(&self.i_block),
            Ok(Map::Pointers(pointers)) => pointers.credits_for_map(),
            Err(_) => 1,
        }
    }

    /// The maximum number of blocks that a step of [`unmap_range`](Self::unmap_range), [`set_range_state`](Self::set_range_state) or
    /// [`shift_range`](Self::shift_range) changes. With this many credits, a change of a single leaf is done in one transaction.
    pub(crate) fn credits_for_unmap(&self) -> u32 {
        // A small file without extents takes two steps: pointers in the inode, and those in a block.
        match Map::of(self) {
            Ok(Map::Extents(tree)) => {
                credits_for_replace(&self.i_block) + tree.credits_for_freeing()
            }
            Ok(Map::Pointers(pointers)) => 2 * pointers.credits_for_step(),
            Err(_) => 1,
        }
    }
}

/// The maximum number of blocks that a change of one leaf changes: on each level, and on one more, a node and a new one beside it; for the
/// new one, a bitmap and a descriptor; and the inode.
fn credits_for_replace(root: &[u8; 60]) -> u32 {
    let depth = u32::from(u16::from_le_bytes([root[6], root[7]]));
    4 * (depth + 2) + 1
}
