//! The table of formats that a volume can have. A new one is a row here and a folder beside this file.

use std::sync::Arc;

use super::{Clock, FileSystem, ext4, xfs};
use crate::device::Device;
use crate::error::Result;
use crate::events::Events;

/// All formats, in the order in which a device is asked for them.
pub const FORMATS: &[Format] = &[ext4::FORMAT, xfs::FORMAT];

/// A format of file systems.
#[non_exhaustive]
pub struct Format {
    /// Its name: `ext2, ext3 or ext4`.
    pub name: &'static str,
    /// Whether a device holds one, sound or not.
    pub is_on: fn(&dyn Device) -> Result<bool>,
    /// The block of a backup of its superblock on a device, as [`Rescue::superblock`] names it, where a whole one is found. `None` for a
    /// format without backups.
    pub find_backup: Option<FindBackup>,
    /// The UUID of the journal on a device of its own that the file system has to be recovered by. `None` for a format without such journals.
    pub wanted_journal: Option<WantedJournal>,
    /// Where the file system on a device ends, and its block size.
    pub footprint: fn(&dyn Device) -> Result<Footprint>,
    /// Opens the file system on a device. Damage that it skips because it is only read is a [notice](FileSystem::take_notices).
    pub open: Open,
}

/// Finds a backup of a superblock.
pub type FindBackup = fn(&dyn Device) -> Result<Option<u64>>;

/// Finds the UUID of a journal.
pub type WantedJournal = fn(&dyn Device) -> Result<Option<[u8; 16]>>;

/// Opens the file system on a device.
pub type Open = fn(Arc<dyn Device>, &Arc<Events>, How) -> Result<Arc<dyn FileSystem>>;

/// The part of its device that a file system takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Footprint {
    /// The first byte after it.
    pub end: u64,
    /// Bytes of a block.
    pub block_size: usize,
}

/// How to open a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum How {
    /// For reading; a journal that needs recovery is recovered in memory.
    Read,
    /// For reading, with options.
    Rescue(Rescue),
    /// For writing too; a journal that needs recovery is recovered to the device. Changed files get the times of this clock.
    Write(Clock),
}

/// How a file system is read that is damaged, or has more devices than one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rescue {
    /// By the backup of the superblock in this block, counted in blocks of the file system, as `e2fsck -b` counts.
    pub superblock: Option<u64>,
    /// The journal is not looked at.
    pub no_journal: bool,
    /// Where the device of its journal is seen, if that is on a device of its own.
    pub journal: Option<DeviceRange>,
    /// Where the device of its realtime files is seen, if it has one.
    pub realtime: Option<DeviceRange>,
}

/// The bytes at which a further device of a volume is seen, on the device of the volume and past its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRange {
    /// The first byte: a multiple of 64 KiB.
    pub start: u64,
    /// How many.
    pub len: u64,
}

/// The size of a block of the file system that a device holds, where that is a known one and can be read.
pub(crate) fn block_size_on(device: &dyn Device) -> Option<usize> {
    let format = find(device).ok().flatten()?;
    (format.footprint)(device).ok().map(|footprint| footprint.block_size)
}

/// A UUID as one writes it.
#[must_use]
pub fn uuid_text(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// The format of the file system that a device holds.
pub(crate) fn find(device: &dyn Device) -> Result<Option<&'static Format>> {
    for format in FORMATS {
        if (format.is_on)(device)? {
            return Ok(Some(format));
        }
    }
    Ok(None)
}
