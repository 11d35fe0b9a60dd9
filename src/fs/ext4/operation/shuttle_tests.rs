//! Tests of the inode locks under the schedules of a model checker.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use shuttle::thread;

use super::locks::Locks;
use crate::fs::Clock;
use crate::sync::explore;
use crate::units::InodeNo;

const INODE: InodeNo = InodeNo(12);
/// An inode whose entry is in the same shard of the lock table as the entry of `INODE`.
const OTHER: InodeNo = InodeNo(12 + 64);

struct Model {
    locks: Locks,
    /// The number of readers that hold the lock, or -1 if a writer holds the lock.
    within: AtomicI32,
    /// The value that the inode's lock protects, and the newest value that a thread has read.
    value: AtomicU64,
    seen: AtomicU64,
    opens: Mutex<u32>,
}

impl Default for Model {
    fn default() -> Self {
        let (within, value, seen, opens) = Default::default();
        Self { locks: Locks::new(Clock::default()), within, value, seen, opens }
    }
}

impl Model {
    fn change(&self) {
        let lock = self.locks.exclusive(INODE);
        assert_eq!(
            self.within.swap(-1, SeqCst),
            0,
            "a change excludes all other users of the inode"
        );
        thread::yield_now();
        self.value.fetch_add(1, SeqCst);
        let open = self.locks.is_open(INODE);
        thread::yield_now();
        assert_eq!(
            self.locks.is_open(INODE),
            open,
            "the file stays open or closed while its lock is held"
        );
        self.within.store(0, SeqCst);
        drop(lock);
    }

    fn open_and_close(&self) {
        let shared = self.locks.shared(INODE);
        assert!(self.within.fetch_add(1, SeqCst) >= 0, "readers do not exclude each other");
        let open = shared.open();
        *self.opens.lock().unwrap() += 1;
        thread::yield_now();
        assert!(self.locks.is_open(INODE));
        self.within.fetch_sub(1, SeqCst);
        drop(shared);

        let exclusive = self.locks.exclusive(INODE);
        let last = exclusive.close(&open);
        let mut opens = self.opens.lock().unwrap();
        *opens -= 1;
        assert_eq!(last, *opens == 0, "the last close returns true");
        drop(opens);
        drop(open);
        assert_eq!(self.locks.is_open(INODE), !last);
    }
}

/// A cache may keep a decoded copy of an open inode and use it without the inode's lock. The copy is valid while the inode's change number
/// stays the same.
#[test]
fn a_read_is_valid_until_the_change_number_changes() {
    explore(1, || {
        let model = Arc::new(Model::default());
        let spawn = |work: fn(&Model)| {
            let model = Arc::clone(&model);
            thread::spawn(move || work(&model))
        };
        let threads = [
            spawn(Model::change),
            spawn(|model| {
                let _shared = model.locks.shared(INODE);
                model.seen.fetch_max(model.value.load(SeqCst), SeqCst);
            }),
            spawn(|model| {
                let shared = model.locks.shared(INODE);
                let open = shared.open();
                let (changes, value) = (open.state().inode.changes(), model.value.load(SeqCst));
                drop(shared);
                for _ in 0..4 {
                    thread::yield_now();
                    let seen = model.seen.load(SeqCst);
                    let stays = open.state().inode.changes() == changes;
                    assert!(
                        !stays || value >= seen,
                        "the value is {value}, but a thread has seen {seen}"
                    );
                }
            }),
        ];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_change_is_exclusive_and_entries_go_with_their_last_user() {
    explore(1, || {
        let model = Arc::new(Model::default());
        let spawn = |work: fn(&Model)| {
            let model = Arc::clone(&model);
            thread::spawn(move || work(&model))
        };
        let threads = [
            spawn(Model::change),
            spawn(Model::open_and_close),
            spawn(Model::open_and_close),
            spawn(|model| {
                let _both = [INODE, OTHER].map(|number| model.locks.exclusive(number));
                assert_eq!(model.within.load(SeqCst), 0);
            }),
        ];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(model.locks.known(), 0, "no thread has locked an inode");
    });
}
