//! File systems: each gives the [map](crate::iomap::MapFile) of its files, and its name space.

pub mod ext4;
pub mod host;
mod types;

pub use types::{DirEntry, FileType, Stat, Timestamp, Xattr};
