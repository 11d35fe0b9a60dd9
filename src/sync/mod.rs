//! Types for synchronisation between threads that write: locks, condition variables, counters, and the cache.
//!
//! In normal builds, these types are from parking_lot, the standard library and quick_cache. The condition variable is part of this crate.
//! With `--cfg shuttle`, the types are those of [a model checker](https://docs.rs/shuttle), with the same interface. `./x shuttle` runs the
//! same code under schedules that the checker chooses.

#[cfg(not(shuttle))]
mod condvar;
#[cfg(shuttle)]
mod modelled;

#[cfg(shuttle)]
pub(crate) use modelled::{
    Cache, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, atomic, gate, thread_local,
    yield_now,
};

#[cfg(all(test, shuttle))]
pub(crate) use modelled::{explore, run};

#[cfg(not(shuttle))]
pub(crate) use {
    condvar::Condvar,
    parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard},
    quick_cache::sync::Cache,
    std::sync::atomic,
    std::thread::yield_now,
};

#[cfg(not(shuttle))]
pub(crate) use std::thread_local;

/// A read-write lock without data. A guard owns a reference to the lock.
#[cfg(not(shuttle))]
pub(crate) mod gate {
    use parking_lot::{ArcRwLockReadGuard, ArcRwLockWriteGuard, RawRwLock, RwLock};

    pub(crate) type Gate = RwLock<()>;
    pub(crate) type Shared = ArcRwLockReadGuard<RawRwLock, ()>;
    pub(crate) type Exclusive = ArcRwLockWriteGuard<RawRwLock, ()>;
}
