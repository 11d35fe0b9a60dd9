//! Numbers of transactions, and the membership in one.

use crate::open_file::OpenInode;

/// The number of a transaction, counted from 1 at each opening. Only the journal creates one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tid(pub(super) u64);

impl Tid {
    /// The transaction with the newest map of an open file.
    pub(crate) fn of_map(open: &OpenInode) -> Self {
        Self(open.newest_map())
    }

    /// Records that this transaction has the newest map of an open file.
    pub(crate) fn note_map(self, open: &OpenInode) {
        open.mapped_in(self.0);
    }
}

/// A proof that an operation has joined the running transaction. A [`Handle`](super::Handle) has one and does not share it, so only a handle can
/// change a block.
pub(crate) struct Member(Tid);

impl Member {
    pub(super) fn of(tid: Tid) -> Self {
        Self(tid)
    }

    /// The transaction of the member.
    pub(crate) fn tid(&self) -> Tid {
        self.0
    }

    /// A test of only blocks has no journal.
    #[cfg(test)]
    pub(crate) fn in_test(tid: u64) -> Self {
        Self(Tid(tid))
    }
}
