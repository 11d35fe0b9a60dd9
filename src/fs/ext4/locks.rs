//! The locks of inodes, and the order in which locks are taken: the rename lock, inodes (a directory before what is in it; two otherwise
//! by their numbers), a transaction's handle, a group, a block.
//!
//! Who has a later one never waits for an earlier one. A commit waits for handles, and a handle may wait for a commit: to wait for an
//! inode with a handle stops the volume. Debug builds check that.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{ArcRwLockReadGuard, ArcRwLockWriteGuard, Mutex, MutexGuard, RawRwLock, RwLock};

use crate::units::InodeNo;

const SHARDS: usize = 64;

type Shard = Mutex<HashMap<InodeNo, Arc<RwLock<()>>>>;

/// A lock for each inode that someone works on, and the one for renames between directories.
pub(crate) struct Locks {
    inodes: [Shard; SHARDS],
    rename: Mutex<()>,
}

impl Default for Locks {
    fn default() -> Self {
        Self { inodes: std::array::from_fn(|_| Shard::default()), rename: Mutex::default() }
    }
}

/// An inode that others may read too.
pub(crate) struct Shared<'a> {
    guard: Option<ArcRwLockReadGuard<RawRwLock, ()>>,
    place: Place<'a>,
}

/// An inode that nobody else reads or changes.
pub(crate) struct Exclusive<'a> {
    guard: Option<ArcRwLockWriteGuard<RawRwLock, ()>>,
    place: Place<'a>,
}

struct Place<'a> {
    shard: &'a Shard,
    number: InodeNo,
}

impl Locks {
    fn place(&self, number: InodeNo) -> (Place<'_>, Arc<RwLock<()>>) {
        let shard = &self.inodes[(number.0 % SHARDS as u64) as usize];
        let lock = Arc::clone(shard.lock().entry(number).or_default());
        (Place { shard, number }, lock)
    }

    pub(crate) fn shared(&self, number: InodeNo) -> Shared<'_> {
        order::before_waiting();
        let (place, lock) = self.place(number);
        Shared { guard: Some(lock.read_arc()), place }
    }

    pub(crate) fn exclusive(&self, number: InodeNo) -> Exclusive<'_> {
        order::before_waiting();
        let (place, lock) = self.place(number);
        Exclusive { guard: Some(lock.write_arc()), place }
    }

    /// Several inodes, each once, in the order of their numbers.
    pub(crate) fn exclusive_all(&self, numbers: &[InodeNo]) -> Vec<Exclusive<'_>> {
        let mut numbers = numbers.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| self.exclusive(number)).collect()
    }

    /// Directories keep their parents as long as it is held.
    pub(crate) fn rename(&self) -> MutexGuard<'_, ()> {
        order::before_waiting();
        self.rename.lock()
    }
}

impl Place<'_> {
    /// The lock goes with its last user.
    fn leave(&self) {
        let mut shard = self.shard.lock();
        if shard.get(&self.number).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            shard.remove(&self.number);
        }
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.guard = None;
        self.place.leave();
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.guard = None;
        self.place.leave();
    }
}

/// What a thread has, in debug builds.
pub(super) mod order {
    #[cfg(debug_assertions)]
    mod checked {
        use std::cell::Cell;

        thread_local! {
            static HANDLES: Cell<u32> = const { Cell::new(0) };
        }

        pub(crate) fn before_waiting() {
            let handles = HANDLES.with(Cell::get);
            assert_eq!(handles, 0, "a lock is waited for within a transaction");
        }

        pub(crate) fn entered() {
            HANDLES.with(|handles| handles.set(handles.get() + 1));
        }

        pub(crate) fn left() {
            HANDLES.with(|handles| handles.set(handles.get() - 1));
        }
    }

    #[cfg(not(debug_assertions))]
    mod checked {
        pub(crate) fn before_waiting() {}
        pub(crate) fn entered() {}
        pub(crate) fn left() {}
    }

    pub(crate) use checked::{before_waiting, entered, left};
}
