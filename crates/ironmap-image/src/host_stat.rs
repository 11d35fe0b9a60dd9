//! Reads attributes of host files into the types for a volume's attributes. The calls go through libc, so that fakeroot can intercept them.

use std::ffi::{OsStr, c_char};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ironmap::fs::{FileType, Stat, Timestamp, Xattr};
use ironmap::units::InodeNo;
use rustix_libc::fs::{
    AtFlags, CWD, FileType as OsFileType, Mode, OFlags, Statx, StatxFlags, fgetxattr, flistxattr,
    getxattr, lgetxattr, listxattr, llistxattr,
};
use rustix_libc::io::Errno;

/// Returns the attributes of a file. With `follow`, a symbolic link is followed.
pub fn stat(path: &Path, follow: bool) -> Result<Stat, Errno> {
    let at = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let stat = decode(&rustix_libc::fs::statx(CWD, path, at, WANTED)?);
    let flags = flags(path, stat.file_type);
    Ok(stat.flags(flags))
}

/// Returns the major and minor number of the device that contains a file's file system.
pub fn device(path: &Path, follow: bool) -> Result<(u32, u32), Errno> {
    let at = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let found = rustix_libc::fs::statx(CWD, path, at, StatxFlags::empty())?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

/// The fields of `statx` that [`decode`] needs.
pub const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// Converts the result of `statx`. The result has no inode flags, because another system call reads them.
pub fn decode(found: &Statx) -> Stat {
    let file_type = match OsFileType::from_raw_mode(found.stx_mode.into()) {
        OsFileType::Directory => FileType::Directory,
        OsFileType::Symlink => FileType::Symlink,
        OsFileType::CharacterDevice => FileType::CharDevice,
        OsFileType::BlockDevice => FileType::BlockDevice,
        OsFileType::Fifo => FileType::Fifo,
        OsFileType::Socket => FileType::Socket,
        _ => FileType::Regular,
    };
    let created = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    let device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
    Stat::new(InodeNo(found.stx_ino), file_type)
        .mode(found.stx_mode.into())
        .links(found.stx_nlink)
        .uid(found.stx_uid)
        .gid(found.stx_gid)
        .size(found.stx_size)
        .blocks(found.stx_blocks)
        .block_size(found.stx_blksize)
        .accessed(time(found.stx_atime.tv_sec, found.stx_atime.tv_nsec))
        .modified(time(found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec))
        .changed(time(found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec))
        .created(created.then(|| time(found.stx_btime.tv_sec, found.stx_btime.tv_nsec)))
        .device(device.then_some((found.stx_rdev_major, found.stx_rdev_minor)))
}

fn time(seconds: i64, nanoseconds: u32) -> Timestamp {
    Timestamp { seconds, nanoseconds }
}

/// Returns the inode flags that `lsattr` shows, or 0 if the file system has no flags or the file cannot be opened.
fn flags(path: &Path, file_type: FileType) -> u32 {
    if !matches!(file_type, FileType::Regular | FileType::Directory) {
        return 0;
    }
    let how = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix_libc::fs::open(path, how, Mode::empty());
    file.and_then(rustix_libc::fs::ioctl_getflags).map_or(0, |flags| flags.bits())
}

/// Returns the target of a symbolic link.
pub fn link(path: &Path) -> Result<Vec<u8>, Errno> {
    Ok(rustix_libc::fs::readlink(path, Vec::new())?.into_bytes())
}

/// The kernel's limit in bytes, both for the list of a file's attribute names and for the value of an attribute.
const XATTR_MAX: usize = 64 << 10;

/// Returns the extended attributes that the user can read. The result is empty if the file system does not support extended attributes.
pub fn xattrs(path: &Path, follow: bool) -> Result<Vec<Xattr>, Errno> {
    let mut reader = XattrReader::default();
    if follow {
        reader.read(|list| listxattr(path, list), |name, value| getxattr(path, name, value))
    } else {
        reader.of_link(path)
    }
}

/// Reads the extended attributes of many files into buffers that are reused.
pub struct XattrReader {
    names: Box<[c_char]>,
    value: Box<[u8]>,
}

impl Default for XattrReader {
    fn default() -> Self {
        Self { names: vec![0; XATTR_MAX].into(), value: vec![0; XATTR_MAX].into() }
    }
}

impl XattrReader {
    /// Returns the extended attributes of an open file.
    pub fn of_open(&mut self, fd: BorrowedFd<'_>) -> Result<Vec<Xattr>, Errno> {
        self.read(|list| flistxattr(fd, list), |name, value| fgetxattr(fd, name, value))
    }

    /// Returns the extended attributes of the file at a path. A symbolic link is not followed.
    pub fn of_link(&mut self, path: &Path) -> Result<Vec<Xattr>, Errno> {
        self.read(|list| llistxattr(path, list), |name, value| lgetxattr(path, name, value))
    }

    fn read(
        &mut self,
        list: impl FnOnce(&mut [c_char]) -> Result<usize, Errno>,
        get: impl Fn(&OsStr, &mut [u8]) -> Result<usize, Errno>,
    ) -> Result<Vec<Xattr>, Errno> {
        let len = match list(&mut self.names) {
            Err(Errno::OPNOTSUPP) => 0,
            len => len?,
        };
        let mut xattrs = Vec::new();
        let names: Vec<u8> = self.names[..len].iter().map(|byte| *byte as u8).collect();
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            match get(OsStr::from_bytes(name), &mut self.value) {
                Ok(len) => {
                    xattrs.push(Xattr { name: name.to_vec(), value: self.value[..len].to_vec() });
                }
                // Either the attribute has been removed in the meantime, or only the superuser can read it. In both cases, it is skipped.
                Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(xattrs)
    }
}
