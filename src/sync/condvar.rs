//! A condition that wakes its waiters up all at once.
//!
//! parking_lot's hands them to the lock, from where each wakes the next one up when it gets a processor. With more threads than
//! processors that is a convoy: threads that did not wait do all the work meanwhile, and make no commit that others share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::MutexGuard;
use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::thread::futex;

/// The awaited state must be changed under the lock, and the condition told afterwards.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    /// How often it was told.
    told: AtomicU32,
    waiting: AtomicU32,
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Unlocks, waits, and locks again. May return for nothing.
    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let _ = self.sleep(guard, None);
    }

    /// The same for a time at most. Says whether that is not over.
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
        // Both under the lock: a thread that changes the state afterwards sees that another waits, and changes the number.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let told = self.told.load(Ordering::Relaxed);
        // Fails also where the number is another one already, and for signals.
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
            // Nothing else than a wrong address makes it fail.
            let _ = futex::wake(&self.told, futex::Flags::PRIVATE, most);
        }
    }
}
