//! The order of changes: at any time, at most one transaction is running and at most one is being committed.
//!
//! An operation joins the running transaction with credits: the number of blocks that the operation may change. A commit closes the running
//! transaction to new operations, waits until its operations have left, and freezes their changes. The next transaction runs while the
//! commit is written. During a commit, all threads that need a commit wait for the next commit. Many callers of `fsync` thus share a
//! commit. The next commit starts when an expected number of threads wait for it. This number is derived from the last commit. The commit
//! waits for these threads at most as long as the last commit took. Without this wait, each thread on a busy processor would make its own
//! commit.

use std::time::{Duration, Instant};

use super::tid::{Member, Tid};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::units::FsBlock;

/// The blocks that a transaction changed and freed, as block numbers without contents.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// The metadata blocks that the transaction changed, each listed once.
    pub(crate) blocks: Vec<FsBlock>,
    /// The metadata blocks that the transaction freed. Copies of these blocks in older transactions must not be replayed.
    pub(crate) revoked: Vec<FsBlock>,
    /// The ranges of data and metadata blocks that the transaction freed. These blocks can be allocated again when the transaction is
    /// committed.
    pub(crate) freed: Vec<(FsBlock, u64)>,
}

impl Work {
    fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.revoked.is_empty()
    }

    fn append(&mut self, mut other: Self) {
        self.blocks.append(&mut other.blocks);
        self.revoked.append(&mut other.revoked);
        self.freed.append(&mut other.freed);
    }
}

/// The protocol of transactions. The protocol does no I/O. The caller of [`commit`](Self::commit) writes the transaction.
#[derive(Debug)]
pub(crate) struct Transactions {
    state: Mutex<State>,
    /// There are three kinds of condition variables, so that each event wakes only the threads that wait for it. `opened`: the running
    /// transaction accepts operations again. `left`: the last operation has left the running transaction. `ended`: a commit has ended;
    /// transactions with even and with odd numbers have separate condition variables.
    opened: Condvar,
    left: Condvar,
    ended: [Condvar; 2],
    /// The maximum number of blocks that a transaction may change.
    limit: u32,
}

#[derive(Debug)]
struct State {
    running: Tid,
    work: Work,
    /// The number of operations in the running transaction.
    handles: u32,
    /// The size of the running transaction: the number of blocks already changed, plus the number of blocks that its operations may still
    /// change.
    credits: u32,
    /// Whether the running transaction accepts no more operations.
    closed: bool,
    /// Whether a thread is committing.
    committing: bool,
    committed: Tid,
    /// The number of threads that need a commit of the running transaction, and the expected number of these threads.
    waiting: u32,
    expected: u32,
    /// The maximum time for which a commit waits for more threads that need it. It is the duration of the last commit.
    patience: Duration,
    aborted: Option<String>,
}

/// A commit does not wait for more threads if at most this many threads need commits. Two such threads take turns: one executes its next
/// operation while the other commits. If a commit waited for the other thread, time would be lost, because waking a thread takes as long as
/// a commit.
const TAKE_TURNS: u32 = 2;
/// The maximum of `patience`: a commit never waits longer than this for more threads that need it.
const MOST_PATIENCE: Duration = Duration::from_millis(10);

/// The result of an operation's attempt to join the running transaction.
pub(super) enum Joined {
    /// The operation has joined this transaction.
    In(Member),
    /// The transaction is full, and must be committed first.
    Full(Tid),
}

impl Transactions {
    pub(crate) fn new(limit: u32) -> Self {
        let state = State {
            running: Tid(1),
            work: Work::default(),
            handles: 0,
            credits: 0,
            closed: false,
            committing: false,
            committed: Tid(0),
            waiting: 0,
            expected: 0,
            patience: Duration::ZERO,
            aborted: None,
        };
        let [opened, left, even, odd] = std::array::from_fn(|_| Condvar::new());
        Self { state: Mutex::new(state), opened, left, ended: [even, odd], limit }
    }

    /// The maximum number of blocks that a transaction may change.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Joins the running transaction. `credits` must not exceed the [limit](Self::limit).
    ///
    /// # Errors
    /// `ReadOnly` after an abort.
    pub(super) fn join(&self, credits: u32) -> Result<Joined> {
        let mut state = self.state.lock();
        loop {
            state.check()?;
            if state.closed {
                self.opened.wait(&mut state);
            } else if state.credits + credits > self.limit && state.credits > 0 {
                return Ok(Joined::Full(state.running));
            } else {
                state.handles += 1;
                state.credits += credits;
                return Ok(Joined::In(Member::of(state.running)));
            }
        }
    }

    /// Leaves the running transaction and returns the unused credits.
    pub(super) fn leave(&self, credits: u32, work: Work) {
        let mut state = self.state.lock();
        // An operation may have changed more blocks than its credits permit. The transaction is then larger than expected. The log
        // nevertheless has space for the additional blocks, because the limit of a transaction is less than the size of the log.
        state.credits = (state.credits - credits).saturating_add(work.blocks.len() as u32);
        state.work.append(work);
        state.handles -= 1;
        if state.handles == 0 {
            self.left.notify_all();
        }
    }

    /// The newest transaction with changes, whether or not it is committed.
    pub(crate) fn newest(&self) -> Tid {
        let state = self.state.lock();
        // The commit of a closed transaction may already have moved the changes out of `work`. `work` is then empty although the
        // transaction has changes.
        if state.work.is_empty() && state.handles == 0 && !state.closed {
            Tid(state.running.0 - 1)
        } else {
            state.running
        }
    }

    /// Whether a transaction is committed.
    pub(crate) fn is_committed(&self, tid: Tid) -> bool {
        self.state.lock().committed >= tid
    }

    /// Returns when a transaction is committed. If no other thread commits this transaction, the calling thread commits it: the thread
    /// calls `freeze` after the last operation has left and before the next transaction starts, and calls `write` while the next
    /// transaction runs. Returns true if `write` began after this call began. In this case the flush in `write` also covers all writes of
    /// the caller that ended before this call.
    ///
    /// # Errors
    /// `ReadOnly` after an abort; the error of `write`, which aborts the volume.
    pub(crate) fn commit<F>(
        &self,
        tid: Tid,
        freeze: impl FnOnce(Tid, &Work) -> F,
        write: impl FnOnce(Tid, Work, F) -> Result<()>,
    ) -> Result<bool> {
        let mut state = self.state.lock();
        let is_to_come = tid >= state.running;
        state.waiting += u32::from(tid == state.running);
        let mut patient = true;
        while state.committed < tid {
            state.check()?;
            if state.committing {
                self.ended(tid).wait(&mut state);
            } else if patient && state.waiting < state.expected {
                let patience = state.patience;
                patient = self.ended(tid).wait_for(&mut state, patience);
            } else {
                return self.lead(state, freeze, write).map(|()| true);
            }
        }
        Ok(is_to_come)
    }

    /// Commits the running transaction.
    fn lead<F>(
        &self,
        mut state: MutexGuard<'_, State>,
        freeze: impl FnOnce(Tid, &Work) -> F,
        write: impl FnOnce(Tid, Work, F) -> Result<()>,
    ) -> Result<()> {
        state.committing = true;
        state.closed = true;
        while state.handles > 0 {
            self.left.wait(&mut state);
        }
        let (done, work) = (state.running, std::mem::take(&mut state.work));
        let frozen = MutexGuard::unlocked(&mut state, || freeze(done, &work));
        let shared = std::mem::take(&mut state.waiting);
        state.running = Tid(done.0 + 1);
        state.credits = 0;
        state.closed = false;
        self.opened.notify_all();
        // An operation of this transaction may have aborted the journal before it left the transaction.
        let aborted = state.check();
        drop(state);

        let begun = Instant::now();
        let result = aborted.and_then(|()| write(done, work, frozen));
        let took = begun.elapsed();
        let mut state = self.state.lock();
        state.committing = false;
        match &result {
            Ok(()) => state.committed = done,
            Err(error) => {
                state.aborted.get_or_insert_with(|| error.to_string());
            }
        }
        let next = shared + state.waiting;
        state.expected = if next > TAKE_TURNS { next } else { 0 };
        state.patience = took.min(MOST_PATIENCE);
        self.opened.notify_all();
        self.ended(done).notify_all();
        let next = self.ended(Tid(done.0 + 1));
        match &result {
            // Wakes one of the threads that wait for the next commit. This thread then makes that commit.
            Ok(()) => next.notify_one(),
            Err(_) => next.notify_all(),
        }
        result
    }

    fn ended(&self, tid: Tid) -> &Condvar {
        &self.ended[usize::from(tid.0 % 2 == 1)]
    }

    /// Refuses all further changes and commits. Returns false if changes were already refused.
    pub(crate) fn abort(&self, why: &Error) -> bool {
        let mut state = self.state.lock();
        if state.aborted.is_some() {
            return false;
        }
        state.aborted = Some(why.to_string());
        drop(state);
        self.opened.notify_all();
        self.ended.iter().for_each(Condvar::notify_all);
        true
    }

    /// Returns `ReadOnly` with the reason after an abort.
    pub(crate) fn check(&self) -> Result<()> {
        self.state.lock().check()
    }
}

impl State {
    fn check(&self) -> Result<()> {
        match &self.aborted {
            None => Ok(()),
            Some(why) => {
                let what = format!("an earlier error made the volume read-only: {why}");
                Err(Error::new(ErrorKind::ReadOnly, what))
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn change(transactions: &Transactions) -> Tid {
        let Ok(Joined::In(member)) = transactions.join(1) else {
            panic!("the log has space for the operation")
        };
        transactions.leave(1, Work { blocks: vec![FsBlock(7)], ..Work::default() });
        member.tid()
    }

    /// A flush of the device covers only writes that have ended before the flush begins. If a write ends after the flush has begun, a sync
    /// of this write needs another flush.
    #[test]
    fn a_thread_that_joins_a_running_commit_may_miss_its_flush() {
        let transactions = Transactions::new(8);
        let first = change(&transactions);
        let (begun, has_begun) = mpsc::channel();
        let (go, may_go) = mpsc::channel();
        std::thread::scope(|scope| {
            let write = move |_, _, ()| {
                begun.send(()).unwrap();
                may_go.recv().unwrap();
                Ok(())
            };
            let leader = scope.spawn(|| transactions.commit(first, |_, _| (), write));
            has_begun.recv().unwrap();
            let follower =
                scope.spawn(|| transactions.commit(first, |_, _| (), |_, _, ()| unreachable!()));
            go.send(()).unwrap();
            assert!(leader.join().unwrap().unwrap(), "its own write");
            assert!(
                !follower.join().unwrap().unwrap(),
                "the transaction was committed after the flush"
            );
        });
        let again = transactions.commit(first, |_, _| (), |_, _, ()| unreachable!());
        assert!(!again.unwrap(), "the transaction was committed before the flush");
        let second = change(&transactions);
        assert!(transactions.commit(second, |_, _| (), |_, _, ()| Ok(())).unwrap());
    }
}
