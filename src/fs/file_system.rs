//! A file system for its users: a tree of names, and inodes with their attributes and data.
//!
//! Programs, mounts, benches and [`Volume`](crate::Volume) know a file system by these traits alone. A format implements [`FileSystem`],
//! [`InodeOps`] for an inode as it was read, and [`FileOps`] for one that is open; it has a row in the table of [formats](super::FORMATS).
//! The traits' names are those of Linux: `super_operations`, `inode_operations`, `file_operations`.
//!
//! Inodes are named by their numbers, which stay as long as the file does. Nothing here looks at permissions: a program that opens a volume owns it.

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
    /// Abilities of a file system. An operation without its ability gives `Unsupported` or `ReadOnly`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Capabilities: u32 {
        /// It is open for writing: data of files can be overwritten.
        const WRITE = 0x1;
        /// A [sync](FileSystem::sync) that has returned survives a crash, and a crash leaves the tree whole.
        const JOURNAL = 0x2;
        /// Extended attributes.
        const XATTRS = 0x4;
        /// [`Fallocate`], all kinds of it.
        const FALLOCATE = 0x8;
        /// Project ids.
        const PROJECTS = 0x10;
        /// [Inode flags](InodeFlags) can be set.
        const FLAGS = 0x20;
        /// Metadata can change: names, sizes, attributes, the blocks of a file. Without it a write stays within the data that a file has.
        const METADATA = 0x40;
    }
}

/// A file system on a device. Shared by threads.
///
/// An operation is one transaction where its size allows: a crash leaves it done or not done. Operations that only a format for writing has
/// has a provided method here that refuses.
#[allow(unused_variables, reason = "a default method that refuses does not use its arguments")]
pub trait FileSystem: Any + Send + Sync {
    /// The name of its format, as `mount -t` knows it.
    fn format(&self) -> &'static str;

    /// Its abilities.
    fn capabilities(&self) -> Capabilities;

    /// The inode of its root directory.
    fn root(&self) -> InodeNo;

    /// How large it is, and how much of it is free (`statfs`).
    fn usage(&self) -> Usage;

    /// Takes the notices since the last call, a line each: work that was skipped or left undone for an error.
    fn take_notices(&self) -> Vec<String> {
        Vec::new()
    }

    /// Checks all metadata, as the recovery of the journal leaves them; nothing is written. `progress` is told how far it is.
    ///
    /// # Errors
    /// No error for faults of the volume: the report has them. `Unsupported` for a format without a check; errors of the device at the
    /// superblock, and of memory allocation.
    fn check(&self, progress: &mut dyn FnMut(Progress)) -> Result<Report> {
        Err(Error::unsupported(format!("a check of {}", self.format())))
    }

    /// The cost of writing so far.
    fn write_counts(&self) -> WriteCounts {
        WriteCounts::default()
    }

    /// The inode with this number.
    ///
    /// # Errors
    /// `NotFound` where no file has it, or the file has no name any more; `Corrupt`.
    fn inode(&self, number: InodeNo) -> Result<Inode>;

    /// The inode with a number that the volume itself gave: that of an entry of a directory, or of an inode that was read. A format need not
    /// look such a number up in its tables of inodes.
    ///
    /// # Errors
    /// As [`inode`](Self::inode).
    fn known_inode(&self, number: InodeNo) -> Result<Inode> {
        self.inode(number)
    }

    /// Looks at an inode while nobody changes it, also at one without a name that someone [holds](Self::hold). Users call
    /// [`inspect`](#method.inspect).
    ///
    /// # Errors
    /// As [`inode`](Self::inode), and what `look` gives.
    fn look(
        &self,
        number: InodeNo,
        look: &mut dyn FnMut(&dyn InodeOps) -> Result<()>,
    ) -> Result<()>;

    /// The inode of a name in a directory. Waits for changes of the directory that are under way.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NameTooLong`, `Encrypted`; `Corrupt`.
    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Inode>;

    /// The inode that a path names. It starts at the root of the volume, and so do absolute links; `..` of the root is the root; an empty
    /// path is the root. Slashes at the end ask for a directory.
    ///
    /// # Errors
    /// As [`lookup`](Self::lookup), with the path named; `Loop` for more than 40 symbolic links.
    fn resolve(&self, path: &[u8], follow: Follow) -> Result<Inode> {
        path::resolve(self, path, follow)
    }

    /// The inode that a path names from a directory on. An empty path is that inode, which then may be any file and is not followed.
    ///
    /// # Errors
    /// As [`lookup`](Self::lookup), without the path; `Loop` for more than 40 symbolic links.
    fn resolve_at(&self, from: InodeNo, path: &[u8], follow: Follow) -> Result<Inode> {
        path::walk(self, from, path, follow)
    }

    /// Opens an inode: it stays when it loses its last name, until what this gives is dropped.
    ///
    /// # Errors
    /// `NotFound` where it has no name any more and nobody else holds it.
    fn hold(&self, number: InodeNo) -> Result<Held>;

    /// Opens the inode that was read earlier, and gives what it is now.
    ///
    /// # Errors
    /// As [`hold`](Self::hold); `NotFound` too where its number is another file's by now.
    fn hold_read(&self, inode: Inode) -> Result<(Held, Inode)>;

    /// Makes a file in a directory. `permissions` are the lower twelve bits of its mode, from which the umask of `who` is taken; a symbolic
    /// link has them whole.
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

    /// Gives a file one more name.
    ///
    /// # Errors
    /// As [`create`](Self::create); `NotPermitted` for directories.
    fn link(&self, inode: InodeNo, dir: InodeNo, name: &[u8]) -> Result<()> {
        Err(self.not_written())
    }

    /// Removes a name of a file. With its last name a file goes, once nobody has it open.
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

    /// Moves a name, given with its directory. A file that had the new name is replaced, at once. A whiteout is made as by `who`.
    ///
    /// # Errors
    /// As [`create`](Self::create) and [`unlink`](Self::unlink); `CrossDevice` for a file of another project; `InvalidInput` for a directory
    /// that would be moved into itself, and for flags that exclude each other.
    fn rename(
        &self,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        flags: RenameFlags,
        who: &Credentials,
    ) -> Result<()> {
        Err(self.not_written())
    }

    /// Changes what an inode says of its file.
    ///
    /// # Errors
    /// `NotPermitted` for an immutable or append-only file, `Unsupported` (a project on a volume without them), `NoSpace`, `Quota`, `ReadOnly`.
    fn set_attributes(&self, number: InodeNo, set: &SetAttributes) -> Result<()> {
        Err(self.not_written())
    }

    /// Sets an inode's flags (`chattr`); the others stay.
    ///
    /// # Errors
    /// `Unsupported` for a flag that cannot be changed, `ReadOnly`.
    fn set_flags(&self, number: InodeNo, flags: InodeFlags) -> Result<()> {
        Err(self.not_written())
    }

    /// Sets an extended attribute; its name with the prefix.
    ///
    /// # Errors
    /// Those of [`SetXattr`]; `AttributeTooBig`, `AttributeNameLength`, `Unsupported` (the prefix), `NotPermitted`, `NoSpace`, `ReadOnly`.
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

    /// Cuts a file, or makes it longer; the new part reads as zeros.
    ///
    /// # Errors
    /// `IsADirectory`, `FileTooLarge`, `NotPermitted`, `NoSpace`, `ReadOnly`.
    fn truncate(&self, number: InodeNo, size: u64) -> Result<()> {
        Err(self.not_written())
    }

    /// Changes the space of a range of a regular file.
    ///
    /// # Errors
    /// `InvalidInput` for an empty range, or one that is not whole blocks where that is needed; `Unsupported` where the file's map cannot
    /// have it; as [`truncate`](Self::truncate).
    fn fallocate(&self, number: InodeNo, how: Fallocate, pos: FilePos, len: u64) -> Result<()> {
        Err(self.not_written())
    }

    /// Writes by the file system's own way, without a queue: blocks and size change in one transaction. Gives how many bytes.
    ///
    /// # Errors
    /// `NoSpace` or `Quota` where nothing could be written (else a short count); as [`truncate`](Self::truncate).
    fn write(&self, number: InodeNo, pos: FilePos, bytes: &[u8]) -> Result<usize> {
        Err(self.not_written())
    }

    /// Takes away what gives a program's users its owner's rights: set-id bits and capabilities. Gives whether there were any.
    ///
    /// # Errors
    /// `NoSpace`, `ReadOnly`.
    fn strip_privileges(&self, number: InodeNo, keep: KeepSetId) -> Result<bool> {
        Err(self.not_written())
    }

    /// Tells the device of all free space in pieces of at least this many bytes. Gives their sum; 0 where the device has no use for it.
    ///
    /// # Errors
    /// `ReadOnly`; `Io`; `Corrupt`.
    fn trim(&self, min_len: u64) -> Result<u64> {
        Err(self.not_written())
    }

    /// From now on, or no longer, blocks are discarded on the device once the change that frees them is durable.
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
    /// `Io`, `ReadOnly` after an earlier error. Changes may be lost then.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// Ends writing: everything is at its place, and nothing is to be recovered. Further changes are refused.
    ///
    /// # Errors
    /// As [`sync`](Self::sync); `Busy` where the calling thread has requests in flight.
    fn close(&self) -> Result<()> {
        Ok(())
    }

    /// Commits what nobody asked for, each change at most this long after it was made, until what this gives is dropped. That must not be
    /// the last to have the file system.
    ///
    /// # Errors
    /// `Io` where there can be no more threads.
    fn commit_in_time(&self, interval: Duration) -> Result<Arc<dyn Any + Send + Sync>> {
        Ok(Arc::new(()))
    }

    /// Why a change is refused that this format has no way for.
    #[doc(hidden)]
    fn not_written(&self) -> Error {
        Error::read_only(format!("{} is only read", self.format()))
    }
}

impl dyn FileSystem {
    /// Looks at an inode while no operation changes it, also at one without a name that a program [holds](FileSystem::hold). `look` may use the inode
    /// that it is given, and must not ask the file system: it would wait for itself.
    ///
    /// # Errors
    /// As [`inode`](FileSystem::inode), and what `look` gives.
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
