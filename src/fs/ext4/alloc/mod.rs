//! Allocation of blocks and inodes.

use super::Ext4;
use super::disk::superblock::RawSuperblock;
use crate::units::FsBlock;

/// What allocation knows in memory.
#[derive(Default)]
pub(crate) struct Allocator {}

/// What the superblock counts.
pub(crate) struct Counts {
    pub(crate) free_blocks: u64,
    pub(crate) free_inodes: u32,
}

impl Counts {
    pub(crate) fn store(&self, raw: &mut RawSuperblock) {
        raw.s_free_blocks_count_lo.set(self.free_blocks as u32);
        raw.s_free_blocks_count_hi.set((self.free_blocks >> 32) as u32);
        raw.s_free_inodes_count.set(self.free_inodes);
    }
}

impl Allocator {
    /// What is free now; `None` where nothing was allocated or freed.
    pub(crate) fn counts(&self, _fs: &Ext4) -> Option<Counts> {
        None
    }

    /// Blocks that a committed transaction has freed may be allocated again.
    pub(crate) fn committed(&self, _fs: &Ext4, _freed: &[(FsBlock, u64)]) {}
}
