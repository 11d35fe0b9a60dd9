//! The hold on an open image or device: locks that keep other programs away until this process closes it.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, FlockOperation, Stat};

use super::owner::{self, Written};
use super::qemu_locks;
use crate::error::{Error, Result};
use crate::sys::file_locks;

/// How this process holds an image or a device: its locks, and the mark that it writes an image. Dropping it releases both.
#[derive(Debug)]
pub(super) struct Hold {
    /// Declared before the mark, so that the locks are released first.
    _locks: Option<Locks>,
    _written: Option<Written>,
}

impl Hold {
    /// Holds an open file. `exclusive` tells whether the locks are to be taken.
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

/// The locks on a file. They are released explicitly, because the file may stay open longer than this process uses it: a child that another
/// thread starts has it open until the child executes a program, and the kernel closes the files of a ring some time after the ring's end.
#[derive(Debug)]
struct Locks(OwnedFd);

impl Locks {
    fn take(path: &Path, file: &File, is_image: bool, write: bool) -> Result<Self> {
        let copy = rustix::io::fcntl_dupfd_cloexec(file, 0)
            .map_err(|errno| Error::io(errno, path.display().to_string()))?;
        // Made before the first lock, so that a failure releases the locks that were taken.
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
        // A file system without locks refuses both calls. It gave no lock either.
        let _ = rustix::fs::flock(&self.0, FlockOperation::NonBlockingUnlock);
        let _ = file_locks::release_all(self.0.as_fd());
    }
}
