//! Commits, checkpoints, and aborts.

use std::sync::Arc;

use super::LogWriter;
use super::tid::Tid;
use super::transactions::Work;
use crate::error::{Error, Result};
use crate::fs::block::Block;
use crate::fs::ext4::Ext4;
use crate::fs::ext4::mmp_hold::MmpHold;
use crate::fs::ext4::operation::Patience;
use crate::fs::ext4::order::{Rank, before};
use crate::fs::ext4::writing::Writing;
use crate::units::FsBlock;

/// The versions of blocks at the end of a transaction, sorted by block number.
type Frozen = Vec<(FsBlock, Block)>;

/// The fill level of the log, in percent, at which the timer thread runs a checkpoint.
const CHECKPOINT_AT: u32 = 50;

impl Ext4 {
    /// Makes all earlier changes durable: a commit writes the metadata, and a flush of the device makes the data durable. Threads that call
    /// this function at the same time share one commit.
    ///
    /// # Errors
    /// `Busy` if the caller must wait for other requests while its own thread has requests in flight; `ReadOnly` for a volume that was
    /// opened read-only, or that became read-only after an error; `Io`. If an earlier close of a file could not update the metadata for
    /// written data, one call of this function returns the error of that close.
    pub(crate) fn sync_all(self: &Arc<Self>) -> Result<()> {
        let converted = self.convert_all(Patience::Some);
        self.store_waiting()?;
        self.commit_with_data(self.writing()?.transactions.newest())?;
        converted?;
        self.tell_unheard()
    }

    /// If an earlier operation left an error that no caller has received yet, returns this error and removes it.
    pub(crate) fn tell_unheard(&self) -> Result<()> {
        self.writing()?.unheard.lock().take().map_or(Ok(()), Err)
    }

    /// Moves pending time stamps and errors into the running transaction.
    ///
    /// # Errors
    /// `ReadOnly`; the errors of reading the inodes' blocks.
    pub(crate) fn store_waiting(self: &Arc<Self>) -> Result<()> {
        self.check_stopped()?;
        self.writing()?.transactions.check()?;
        self.store_stamps()?;
        self.store_errors()
    }

    /// Returns when a transaction is committed. All writes that ended before this call are then durable.
    pub(crate) fn commit_with_data(&self, tid: Tid) -> Result<()> {
        // If another thread began the commit before this call, the caller's writes may have ended after the commit's flush, so another
        // flush is needed.
        if self.commit_shared(tid)? {
            return Ok(());
        }
        self.blocks.flush().inspect_err(|error| self.abort(error))
    }

    /// Aborts the journal if a flush outside of a commit has failed. Integrity devices and write-through requests flush the device outside
    /// of commits.
    pub(crate) fn check_durable(&self) {
        if let Err(error) = self.blocks.check_durable() {
            self.abort(&error);
        }
    }

    /// Commits all earlier changes. If all changes are already committed, the device is not flushed.
    pub(crate) fn commit_running(&self) -> Result<()> {
        let transactions = &self.writing()?.transactions;
        let newest = transactions.newest();
        if transactions.is_committed(newest) { Ok(()) } else { self.commit(newest) }
    }

    /// Returns when a transaction is committed.
    pub(crate) fn commit(&self, tid: Tid) -> Result<()> {
        self.commit_shared(tid).map(drop)
    }

    /// Returns when a transaction is committed. The result is true if the device was flushed after the start of this call.
    fn commit_shared(&self, tid: Tid) -> Result<bool> {
        // In the lock order, a commit has the rank of a handle: it waits until all handles have left the transaction.
        before(Rank::Handle);
        let writing = self.writing()?;
        let freeze = |tid, work: &Work| self.freeze(tid, work);
        let committed = writing.transactions.commit(tid, freeze, |_, work, frozen| {
            let written = self.write_transaction(writing, &work, frozen);
            match &written {
                Ok(()) => writing.alloc.committed(self, &work.freed),
                Err(error) => self.record_abort(writing, error),
            }
            written
        });
        // The failed commit has aborted the journal. Writes without a transaction must be refused too.
        committed.inspect_err(|_| writing.locks.all_changed())
    }

    /// Commits all changes since the opening of the volume as one transaction, and writes this transaction to `log`. The volume must not
    /// have its own log.
    ///
    /// # Errors
    /// `Corrupt` for a transaction that does not fit into the log; nothing is written in that case. `ReadOnly`, `Io`.
    pub(crate) fn commit_to(&self, log: &mut LogWriter) -> Result<()> {
        let writing = self.writing()?;
        let freeze = |tid, work: &Work| self.freeze(tid, work);
        let committed = writing.transactions.commit(Tid(1), freeze, |_, work, frozen| {
            log.commit(&self.blocks, frozen, &work.revoked, writing.clock.now())
        });
        committed.map(drop)
    }

    fn freeze(&self, tid: Tid, work: &Work) -> Frozen {
        let version =
            |block: &FsBlock| Some((*block, self.blocks.dirty().of_transaction(*block, tid)?));
        let mut frozen: Frozen = work.blocks.iter().filter_map(version).collect();
        frozen.sort_unstable_by_key(|(block, _)| *block);
        frozen.dedup_by_key(|(block, _)| *block);
        frozen
    }

    fn write_transaction(&self, writing: &Writing, work: &Work, frozen: Frozen) -> Result<()> {
        if frozen.is_empty() && work.revoked.is_empty() {
            return self.blocks.flush();
        }
        self.check_held()?;
        let mut log = writing.log.lock();
        // The log may have been closed while this thread waited for its lock.
        writing.transactions.check()?;
        match &mut *log {
            Some(log) => log.commit(&self.blocks, frozen, &work.revoked, writing.clock.now()),
            None => {
                self.blocks.write_home(&frozen)?;
                self.blocks.flush()?;
                frozen.iter().for_each(|(block, version)| self.blocks.written(*block, version));
                Ok(())
            }
        }
    }

    /// If the log is at least half full, writes the committed blocks to their home locations.
    ///
    /// # Errors
    /// `Io`. The error also aborts the journal, because the effect of a failed flush is unknown. The device may report the failure only
    /// once, to this thread.
    pub(crate) fn make_room(&self) -> Result<()> {
        self.check_held()?;
        let made = match &mut *self.writing()?.log.lock() {
            Some(log) if log.fill() >= CHECKPOINT_AT => log.checkpoint(&self.blocks),
            _ => Ok(()),
        };
        made.inspect_err(|error| self.abort(error))
    }

    /// Checks that this node still owns the volume (multi-mount protection). If another node has taken over the volume, the journal is
    /// aborted. After that nothing is written, not even a record of the error.
    ///
    /// # Errors
    /// `Busy`.
    pub(crate) fn check_held(&self) -> Result<()> {
        let writing = self.writing()?;
        let held = writing.mmp.lock().as_ref().map_or(Ok(()), MmpHold::check);
        held.inspect_err(|error| {
            writing.transactions.abort(error);
            writing.locks.all_changed();
        })
    }

    /// Refuses all further changes. Callers must abort if an operation has failed between two of its changes.
    #[cold]
    pub(crate) fn abort(&self, why: &Error) {
        self.abort_then(why, || ());
    }

    /// Aborts like [`abort`](Self::abort), and calls `then` in the middle: after changes are refused, and before the error is recorded on
    /// the device. The record may take long to write.
    #[cold]
    pub(crate) fn abort_then(&self, why: &Error, then: impl FnOnce()) {
        if let Ok(writing) = self.writing() {
            let first = writing.transactions.abort(why);
            if first {
                writing.errors.stop(why);
            }
            // `all_changed` marks the cached inodes as outdated. Writes without a transaction then read their inode again and are refused.
            writing.locks.all_changed();
            then();
            if first {
                self.record_abort(writing, why);
            }
        }
    }

    /// Records the error in the superblock for e2fsck and the next mount, if the device still accepts writes.
    fn record_abort(&self, writing: &Writing, why: &Error) {
        writing.errors.stop(why);
        if self.check_held().is_err() {
            return;
        }
        // The log stays locked until the file system's superblock also contains the error. Without the lock, a concurrent checkpoint could
        // overwrite this superblock with an older version.
        let mut log = writing.log.lock();
        if let Some(log) = &mut *log {
            let _ = log.record_abort(&self.blocks, why.errno());
        }
        let _ = self.record_last(why);
    }
}
