//! File systems. [`FileSystem`] is the interface of all formats. Each format has a folder here and an entry in the table [`FORMATS`].

mod arguments;
mod block;
pub mod check;
pub(crate) mod deleted;
#[doc(hidden)] // Items of the ext4 format (`Volume::ext4`), which may change with its code.
pub mod ext4;
mod file_ops;
mod file_system;
mod formats;
#[doc(hidden)] // Leases and maps of mounted file systems, for the program and the tests.
pub mod host;
mod inode;
mod layout;
pub(crate) mod path;
mod types;
mod writer;
#[doc(hidden)] // Items of the XFS format, which may change with its code.
pub mod xfs;

pub use arguments::{
    Access, Clock, Credentials, DirCursor, Fallocate, Follow, FreeSpace, InodeFlags, KeepSetId,
    NewFile, OnError, RenameFlags, SetAttributes, SetXattr, Usage, WriteCounts,
};
#[doc(hidden)] // The traits for open files that each format implements.
pub use file_ops::{FileOps, Held};
pub use file_system::{Capabilities, FileSystem};
#[doc(hidden)] // The table of formats.
pub use formats::{
    Backup, DeviceRange, FORMATS, FindBackup, Footprint, Format, How, Open, Rescue, WantedJournal,
    uuid_text,
};
pub(crate) use formats::{block_size_on, find as find_format};
pub use inode::{Inode, InodeRef, ReadDir};
#[doc(hidden)] // The traits for inodes and listings that each format implements.
pub use inode::{InodeOps, ListDir, Listing};
pub use types::{DirEntry, FileType, Stat, Timestamp, Xattr};
pub use writer::Writer;
