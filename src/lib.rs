//! Direct I/O on the files of a Linux file system, from user space, at the speed of the raw device.

pub mod bio;
pub mod device;
pub mod error;
pub mod fs;
pub mod iomap;
mod sys;
pub mod units;

pub use error::{Errno, Error, ErrorKind, Result};
