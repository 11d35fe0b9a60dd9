//! Counters of the costs of writing, such as started handles and waits for locks. An overwrite that causes none of these costs is not
//! counted.

use crate::fs::WriteCounts;
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
    /// The costs of writing since the volume was opened. All counts are zero on a volume that is open read-only.
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
