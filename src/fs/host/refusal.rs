//! Why a host file is not read around the kernel, one name for each reason.

use std::fmt;

use crate::error::Errno;

/// Why a host file is served by the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// Its file system is not known to keep data where FIEMAP says, and to keep it there.
    FileSystem(&'static str),
    /// It lies on no block device of its own (overlay, network and memory file systems; btrfs).
    NoBlockDevice,
    /// The block device could not be opened: missing permission, most often.
    Device(String),
    /// Someone has it open, or mapped, for writing.
    Writers,
    /// Someone opened it for writing or truncated it: the lease was let go. It is taken again when the writer is gone.
    Broken,
    /// It belongs to another user, and `CAP_LEASE` is missing.
    LeasePermission,
    /// The file system, or the system's settings, gives no leases.
    NoLeases(Errno),
    /// XFS with reflink: dedupe can move its data without opening it for writing. `chattr +i`, or
    /// [`assume_no_dedupe`](crate::FileOptions::assume_no_dedupe), lifts this.
    Dedupe,
    /// Its data lies on the realtime device of an XFS file system.
    Realtime,
    /// ext4 writes its data to the journal first (`data=journal`, or `chattr +j`).
    DataJournal,
    /// Whether ext4 journals its data cannot be found out.
    UnknownDataMode,
    /// It is encrypted.
    Encrypted,
    /// fanotify lets a program be asked before it is read (`FAN_ACCESS_PERM`, `FAN_PRE_ACCESS`). It is looked for when the file is
    /// opened, and when its lease is taken again.
    Watched,
    /// Its content is checked by fs-verity as it is read.
    Verity,
    /// It is compressed, or stored in another form.
    Encoded,
    /// Its data lies in the inode, or packed with that of other files.
    Inline,
    /// An extent begins or ends within a logical block of the device.
    Unaligned,
    /// An extent has no place yet, though the data was written back.
    NotAllocated,
    /// An extent lies outside of the device.
    OutsideDevice,
    /// It has more extents than are kept in memory.
    TooManyExtents,
    /// A question to the kernel failed.
    Failed(&'static str, Errno),
}

impl Refusal {
    /// A name for programs.
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

    /// Whether it ends when a writer goes.
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
            Self::NoLeases(errno) => return write!(f, "there are no leases here: {errno}"),
            Self::Failed(question, errno) => return write!(f, "{question}: {errno}"),
            Self::NoBlockDevice => "the file system has no block device of its own",
            Self::Writers => "the file is open or mapped for writing",
            Self::Broken => "the file was opened for writing or truncated",
            Self::LeasePermission => "the file is another user's, and CAP_LEASE is missing",
            Self::Dedupe => {
                "XFS with reflink can move the data by dedupe: make the file immutable (chattr +i), or opt in"
            }
            Self::Realtime => "the data lies on the realtime device",
            Self::DataJournal => "the data is written to the journal first (data=journal)",
            Self::UnknownDataMode => "whether the data is journalled cannot be found out",
            Self::Encrypted => "the file is encrypted",
            Self::Watched => "a program is asked before the file is read (fanotify)",
            Self::Verity => "the file is under fs-verity",
            Self::Encoded => "the data is compressed or stored in another form",
            Self::Inline => "the data lies in the inode",
            Self::Unaligned => "an extent is not aligned to the device's blocks",
            Self::NotAllocated => "an extent has no place on the device yet",
            Self::OutsideDevice => "an extent lies outside of the device",
            Self::TooManyExtents => "the file has too many extents to keep them in memory",
        };
        f.write_str(text)
    }
}
