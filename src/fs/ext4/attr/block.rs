//! Blocks of attributes, which inodes with the same attributes may share.

use zerocopy::FromBytes;

use super::super::alloc::Freed;
use super::super::disk::xattr::RawXattrHeader;
use super::super::jbd2::Handle;
use super::Attributes;
use super::read::seal_xattr_block;
use crate::error::{Place, Result};
use crate::units::{FsBlock, InodeNo};

const PLACE: Place = Place::new("attribute block");

/// Whether a block was changed where it stands.
#[derive(PartialEq, Eq)]
pub(super) enum Rewritten {
    InPlace,
    /// Others have it too: nothing was changed.
    Shared,
}

impl Attributes<'_> {
    /// Allocates a block and gives it this content.
    ///
    /// # Errors
    /// `NoSpace` and `Quota`, and then everything is as before.
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

    /// Whether other inodes have a block too.
    pub(super) fn is_shared(&self, block: FsBlock) -> Result<bool> {
        let content = self.fs.blocks.read(block, PLACE)?;
        let header = RawXattrHeader::ref_from_prefix(&content);
        Ok(header.is_ok_and(|(header, _)| header.h_refcount.get() > 1))
    }

    /// Gives a block other content, unless it is shared. Two inodes that share it may ask at the same time, each with its own lock:
    /// the count is looked at with the block in hand.
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

    /// An inode no longer has a block, which goes with its last one; `values` are those that the block names.
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
            // A block counts once for a value, however many inodes share the block.
            for value in values {
                self.drop_value(h, *value)?;
            }
        }
        Ok(())
    }
}

fn header(bytes: &mut [u8], block: FsBlock) -> Result<&mut RawXattrHeader> {
    let header = RawXattrHeader::mut_from_prefix(bytes);
    header.map(|(header, _)| header).map_err(|_| PLACE.block(block).corrupt("it is cut short"))
}
