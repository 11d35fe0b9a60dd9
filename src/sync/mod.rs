//! Types for synchronisation between threads: locks, condition variables, counters, and the cache.
//!
//! In normal builds, these types come from parking_lot, the standard library and quick_cache. The condition variable is a part of this
//! crate. With `--cfg shuttle`, types of [a model checker](https://docs.rs/shuttle) with the same interface replace all of them. `./x
//! shuttle` runs the code of this crate with these types, and the checker chooses the order of the threads.

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

/// A read-write lock that protects no value. Each guard owns a reference to the lock.
#[cfg(not(shuttle))]
pub(crate) mod gate {
    use parking_lot::{ArcRwLockReadGuard, ArcRwLockWriteGuard, RawRwLock, RwLock};

    pub(crate) type Gate = RwLock<()>;
    pub(crate) type Shared = ArcRwLockReadGuard<RawRwLock, ()>;
    pub(crate) type Exclusive = ArcRwLockWriteGuard<RawRwLock, ()>;
}
