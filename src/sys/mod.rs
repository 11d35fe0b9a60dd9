//! The only unsafe code of the crate: memory to which the kernel may write, rings, mappings, and system calls without a safe wrapper. A
//! comment at each use proves its safety. The exported functions are safe to call in any order.
#![allow(unsafe_code)]

pub(crate) mod barrier;
mod buffer;
mod cachestat;
mod clock;
mod copy;
mod entry;
mod fifo;
pub(crate) mod file_locks;
mod ioctl;
pub(crate) mod lease;
mod mapping;
mod memory;
pub(crate) mod nvme;
mod readiness;
mod registered;
mod ring;
mod slots;
mod ticks;
mod tuples;

pub use buffer::{Buffer, MemoryOwner};
pub use cachestat::PageCache;
pub(crate) use clock::coarse_time;
pub(crate) use copy::copy;
#[allow(unreachable_pub, reason = "`AnyQueue` names these types")]
pub use entry::{Narrow, Wide};
pub(crate) use entry::{Request, RingFile, RingOp, Width};
pub(crate) use fifo::Fifo;
pub(crate) use ioctl::{
    FiemapExtent, FiemapFlags, discard, fiemap, has_reflink, inode_generation, is_read_only,
    is_realtime, loop_backing, metadata_size, zero_out,
};
pub(crate) use mapping::Mapping;
pub use memory::Memory;
pub(crate) use ring::{Ring, RingOptions, Transfer};
pub(crate) use ticks::{rate, ticks};
pub(crate) use tuples::{Checks, Passenger, Tuples};
