//! Operations are the only way to change a volume. An [`Operation`] locks and reads the inodes that it changes. It checks all conditions,
//! and then changes blocks in a transaction.
//!
//! The compiler enforces that blocks are changed only in this way. Only [`Ext4::operate`] creates an operation. Only an operation can lock
//! an inode for a change. Only [`transact`](Operation::transact) creates a [`Handle`](super::jbd2::Handle). Only a handle can change
//! blocks: the block cache requires a membership in a transaction. To change an inode, a handle needs a [proof](MayChange) that no other
//! thread changes the inode. [`Ext4::operate`] also counts corruption that the operation finds.

mod inode;
pub(super) mod locks;
#[cfg(all(test, shuttle))]
mod shuttle_tests;

use std::cell::Cell;
use std::ops::{Deref, Range};
use std::sync::Arc;

pub(crate) use self::inode::{InodeToChange, MayChange};
pub(super) use self::locks::{Content, Exclusive, Open, Patience, Shared, WriteState};
use super::order::Ordered;
use super::writing::Writing;
use super::{Ext4, Inode};
use crate::error::{Error, Result};
use crate::fs::FileType;
use crate::sync::MutexGuard;
use crate::units::InodeNo;

/// The permission to change a volume. All changes of a volume are methods of this type.
pub(crate) struct Operation<'a> {
    pub(crate) fs: &'a Arc<Ext4>,
    pub(crate) writing: &'a Writing,
    /// Whether the operation has failed to read a directory that it had not locked.
    read_unlocked: Cell<bool>,
}

/// An exclusive lock of an inode.
pub(crate) struct Locked<'a> {
    fs: &'a Arc<Ext4>,
    number: InodeNo,
    lock: Exclusive<'a>,
}

impl Ext4 {
    /// Runs an operation that changes the volume. If the operation fails with `Corrupt`, the failure counts as an error of the volume, as
    /// in [`watch`](Self::watch).
    ///
    /// # Errors
    /// `ReadOnly` if the volume was not opened for writing, and the errors of `work`.
    pub(crate) fn operate<R>(
        self: &Arc<Self>,
        work: impl FnOnce(&Operation<'_>) -> Result<R>,
    ) -> Result<R> {
        let read_unlocked = Cell::new(false);
        let op = Operation { fs: self, writing: self.writing()?, read_unlocked };
        let result = work(&op);
        // If the operation failed to read a directory that it had not locked, the failure does not count as an error of the volume: another
        // thread may have changed the directory during the read.
        if op.read_unlocked.get() { result } else { self.watch(|| result) }
    }

    /// Waits for a shared lock of an inode. While the lock is held, no thread changes the inode. Returns `None` on a read-only volume,
    /// which needs no lock.
    pub(crate) fn share(&self, number: InodeNo) -> Option<Shared<'_>> {
        self.writing.as_ref().map(|writing| writing.locks.shared(number))
    }

    /// Acquires a shared lock if the lock is available without waiting. The caller may hold any other locks.
    ///
    /// # Errors
    /// `WouldBlock` if another thread holds the lock exclusively.
    pub(crate) fn try_share(&self, number: InodeNo) -> Result<Option<Shared<'_>>> {
        let Some(writing) = &self.writing else { return Ok(None) };
        let shared = writing.locks.try_shared(number);
        shared
            .map(Some)
            .ok_or_else(|| Error::would_block("another thread is changing the file's inode"))
    }
}

impl Operation<'_> {
    /// Records that the operation failed to read a directory whose lock it did not hold.
    pub(crate) fn failed_to_read_unlocked(&self) {
        self.read_unlocked.set(true);
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

    /// Locks two inodes. Neither inode may be an ancestor of the other. A directory is locked before a file of another type, because the
    /// file may have a name in this directory. Two directories, or two files that are not directories, are locked in the order of their
    /// numbers. If both inodes are the same or the second is `None`, only one inode is locked. The types of the inodes must not change
    /// during the call.
    pub(super) fn lock_two(
        &self,
        one: &Inode,
        other: Option<&Inode>,
    ) -> (Locked<'a>, Option<Locked<'a>>) {
        let order = |inode: &Inode| (inode.file_type() != FileType::Directory, inode.number());
        let other = other.filter(|other| other.number() != one.number());
        if let Some(first) = other.filter(|other| order(other) < order(one)) {
            let first = self.lock(first.number());
            return (self.lock(one.number()), Some(first));
        }
        (self.lock(one.number()), other.map(|other| self.lock(other.number())))
    }

    /// Locks renames. While this lock is held, no directory gets another parent.
    pub(super) fn lock_renames(&self) -> Ordered<MutexGuard<'a, ()>> {
        self.writing.locks.rename()
    }

    /// Waits for exclusive access to a range of a file's content.
    ///
    /// # Errors
    /// `Busy` if the calling thread would have to wait while it has requests in flight.
    pub(super) fn lock_content(&self, number: InodeNo, range: Range<u64>) -> Result<Content<'a>> {
        self.writing.locks.content(number, range)
    }
}

impl Locked<'_> {
    pub(super) fn number(&self) -> InodeNo {
        self.number
    }

    /// Reads the current state of the inode, even if it has no name.
    ///
    /// # Errors
    /// The errors of reading and checking the inode.
    pub(super) fn inode(&self) -> Result<InodeToChange<'_>> {
        InodeToChange::read(self.fs, self)
    }

    /// Reads the current state of the inode. The inode must have a name.
    ///
    /// # Errors
    /// `NotFound` if the inode has no name; the errors of reading and checking the inode.
    pub(super) fn named(&self) -> Result<InodeToChange<'_>> {
        InodeToChange::read_named(self.fs, self)
    }

    /// Closes the inode. Returns true if no open handle remains.
    pub(super) fn close(&self, open: &Open) -> bool {
        self.lock.close(open)
    }
}
