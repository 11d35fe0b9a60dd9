//! Requests to a file system and its answers: the arguments of [`FileSystem`](super::FileSystem)'s operations.

use bitflags::bitflags;

use super::Timestamp;
use crate::error::{Error, Result};
use crate::iomap::WriteIntent;
use crate::setters::setters;

const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// The treatment of a symbolic link that the whole path names. There is no third one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// It is followed like all others, as `stat` does.
    All,
    /// It is the result itself, as with `lstat`.
    NotLast,
}

/// The user that makes a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credentials {
    /// Owner of the new file.
    pub uid: u32,
    /// Its group, unless the directory's set-group bit gives it the directory's.
    pub gid: u32,
    /// Permissions that are taken away, unless the directory has a default ACL.
    pub umask: u32,
}

impl Credentials {
    /// The user with these numbers.
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
    /// How to rename; `renameat2`'s flags.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// Replace nothing.
        const NOREPLACE = 1;
        /// The two names change places.
        const EXCHANGE = 2;
        /// Leave a whiteout (a character device 0, 0) where the old name was.
        const WHITEOUT = 4;
    }
}

/// Changes of an inode; `None` keeps the value.
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
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub accessed: Option<Timestamp>,
    /// Last change of the content.
    pub modified: Option<Timestamp>,
    /// Last change of the inode; if not given, now.
    pub changed: Option<Timestamp>,
    /// The times come from the file's use, or are those of the moment: nobody has chosen them. An append-only file takes such times.
    pub times_of_use: bool,
    /// Project, for quota.
    pub project: Option<u32>,
}

impl SetAttributes {
    /// No change.
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
    /// Those that Linux shows to users: "User-visible flags" in its ext4 documentation, and DAX.
    pub const SHOWN: Self = Self::from_bits_retain(0x725B_DFFF);
}

/// The treatment of an existing attribute of the name: the flags of `setxattr`, which has no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// Replaces it or makes a new one.
    Any,
    /// `Exists` if there is one.
    Create,
    /// Replaces; `NoData` if it does not exist.
    Replace,
}

bitflags! {
    /// `i_flags`, after "Inode Flags" in Linux's ext4 documentation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct InodeFlags: u32 {
        /// Delete securely; never done.
        const SECURE_DELETE = 0x1;
        /// Keep for undeletion; never done.
        const UNDELETE = 0x2;
        /// Compress; never done.
        const COMPRESS = 0x4;
        /// Write synchronously.
        const SYNC = 0x8;
        /// No change at all (`chattr +i`).
        const IMMUTABLE = 0x10;
        /// Append only (`chattr +a`).
        const APPEND = 0x20;
        /// Leave out of dumps.
        const NO_DUMP = 0x40;
        /// Do not record accesses.
        const NO_ATIME = 0x80;
        /// Encrypted content or names.
        const ENCRYPT = 0x800;
        /// The directory is hashed.
        const INDEX = 0x1000;
        /// File data goes through the journal.
        const JOURNAL_DATA = 0x4000;
        /// No merging of tails; never done.
        const NO_TAIL = 0x8000;
        /// Change the directory synchronously.
        const DIR_SYNC = 0x1_0000;
        /// The directory begins a tree of its own: its subdirectories are spread.
        const TOP_DIR = 0x2_0000;
        /// `i_blocks` counts file-system blocks.
        const HUGE_FILE = 0x4_0000;
        /// The file is mapped by extents.
        const EXTENTS = 0x8_0000;
        /// The file is protected by fs-verity.
        const VERITY = 0x10_0000;
        /// The inode holds a large extended attribute's value.
        const EA_INODE = 0x20_0000;
        /// The content lies in the inode.
        const INLINE_DATA = 0x1000_0000;
        /// New files inherit the project id.
        const PROJECT_INHERIT = 0x2000_0000;
        /// Names are compared without regard to case.
        const CASEFOLD = 0x4000_0000;
        const _ = !0;
    }
}

/// The treatment of set-id bits when the content of a file is changed; its capabilities go in any case. There is no third one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeepSetId {
    /// They go.
    #[default]
    No,
    /// They stay: the change is made for someone with `CAP_FSETID`.
    Yes,
}

impl KeepSetId {
    /// As a write is meant.
    pub(crate) fn asked(intent: WriteIntent) -> Self {
        if intent.contains(WriteIntent::KEEP_SET_ID) { Self::Yes } else { Self::No }
    }

    /// The mode afterwards.
    pub(crate) fn of(self, mode: u32) -> u32 {
        match self {
            Self::No => unprivileged(mode),
            Self::Yes => mode,
        }
    }
}

/// A mode without the bits that give a program's users its owner's rights. Without the right to execute, the group's means something else.
fn unprivileged(mode: u32) -> u32 {
    let group = if mode & GROUP_EXECUTE == 0 { 0 } else { SET_GROUP };
    mode & !(SET_USER | group)
}

/// The change of a range of bytes by `fallocate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallocate {
    /// Allocates holes; they read as zeros.
    Allocate {
        /// The file's size stays.
        keep_size: bool,
    },
    /// Frees it; it reads as zeros. The size stays.
    Punch,
    /// Allocates it without content.
    Zero {
        /// The file's size stays.
        keep_size: bool,
    },
    /// Takes whole blocks out; the rest of the file moves up.
    Collapse,
    /// Inserts whole blocks that read as zeros.
    Insert,
}

/// The source of time stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// The content was read.
    Read,
    /// The content was changed.
    Write,
}

/// Where a listing of a directory goes on. It can be kept as a number, and stays right whatever happens to the directory, as long as
/// that has a hash tree or at most one block, on a volume with `dir_index`, or more blocks and no tree. Two names of a directory whose hashes
/// are equal in 63 bits can be told apart only by a listing that is not interrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirCursor(pub(crate) u64);

impl DirCursor {
    /// Before all entries.
    pub const START: Self = Self(0);

    /// The cursor of a number that came from [`to_raw`](Self::to_raw). Any other number stands for some place, too.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// A number that fits an offset of `telldir`: below 2^63, and not 0 after an entry.
    #[must_use]
    pub const fn to_raw(self) -> u64 {
        self.0
    }
}

/// Whose time stamps files get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clock {
    /// The system's clock, as of its last tick.
    #[default]
    System,
    /// Always this time, for reproducible volumes.
    Fixed(Timestamp),
}

/// How large a file system is, and how much of it is free, as `statfs` gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks, without those that hold its own metadata from the beginning.
    pub blocks: u64,
    /// Inodes that it can have.
    pub inodes: u64,
    /// Free space.
    pub free: FreeSpace,
}

impl Usage {
    /// The usage of a file system of so many blocks of `block_size` bytes and so many inodes.
    #[must_use]
    pub const fn new(block_size: u32, blocks: u64, inodes: u64, free: FreeSpace) -> Self {
        Self { block_size, blocks, inodes, free }
    }
}

/// The free part of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FreeSpace {
    /// Free blocks, among them the superuser's and those that are kept for nodes of maps.
    pub blocks: u64,
    /// Free blocks that everyone may have.
    pub available: u64,
    /// Free inodes.
    pub inodes: u64,
}

impl FreeSpace {
    /// So many free blocks, of which `available` are for everyone, and so many free inodes.
    #[must_use]
    pub const fn new(blocks: u64, available: u64, inodes: u64) -> Self {
        Self { blocks, available, inodes }
    }
}

/// Counts of a volume since it was opened for writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteCounts {
    /// Handles of the journal that were begun: one for each operation that changes metadata.
    pub handles: u64,
    /// Ranges of unwritten extents that were converted after data was written to them.
    pub conversions: u64,
    /// Bytes of blocks written in part that were zeroed.
    pub zeroed: u64,
    /// How often someone wanted a range of a file for himself alone: no direct I/O is let in by the short way meanwhile.
    pub exclusive: u64,
    /// Steps of writes that locked an inode for themselves: to allocate, to take privileges away, to zero up to where the file grows.
    pub upgrades: u64,
    /// Requests that waited for someone who had their range for himself.
    pub waits: u64,
    /// How often someone who wanted a range for himself had to wait for requests in flight.
    pub drains: u64,
}

impl std::ops::Sub for WriteCounts {
    type Output = Self;

    /// The counts since an earlier moment.
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

/// The reaction of a volume that is open for writing to corruption (`errors=` of mount(8)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// It is recorded, and everything else goes on.
    #[default]
    Continue,
    /// The volume is read-only from then on.
    RemountReadOnly,
    /// All further work on the volume is refused, reading too.
    Panic,
}

impl OnError {
    /// The name that mount(8) and tune2fs have for it.
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
        named.ok_or_else(|| Error::invalid("neither continue, remount-ro nor panic"))
    }
}
