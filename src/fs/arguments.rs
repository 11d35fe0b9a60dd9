//! The arguments of [`FileSystem`](super::FileSystem)'s operations, and their results.

use bitflags::bitflags;

use super::Timestamp;
use crate::error::{Error, Result};
use crate::iomap::WriteIntent;
use crate::setters::setters;

const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// The treatment of a symbolic link in the last component of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// The walk follows the link, as `stat` does.
    All,
    /// The walk returns the link itself, as `lstat` does.
    NotLast,
}

/// The user that creates a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credentials {
    /// The owner of the new file.
    pub uid: u32,
    /// The group of the new file. If the directory has the set-group-ID bit, the directory's group is used instead.
    pub gid: u32,
    /// Permission bits that are removed from the mode of the new file. If the directory has a default ACL, the umask is ignored.
    pub umask: u32,
}

impl Credentials {
    /// Credentials from a user id, a group id and a umask.
    #[must_use]
    pub const fn new(uid: u32, gid: u32, umask: u32) -> Self {
        Self { uid, gid, umask }
    }
}

/// The kind of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NewFile<'a> {
    /// An empty file.
    Regular,
    /// An empty directory.
    Directory,
    /// A symbolic link with this target.
    Symlink(&'a [u8]),
    /// A character device with major and minor number.
    CharDevice(u32, u32),
    /// A block device with major and minor number.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

bitflags! {
    /// The flags of a rename, as in `renameat2`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// Fail if the new name exists.
        const NOREPLACE = 1;
        /// Exchange the two names.
        const EXCHANGE = 2;
        /// Create a whiteout (a character device 0, 0) under the old name.
        const WHITEOUT = 4;
    }
}

/// Changes to an inode. An attribute that is `None` is not changed.
///
/// ```
/// use ironmap::fs::SetAttributes;
///
/// let set = SetAttributes::new().uid(1000).permissions(0o640);
/// # let _ = set;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetAttributes {
    /// The lower twelve bits of the mode.
    pub permissions: Option<u32>,
    /// The new owner.
    pub uid: Option<u32>,
    /// The new group.
    pub gid: Option<u32>,
    /// The new time of the last access.
    pub accessed: Option<Timestamp>,
    /// The new time of the last change of the content.
    pub modified: Option<Timestamp>,
    /// The new time of the last change of the inode. `None` means the current time.
    pub changed: Option<Timestamp>,
    /// Whether a use of the file or the clock sets the times (`true`), or a caller chose the times (`false`). Linux permits `true` even on
    /// an append-only file.
    pub times_of_use: bool,
    /// The new project id, for quota.
    pub project: Option<u32>,
}

impl SetAttributes {
    /// An empty set of changes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

setters!(SetAttributes {
    permissions: impl Into<Option<u32>>,
    uid: impl Into<Option<u32>>,
    gid: impl Into<Option<u32>>,
    accessed: impl Into<Option<Timestamp>>,
    modified: impl Into<Option<Timestamp>>,
    changed: impl Into<Option<Timestamp>>,
    times_of_use: bool,
    project: impl Into<Option<u32>>,
});

impl InodeFlags {
    /// The flags that Linux shows to users: the "User-visible flags" of its ext4 documentation, and the DAX flag.
    pub const SHOWN: Self = Self::from_bits_retain(0x725B_DFFF);
}

/// The treatment of an existing attribute with the same name by `setxattr` (`XATTR_CREATE`, `XATTR_REPLACE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// Replaces the attribute or creates it.
    Any,
    /// Creates the attribute; `Exists` if the attribute exists.
    Create,
    /// Replaces the attribute; `NoData` if the attribute does not exist.
    Replace,
}

bitflags! {
    /// The flags of an inode (`i_flags`). Source: "Inode Flags" in Linux's ext4 documentation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct InodeFlags: u32 {
        /// Delete securely; not implemented.
        const SECURE_DELETE = 0x1;
        /// Keep for undeletion; not implemented.
        const UNDELETE = 0x2;
        /// Compress; not implemented.
        const COMPRESS = 0x4;
        /// Write synchronously.
        const SYNC = 0x8;
        /// The file cannot be changed (`chattr +i`).
        const IMMUTABLE = 0x10;
        /// Append only (`chattr +a`).
        const APPEND = 0x20;
        /// Exclude from dumps.
        const NO_DUMP = 0x40;
        /// Do not record accesses.
        const NO_ATIME = 0x80;
        /// Encrypted content or names.
        const ENCRYPT = 0x800;
        /// The directory has a hash tree.
        const INDEX = 0x1000;
        /// File data are written to the journal.
        const JOURNAL_DATA = 0x4000;
        /// No tail merging; not implemented.
        const NO_TAIL = 0x8000;
        /// Change the directory synchronously.
        const DIR_SYNC = 0x1_0000;
        /// The directory is the top of a hierarchy: its subdirectories are spread over the groups.
        const TOP_DIR = 0x2_0000;
        /// `i_blocks` counts file-system blocks.
        const HUGE_FILE = 0x4_0000;
        /// The file is mapped by extents.
        const EXTENTS = 0x8_0000;
        /// The file is protected by fs-verity.
        const VERITY = 0x10_0000;
        /// The inode contains the value of a large extended attribute.
        const EA_INODE = 0x20_0000;
        /// The content is stored in the inode.
        const INLINE_DATA = 0x1000_0000;
        /// New files inherit the project id.
        const PROJECT_INHERIT = 0x2000_0000;
        /// Names are compared without regard to case.
        const CASEFOLD = 0x4000_0000;
        const _ = !0;
    }
}

/// Whether the set-id bits are kept when the content of a file changes. File capabilities are always removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeepSetId {
    /// The set-id bits are cleared.
    #[default]
    No,
    /// The caller has `CAP_FSETID`, so the set-id bits stay.
    Yes,
}

impl KeepSetId {
    /// Returns `Yes` if a write with this intent asks to keep the set-id bits.
    pub(crate) fn asked(intent: WriteIntent) -> Self {
        if intent.contains(WriteIntent::KEEP_SET_ID) { Self::Yes } else { Self::No }
    }

    /// Returns the mode of a file after its content has changed. `mode` is the mode before the change.
    pub(crate) fn of(self, mode: u32) -> u32 {
        match self {
            Self::No => unprivileged(mode),
            Self::Yes => mode,
        }
    }
}

/// Clears the set-user-ID bit. Clears the set-group-ID bit only if the group has execute permission. The bit gives no privileges without
/// this permission.
fn unprivileged(mode: u32) -> u32 {
    let group = if mode & GROUP_EXECUTE == 0 { 0 } else { SET_GROUP };
    mode & !(SET_USER | group)
}

/// The change that `fallocate` makes to a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallocate {
    /// Allocates blocks for the holes in the range. These blocks read as zeros.
    Allocate {
        /// Whether the file's size stays the same.
        keep_size: bool,
    },
    /// Frees the blocks of the range. The range then reads as zeros. The file's size does not change.
    Punch,
    /// Makes the range unwritten, so that it reads as zeros.
    Zero {
        /// Whether the file's size stays the same.
        keep_size: bool,
    },
    /// Removes whole blocks. The data after these blocks move to lower positions.
    Collapse,
    /// Inserts whole blocks that read as zeros. The data after the position move to higher positions.
    Insert,
}

/// The kind of access that sets a time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// The content was read.
    Read,
    /// The content was changed.
    Write,
}

/// The position from which a listing of a directory continues. A program can store a cursor as a number. A cursor stays valid when the
/// directory changes, as long as the order of the listing stays the same. On an ext4 volume with `dir_index`, the order is by hash if the
/// directory has a hash tree or at most one block. Otherwise the order is by position. Two names whose hashes are equal in 63 bits have the
/// same cursor. A listing cannot continue between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirCursor(pub(crate) u64);

impl DirCursor {
    /// The position before all entries.
    pub const START: Self = Self(0);

    /// Returns the cursor for a number from [`to_raw`](Self::to_raw). Any other number is also valid.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the cursor as a number that `telldir` can return. The number is below 2^63. It is greater than 0 after the first entry.
    #[must_use]
    pub const fn to_raw(self) -> u64 {
        self.0
    }
}

/// The clock for the time stamps of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clock {
    /// The system's clock. Its time is as old as the kernel's last timer tick (`CLOCK_REALTIME_COARSE`).
    #[default]
    System,
    /// A fixed time, for reproducible volumes.
    Fixed(Timestamp),
}

/// The size of a file system and its free space, as `statfs` returns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The block size in bytes.
    pub block_size: u32,
    /// The number of blocks, without the blocks of the file system's static metadata.
    pub blocks: u64,
    /// The maximum number of inodes.
    pub inodes: u64,
    /// The free space of the file system.
    pub free: FreeSpace,
}

impl Usage {
    /// Creates the usage of a file system that has `blocks` blocks and `inodes` inodes.
    #[must_use]
    pub const fn new(block_size: u32, blocks: u64, inodes: u64, free: FreeSpace) -> Self {
        Self { block_size, blocks, inodes, free }
    }
}

/// The free part of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FreeSpace {
    /// Free blocks, including the blocks that are reserved for the superuser and for nodes of extent maps.
    pub blocks: u64,
    /// Free blocks that are available to unprivileged users.
    pub available: u64,
    /// Free inodes.
    pub inodes: u64,
}

impl FreeSpace {
    /// The free space: `blocks` free blocks, `available` of them for unprivileged users, and `inodes` free inodes.
    #[must_use]
    pub const fn new(blocks: u64, available: u64, inodes: u64) -> Self {
        Self { blocks, available, inodes }
    }
}

/// Counters of a volume since it was opened for writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteCounts {
    /// Journal handles: one for each operation that changes metadata.
    pub handles: u64,
    /// Unwritten ranges that were converted to written ranges, because data was written to them.
    pub conversions: u64,
    /// Bytes that were zeroed in partly written blocks.
    pub zeroed: u64,
    /// Requests for exclusive access to a range of a file. While such a request runs, direct I/O does not use the fast path.
    pub exclusive: u64,
    /// The number of times that a write locked an inode exclusively: to allocate blocks, to remove privileges, or to zero the gap before
    /// the new end of a file.
    pub upgrades: u64,
    /// Requests that waited because another request had exclusive access to their range.
    pub waits: u64,
    /// Requests for exclusive access that waited until earlier requests had completed.
    pub drains: u64,
}

impl std::ops::Sub for WriteCounts {
    type Output = Self;

    /// The increase of each counter since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        let since = |now: u64, then: u64| now.saturating_sub(then);
        Self {
            handles: since(self.handles, earlier.handles),
            conversions: since(self.conversions, earlier.conversions),
            zeroed: since(self.zeroed, earlier.zeroed),
            exclusive: since(self.exclusive, earlier.exclusive),
            upgrades: since(self.upgrades, earlier.upgrades),
            waits: since(self.waits, earlier.waits),
            drains: since(self.drains, earlier.drains),
        }
    }
}

/// The reaction to corruption on a volume that is open for writing (`errors=` of mount(8)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// The error is recorded, and work continues.
    #[default]
    Continue,
    /// The volume becomes read-only.
    RemountReadOnly,
    /// All further operations on the volume are refused, including reads.
    Panic,
}

impl OnError {
    /// The name of this reaction in mount(8) and tune2fs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Continue => "continue",
            Self::RemountReadOnly => "remount-ro",
            Self::Panic => "panic",
        }
    }
}

impl std::str::FromStr for OnError {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let all = [Self::Continue, Self::RemountReadOnly, Self::Panic];
        let named = all.into_iter().find(|policy| policy.name() == name);
        named.ok_or_else(|| Error::invalid("the value must be continue, remount-ro or panic"))
    }
}
