//! The units of a device that are being written.

use std::ops::Range;

use crate::sync::{Condvar, Mutex};

/// The writes in flight to a device, from all threads and queues, with the units of each write.
#[derive(Debug, Default)]
pub(super) struct Units {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The units that calls of the device (not queued writes) are writing. Two calls never write the same unit at the same time.
    busy: Vec<Range<u64>>,
    queued: Vec<Queued>,
    next: u64,
}

/// A queued write of whole units.
#[derive(Debug)]
struct Queued {
    ticket: u64,
    units: Range<u64>,
    /// Whether a call of the device wrote a unit of this queued write while the queued write was in flight. If so, the call may have
    /// overwritten the unit with older bytes.
    contested: bool,
}

/// The units that a call of the device has locked in order to write them. The drop unlocks the units.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    of: &'a Units,
    units: Range<u64>,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Units {
    /// Waits until no other call has locked any of the units. This wait always ends, because a call that holds a lock waits only for the
    /// device, never for a second lock.
    pub(super) fn lock(&self, units: Range<u64>) -> Locked<'_> {
        let mut state = self.state.lock();
        while state.busy.iter().any(|busy| overlap(busy, &units)) {
            self.freed.wait(&mut state);
        }
        state.contest(&units);
        state.busy.push(units.clone());
        Locked { of: self, units }
    }

    /// Begins a queued write of whole units. It does not wait for calls of the device that write the same units. These calls do not wait
    /// for the queued write either, because its completion may be popped much later.
    pub(super) fn begin(&self, units: Range<u64>) -> u64 {
        let mut state = self.state.lock();
        let contested = state.busy.iter().any(|busy| overlap(busy, &units));
        let ticket = state.next;
        state.next += 1;
        state.queued.push(Queued { ticket, units, contested });
        ticket
    }

    /// Ends a queued write, before the completion is returned to the issuer. Returns true if a concurrent call of the device may have
    /// overwritten the data with older bytes. The issuer's queue must then write the data again.
    pub(super) fn end(&self, ticket: u64) -> bool {
        let mut state = self.state.lock();
        let place = state.queued.iter().position(|queued| queued.ticket == ticket);
        place.is_some_and(|place| state.queued.swap_remove(place).contested)
    }
}

impl State {
    fn contest(&mut self, units: &Range<u64>) {
        for queued in &mut self.queued {
            queued.contested |= overlap(&queued.units, units);
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state.lock();
        if let Some(place) = state.busy.iter().position(|busy| *busy == self.units) {
            state.busy.swap_remove(place);
        }
        drop(state);
        self.of.freed.notify_all();
    }
}
