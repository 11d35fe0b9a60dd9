//! What the kernel says of a file of a mounted file system, in the words of a volume's.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ironmap::fs::{FileType, Stat, Timestamp, Xattr};
use ironmap::units::InodeNo;
use rustix::fs::{
    AtFlags, CWD, FileType as OsFileType, Mode, OFlags, StatxFlags, StatxTimestamp, getxattr,
    lgetxattr, listxattr, llistxattr,
};
use rustix::io::Errno;

/// The attributes of a file, or of the symbolic link that the path names.
pub(crate) fn stat(path: &Path, follow: bool) -> Result<Stat, Errno> {
    let at = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let found = rustix::fs::statx(CWD, path, at, wanted)?;
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
    Ok(Stat {
        inode: InodeNo(found.stx_ino),
        file_type,
        mode: found.stx_mode.into(),
        links: found.stx_nlink,
        uid: found.stx_uid,
        gid: found.stx_gid,
        size: found.stx_size,
        blocks: found.stx_blocks,
        block_size: found.stx_blksize,
        accessed: time(&found.stx_atime),
        modified: time(&found.stx_mtime),
        changed: time(&found.stx_ctime),
        created: created.then(|| time(&found.stx_btime)),
        device: device.then_some((found.stx_rdev_major, found.stx_rdev_minor)),
        flags: flags(path, file_type),
        generation: 0,
        project: None,
    })
}

fn time(at: &StatxTimestamp) -> Timestamp {
    Timestamp { seconds: at.tv_sec, nanoseconds: at.tv_nsec }
}

/// As `lsattr` knows them; none where the file system has none, or the file may not be opened.
fn flags(path: &Path, file_type: FileType) -> u32 {
    if !matches!(file_type, FileType::Regular | FileType::Directory) {
        return 0;
    }
    let how = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, how, Mode::empty());
    file.and_then(rustix::fs::ioctl_getflags).map_or(0, |flags| flags.bits())
}

/// Where a symbolic link leads.
pub(crate) fn link(path: &Path) -> Result<Vec<u8>, Errno> {
    Ok(rustix::fs::readlink(path, Vec::new())?.into_bytes())
}

/// What the kernel lets a list of names, or a value, become.
const XATTR_MAX: usize = 64 << 10;

/// The extended attributes that the user may read; none where the file system has none.
pub(crate) fn xattrs(path: &Path, follow: bool) -> Result<Vec<Xattr>, Errno> {
    let (mut names, mut value) = (vec![0; XATTR_MAX], vec![0; XATTR_MAX]);
    let list = &mut names[..];
    let len = match if follow { listxattr(path, list) } else { llistxattr(path, list) } {
        Err(Errno::OPNOTSUPP) => 0,
        len => len?,
    };
    let mut xattrs = Vec::new();
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let (named, value) = (OsStr::from_bytes(name), &mut value[..]);
        let read = if follow {
            getxattr(path, named, &mut *value)
        } else {
            lgetxattr(path, named, &mut *value)
        };
        match read {
            Ok(len) => xattrs.push(Xattr { name: name.to_vec(), value: value[..len].to_vec() }),
            // It went, or is of a kind that only the superuser reads.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(xattrs)
}
