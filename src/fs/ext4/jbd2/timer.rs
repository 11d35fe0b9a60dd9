//! The timer that commits changes after some seconds without a sync, and keeps room in the log.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{Errno, Error, Result};
use crate::fs::ext4::Ext4;
use crate::fs::ext4::operation::Patience;

/// The longest time that lazy time stamps wait for a transaction. Linux lets them wait for half a day, to spare disks that sleep. A disk
/// whose files are overwritten does not sleep, and a commit in half a minute costs it little. A backup of changed files misses no more than
/// that after a crash.
const STAMPS_WAIT: Duration = Duration::from_secs(30);

/// The interval at which recorded writes set a time stamp, unless a caller asks before.
const STAMPS_LEFT: Duration = Duration::from_secs(1);

/// A thread that commits at intervals, until this is dropped. It holds a reference to the volume only during a commit.
pub struct CommitTimer {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    stopped: Mutex<bool>,
    told: Condvar,
}

impl CommitTimer {
    /// Commits the transactions of a volume, each at most `interval` after its beginning.
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
    fn run(&self, fs: &Weak<Ext4>, interval: Duration) {
        let mut stopped = self.stopped.lock();
        let (mut stamps_stored, mut committed) = (Instant::now(), Instant::now());
        while !*stopped {
            self.told.wait_for(&mut stopped, interval.min(STAMPS_LEFT));
            // A failure aborts the journal, and the next caller gets the error.
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
                // The file's next sync reports a failed conversion.
                let _ = fs.convert_all(Patience::None);
                let _ = fs.store_errors();
                let _ = fs.commit_running().and_then(|()| fs.make_room());
            }
        }
    }
}

impl Drop for CommitTimer {
    fn drop(&mut self) {
        *self.stop.stopped.lock() = true;
        self.stop.told.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
