//! Reports of an integrity device: counters, and the sectors that did not fit their tags.

use std::collections::VecDeque;

use crate::error::Errno;
use crate::protection::Mismatch;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// How many events are kept until someone takes them; the oldest go first.
const KEPT: usize = 1024;

/// The counters since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sectors that were read and whose tag was wrong, again when they were read once more.
    pub mismatches: u64,
    /// Sectors that were read once more, since their data and tag did not agree at first.
    pub retries: u64,
    /// Sectors that were read without being verified: the device is read-only, and after a crash nobody has seen to their region.
    pub unverified: u64,
    /// Sectors that got a tag for what they hold, since a write to them failed.
    pub retagged: u64,
    /// Sectors that several writes were in flight to, and that the last of them wrote once more.
    pub contested: u64,
}

/// An event of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A sector was read, and its tag was wrong twice.
    Mismatch(Mismatch),
    /// A write failed, and so many sectors from this one on got a tag for whatever they hold now.
    Retagged {
        /// The first one.
        sector: u64,
        /// How many.
        count: u64,
        /// Why the write failed.
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
    /// How many were dropped: mismatches, and others.
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

    /// Takes the mismatches among the events, oldest first, and the number of those that were dropped before them.
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

    /// Takes the events since the last call, oldest first, and the number of those that were dropped before them.
    pub(super) fn take_events(&self) -> (Vec<Event>, u64) {
        let mut kept = self.events.lock();
        let dropped = std::mem::take(&mut kept.dropped);
        (kept.events.drain(..).collect(), dropped.iter().sum())
    }
}
