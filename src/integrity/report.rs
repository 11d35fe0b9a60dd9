//! Reports of an integrity device: counters, and the sectors that did not match their tags.

use std::collections::VecDeque;

use crate::error::Errno;
use crate::protection::Mismatch;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The largest number of events that are stored between two calls. Beyond this number, the oldest are dropped.
const KEPT: usize = 1024;

/// The counters since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of sectors that did not match their tag in two reads.
    pub mismatches: u64,
    /// The number of sectors that did not match their tag in the first read and were read again.
    pub retries: u64,
    /// The number of sectors that were read without verification, because the device is read-only and the region of the sector was not
    /// recovered after a crash.
    pub unverified: u64,
    /// The number of sectors to which a write failed. Each of them got a tag that matches its current content.
    pub retagged: u64,
    /// The number of sectors to which several writes overlapped in time. The data of the last writer were written again.
    pub contested: u64,
}

/// An event of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A sector did not match its tag in two reads.
    Mismatch(Mismatch),
    /// A write failed, and its sectors got tags that match their current content.
    Retagged {
        /// The first sector.
        sector: u64,
        /// The number of sectors.
        count: u64,
        /// The errno of the write.
        errno: Errno,
    },
}

#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) mismatches: AtomicU64,
    pub(super) retries: AtomicU64,
    pub(super) unverified: AtomicU64,
    pub(super) retagged: AtomicU64,
    pub(super) contested: AtomicU64,
    events: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<Event>,
    /// The numbers of dropped events: first the mismatches, then all other events.
    dropped: [u64; 2],
}

pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Report {
    pub(super) fn counts(&self) -> Counts {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            mismatches: value(&self.mismatches),
            retries: value(&self.retries),
            unverified: value(&self.unverified),
            retagged: value(&self.retagged),
            contested: value(&self.contested),
        }
    }

    #[cold]
    pub(super) fn event(&self, event: Event) {
        let mut kept = self.events.lock();
        if kept.events.len() == KEPT {
            let is_other = matches!(kept.events.pop_front(), Some(Event::Retagged { .. }));
            kept.dropped[usize::from(is_other)] += 1;
        }
        kept.events.push_back(event);
    }

    /// Returns the mismatches among the events, oldest first, and the number of older mismatches that were dropped. Removes the returned
    /// events.
    pub(super) fn take_mismatches(&self) -> (Vec<Mismatch>, u64) {
        let mut kept = self.events.lock();
        let mut found = Vec::new();
        let dropped = std::mem::take(&mut kept.dropped[0]);
        kept.events.retain(|event| match event {
            Event::Mismatch(mismatch) => {
                found.push(*mismatch);
                false
            }
            Event::Retagged { .. } => true,
        });
        (found, dropped)
    }

    /// Returns the events since the last call, oldest first, and the number of older events that were dropped. Removes the returned events.
    pub(super) fn take_events(&self) -> (Vec<Event>, u64) {
        let mut kept = self.events.lock();
        let dropped = std::mem::take(&mut kept.dropped);
        (kept.events.drain(..).collect(), dropped.iter().sum())
    }
}
