//! Handles. A handle is the membership of one operation in the running transaction.

use std::sync::Arc;

use super::tid::{Member, Tid};
use super::transactions::{Joined, Work};
use crate::error::{Errno, Error, ErrorKind, Place, Result};
use crate::fs::Timestamp;
use crate::fs::block::Part;
use crate::fs::ext4::Ext4;
use crate::fs::ext4::operation::Operation;
use crate::fs::ext4::order::{Held, Rank, before};
use crate::fs::ext4::writing::Writing;
use crate::sync::yield_now;
use crate::units::FsBlock;

/// The maximum number of times that an operation is repeated because it found no space. Before each repetition, a commit makes freed blocks
/// available.
const SPACE_COMMITS: u32 = 3;
/// The maximum number of attempts to allocate an inode if other threads have locked all free inodes. Such a lock is usually released soon:
/// the thread finds that the locked file was removed, and unlocks the inode. The number of attempts is limited, because that thread may be
/// waiting for a directory that this operation has locked.
const INODE_ATTEMPTS: u32 = 1000;

/// The changes of one operation, which are committed together. [`Operation::transact`] creates the handle.
pub(crate) struct Handle<'a> {
    pub(in crate::fs::ext4) fs: &'a Arc<Ext4>,
    pub(in crate::fs::ext4) writing: &'a Writing,
    member: Member,
    credits: u32,
    work: Work,
    /// The operation's membership in the transaction; `None` after the operation has left the transaction.
    held: Option<Held>,
    /// Whether the operation has made a change in this transaction and is still running.
    changed: bool,
    /// Whether an allocation skipped a free inode, because another thread had locked the inode.
    pub(in crate::fs::ext4) met_locked_inode: bool,
    /// Whether the last step failed and has undone its changes.
    taken_back: bool,
}

impl<'a> Operation<'a> {
    /// Runs `work`, which changes at most `credits` blocks, in a transaction. If `credits` exceeds the maximum size of a transaction, the
    /// maximum is used instead, because an operation is not expected to need all of its credits.
    ///
    /// # Errors
    /// `ReadOnly`; the error of `work`. If `work` fails after it has changed a block, the changes cannot be undone, and the volume becomes
    /// read-only. Errors of an [expected](ErrorKind::is_expected) kind do not have this effect.
    pub(crate) fn transact<R>(
        &self,
        credits: u32,
        work: impl FnOnce(&mut Handle<'a>) -> Result<R>,
    ) -> Result<R> {
        let writing = self.writing;
        let credits = (credits + self.quota_credits()).min(writing.transactions.limit());
        let (member, held) = join(self, writing, credits)?;
        writing.counters.began();
        let mut handle = Handle {
            fs: self.fs,
            writing,
            member,
            credits,
            work: Work::default(),
            held: Some(held),
            changed: false,
            met_locked_inode: false,
            taken_back: false,
        };
        let result = work(&mut handle);
        if let Err(error) = &result
            && handle.changed
            && !handle.taken_back
            && !error.kind().is_expected()
        {
            self.abort(error);
        }
        handle.changed = false;
        result
    }

    /// Like [`transact`](Self::transact), for work that allocates space. If `work` finds no space and a commit can make freed space
    /// available, the function commits and repeats `work`. If `work` finds only locked inodes, the function lets other threads run and then
    /// repeats `work`.
    ///
    /// # Errors
    /// The errors of [`transact`](Self::transact); `NoSpace` if there is still no space after the repetitions.
    pub(crate) fn transact_for_space<R>(
        &self,
        credits: u32,
        mut work: impl FnMut(&mut Handle<'a>) -> Result<R>,
    ) -> Result<R> {
        let alloc = &self.writing.alloc;
        let (mut commits, mut attempts) = (SPACE_COMMITS, INODE_ATTEMPTS);
        loop {
            // `commit_frees` is called before the work, and again after a failure. The second call is not enough: another thread may commit
            // between the failure and the second call, and make the space available. The second call then returns false, although a
            // repetition of the work would succeed.
            let kept_back = alloc.commit_frees();
            let mut locked = false;
            let result = self.transact(credits, |handle| {
                let result = work(handle);
                locked = handle.met_locked_inode;
                result
            });
            match (result, locked) {
                (Err(error), true) if error.kind() == ErrorKind::NoSpace && attempts > 0 => {
                    attempts -= 1;
                    yield_now();
                }
                (Err(error), _)
                    if error.kind() == ErrorKind::NoSpace
                        && commits > 0
                        && (kept_back || alloc.commit_frees()) =>
                {
                    commits -= 1;
                    self.commit_running()?;
                }
                (result, _) => return result,
            }
        }
    }
}

/// Joins the running transaction. If this transaction is full, commits it and joins the next transaction.
fn join(fs: &Ext4, writing: &Writing, credits: u32) -> Result<(Member, Held)> {
    before(Rank::Handle);
    loop {
        match writing.transactions.join(credits)? {
            Joined::In(member) => return Ok((member, Held::new(Rank::Handle))),
            Joined::Full(tid) => fs.commit(tid)?,
        }
    }
}

impl Handle<'_> {
    /// Changes a block of metadata. `change` receives the newest content of the block, and must not change other blocks. If `change` fails,
    /// it must leave the content unchanged.
    pub(crate) fn update<R>(
        &mut self,
        block: FsBlock,
        place: Place,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<R> {
        let (result, joins) = self.fs.blocks.update(block, &self.member, place, change)?;
        self.note(block, joins);
        Ok(result)
    }

    /// Changes a part of a block that has its own checksum. `change` also stores the new checksum. A later read of the part from memory
    /// does not verify the checksum.
    pub(crate) fn update_sealed<R>(
        &mut self,
        block: FsBlock,
        part: Part,
        place: Place,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<R> {
        let (result, joins) =
            self.fs.blocks.update_sealed((block, part), &self.member, place, change)?;
        self.note(block, joins);
        Ok(result)
    }

    /// Initialises a block that was just allocated for metadata. `fill` receives zeros. The content on the device is not read.
    pub(crate) fn create<R>(
        &mut self,
        block: FsBlock,
        fill: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let (result, joins) = self.fs.blocks.create(block, &self.member, fill)?;
        self.note(block, joins);
        Ok(result)
    }

    fn note(&mut self, block: FsBlock, joins: bool) {
        self.changed = true;
        if joins {
            self.work.blocks.push(block);
        }
    }

    /// Drops a freed metadata block from the cache, and revokes the block in the journal, so that a recovery does not replay old copies of
    /// the block.
    pub(crate) fn forget(&mut self, block: FsBlock) {
        self.fs.blocks.forget(block, &self.member);
        self.work.revoked.push(block);
    }

    /// Frees blocks. They cannot be allocated before the transaction is committed.
    pub(crate) fn release(&mut self, start: FsBlock, count: u64) {
        self.work.freed.push((start, count));
    }

    /// Continues a long operation in the next transaction, if the current transaction is full. The changes made so far must leave the
    /// volume consistent.
    ///
    /// # Errors
    /// `ReadOnly`, and the errors of a commit.
    pub(crate) fn renew(&mut self, credits: u32) -> Result<()> {
        self.leave();
        let credits = credits + self.fs.quota_credits();
        let credits = credits.min(self.writing.transactions.limit());
        let (member, held) = join(self.fs, self.writing, credits)?;
        (self.member, self.credits, self.changed, self.held) = (member, credits, false, Some(held));
        Ok(())
    }

    /// Records that a failed step has left no changes. After this call, the error of the operation does not abort the journal, whatever the
    /// kind of the error.
    pub(crate) fn took_back(&mut self) {
        self.taken_back = true;
    }

    /// Returns whether [`took_back`](Self::took_back) was called, and clears this record. Code that continues after a failed step must call
    /// this function.
    pub(crate) fn was_taken_back(&mut self) -> bool {
        std::mem::take(&mut self.taken_back)
    }

    /// The transaction of this handle.
    pub(crate) fn tid(&self) -> Tid {
        self.member.tid()
    }

    /// The number of blocks that the handle may still change.
    pub(crate) fn credits_left(&self) -> u32 {
        self.credits.saturating_sub(self.work.blocks.len() as u32)
    }

    /// The current time, for time stamps.
    pub(crate) fn now(&self) -> Timestamp {
        self.writing.clock.now()
    }

    fn leave(&mut self) {
        if self.held.take().is_some() {
            self.writing.transactions.leave(self.credits, std::mem::take(&mut self.work));
        }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        // After a panic, the operation is incomplete and must not be committed.
        if self.changed {
            self.fs
                .abort(&Error::io(Errno::EIO, "an operation panicked while it changed metadata"));
        }
        self.leave();
    }
}

impl ErrorKind {
    /// Whether errors of this kind are expected results. An operation that returns such an error has undone its changes.
    fn is_expected(self) -> bool {
        !matches!(self, Self::Io(_) | Self::Corrupt | Self::LimitExceeded)
    }
}

impl Error {
    /// The error for a volume that does not accept writes.
    pub(crate) fn read_only(why: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::ReadOnly, why)
    }
}
