//! Recognises the content of a device that has no supported file system, so that an error message can name the content.

mod checks;
mod magics;

use std::collections::BTreeMap;

use smallvec::{SmallVec, smallvec};

use self::checks::{CHECKED, Checked};
use self::magics::{At, LVM, MAGICS, Magic, RAID};
use crate::device::{Device, Within};
use crate::error::{Error, ErrorKind, Result};
#[cfg(feature = "lvm")]
use crate::lvm::{self, Groups};
#[cfg(feature = "md")]
use crate::md;
use crate::partition::PartitionTable;
use crate::units::DevOffset;

/// The end of the superblock of ext2, ext3 and ext4. A smaller device has no such superblock.
pub(crate) const SMALLEST: u64 = 2048;

/// The device is read in parts of this length, and each part is read once. So only a few requests are needed, for example to an NBD server.
const PART: u64 = 64 << 10;

/// Names the content of the device, for example `a btrfs file system: not supported`. Returns `None` if the content is not recognised.
#[must_use]
pub fn probe(device: &dyn Device) -> Option<&'static str> {
    let mut content = Content { device, parts: BTreeMap::new() };
    let magic = MAGICS.iter().find(|magic| content.has(magic)).map(|magic| magic.name);
    magic.or_else(|| CHECKED.iter().find(|format| content.passes(format)).map(|format| format.name))
}

impl At {
    /// Returns the positions where a format's magic number may be on a device of this size.
    fn places(self, size: u64) -> SmallVec<[u64; 5]> {
        match self {
            Self::Start(at) => smallvec![at],
            Self::End { unit, back } => {
                (size / unit * unit).checked_sub(back).into_iter().collect()
            }
            Self::EndOfPage(back) => (12..=16).map(|shift| (1 << shift) - back).collect(),
        }
    }
}

/// The parts of a device that have been read.
struct Content<'a> {
    device: &'a dyn Device,
    /// The parts that were read, keyed by number. The value is `None` if the part cannot be read.
    parts: BTreeMap<u64, Option<Vec<u8>>>,
}

impl Content<'_> {
    fn has(&mut self, magic: &Magic) -> bool {
        let size = self.device.size();
        let mut places = magic.places.iter().flat_map(|at| at.places(size));
        places.any(|at| magic.bytes.iter().any(|bytes| self.at(at, bytes.len()) == *bytes))
    }

    fn passes(&mut self, format: &Checked) -> bool {
        let size = self.device.size();
        let mut places = format.places.iter().flat_map(|at| at.places(size));
        places.any(|at| (format.check)(&self.at(at, format.len)))
    }

    /// Returns the `len` bytes at a position. If the device ends earlier or cannot be read, the result is shorter.
    fn at(&mut self, at: u64, len: usize) -> Vec<u8> {
        let end = at.saturating_add(len as u64).min(self.device.size());
        let mut bytes = Vec::with_capacity(len);
        let mut from = at;
        while from < end {
            let until = ((from / PART + 1) * PART).min(end);
            match self.part(from / PART) {
                Some(part) => {
                    let skip = (from % PART) as usize;
                    bytes.extend(&part[skip..skip + (until - from) as usize]);
                }
                // The part could not be read as a whole because it contains an unreadable sector. The requested bytes may still be
                // readable, so this code reads only them.
                None => {
                    let mut piece = vec![0; (until - from) as usize];
                    if self.device.read_exact_at(&mut piece, DevOffset(from)).is_err() {
                        break;
                    }
                    bytes.extend(piece);
                }
            }
            from = until;
        }
        bytes
    }

    fn part(&mut self, number: u64) -> Option<&[u8]> {
        let device = self.device;
        let read = || {
            let at = number * PART;
            let mut part = vec![0; device.size().saturating_sub(at).min(PART) as usize];
            device.read_exact_at(&mut part, DevOffset(at)).is_ok().then_some(part)
        };
        self.parts.entry(number).or_insert_with(read).as_deref()
    }
}

/// Returns the error for a device without a supported file system.
#[must_use]
pub(crate) fn unknown_format(device: &dyn Device) -> Error {
    let what = match device.size() {
        0 => "is empty".to_owned(),
        size => match (probe(device), PartitionTable::read(device)) {
            (Some(LVM), _) => {
                let volumes = logical_volumes(device).map(|shown| format!("; {shown}"));
                format!("contains {}{}", LVM, volumes.unwrap_or_default())
            }
            (Some(RAID), _) => {
                let shown = array(device).map(|shown| format!("; {shown}"));
                format!("contains {}{}", RAID, shown.unwrap_or_default())
            }
            (Some(what), _) => format!("contains {what}"),
            _ if size < SMALLEST => {
                format!("has only {size} bytes: too small for a file system")
            }
            (None, Ok(Some(table))) => {
                let first = table.partitions.first().map_or(1, |partition| partition.number);
                let groups = logical_volumes(device)
                    .map(|groups| format!("; {groups}: name a logical volume as in @VG/LV"));
                let groups = groups.unwrap_or_default();
                format!("has a partition table: name a partition, as in @p{first}; {table}{groups}")
            }
            (None, Err(error)) => format!("has a damaged partition table: {error}"),
            (None, Ok(None)) => "contains no ext2, ext3, ext4 or XFS file system".to_owned(),
        },
    };
    Error::new(ErrorKind::UnknownFormat, what)
}

/// Describes the logical volumes of a disk, as a clause. Returns `None` if the disk has no LVM physical volume.
#[cfg(feature = "lvm")]
fn logical_volumes(device: &dyn Device) -> Option<String> {
    match Groups::read(device) {
        Ok(groups) if groups.is_empty() && groups.faults().is_empty() => None,
        Ok(groups) => Some(groups.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

#[cfg(not(feature = "lvm"))]
fn logical_volumes(_: &dyn Device) -> Option<String> {
    None
}

/// Describes the MD array to which a device belongs, as a clause. Returns `None` if the device has no MD superblock.
#[cfg(feature = "md")]
fn array(device: &dyn Device) -> Option<String> {
    match md::look(device) {
        Ok(found) => found.map(|found| format!("it is {found}")),
        Err(error) => Some(error.to_string()),
    }
}

#[cfg(not(feature = "md"))]
fn array(_: &dyn Device) -> Option<String> {
    None
}

/// Describes the MD array or the LVM volume group that uses a device or one of its partitions, and the command that removes the device from
/// it. Returns `None` if no array and no group uses them.
///
/// # Errors
/// The errors of the device.
pub(crate) fn membership(device: &dyn Device) -> Result<Option<String>> {
    if let Some(used) = user_of_range(device)? {
        return Ok(Some(format!("the device {used}")));
    }
    let table = match PartitionTable::read(device) {
        Err(error) if matches!(error.kind(), ErrorKind::Io(_)) => return Err(error),
        // A damaged table names no partition.
        table => table.ok().flatten(),
    };
    for partition in table.iter().flat_map(|table| &table.partitions) {
        let Ok((start, len)) = partition.within(device.size(), true) else { continue };
        if let Some(used) = user_of_range(&Within { device, start, len })? {
            return Ok(Some(format!("partition {} {used}", partition.number)));
        }
    }
    Ok(None)
}

/// Describes the MD array or the LVM volume group that uses a device, as a clause without a subject.
fn user_of_range(device: &dyn Device) -> Result<Option<String>> {
    if let Some(array) = member_of_array(device)? {
        return Ok(Some(format!("{array}: mdadm --zero-superblock removes it from the array")));
    }
    let group = user_of(device)?;
    Ok(group.map(|group| format!("{group}: vgreduce and pvremove remove it from the group")))
}

#[cfg(feature = "md")]
fn member_of_array(device: &dyn Device) -> Result<Option<String>> {
    match md::look(device) {
        Ok(found) => Ok(found.map(|found| format!("is {found}"))),
        Err(error) if matches!(error.kind(), ErrorKind::Io(_)) => Err(error),
        // A damaged superblock names no array.
        Err(_) => Ok(None),
    }
}

#[cfg(not(feature = "md"))]
fn member_of_array(device: &dyn Device) -> Result<Option<String>> {
    let is_member = probe(device) == Some(RAID);
    Ok(is_member.then(|| "is a member of a Linux RAID array".to_owned()))
}

#[cfg(feature = "lvm")]
fn user_of(device: &dyn Device) -> Result<Option<String>> {
    lvm::user_of(device)
}

#[cfg(not(feature = "lvm"))]
fn user_of(device: &dyn Device) -> Result<Option<String>> {
    let is_physical = probe(device) == Some(LVM);
    Ok(is_physical.then(|| "is an LVM physical volume".to_owned()))
}

/// Describes content that a user may still need: a known format or a partition table. The text is a clause. Returns `None` if the content
/// is not recognised.
pub(crate) fn occupant(device: &dyn Device) -> Option<String> {
    if let Some(what) = probe(device) {
        // The text after the name of the format tells the user how to read the content, so this code omits it.
        let what = what.split([':', ',']).next().unwrap_or(what);
        return Some(format!("contains {what}"));
    }
    match PartitionTable::read(device) {
        Ok(None) => None,
        Ok(Some(_)) => Some("has a partition table".to_owned()),
        Err(error) => Some(format!("has a damaged partition table: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::*;
    use crate::device::Ram;

    const SIZE: u64 = 8 << 20;

    /// Returns the format that is recognised on a device that contains only these bytes.
    fn told(at: u64, bytes: &[u8]) -> Option<&'static str> {
        let ram = Ram::new(SIZE);
        let mut sectors = crate::sys::Buffer::aligned(1024).unwrap();
        let skip = (at % 512) as usize;
        sectors[skip..skip + bytes.len()].copy_from_slice(bytes);
        let len = if at < SIZE - 512 { 1024 } else { 512 };
        let sectors = [IoSlice::new(&sectors[..len])];
        ram.write_all_at(&sectors, DevOffset(at - skip as u64), false).unwrap();
        probe(&ram)
    }

    #[test]
    fn each_magic_number_is_seen_at_each_of_its_places() {
        let mut wrong = Vec::new();
        for Magic { name, places, bytes } in MAGICS {
            for at in places.iter().flat_map(|at| at.places(SIZE)) {
                for bytes in *bytes {
                    if told(at, bytes) != Some(name) {
                        wrong.push(format!("{name}, {bytes:x?} at {at}: {:?}", told(at, bytes)));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn a_device_that_is_too_small_for_a_place_is_probed_all_the_same() {
        for len in [0, 512, 1024, 2048, 4096, 65536, 66048] {
            assert_eq!(probe(&Ram::new(len)), None, "{len} bytes");
        }
        let mut image = vec![0; 512];
        image[..4].copy_from_slice(b"QFI\xFB");
        assert!(probe(&Ram::from_image(&image)).is_some_and(|name| name.contains("qcow2")));
    }

    /// Boot code, a partition table, and repeated byte patterns are not recognised as a format.
    #[test]
    fn boot_sectors_and_noise_are_no_format() {
        let mut boot = vec![0; 1 << 20];
        boot[..3].copy_from_slice(&[0xEB, 0x63, 0x90]);
        boot[446 + 4] = 0x83;
        boot[510..512].copy_from_slice(&[0x55, 0xAA]);
        assert_eq!(probe(&Ram::from_image(&boot)), None);
        for fill in [0x55_u8, 0xA5, 0xFF] {
            assert_eq!(probe(&Ram::from_image(&vec![fill; 1 << 20])), None, "{fill:x}");
        }
    }
}
