//! Transaction numbers, and the membership in a transaction.

/// The number of a transaction, counted from 1 each time the volume is opened. Only the journal creates these numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tid(pub(in crate::fs::ext4) u64);

/// The proof that an operation has joined the running transaction. A change of a block requires this proof. A `Member` always belongs to a
/// [`Handle`](super::Handle). Only a handle can therefore change a block.
pub(crate) struct Member(Tid);

impl Member {
    pub(super) fn of(tid: Tid) -> Self {
        Self(tid)
    }

    /// The transaction that the operation has joined.
    pub(crate) fn tid(&self) -> Tid {
        self.0
    }

    /// Creates the proof for tests of blocks without a journal.
    #[cfg(test)]
    pub(crate) fn in_test(tid: u64) -> Self {
        Self(Tid(tid))
    }
}
