//! Reads the attributes of a host file into the types that all file systems use.

use std::fs::{File, Metadata};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno as OsErrno;

use crate::error::{Errno, Error, Result};
use crate::fs::{FileType, Stat, Timestamp};
use crate::sys::inode_generation;
use crate::units::InodeNo;

/// Returns the attributes of a file as `stat` does, and the generation of the inode. Symbolic links are followed.
///
/// # Errors The errors of `stat(2)`. The generation is 0 in three cases: the file is not a regular file or directory, the caller may not
/// read the file, or the file system has no generations.
pub(crate) fn metadata(path: &Path) -> Result<Stat> {
    let failed = |error: std::io::Error| {
        let errno = Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
        Error::io(errno, path.display().to_string())
    };
    // Only regular files and directories are opened, because the open of a device node can have side effects.
    let named = std::fs::metadata(path).map_err(failed)?;
    if !named.is_file() && !named.is_dir() {
        return stat(&named, 0).ok_or_else(|| unknown_type(path));
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let found = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => {
            let file = File::from(file);
            let generation = inode_generation(file.as_fd()).unwrap_or(0);
            stat(&file.metadata().map_err(failed)?, generation)
        }
        Err(errno @ OsErrno::NOENT) => return Err(failed(errno.into())),
        Err(_) => stat(&named, 0),
    };
    found.ok_or_else(|| unknown_type(path))
}

fn unknown_type(path: &Path) -> Error {
    Error::unsupported("the file has a type that POSIX does not define").at(path.display())
}

fn stat(found: &Metadata, generation: u32) -> Option<Stat> {
    let time = |seconds, nanoseconds: i64| Timestamp { seconds, nanoseconds: nanoseconds as u32 };
    let created = found.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let created = created.map(|since| time(since.as_secs() as i64, since.subsec_nanos().into()));
    let file_type = FileType::from_mode(found.mode())?;
    let is_node = matches!(file_type, FileType::BlockDevice | FileType::CharDevice);
    let device =
        is_node.then(|| (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev())));
    let stat = Stat::new(InodeNo(found.ino()), file_type)
        .mode(found.mode())
        .links(found.nlink() as u32)
        .uid(found.uid())
        .gid(found.gid())
        .size(found.size())
        .blocks(found.blocks())
        .block_size(found.blksize() as u32)
        .accessed(time(found.atime(), found.atime_nsec()))
        .modified(time(found.mtime(), found.mtime_nsec()))
        .changed(time(found.ctime(), found.ctime_nsec()))
        .created(created)
        .device(device)
        .generation(generation);
    Some(stat)
}
