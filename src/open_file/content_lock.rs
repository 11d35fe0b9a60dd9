//! The lock of a file's content. Direct I/O acquires a shared lock. An operation locks a range exclusively if it moves blocks, or if it
//! reads a part of a block and writes it back.
//!
//! A request holds the lock from its submission to its completion. A guard on the stack cannot represent the lock, because another call may
//! process the completion. Each queue has its own [`Lane`], which counts the queue's requests that have locked the content, so two queues
//! that read or overwrite one file do not write to a common cache line. An exclusive lock costs more: its thread closes the lanes and waits
//! until they are empty. While a thread has or wants an exclusive range, other requests lock ranges instead of using lanes.
//!
//! A thread acquires the content lock before the lock of the inode. It never waits for the content lock while it holds another lock. A
//! thread must not wait while it has requests in flight on the file, because no other thread can process their completions.

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

/// A counter of one queue's requests that hold a shared lock on a file's content. Each queue has its own lane, so queues do not write to a
/// common cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Lane {
    in_flight: AtomicU32,
    /// Whether a write was recorded since the last call of [`ContentLock::take_written`].
    written: AtomicBool,
}

impl Lane {
    /// Records a write. Returns true for the first write since the last call of [`ContentLock::take_written`].
    #[inline(always)]
    pub(crate) fn wrote(&self) -> bool {
        let first = !self.written.load(Relaxed);
        if first {
            self.written.store(true, Relaxed);
            // The fence orders this store before the check for a pending time stamp. Another thread that takes a pending time stamp reads
            // this flag afterwards. At least one of the two threads sees the change of the other.
            fence(SeqCst);
        }
        first
    }

    /// Adds `change` to the number of requests in flight. The barrier orders this store before the check for threads that want an exclusive
    /// range. Only the queue's thread calls this function.
    #[inline(always)]
    fn count(&self, change: i32) {
        self.in_flight.store(self.in_flight.load(Relaxed).wrapping_add_signed(change), Release);
        barrier::light();
    }
}

/// The lock of a file's content.
#[derive(Debug, Default)]
pub(crate) struct ContentLock {
    /// The number of threads that have or want an exclusive lock on a range. If it is not 0, requests must lock ranges, and cannot lock the
    /// content through the counters of their queues (lanes).
    wanted: AtomicU32,
    within: Mutex<Within>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Within {
    lanes: Vec<Arc<Lane>>,
    /// Whether a write was recorded in the lane (counter) of a queue that no longer uses the file. The next call of `take_written` resets
    /// the flag.
    written: bool,
    /// The claims (requests for a lock on a range), in the order in which they were made. A claim waits for all earlier claims of
    /// overlapping ranges if one of the two is exclusive.
    claims: Vec<Claim>,
    last: u64,
    /// Whether the kernel stopped serving a queue that had requests in flight to this file. These requests never end.
    lost: bool,
}

#[derive(Debug)]
struct Claim {
    ticket: u64,
    range: Range<u64>,
    exclusive: bool,
}

/// The claim of a range: a request for a lock on it. Either the range is locked, or the claim is waiting until conflicting claims and
/// requests have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the range stays claimed until the ticket is returned"]
pub(crate) struct Ticket {
    number: u64,
    exclusive: bool,
}

/// A guard of an exclusive lock on a range of a file. Dropping the guard unlocks the range.
#[derive(Debug)]
pub struct Alone {
    inode: Arc<OpenInode>,
    range: Range<u64>,
    ticket: Option<Ticket>,
    /// Whether the thread had to wait for the range.
    waited: bool,
}

impl ContentLock {
    /// Registers the process with the kernel (`membarrier`) for the barrier of the lanes. In a process with several threads, the
    /// registration takes at least 10 ms. Therefore, the process is registered when a volume is opened, before the first request.
    pub(crate) fn prepare() {
        barrier::promise();
    }

    pub(crate) fn add_lane(&self) -> Arc<Lane> {
        barrier::promise();
        let lane = Arc::<Lane>::default();
        self.within.lock().lanes.push(Arc::clone(&lane));
        lane
    }

    /// Removes the lane (request counter) of a queue that no longer uses the file. All requests that the lane has counted have completed.
    pub(crate) fn remove_lane(&self, lane: &Arc<Lane>) {
        let mut within = self.within.lock();
        within.lanes.retain(|other| !Arc::ptr_eq(other, lane));
        within.written |= lane.written.load(Relaxed);
        drop(within);
        self.changed.notify_all();
    }

    /// Whether a write was recorded in the lane of any queue since the last call of this function.
    pub(crate) fn take_written(&self) -> bool {
        let mut within = self.within.lock();
        let gone = std::mem::take(&mut within.written);
        within.lanes.iter().fold(gone, |written, lane| lane.written.swap(false, Acquire) | written)
    }

    /// Locks the content for a request that is counted in the lane (counter) of its queue. Returns false if a thread has or wants an
    /// exclusive lock on a range. The caller must then lock a range of the content with a claim.
    #[inline(always)]
    pub(crate) fn enter(&self, lane: &Lane) -> bool {
        // Two threads may run at the same time. A thread that wants an exclusive range increments `wanted` and then checks the lanes. This
        // function increments the count of the lane and then checks `wanted`. At least one of the two threads sees the change of the other.
        lane.count(1);
        if !self.is_wanted() {
            return true;
        }
        self.leave(lane);
        false
    }

    /// Whether a thread has or wants an exclusive lock on a range, so that requests must lock ranges too.
    #[inline(always)]
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Acquire) != 0
    }

    /// Releases the lock of one request that has locked the content through its lane.
    #[inline(always)]
    pub(crate) fn leave(&self, lane: &Lane) {
        lane.count(-1);
        if self.is_wanted() {
            self.tell();
        }
    }

    #[cold]
    fn tell(&self) {
        // A thread that waits for a lane to become empty holds the lock `within` from its check until its wait begins. This function
        // acquires the same lock before it notifies the thread, so the thread does not miss the notification.
        drop(self.within.lock());
        self.changed.notify_all();
    }

    /// Requests a lock on a range of bytes (a claim). When the claim is [granted](Self::has), the range is locked.
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

    /// Whether this claim (request for a lock) is granted, so that the range is locked.
    pub(crate) fn has(&self, ticket: &Ticket) -> bool {
        self.within.lock().grants(ticket)
    }

    /// Waits until the range is locked.
    ///
    /// # Errors
    /// `Io` if the claim would have to wait for requests of a [lost](Self::lose) queue, which may never end. Only an exclusive claim gets
    /// this error.
    pub(crate) fn wait(&self, ticket: &Ticket) -> Result<()> {
        let mut within = self.within.lock();
        while !within.grants(ticket) {
            // A claim of a shared lock needs no error, because it waits only for claims of exclusive locks, which always end.
            if within.lost && ticket.exclusive {
                return Err(lost());
            }
            self.changed.wait(&mut within);
        }
        Ok(())
    }

    /// Records that a queue was lost with requests in flight to this file. These requests may never release their lane or their ranges.
    /// From now on, a thread that would have to wait for an exclusive range gets an error. Other requests continue.
    pub(crate) fn lose(&self) {
        self.within.lock().lost = true;
        self.changed.notify_all();
    }

    /// Withdraws a claim of a range. If the range is locked, unlocks it.
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
    /// Locks a range of bytes exclusively. Waits if the range is not free.
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

    /// Locks a range exclusively. Waits if the range is not free, even if the calling thread has requests in flight. This is safe only if
    /// other threads release the range soon, without any action of the calling thread.
    ///
    /// # Errors
    /// `Io` if a lost queue has requests that never end.
    pub(crate) fn wait_surely(inode: &Arc<OpenInode>, range: Range<u64>) -> Result<Self> {
        let alone = Self::ask(inode, range);
        alone.ticket.iter().try_for_each(|ticket| inode.content.wait(ticket))?;
        Ok(alone)
    }

    /// Locks a range exclusively if it is free. Returns `None` if it is not free.
    pub(crate) fn at_once(inode: &Arc<OpenInode>, range: Range<u64>) -> Option<Self> {
        let alone = Self::ask(inode, range);
        let had = alone.ticket.as_ref().is_some_and(|ticket| inode.content.has(ticket));
        had.then_some(alone)
    }

    /// Makes a claim for an exclusive lock on a range. The caller must then [wait](ContentLock::wait) for the claim, or check that it is
    /// granted.
    fn ask(inode: &Arc<OpenInode>, range: Range<u64>) -> Self {
        let ticket = Some(inode.content.ask(range.clone(), true));
        Self { inode: Arc::clone(inode), range, ticket, waited: false }
    }

    /// Whether the thread that owns this guard had to wait until the range was locked.
    pub(crate) fn has_waited(&self) -> bool {
        self.waited
    }

    /// Whether this guard covers the whole range.
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
    let what = "a queue was dropped while it had requests in flight to this file, so ironmap cannot know when these requests end";
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
        assert!(
            !lock.has(&ticket) && !lock.enter(&lane),
            "no thread acquires the lock through a lane"
        );
        let beside = lock.ask(10..20, false);
        assert!(lock.has(&beside), "a thread can lock a range that does not overlap");
        lock.leave(&lane);
        assert!(!lock.has(&ticket));
        lock.leave(&lane);
        assert!(lock.has(&ticket), "the adjacent range does not block the request");
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
        assert!(content.enter(&other), "no thread waits");
        content.leave(&other);
        content.leave(&lane);
        assert!(Alone::wait(&inode, 0..1).is_ok(), "a request for a free range does not wait");
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
            "a request for a free range does not wait, even with another request in flight"
        );
        requests.remove();
    }
}
