//! The interface of a file system for its users: a tree of names, and inodes with their attributes and data.
//!
//! Programs, mounts, benches and [`Volume`](crate::Volume) use a file system only through these traits. A format implements
//! [`FileSystem`]; [`InodeOps`] for an inode that was read; [`FileOps`](super::FileOps) for an open inode; and [`Writer`] if volumes can be changed. Each
//! format has a row in the table of [formats](super::FORMATS). The traits' names are those of Linux: `super_operations`,
//! `inode_operations`, `file_operations`.
//!
//! An inode is named by its number, which stays the same for the life of the file. These operations check no permissions, because a
//! program that opens a volume has full access to it.

use std::any::Any;

use bitflags::bitflags;

use super::check::{Progress, Report};
use super::file_ops::Held;
use super::inode::{Inode, InodeOps};
use super::{Follow, Usage, Writer, path};
use crate::error::{Error, Result};
use crate::units::InodeNo;

bitflags! {
    /// Abilities of a file system. An operation without its ability fails with `Unsupported` or `ReadOnly`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Capabilities: u32 {
        /// The volume is open for writing: data of files can be overwritten.
        const WRITE = 0x1;
        /// Changes survive a crash after a [sync](FileSystem::sync) returns, and a crash leaves the tree consistent.
        const JOURNAL = 0x2;
        /// Extended attributes.
        const XATTRS = 0x4;
        /// All kinds of [`Fallocate`].
        const FALLOCATE = 0x8;
        /// Project ids.
        const PROJECTS = 0x10;
        /// [Inode flags](InodeFlags) can be set.
        const FLAGS = 0x20;
        /// Metadata can change: names, sizes, attributes, the blocks of a file. Without this ability a write must stay within the data of a file.
        const METADATA = 0x40;
    }
}

/// A file system on a device. Threads share it.
///
/// A file system that can be changed also provides a [`Writer`].
pub trait FileSystem: Any + Send + Sync {
    /// The name of the format, as in `mount -t`.
    fn format(&self) -> &'static str;

    /// The abilities of this file system.
    fn capabilities(&self) -> Capabilities;

    /// The inode of the root directory.
    fn root(&self) -> InodeNo;

    /// The size of the file system and its free space (`statfs`).
    fn usage(&self) -> Usage;

    /// Takes the notices since the last call, one line each. A notice reports work that was skipped because of an error.
    fn take_notices(&self) -> Vec<String> {
        Vec::new()
    }

    /// Checks all metadata in their state after recovery of the journal, and writes nothing. The check calls `progress` as it advances.
    ///
    /// # Errors
    /// Faults of the volume are in the report and are not errors. `Unsupported` for a format without a check; errors of the device at the
    /// superblock, and of memory allocation.
    fn check(&self, _progress: &mut dyn FnMut(Progress)) -> Result<Report> {
        Err(Error::unsupported(format!("a check of {}", self.format())))
    }

    /// The inode with this number.
    ///
    /// # Errors
    /// `NotFound` if no file has this number, or the file has no name; `Corrupt`.
    fn inode(&self, number: InodeNo) -> Result<Inode>;

    /// The inode with a number that comes from the volume itself: from a directory entry, or from an inode that was read. A format need not
    /// look up such a number in its tables of inodes.
    ///
    /// # Errors
    /// The errors of [`inode`](Self::inode).
    fn known_inode(&self, number: InodeNo) -> Result<Inode> {
        self.inode(number)
    }

    /// Reads an inode while no operation changes it. The inode may be without a name if a program [holds](Self::hold) it. Users call
    /// [`inspect`](#method.inspect).
    ///
    /// # Errors
    /// The errors of [`inode`](Self::inode), and the errors of `look`.
    fn look(
        &self,
        number: InodeNo,
        look: &mut dyn FnMut(&dyn InodeOps) -> Result<()>,
    ) -> Result<()>;

    /// The inode of a name in a directory. Waits for running changes of the directory.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NameTooLong`, `Encrypted`; `Corrupt`.
    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Inode>;

    /// The inode that a path names. The path and absolute links start at the root of the volume; `..` of the root is the root; an empty path is the
    /// root. A path with slashes at its end must name a directory.
    ///
    /// # Errors
    /// The errors of [`lookup`](Self::lookup), with the path in the error; `Loop` for more than 40 symbolic links.
    fn resolve(&self, path: &[u8], follow: Follow) -> Result<Inode> {
        path::resolve(self, path, follow)
    }

    /// The inode that a path names, relative to a directory. An empty path names `from` itself, of any file type; if it is a symbolic link,
    /// the link is not followed.
    ///
    /// # Errors
    /// The errors of [`lookup`](Self::lookup), without the path in the error; `Loop` for more than 40 symbolic links.
    fn resolve_at(&self, from: InodeNo, path: &[u8], follow: Follow) -> Result<Inode> {
        path::walk(self, from, path, follow)
    }

    /// Opens an inode. If it loses its last name, it stays until the returned handle is dropped.
    ///
    /// # Errors
    /// `NotFound` if the inode has no name and no other handle holds it.
    fn hold(&self, number: InodeNo) -> Result<Held>;

    /// Opens an inode that was read earlier, and returns its present state.
    ///
    /// # Errors
    /// The errors of [`hold`](Self::hold); `NotFound` also if the number belongs to another file.
    fn hold_read(&self, inode: Inode) -> Result<(Held, Inode)>;

    /// The operations that change the file system; `None` for a format that is only read, or whose metadata never
    /// change. Users call [`writable`](#method.writable).
    fn writer(&self) -> Option<&dyn Writer> {
        None
    }

    /// Makes all earlier changes durable (`syncfs`).
    ///
    /// # Errors
    /// `Io`; `ReadOnly` after an earlier error. In both cases changes may be lost.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// Ends writing: writes all data to their final locations, so that the next open needs no recovery. Further changes are refused.
    ///
    /// # Errors
    /// The errors of [`sync`](Self::sync); `Busy` if the calling thread has requests in flight.
    fn close(&self) -> Result<()> {
        Ok(())
    }

    /// The error for a change that this format does not implement.
    #[doc(hidden)]
    fn not_written(&self) -> Error {
        Error::read_only(format!("{} is only read", self.format()))
    }
}

impl dyn FileSystem {
    /// Reads an inode while no operation changes it. The inode may be without a name if a program [holds](FileSystem::hold) it. `look` may use this
    /// inode, but must not call the file system: the call would deadlock.
    ///
    /// # Errors
    /// The errors of [`inode`](FileSystem::inode), and the errors of `look`.
    pub fn inspect<T>(
        &self,
        number: InodeNo,
        look: impl FnOnce(&dyn InodeOps) -> Result<T>,
    ) -> Result<T> {
        let (mut look, mut seen) = (Some(look), None);
        self.look(number, &mut |inode| {
            seen = look.take().map(|look| look(inode)).transpose()?;
            Ok(())
        })?;
        seen.ok_or_else(|| Error::invalid("a file system did not show the inode"))
    }

    /// The operations that change the file system.
    ///
    /// # Errors
    /// `ReadOnly` if the file system has no [`Writer`]. On a volume that was opened for reading, each operation of the writer fails
    /// instead.
    pub fn writable(&self) -> Result<&dyn Writer> {
        self.writer().ok_or_else(|| self.not_written())
    }

    /// Whether the file system was opened for writing.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.capabilities().contains(Capabilities::WRITE)
    }
}
