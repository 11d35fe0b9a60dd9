//! Blocks of attributes. Inodes with equal attributes may share a block.

use zerocopy::FromBytes;

use super::super::alloc::Freed;
use super::super::disk::xattr::RawXattrHeader;
use super::super::jbd2::Handle;
use super::Attributes;
use super::read::seal_xattr_block;
use crate::error::{Place, Result};
use crate::units::{FsBlock, InodeNo};

const PLACE: Place = Place::new("attribute block");

/// States whether a block was changed in place.
#[derive(PartialEq, Eq)]
pub(super) enum Rewritten {
    InPlace,
    /// The block was not changed, because other inodes share it.
    Shared,
}

impl Attributes<'_> {
    /// Allocates an attribute block with this content.
    ///
    /// # Errors
    /// `NoSpace` and `Quota`; nothing is changed in that case.
    pub(super) fn create_xattr_block(&self, h: &mut Handle<'_>, content: &[u8]) -> Result<FsBlock> {
        self.check_quota(1, 0)?;
        let goal = self.fs.superblock.goal_of(self.number);
        let (block, _) = h.allocate_blocks(goal, self.fs.superblock.cluster_blocks)?;
        h.create(block, |bytes| {
            bytes.copy_from_slice(content);
            seal_xattr_block(self.fs.superblock.seed, block, bytes);
        })?;
        Ok(block)
    }

    /// Whether other inodes share the block.
    pub(super) fn is_shared(&self, block: FsBlock) -> Result<bool> {
        let content = self.fs.blocks.read(block, PLACE)?;
        let header = RawXattrHeader::ref_from_prefix(&content);
        Ok(header.is_ok_and(|(header, _)| header.h_refcount.get() > 1))
    }

    /// Rewrites a block if no other inode shares it. Two threads may call this function for two inodes that share the block. Each thread
    /// holds only the lock of its own inode. The reference count is therefore checked while the block is locked.
    pub(super) fn rewrite_xattr_block(
        &self,
        h: &mut Handle<'_>,
        block: FsBlock,
        content: &[u8],
    ) -> Result<Rewritten> {
        h.update(block, PLACE, |bytes| {
            if header(bytes, block)?.h_refcount.get() > 1 {
                return Ok(Rewritten::Shared);
            }
            bytes.copy_from_slice(content);
            seal_xattr_block(self.fs.superblock.seed, block, bytes);
            Ok(Rewritten::InPlace)
        })
    }

    /// Drops an inode's reference to an attribute block. Dropping the last reference frees the block. `values` are the inodes of the large
    /// values to which the block refers.
    pub(super) fn release_xattr_block(
        &self,
        h: &mut Handle<'_>,
        block: FsBlock,
        values: &[InodeNo],
    ) -> Result<()> {
        let last = h.update(block, PLACE, |bytes| {
            let header = header(bytes, block)?;
            let others = header.h_refcount.get().saturating_sub(1);
            if others > 0 {
                header.h_refcount.set(others);
                seal_xattr_block(self.fs.superblock.seed, block, bytes);
            }
            Ok(others == 0)
        })?;
        if last {
            let count = u64::from(self.fs.superblock.cluster_blocks);
            h.free_blocks(block, count, Freed::Metadata)?;
            // The inode of a large value counts an attribute block as one reference, even if several inodes share the block. The count
            // therefore changes only when the block is freed.
            for value in values {
                self.drop_value(h, *value)?;
            }
        }
        Ok(())
    }
}

fn header(bytes: &mut [u8], block: FsBlock) -> Result<&mut RawXattrHeader> {
    let header = RawXattrHeader::mut_from_prefix(bytes);
    header
        .map(|(header, _)| header)
        .map_err(|_| PLACE.block(block).corrupt("the attribute block is truncated"))
}
