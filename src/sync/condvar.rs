//! A condition that wakes all its waiters in one call.
//!
//! parking_lot's condition moves its waiters to the lock, from which each wakes the next one when it gets a processor. With more threads
//! than processors that forms a convoy: threads that did not wait do all the work, and make no commit that others share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::MutexGuard;
use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::thread::futex;

/// A condition. The awaited state must be changed under the lock, and the condition notified afterwards.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    /// The number of notifications.
    told: AtomicU32,
    waiting: AtomicU32,
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Unlocks, waits, and locks again. It may return without a notification.
    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let _ = self.sleep(guard, None);
    }

    /// Unlocks, waits for at most `time`, and locks again. Returns false after a time-out.
    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> bool {
        let time =
            Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        self.sleep(guard, Some(&time)) != Err(Errno::TIMEDOUT)
    }

    fn sleep<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        time: Option<&Timespec>,
    ) -> Result<(), Errno> {
        // Both are done under the lock, so a thread that changes the state afterwards sees the waiter, and changes the number.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let told = self.told.load(Ordering::Relaxed);
        // The call also fails if the number has already changed, and for signals.
        let sleep = || futex::wait(&self.told, futex::Flags::PRIVATE, told, time);
        let result = MutexGuard::unlocked(guard, sleep);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        result
    }

    pub(crate) fn notify_one(&self) {
        self.notify(1);
    }

    pub(crate) fn notify_all(&self) {
        self.notify(i32::MAX as u32);
    }

    fn notify(&self, most: u32) {
        self.told.fetch_add(1, Ordering::Relaxed);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            // The call can fail only for a wrong address.
            let _ = futex::wake(&self.told, futex::Flags::PRIVATE, most);
        }
    }
}
