//! The interface of a file system for its users: a tree of names, and inodes with their attributes and data.
//!
//! Programs, mounts, benches and [`Volume`](crate::Volume) use a file system only through these traits. A format implements [`FileSystem`],
//! [`InodeOps`] for an inode as it was read, and [`FileOps`] for an open one; it has a row in the table of [formats](super::FORMATS).
//! The traits' names are those of Linux: `super_operations`, `inode_operations`, `file_operations`.
//!
//! An inode is named by its number, which stays the same for the life of the file. These operations check no permissions: a program that opens a
//! volume owns it.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use bitflags::bitflags;

use super::check::{Progress, Report};
use super::file_ops::Held;
use super::inode::{Inode, InodeOps};
use super::{
    Credentials, Fallocate, Follow, InodeFlags, KeepSetId, NewFile, OnError, RenameFlags,
    SetAttributes, SetXattr, Usage, WriteCounts, path,
};
use crate::error::{Error, Result};
use crate::units::{FilePos, InodeNo};

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
/// An operation is one transaction if its size allows it: after a crash it is either done or not done. Operations that only writable formats
/// implement have a provided method here that refuses.
#[allow(unused_variables, reason = "a default method that refuses does not use its arguments")]
pub trait FileSystem: Any + Send + Sync {
    /// The name of its format, as in `mount -t`.
    fn format(&self) -> &'static str;

    /// The abilities of this file system.
    fn capabilities(&self) -> Capabilities;

    /// The inode of its root directory.
    fn root(&self) -> InodeNo;

    /// The size of the file system and its free space (`statfs`).
    fn usage(&self) -> Usage;

    /// Takes the notices since the last call, one line each: work that was skipped because of an error.
    fn take_notices(&self) -> Vec<String> {
        Vec::new()
    }

    /// Checks all metadata, as the recovery of the journal leaves them, and writes nothing. `progress` is called with the progress.
    ///
    /// # Errors
    /// Faults of the volume are no errors: the report has them. `Unsupported` for a format without a check; errors of the device at the superblock,
    /// and of memory allocation.
    fn check(&self, progress: &mut dyn FnMut(Progress)) -> Result<Report> {
        Err(Error::unsupported(format!("a check of {}", self.format())))
    }

    /// The costs of writing since the volume was opened.
    fn write_counts(&self) -> WriteCounts {
        WriteCounts::default()
    }

    /// The inode with this number.
    ///
    /// # Errors
    /// `NotFound` if no file has this number, or the file has no name; `Corrupt`.
    fn inode(&self, number: InodeNo) -> Result<Inode>;

    /// The inode with a number that the volume itself gave: the number in a directory entry, or that of an inode that was read. A format need not
    /// look up such a number in its tables of inodes.
    ///
    /// # Errors
    /// As [`inode`](Self::inode).
    fn known_inode(&self, number: InodeNo) -> Result<Inode> {
        self.inode(number)
    }

    /// Reads an inode while no operation changes it. The inode may be without a name if a program [holds](Self::hold) it. Users call
    /// [`inspect`](#method.inspect).
    ///
    /// # Errors
    /// As [`inode`](Self::inode), and the errors of `look`.
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
    /// As [`lookup`](Self::lookup), with the path in the error; `Loop` for more than 40 symbolic links.
    fn resolve(&self, path: &[u8], follow: Follow) -> Result<Inode> {
        path::resolve(self, path, follow)
    }

    /// The inode that a path names, relative to a directory. An empty path names `from` itself, which then may be any file and is not followed.
    ///
    /// # Errors
    /// As [`lookup`](Self::lookup), without the path in the error; `Loop` for more than 40 symbolic links.
    fn resolve_at(&self, from: InodeNo, path: &[u8], follow: Follow) -> Result<Inode> {
        path::walk(self, from, path, follow)
    }

    /// Opens an inode. If it loses its last name, it stays until the returned handle is dropped.
    ///
    /// # Errors
    /// `NotFound` if the inode has no name and no other handle holds it.
    fn hold(&self, number: InodeNo) -> Result<Held>;

    /// Opens an inode that was read earlier, and gives its present state.
    ///
    /// # Errors
    /// As [`hold`](Self::hold); `NotFound` also if the number belongs to another file.
    fn hold_read(&self, inode: Inode) -> Result<(Held, Inode)>;

    /// Creates a file in a directory. `permissions` are the lower twelve bits of its mode; the umask of `who` is masked out, except for a symbolic
    /// link.
    ///
    /// # Errors
    /// `Exists`, `NotADirectory`, `NameTooLong`, `NoSpace`, `Quota`, `TooManyLinks`, `NotPermitted` (an immutable directory), `ReadOnly`.
    fn create(
        &self,
        dir: InodeNo,
        name: &[u8],
        file: NewFile<'_>,
        permissions: u32,
        who: &Credentials,
    ) -> Result<InodeNo> {
        Err(self.not_written())
    }

    /// Adds a name to a file.
    ///
    /// # Errors
    /// As [`create`](Self::create); `NotPermitted` for directories.
    fn link(&self, inode: InodeNo, dir: InodeNo, name: &[u8]) -> Result<()> {
        Err(self.not_written())
    }

    /// Removes a name of a file. A file without names is freed when it is no longer open.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `NotPermitted` (immutable or append-only), `ReadOnly`.
    fn unlink(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        Err(self.not_written())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`unlink`](Self::unlink); `NotADirectory`, `NotEmpty`; `InvalidInput` for `.`.
    fn rmdir(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        Err(self.not_written())
    }

    /// Moves a name to another name or directory. A file with the new name is replaced atomically. `who` owns a whiteout.
    ///
    /// # Errors
    /// As [`create`](Self::create) and [`unlink`](Self::unlink); `CrossDevice` for a file of another project; `InvalidInput` for a directory that
    /// would move into itself, and for flags that exclude each other.
    fn rename(
        &self,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        flags: RenameFlags,
        who: &Credentials,
    ) -> Result<()> {
        Err(self.not_written())
    }

    /// Changes attributes of an inode.
    ///
    /// # Errors
    /// `NotPermitted` for an immutable or append-only file, `Unsupported` (a project on a volume without projects), `NoSpace`, `Quota`, `ReadOnly`.
    fn set_attributes(&self, number: InodeNo, set: &SetAttributes) -> Result<()> {
        Err(self.not_written())
    }

    /// Sets an inode's flags (`chattr`); other flags keep their value.
    ///
    /// # Errors
    /// `Unsupported` for a flag that cannot be changed, `ReadOnly`.
    fn set_flags(&self, number: InodeNo, flags: InodeFlags) -> Result<()> {
        Err(self.not_written())
    }

    /// Sets an extended attribute. The name includes the prefix.
    ///
    /// # Errors
    /// The errors of [`SetXattr`]; `AttributeTooBig`, `AttributeNameLength`, `Unsupported` (the prefix), `NotPermitted`, `NoSpace`, `ReadOnly`.
    fn setxattr(&self, number: InodeNo, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        Err(self.not_written())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoData` if it does not exist; as [`setxattr`](Self::setxattr).
    fn removexattr(&self, number: InodeNo, name: &[u8]) -> Result<()> {
        Err(self.not_written())
    }

    /// Sets the size of a file. A new part reads as zeros.
    ///
    /// # Errors
    /// `IsADirectory`, `FileTooLarge`, `NotPermitted`, `NoSpace`, `ReadOnly`.
    fn truncate(&self, number: InodeNo, size: u64) -> Result<()> {
        Err(self.not_written())
    }

    /// Changes the space of a range of a regular file.
    ///
    /// # Errors
    /// `InvalidInput` for an empty range, or for one of partial blocks if whole blocks are needed; `Unsupported` if the file's map does not support
    /// the operation; as [`truncate`](Self::truncate).
    fn fallocate(&self, number: InodeNo, how: Fallocate, pos: FilePos, len: u64) -> Result<()> {
        Err(self.not_written())
    }

    /// Writes through the file system's own code, without a queue: blocks and size change in one transaction. Gives the number of bytes written.
    ///
    /// # Errors
    /// `NoSpace` or `Quota` if no byte could be written (otherwise the count is short); as [`truncate`](Self::truncate).
    fn write(&self, number: InodeNo, pos: FilePos, bytes: &[u8]) -> Result<usize> {
        Err(self.not_written())
    }

    /// Removes set-id bits and capabilities, which give the users of a program the rights of its owner. Gives whether there were any.
    ///
    /// # Errors
    /// `NoSpace`, `ReadOnly`.
    fn strip_privileges(&self, number: InodeNo, keep: KeepSetId) -> Result<bool> {
        Err(self.not_written())
    }

    /// Discards all free ranges of at least `min_len` bytes on the device. Gives the sum of their lengths; 0 if the device does not support discard.
    ///
    /// # Errors
    /// `ReadOnly`; `Io`; `Corrupt`.
    fn trim(&self, min_len: u64) -> Result<u64> {
        Err(self.not_written())
    }

    /// Turns online discard on or off: freed blocks are discarded on the device once the change that frees them is durable.
    ///
    /// # Errors
    /// `ReadOnly`.
    fn set_discard(&self, on: bool) -> Result<()> {
        Err(self.not_written())
    }

    /// The reaction to an error in metadata while the volume is open for writing.
    fn on_error(&self) -> OnError {
        OnError::RemountReadOnly
    }

    /// Makes all earlier changes durable (`syncfs`).
    ///
    /// # Errors
    /// `Io`; `ReadOnly` after an earlier error. In both cases changes may be lost.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// Ends writing: all data are written home, and no recovery is needed. Further changes are refused.
    ///
    /// # Errors
    /// As [`sync`](Self::sync); `Busy` if the calling thread has requests in flight.
    fn close(&self) -> Result<()> {
        Ok(())
    }

    /// Starts a thread that commits each change at most `interval` after it was made, until the returned value is dropped. The returned value must
    /// not hold the last reference to the file system.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    fn commit_in_time(&self, interval: Duration) -> Result<Arc<dyn Any + Send + Sync>> {
        Ok(Arc::new(()))
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
    /// As [`inode`](FileSystem::inode), and the errors of `look`.
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

    /// Whether it was opened for writing.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.capabilities().contains(Capabilities::WRITE)
    }
}
