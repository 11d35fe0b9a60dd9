//! Tests of joins, leaves, commits and aborts under the schedules of a model checker.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use shuttle::thread;

use super::tid::Tid;
use super::transactions::{Joined, Transactions, Work};
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::sync::explore;
use crate::units::FsBlock;

/// The number of blocks that a transaction may change. This number is enough for two operations.
const LIMIT: u32 = 4;
const CREDITS: u32 = 2;

/// The transaction protocol, and a record of its effects. The lock of `seen` is a lock that the model checker does not control. This is
/// possible because no thread waits while it holds this lock.
struct Journal {
    transactions: Transactions,
    seen: Mutex<Seen>,
    /// The transaction whose write fails.
    fails: Option<Tid>,
}

#[derive(Default)]
struct Seen {
    /// The number of operations in each transaction.
    within: BTreeMap<Tid, u32>,
    /// The changes of each transaction.
    changed: BTreeMap<Tid, Vec<FsBlock>>,
    frozen: Tid,
    writing: bool,
    /// The number of writes that have begun.
    begun: u32,
    written: Tid,
    /// The first transaction that must never be written, because the journal was aborted.
    aborted: Option<Tid>,
}

impl Journal {
    fn new(fails: Option<Tid>) -> Arc<Self> {
        let seen = Mutex::default();
        Arc::new(Self { transactions: Transactions::new(LIMIT), seen, fails })
    }

    /// Runs an operation that changes one block. If `aborts` is set, the operation aborts the journal before it leaves the transaction.
    /// Returns the operation's transaction.
    fn operate(&self, block: FsBlock, aborts: bool) -> Result<Tid> {
        let tid = loop {
            match self.transactions.join(CREDITS)? {
                Joined::In(member) => break member.tid(),
                Joined::Full(tid) => self.commit(tid)?,
            }
        };
        {
            let mut seen = self.seen.lock().unwrap();
            assert!(tid > seen.frozen, "{tid:?} got an operation after it was frozen");
            *seen.within.entry(tid).or_default() += 1;
            seen.changed.entry(tid).or_default().push(block);
        }
        thread::yield_now();
        if aborts {
            self.seen.lock().unwrap().aborted.get_or_insert(tid);
            self.transactions.abort(&Error::io(Errno::EIO, "half an operation"));
        }
        *self.seen.lock().unwrap().within.get_mut(&tid).unwrap() -= 1;
        self.transactions.leave(CREDITS, Work { blocks: vec![block], ..Work::default() });
        Ok(tid)
    }

    fn commit(&self, tid: Tid) -> Result<()> {
        let before = self.seen.lock().unwrap().begun;
        let result = self.transactions.commit(
            tid,
            |tid, work| self.freeze(tid, work),
            |tid, work, ()| self.write(tid, &work),
        );
        if let Ok(is_behind) = result {
            let seen = self.seen.lock().unwrap();
            assert!(
                seen.written >= tid,
                "{tid:?} must be durable, but only {:?} is written",
                seen.written
            );
            assert!(!is_behind || seen.begun > before, "{tid:?} was written when the call began");
        }
        result.map(drop)
    }

    fn freeze(&self, tid: Tid, work: &Work) {
        self.seen.lock().unwrap().frozen = tid;
        assert!(work.blocks.len() as u32 <= LIMIT, "{tid:?} is too large");
        for _ in 0..2 {
            let within: u32 = self.seen.lock().unwrap().within.values().sum();
            assert_eq!(within, 0, "{tid:?} is frozen while operations run");
            thread::yield_now();
        }
    }

    fn write(&self, tid: Tid, work: &Work) -> Result<()> {
        {
            let mut seen = self.seen.lock().unwrap();
            assert!(
                !std::mem::replace(&mut seen.writing, true),
                "two commits write at the same time"
            );
            seen.begun += 1;
            assert_eq!(tid.0, seen.written.0 + 1, "commits are written in order");
            assert!(
                seen.aborted.is_none_or(|from| tid < from),
                "{tid:?} contains half an operation"
            );
            let (mut all, mut blocks) =
                (seen.changed.remove(&tid).unwrap_or_default(), work.blocks.clone());
            all.sort_unstable();
            blocks.sort_unstable();
            assert_eq!(all, blocks, "{tid:?} contains exactly the changes of its operations");
        }
        thread::yield_now();
        let mut seen = self.seen.lock().unwrap();
        seen.writing = false;
        if self.fails == Some(tid) {
            seen.aborted.get_or_insert(tid);
            return Err(Error::io(Errno::EIO, "the log"));
        }
        seen.written = tid;
        Ok(())
    }

    /// Runs operations, each followed by a sync. Before an abort, each operation and each sync must succeed.
    fn work(&self, first: u64, operations: u64, aborts: bool) {
        for block in first..first + operations {
            let done = self.operate(FsBlock(block), aborts).and_then(|tid| {
                let newest = self.transactions.newest();
                assert!(newest >= tid, "the newest transaction, {newest:?}, is older than {tid:?}");
                self.commit(newest)
            });
            if let Err(error) = done {
                assert!(matches!(error.kind(), ErrorKind::ReadOnly | ErrorKind::Io(_)), "{error}");
                assert!(self.seen.lock().unwrap().aborted.is_some(), "{error}");
            }
        }
    }
}

fn run(journal: &Arc<Journal>, threads: u64, aborts: Option<u64>) {
    let spawn = |number: u64| {
        let journal = Arc::clone(journal);
        thread::spawn(move || journal.work(10 * number, 2, aborts == Some(number)))
    };
    let threads: Vec<_> = (0..threads).map(spawn).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_commit_has_all_that_its_transaction_did_and_nothing_else() {
    explore(1, || {
        let journal = Journal::new(None);
        run(&journal, 4, None);
        let seen = journal.seen.lock().unwrap();
        assert!(seen.changed.is_empty(), "all was synced");
        assert_eq!(journal.transactions.newest(), seen.written);
    });
}

#[test]
fn half_an_operation_is_never_committed_and_blocks_no_thread() {
    explore(1, || {
        let journal = Journal::new(None);
        run(&journal, 3, Some(1));
        assert!(
            journal.transactions.join(1).is_err_and(|error| error.kind() == ErrorKind::ReadOnly)
        );
    });
}

#[test]
fn a_commit_that_fails_is_the_last() {
    explore(1, || {
        let journal = Journal::new(Some(Tid(2)));
        run(&journal, 3, None);
    });
}
