//! What writing has cost: counted where it costs something already, so that the way of an overwrite counts nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug, Default)]
pub(crate) struct Counters {
    handles: AtomicU64,
    conversions: AtomicU64,
    zeroed: AtomicU64,
    exclusive: AtomicU64,
    upgrades: AtomicU64,
    waits: AtomicU64,
    drains: AtomicU64,
}

/// What a volume that is open for writing has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteCounts {
    /// Handles of the journal that were begun: one for each operation that changes metadata.
    pub handles: u64,
    /// Ranges of unwritten extents that were converted after data was written to them.
    pub conversions: u64,
    /// Bytes of blocks written in part that were zeroed.
    pub zeroed: u64,
    /// How often someone wanted a range of a file for himself alone: no direct I/O is let in by the short way meanwhile.
    pub exclusive: u64,
    /// Steps of writes that locked an inode for themselves: to allocate, to take privileges away, to zero up to where the file grows.
    pub upgrades: u64,
    /// Requests that waited for someone who had their range for himself.
    pub waits: u64,
    /// How often someone who wanted a range for himself had to wait for requests in flight.
    pub drains: u64,
}

impl Counters {
    pub(crate) fn began(&self) {
        self.handles.fetch_add(1, Relaxed);
    }

    pub(crate) fn converted(&self, ranges: usize) {
        self.conversions.fetch_add(ranges as u64, Relaxed);
    }

    pub(crate) fn zeroed(&self, bytes: u64) {
        self.zeroed.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn locked(&self) {
        self.exclusive.fetch_add(1, Relaxed);
    }

    pub(crate) fn upgraded(&self) {
        self.upgrades.fetch_add(1, Relaxed);
    }

    pub(crate) fn waited(&self) {
        self.waits.fetch_add(1, Relaxed);
    }

    pub(crate) fn drained(&self) {
        self.drains.fetch_add(1, Relaxed);
    }
}

impl super::Ext4 {
    /// What writing has cost so far; zeros for a volume that is read-only.
    #[must_use]
    pub fn write_counts(&self) -> WriteCounts {
        let Ok(writing) = self.writing() else { return WriteCounts::default() };
        let counters = &writing.counters;
        WriteCounts {
            handles: counters.handles.load(Relaxed),
            conversions: counters.conversions.load(Relaxed),
            zeroed: counters.zeroed.load(Relaxed),
            exclusive: counters.exclusive.load(Relaxed),
            upgrades: counters.upgrades.load(Relaxed),
            waits: counters.waits.load(Relaxed),
            drains: counters.drains.load(Relaxed),
        }
    }
}
