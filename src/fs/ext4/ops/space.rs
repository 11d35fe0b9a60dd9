//! Finds space for new blocks of a file, near the file's previous block. With bigalloc, the space is in a new cluster or in a cluster that
//! the file already uses in part.

use crate::error::Result;
use crate::fs::ext4::Inode;
use crate::fs::ext4::alloc::{Freed, Goal};
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::operation::{InodeToChange, Operation};
use crate::iomap::{Extent, ExtentState, IomapType};
use crate::units::{FileBlock, FsBlock};

/// The maximum length of an extent in blocks, whether it is written or unwritten.
const MOST_IN_EXTENT: u32 = 32_767;

/// The device blocks that were found for new blocks of a file, and that are not mapped yet.
pub(super) struct Room {
    pub(super) start: FsBlock,
    pub(super) len: u32,
    /// The blocks that were allocated. `None` if the new blocks are in a cluster that already belonged to the file.
    allocated: Option<(FsBlock, u64)>,
}

impl Room {
    pub(super) fn extent(&self, first: FileBlock, state: ExtentState) -> Extent {
        Extent { first, start: self.start, len: self.len, state }
    }
}

impl Operation<'_> {
    /// Finds one contiguous run of device blocks for a hole that begins at file block `first`. The run has at most `count` blocks.
    pub(super) fn find_room(
        &self,
        handle: &mut Handle<'_>,
        inode: &InodeToChange<'_>,
        first: FileBlock,
        count: u64,
    ) -> Result<Room> {
        let cluster = u64::from(self.superblock.cluster_blocks);
        let want = u32::try_from(count).unwrap_or(u32::MAX).min(MOST_IN_EXTENT);
        let within = first.0 % cluster;
        if cluster > 1
            && let Some(start) = self.start_of_cluster(inode, FileBlock(first.0 - within))?
        {
            let len = want.min((cluster - within) as u32);
            return Ok(Room { start: FsBlock(start.0 + within), len, allocated: None });
        }
        let mut want = want;
        let last = (first.0 + u64::from(want)) / cluster * cluster;
        if last > first.0 && self.start_of_cluster(inode, FileBlock(last))?.is_some() {
            // The run ends here, because the cluster of the following blocks already belongs to the file.
            want = (last - first.0) as u32;
        }
        let goal = self.data_goal(inode, first)?;
        let allowed = inode.quota_allows(want + within as u32)?;
        let (start, len) = handle.allocate_blocks(goal, allowed)?;
        Ok(Room {
            start: FsBlock(start.0 + within),
            len: (len - within as u32).min(want),
            allocated: Some((start, len.into())),
        })
    }

    /// Frees the blocks that were allocated for `room`. The caller could not map them into the file.
    pub(super) fn give_back(&self, handle: &mut Handle<'_>, room: &Room) -> Result<()> {
        match room.allocated {
            Some((start, count)) => handle.free_blocks(start, count, Freed::Data),
            None => Ok(()),
        }
    }

    /// The first device block of the cluster for file block `first`, if that cluster already belongs to the file. `first` must be the first
    /// block of a cluster.
    fn start_of_cluster(&self, inode: &Inode, first: FileBlock) -> Result<Option<FsBlock>> {
        let cluster = u64::from(self.superblock.cluster_blocks);
        let (mut next, end) = (first, FileBlock(first.0 + cluster));
        while cluster > 1 && next < end {
            let (start, count, kind) = self.mapping(inode, next..end)?;
            if kind != IomapType::Hole {
                return Ok(Some(FsBlock(start.0 - (next.0 - first.0))));
            }
            next.0 += count;
        }
        Ok(None)
    }

    /// The goal for blocks of a file: directly after the previous block of the file. If the previous block is in a hole, the goal is near
    /// the file's inode.
    fn data_goal(&self, inode: &Inode, first: FileBlock) -> Result<Goal> {
        if first.0 > 0 {
            let before = FileBlock(first.0 - 1)..first;
            let (start, _, kind) = self.mapping(inode, before)?;
            if kind != IomapType::Hole {
                let grows = first.0 >= self.superblock.block_size.blocks_for(inode.size());
                return Ok(Goal { block: FsBlock(start.0 + 1), grows });
            }
        }
        Ok(self.superblock.goal_of(inode.number()).into())
    }
}
