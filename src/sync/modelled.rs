//! The model checker's locks with the interface of parking_lot. Poisoning is ignored, because a panic ends the schedule and the test.

mod cache;
#[cfg(test)]
mod explore;

use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, PoisonError};
use std::time::Duration;

use shuttle::sync;

pub(crate) use self::cache::Cache;
#[cfg(test)]
pub(crate) use self::explore::{explore, run};
pub(crate) use shuttle::sync::{RwLockReadGuard, atomic};
pub(crate) use shuttle::thread::yield_now;
pub(crate) use shuttle::thread_local;

fn locked<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// The guard of the model checker's lock. The field is `None` while the checker's guard is passed to a condition variable, or while the
    /// lock is temporarily unlocked.
    held: Option<sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, held: Some(locked(self.0.lock())) }
    }
}

impl<T> MutexGuard<'_, T> {
    pub(crate) fn unlocked<R>(guard: &mut Self, work: impl FnOnce() -> R) -> R {
        guard.held = None;
        let result = work();
        guard.held = Some(locked(guard.mutex.0.lock()));
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect("the guard is lent by `&mut` only")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("the guard is lent by `&mut` only")
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.held = guard.held.take().map(|held| locked(self.0.wait(held)));
    }

    /// The model has no clock, so a random choice decides between a notification and a time-out. The wait ends when the scheduler runs this
    /// thread again.
    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _time: Duration) -> bool {
        MutexGuard::unlocked(guard, yield_now);
        shuttle::rand::Rng::gen_bool(&mut shuttle::rand::thread_rng(), 0.5)
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        locked(self.0.read())
    }

    pub(crate) fn write(&self) -> sync::RwLockWriteGuard<'_, T> {
        locked(self.0.write())
    }
}

/// A read-write lock that protects no value. Each guard owns a reference to the lock.
pub(crate) mod gate {
    use std::sync::Arc;

    use super::{Condvar, Mutex};

    #[derive(Default)]
    pub(crate) struct Gate {
        within: Mutex<Within>,
        left: Condvar,
    }

    #[derive(Default)]
    struct Within {
        shared: u32,
        exclusive: bool,
    }

    pub(crate) struct Shared(Arc<Gate>);
    pub(crate) struct Exclusive(Arc<Gate>);

    impl Gate {
        pub(crate) fn read_arc(self: &Arc<Self>) -> Shared {
            let mut within = self.within.lock();
            while within.exclusive {
                self.left.wait(&mut within);
            }
            within.shared += 1;
            Shared(Arc::clone(self))
        }

        pub(crate) fn try_read_arc(self: &Arc<Self>) -> Option<Shared> {
            let mut within = self.within.lock();
            if within.exclusive {
                return None;
            }
            within.shared += 1;
            Some(Shared(Arc::clone(self)))
        }

        pub(crate) fn try_write_arc(self: &Arc<Self>) -> Option<Exclusive> {
            let mut within = self.within.lock();
            if within.exclusive || within.shared > 0 {
                return None;
            }
            within.exclusive = true;
            Some(Exclusive(Arc::clone(self)))
        }

        pub(crate) fn write_arc(self: &Arc<Self>) -> Exclusive {
            let mut within = self.within.lock();
            while within.exclusive || within.shared > 0 {
                self.left.wait(&mut within);
            }
            within.exclusive = true;
            Exclusive(Arc::clone(self))
        }
    }

    impl Drop for Shared {
        fn drop(&mut self) {
            self.0.within.lock().shared -= 1;
            self.0.left.notify_all();
        }
    }

    impl Drop for Exclusive {
        fn drop(&mut self) {
            self.0.within.lock().exclusive = false;
            self.0.left.notify_all();
        }
    }
}
