//! The reasons why a host file cannot be read raw. Each reason has a machine-readable name.

use std::fmt;

use crate::error::Errno;

/// The reason why a host file is read through the kernel instead of from the block device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// It is not known whether this file system stores data where FIEMAP reports them.
    FileSystem(&'static str),
    /// The file system has no block device of its own (overlay, network and memory file systems; btrfs).
    NoBlockDevice,
    /// The block device could not be opened, usually because a permission is missing.
    Device(String),
    /// A process has the file open, or mapped, for writing.
    Writers,
    /// The lease was released, because a process opened the file for writing or truncated it. The lease is acquired again when no writer
    /// remains.
    Broken,
    /// The file belongs to another user, and `CAP_LEASE` is missing.
    LeasePermission,
    /// The file system or the system's settings do not permit leases.
    NoLeases(Errno),
    /// The file is on XFS with reflink. Deduplication can move the data without an open for writing. `chattr +i`, or
    /// [`assume_no_dedupe`](crate::FileOptions::assume_no_dedupe), removes this reason.
    Dedupe,
    /// The data are on the realtime device of an XFS file system.
    Realtime,
    /// ext4 writes the data to the journal first (`data=journal`, or `chattr +j`).
    DataJournal,
    /// It cannot be determined whether ext4 journals the data.
    UnknownDataMode,
    /// The file is encrypted.
    Encrypted,
    /// The kernel asks a program for permission before each read (fanotify: `FAN_ACCESS_PERM`, `FAN_PRE_ACCESS`). ironmap checks for such
    /// programs when it opens the file and when it acquires the lease again.
    Watched,
    /// fs-verity checks the content at each read.
    Verity,
    /// The data are compressed, or stored in another encoding.
    Encoded,
    /// The data are in the inode, or in a block together with data of other files.
    Inline,
    /// An extent begins or ends within a logical block of the device.
    Unaligned,
    /// An extent has no position yet, although the data were written back.
    NotAllocated,
    /// An extent is outside the device.
    OutsideDevice,
    /// The file has more extents than a map in memory may have.
    TooManyExtents,
    /// A system call failed.
    Failed(&'static str, Errno),
}

impl Refusal {
    /// The machine-readable name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::FileSystem(_) => "file_system",
            Self::NoBlockDevice => "no_block_device",
            Self::Device(_) => "device",
            Self::Writers => "writers",
            Self::Broken => "broken",
            Self::LeasePermission => "lease_permission",
            Self::NoLeases(_) => "no_leases",
            Self::Dedupe => "dedupe",
            Self::Realtime => "realtime",
            Self::DataJournal => "data_journal",
            Self::UnknownDataMode => "unknown_data_mode",
            Self::Encrypted => "encrypted",
            Self::Watched => "watched",
            Self::Verity => "verity",
            Self::Encoded => "encoded",
            Self::Inline => "inline",
            Self::Unaligned => "unaligned",
            Self::NotAllocated => "not_allocated",
            Self::OutsideDevice => "outside_device",
            Self::TooManyExtents => "too_many_extents",
            Self::Failed(..) => "failed",
        }
    }

    /// Whether the reason disappears when the writers close the file.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        matches!(self, Self::Writers | Self::Broken)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::FileSystem(name) => {
                return write!(f, "files of {name} can only be read through the kernel");
            }
            Self::Device(reason) => return write!(f, "the device cannot be read: {reason}"),
            Self::NoLeases(errno) => return write!(f, "leases are not available: {errno}"),
            Self::Failed(question, errno) => return write!(f, "{question}: {errno}"),
            Self::NoBlockDevice => "the file system has no block device, or several",
            Self::Writers => "the file is open or mapped for writing",
            Self::Broken => {
                "another program has opened the file for writing, or truncated the file"
            }
            Self::LeasePermission => "the file belongs to another user, and CAP_LEASE is missing",
            Self::Dedupe => {
                "on XFS with reflink, dedupe can move the data: make the file immutable (chattr +i), or promise with assume_no_dedupe that no program dedupes the file"
            }
            Self::Realtime => "the data is on the realtime device",
            Self::DataJournal => "the data is written to the journal first (data=journal)",
            Self::UnknownDataMode => "it is unknown whether the data is journalled",
            Self::Encrypted => "the file is encrypted",
            Self::Watched => "a program must permit each read of the file (fanotify)",
            Self::Verity => "the file is protected by fs-verity",
            Self::Encoded => "the data is compressed or stored in another form",
            Self::Inline => "the data is in the inode",
            Self::Unaligned => "an extent is not aligned to the device's blocks",
            Self::NotAllocated => "an extent has no blocks on the device yet (delayed allocation)",
            Self::OutsideDevice => "an extent is outside of the device",
            Self::TooManyExtents => "the file has too many extents to keep them in memory",
        };
        f.write_str(text)
    }
}
