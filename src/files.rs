//! Files by their paths, wherever they are.

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
    /// `InvalidInput` for options that exclude each other; of a file that is made `Exists`, `NameTooLong`, `NoSpace`, `Quota`.
    fn open(&self, path: impl AsRef<Path>, options: FileOptions) -> Result<File>;

    /// A queue for the calling thread, for all files of the store.
    ///
    /// # Errors
    /// `Io` where the kernel refuses.
    fn queue(&self, options: &QueueOptions) -> Result<Queue>;
}
