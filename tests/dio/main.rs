//! Tests of direct I/O: requests of every size, alignment and flag, with each engine. The devices of the tests work, are full, or fail.

#[path = "../common/mod.rs"]
mod common;

mod dio_alignment;
mod dio_async;
mod dio_faults;
mod dio_generic;
mod dio_nowait;
mod dio_simple;
mod dio_threads;
mod dio_writes;
mod kernel_dio;
mod longer_requests;
mod read_many;
mod stable;
mod stranger;
