//! The operations in workloads.

/// An operation. Paths are without a leading slash.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Create(String),
    Mkdir(String),
    Mknod {
        path: String,
        what: Special,
    },
    Symlink {
        path: String,
        target: String,
    },
    Link {
        path: String,
        to: String,
    },
    /// Removes a name. If the file is open, it exists until it is closed.
    Unlink {
        path: String,
        open: bool,
    },
    /// Closes a removed file that is still open. If there are several, closes the file that was removed first.
    LetGo,
    Rmdir(String),
    Rename {
        from: String,
        to: String,
        how: Renaming,
    },
    Write {
        path: String,
        pos: usize,
        len: usize,
    },
    Truncate {
        path: String,
        size: usize,
    },
    Space {
        path: String,
        how: Space,
        pos: usize,
        len: usize,
    },
    /// Changes an attribute of a file or a directory.
    Set {
        path: String,
        what: Set,
    },
    /// An fsync of a file or a directory.
    Fsync(String),
    Sync,
}

/// A file without content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Fifo,
    /// A character device: major and minor number.
    Device(u32, u32),
}

/// The special file that stands for a whiteout.
pub(crate) const WHITEOUT: Special = Special::Device(0, 0);

/// The modes of `renameat2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renaming {
    /// If a file with the new name exists, the rename replaces it.
    Plain,
    NoReplace,
    Exchange,
    /// The rename creates a [`WHITEOUT`] at the old name.
    Whiteout,
}

/// The modes of fallocate(2).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Space {
    Allocate { keep_size: bool },
    Zero { keep_size: bool },
    Punch,
    Collapse,
    Insert,
}

impl Space {
    pub(crate) fn apply(self, content: &mut Vec<u8>, pos: usize, len: usize) {
        let (size, end) = (content.len(), pos + len);
        match self {
            Self::Allocate { keep_size: false } => content.resize(size.max(end), 0),
            Self::Allocate { keep_size: true } => {}
            Self::Zero { keep_size } => {
                content.resize(if keep_size { size } else { size.max(end) }, 0);
                Self::Punch.apply(content, pos, len);
            }
            Self::Punch => content[pos.min(size)..end.min(size)].fill(0),
            Self::Collapse => drop(content.drain(pos..end)),
            Self::Insert => drop(content.splice(pos..pos, std::iter::repeat_n(0, len))),
        }
    }
}

/// The attributes that an operation sets.
#[derive(Clone, Debug)]
pub(crate) enum Set {
    Permissions(u32),
    Owner(u32),
    /// The access time, in seconds since 1970.
    Accessed(i64),
    /// The flag of `chattr +d`, which has no effect on the operations.
    NoDump(bool),
    Xattr {
        name: &'static str,
        len: usize,
    },
    RemoveXattr(&'static str),
    /// Sets the access control list that [`acl`] makes for these permissions, and gives the file the same permissions.
    Acl(u32),
}

pub(crate) const ACL: &str = "system.posix_acl_access";

/// Makes the access control list of a file with these permissions, in the form of the system call. The group bits of the permissions become
/// the mask of the list.
pub(crate) fn acl(permissions: u32) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let entries = [
        (0x01, permissions >> 6 & 7, NOBODY),
        (0x02, 4, 1000),
        (0x04, 5, NOBODY),
        (0x10, permissions >> 3 & 7, NOBODY),
        (0x20, permissions & 7, NOBODY),
    ];
    let entry = |(tag, permissions, id): (u16, u32, u32)| {
        [&tag.to_le_bytes()[..], &(permissions as u16).to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let version = 2_u32.to_le_bytes().to_vec();
    [version].into_iter().chain(entries.map(entry)).collect::<Vec<_>>().concat()
}
