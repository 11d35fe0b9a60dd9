//! Direct I/O on the files of a Linux file system, from user space, at the speed of the raw device.

pub mod bio;
pub mod device;
pub mod error;
mod file;
pub mod fs;
pub mod iomap;
pub mod location;
mod sys;
pub mod units;
mod volume;

pub use error::{Errno, Error, ErrorKind, Result};
pub use file::{File, FileOptions};
pub use location::Location;
pub use volume::{Engine, OpenOptions, Volume};
