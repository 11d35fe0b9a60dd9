//! Files by their paths, in volumes and in mounted file systems.

use std::path::Path;

use crate::device::QueueOptions;
use crate::error::Result;
use crate::file::{File, FileOptions};
use crate::queue::Queue;

/// A store of files that are opened by their paths: a [`Volume`](crate::Volume), or the mounted file systems of a [`Host`](crate::Host).
pub trait Files {
    /// Opens a regular file.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `Loop`; `IsADirectory`, `WrongFileType`, `Encrypted`; `ReadOnly` for writing on a read-only store,
    /// `InvalidInput` for options that exclude each other; for a created file `Exists`, `NameTooLong`, `NoSpace`, `Quota`.
    fn open(&self, path: impl AsRef<Path>, options: FileOptions) -> Result<File>;

    /// Creates a queue for the calling thread, for all files of the store.
    ///
    /// # Errors
    /// `Io` if the kernel refuses.
    fn queue(&self, options: &QueueOptions) -> Result<Queue>;
}
