//! What a file system and the direct-I/O core share of an open inode that can change: who is at its content, and what was written that the
//! file system's metadata do not tell yet. As Linux's `struct inode` stands between its file systems and `fs/iomap`.

mod content_lock;
mod in_flight;
mod pending;

use crate::bio::CompletionWork;
use crate::sync::atomic::{AtomicU64, Ordering};

use crate::units::FilePos;

pub(crate) use content_lock::{Alone, ContentLock, Lane, Ticket};
pub(crate) use in_flight::InFlight;
pub(crate) use pending::{At, Pending, Unconverted};

/// An inode that someone works on or has open.
#[derive(Debug, Default)]
pub(crate) struct OpenInode {
    /// Counts the changes of its metadata.
    changes: AtomicU64,
    /// The newest transaction that changed its size or its map.
    mapped_in: AtomicU64,
    pub(crate) content: ContentLock,
    pub(crate) pending: Pending,
}

impl OpenInode {
    /// As long as this number stays, so does what was read of the inode under its lock.
    #[inline(always)]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Its metadata have changed.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
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
        let full = left.contains(CompletionWork::CONVERT) && self.pending.wrote(pos.0..end);
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
