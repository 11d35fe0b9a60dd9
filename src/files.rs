//! Opens files by path, in volumes and in mounted file systems.

use std::path::Path;

use crate::cursor::Cursor;
use crate::device::{Engine, NoIoUring, QueueOptions};
use crate::error::Result;
use crate::file::{File, FileOptions};
use crate::queue::Queue;

/// A store of files that programs open by path: a [`Volume`](crate::Volume), or the mounted file systems of a [`Host`](crate::Host).
pub trait Files {
    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// The errors of [`open_with`](Self::open_with) for reading.
    fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, FileOptions::new())
    }

    /// Opens a regular file with options: for writing, or only for aligned requests.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `Loop`; `IsADirectory`, `WrongFileType`, `Encrypted`; `ReadOnly` if the options open the file for
    /// writing and the store is read-only; `InvalidInput` for options that exclude each other. If a file is created, also `Exists`,
    /// `NameTooLong`, `NoSpace`, `Quota`.
    fn open_with(&self, path: impl AsRef<Path>, options: FileOptions) -> Result<File>;

    /// Creates a queue for the calling thread. The queue serves all files of the store.
    ///
    /// # Errors
    /// `Io` if the kernel refuses to create the queue.
    fn queue(&self, options: &QueueOptions) -> Result<Queue>;

    /// The engine of the store's queues. [`Engine::Auto`] means that the caller has provided the device.
    fn engine(&self) -> Engine;

    /// The reason why the queues use system calls (the [engine](Self::engine) psync) although the options of the store permit io_uring.
    fn no_io_uring(&self) -> Option<NoIoUring> {
        None
    }

    /// Opens a regular file for reading with the traits of [`std::io`]. The cursor has its own queue, and belongs to the calling thread.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open) and [`queue`](Self::queue).
    fn cursor(&self, path: impl AsRef<Path>) -> Result<Cursor> {
        Ok(Cursor::new(self.open(path)?, self.queue(&QueueOptions::new().depth(1))?))
    }
}
