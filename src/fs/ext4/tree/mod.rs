//! The maps of files, for reads and changes: extent trees, and the direct and indirect pointers of ext2 and ext3.
//!
//! A thread that holds the inode's lock changes a map within a transaction. The inode argument of a change is a snapshot, and only its
//! number is used. The root of the map is read from the inode table. Several changes can therefore use the same snapshot. After a change,
//! the map in the snapshot is outdated. A reader of the file must decode the inode again.
//!
//! - [`path`]: the path to a leaf, which is read and checked again for each change.
//! - [`node`]: a node's bytes.
//! - [`splice`]: the basic change of a tree, which splits and removes nodes as needed.
//! - [`pieces`]: functions that cut and join extents.
//! - [`extents`]: mapping, unmapping, changes of state, and shifting. These changes use the modules above.
//! - [`clusters`]: the space of a file on a volume with bigalloc.
//! - [`indirect`]: changes of indirect maps.
//! - [`read_extents`] and [`read_indirect`]: decoding of maps for readers.

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

/// The maximum number of blocks of a file. Linux uses the highest 32-bit block number as a special value.
pub(crate) const FILE_BLOCKS: u64 = u32::MAX as u64;

/// The kind of an inode's map.
enum Map<'a> {
    Extents(Tree<'a>),
    Pointers(Pointers<'a>),
}

impl<'a> Map<'a> {
    fn of(inode: &'a InodeToChange<'a>) -> Result<Self> {
        if inode.has_inline_data() {
            return Err(Error::invalid("the file has no map, because its content is in the inode"));
        }
        if inode.flags.contains(InodeFlags::EXTENTS) {
            return Ok(Self::Extents(Tree { inode }));
        }
        if inode.fs.superblock.cluster_blocks > 1 {
            return Err(Error::unsupported("the file has no extents, but bigalloc needs extents"));
        }
        Ok(Self::Pointers(Pointers { inode }))
    }
}

impl InodeToChange<'_> {
    /// Maps an extent into a hole of the file, and merges it with adjacent extents. The caller has allocated the extent's blocks. New nodes
    /// are allocated near these blocks. The data and the new nodes are added to the inode's count of blocks.
    ///
    /// # Errors
    /// `NoSpace` if there is no space for the nodes; `FileTooLarge`; `InvalidInput` if a block of the range is already mapped; nothing is
    /// changed in these cases. `Unsupported` for an unwritten extent in a file without extents; the errors of [`Handle::update`].
    pub(crate) fn map_extent(&self, handle: &mut Handle<'_>, extent: Extent) -> Result<()> {
        if extent.end().0 > FILE_BLOCKS {
            let what = format!("block {} is past the last possible block of a file", extent.end());
            return Err(Error::new(ErrorKind::FileTooLarge, what));
        }
        if extent.len == 0 || !self.fs.blocks.contain(extent.start, u64::from(extent.len)) {
            return Err(Error::invalid(format!(
                "the extent {extent:?} is empty or outside the volume"
            )));
        }
        match Map::of(self)? {
            Map::Extents(tree) => tree.map(handle, extent),
            Map::Pointers(pointers) => pointers.map(handle, extent),
        }
    }

    /// Unmaps a range, and frees its blocks and the nodes that become empty.
    ///
    /// The work begins at the end of the range and ends at its start. If the handle has too few credits for the next leaf, the work
    /// continues in another transaction. If an error occurs in that transaction, the parts that were already unmapped stay unmapped. If all
    /// extents are in the inode, one transaction is enough.
    ///
    /// # Errors
    /// `NoSpace` if the split of an extent needs a node and no space is free; nothing is changed in that case. The errors of
    /// [`Handle::update`].
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

    /// Changes the state of the extents in a range. Several transactions may be needed, as for [`unmap_range`](Self::unmap_range).
    ///
    /// # Errors
    /// `NoSpace` if the split of an extent needs a node and no space is free; the first part of the range may then already have the new
    /// state. `Unsupported` for the unwritten state in a file without extents; the errors of [`Handle::update`].
    pub(crate) fn set_range_state(
        &self,
        handle: &mut Handle<'_>,
        range: Range<FileBlock>,
        state: ExtentState,
    ) -> Result<()> {
        let range = range.start..range.end.min(FileBlock(FILE_BLOCKS));
        match (Map::of(self)?, state) {
            (_, ExtentState::Journal | ExtentState::Memory | ExtentState::Shared) => {
                Err(Error::invalid("an extent in this state cannot be stored in a map"))
            }
            (Map::Extents(tree), _) => tree.set_state(handle, range, state),
            (Map::Pointers(_), ExtentState::Written) => Ok(()),
            (Map::Pointers(_), ExtentState::Unwritten) => Err(indirect::no_unwritten()),
        }
    }

    /// Shifts all extents from a block on by `by` blocks. If `by` is negative, the extents move down into a hole, which must be large
    /// enough. If `by` is positive, an extent that contains the block is first split before the block. Several transactions may be needed,
    /// as for [`unmap_range`](Self::unmap_range).
    ///
    /// # Errors
    /// `NoSpace` for a split, `FileTooLarge`, or `InvalidInput` if the hole is too small or a cluster would be split;
    /// nothing is changed in these cases. `Unsupported` in a file without extents; the errors of [`Handle::update`].
    pub(crate) fn shift_range(
        &self,
        handle: &mut Handle<'_>,
        from: FileBlock,
        by: i64,
    ) -> Result<()> {
        match Map::of(self)? {
            Map::Extents(tree) => tree.shift(handle, from, by),
            Map::Pointers(_) => {
                Err(Error::unsupported("the blocks of a file without extents cannot be shifted"))
            }
        }
    }

    /// The maximum number of blocks that [`map_extent`](Self::map_extent) changes. The same maximum applies to
    /// [`set_range_state`](Self::set_range_state) within one extent.
    pub(crate) fn credits_for_map(&self) -> u32 {
        match Map::of(self) {
            Ok(Map::Extents(_)) => credits_for_replace(&self.i_block),
            Ok(Map::Pointers(pointers)) => pointers.credits_for_map(),
            Err(_) => 1,
        }
    }

    /// The maximum number of blocks that one step of [`unmap_range`](Self::unmap_range), [`set_range_state`](Self::set_range_state) or
    /// [`shift_range`](Self::shift_range) changes. With this many credits, a change of a single leaf needs only one transaction.
    pub(crate) fn credits_for_unmap(&self) -> u32 {
        // A small file without extents needs two steps: one for the pointers in the inode and one for the pointers in a block.
        match Map::of(self) {
            Ok(Map::Extents(tree)) => {
                credits_for_replace(&self.i_block) + tree.credits_for_freeing()
            }
            Ok(Map::Pointers(pointers)) => 2 * pointers.credits_for_step(),
            Err(_) => 1,
        }
    }
}

/// The maximum number of blocks that change together with one leaf: the inode, and four blocks on each level, including one new level. The
/// four blocks are a node, a new node next to it, and the new node's bitmap and descriptor.
fn credits_for_replace(root: &[u8; 60]) -> u32 {
    let depth = u32::from(u16::from_le_bytes([root[6], root[7]]));
    4 * (depth + 2) + 1
}
