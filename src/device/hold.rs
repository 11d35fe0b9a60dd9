//! The locks on an open image or device. They exclude other programs until this process closes the image or device.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, FlockOperation, Stat};

use super::owner::{self, Written};
use super::qemu_locks;
use crate::error::{Error, Result};
use crate::sys::file_locks;

/// The locks of this process on an image or a device, and the record that this process has the image open for writing. The drop removes
/// both.
#[derive(Debug)]
pub(super) struct Hold {
    /// This field is declared before `_written`, so that the locks are released first.
    _locks: Option<Locks>,
    _written: Option<Written>,
}

impl Hold {
    /// Locks an open file if `exclusive` is set. If the file is an image that is opened for writing, also records this.
    pub(super) fn take(
        path: &Path,
        stat: &Stat,
        file: &File,
        write: bool,
        exclusive: bool,
    ) -> Result<Self> {
        let is_image = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let written = (write && is_image).then(|| Written::new(stat));
        let locks = if exclusive { Some(Locks::take(path, file, is_image, write)?) } else { None };
        Ok(Self { _locks: locks, _written: written })
    }
}

/// The locks on a file. The drop releases the locks explicitly, because the file may stay open after this process has closed it. A new
/// child process has the file open until it executes a program, and the kernel closes the files of an io_uring ring some time after the
/// ring has ended.
#[derive(Debug)]
struct Locks(OwnedFd);

impl Locks {
    fn take(path: &Path, file: &File, is_image: bool, write: bool) -> Result<Self> {
        let copy = rustix::io::fcntl_dupfd_cloexec(file, 0)
            .map_err(|errno| Error::io(errno, path.display().to_string()))?;
        // The code creates `locks` before it acquires the first lock. If a later step fails, the drop of `locks` releases the locks that
        // were already acquired.
        let locks = Self(copy);
        if is_image {
            owner::lock_image(path, file, write)?;
        }
        qemu_locks::lock(file.as_fd(), path, write)?;
        Ok(locks)
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        // An error means that the file system does not support locks. The file was then never locked, so the code ignores the error.
        let _ = rustix::fs::flock(&self.0, FlockOperation::NonBlockingUnlock);
        let _ = file_locks::release_all(self.0.as_fd());
    }
}
