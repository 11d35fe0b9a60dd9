//! The order in which a thread takes locks, checked in debug builds: a file's content, the rename lock,
//! inodes, a transaction's handle, a group, a block.
//!
//! A thread with a later one never waits for an earlier one, and has only one of each; but several inodes, each once: a directory before the
//! entries in it, two others by their numbers. A commit waits for handles, and a handle may wait for a commit: to wait for an inode with
//! a handle stops the volume.

use std::ops::{Deref, DerefMut};

use crate::units::InodeNo;

/// A kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    Content,
    Rename,
    Inode(InodeNo),
    /// A handle; a commit counts as one while it waits for those of others.
    Handle,
    Group,
    Block,
}

/// That a thread has a lock.
pub(crate) struct Held(#[cfg(debug_assertions)] Rank);

/// A lock's guard, and that its thread has it.
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
            // A guard may go while its thread ends.
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

/// Before a lock is waited for.
pub(super) use checked::before;
