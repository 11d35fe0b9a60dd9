//! A bio: one contiguous request to one device, and the memory that it owns until it completes.

pub use crate::sys::Buffer;
