//! Allocation of blocks and inodes.
//!
//! On disk, the bitmap of a group records the used blocks. The group's descriptor contains the number of free blocks. This module keeps a
//! summary of each group in memory: the number of available clusters, and an upper limit of the longest free run. A thread that searches
//! for a group reads the summaries without a lock. The module also records the blocks that uncommitted transactions have freed. These
//! blocks are kept back until the commit. After a crash before the commit, they still belong to their old file.
//!
//! Each bit of a block bitmap represents one cluster. Callers count in blocks. The name of a variable that counts clusters contains
//! `cluster`.

pub(super) mod bitmap;
mod blocks;
mod discard;
mod group;
mod inodes;
mod loading;
mod orlov;
mod place;
mod search;
mod summary;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use self::summary::{Chunk, GroupState};
use super::Ext4;
use super::disk::superblock::RawSuperblock;
use crate::error::Result;
use crate::fs::FreeSpace;
use crate::units::FsBlock;

pub(crate) use blocks::{Freed, Goal, Reserve};
pub(crate) use inodes::FreshInode;
pub(super) use loading::Zones;

/// The allocator's state in memory.
pub(crate) struct Allocator {
    groups: Box<[GroupState]>,
    chunks: Box<[Chunk]>,
    cluster_blocks: u32,
    /// The number of free clusters: the sum of the counts in the descriptors.
    free_clusters: AtomicU64,
    /// The number of kept-back clusters: they are free in the bitmaps, but may not be allocated yet. `free_clusters` includes these
    /// clusters.
    kept_back: AtomicU64,
    free_inodes: AtomicU32,
    directories: AtomicU32,
    /// Whether freed blocks are discarded.
    discard: AtomicBool,
    /// Whether the blocks reserved for the superuser are withheld.
    keep_reserve: AtomicBool,
}

/// The numbers of free blocks and free inodes that the superblock stores.
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
    /// The current numbers of free blocks and inodes.
    pub(crate) fn counts(&self) -> Counts {
        let free_clusters = self.free_clusters.load(Ordering::Relaxed);
        Counts {
            free_blocks: free_clusters * u64::from(self.cluster_blocks),
            free_inodes: self.free_inodes.load(Ordering::Relaxed),
        }
    }

    /// Whether freed blocks become available at the next commit. If so, a caller that found no space can commit and try again.
    pub(crate) fn commit_frees(&self) -> bool {
        self.kept_back.load(Ordering::Relaxed) > 0
    }

    /// Makes the freed blocks of a committed transaction available for allocation.
    pub(crate) fn committed(&self, fs: &Ext4, freed: &[(FsBlock, u64)]) {
        if self.discard.load(Ordering::Relaxed) {
            self.discard_freed(fs, freed);
        }
        for (start, count) in freed {
            for (group, range) in fs.superblock.cluster_ranges(*start, *count) {
                self.end_keeping(group, range);
            }
        }
    }
}

impl Ext4 {
    /// Sets whether the volume's blocks reserved for the superuser are withheld from allocation. Initially they are not withheld, because
    /// the program that opens a volume has the rights of the superuser.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub fn keep_reserve(&self, keep: bool) -> Result<()> {
        self.allocator()?.keep_reserve.store(keep, Ordering::Relaxed);
        Ok(())
    }

    fn allocator(&self) -> Result<&Allocator> {
        Ok(&self.writing()?.alloc)
    }

    /// The free space of the volume. If the volume is open read-only, this is the free space recorded in the superblock.
    #[must_use]
    pub fn free_space(&self) -> FreeSpace {
        let sb = &self.superblock;
        let (blocks, inodes) = match self.allocator() {
            Ok(allocator) => {
                let counts = allocator.counts();
                (counts.free_blocks, counts.free_inodes)
            }
            Err(_) => (sb.free_blocks, sb.free_inodes),
        };
        let for_nodes = sb.clusters_for_nodes() * u64::from(sb.cluster_blocks);
        let available = blocks.saturating_sub(sb.reserved_blocks + for_nodes);
        FreeSpace { blocks, available, inodes: inodes.into() }
    }
}
