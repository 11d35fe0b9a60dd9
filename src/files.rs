//! Opens files by their paths, in volumes and in mounted file systems.

use std::path::Path;

use crate::device::QueueOptions;
use crate::error::Result;
use crate::file::{File, FileOptions};
use crate::queue::Queue;

/// A store of files that programs open by path: a [`Volume`](crate::Volume), or the mounted file systems of a [`Host`](crate::Host).
pub trait Files {
    /// Opens a regular file.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `Loop`; `IsADirectory`, `WrongFileType`, `Encrypted`; `ReadOnly` if the options open the file for
    /// writing and the store is read-only; `InvalidInput` for options that exclude each other; for a created file `Exists`, `NameTooLong`,
    /// `NoSpace`, `Quota`.
    fn open(&self, path: impl AsRef<Path>, options: FileOptions) -> Result<File>;

    /// Creates a queue for the calling thread. The queue can be used with all files of the store.
    ///
    /// # Errors
    /// `Io` if the kernel refuses to create the queue.
    fn queue(&self, options: &QueueOptions) -> Result<Queue>;
}
