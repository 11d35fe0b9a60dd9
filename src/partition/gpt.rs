//! The GUID partition table, after chapter 5 of the UEFI specification: a header in sector 1 and its backup in the last
//! sector, each with an array of entries; CRC-32 over both.

use super::{Partition, read_at, u32_at, u64_at};
use crate::device::Device;
use crate::error::{Error, Place, Result};

const SIGNATURE: &[u8] = b"EFI PART";
const HEADER_SIZE: usize = 92;
const ENTRY_SIZE: usize = 128;
/// The usual array has 16 KiB; the specification sets no upper bound.
const MAX_ENTRIES: usize = 1 << 20;
const PLACE: Place = Place::new("GPT header");
const CRC: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC);

/// The partitions by the primary table, by the backup where the primary is damaged; `None` where there is neither.
pub(super) fn read(device: &dyn Device, sector: u64) -> Result<Option<Vec<Partition>>> {
    let Some(primary) = read_copy(device, sector, 1)? else {
        // Without a primary signature a backup is believed only if it is whole: it may be left from an older table.
        return Ok(None);
    };
    let damage = match primary {
        Ok(partitions) => return Ok(Some(partitions)),
        Err(damage) => damage,
    };
    let last = (device.size() / sector).saturating_sub(1);
    match read_copy(device, sector, last)? {
        Some(Ok(partitions)) => Ok(Some(partitions)),
        _ => Err(damage),
    }
}

/// One copy of the table: `None` without a signature, the damage where it fails a check.
fn read_copy(device: &dyn Device, sector: u64, lba: u64) -> Result<Option<Result<Vec<Partition>>>> {
    let at = lba * sector;
    let Some(header) = read_at(device, at, sector as usize)? else { return Ok(None) };
    if !header.starts_with(SIGNATURE) {
        return Ok(None);
    }
    match check(device, sector, lba, &header) {
        Ok(entries) => Ok(Some(decode(device, sector, &entries))),
        Err(damage) => Ok(Some(Err(damage))),
    }
}

/// Checks the header and gives the array of entries, each [`ENTRY_SIZE`] bytes of it.
fn check(device: &dyn Device, sector: u64, lba: u64, header: &[u8]) -> Result<Vec<Vec<u8>>> {
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
        return Err(field.corrupt(format!("{count} entries of {size} bytes")));
    };
    let first = u64_at(header, 72);
    let array = match first.checked_mul(sector) {
        Some(at) => read_at(device, at, total)?,
        None => None,
    };
    let Some(array) = array else {
        return Err(PLACE.field("PartitionEntryLBA").corrupt(format!("{first} is off the device")));
    };
    verify("PartitionEntryArrayCRC32", u32_at(header, 88), &array)?;
    Ok(array.chunks_exact(size).map(|entry| entry[..ENTRY_SIZE].to_vec()).collect())
}

fn verify(field: &'static str, stored: u32, bytes: &[u8]) -> Result<()> {
    let computed = CRC.checksum(bytes);
    if stored == computed { Ok(()) } else { Err(PLACE.field(field).bad_checksum(stored, computed)) }
}

fn decode(device: &dyn Device, sector: u64, entries: &[Vec<u8>]) -> Result<Vec<Partition>> {
    let mut partitions = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        if entry[..16] == [0; 16] {
            continue;
        }
        let number = index as u32 + 1;
        let (first, last) = (u64_at(entry, 32), u64_at(entry, 40));
        let start = first.checked_mul(sector);
        let end = last.checked_add(1).and_then(|end| end.checked_mul(sector));
        match (start, end) {
            (Some(start), Some(end)) if start < end && end <= device.size() => {
                let (len, name) = (end - start, name(&entry[56..ENTRY_SIZE]));
                partitions.push(Partition { number, start, len, name });
            }
            _ => return Err(outside(device, number, first, last)),
        }
    }
    Ok(partitions)
}

fn outside(device: &dyn Device, number: u32, first: u64, last: u64) -> Error {
    let size = device.size();
    Place::new("GPT entry").corrupt(format!(
        "partition {number} has sectors {first} to {last}, the device only {size} bytes"
    ))
}

/// UTF-16, up to the first zero.
fn name(bytes: &[u8]) -> String {
    let units = bytes.chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
    char::decode_utf16(units.take_while(|unit| *unit != 0))
        .map(|char| char.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect()
}
