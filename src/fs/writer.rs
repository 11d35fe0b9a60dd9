//! The operations that change a file system.

use std::time::Duration;

use super::{
    Credentials, Fallocate, Held, InodeFlags, KeepSetId, NewFile, OnError, RenameFlags,
    SetAttributes, SetXattr, WriteCounts,
};
use crate::error::{Error, Result};
use crate::open_file::CommitTimer;
use crate::units::{FilePos, InodeNo};

/// A file system that can be changed. [`FileSystem::writer`](super::FileSystem::writer) returns it.
///
/// An operation is a single transaction if its size permits. After a crash, such an operation is either complete or has no effect. On a
/// volume that was opened for reading, every operation fails with `ReadOnly`. A method with a default implementation needs an
/// [ability](super::Capabilities) that some formats lack.
#[allow(
    unused_variables,
    reason = "a default method that returns an error does not use its arguments"
)]
pub trait Writer: Send + Sync {
    /// Creates a file in a directory. `permissions` are the lower twelve bits of the file's mode. The umask of `who` is removed from these
    /// bits. A symbolic link keeps all bits.
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
    ) -> Result<InodeNo>;

    /// Creates a file like [`create`](Self::create), and opens it before another thread can remove or replace it.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create).
    fn create_held(
        &self,
        dir: InodeNo,
        name: &[u8],
        file: NewFile<'_>,
        permissions: u32,
        who: &Credentials,
    ) -> Result<Held>;

    /// Adds a name to a file.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create); `NotPermitted` for a directory, and for an immutable or append-only file; `CrossDevice` for
    /// a file of another project if new entries of the directory inherit its project.
    fn link(&self, inode: InodeNo, dir: InodeNo, name: &[u8]) -> Result<()>;

    /// Removes a name of a file. A file without names is freed when its last open handle is dropped.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `NotPermitted` (immutable or append-only), `ReadOnly`.
    fn unlink(&self, dir: InodeNo, name: &[u8]) -> Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The errors of [`unlink`](Self::unlink); `NotADirectory`, `NotEmpty`; `InvalidInput` for `.`.
    fn rmdir(&self, dir: InodeNo, name: &[u8]) -> Result<()>;

    /// Moves a name to another name or directory. A file with the new name is replaced atomically. If `flags` request a whiteout, the
    /// whiteout belongs to the user `who`.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create) and [`unlink`](Self::unlink); `CrossDevice` for a file of another project; `InvalidInput` for
    /// a directory that would move into itself, and for flags that exclude each other.
    fn rename(
        &self,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        flags: RenameFlags,
        who: &Credentials,
    ) -> Result<()>;

    /// Changes attributes of an inode.
    ///
    /// # Errors
    /// `NotPermitted` for an immutable or append-only file, `Unsupported` (a project on a volume without projects), `NoSpace`, `Quota`,
    /// `ReadOnly`.
    fn set_attributes(&self, number: InodeNo, set: &SetAttributes) -> Result<()>;

    /// Sets the flags of an inode to `flags` (`chattr`). A flag that cannot be changed must have its present value in `flags`.
    ///
    /// # Errors
    /// `Unsupported` for a flag that cannot be changed, `ReadOnly`.
    fn set_flags(&self, number: InodeNo, flags: InodeFlags) -> Result<()> {
        Err(Error::unsupported("this file system does not support changes of inode flags"))
    }

    /// Sets an extended attribute. The name includes the prefix.
    ///
    /// # Errors
    /// The errors of [`SetXattr`]; `AttributeTooBig`, `AttributeNameLength`, `Unsupported` (the prefix), `NotPermitted`, `NoSpace`,
    /// `ReadOnly`.
    fn setxattr(&self, number: InodeNo, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        Err(Error::unsupported("this file system does not support changes of extended attributes"))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoData` if the attribute does not exist; the errors of [`setxattr`](Self::setxattr).
    fn removexattr(&self, number: InodeNo, name: &[u8]) -> Result<()> {
        Err(Error::unsupported("this file system does not support changes of extended attributes"))
    }

    /// Sets the size of a file. If the file becomes longer, the new part reads as zeros.
    ///
    /// # Errors
    /// `IsADirectory`, `FileTooLarge`, `NotPermitted`, `NoSpace`, `ReadOnly`.
    fn truncate(&self, number: InodeNo, size: u64) -> Result<()>;

    /// Changes the allocation of a range of a regular file.
    ///
    /// # Errors
    /// `InvalidInput` for an empty range, or for partial blocks if the operation needs whole blocks; `Unsupported` if the file's map does
    /// not support the operation; the errors of [`truncate`](Self::truncate).
    fn fallocate(&self, number: InodeNo, how: Fallocate, pos: FilePos, len: u64) -> Result<()> {
        Err(Error::unsupported("this file system does not support fallocate"))
    }

    /// Writes data without a queue. New blocks and the new size are in one transaction. Returns the number of bytes written.
    ///
    /// # Errors
    /// `NoSpace` or `Quota` if no byte could be written (otherwise the count is short); the errors of [`truncate`](Self::truncate).
    fn write(&self, number: InodeNo, pos: FilePos, bytes: &[u8]) -> Result<usize>;

    /// Removes the set-id bits and the capabilities of a file, because they give additional rights to the user of an executable file.
    /// Returns whether the file had set-id bits or capabilities.
    ///
    /// # Errors
    /// `NoSpace`, `ReadOnly`.
    fn strip_privileges(&self, number: InodeNo, keep: KeepSetId) -> Result<bool>;

    /// Discards all free ranges of at least `min_len` bytes on the device. Returns the sum of their lengths; 0 if the device does not
    /// support discard.
    ///
    /// # Errors
    /// `ReadOnly`; `Io`; `Corrupt`.
    fn trim(&self, min_len: u64) -> Result<u64> {
        Ok(0)
    }

    /// Turns online discard on or off. With online discard, the device discards freed blocks. The change that frees the blocks is made
    /// durable first.
    ///
    /// # Errors
    /// `ReadOnly`.
    fn set_discard(&self, on: bool) -> Result<()> {
        Err(Error::unsupported("this file system does not support online discard"))
    }

    /// The reaction to an error in metadata while the volume is open for writing.
    fn on_error(&self) -> OnError {
        OnError::RemountReadOnly
    }

    /// The counters of writes since the volume was opened.
    fn write_counts(&self) -> WriteCounts {
        WriteCounts::default()
    }

    /// Starts a thread that commits each change within `interval`. The thread runs until the returned value is dropped. The returned value
    /// must not own the last reference to the file system.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    fn commit_in_time(&self, interval: Duration) -> Result<CommitTimer> {
        Ok(CommitTimer::new(()))
    }
}
