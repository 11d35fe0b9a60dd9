//! The interface of a file system for its users: a tree of names, and inodes with their attributes and data.
//!
//! Programs, mounts, benches and [`Volume`](crate::Volume) use a file system only through these traits. A format implements [`FileSystem`],
//! [`InodeOps`] for an inode that was read, and [`FileOps`](super::FileOps) for an open inode. A format whose volumes can be changed also
//! implements [`Writer`]. The table of [formats](super::FORMATS) contains each format. The traits are named after Linux's
//! `super_operations`, `inode_operations` and `file_operations`.
//!
//! An inode is identified by its number, which stays the same until the file is freed. The operations of a file system check no
//! permissions. A program that opens a volume has full access to all files.

use std::any::Any;

use bitflags::bitflags;

use super::check::{Progress, Report};
use super::deleted::Deleted;
use super::file_ops::Held;
use super::inode::{Inode, InodeOps};
use super::{Follow, Usage, Writer, path};
use crate::error::{Error, Result};
use crate::units::InodeNo;

bitflags! {
    /// Abilities of a file system. An operation that needs a missing ability fails with `Unsupported` or `ReadOnly`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Capabilities: u32 {
        /// The volume is open for writing: data of files can be overwritten.
        const WRITE = 0x1;
        /// Changes are durable when a [sync](FileSystem::sync) returns, and the tree is consistent after a crash.
        const JOURNAL = 0x2;
        /// Extended attributes.
        const XATTRS = 0x4;
        /// All kinds of [`Fallocate`].
        const FALLOCATE = 0x8;
        /// Project ids.
        const PROJECTS = 0x10;
        /// [Inode flags](InodeFlags) can be set.
        const FLAGS = 0x20;
        /// Metadata can change: names, sizes, attributes, the blocks of a file. Without this ability, a write can only replace existing
        /// data.
        const METADATA = 0x40;
    }
}

/// A file system on a device. Several threads can use it at the same time.
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

    /// Returns the notices since the last call, one line for each notice. A notice reports work that was skipped because of an error.
    fn take_notices(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether listings of this directory have left out names because a block of the directory is damaged. A volume that is open only for
    /// reading skips such a block, and a [notice](Self::take_notices) names it.
    fn has_lost_names(&self, _dir: InodeNo) -> bool {
        false
    }

    /// Checks all metadata in their state after recovery of the journal, and writes nothing. The check calls `progress` as it advances.
    ///
    /// # Errors
    /// A fault of the volume is not an error: the report contains it. `Unsupported` if the format has no check; the device's error if the
    /// superblock cannot be read; an error if memory cannot be allocated.
    fn check(&self, _progress: &mut dyn FnMut(Progress)) -> Result<Report> {
        Err(Error::unsupported(format!("volumes of {} cannot be checked", self.format())))
    }

    /// The deleted regular files whose block maps still exist, sorted by inode number. Nothing is written.
    ///
    /// # Errors
    /// `Unsupported` if the format cannot find deleted files; `Io`; `Corrupt`; `LimitExceeded` if the deleted files or the log exceed the
    /// limits for memory.
    fn deleted(&self) -> Result<Vec<Deleted>> {
        Err(Error::unsupported(format!("deleted files of {} cannot be found", self.format())))
    }

    /// Calls `found` with each inode of a file that is in use, in the order of the inode numbers. These inodes include files without a name
    /// in any directory, and files that were removed while they were open. Internal files, such as the journal, are omitted. If an inode or
    /// a group of inodes cannot be read, `found` gets the error, with the number of the first inode of the group.
    ///
    /// # Errors
    /// `Unsupported` if the format cannot list its inodes; the errors of `found`, which end the list.
    fn used_inodes(
        &self,
        _found: &mut dyn FnMut(InodeNo, Result<Inode>) -> Result<()>,
    ) -> Result<()> {
        Err(Error::unsupported(format!("the inodes of {} cannot be listed", self.format())))
    }

    /// From now on, inodes with a wrong checksum are used if their fields are plausible. Only a salvage calls this method. A volume that is
    /// open for writing never uses such an inode.
    #[doc(hidden)]
    fn tolerate_inodes(&self) {}

    /// The wrong checksum of an inode that is [used nevertheless](Self::tolerate_inodes).
    #[doc(hidden)]
    fn tolerated(&self, _number: InodeNo) -> Option<String> {
        None
    }

    /// The inode with this number.
    ///
    /// # Errors
    /// `NotFound` if no file has this number, or the file has no name; `Corrupt`.
    fn inode(&self, number: InodeNo) -> Result<Inode>;

    /// Returns the inode with a number that the volume itself contains, for example in a directory entry or in another inode. The format
    /// may omit the look-up in its tables of inodes.
    ///
    /// # Errors
    /// The errors of [`inode`](Self::inode).
    fn known_inode(&self, number: InodeNo) -> Result<Inode> {
        self.inode(number)
    }

    /// Reads an inode while no operation changes it. An inode without a name can be read if a program [holds](Self::hold) it. Programs call
    /// [`inspect`](#method.inspect) instead of this method.
    ///
    /// # Errors
    /// The errors of [`inode`](Self::inode), and the errors of `look`.
    fn look(
        &self,
        number: InodeNo,
        look: &mut dyn FnMut(&dyn InodeOps) -> Result<()>,
    ) -> Result<()>;

    /// Looks up a name in a directory. Waits for changes of the directory that are in progress.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NameTooLong`, `Encrypted`; `Corrupt`.
    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Inode>;

    /// The inode that a path names. The path and absolute links start at the root of the volume. In the root, `..` is the root. An empty
    /// path names the root. A path with slashes at its end must name a directory.
    ///
    /// # Errors
    /// The errors of [`lookup`](Self::lookup), with the path in the error; `Loop` for more than 40 symbolic links.
    fn resolve(&self, path: &[u8], follow: Follow) -> Result<Inode> {
        path::resolve(self, path, follow)
    }

    /// The inode that a path names, relative to a directory. An empty path names `from` itself, which can have any file type. If `from` is
    /// a symbolic link, an empty path does not follow it.
    ///
    /// # Errors
    /// The errors of [`lookup`](Self::lookup), without the path in the error; `Loop` for more than 40 symbolic links.
    fn resolve_at(&self, from: InodeNo, path: &[u8], follow: Follow) -> Result<Inode> {
        path::walk(self, from, path, follow)
    }

    /// Opens the inode that a path names, and returns its present state. If another thread may remove the file, an operation by inode
    /// number needs this handle. Without a handle, the number of a removed file can be reused.
    ///
    /// # Errors
    /// The errors of [`resolve`](Self::resolve).
    fn hold_path(&self, path: &[u8], follow: Follow) -> Result<(Held, Inode)> {
        path::open_found(|| self.resolve(path, follow), |inode| self.hold_read(inode))
    }

    /// Opens an inode. An inode that loses its last name is freed only after the returned handle is dropped.
    ///
    /// # Errors `NotFound` for an inode without names and without open handles.
    fn hold(&self, number: InodeNo) -> Result<Held>;

    /// Opens an inode that was read earlier, and returns its present state.
    ///
    /// # Errors
    /// The errors of [`hold`](Self::hold); `NotFound` also if the number was reused for another file.
    fn hold_read(&self, inode: Inode) -> Result<(Held, Inode)>;

    /// The operations that change the file system. `None` if the format does not support writes, or if its metadata never change. Programs
    /// call [`writable`](#method.writable) instead of this method.
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
        Error::read_only(format!("volumes of {} can only be read", self.format()))
    }
}

impl dyn FileSystem {
    /// Reads an inode while no operation changes it. An inode without a name can be read if a program [holds](FileSystem::hold) it. `look`
    /// may use this inode. `look` must not call the file system, because such a call would deadlock.
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
        seen.ok_or_else(|| Error::invalid("the file system did not return the inode"))
    }

    /// The operations that change the file system.
    ///
    /// # Errors
    /// `ReadOnly` if the file system has no [`Writer`]. On a volume that was opened for reading, `writable` succeeds, but each operation of
    /// the writer fails.
    pub fn writable(&self) -> Result<&dyn Writer> {
        self.writer().ok_or_else(|| self.not_written())
    }

    /// Whether the file system was opened for writing.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.capabilities().contains(Capabilities::WRITE)
    }
}
