//! The path from the root of an extent tree to a leaf. A path is valid only until the next change of the tree. It is read again for each
//! change.

use std::ops::Range;

use smallvec::SmallVec;
use zerocopy::FromBytes;

use crate::error::{Place, Result};
use crate::fs::ext4::disk::extent::{MAX_DEPTH, RawExtentIndex};
use crate::fs::ext4::disk::inode::RawInode;
use crate::fs::ext4::inode::InodePlace;
use crate::fs::ext4::operation::InodeToChange;
use crate::fs::ext4::tree::read_extents::{self, MAX_BLOCKS, Node};
use crate::iomap::Extent;
use crate::units::{FileBlock, FsBlock};

pub(super) const PLACE: Place = Place::new("extent header");

/// The extent tree of an inode. The root is read from the inode table: the root in the inode's snapshot may be outdated.
#[derive(Clone, Copy)]
pub(super) struct Tree<'a> {
    pub(super) inode: &'a InodeToChange<'a>,
}

/// A node on the path.
pub(super) struct Step {
    /// The block of the node; `None` for the root.
    pub(super) block: Option<FsBlock>,
    pub(super) entries: usize,
    pub(super) max: usize,
    /// In an inner node, the entry on the path: its index (`at`) and its key.
    pub(super) at: usize,
    pub(super) key: u64,
}

/// The path to a leaf, and the leaf's content.
pub(super) struct Path {
    /// The nodes from the root to the leaf.
    pub(super) steps: SmallVec<[Step; MAX_DEPTH as usize + 1]>,
    pub(super) root: [u8; 60],
    /// The blocks of the file that the leaf may map.
    pub(super) range: Range<u64>,
    pub(super) extents: Vec<Extent>,
}

impl Tree<'_> {
    pub(super) fn place(&self) -> Place {
        PLACE.inode(self.inode.number)
    }

    /// The inode's bytes in the inode table.
    pub(super) fn raw_inode(&self) -> Result<RawInode> {
        let fs = &self.inode.fs;
        let place = Place::new("inode").inode(self.inode.number);
        let InodePlace { block, at, .. } = fs.inode_place(self.inode.number)?;
        let content = fs.blocks.read(block, place)?;
        let raw = RawInode::read_from_prefix(&content[at..]);
        raw.map(|(raw, _)| raw).map_err(|_| place.corrupt("the inode is truncated"))
    }

    /// The path to the leaf whose range contains a file block.
    pub(super) fn find(&self, block: FileBlock) -> Result<Path> {
        let root = self.raw_inode()?.i_block;
        let place = self.place();
        let (steps, range, extents) = (SmallVec::new(), 0..MAX_BLOCKS, Vec::new());
        let mut path = Path { steps, root, range, extents };
        let node = read_extents::node(&root, None, place)?;
        let mut depth = node.depth;
        let mut next = self.step(&mut path, &node, None, block, place)?;
        // The depth decreases at each step. The loop therefore ends.
        while let Some(child) = next {
            let content = self.inode.fs.blocks.read(child, place.field("ei_leaf"))?;
            let place = place.block(child);
            self.inode.verify_extent_block(&content, place)?;
            depth -= 1;
            let node = read_extents::node(&content, Some(depth), place)?;
            next = self.step(&mut path, &node, Some(child), block, place)?;
        }
        Ok(path)
    }

    /// Adds a node to the path. Returns the block of the next node.
    fn step(
        &self,
        path: &mut Path,
        node: &Node<'_>,
        block: Option<FsBlock>,
        sought: FileBlock,
        place: Place,
    ) -> Result<Option<FsBlock>> {
        let mut step = Step { block, entries: node.len(), max: node.max, at: 0, key: 0 };
        let mut child = None;
        if node.depth == 0 {
            path.extents.reserve_exact(node.len());
            self.inode.leaf_extents(node, &path.range, place, &mut path.extents)?;
        } else {
            let indexes = node.indexes(&path.range, place)?;
            let after = indexes.partition_point(|index| index.key() <= sought.0);
            // The first child also covers the blocks before its key.
            step.at = after.saturating_sub(1);
            step.key = indexes[step.at].key();
            let start = if after == 0 { path.range.start } else { step.key };
            let end = indexes.get(step.at + 1).map_or(path.range.end, RawExtentIndex::key);
            path.range = start..end;
            child = Some(indexes[step.at].child());
        }
        path.steps.push(step);
        Ok(child)
    }

    /// The first extent that ends after a block. The block is in this extent or before it.
    pub(super) fn extent_from(&self, block: FileBlock) -> Result<Option<Extent>> {
        let mut block = block;
        while block.0 < MAX_BLOCKS {
            let path = self.find(block)?;
            if let Some(extent) = path.extents.get(path.ending_after(block)) {
                return Ok(Some(*extent));
            }
            block = FileBlock(path.range.end);
        }
        Ok(None)
    }

    /// Whether any block of the range is mapped.
    pub(super) fn maps_any(&self, range: Range<u64>) -> Result<bool> {
        if range.is_empty() {
            return Ok(false);
        }
        let found = self.extent_from(FileBlock(range.start))?;
        Ok(found.is_some_and(|extent| extent.first.0 < range.end))
    }
}

impl Path {
    /// The number of levels below the root.
    pub(super) fn depth(&self) -> usize {
        self.steps.len() - 1
    }

    /// Whether this is the first leaf of the tree.
    pub(super) fn is_first(&self) -> bool {
        self.steps.iter().all(|step| step.at == 0)
    }

    /// The index of the first extent in the leaf that begins at or after a block.
    pub(super) fn beginning_at(&self, block: FileBlock) -> usize {
        self.extents.partition_point(|extent| extent.first < block)
    }

    /// The index of the first extent in the leaf that ends after a block.
    pub(super) fn ending_after(&self, block: FileBlock) -> usize {
        self.extents.partition_point(|extent| extent.end() <= block)
    }
}
