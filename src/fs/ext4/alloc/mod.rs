//! Allocation of blocks and inodes.
//!
//! What is in use says the bitmap of each group, and nothing else; its descriptor counts what is free. Here is kept what makes the search
//! short: for each group how much is to be had and how long a run at most, read without a lock by those who look for a group; and what
//! was freed by transactions that are not committed yet, which nobody gets before: after a crash it still belongs to its file.
//!
//! A bit of a block bitmap stands for a cluster. Callers count blocks; clusters are named so.

mod bitmap;
mod blocks;
mod inodes;
mod loading;
mod place;
mod search;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::Ext4;
use super::disk::superblock::RawSuperblock;
use crate::error::Result;
use crate::units::FsBlock;

pub(crate) use blocks::Freed;

/// What allocation knows in memory.
pub(crate) struct Allocator {
    groups: Box<[GroupState]>,
    /// Free clusters as the descriptors count them.
    free_clusters: AtomicU64,
    /// Of these, what nobody gets before a commit.
    pending_clusters: AtomicU64,
    free_inodes: AtomicU32,
}

/// What is known of a group. The numbers change with the lock held.
struct GroupState {
    /// Clusters that are to be had.
    available: AtomicU32,
    /// No run of them is longer.
    longest: AtomicU32,
    free_inodes: AtomicU32,
    directories: AtomicU32,
    locked: Mutex<Locked>,
}

/// What is known of a group to the one who has its lock.
#[derive(Default)]
struct Locked {
    /// The clusters with blocks of the file system itself, once they are known.
    system: Option<Box<[Range<u32>]>>,
    blocks_checked: bool,
    inodes_checked: bool,
    /// No cluster below is to be had.
    first_cluster: u32,
    /// No inode below is free.
    first_inode: u32,
    pending: Option<Pending>,
}

/// The clusters of a group that are free in its bitmap and that nobody gets before a commit.
struct Pending {
    bits: Box<[u8]>,
    count: u32,
}

impl GroupState {
    fn lock(&self) -> MutexGuard<'_, Locked> {
        self.locked.lock()
    }

    /// Clusters are to be had that were not. The lock is held.
    fn clusters_return(&self, locked: &mut Locked, range: Range<u32>) {
        add(&self.available, range.end - range.start);
        self.longest.store(u32::MAX, Ordering::Relaxed);
        locked.first_cluster = locked.first_cluster.min(range.start);
    }
}

/// The numbers are estimates for all but the one who has the lock: they order nothing.
fn get(number: &AtomicU32) -> u32 {
    number.load(Ordering::Relaxed)
}

fn add(number: &AtomicU32, by: u32) {
    number.fetch_add(by, Ordering::Relaxed);
}

fn subtract(number: &AtomicU32, by: u32) {
    number.fetch_sub(by, Ordering::Relaxed);
}

/// What the superblock counts.
pub(crate) struct Counts {
    pub(crate) free_clusters: u64,
    pub(crate) free_inodes: u32,
}

impl Counts {
    pub(crate) fn store(&self, raw: &mut RawSuperblock) {
        let free_blocks =
            self.free_clusters << (raw.s_log_cluster_size.get() - raw.s_log_block_size.get());
        raw.s_free_blocks_count_lo.set(free_blocks as u32);
        raw.s_free_blocks_count_hi.set((free_blocks >> 32) as u32);
        raw.s_free_inodes_count.set(self.free_inodes);
    }
}

/// What is left of a volume, as `statfs` gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    /// Free blocks, the superuser's among them.
    pub blocks: u64,
    /// Free blocks that everyone may have.
    pub available: u64,
    /// Free inodes.
    pub inodes: u32,
}

impl Allocator {
    /// What is free now.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            free_clusters: self.free_clusters.load(Ordering::Relaxed),
            free_inodes: get(&self.free_inodes),
        }
    }

    /// Whether a commit makes blocks available that are not now: who found no space, and can wait for one, may try again afterwards.
    pub(crate) fn commit_frees(&self) -> bool {
        self.pending_clusters.load(Ordering::Relaxed) > 0
    }

    /// Blocks that a committed transaction has freed may be allocated again.
    pub(crate) fn committed(&self, fs: &Ext4, freed: &[(FsBlock, u64)]) {
        for (start, count) in freed {
            for (group, range) in fs.superblock.cluster_ranges(*start, *count) {
                self.end_pending(group, range);
            }
        }
    }

    fn end_pending(&self, group: u32, range: Range<u32>) {
        let state = &self.groups[group as usize];
        let locked = &mut *state.lock();
        let count = range.end - range.start;
        let Some(pending) = &mut locked.pending else { return };
        bitmap::clear(&mut pending.bits, range.clone());
        pending.count = pending.count.saturating_sub(count);
        if pending.count == 0 {
            locked.pending = None;
        }
        state.clusters_return(locked, range);
        self.pending_clusters.fetch_sub(u64::from(count), Ordering::Relaxed);
    }
}

impl Ext4 {
    fn allocator(&self) -> Result<&Allocator> {
        Ok(&self.writing()?.alloc)
    }

    /// What is left of the volume; as last recorded where it is open for reading only.
    #[must_use]
    pub fn free_space(&self) -> FreeSpace {
        let sb = &self.superblock;
        let (blocks, inodes) = match self.allocator() {
            Ok(allocator) => {
                let counts = allocator.counts();
                (counts.free_clusters * u64::from(sb.cluster_blocks), counts.free_inodes)
            }
            Err(_) => (sb.free_blocks, sb.free_inodes),
        };
        FreeSpace { blocks, available: blocks.saturating_sub(sb.reserved_blocks), inodes }
    }
}
