//! The lock of a file's content: direct I/O shares it; an operation that moves blocks, or reads and writes a part of one, holds a range exclusively.
//!
//! A request holds the lock from its submission to its completion. The completion may be in another call, so the hold is not a guard on a stack.
//! Each queue enters by its own [`Lane`], so two queues that read or overwrite one file share no cache line that either of them writes. An exclusive
//! range costs more: its thread closes the lanes and waits until they are empty. While any thread wants an exclusive range, requests lock ranges
//! too.
//!
//! The content lock is taken before the inode's lock, and no thread waits for the content lock while it holds another lock. A thread that waits must
//! have no requests in flight on the file, because no other thread can take their completions.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::fence;

use super::{InFlight, OpenInode};
use crate::error::{Errno, Error, Result};
use crate::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use crate::sync::{Condvar, Mutex};
use crate::sys::barrier;

/// A queue's entry to the content of a file, and the number of its requests inside.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Lane {
    in_flight: AtomicU32,
    /// Whether a write by the lane came after the last collection.
    written: AtomicBool,
}

impl Lane {
    /// Records a write. Returns true for the first one since the last collection.
    #[inline(always)]
    pub(crate) fn wrote(&self) -> bool {
        let first = !self.written.load(Relaxed);
        if first {
            self.written.store(true, Relaxed);
            // The fence comes before the check for a waiting stamp, because a thread that takes the stamp checks this flag afterwards.
            fence(SeqCst);
        }
        first
    }

    /// Changes the number of requests inside, before the check for wanted ranges. Only the queue's thread calls it.
    #[inline(always)]
    fn count(&self, change: i32) {
        self.in_flight.store(self.in_flight.load(Relaxed).wrapping_add_signed(change), Release);
        barrier::light();
    }
}

/// The holders of a file's content.
#[derive(Debug, Default)]
pub(crate) struct ContentLock {
    /// The number of threads that hold or want an exclusive range. While it is not 0, no lane admits a request.
    wanted: AtomicU32,
    within: Mutex<Within>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Within {
    lanes: Vec<Arc<Lane>>,
    /// Whether a removed lane has uncollected writes.
    written: bool,
    /// The claims in the order of their arrival: no claim overtakes an earlier one that conflicts with it.
    claims: Vec<Claim>,
    last: u64,
    /// Whether a lost queue has requests inside that never end.
    lost: bool,
}

#[derive(Debug)]
struct Claim {
    ticket: u64,
    range: Range<u64>,
    exclusive: bool,
}

/// A range that is held, or waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the range stays claimed until the ticket is returned"]
pub(crate) struct Ticket {
    number: u64,
    exclusive: bool,
}

/// An exclusive range of a file. The range is released when this guard is dropped.
#[derive(Debug)]
pub struct Alone {
    inode: Arc<OpenInode>,
    range: Range<u64>,
    ticket: Option<Ticket>,
    /// Whether the thread had to wait for the range.
    waited: bool,
}

impl ContentLock {
    /// Registers with the kernel for the barrier that lanes need. The registration takes 10 ms and more in a process with several threads, so it is
    /// done when a volume is opened, and not with the first request.
    pub(crate) fn prepare() {
        barrier::promise();
    }

    pub(crate) fn add_lane(&self) -> Arc<Lane> {
        barrier::promise();
        let lane = Arc::<Lane>::default();
        self.within.lock().lanes.push(Arc::clone(&lane));
        lane
    }

    /// Removes a lane, and with it the claims of its requests. A queue is dropped only when the device has completed its requests.
    pub(crate) fn remove_lane(&self, lane: &Arc<Lane>) {
        let mut within = self.within.lock();
        within.lanes.retain(|other| !Arc::ptr_eq(other, lane));
        within.written |= lane.written.load(Relaxed);
        drop(within);
        self.changed.notify_all();
    }

    /// Whether any lane has written since the last call.
    pub(crate) fn take_written(&self) -> bool {
        let mut within = self.within.lock();
        let gone = std::mem::take(&mut within.written);
        within.lanes.iter().fold(gone, |written, lane| lane.written.swap(false, Acquire) | written)
    }

    /// Enters by a lane. Returns false if a thread wants an exclusive range: then the caller must ask for a range.
    #[inline(always)]
    pub(crate) fn enter(&self, lane: &Lane) -> bool {
        // A thread that closes the lanes counts itself before it checks them. This function counts before it checks. So at least one of the two sees
        // the other.
        lane.count(1);
        if !self.is_wanted() {
            return true;
        }
        self.leave(lane);
        false
    }

    /// Whether a thread wants an exclusive range: then the lane admits no more requests.
    #[inline(always)]
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Acquire) != 0
    }

    /// Leaves by a lane.
    #[inline(always)]
    pub(crate) fn leave(&self, lane: &Lane) {
        lane.count(-1);
        if self.is_wanted() {
            self.tell();
        }
    }

    #[cold]
    fn tell(&self) {
        // A thread that found the lane in use holds the lock until it waits.
        drop(self.within.lock());
        self.changed.notify_all();
    }

    /// Asks for a range of bytes.
    pub(crate) fn ask(&self, range: Range<u64>, exclusive: bool) -> Ticket {
        let mut within = self.within.lock();
        if exclusive {
            self.wanted.fetch_add(1, SeqCst);
            if !within.lanes.is_empty() {
                barrier::heavy();
            }
        }
        within.last += 1;
        let ticket = within.last;
        within.claims.push(Claim { ticket, range, exclusive });
        Ticket { number: ticket, exclusive }
    }

    /// Whether the range is held.
    pub(crate) fn has(&self, ticket: &Ticket) -> bool {
        self.within.lock().grants(ticket)
    }

    /// Waits until the range is held.
    ///
    /// # Errors
    /// `Io` for an exclusive range if a [lost](Self::lose) queue has requests that may be in it.
    pub(crate) fn wait(&self, ticket: &Ticket) -> Result<()> {
        let mut within = self.within.lock();
        while !within.grants(ticket) {
            // A shared claim waits only for exclusive ones, and these always end.
            if within.lost && ticket.exclusive {
                return Err(lost());
            }
            self.changed.wait(&mut within);
        }
        Ok(())
    }

    /// Records that a queue with requests inside was lost, so that a holder of a lane or a range may never leave. No thread gets an exclusive range
    /// that waits for such a holder; all others continue.
    pub(crate) fn lose(&self) {
        self.within.lock().lost = true;
        self.changed.notify_all();
    }

    /// Releases a range, or ends the wait for it.
    pub(crate) fn give_back(&self, ticket: Ticket) {
        let mut within = self.within.lock();
        within.claims.retain(|claim| claim.ticket != ticket.number);
        if ticket.exclusive {
            self.wanted.fetch_sub(1, SeqCst);
        }
        drop(within);
        self.changed.notify_all();
    }
}

impl Alone {
    /// Waits for a range of bytes.
    ///
    /// # Errors
    /// `Busy` if the calling thread has requests in flight and would have to wait; `Io` if a lost queue has requests that never end.
    pub(crate) fn wait(inode: &Arc<OpenInode>, range: Range<u64>) -> Result<Self> {
        let mut alone = Self::ask(inode, range);
        if let Some(ticket) = &alone.ticket
            && !inode.content.has(ticket)
        {
            InFlight::none_here()?;
            inode.content.wait(ticket)?;
            alone.waited = true;
        }
        Ok(alone)
    }

    /// Waits for a range that is held for a short time only, by threads that need nothing from the calling thread.
    ///
    /// # Errors
    /// `Io` if a lost queue has requests that never end.
    pub(crate) fn wait_surely(inode: &Arc<OpenInode>, range: Range<u64>) -> Result<Self> {
        let alone = Self::ask(inode, range);
        alone.ticket.iter().try_for_each(|ticket| inode.content.wait(ticket))?;
        Ok(alone)
    }

    /// Takes a range only if it is free.
    pub(crate) fn at_once(inode: &Arc<OpenInode>, range: Range<u64>) -> Option<Self> {
        let alone = Self::ask(inode, range);
        let had = alone.ticket.as_ref().is_some_and(|ticket| inode.content.has(ticket));
        had.then_some(alone)
    }

    /// Asks for a range. The result holds the range, or must [wait for it](ContentLock::wait).
    fn ask(inode: &Arc<OpenInode>, range: Range<u64>) -> Self {
        let ticket = Some(inode.content.ask(range.clone(), true));
        Self { inode: Arc::clone(inode), range, ticket, waited: false }
    }

    /// Whether the thread had to wait for the range.
    pub(crate) fn has_waited(&self) -> bool {
        self.waited
    }

    /// Whether this guard covers all of a range.
    pub(crate) fn holds(&self, range: &Range<u64>) -> bool {
        self.range.start <= range.start && range.end <= self.range.end
    }
}

impl Within {
    fn grants(&self, ticket: &Ticket) -> bool {
        let Some(at) = self.claims.iter().position(|claim| claim.ticket == ticket.number) else {
            return true;
        };
        let claim = &self.claims[at];
        let conflicts = |other: &Claim| {
            (other.exclusive || claim.exclusive)
                && other.range.start < claim.range.end
                && claim.range.start < other.range.end
        };
        !self.claims[..at].iter().any(conflicts)
            && (!claim.exclusive || self.lanes.iter().all(|lane| lane.in_flight.load(Acquire) == 0))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.inode.content.give_back(ticket);
        }
    }
}

#[cold]
fn lost() -> Error {
    let what = "a queue was lost with requests in flight to this file: it is unknown when they end";
    Error::io(Errno::EIO, what)
}

#[cfg(all(test, shuttle))]
mod shuttle_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_thread_that_needs_a_range_closes_the_lanes_and_waits() {
        let lock = ContentLock::default();
        let lane = lock.add_lane();
        assert!(lock.enter(&lane) && lock.enter(&lane));
        let ticket = lock.ask(0..10, true);
        assert!(!lock.has(&ticket) && !lock.enter(&lane), "nobody enters by a lane any more");
        let beside = lock.ask(10..20, false);
        assert!(lock.has(&beside), "but by a range that nobody wants");
        lock.leave(&lane);
        assert!(!lock.has(&ticket));
        lock.leave(&lane);
        assert!(lock.has(&ticket), "the range beside is no hindrance");
        lock.give_back(ticket);
        lock.give_back(beside);
        assert!(lock.enter(&lane));
    }

    #[test]
    fn no_range_overtakes_one_that_it_conflicts_with() {
        let lock = ContentLock::default();
        let first = lock.ask(0..10, false);
        let alone = lock.ask(5..15, true);
        let later = lock.ask(14..20, false);
        let free = lock.ask(15..20, true);
        assert!(lock.has(&first) && !lock.has(&alone) && !lock.has(&later) && !lock.has(&free));
        lock.give_back(first);
        assert!(lock.has(&alone) && !lock.has(&later));
        lock.give_back(alone);
        assert!(lock.has(&later) && !lock.has(&free));
        lock.give_back(later);
        assert!(lock.has(&free));
        lock.give_back(free);
    }

    #[test]
    fn a_range_that_a_lost_queue_holds_is_an_error_and_other_ranges_go_on() {
        let inode = Arc::<OpenInode>::default();
        let content = &inode.content;
        let (lane, other) = (content.add_lane(), content.add_lane());
        assert!(content.enter(&lane));
        content.lose();
        for alone in [Alone::wait(&inode, 0..1), Alone::wait_surely(&inode, 0..1)] {
            assert_eq!(alone.err().map(|error| error.errno()), Some(Errno::EIO));
        }
        assert!(content.enter(&other), "nobody waits any more");
        content.leave(&other);
        content.leave(&lane);
        assert!(Alone::wait(&inode, 0..1).is_ok(), "a free range is not waited for");
    }

    #[test]
    fn a_thread_with_requests_in_flight_gets_busy() {
        let inode = Arc::<OpenInode>::default();
        let lane = inode.content.add_lane();
        let requests = InFlight::default();
        assert!(inode.content.enter(&lane));
        requests.add();
        let alone = Alone::wait(&inode, 0..1);
        assert_eq!(alone.err().map(|error| error.kind()), Some(ErrorKind::Busy));
        inode.content.leave(&lane);
        assert!(
            Alone::wait(&inode, 0..1).is_ok(),
            "a free range needs no wait, also with a request in flight"
        );
        requests.remove();
    }
}
