//! Writes a GPT: the protective MBR, and the two copies of the header and of the array of entries.

use std::io::IoSlice;
use std::ops::Range;

use super::gpt::{CRC, ENTRY_SIZE, HEADER_SIZE, SIGNATURE};
use super::mbr;
use crate::bio::Buffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::sorting::Sorting;
use crate::units::DevOffset;

/// Partitions begin at multiples of this number of bytes.
pub const ALIGNMENT: u64 = 1 << 20;
/// The number of entries in the array. The specification requires at least 16 KiB for the array.
const ENTRIES: usize = 128;
/// The maximum length of a name in UTF-16 code units.
const MAX_NAME: usize = 36;

/// A GPT to be written. The bytes of each GUID are in the order of its text form.
#[derive(Clone, Debug)]
pub struct NewTable {
    /// The GUID of the disk.
    pub guid: [u8; 16],
    /// The sector size of the disk in bytes.
    pub sector: u64,
    /// The partitions. The first partition has number 1.
    pub partitions: Vec<NewPartition>,
}

/// A partition of a [`NewTable`].
#[derive(Clone, Debug)]
pub struct NewPartition {
    /// The GUID of the partition's type.
    pub kind: [u8; 16],
    /// The GUID of the partition.
    pub guid: [u8; 16],
    /// The first byte on the device.
    pub start: u64,
    /// The length in bytes.
    pub len: u64,
    /// The attributes: bits 0 to 2 are common to all types, and bits 48 to 63 depend on the type.
    pub attributes: u64,
    /// The name: at most 36 UTF-16 code units.
    pub name: String,
}

/// Returns the byte range that the partitions of a disk of `size` bytes can use, or `None` if the disk is too small for a GPT.
#[must_use]
pub fn usable(size: u64, sector: u64) -> Option<Range<u64>> {
    let array = array_sectors(sector);
    let last = (size / sector).checked_sub(1)?;
    let (first, end) = (2 + array, last.checked_sub(array)?);
    (first < end).then(|| first * sector..end * sector)
}

fn array_sectors(sector: u64) -> u64 {
    ((ENTRIES * ENTRY_SIZE) as u64).div_ceil(sector)
}

impl NewTable {
    /// Writes the table. The backup is durable before the first copy is written. The content of the partitions stays unchanged.
    ///
    /// # Errors
    /// `InvalidInput` for a partition outside of the usable bytes, for overlapping partitions, for too many partitions, and for a name that
    /// is too long; the errors of the device.
    pub fn write(&self, device: &dyn Device) -> Result<()> {
        let (sector, size) = (self.sector, device.size());
        let usable = usable(size, sector)
            .ok_or_else(|| Error::invalid("the disk is too small for a partition table"))?;
        self.check(&usable)?;
        let array = self.array()?;
        let (sectors, last) = (array_sectors(sector), size / sector - 1);
        let header =
            |own: u64, other: u64, first: u64| self.header(own, other, first, &usable, &array);

        let len = sector as usize;
        let mut backup = Buffer::aligned((sectors as usize + 1) * len)?;
        backup.fill(0);
        backup[..array.len()].copy_from_slice(&array);
        let at = sectors as usize * len;
        backup[at..at + HEADER_SIZE].copy_from_slice(&header(last, 1, last - sectors));
        device.write_all_at(
            &[IoSlice::new(&backup)],
            DevOffset((last - sectors) * sector),
            false,
        )?;
        device.flush()?;

        let mut primary = Buffer::aligned((sectors as usize + 2) * len)?;
        primary.fill(0);
        primary[..512].copy_from_slice(&protective_mbr(last));
        primary[len..len + HEADER_SIZE].copy_from_slice(&header(1, last, 2));
        primary[2 * len..2 * len + array.len()].copy_from_slice(&array);
        device.write_all_at(&[IoSlice::new(&primary)], DevOffset(0), false)?;
        device.flush()
    }

    fn check(&self, usable: &Range<u64>) -> Result<()> {
        if self.partitions.len() > ENTRIES {
            return Err(Error::invalid(format!("a disk has at most {ENTRIES} partitions")));
        }
        let mut ranges = Vec::new();
        for (number, partition) in (1..).zip(&self.partitions) {
            let NewPartition { start, len, .. } = *partition;
            let end = start
                .checked_add(len)
                .filter(|end| *end <= usable.end && start >= usable.start && len > 0);
            let aligned = start % self.sector == 0 && len % self.sector == 0;
            let Some(end) = end.filter(|_| aligned) else {
                return Err(Error::invalid(format!(
                    "partition {number} has {len} bytes starting at byte {start}, but partitions can use only whole sectors from byte {} to {}",
                    usable.start, usable.end
                )));
            };
            ranges.push((start, end, number));
        }
        ranges.order();
        match ranges.windows(2).find(|pair| pair[0].1 > pair[1].0) {
            Some(pair) => Err(Error::invalid(format!(
                "the partitions {} and {} overlap",
                pair[0].2, pair[1].2
            ))),
            None => Ok(()),
        }
    }

    /// Returns the array of entries, which is the same in both copies of the table.
    fn array(&self) -> Result<Vec<u8>> {
        let mut array = vec![0; ENTRIES * ENTRY_SIZE];
        for (entry, partition) in array.chunks_exact_mut(ENTRY_SIZE).zip(&self.partitions) {
            let NewPartition { kind, guid, start, len, attributes, name } = partition;
            let (first, end) = (start / self.sector, (start + len) / self.sector);
            entry[..16].copy_from_slice(&stored(*kind));
            entry[16..32].copy_from_slice(&stored(*guid));
            entry[32..40].copy_from_slice(&first.to_le_bytes());
            entry[40..48].copy_from_slice(&(end - 1).to_le_bytes());
            entry[48..56].copy_from_slice(&attributes.to_le_bytes());
            let units: Vec<_> = name.encode_utf16().collect();
            if units.len() > MAX_NAME {
                return Err(Error::invalid(format!(
                    "the name {name:?} is longer than {MAX_NAME} characters"
                )));
            }
            for (to, unit) in entry[56..].chunks_exact_mut(2).zip(units) {
                to.copy_from_slice(&unit.to_le_bytes());
            }
        }
        Ok(array)
    }

    /// Returns a header to be written to sector `own`. The array of entries that belongs to this header begins in sector `first`.
    fn header(
        &self,
        own: u64,
        other: u64,
        first: u64,
        usable: &Range<u64>,
        array: &[u8],
    ) -> [u8; HEADER_SIZE] {
        let mut header = [0; HEADER_SIZE];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, SIGNATURE);
        put(8, &0x0001_0000_u32.to_le_bytes());
        put(12, &(HEADER_SIZE as u32).to_le_bytes());
        put(24, &own.to_le_bytes());
        put(32, &other.to_le_bytes());
        put(40, &(usable.start / self.sector).to_le_bytes());
        put(48, &(usable.end / self.sector - 1).to_le_bytes());
        put(56, &stored(self.guid));
        put(72, &first.to_le_bytes());
        put(80, &(ENTRIES as u32).to_le_bytes());
        put(84, &(ENTRY_SIZE as u32).to_le_bytes());
        put(88, &CRC.checksum(array).to_le_bytes());
        let sum = CRC.checksum(&header);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        header
    }
}

/// Returns the protective MBR of a disk with a GPT. `last` is the last sector of the disk. The only entry covers the disk, so programs that
/// do not support GPT see no free space.
fn protective_mbr(last: u64) -> [u8; 512] {
    let mut mbr = [0; 512];
    let entry = &mut mbr[mbr::TABLE..mbr::TABLE + 16];
    // The fields are the status, the first sector as cylinder, head and sector, the type of the entry, and the last sector. The last sector
    // is the maximum, because the actual value exceeds the limit of cylinder, head and sector.
    entry[..8].copy_from_slice(&[0, 0, 2, 0, mbr::PROTECTIVE, 0xFF, 0xFF, 0xFF]);
    entry[8..12].copy_from_slice(&1_u32.to_le_bytes());
    entry[12..].copy_from_slice(&u32::try_from(last).unwrap_or(u32::MAX).to_le_bytes());
    mbr[510..].copy_from_slice(&[0x55, 0xAA]);
    mbr
}

/// Returns the bytes of a GUID in the stored order: the first three numbers are little-endian.
fn stored(mut guid: [u8; 16]) -> [u8; 16] {
    guid[..4].reverse();
    guid[4..6].reverse();
    guid[6..8].reverse();
    guid
}

#[cfg(test)]
mod tests {
    use super::super::{Partition, PartitionTable, TableKind};
    use super::*;
    use crate::device::Ram;

    const MIB: u64 = 1 << 20;

    fn part(start: u64, len: u64, name: &str) -> NewPartition {
        let (kind, guid, name) = ([1; 16], [start as u8 ^ 7; 16], name.to_owned());
        NewPartition { kind, guid, start, len, attributes: 0, name }
    }

    fn table(sector: u64, partitions: Vec<NewPartition>) -> NewTable {
        NewTable { guid: [3; 16], sector, partitions }
    }

    /// For both sector sizes, the reader finds the partitions that the writer wrote, and reports no fault.
    #[test]
    fn a_written_table_is_read_back() {
        for sector in [512, 4096] {
            let disk = Ram::new(16 * MIB);
            let parts = vec![part(MIB, 2 * MIB, "Größe"), part(4 * MIB, 4096, "")];
            table(sector, parts).write(&disk).unwrap();
            let read = PartitionTable::read(&disk).unwrap().unwrap();
            let expected = [(1, MIB, 2 * MIB, "Größe"), (2, 4 * MIB, 4096, "")];
            let expected = expected.map(|(number, start, len, name)| Partition {
                number,
                start,
                len,
                name: name.to_owned(),
            });
            assert_eq!((read.kind, &*read.partitions), (TableKind::Gpt, &expected[..]));
            assert_eq!(read.fault, None);
            // The last sector contains the backup, which is used if the first header is lost.
            disk.write_zeroes(DevOffset(sector), 4096).unwrap();
            let read = PartitionTable::read(&disk).unwrap().unwrap();
            assert_eq!((&*read.partitions, read.fault.is_some()), (&expected[..], true));
        }
    }

    /// A table with overlapping, misplaced or too many partitions is refused before anything is written.
    #[test]
    fn impossible_tables_are_refused() {
        let disk = Ram::new(16 * MIB);
        let usable = usable(disk.size(), 512).unwrap();
        for (parts, what) in [
            (vec![part(MIB, 2 * MIB, ""), part(2 * MIB, MIB, "")], "overlap"),
            (vec![part(15 * MIB, MIB, "")], "can use only whole sectors"),
            (vec![part(usable.start - 512, 512, "")], "can use only whole sectors"),
            (vec![part(MIB, 100, "")], "can use only whole sectors"),
            (vec![part(MIB, u64::MAX - 100, "")], "can use only whole sectors"),
            (vec![part(MIB, MIB, &"x".repeat(37))], "is longer than 36"),
            (vec![part(MIB, MIB, ""); 129], "at most 128"),
        ] {
            let error = table(512, parts).write(&disk).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
        assert_eq!(PartitionTable::read(&disk).unwrap(), None);
        assert!(table(512, Vec::new()).write(&Ram::new(4096)).is_err());
    }
}
