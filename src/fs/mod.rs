//! File systems. [`FileSystem`] is what all of them are to their users; each format has a folder here and a row in the table of [`FORMATS`].

mod arguments;
pub mod ext4;
mod file_ops;
mod file_system;
mod formats;
pub mod host;
mod inode;
pub(crate) mod path;
mod types;

pub use arguments::{
    Access, Clock, Credentials, DirCursor, Fallocate, Follow, FreeSpace, InodeFlags, KeepSetId,
    NewFile, RenameFlags, SetAttributes, SetXattr, Usage, WriteCounts,
};
pub use file_ops::{FileOps, Held};
pub use file_system::{Capabilities, FileSystem};
pub(crate) use formats::find as find_format;
pub use formats::{FORMATS, FindBackup, Footprint, Format, How, Open, Rescue};
pub use inode::{Inode, InodeOps, InodeRef, ListDir, Listing, ReadDir};
pub use types::{DirEntry, FileType, Stat, Timestamp, Xattr};
