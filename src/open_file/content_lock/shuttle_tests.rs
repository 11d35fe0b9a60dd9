//! Tests of the content lock under a model checker, which chooses the order in which the threads run.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use shuttle::thread;

use super::{ContentLock, Ticket};
use crate::sync::explore;

/// The calls that one thread makes in a test of the model checker.
type Work = fn(&Model);

#[derive(Default)]
struct Model {
    lock: ContentLock,
    present: Mutex<Present>,
    /// Whether a queue was lost while it had requests in flight.
    lost: AtomicBool,
}

/// The expected state of the lock. The model computes it without calling the lock.
#[derive(Default)]
struct Present {
    /// The ranges that threads have locked. The flag states whether the lock is exclusive.
    inside: Vec<(Range<u64>, bool)>,
    /// The claims of ranges that have not ended. Each entry contains the number that the content lock gave to the claim, the range, and
    /// whether the claim is exclusive.
    asked: Vec<(u64, Range<u64>, bool)>,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Model {
    /// Uses a locked range while other threads may run. Checks that no conflicting range is locked at the same time.
    fn be_inside(&self, range: &Range<u64>, exclusive: bool) {
        let mut present = self.present.lock().unwrap();
        let meets = |(other, alone): &(_, bool)| (exclusive || *alone) && overlap(range, other);
        assert!(
            !present.inside.iter().any(meets),
            "the exclusive range {range:?} is shared: {:?}",
            present.inside
        );
        present.inside.push((range.clone(), exclusive));
        drop(present);
        thread::yield_now();
        let mut present = self.present.lock().unwrap();
        let at = present.inside.iter().position(|inside| *inside == (range.clone(), exclusive));
        present.inside.swap_remove(at.unwrap());
    }

    fn ask(&self, range: &Range<u64>, exclusive: bool) -> Ticket {
        let ticket = self.lock.ask(range.clone(), exclusive);
        self.present.lock().unwrap().asked.push((ticket.number, range.clone(), exclusive));
        ticket
    }

    fn give_back(&self, ticket: Ticket) {
        self.present.lock().unwrap().asked.retain(|(number, ..)| *number != ticket.number);
        self.lock.give_back(ticket);
    }

    fn by_range(&self, range: Range<u64>, exclusive: bool) {
        let ticket = self.ask(&range, exclusive);
        if self.lock.wait(&ticket).is_err() {
            assert!(exclusive && self.lost.load(SeqCst), "the range {range:?} can be locked");
            return self.give_back(ticket);
        }
        let conflicts = |(number, other, alone): &(u64, Range<u64>, bool)| {
            *number < ticket.number && (exclusive || *alone) && overlap(&range, other)
        };
        let overtaken = self.present.lock().unwrap().asked.iter().any(conflicts);
        assert!(!overtaken, "the range {range:?} was locked before an earlier request");
        self.be_inside(&range, exclusive);
        self.give_back(ticket);
    }

    /// Submits and completes several requests through one queue.
    fn requests(&self, range: Range<u64>) {
        let lane = self.lock.add_lane();
        for _ in 0..3 {
            if self.lock.enter(&lane) {
                self.be_inside(&range, false);
                self.lock.leave(&lane);
            } else {
                self.by_range(range.clone(), false);
            }
        }
        self.lock.remove_lane(&lane);
    }

    /// Simulates a lost queue that has a request in flight. The request never ends.
    fn lose(&self, range: Range<u64>) {
        let lane = self.lock.add_lane();
        if self.lock.enter(&lane) {
            self.enter_for_ever(range);
        } else {
            let ticket = self.ask(&range, false);
            self.lock.wait(&ticket).expect("the threads that share the range continue");
            self.enter_for_ever(range);
        }
        self.lost.store(true, SeqCst);
        self.lock.lose();
    }

    fn enter_for_ever(&self, range: Range<u64>) {
        let mut present = self.present.lock().unwrap();
        let meets = |(other, alone): &(_, bool)| *alone && overlap(&range, other);
        assert!(
            !present.inside.iter().any(meets),
            "the range {range:?} is locked by another thread"
        );
        present.inside.push((range, false));
    }

    /// Locks a range if this is possible without waiting.
    fn try_range(&self, range: Range<u64>) {
        let ticket = self.ask(&range, true);
        if self.lock.has(&ticket) {
            self.be_inside(&range, true);
        }
        self.give_back(ticket);
    }
}

/// Runs threads on a new model. After all threads have ended, checks that no thread has or wants a range.
fn run(work: &[Work]) {
    let model = Arc::<Model>::default();
    crate::sync::run(&model, work);
    let lane = model.lock.add_lane();
    assert!(model.lock.enter(&lane), "no thread waits for a range");
}

#[test]
fn an_exclusive_range_excludes_all_other_threads() {
    explore(1, || {
        run(&[
            |model| model.requests(0..4),
            |model| model.requests(2..6),
            |model| model.by_range(0..3, true),
        ]);
    });
}

#[test]
fn ranges_are_had_in_the_order_in_which_they_were_asked_for() {
    explore(1, || {
        run(&[
            |model| model.requests(0..4),
            |model| model.by_range(0..3, true),
            |model| model.by_range(2..5, true),
            |model| model.by_range(1..8, false),
        ]);
    });
}

#[test]
fn a_thread_that_does_not_wait_loses_no_wakeup() {
    explore(1, || {
        run(&[
            |model| model.requests(0..4),
            |model| model.try_range(0..8),
            |model| model.by_range(3..8, true),
            |model| model.try_range(7..9),
        ]);
    });
}

/// When a queue is lost, its requests never end. A thread that wants an exclusive lock on the range of these requests gets an error, even
/// if the thread began to wait before the queue was lost.
#[test]
fn a_thread_that_waits_for_a_lost_queue_gets_an_error() {
    explore(1, || {
        run(&[
            |model| model.lose(0..4),
            |model| model.requests(2..6),
            |model| model.by_range(0..3, true),
            |model| model.by_range(2..5, true),
        ]);
    });
}
