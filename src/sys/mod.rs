//! The only unsafe code of the crate: memory that the kernel may write, rings, mappings, and system calls without a safe
//! wrapper. Each use carries its proof. What leaves this module is safe to call in any order.
#![allow(unsafe_code)]

mod buffer;
mod cachestat;
mod ioctl;
pub(crate) mod lease;
mod mapping;
mod memory;
mod ring;
mod ticks;

pub use buffer::Buffer;
pub use cachestat::PageCache;
pub(crate) use ioctl::{FiemapExtent, FiemapFlags, fiemap, has_reflink, is_realtime};
pub(crate) use mapping::Mapping;
pub use memory::Memory;
pub(crate) use ring::{Ring, RingFile, RingOp, RingOptions, Transfer};
pub(crate) use ticks::{rate, ticks};
