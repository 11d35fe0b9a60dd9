//! The reasons against raw reads of a host file, one name each.

use std::fmt;

use crate::error::Errno;

/// The reason why the kernel serves a host file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The file system is not known to keep data where FIEMAP reports them.
    FileSystem(&'static str),
    /// The file system has no block device of its own (overlay, network and memory file systems; btrfs).
    NoBlockDevice,
    /// The block device could not be opened, usually for lack of permission.
    Device(String),
    /// A process has the file open, or mapped, for writing.
    Writers,
    /// A process opened the file for writing or truncated it, so the lease was released. The lease is taken again when no writer remains.
    Broken,
    /// The file belongs to another user, and `CAP_LEASE` is missing.
    LeasePermission,
    /// The file system or the system's settings do not permit leases.
    NoLeases(Errno),
    /// XFS with reflink: dedupe can move its data without opening it for writing. `chattr +i`, or
    /// [`assume_no_dedupe`](crate::FileOptions::assume_no_dedupe), lifts this.
    Dedupe,
    /// The data lie on the realtime device of an XFS file system.
    Realtime,
    /// ext4 writes the data to the journal first (`data=journal`, or `chattr +j`).
    DataJournal,
    /// Whether ext4 journals the data cannot be determined.
    UnknownDataMode,
    /// The file is encrypted.
    Encrypted,
    /// A program must permit reads, through fanotify (`FAN_ACCESS_PERM`, `FAN_PRE_ACCESS`). ironmap checks for such programs when it
    /// opens the file and when it takes the lease again.
    Watched,
    /// fs-verity checks the content at each read.
    Verity,
    /// The data are compressed, or stored in another encoding.
    Encoded,
    /// The data lie in the inode, or are packed with those of other files.
    Inline,
    /// An extent begins or ends within a logical block of the device.
    Unaligned,
    /// An extent has no position yet, although the data were written back.
    NotAllocated,
    /// An extent lies outside of the device.
    OutsideDevice,
    /// The file has more extents than are kept in memory.
    TooManyExtents,
    /// A system call failed.
    Failed(&'static str, Errno),
}

impl Refusal {
    /// The name for programs.
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

    /// Whether the reason ends when the writers close the file.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        matches!(self, Self::Writers | Self::Broken)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::FileSystem(name) => {
                return write!(f, "files of {name} are not read around the kernel");
            }
            Self::Device(reason) => return write!(f, "the device cannot be read: {reason}"),
            Self::NoLeases(errno) => return write!(f, "leases are not available: {errno}"),
            Self::Failed(question, errno) => return write!(f, "{question}: {errno}"),
            Self::NoBlockDevice => "the file system has no block device of its own",
            Self::Writers => "the file is open or mapped for writing",
            Self::Broken => "the file was opened for writing or truncated",
            Self::LeasePermission => "the file belongs to another user, and CAP_LEASE is missing",
            Self::Dedupe => {
                "XFS with reflink can move the data by dedupe: make the file immutable (chattr +i), or opt in"
            }
            Self::Realtime => "the data lies on the realtime device",
            Self::DataJournal => "the data is written to the journal first (data=journal)",
            Self::UnknownDataMode => "it is unknown whether the data is journalled",
            Self::Encrypted => "the file is encrypted",
            Self::Watched => "a program must permit each read of the file (fanotify)",
            Self::Verity => "the file is under fs-verity",
            Self::Encoded => "the data is compressed or stored in another form",
            Self::Inline => "the data lies in the inode",
            Self::Unaligned => "an extent is not aligned to the device's blocks",
            Self::NotAllocated => "an extent has no position on the device yet",
            Self::OutsideDevice => "an extent lies outside of the device",
            Self::TooManyExtents => "the file has too many extents to keep them in memory",
        };
        f.write_str(text)
    }
}
