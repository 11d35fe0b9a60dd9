//! Tools for a device whose volume is not open: they make, tune and resize a volume, and report what a device contains.

use std::sync::Arc;

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::ext4::{
    self, MkfsOptions, ResizeOptions, Resized, Superblock, TuneOptions, minimum, mkfs,
};
use crate::fs::{Clock, Footprint, find_format};
use crate::integrity::{self, TailLoss};
use crate::probe::{SMALLEST, occupant, unknown_format};

const XFS_SIZES: &str = "xfs_growfs grows a mounted volume, and no tool shrinks one";

/// Creates an ext4 volume on a device that is open for writing, and returns its superblock.
///
/// # Errors
/// `Exists` if the device contains known data and `force` is not set; `InvalidInput` for impossible options; `Unsupported` with the name of
/// the feature; `NoSpace` if the volume is too small for its metadata; the errors of the device. An error before the first write leaves the
/// device unchanged.
pub fn make(device: &dyn Device, options: &MkfsOptions) -> Result<Superblock> {
    if !options.force {
        check_empty(device)?;
    }
    mkfs(device, options)
}

/// Changes the superblock of an ext4 volume and all its backups. The device must be open for writing. Returns the new superblock. A volume
/// that needs recovery is recovered first, which counts as a mount. The clock gives the time of this write.
///
/// # Errors
/// `InvalidInput` for impossible values; `Unsupported` with the name of the feature and an alternative; `ReadOnly` for features that are
/// not written; `Busy`, `Corrupt`; the errors of the device. An error before the first write leaves the device unchanged, except for a
/// recovery.
pub fn tune(device: &Arc<dyn Device>, options: &TuneOptions, clock: Clock) -> Result<Superblock> {
    check_ext4(&**device, "xfs_admin and xfs_io change the settings of XFS")?;
    ext4::tune(device, options, clock)
}

/// Grows or shrinks an ext4 volume. The device must be open for writing. A volume that needs recovery is recovered first, which counts as a
/// mount. The clock gives the time of this write. If the last group would be barely larger than its metadata, the group is omitted, so the
/// new size may be smaller than requested.
///
/// # Errors
/// `InvalidInput` for impossible sizes; `Unsupported` with the name of the feature and an alternative; `NoSpace` with the smallest possible
/// size; `ReadOnly` for features that are not written; `Busy`, `Corrupt`; the errors of the device. An error before the first write leaves
/// the device unchanged, except for a recovery.
pub fn resize(device: &Arc<dyn Device>, options: &ResizeOptions, clock: Clock) -> Result<Resized> {
    check_ext4(&**device, XFS_SIZES)?;
    ext4::resize(device, options, clock)
}

/// The smallest size that [`resize`] can give the ext4 volume on a device. The steps are tried in memory, and nothing is written.
///
/// # Errors
/// The errors of [`resize`].
pub fn smallest_size(device: &Arc<dyn Device>) -> Result<Resized> {
    check_ext4(&**device, XFS_SIZES)?;
    minimum(device)
}

/// Refuses a device that contains a file system or other known data.
///
/// # Errors
/// `Exists`; the errors of the device.
pub fn check_empty(device: &dyn Device) -> Result<()> {
    let found = if let Some(format) = find_format(device)? {
        Some(format!("contains an {} file system", format.name))
    } else if integrity::holds_tags(device) {
        Some("contains the tags of an integrity device".to_owned())
    } else {
        occupant(device)
    };
    found.map_or(Ok(()), |what| Err(Error::new(ErrorKind::Exists, what)))
}

/// The block size of the file system on a device; `None` if its format is not known or its superblock is damaged.
///
/// # Errors
/// The errors of the device.
pub fn block_size(device: &dyn Device) -> Result<Option<usize>> {
    Ok(footprint_on(device)?.and_then(Result::ok).map(|footprint| footprint.block_size))
}

/// Refuses a device if its tail, from byte `from` on, is in use. A file system that extends into the tail is always refused. Data whose end
/// is not known are refused too, except if `lost` permits their loss.
///
/// # Errors
/// `Exists`; the errors of the device.
pub fn check_tail(device: &dyn Device, from: u64, lost: TailLoss) -> Result<()> {
    let taken = |what: String| Err(Error::new(ErrorKind::Exists, what));
    if let Some(found) = footprint_on(device)? {
        return match found {
            Ok(Footprint { end, .. }) => {
                if end <= from {
                    return Ok(());
                }
                taken(format!(
                    "the file system has {end} bytes, but the tags would begin at {from}: shrink the file system first"
                ))
            }
            Err(_) if lost == TailLoss::DamagedVolume => Ok(()),
            Err(error) => taken(format!(
                "contains a file system whose end is not known ({error}): the tags would overwrite the content from byte {from} on"
            )),
        };
    }
    match occupant(device) {
        Some(what) if lost == TailLoss::Nothing => taken(format!(
            "{what}, whose end is not known: the tags would overwrite the content from byte {from} on"
        )),
        _ => Ok(()),
    }
}

/// Refuses a device without ext2, ext3 or ext4. For XFS the error names an alternative.
fn check_ext4(device: &dyn Device, of_xfs: &str) -> Result<()> {
    let format = if device.size() < SMALLEST { None } else { find_format(device)? };
    match format.map(|format| format.name) {
        None => Err(unknown_format(device)),
        Some(name) if name == ext4::FORMAT.name => Ok(()),
        Some(name) => Err(Error::unsupported(format!(
            "the file system is {name}, but this command supports only ext2, ext3 and ext4: {of_xfs}"
        ))),
    }
}

/// The part of a device that its file system uses; `None` if no format is found. The inner error is the reason why the part is not known.
fn footprint_on(device: &dyn Device) -> Result<Option<Result<Footprint>>> {
    if device.size() < SMALLEST {
        return Ok(None);
    }
    let Some(format) = find_format(device)? else { return Ok(None) };
    match (format.footprint)(device) {
        // An I/O error does not mean that the file system is damaged, so it is an error of this function.
        Err(error) if matches!(error.kind(), ErrorKind::Io(_)) => Err(error),
        footprint => Ok(Some(footprint)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Faults, Ram, Sim};

    /// A superblock that cannot be read is an error, and does not count as damaged: the file system may be undamaged.
    #[test]
    fn a_superblock_that_cannot_be_read_is_an_error() {
        let ram: Arc<dyn Device> = Arc::new(Ram::new(8 << 20));
        make(&*ram, &MkfsOptions::default()).unwrap();
        // The second half of the superblock cannot be read. The first half identifies the format.
        let faults = Faults { bad_sectors: [3].into(), ..Faults::default() };
        let sim = Sim::new(ram, faults);
        let found = check_tail(&sim, 1 << 20, TailLoss::DamagedVolume);
        assert!(matches!(found.unwrap_err().kind(), ErrorKind::Io(_)));
        assert!(matches!(block_size(&sim).unwrap_err().kind(), ErrorKind::Io(_)));
    }
}
