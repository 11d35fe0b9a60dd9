//! The way to change a volume: an [`Operation`] locks the inodes that it changes, reads them, checks everything, and then changes blocks in a
//! transaction.
//!
//! The compiler enforces this order. Only [`Ext4::operate`] creates an operation, and it counts the corruption that occurs. Only an operation
//! locks an inode for a change. A [`Handle`](super::jbd2::Handle), which only [`transact`](Operation::transact) creates, changes blocks: the
//! cache asks for its membership in a transaction. A handle changes an inode only with a [proof](MayChange) that no other thread does.

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

/// An exclusive lock of an inode.
pub(crate) struct Locked<'a> {
    fs: &'a Arc<Ext4>,
    number: InodeNo,
    lock: Exclusive<'a>,
}

impl Ext4 {
    /// Runs an operation that changes the volume. As with [`watch`](Self::watch), corruption counts as an error of the volume.
    ///
    /// # Errors
    /// `ReadOnly` if the volume was not opened for writing, and the errors of `work`.
    pub(crate) fn operate<R>(
        self: &Arc<Self>,
        work: impl FnOnce(&Operation<'_>) -> Result<R>,
    ) -> Result<R> {
        self.watch(|| work(&Operation { fs: self, writing: self.writing()? }))
    }

    /// Waits for a shared lock of an inode: no thread changes it while the lock is held. `None` on a read-only volume, which needs no lock.
    pub(crate) fn share(&self, number: InodeNo) -> Option<Shared<'_>> {
        self.writing.as_ref().map(|writing| writing.locks.shared(number))
    }

    /// A shared lock without a wait, in any lock order.
    ///
    /// # Errors
    /// `WouldBlock` if another thread holds the lock exclusively.
    pub(crate) fn try_share(&self, number: InodeNo) -> Result<Option<Shared<'_>>> {
        let Some(writing) = &self.writing else { return Ok(None) };
        let shared = writing.locks.try_shared(number);
        shared
            .map(Some)
            .ok_or_else(|| Error::would_block("another thread changes the file's inode"))
    }
}

impl Deref for Operation<'_> {
    type Target = Arc<Ext4>;

    fn deref(&self) -> &Arc<Ext4> {
        self.fs
    }
}

impl<'a> Operation<'a> {
    /// Waits for an exclusive lock of an inode.
    pub(super) fn lock(&self, number: InodeNo) -> Locked<'a> {
        Locked { fs: self.fs, number, lock: self.writing.locks.exclusive(number) }
    }

    /// Locks two inodes in the order of their numbers. If they are equal or the second is `None`, only one is locked.
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

    /// Locks renames: the parents of directories do not change while this is held.
    pub(super) fn lock_renames(&self) -> Ordered<MutexGuard<'a, ()>> {
        self.writing.locks.rename()
    }

    /// Waits for exclusive access to a range of a file's content.
    ///
    /// # Errors
    /// `Busy` if a thread with requests in flight would have to wait.
    pub(super) fn lock_content(&self, number: InodeNo, range: Range<u64>) -> Result<Content<'a>> {
        self.writing.locks.content(number, range)
    }
}

impl Locked<'_> {
    pub(super) fn number(&self) -> InodeNo {
        self.number
    }

    /// The present state of the inode, which may have no name.
    ///
    /// # Errors
    /// The errors of reading and checking the inode.
    pub(super) fn inode(&self) -> Result<InodeToChange<'_>> {
        InodeToChange::read(self.fs, self)
    }

    /// The present state of the inode, which must have a name.
    ///
    /// # Errors
    /// `NotFound` if it has no name; the errors of reading and checking it.
    pub(super) fn named(&self) -> Result<InodeToChange<'_>> {
        InodeToChange::read_named(self.fs, self)
    }

    /// Closes the inode. Gives whether no handle remains open.
    pub(super) fn close(&self, open: &Open) -> bool {
        self.lock.close(open)
    }
}
