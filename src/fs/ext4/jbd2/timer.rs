//! The timer thread. It commits changes that no sync has committed for some seconds, and it frees space in the log.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Errno, Error, Result};
use crate::fs::ext4::Ext4;
use crate::fs::ext4::operation::Patience;

/// The maximum time for which lazy time stamps wait in memory for a transaction. Linux waits up to half a day, so that idle disks can
/// sleep. ironmap waits 30 seconds: a disk whose files are overwritten does not sleep, and one commit every 30 seconds costs little. A
/// crash loses the time stamps of the last 30 seconds at most. A backup that selects files by time stamp can then miss the changes of these
/// 30 seconds, but no earlier changes.
const STAMPS_WAIT: Duration = Duration::from_secs(30);

/// The interval at which the timer sets the time stamps of files that were written without an update of the time stamps. A call that reads
/// the time stamps of such a file first sets them.
const STAMPS_LEFT: Duration = Duration::from_secs(1);

/// A thread that commits at intervals until the `CommitTimer` is dropped. The thread keeps the volume open only during a commit.
pub struct CommitTimer {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

/// The lock and the condition variable are from std and not from parking_lot, because the program may fork. While a thread waits in
/// parking_lot, a global list points into the stack of this thread. After a fork, the child has the list but not the thread, and may use
/// the memory of the stack for other data.
#[derive(Default)]
struct Stop {
    stopped: Mutex<bool>,
    told: Condvar,
}

impl CommitTimer {
    /// Starts a thread that commits each transaction of a volume at most `interval` after the transaction began.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub fn start(fs: &Arc<Ext4>, interval: Duration) -> Result<Self> {
        let (fs, stop) = (Arc::downgrade(fs), Arc::new(Stop::default()));
        let own = Arc::clone(&stop);
        let run = move || own.run(&fs, interval);
        let thread = std::thread::Builder::new().name("ironmap-commit".to_owned()).spawn(run);
        let thread = thread.map_err(|error| {
            Error::io(Errno(error.raw_os_error().unwrap_or(Errno::EAGAIN.0)), "thread")
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Stop {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, fs: &Weak<Ext4>, interval: Duration) {
        let mut stopped = self.lock();
        let (mut stamps_stored, mut committed) = (Instant::now(), Instant::now());
        while !*stopped {
            let waited = self.told.wait_timeout(stopped, interval.min(STAMPS_LEFT));
            (stopped, _) = waited.unwrap_or_else(PoisonError::into_inner);
            // Errors of these calls are ignored here. A failure aborts the journal, and the program gets the error from its next call.
            if let Some(fs) = fs.upgrade().filter(|_| !*stopped) {
                let _ = fs.check_held();
                fs.check_durable();
                fs.leave_stamps();
                if committed.elapsed() < interval {
                    continue;
                }
                committed = Instant::now();
                if stamps_stored.elapsed() >= STAMPS_WAIT && fs.store_stamps().is_ok() {
                    stamps_stored = Instant::now();
                }
                // If a conversion of unwritten extents fails, the next sync of the file reports the error.
                let _ = fs.convert_all(Patience::None);
                let _ = fs.store_errors();
                let _ = fs.commit_running().and_then(|()| fs.make_room());
            }
        }
    }
}

impl Drop for CommitTimer {
    fn drop(&mut self) {
        *self.stop.lock() = true;
        self.stop.told.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
