//! The locks, channels, threads and events that the pool uses.
//!
//! In normal builds, these types are from the standard library, and an event is an eventfd. With `--cfg shuttle`, they are the types of [a
//! model checker](https://docs.rs/shuttle). With these types, `./x shuttle` tests how jobs pass between tasks and threads, under schedules
//! that the checker chooses.

#[cfg_attr(not(shuttle), path = "event.rs")]
#[cfg_attr(shuttle, path = "modelled.rs")]
mod event;

pub(crate) use event::{Event, Source, source};
#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{Mutex, MutexGuard, mpsc},
    thread,
};
#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::{Mutex, MutexGuard, mpsc},
    thread,
};
