//! The order in which a thread takes locks, which debug builds check: a file's content, the rename
//! lock, inodes, a transaction's handle, a group, a block.
//!
//! A thread that holds a later lock must not wait for an earlier one. A thread may hold only one lock of each kind, except that it may hold
//! several inodes: a directory is locked before its entries, other inodes in the order of their numbers. A commit waits for handles, and a
//! handle may wait for a commit. A thread that waits for an inode while it holds a handle could therefore cause a deadlock.

use std::ops::{Deref, DerefMut};

use crate::units::InodeNo;

/// A kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    Content,
    Rename,
    Inode(InodeNo),
    /// A handle. A commit counts as a handle while it waits for other handles.
    Handle,
    Group,
    Block,
}

/// A proof that this thread holds a lock.
pub(crate) struct Held(#[cfg(debug_assertions)] Rank);

/// A lock's guard, with the proof that its thread holds it.
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
        HELD.with(|all| {
            let all = all.borrow();
            assert!(all.iter().all(follows), "{rank:?} is waited for with {all:?}");
        });
    }

    impl Held {
        pub(in super::super) fn new(rank: Rank) -> Self {
            HELD.with(|all| all.borrow_mut().push(rank));
            Self(rank)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            // A guard may be dropped while its thread is exiting.
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

/// Checks the order before a thread waits for a lock.
pub(super) use checked::before;
