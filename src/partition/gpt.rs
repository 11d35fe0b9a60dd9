//! The GUID partition table. Sector 1 contains a header, and the last sector contains a backup of the header. Each header has an array of
//! entries. CRC-32 checksums protect the headers and the arrays. Source: chapter 5 of the UEFI specification.

use std::ops::Range;

use super::{Partition, read_at, u32_at, u64_at};
use crate::device::Device;
use crate::error::{Place, Result};

pub(super) const SIGNATURE: &[u8] = b"EFI PART";
pub(super) const HEADER_SIZE: usize = 92;
pub(super) const ENTRY_SIZE: usize = 128;
/// The maximum size of the array of entries in bytes. The usual array has 16 KiB. The specification sets no upper bound.
const MAX_ENTRIES: usize = 1 << 20;
const PLACE: Place = Place::new("GPT header");
pub(super) const CRC: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC);

/// The contents of a GPT. `fault` is a text for the user about the loss of the first copy.
pub(super) struct Found {
    pub(super) partitions: Vec<Partition>,
    pub(super) fault: Option<String>,
    /// The byte range that partitions can use.
    pub(super) usable: Range<u64>,
}

/// One complete copy of the table.
struct Copy {
    disk: [u8; 16],
    entries: Vec<Vec<u8>>,
    /// The sector of the other copy's header.
    other: u64,
    /// The first and the last sector that partitions can use.
    usable: [u64; 2],
}

/// Reads the partitions from the header in sector 1. If this header is damaged, reads the backup in the last sector. If the disk has a
/// protective MBR, a missing header counts as damaged. Returns `None` if there is no GPT.
pub(super) fn read(
    device: &dyn Device,
    sectors: [u64; 3],
    protective: bool,
) -> Result<Option<Found>> {
    for sector in sectors {
        match read_copy(device, sector, 1)? {
            Some(Ok(copy)) => {
                agree(device, sector, &copy)?;
                return found(sector, &copy, None).map(Some);
            }
            Some(Err(damage)) => {
                let backup = read_copy(device, sector, last(device, sector))?.and_then(Result::ok);
                let copy = backup.ok_or(damage)?;
                return by_backup(sector, &copy, "damaged").map(Some);
            }
            None => {}
        }
    }
    if !protective {
        return Ok(None);
    }
    for sector in sectors {
        if let Some(Ok(copy)) = read_copy(device, sector, last(device, sector))? {
            return by_backup(sector, &copy, "lost").map(Some);
        }
    }
    Err(PLACE.corrupt(
        "the protective MBR announces a GPT (type 0xEE), but the header in sector 1 and the backup in the last sector are both missing: name a volume by its first byte, as in @BYTE",
    ))
}

/// Refuses a disk that has only the backup of a GPT, because the backup may belong to an older table.
pub(super) fn refuse_lone_backup(device: &dyn Device, sectors: [u64; 3]) -> Result<()> {
    for sector in sectors {
        let at = last(device, sector);
        if let Some(Ok(copy)) = read_copy(device, sector, at)? {
            let starts: Vec<_> = decode(sector, &copy)?
                .iter()
                .map(|Partition { number, start, .. }| format!("p{number} at byte {start}"))
                .collect();
            return Err(PLACE.corrupt(format!(
                "only the backup in sector {at} is left, because the header in sector 1 and the protective MBR are missing; the backup has {}: name a partition by its first byte, as in @BYTE, or repair the table with gdisk",
                starts.join(", ")
            )));
        }
    }
    Ok(())
}

fn last(device: &dyn Device, sector: u64) -> u64 {
    (device.size() / sector).saturating_sub(1)
}

fn by_backup(sector: u64, copy: &Copy, what: &str) -> Result<Found> {
    let fault =
        format!("the primary GPT header is {what}: the partitions are read from the backup");
    found(sector, copy, Some(fault))
}

fn found(sector: u64, copy: &Copy, fault: Option<String>) -> Result<Found> {
    let [first, last] = copy.usable;
    let usable = first.saturating_mul(sector)..last.saturating_add(1).saturating_mul(sector);
    Ok(Found { partitions: decode(sector, copy)?, fault, usable })
}

/// Refuses a table whose other copy is undamaged but has different contents. Only the sector that the table names is read, because a copy
/// in any other sector belongs to an older table.
fn agree(device: &dyn Device, sector: u64, copy: &Copy) -> Result<()> {
    match read_copy(device, sector, copy.other)? {
        Some(Ok(other)) if (other.disk, &other.entries) != (copy.disk, &copy.entries) => {
            let what = format!(
                "the table of sector 1 and its backup in sector {} disagree: repair the table with gdisk or sgdisk, or name a volume by its first byte, as in @BYTE",
                copy.other
            );
            Err(PLACE.corrupt(what))
        }
        _ => Ok(()),
    }
}

/// Reads one copy of the table. Returns `None` if the sector has no GPT signature. The inner result is an error if a check fails.
fn read_copy(device: &dyn Device, sector: u64, lba: u64) -> Result<Option<Result<Copy>>> {
    let Some(at) = lba.checked_mul(sector) else { return Ok(None) };
    let Some(header) = read_at(device, at, sector as usize)? else { return Ok(None) };
    if !header.starts_with(SIGNATURE) {
        return Ok(None);
    }
    Ok(Some(check(device, sector, lba, &header)))
}

/// Checks the header and the array of entries. Only the first [`ENTRY_SIZE`] bytes of each entry are used.
fn check(device: &dyn Device, sector: u64, lba: u64, header: &[u8]) -> Result<Copy> {
    let size = u32_at(header, 12) as usize;
    if !(HEADER_SIZE..=header.len()).contains(&size) {
        return Err(PLACE.field("HeaderSize").corrupt(format!("{size} bytes")));
    }
    let mut summed = header[..size].to_vec();
    summed[16..20].fill(0);
    verify("HeaderCRC32", u32_at(header, 16), &summed)?;
    if u64_at(header, 24) != lba {
        return Err(PLACE.field("MyLBA").corrupt(format!("{}, not {lba}", u64_at(header, 24))));
    }
    let (count, size) = (u32_at(header, 80) as usize, u32_at(header, 84) as usize);
    let total = count.checked_mul(size).filter(|total| *total <= MAX_ENTRIES);
    let (Some(total), true) = (total, size >= ENTRY_SIZE) else {
        let field = PLACE.field("NumberOfPartitionEntries");
        return Err(
            field.corrupt(format!("a table with {count} entries of {size} bytes is not valid"))
        );
    };
    let first = u64_at(header, 72);
    let array = match first.checked_mul(sector) {
        Some(at) => read_at(device, at, total)?,
        None => None,
    };
    let Some(array) = array else {
        return Err(PLACE.field("PartitionEntryLBA").corrupt(format!(
            "the array of entries begins at sector {first}, which is past the end of the device"
        )));
    };
    verify("PartitionEntryArrayCRC32", u32_at(header, 88), &array)?;
    let entries = array.chunks_exact(size).map(|entry| entry[..ENTRY_SIZE].to_vec()).collect();
    let mut disk = [0; 16];
    disk.copy_from_slice(&header[56..72]);
    let usable = [40, 48].map(|at| u64_at(header, at));
    Ok(Copy { disk, entries, other: u64_at(header, 32), usable })
}

fn verify(field: &'static str, stored: u32, bytes: &[u8]) -> Result<()> {
    let computed = CRC.checksum(bytes);
    if stored == computed { Ok(()) } else { Err(PLACE.field(field).bad_checksum(stored, computed)) }
}

/// Decodes the entries. A partition may end past the end of a truncated device.
fn decode(sector: u64, copy: &Copy) -> Result<Vec<Partition>> {
    let mut partitions = Vec::new();
    for (index, entry) in copy.entries.iter().enumerate() {
        if entry[..16] == [0; 16] {
            continue;
        }
        let number = index as u32 + 1;
        let (first, last) = (u64_at(entry, 32), u64_at(entry, 40));
        let start = first.checked_mul(sector);
        let end = last.checked_add(1).and_then(|end| end.checked_mul(sector));
        match (start, end) {
            (Some(start), Some(end)) if start < end => {
                let (len, name) = (end - start, name(&entry[56..ENTRY_SIZE]));
                partitions.push(Partition { number, start, len, name });
            }
            _ => {
                return Err(Place::new("GPT entry").corrupt(format!(
                    "partition {number} cannot begin at sector {first} and end at sector {last}"
                )));
            }
        }
    }
    Ok(partitions)
}

/// Decodes UTF-16 text that ends at the first zero.
fn name(bytes: &[u8]) -> String {
    let units = bytes.chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
    char::decode_utf16(units.take_while(|unit| *unit != 0))
        .map(|char| char.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect()
}
