//! Synchronisation of the write side's threads: locks, conditions, counters, and the cache.
//!
//! In every build but one these are parking_lot's, the standard library's and quick_cache's, and a condition of our own. With `--cfg shuttle` they are
//! [a model checker's](https://docs.rs/shuttle) of the same shape: `./x shuttle` runs the same code under schedules of its choice.

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

/// A lock of nothing, whose guards own it.
#[cfg(not(shuttle))]
pub(crate) mod gate {
    use parking_lot::{ArcRwLockReadGuard, ArcRwLockWriteGuard, RawRwLock, RwLock};

    pub(crate) type Gate = RwLock<()>;
    pub(crate) type Shared = ArcRwLockReadGuard<RawRwLock, ()>;
    pub(crate) type Exclusive = ArcRwLockWriteGuard<RawRwLock, ()>;
}
