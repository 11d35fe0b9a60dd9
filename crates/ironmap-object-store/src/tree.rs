//! The operations that a volume and a directory of the host have in common. A store shows the files of such a tree as objects.
//!
//! A path is relative to the root of the tree. It does not begin or end with a slash. The path of the root is empty.

use std::io;

use bytes::Bytes;
use ironmap::fs::{FileType, Stat};
use ironmap::{File, Queue};

/// The entries of a directory, without `.` and `..`.
pub(crate) type Entries = Box<dyn Iterator<Item = io::Result<Entry>> + Send>;

pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    /// The file type in the entry; `None` if the file system does not record it there.
    pub(crate) file_type: Option<FileType>,
}

/// A value that releases a lock when it is dropped.
pub(crate) trait Locked {}

impl<T> Locked for T {}

pub(crate) trait Tree: Send + Sync {
    /// Returns the name of the tree for messages.
    fn name(&self) -> String;

    /// Opens a regular file, and returns the attributes of the file that was opened. The error is `NotFound` for any other type of file.
    fn open(&self, path: &str) -> io::Result<(File, Stat)>;

    /// Returns the attributes of a file. Symbolic links are followed. If a parent in the path is not a directory, the error is `NotFound`.
    fn stat(&self, path: &str) -> io::Result<Stat>;

    fn list(&self, dir: &str) -> io::Result<Entries>;

    /// Creates a file for a new object. The error is `AlreadyExists` if the name is taken.
    fn draft(&self, path: &str) -> io::Result<Box<dyn Draft>>;

    /// Removes the drafts (files of new objects without their final names) in this directory, except drafts that a store is writing. Errors
    /// are ignored, because the next call tries again.
    fn remove_drafts(&self, dir: &str);

    /// Creates a directory and its missing parents. The new names in existing directories are durable after the call, or after the next
    /// [`sync_dirs`](Self::sync_dirs).
    fn create_dirs(&self, dir: &str) -> io::Result<()>;

    /// Renames a file atomically. The error is `AlreadyExists` if the new name exists and `replace` is false.
    fn rename(&self, from: &str, to: &str, replace: bool) -> io::Result<()>;

    /// Removes a name that is not a directory.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Makes the names in these directories durable.
    fn sync_dirs(&self, dirs: &[&str]) -> io::Result<()>;

    /// Acquires the lock of the tree, which excludes all other stores of the same tree. The lock protects the check of an object together
    /// with the change that depends on this check.
    fn lock(&self) -> io::Result<Box<dyn Locked + '_>>;
}

/// A file that receives the content of a new object, before the object has its name.
pub(crate) trait Draft: Send + Sync {
    /// Writes all bytes, one slice after the other.
    fn write_at(&self, queue: &mut Queue, pos: u64, bytes: &[Bytes]) -> io::Result<()>;

    /// Makes the content and the size durable.
    fn sync(&self, queue: &mut Queue) -> io::Result<()>;
}

/// Returns the directory of a path. The result is empty for a name in the root.
pub(crate) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

/// Returns the path of a name in a directory.
pub(crate) fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

/// Changes the kind of an error to `NotFound` if a part of the path is not a directory, because no object has such a path. Returns any
/// other error unchanged.
pub(crate) fn absent(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotADirectory => io::Error::new(io::ErrorKind::NotFound, error),
        _ => error,
    }
}

pub(crate) fn no_object(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{path} is not a regular file"))
}
