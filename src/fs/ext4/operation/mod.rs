//! The way to change a volume: an [`Operation`] takes the locks of what it changes, decodes that, checks everything, and then changes
//! blocks in a transaction.
//!
//! The compiler refuses any other order. Only [`Ext4::operate`] makes an operation, and it counts the corruption that is met. Only an operation
//! locks an inode for a change. Blocks are changed by a [`Handle`](super::jbd2::Handle), which [`transact`](Operation::transact) alone makes:
//! the cache asks for its membership in a transaction. An inode is changed by a handle with a [proof](MayChange) that no other thread does.

mod inode;
pub(super) mod locks;
#[cfg(all(test, shuttle))]
mod shuttle_tests;

use std::ops::{Deref, Range};
use std::sync::Arc;

pub(crate) use self::inode::{InodeToChange, MayChange};
use self::locks::Exclusive;
pub(super) use self::locks::{Content, Open, Patience, Shared};
use super::Ext4;
use super::order::Ordered;
use super::writing::Writing;
use crate::error::{Error, Result};
use crate::sync::MutexGuard;
use crate::units::InodeNo;

/// A volume, and the right to change it.
pub(crate) struct Operation<'a> {
    fs: &'a Arc<Ext4>,
    pub(crate) writing: &'a Writing,
}

/// An inode that nobody else reads or changes.
pub(crate) struct Locked<'a> {
    fs: &'a Arc<Ext4>,
    number: InodeNo,
    lock: Exclusive<'a>,
}

impl Ext4 {
    /// Runs an operation that changes the volume. As with [`watch`](Self::watch), the corruption that it meets counts.
    ///
    /// # Errors
    /// `ReadOnly` where the volume was not opened for writing, and what `work` gives.
    pub(crate) fn operate<R>(
        self: &Arc<Self>,
        work: impl FnOnce(&Operation<'_>) -> Result<R>,
    ) -> Result<R> {
        self.watch(|| work(&Operation { fs: self, writing: self.writing()? }))
    }

    /// Waits until nobody changes an inode, and keeps it as it is. `None` on a volume that is read-only, where nobody does.
    pub(crate) fn share(&self, number: InodeNo) -> Option<Shared<'_>> {
        self.writing.as_ref().map(|writing| writing.locks.shared(number))
    }

    /// The same without waiting, and so in any order.
    ///
    /// # Errors
    /// `WouldBlock` where someone changes it.
    pub(crate) fn try_share(&self, number: InodeNo) -> Result<Option<Shared<'_>>> {
        let Some(writing) = &self.writing else { return Ok(None) };
        let shared = writing.locks.try_shared(number);
        shared.map(Some).ok_or_else(|| Error::would_block("someone changes the file's inode"))
    }
}

impl Deref for Operation<'_> {
    type Target = Arc<Ext4>;

    fn deref(&self) -> &Arc<Ext4> {
        self.fs
    }
}

impl<'a> Operation<'a> {
    /// Waits until nobody else reads or changes an inode.
    pub(super) fn lock(&self, number: InodeNo) -> Locked<'a> {
        Locked { fs: self.fs, number, lock: self.writing.locks.exclusive(number) }
    }

    /// Two inodes, in the order of their numbers; if they are the same, or there is no other, just the one.
    pub(super) fn lock_two(
        &self,
        one: InodeNo,
        other: Option<InodeNo>,
    ) -> (Locked<'a>, Option<Locked<'a>>) {
        let other = other.filter(|other| *other != one);
        if let Some(first) = other.filter(|other| *other < one) {
            let first = self.lock(first);
            return (self.lock(one), Some(first));
        }
        (self.lock(one), other.map(|other| self.lock(other)))
    }

    /// Directories keep their parents as long as it is held.
    pub(super) fn lock_renames(&self) -> Ordered<MutexGuard<'a, ()>> {
        self.writing.locks.rename()
    }

    /// Waits until nobody else is at a range of a file's content.
    ///
    /// # Errors
    /// `Busy` where it would have to be waited for by a thread that has requests in flight.
    pub(super) fn lock_content(&self, number: InodeNo, range: Range<u64>) -> Result<Content<'a>> {
        self.writing.locks.content(number, range)
    }
}

impl Locked<'_> {
    pub(super) fn number(&self) -> InodeNo {
        self.number
    }

    /// The inode as it is, with a name or without.
    ///
    /// # Errors
    /// What reading and checking gives.
    pub(super) fn inode(&self) -> Result<InodeToChange<'_>> {
        InodeToChange::read(self.fs, self)
    }

    /// The same.
    ///
    /// # Errors
    /// `NotFound` where it has no name any more; what reading and checking gives.
    pub(super) fn named(&self) -> Result<InodeToChange<'_>> {
        InodeToChange::read_named(self.fs, self)
    }

    /// Closes the inode; says whether nobody has it open now.
    pub(super) fn close(&self, open: &Open) -> bool {
        self.lock.close(open)
    }
}
