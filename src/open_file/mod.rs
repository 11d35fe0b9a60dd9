//! The state of an open inode that the file system and the direct-I/O core share: the content lock, and writes that the file system's
//! metadata do not include yet. Linux's `struct inode` has this role between its file systems and `fs/iomap`.

mod content_lock;
mod in_flight;
mod owner;
mod pending;
mod queue_files;
mod view;

use std::ops::Range;
use std::sync::Arc;

use crate::bio::CompletionWork;
use crate::error::Result;
use crate::sync::atomic::{AtomicU64, Ordering};

use crate::units::FilePos;

pub use content_lock::Alone;
pub(crate) use content_lock::{ContentLock, Lane, Ticket};
pub(crate) use in_flight::InFlight;
pub(crate) use owner::Owner;
pub(crate) use pending::Pending;
pub use pending::Unconverted;
pub(crate) use queue_files::{
    Completing, Hold, Holding, Keep, OpenHandle, QueueFile, QueueFiles, Unsynced,
};
pub(crate) use view::{View, Viewed, Views};

/// An inode that someone works on or has open.
#[derive(Debug, Default)]
pub struct OpenInode {
    /// Counts the changes of its metadata.
    changes: AtomicU64,
    /// The newest transaction that changed its size or its map.
    mapped_in: AtomicU64,
    pub(crate) content: ContentLock,
    pub(crate) pending: Pending,
}

impl OpenInode {
    /// As long as this number stays, data read from the inode under its lock stay valid.
    #[inline(always)]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Its metadata have changed.
    pub fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Waits for an exclusive range of bytes of the content, for operations that move or free its blocks, or read and write a part of one.
    /// The content comes before all locks of the file system, and a change is [announced](Self::changed) before this is dropped.
    ///
    /// # Errors
    /// `Busy` where it would have to be waited for by a thread that has requests in flight; `Io` where a lost queue has some for ever.
    pub fn alone(self: &Arc<Self>, range: Range<u64>) -> Result<Alone> {
        Alone::wait(self, range)
    }

    /// Writes that the metadata do not include yet. They stay until they are [converted](Self::converted).
    pub fn unconverted(&self) -> Unconverted {
        self.pending.unconverted()
    }

    /// Its metadata tell this now, and have changed. Called under the lock with which they are read.
    pub fn converted(&self, what: &Unconverted) {
        self.pending.converted(what, || self.changed());
    }

    /// Notes the transaction that changed its size or its map.
    pub(crate) fn mapped_in(&self, tid: u64) {
        self.mapped_in.fetch_max(tid, Ordering::Relaxed);
    }

    /// Notes what a write has done, and leaves to be done. Says whether there is much of that now.
    #[inline]
    pub(crate) fn wrote(&self, pos: FilePos, len: usize, left: CompletionWork) -> bool {
        let end = pos.0 + len as u64;
        // First what it holds, then that it is there.
        let full = left.intersects(CompletionWork::CONVERT.union(CompletionWork::REMAP))
            && self.pending.wrote(pos.0..end);
        if left.contains(CompletionWork::GROW) {
            self.pending.grew(end);
        }
        full
    }

    /// The newest transaction that did.
    pub(crate) fn newest_map(&self) -> u64 {
        self.mapped_in.load(Ordering::Relaxed)
    }
}
