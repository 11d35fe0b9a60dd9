//! A condition variable that wakes all waiting threads in one call.
//!
//! parking_lot's condition variable moves its waiting threads to the lock. Each of these threads wakes the next one when it gets a
//! processor. This takes long if there are more threads than processors. In the meantime, threads that did not wait do all the work, so
//! threads do not share commits.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::MutexGuard;
use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::thread::futex;

/// A condition variable. A thread must change the awaited state under the lock, and then call a notify method.
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

    /// Unlocks, waits for at most `time`, and locks again. Returns false if the time has passed without a notification.
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
        // The thread still holds the lock. It registers as waiting, and reads the number of notifications. Another thread can change the
        // awaited state only after the lock is released. The other thread then sees a waiting thread, and its notification changes the
        // number.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let told = self.told.load(Ordering::Relaxed);
        // If the number has changed since it was read, the call fails immediately. A signal also ends the call.
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
            // The error is ignored, because the call fails only for an invalid address.
            let _ = futex::wake(&self.told, futex::Flags::PRIVATE, most);
        }
    }
}
