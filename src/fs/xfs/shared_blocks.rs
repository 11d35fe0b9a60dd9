//! Blocks that several files share. Such blocks must not be overwritten.

use std::ops::Range;
use std::sync::Arc;

use super::Xfs;
use super::disk::tree::{COPY, RawShared};
use super::features::RoCompat;
use super::group;
use super::group_tree::GroupTree;
use crate::error::Result;
use crate::units::FsBlock;

/// The magic number (`bb_magic`) in the blocks of the reference count B+tree.
const MAGIC: [u8; 4] = *b"R3FC";

/// The shared blocks of a group, in order.
pub(super) type SharedBlocks = Arc<[Range<FsBlock>]>;

impl Xfs {
    /// Reads the shared blocks of a group from its B+tree.
    pub(super) fn read_shared(&self, group: u32) -> Result<SharedBlocks> {
        let first = self.superblock.geometry.group_block(group).0;
        let mut shared = Vec::new();
        self.for_each_count(group, |blocks, count, is_staging| {
            if !is_staging && count > 1 {
                shared.push(FsBlock(first + blocks.start)..FsBlock(first + blocks.end));
            }
        })?;
        Ok(shared.into())
    }

    /// Counts the blocks of a group that are reserved for copy on write. No file owns these blocks. The kernel frees these blocks during
    /// the recovery of the log.
    pub(super) fn staging_blocks(&self, group: u32) -> Result<u64> {
        let mut staging = 0;
        self.for_each_count(group, |blocks, _, is_staging| {
            staging += if is_staging { blocks.end - blocks.start } else { 0 };
        })?;
        Ok(staging)
    }

    /// Calls `each` with each run of blocks of a group. The arguments are the run, its reference count, and whether the run is reserved for
    /// copy on write.
    fn for_each_count(
        &self,
        group: u32,
        mut each: impl FnMut(Range<u64>, u32, bool),
    ) -> Result<()> {
        if !self.superblock.ro_compat.contains(RoCompat::REFLINK) {
            return Ok(());
        }
        let header = group::free_space(&self.metadata, &self.superblock, group)?;
        let tree = GroupTree {
            group,
            root: header.agf_refcount_root.get(),
            levels: header.agf_refcount_level.get(),
            magic: MAGIC,
            name: "shared blocks",
        };
        let len = self.superblock.geometry.group_len(group);
        // In the tree, the records of blocks reserved for copy on write follow all other records. At the first of them, the block numbers
        // start again from the lowest.
        let mut next = (false, 0_u64);
        tree.leaves(self, |records: &[RawShared], place| {
            for record in records {
                let start = record.rc_startblock.get();
                let is_staging = start & COPY != 0;
                let start = u64::from(start & !COPY);
                let end = start + u64::from(record.rc_blockcount.get());
                if (is_staging, start) < next || end > len || end == start {
                    let what = format!("the record of blocks {start} to {end} of the group is not valid, or out of order");
                    return Err(place.field("rc_startblock").corrupt(what));
                }
                next = (is_staging, end);
                each(start..end, record.rc_refcount.get(), is_staging);
            }
            Ok(())
        })
    }
}

/// The parts of these blocks that are shared, in order. All of `blocks` are in the group that `shared` describes.
pub(super) fn overlap<'a>(
    shared: &'a [Range<FsBlock>],
    blocks: &'a Range<FsBlock>,
) -> impl Iterator<Item = Range<FsBlock>> + 'a {
    let at = shared.partition_point(|range| range.end <= blocks.start);
    let within = shared[at..].iter().take_while(|range| range.start < blocks.end);
    within.map(|range| range.start.max(blocks.start)..range.end.min(blocks.end))
}
