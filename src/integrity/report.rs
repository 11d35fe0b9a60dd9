//! What an integrity device tells of itself: counters, and the sectors that it found wrong.

use std::collections::VecDeque;

use super::tuple::Mismatch;
use crate::error::Errno;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// How many events are kept until someone takes them; the oldest go first.
const KEPT: usize = 1024;

/// What has happened since the device was opened.
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

/// Something that whoever watches the device should know.
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
    events: Mutex<(VecDeque<Event>, u64)>,
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
        let mut events = self.events.lock();
        if events.0.len() == KEPT {
            events.0.pop_front();
            events.1 += 1;
        }
        events.0.push_back(event);
    }

    /// Takes the mismatches among the events, oldest first.
    pub(super) fn take_mismatches(&self) -> Vec<Mismatch> {
        let mut events = self.events.lock();
        let mut found = Vec::new();
        events.0.retain(|event| match event {
            Event::Mismatch(mismatch) => {
                found.push(*mismatch);
                false
            }
            Event::Retagged { .. } => true,
        });
        found
    }

    /// Takes the events since the last call, oldest first, and the number of those that were dropped before them.
    pub(super) fn take_events(&self) -> (Vec<Event>, u64) {
        let mut events = self.events.lock();
        let dropped = std::mem::take(&mut events.1);
        (events.0.drain(..).collect(), dropped)
    }
}
