//! A condition variable that wakes all its waiters in one call.
//!
//! parking_lot's condition variable moves its waiters to the lock. Each waiter then wakes the next waiter when it gets a processor. With
//! more threads than processors, the waiters form a convoy: threads that did not wait do all the work, and threads do not share commits.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::MutexGuard;
use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::thread::futex;

/// A condition variable. A thread must change the awaited state under the lock, and notify afterwards.
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

    /// Unlocks, waits, and locks again. The call may return without a notification.
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
        // The waiter is counted and the number is read under the lock. A thread that later changes the state sees the waiter, and the
        // thread's notification changes the number.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let told = self.told.load(Ordering::Relaxed);
        // The call fails at once if the number has already changed. A signal also ends the call.
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
            // An error is ignored, because the call fails only if the address is wrong.
            let _ = futex::wake(&self.told, futex::Flags::PRIVATE, most);
        }
    }
}
