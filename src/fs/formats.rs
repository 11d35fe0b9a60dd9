//! The table of formats. A new format needs an entry in this table, and a folder next to this file.

use std::sync::Arc;

use super::{Clock, FileSystem, ext4, xfs};
use crate::device::Device;
use crate::error::Result;
use crate::events::Events;

/// All formats, in the order in which they are probed.
pub const FORMATS: &[Format] = &[ext4::FORMAT, xfs::FORMAT];

/// A file-system format.
#[non_exhaustive]
pub struct Format {
    /// The name of the format: `ext2, ext3 or ext4`.
    pub name: &'static str,
    /// Whether a device contains this format, undamaged or damaged.
    pub is_on: fn(&dyn Device) -> Result<bool>,
    /// Finds an undamaged backup of the superblock on a device.
    pub find_backup: FindBackup,
    /// Reads the UUID of the external journal that the file system's recovery needs. `None` for a format without external journals.
    pub wanted_journal: Option<WantedJournal>,
    /// The end of the file system on a device, and its block size.
    pub footprint: fn(&dyn Device) -> Result<Footprint>,
    /// Opens the file system on a device. A read-only open skips some damage and reports it as a [notice](FileSystem::take_notices).
    pub open: Open,
}

/// Finds a backup of a superblock: the backup with the given [number](Rescue::superblock), or the first undamaged backup. `None` if there
/// is no such backup.
pub type FindBackup = fn(&dyn Device, Option<u64>) -> Result<Option<Backup>>;

/// A backup of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backup {
    /// The number of the backup, counted as in [`Rescue::superblock`].
    pub number: u64,
    /// The unit of the number: `block`, or `allocation group`.
    pub counts: &'static str,
    /// Block size in bytes.
    pub block_size: usize,
    /// Whether this backup is used automatically to read a volume whose first superblock is lost. If not, the backup is used only if the
    /// caller names it.
    pub is_proven: bool,
}

/// Reads the UUID of the external journal that a file system needs.
pub type WantedJournal = fn(&dyn Device) -> Result<Option<[u8; 16]>>;

/// Opens the file system on a device.
pub type Open = fn(Arc<dyn Device>, &Arc<Events>, How) -> Result<Arc<dyn FileSystem>>;

/// The part of a device that a file system occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Footprint {
    /// The first byte past the file system.
    pub end: u64,
    /// Block size in bytes.
    pub block_size: usize,
}

/// The mode in which a file system is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum How {
    /// Opens for reading. A journal that needs recovery is recovered in memory.
    Read,
    /// Opens for reading, with options.
    Rescue(Rescue),
    /// Opens for reading and writing. A journal that needs recovery is recovered on the device. The clock supplies the time stamps of
    /// changed files.
    Write(Clock),
}

/// Options for reading a file system that is damaged or that spans several devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rescue {
    /// The number of the superblock's backup. On ext4, this is the number of the backup's block, counted in blocks of the file system, as
    /// for `e2fsck -b`. On XFS, it is the number of the allocation group that contains the backup.
    pub superblock: Option<u64>,
    /// Whether the journal is ignored.
    pub no_journal: bool,
    /// The range in which the device of an external journal is mapped, if the volume has one.
    pub journal: Option<DeviceRange>,
    /// The range in which the device of realtime files is mapped, if the volume has one.
    pub realtime: Option<DeviceRange>,
}

/// The range in which an additional device of a volume is mapped. The range is past the end of the volume's own device, in the same address
/// space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRange {
    /// The first byte: a multiple of 64 KiB.
    pub start: u64,
    /// The length in bytes.
    pub len: u64,
}

/// The block size of the file system on a device, if its format is known and its superblock is readable.
pub(crate) fn block_size_on(device: &dyn Device) -> Option<usize> {
    let format = find(device).ok().flatten()?;
    (format.footprint)(device).ok().map(|footprint| footprint.block_size)
}

/// A UUID in its usual text form.
#[must_use]
pub fn uuid_text(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// The format of the file system on a device.
pub(crate) fn find(device: &dyn Device) -> Result<Option<&'static Format>> {
    for format in FORMATS {
        if (format.is_on)(device)? {
            return Ok(Some(format));
        }
    }
    Ok(None)
}
