//! The order in which a thread acquires locks: a file's content, the rename lock, inodes, a handle of a transaction, a group, a block.
//! Debug builds check this order.
//!
//! A thread that has a lock must not wait for a lock that is earlier in this order. A thread may have only one lock of each kind, except
//! for inodes. Inodes have their own order. A directory precedes the inodes of its entries. Any directory precedes a file of another type.
//! Other inodes are locked in the order of their numbers. Only a thread that holds the rename lock may lock two directories in different
//! branches of the directory tree. A thread that has locked a removed inode must not wait for another inode. A handle counts as a lock. A
//! thread with a handle must not wait for an inode: the thread that has locked the inode may be waiting for a commit, and a commit waits
//! for all handles.

use std::ops::{Deref, DerefMut};

use crate::units::InodeNo;

/// A kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    Content,
    Rename,
    Inode(InodeNo),
    /// A handle of a transaction. A commit has the same rank, because it waits for handles.
    Handle,
    Group,
    Block,
}

/// The record that this thread has acquired a lock. Dropping the value removes the record. Only debug builds make this record.
pub(crate) struct Held(#[cfg(debug_assertions)] Rank);

/// The guard of a lock, together with the record that this thread has acquired the lock.
pub(crate) struct Ordered<G> {
    guard: G,
    _held: Held,
}

impl<G> Ordered<G> {
    pub(super) fn new(rank: Rank, lock: impl FnOnce() -> G) -> Self {
        before(rank);
        Self { guard: lock(), _held: Held::new(rank) }
    }
}

impl<G: Deref> Deref for Ordered<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Ordered<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

#[cfg(debug_assertions)]
mod checked {
    use std::cell::RefCell;

    use super::{Held, Rank};

    crate::sync::thread_local! {
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    pub(in super::super) fn before(rank: Rank) {
        let follows = |held: &Rank| match (held, rank) {
            (Rank::Inode(held), Rank::Inode(next)) => *held != next,
            (held, next) => *held < next,
        };
        // While the thread exits, its list of acquired locks may already be destroyed. The check is then skipped.
        let _ = HELD.try_with(|all| {
            let all = all.borrow();
            assert!(
                all.iter().all(follows),
                "a lock of rank {rank:?} is acquired while {all:?} are held"
            );
        });
    }

    impl Held {
        pub(in super::super) fn new(rank: Rank) -> Self {
            let _ = HELD.try_with(|all| all.borrow_mut().push(rank));
            Self(rank)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            // While the thread exits, its list of acquired locks may already be destroyed. The record then no longer exists.
            let _ = HELD.try_with(|all| {
                let mut all = all.borrow_mut();
                if let Some(at) = all.iter().rposition(|rank| *rank == self.0) {
                    all.swap_remove(at);
                }
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod checked {
    use super::{Held, Rank};

    pub(in super::super) fn before(_rank: Rank) {}

    impl Held {
        pub(in super::super) fn new(_rank: Rank) -> Self {
            Self()
        }
    }
}

/// Asserts that the lock order permits this thread to wait for a lock of this rank.
pub(super) use checked::before;
