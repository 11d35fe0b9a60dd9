//! An operation's part in the running transaction.

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
use crate::units::FsBlock;

/// The maximum number of commits to gain space.
const SPACE_ATTEMPTS: u32 = 3;

/// The changes of an operation, which are committed together. [`Operation::transact`] creates it.
pub(crate) struct Handle<'a> {
    pub(in crate::fs::ext4) fs: &'a Arc<Ext4>,
    pub(in crate::fs::ext4) writing: &'a Writing,
    member: Member,
    credits: u32,
    work: Work,
    /// The membership; `None` after the operation has left.
    held: Option<Held>,
    /// Whether anything was changed since the transaction was joined.
    changed: bool,
    /// Whether the failed step has undone its changes.
    taken_back: bool,
}

impl Operation<'_> {
    /// Changes blocks in a transaction, at most `credits` blocks. If that is more than a transaction permits, the worst case is not expected,
    /// and the operation gets a whole transaction.
    ///
    /// # Errors
    /// `ReadOnly`. The error of `work`; if it is not of an [expected](ErrorKind::is_expected) kind and a block was changed before, the volume
    /// becomes read-only, because half an operation cannot be undone.
    pub(crate) fn transact<R>(
        &self,
        credits: u32,
        work: impl FnOnce(&mut Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        let writing = self.writing;
        let credits = (credits + self.quota_credits()).min(writing.transactions.limit());
        let (member, held) = join(self, writing, credits)?;
        writing.counters.began();
        let mut handle = Handle {
            fs: self,
            writing,
            member,
            credits,
            work: Work::default(),
            held: Some(held),
            changed: false,
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
        result
    }

    /// Changes blocks as above, for work that needs space: if a commit can free enough, the work is repeated after a commit.
    ///
    /// # Errors
    /// As [`transact`](Self::transact), and `NoSpace` if a commit does not help.
    pub(crate) fn transact_for_space<R>(
        &self,
        credits: u32,
        mut work: impl FnMut(&mut Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        let alloc = &self.writing.alloc;
        for _ in 0..SPACE_ATTEMPTS {
            // This is checked before the work too: a commit can end between the failure and the second check, after which nothing is kept
            // back.
            let kept_back = alloc.commit_frees();
            match self.transact(credits, &mut work) {
                Err(error)
                    if error.kind() == ErrorKind::NoSpace
                        && (kept_back || alloc.commit_frees()) =>
                {
                    self.commit_running()?;
                }
                result => return result,
            }
        }
        self.transact(credits, work)
    }
}

/// Joins the running transaction. If it is full, a commit comes first.
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
    /// Changes a block of metadata. `change` gets the newest content and must change nothing if it fails. `change` must not change other
    /// blocks.
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

    /// Changes one part of a block, whose checksum `change` stores, so it is not verified again.
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

    /// Initialises a block that was just allocated for metadata: `fill` gets zeros. The block's content on the device is not read.
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

    /// Forgets a block of metadata that was freed: its copies in the journal must never be replayed.
    pub(crate) fn forget(&mut self, block: FsBlock) {
        self.fs.blocks.forget(block, &self.member);
        self.work.revoked.push(block);
    }

    /// Releases blocks. They cannot be allocated before the transaction is committed.
    pub(crate) fn release(&mut self, start: FsBlock, count: u64) {
        self.work.freed.push((start, count));
    }

    /// Ends this part of a long operation and continues in the next transaction, if this one is full. The changes so far must be consistent
    /// by themselves.
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

    /// Records that the step that is failing has undone its changes, or made none: its error, of any kind, does not end the volume.
    pub(crate) fn took_back(&mut self) {
        self.taken_back = true;
    }

    /// Whether that was recorded. This resets the record, so code that continues after the failure calls it once.
    pub(crate) fn was_taken_back(&mut self) -> bool {
        std::mem::take(&mut self.taken_back)
    }

    /// The transaction of this handle.
    pub(crate) fn tid(&self) -> Tid {
        self.member.tid()
    }

    /// The number of further blocks that the handle may change.
    pub(crate) fn credits_left(&self) -> u32 {
        self.credits.saturating_sub(self.work.blocks.len() as u32)
    }

    /// The time stamp for changes at present.
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
        // A panic leaves half an operation.
        if self.changed && std::thread::panicking() {
            self.fs.abort(&Error::io(Errno::EIO, "an operation panicked"));
        }
        self.leave();
    }
}

impl ErrorKind {
    /// Whether an operation that fails with this kind has undone its changes: such an error is a regular result.
    fn is_expected(self) -> bool {
        !matches!(self, Self::Io(_) | Self::Corrupt | Self::LimitExceeded)
    }
}

impl Error {
    /// The error for a volume that cannot be written.
    pub(crate) fn read_only(why: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::ReadOnly, why)
    }
}
