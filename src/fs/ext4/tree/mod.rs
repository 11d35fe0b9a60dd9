//! The maps of files, read and changed: extent trees, and the direct and indirect pointers of ext2 and ext3.
//!
//! A map is changed by the holder of its inode's lock, within a transaction. The inode that is passed is a snapshot: its number is taken
//! from it, the root of its map from the table, so that several changes may follow each other. After a change the snapshot's own map is
//! out of date: a reader of the file decodes the inode again.
//!
//! - [`path`]: the way to a leaf, read and checked again for each change.
//! - [`node`]: a node's bytes.
//! - [`splice`]: the one change that a tree knows, with the splits and the freeing that follow from it.
//! - [`pieces`]: extents cut and joined.
//! - [`extents`]: mapping, unmapping, changing states and shifting, made of these.
//! - [`clusters`]: the space of a file, where it is taken in clusters.
//! - [`indirect`]: the same for pointers.
//! - [`read_extents`] and [`read_indirect`]: maps decoded for readers.

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

/// A file has fewer blocks than its 32-bit numbers could tell apart: Linux uses the last one as a mark.
pub(crate) const FILE_BLOCKS: u64 = u32::MAX as u64;

/// How an inode maps its file.
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
    /// Maps an extent where there is a hole, joined with its neighbours. Its blocks have been allocated; nodes are allocated near them.
    /// Nodes and data are added to what the inode counts.
    ///
    /// # Errors
    /// `NoSpace` for its nodes, `FileTooLarge`, `InvalidInput` where something is mapped already: nothing has been changed then.
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

    /// Unmaps a range and frees what it took: its blocks, and the nodes that are empty then.
    ///
    /// It goes from the end of the range to its start, and takes further transactions where the handle has too few credits left for the
    /// next leaf: the part that was unmapped so far stays so. A map whose extents all stand in the inode is unmapped in one transaction.
    ///
    /// # Errors
    /// `NoSpace` where an extent is to be cut in two and that takes a node: nothing has been changed then. As [`Handle::update`].
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

    /// Gives the extents in a range another state. As [`unmap_range`](Self::unmap_range), it may take several transactions.
    ///
    /// # Errors
    /// `NoSpace` where an extent is to be cut and that takes a node: a first part of the range may have its new state then, the rest has
    /// the old one. `Unsupported` for the unwritten state in a file without extents. As [`Handle::update`].
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

    /// Moves all that is mapped from a block on by a number of blocks: down, into a hole that is large enough, or up, where an extent that
    /// begins before the block is cut. As [`unmap_range`](Self::unmap_range), it may take several transactions.
    ///
    /// # Errors
    /// `NoSpace` for a cut, `FileTooLarge`, `InvalidInput` where there is no such hole or a cluster would be cut: nothing has been changed
    /// then. `Unsupported` in a file without extents. As [`Handle::update`].
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

    /// How many blocks [`map_extent`](Self::map_extent) may change, and a [`set_range_state`](Self::set_range_state) within one extent.
    pub(crate) fn credits_for_map(&self) -> u32 {
        match Map::of(self) {
            Ok(Map::Extents(_)) => credits_for_replace(&self.i_block),
            Ok(Map::Pointers(pointers)) => pointers.credits_for_map(),
            Err(_) => 1,
        }
    }

    /// How many blocks a step of [`unmap_range`](Self::unmap_range), [`set_range_state`](Self::set_range_state) or
    /// [`shift_range`](Self::shift_range) may change. With so many credits, what concerns a single leaf is done in one transaction.
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

/// How many blocks a change of one leaf may change: on each level, one more than there are, a node and a new one beside it; for the new
/// one, a bitmap and a descriptor; and the inode.
fn credits_for_replace(root: &[u8; 60]) -> u32 {
    let depth = u32::from(u16::from_le_bytes([root[6], root[7]]));
    4 * (depth + 2) + 1
}
