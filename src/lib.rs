//! Direct I/O on the files of a Linux file system, from user space, at the speed of the raw device.

pub mod bio;
pub mod device;
pub mod dio;
pub mod error;
pub mod events;
mod file;
pub mod fs;
pub mod iomap;
pub mod location;
pub mod partition;
mod probe;
mod queue;
mod sys;
pub mod units;
mod volume;

pub use device::{Engine, QueueOptions};
pub use error::{Errno, Error, ErrorKind, Result};
pub use file::{File, FileOptions};
pub use location::Location;
pub use probe::probe;
pub use queue::Queue;
pub use volume::{OpenOptions, Volume};
