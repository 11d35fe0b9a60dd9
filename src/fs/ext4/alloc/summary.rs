//! The summary of each group in memory. A thread that searches for a group reads the summaries without a lock. A summary is changed only
//! while the group is locked.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Allocator, bitmap};
use crate::fs::ext4::group::Group;
use crate::fs::ext4::order::{Ordered, Rank};
use crate::sync::{Mutex, MutexGuard};

/// The number of adjacent groups in a chunk. A search skips a chunk if no group in it has free space.
const CHUNK: u32 = 64;

/// The summary of a group.
pub(super) struct GroupState {
    /// The number of available clusters: free in the bitmap, and not excluded from allocation until a commit or a discard ends.
    pub(super) available: AtomicU32,
    /// No run of available clusters is longer than this limit.
    pub(super) longest: AtomicU32,
    pub(super) free_inodes: AtomicU32,
    pub(super) directories: AtomicU32,
    locked: Mutex<Locked>,
}

/// The part of the summary that the group's lock protects.
#[derive(Default)]
pub(super) struct Locked {
    /// The clusters of the file system's own structures, or `None` until they are known.
    pub(super) system: Option<Box<[Range<u32>]>>,
    pub(super) blocks_checked: bool,
    pub(super) inodes_checked: bool,
    /// All clusters before this cluster are unavailable.
    pub(super) first_cluster: u32,
    /// All inodes before this inode are in use.
    pub(super) first_inode: u32,
    kept_back: Option<KeptBack>,
}

/// The clusters of a group that are free in the bitmap but cannot be allocated: their release is not committed, or they are being
/// discarded.
struct KeptBack {
    bits: Box<[u8]>,
    count: u32,
}

/// The sums over the groups of a chunk (some adjacent groups).
#[derive(Default)]
pub(super) struct Chunk {
    available: AtomicU32,
    free_inodes: AtomicU32,
}

impl GroupState {
    pub(super) fn new(group: &Group) -> Self {
        Self {
            available: AtomicU32::new(group.free_clusters),
            longest: AtomicU32::new(u32::MAX),
            free_inodes: AtomicU32::new(group.free_inodes),
            directories: AtomicU32::new(group.directories),
            locked: Mutex::default(),
        }
    }

    /// Locks the group. In the lock order, this lock comes after the handles of transactions and before the blocks. A thread may lock only
    /// one group at a time.
    pub(super) fn lock(&self) -> Ordered<MutexGuard<'_, Locked>> {
        Ordered::new(Rank::Group, || self.locked.lock())
    }
}

impl Locked {
    /// The bitmap of kept-back clusters, which are free on disk but may not be allocated yet.
    pub(super) fn kept_back(&self) -> Option<&[u8]> {
        self.kept_back.as_ref().map(|kept| &*kept.bits)
    }
}

/// Reads a counter of a summary. A relaxed load is enough: without the group's lock, the value is only a hint.
pub(super) fn get(number: &AtomicU32) -> u32 {
    number.load(Ordering::Relaxed)
}

pub(super) fn add(number: &AtomicU32, by: u32) {
    number.fetch_add(by, Ordering::Relaxed);
}

pub(super) fn subtract(number: &AtomicU32, by: u32) {
    number.fetch_sub(by, Ordering::Relaxed);
}

pub(super) fn chunks(groups: &[GroupState]) -> Box<[Chunk]> {
    let sum = |groups: &[GroupState], number: fn(&GroupState) -> &AtomicU32| {
        AtomicU32::new(groups.iter().map(|group| get(number(group))).sum())
    };
    let chunk = |groups: &[GroupState]| Chunk {
        available: sum(groups, |group| &group.available),
        free_inodes: sum(groups, |group| &group.free_inodes),
    };
    groups.chunks(CHUNK as usize).map(chunk).collect()
}

impl Allocator {
    pub(super) fn group(&self, number: u32) -> &GroupState {
        &self.groups[number as usize]
    }

    fn chunk(&self, group: u32) -> &Chunk {
        &self.chunks[(group / CHUNK) as usize]
    }

    /// Marks clusters of a group as unavailable.
    pub(super) fn take_clusters(&self, group: u32, locked: &mut Locked, range: &Range<u32>) {
        let count = range.end - range.start;
        subtract(&self.group(group).available, count);
        subtract(&self.chunk(group).available, count);
        if locked.first_cluster == range.start {
            locked.first_cluster = range.end;
        }
    }

    /// Marks clusters of a group as available.
    pub(super) fn give_clusters(&self, group: u32, locked: &mut Locked, range: &Range<u32>) {
        let (state, count) = (self.group(group), range.end - range.start);
        add(&state.available, count);
        add(&self.chunk(group).available, count);
        state.longest.store(u32::MAX, Ordering::Relaxed);
        locked.first_cluster = locked.first_cluster.min(range.start);
    }

    /// Keeps back free clusters: they cannot be allocated until [`end_keeping`](Self::end_keeping). `size` is the length of a bitmap in
    /// bytes.
    pub(super) fn keep_back(&self, locked: &mut Locked, range: Range<u32>, size: usize) {
        let count = range.end - range.start;
        let none = || KeptBack { bits: vec![0; size].into(), count: 0 };
        let kept = locked.kept_back.get_or_insert_with(none);
        bitmap::set(&mut kept.bits, range);
        kept.count += count;
        self.kept_back.fetch_add(u64::from(count), Ordering::Relaxed);
    }

    /// Makes clusters available that were kept back from allocation.
    pub(super) fn end_keeping(&self, group: u32, range: Range<u32>) {
        let locked = &mut *self.group(group).lock();
        let Some(kept) = &mut locked.kept_back else { return };
        let count = range.end - range.start;
        bitmap::clear(&mut kept.bits, range.clone());
        kept.count -= count;
        if kept.count == 0 {
            locked.kept_back = None;
        }
        self.give_clusters(group, locked, &range);
        self.kept_back.fetch_sub(u64::from(count), Ordering::Relaxed);
    }

    /// Updates the counters after the allocation of an inode. `directory` says whether the inode is a directory.
    pub(super) fn take_inode(&self, group: u32, directory: bool) {
        let all =
            [&self.group(group).free_inodes, &self.chunk(group).free_inodes, &self.free_inodes];
        all.into_iter().for_each(|number| subtract(number, 1));
        add(&self.group(group).directories, u32::from(directory));
        add(&self.directories, u32::from(directory));
    }

    /// Updates the counters after an inode was freed. `directory` says whether the inode was a directory.
    pub(super) fn give_inode(&self, group: u32, directory: bool) {
        let all =
            [&self.group(group).free_inodes, &self.chunk(group).free_inodes, &self.free_inodes];
        all.into_iter().for_each(|number| add(number, 1));
        subtract(&self.group(group).directories, u32::from(directory));
        subtract(&self.directories, u32::from(directory));
    }

    /// The groups in the order of a search: from `first` to the last group, then from group 0 to `first`. Groups of a chunk with fewer than
    /// `least` available clusters are skipped.
    pub(super) fn groups_with_clusters(&self, first: u32, least: u32) -> impl Iterator<Item = u32> {
        self.groups_around(first, move |chunk| get(&chunk.available) >= least)
    }

    /// The groups in the order of a search: from `first` to the last group, then from group 0 to `first`. Groups of a chunk without free
    /// inodes are skipped.
    pub(super) fn groups_with_inodes(&self, first: u32) -> impl Iterator<Item = u32> {
        self.groups_around(first, |chunk| get(&chunk.free_inodes) > 0)
    }

    fn groups_around(&self, first: u32, has: impl Fn(&Chunk) -> bool) -> impl Iterator<Item = u32> {
        let (count, home) = (self.groups.len() as u32, first - first % CHUNK);
        let end = move |start: u32| count.min(start - start % CHUNK + CHUNK);
        let step = CHUNK as usize;
        let others = (end(first)..count).step_by(step).chain((0..home).step_by(step));
        let parts = std::iter::once(first..end(first))
            .chain(others.map(move |start| start..end(start)))
            .chain(std::iter::once(home..first));
        parts.filter(move |part| has(self.chunk(part.start))).flatten()
    }
}
