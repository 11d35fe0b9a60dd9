//! The state of an open inode that the file system and the direct-I/O core share: the content lock, and the writes that are not yet in the
//! metadata. In Linux, file systems and `fs/iomap` share `struct inode` for this purpose.

mod content_lock;
mod entered;
mod file_handle;
mod in_flight;
mod owner;
mod pending;
mod queue_files;
mod view;

use std::ops::Range;
use std::sync::Arc;

use crate::bio::CompletionWork;
use crate::error::Result;
use crate::iomap::Written;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::FilePos;

pub use content_lock::Alone;
pub(crate) use content_lock::{ContentLock, Lane, Ticket};
pub(crate) use entered::Entered;
pub use file_handle::CommitTimer;
pub(crate) use file_handle::{FileHandle, FileIndexes};
pub(crate) use in_flight::InFlight;
pub(crate) use owner::Owner;
pub(crate) use pending::Pending;
pub use pending::Unconverted;
pub(crate) use queue_files::{Completing, Hold, Holding, QueueFile, QueueFiles, Unsynced};
pub(crate) use view::{Inside, View, Views};

/// An inode that is open or in use.
#[derive(Debug, Default)]
pub struct OpenInode {
    /// The number of changes to the inode's metadata.
    changes: AtomicU64,
    pub(crate) content: ContentLock,
    pub(crate) pending: Pending,
}

impl OpenInode {
    /// Returns the change counter of the inode. A thread that reads metadata under the inode's lock can use a copy of them until the
    /// counter changes.
    #[inline(always)]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Increments the change counter after a change of the metadata.
    pub fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Locks a range of the content exclusively. Waits if the range is not free. An operation needs this lock if it moves or frees blocks
    /// of the range, or rewrites a part of a block. The caller acquires this lock before any lock of the file system. If the caller changes
    /// the metadata, it must call [`changed`](Self::changed) before it drops the guard.
    ///
    /// # Errors
    /// `Busy` if the calling thread has requests in flight and would have to wait; `Io` if a lost queue has requests that never end.
    pub fn alone(self: &Arc<Self>, range: Range<u64>) -> Result<Alone> {
        Alone::wait(self, range)
    }

    /// Returns the writes that are not yet in the metadata. A write is listed until [`converted`](Self::converted) records that the
    /// metadata include it.
    pub fn unconverted(&self) -> Unconverted {
        self.pending.unconverted()
    }

    /// Records that the metadata include these writes, and counts a change of the metadata. The caller has locked the inode, so that no
    /// thread reads the metadata at the same time.
    pub fn converted(&self, what: &Unconverted) {
        self.pending.converted(what, || self.changed());
    }

    /// Records that a write with this completion work has failed or was cancelled. The next conversion reports this to the file system.
    /// Returns whether blocks may have been allocated for the write, so that the file should be converted soon.
    #[cold]
    pub(crate) fn cancelled(&self, pos: FilePos, len: usize, left: CompletionWork) -> bool {
        let allocates = left.intersects(CompletionWork::OF_RANGE);
        if allocates {
            self.pending.cancelled(pos.0..pos.0 + len as u64);
        }
        allocates
    }

    /// Records a completed write: the parts for which the metadata must be updated, and the new end of the file if the write has extended
    /// it. Returns whether so many parts are recorded that they must be converted.
    #[inline]
    pub(crate) fn wrote(&self, parts: &[Written], end: Option<u64>) -> bool {
        // The parts are recorded before the size, so that a reader that sees the new size also sees the parts.
        let full = !parts.is_empty() && self.pending.wrote(parts);
        if let Some(end) = end {
            self.pending.grew(end);
        }
        full
    }
}
