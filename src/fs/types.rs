//! Attributes of files in every file system, in the terms of `stat`.

use crate::setters::setters;
use crate::units::InodeNo;

/// The type of a file. The list is complete, because POSIX defines exactly these seven types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

impl FileType {
    /// The type in the upper four bits of a mode (`S_IFMT`); `None` if these bits are not valid.
    #[must_use]
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o010_000 => Self::Fifo,
            0o020_000 => Self::CharDevice,
            0o040_000 => Self::Directory,
            0o060_000 => Self::BlockDevice,
            0o100_000 => Self::Regular,
            0o120_000 => Self::Symlink,
            0o140_000 => Self::Socket,
            _ => return None,
        })
    }

    /// The type as the upper four bits of a mode.
    #[must_use]
    pub const fn to_mode(self) -> u32 {
        match self {
            Self::Fifo => 0o010_000,
            Self::CharDevice => 0o020_000,
            Self::Directory => 0o040_000,
            Self::BlockDevice => 0o060_000,
            Self::Regular => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::Socket => 0o140_000,
        }
    }

    /// The type for the code in a directory entry. ext4 and XFS use the same codes.
    pub(crate) const fn from_entry(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Symlink,
            _ => return None,
        })
    }
}

/// A point in time: seconds since 1970 (negative before) and nanoseconds below one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds since the epoch.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// The attributes of a file, as `stat` returns them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stat {
    /// Inode number.
    pub inode: InodeNo,
    /// Type of the file.
    pub file_type: FileType,
    /// Type and permission bits, as `st_mode`.
    pub mode: u32,
    /// Number of hard links.
    pub links: u32,
    /// The user id of the owner.
    pub uid: u32,
    /// The group id of the file's group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// The file system's block size in bytes.
    pub block_size: u32,
    /// The time of the last access.
    pub accessed: Timestamp,
    /// The time of the last change of the content.
    pub modified: Timestamp,
    /// The time of the last change of the inode.
    pub changed: Timestamp,
    /// The time of creation; `None` if the format does not record it.
    pub created: Option<Timestamp>,
    /// Major and minor number of a device node.
    pub device: Option<(u32, u32)>,
    /// Inode flags as `lsattr` shows them (`FS_IOC_GETFLAGS`), raw.
    pub flags: u32,
    /// Generation (`FS_IOC_GETVERSION`).
    pub generation: u32,
    /// Project id; `None` if the format does not record it.
    pub project: Option<u32>,
}

impl Stat {
    /// The attributes of an empty file without names: times, owners and permissions are zero.
    #[must_use]
    pub fn new(inode: InodeNo, file_type: FileType) -> Self {
        Self {
            inode,
            file_type,
            mode: file_type.to_mode(),
            links: 0,
            uid: 0,
            gid: 0,
            size: 0,
            blocks: 0,
            block_size: 0,
            accessed: Timestamp::default(),
            modified: Timestamp::default(),
            changed: Timestamp::default(),
            created: None,
            device: None,
            flags: 0,
            generation: 0,
            project: None,
        }
    }
}

setters!(Stat {
    mode: u32,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    blocks: u64,
    block_size: u32,
    accessed: Timestamp,
    modified: Timestamp,
    changed: Timestamp,
    created: impl Into<Option<Timestamp>>,
    device: impl Into<Option<(u32, u32)>>,
    flags: u32,
    generation: u32,
    project: impl Into<Option<u32>>,
});

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirEntry {
    /// The name: 1 to 255 bytes other than `/` and NUL.
    pub name: Vec<u8>,
    /// The inode that the name refers to.
    pub inode: InodeNo,
    /// The file type in the entry; `None` if the format does not record the type.
    pub file_type: Option<FileType>,
}

impl DirEntry {
    /// An entry with this name, inode and file type.
    #[must_use]
    pub fn new(name: Vec<u8>, inode: InodeNo, file_type: Option<FileType>) -> Self {
        Self { name, inode, file_type }
    }
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// The full name with the prefix, as the system calls use it: `user.colour`.
    pub name: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}
