//! Creates, tunes and resizes volumes that are not open, without an external program. Work on an image file needs no root permissions.
//!
//! ```
//! use ironmap::fs::Clock;
//! use ironmap::fs::ext4::{MkfsOptions, TuneOptions};
//! use ironmap::{NewSize, ResizeOptions, Volume, tools};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let dir = tempfile::tempdir()?;
//!     let path = dir.path().join("disk.img");
//!     std::fs::File::create(&path)?.set_len(64 << 20)?;
//!     let device = tools::device(&*path)?;
//!     tools::make(&*device, &MkfsOptions::new().size(32 << 20))?;
//!     tools::tune(&device, &TuneOptions::new().label(b"data".to_vec()), Clock::System)?;
//!     tools::resize(&device, &ResizeOptions::new().size(NewSize::Device), Clock::System)?;
//!     drop(device); // releases the lock of the image
//!     let volume = Volume::open(&*path)?;
//!     assert!(volume.fs().check(&mut |_| ())?.is_clean());
//!     Ok(())
//! }
//! ```
//!
//! To create an image with content, or to resize an image file together with its volume, use the crate ironmap-image.

use std::sync::Arc;

use crate::device::{Device, Engine};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::ext4::{
    self, MkfsOptions, ResizeOptions, Resized, Superblock, TuneOptions, minimum, mkfs,
};
use crate::fs::{Clock, Footprint, find_format};
use crate::integrity::{self, TailLoss};
use crate::location::{Location, LocationOptions};
use crate::probe::{SMALLEST, membership, occupant, unknown_format};

const XFS_SIZES: &str = "xfs_growfs grows a mounted XFS volume; no tool can shrink an XFS volume";

/// Opens the device at a location for [`make`], [`tune`] and [`resize`]. Until the device is dropped, no other program can open it. The
/// location is a path, a text in the syntax of [`Location::parse`], or a [`Location`].
///
/// # Errors
/// `NotFound`; `Busy` if another program uses the device; `ReadOnly`; `InvalidInput` for an impossible location, and for an integrity
/// device (use [`Location`]).
pub fn device<L>(location: L) -> Result<Arc<dyn Device>>
where
    L: TryInto<Location>,
    Error: From<L::Error>,
{
    let location: Location = location.try_into()?;
    let options = LocationOptions::new().engine(Engine::Psync).write(true);
    let opened = location.open(&options)?;
    match opened.integrity {
        None => Ok(opened.device),
        Some(_) => {
            Err(Error::invalid("this function does not open integrity devices: use Location::open")
                .at(location))
        }
    }
}

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

/// Checks whether [`make`] can make a volume with these options on a device, and writes nothing. The content of the device is not checked.
///
/// # Errors
/// The errors of [`make`] for impossible options, and for a volume that is too small for its metadata.
#[doc(hidden)]
pub fn plan(device: &dyn Device, options: &MkfsOptions) -> Result<()> {
    ext4::plan(device, options)
}

/// Changes the superblock of an ext4 volume and all of its backups. The device must be open for writing. Returns the new superblock. If the
/// volume needs recovery, it is recovered before the change; this counts as a mount. The time of the change is read from the clock.
///
/// # Errors
/// `InvalidInput` for impossible values; `Unsupported` with the name of the feature and an alternative; `ReadOnly` if the volume has
/// features that ironmap does not write; `Busy`, `Corrupt`; the errors of the device. After an error before the first write, the device is
/// unchanged except for a recovery of the volume.
pub fn tune(device: &Arc<dyn Device>, options: &TuneOptions, clock: Clock) -> Result<Superblock> {
    check_ext4(&**device, "xfs_admin and xfs_io change the settings of XFS")?;
    ext4::tune(device, options, clock)
}

/// Grows or shrinks an ext4 volume. The device must be open for writing. If the volume needs recovery, it is recovered before the change;
/// this counts as a mount. The time of the change is read from the clock. If the last group would be hardly larger than its metadata, the
/// group is omitted, and the new size is smaller than requested.
///
/// # Errors
/// `InvalidInput` for impossible sizes; `Unsupported` with the name of the feature and an alternative; `NoSpace` with the smallest possible
/// size; `ReadOnly` if the volume has features that ironmap does not write; `Busy`, `Corrupt`; the errors of the device. After an error
/// before the first write, the device is unchanged except for a recovery of the volume.
pub fn resize(device: &Arc<dyn Device>, options: &ResizeOptions, clock: Clock) -> Result<Resized> {
    check_ext4(&**device, XFS_SIZES)?;
    ext4::resize(device, options, clock)
}

/// Returns the smallest size to which [`resize`] can shrink the ext4 volume on a device. The resize is tried in memory, and nothing is
/// written.
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
#[doc(hidden)]
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

/// Refuses a member of an MD array, a physical volume of an LVM volume group, and a disk with a partition of this kind. Even a user who
/// wants to overwrite a device may not know that an array or a group uses it.
///
/// # Errors
/// `Busy` with the name of the array or the group, and the command that removes the device from it; the errors of the device.
#[doc(hidden)]
pub fn check_member(device: &dyn Device) -> Result<()> {
    membership(device)?.map_or(Ok(()), |what| Err(Error::new(ErrorKind::Busy, what)))
}

/// Returns the block size of the file system on a device, or `None` if the format is not known or the superblock is damaged.
///
/// # Errors
/// The errors of the device.
#[doc(hidden)]
pub fn block_size(device: &dyn Device) -> Result<Option<usize>> {
    Ok(footprint_on(device)?.and_then(Result::ok).map(|footprint| footprint.block_size))
}

/// Refuses a device if its tail, starting at byte `from`, is in use. A file system that extends into the tail is always refused. Data of
/// unknown length are refused too, unless `lost` permits their loss.
///
/// # Errors
/// `Exists`; the errors of the device.
#[doc(hidden)]
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
                "contains a file system whose end is not known ({error}): the tags would overwrite all bytes from byte {from}"
            )),
        };
    }
    match occupant(device) {
        Some(what) if lost == TailLoss::Nothing => taken(format!(
            "{what}, whose end is not known: the tags would overwrite all bytes from byte {from}"
        )),
        _ => Ok(()),
    }
}

/// Refuses a device that does not contain ext2, ext3 or ext4. For XFS, the error names an alternative.
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

/// Returns the range of a device that its file system uses, from the start of the device. Returns `None` if no known format is found. The
/// inner result is an error if the superblock does not state the length.
fn footprint_on(device: &dyn Device) -> Result<Option<Result<Footprint>>> {
    if device.size() < SMALLEST {
        return Ok(None);
    }
    let Some(format) = find_format(device)? else { return Ok(None) };
    match (format.footprint)(device) {
        // An I/O error does not mean that the file system is damaged, so it becomes an error of this function.
        Err(error) if matches!(error.kind(), ErrorKind::Io(_)) => Err(error),
        footprint => Ok(Some(footprint)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Faults, Ram, Sim};

    /// A superblock that cannot be read is an error. It does not count as damaged, because it may be intact.
    #[test]
    fn a_superblock_that_cannot_be_read_is_an_error() {
        let ram: Arc<dyn Device> = Arc::new(Ram::new(8 << 20));
        make(&*ram, &MkfsOptions::default()).unwrap();
        // The first half of the superblock is sufficient to identify the format, but the second half cannot be read.
        let faults = Faults { bad_sectors: [3].into(), ..Faults::default() };
        let sim = Sim::new(ram, faults);
        let found = check_tail(&sim, 1 << 20, TailLoss::DamagedVolume);
        assert!(matches!(found.unwrap_err().kind(), ErrorKind::Io(_)));
        assert!(matches!(block_size(&sim).unwrap_err().kind(), ErrorKind::Io(_)));
    }
}
