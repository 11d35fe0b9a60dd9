//! The destination of a copy: a name in an open directory.
//!
//! Below the directory that the user named, every file is opened through the descriptor of its parent directory, and symbolic links are not
//! followed. This protects the host from a hostile volume that has a symbolic link and a directory with the same name. Such a volume could
//! otherwise direct the copy to any path of the host.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix_libc::fs::{AtFlags, FileType, Mode, OFlags};
use rustix_libc::io::Errno;

use crate::failure::Failure;
use crate::part::part_name;
use crate::spared::Spared;

/// The attribute of a directory that contains the access control list of new files.
pub(super) const DEFAULT_LIST: &str = "system.posix_acl_default";

/// An open directory of the host.
#[derive(Clone)]
pub(crate) struct Directory {
    pub(super) fd: Rc<File>,
    path: PathBuf,
    /// Whether this copy has made the directory.
    pub(super) is_new: bool,
    /// Whether new files in the directory inherit an access control list.
    pub(super) has_default_list: bool,
}

/// A name in a directory. A file with this name may or may not exist.
pub(crate) struct Entry {
    pub(super) dir: Directory,
    pub(super) name: OsString,
}

impl Directory {
    /// Opens a directory that the user named.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        match rustix_libc::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => Ok(Self::of(fd, path.to_owned(), false)),
            Err(errno) => Err(Failure::host(path.display(), errno)),
        }
    }

    fn of(fd: OwnedFd, path: PathBuf, is_new: bool) -> Self {
        let list = rustix_libc::fs::fgetxattr(&fd, DEFAULT_LIST, &mut [0_u8; 0]);
        let has_default_list = !matches!(list, Err(Errno::NODATA | Errno::OPNOTSUPP));
        Self { fd: Rc::new(File::from(fd)), path, is_new, has_default_list }
    }

    pub(crate) fn place(&self, name: &OsStr) -> Entry {
        Entry { dir: self.clone(), name: name.to_owned() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Entry {
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path.join(&self.name)
    }

    /// Returns the failure of an operation on this name.
    pub(super) fn failed(&self, error: impl Into<std::io::Error>) -> Failure {
        Failure::host(self.path().display(), error)
    }

    /// Returns a path to this name through the directory's descriptor, for system calls that accept only a path.
    pub(super) fn proc_path(&self) -> PathBuf {
        let mut path = PathBuf::from(format!("/proc/self/fd/{}", self.dir.fd.as_raw_fd()));
        path.push(&self.name);
        path
    }

    /// Makes the directory, or opens an existing directory. A new directory is accessible only to its owner until the copy sets its mode.
    pub(crate) fn make_directory(&self) -> Result<Directory, Failure> {
        let is_new = match rustix_libc::fs::mkdirat(&*self.dir.fd, &self.name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(self.failed(errno)),
        };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix_libc::fs::openat(&*self.dir.fd, &self.name, flags, Mode::empty());
        let fd = fd.map_err(|errno| self.failed(errno))?;
        Ok(Directory::of(fd, self.path(), is_new))
    }

    /// Returns a temporary name in the same directory that no other copy uses.
    pub(super) fn beside(&self) -> Self {
        Self { dir: self.dir.clone(), name: part_name().into() }
    }

    /// Renames the complete copy `from` to this name. This replaces a file or link that had the name.
    pub(super) fn take(&self, from: &Self) -> Result<(), Failure> {
        let moved = rustix_libc::fs::renameat(&*from.dir.fd, &from.name, &*self.dir.fd, &self.name);
        moved.map_err(|errno| self.failed(errno))
    }

    /// Creates a file that is accessible only to its owner.
    pub(super) fn create(&self) -> Result<File, Failure> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix_libc::fs::openat(&*self.dir.fd, &self.name, flags, Mode::RUSR | Mode::WUSR);
        fd.map(File::from).map_err(|errno| self.failed(errno))
    }

    /// Returns the device and inode of the file that has the name.
    pub(super) fn identity(&self) -> Option<(u64, u64)> {
        identity(&*self.dir.fd, Path::new(&self.name))
    }

    /// Whether a file has the name.
    pub(super) fn is_taken(&self) -> bool {
        rustix_libc::fs::statat(&*self.dir.fd, &self.name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Removes the file with this name, if the file exists and a copy of type `new` can replace it.
    ///
    /// # Errors
    /// See [`check`](Self::check).
    pub(super) fn clear(&self, new: FileType, spared: &Spared) -> Result<(), Failure> {
        if self.check(new, spared)? { self.remove() } else { Ok(()) }
    }

    /// Returns whether a file has this name. Fails if a copy of type `new` must not replace that file. Only a special file can replace a
    /// special file, because a copy to `/dev/null` must not replace the device.
    pub(super) fn check(&self, new: FileType, spared: &Spared) -> Result<bool, Failure> {
        let stat =
            match rustix_libc::fs::statat(&*self.dir.fd, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => return Ok(false),
                Err(errno) => return Err(self.failed(errno)),
            };
        let refused = |why| Err(Failure::new(format!("{}: {why}", self.path().display())));
        if spared.contains(stat.st_dev, stat.st_ino) {
            return refused("the file is the source volume");
        }
        let special = |kind| !matches!(kind, FileType::RegularFile | FileType::Symlink);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Err(self.failed(Errno::ISDIR)),
            there if special(there) && !special(new) => {
                refused("the name exists, but is neither a file nor a symbolic link")
            }
            _ => Ok(true),
        }
    }

    pub(super) fn remove(&self) -> Result<(), Failure> {
        rustix_libc::fs::unlinkat(&*self.dir.fd, &self.name, AtFlags::empty())
            .map_err(|errno| self.failed(errno))
    }
}

/// Returns the device and inode of a file. A symbolic link is not followed.
pub(super) fn identity(dir: impl AsFd, path: &Path) -> Option<(u64, u64)> {
    let stat = rustix_libc::fs::statat(dir, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some((stat.st_dev, stat.st_ino))
}
