//! The master boot record (MBR): a table of four entries in sector 0, and a chain of tables within an extended partition.

use std::ops::Range;

use super::{Partition, read_at, u32_at};
use crate::device::Device;
use crate::error::{Place, Result};

pub(super) const TABLE: usize = 446;
const ENTRY_SIZE: usize = 16;
/// The maximum number of logical partitions.
const MAX_LOGICAL: u32 = 256;
/// The type of the entry that declares that the disk has a GPT.
pub(super) const PROTECTIVE: u8 = 0xEE;
const PLACE: Place = Place::new("MBR");

#[derive(Clone, Copy)]
struct Entry {
    status: u8,
    kind: u8,
    first: u64,
    sectors: u64,
}

impl Entry {
    fn is_used(self) -> bool {
        self.kind != 0 && self.sectors != 0
    }

    /// Whether the entry only declares that the disk has a GPT. Such an entry is not a partition. On a hybrid disk, the MBR also has
    /// entries for partitions.
    fn is_protective(self) -> bool {
        self.kind == PROTECTIVE
    }

    fn is_extended(self) -> bool {
        matches!(self.kind, 0x05 | 0x0F | 0x85) && self.is_used()
    }
}

/// Whether the table in sector 0 declares that the disk has a GPT. Returns `None` if there is no table.
pub(super) fn is_protective(device: &dyn Device) -> Result<Option<bool>> {
    let entries = read_table(device, 0)?.filter(is_plausible);
    Ok(entries.map(|entries| entries.iter().any(|entry| entry.is_protective())))
}

/// Whether the four entries can be a partition table. A check of the signature is not sufficient, because boot sectors of file systems end
/// with the same two bytes.
fn is_plausible(entries: &[Entry; 4]) -> bool {
    entries.iter().all(|entry| matches!(entry.status, 0 | 0x80))
        && entries.iter().any(|entry| entry.is_used())
}

/// The partitions, and the byte ranges of all tables.
pub(super) struct Found {
    pub(super) partitions: Vec<Partition>,
    pub(super) tables: Vec<Range<u64>>,
}

/// Reads the partitions, or returns `None` if sector 0 contains no table.
pub(super) fn read(device: &dyn Device, sector: u64) -> Result<Option<Found>> {
    let Some(entries) = read_table(device, 0)? else { return Ok(None) };
    if !is_plausible(&entries) {
        return Ok(None);
    }
    let first = 0..512;
    let mut found = Found { partitions: Vec::new(), tables: vec![first] };
    for (number, entry) in (1..).zip(entries) {
        if entry.is_used() && !entry.is_extended() {
            found.partitions.push(partition(sector, number, 0, entry));
        }
    }
    for extended in entries.into_iter().filter(|entry| entry.is_extended()) {
        logical(device, sector, extended, &mut found)?;
    }
    Ok(Some(found))
}

/// Follows the chain of tables in an extended partition. Each table contains an entry for one logical partition and an entry for the next
/// table. The logical partition's position is relative to its table. The next table's position is relative to the extended partition.
fn logical(device: &dyn Device, sector: u64, extended: Entry, found: &mut Found) -> Result<()> {
    let mut number = 5.max(found.partitions.last().map_or(0, |last| last.number + 1));
    let (mut at, mut before) = (extended.first, None);
    for _ in 0..MAX_LOGICAL {
        if before.is_some_and(|before| at <= before) || at - extended.first >= extended.sectors {
            break;
        }
        if at * sector + 512 > device.size() {
            // The device was truncated before the position of this table, so this table and all later tables of the chain are lost.
            return Ok(());
        }
        found.tables.push(at * sector..(at + 1) * sector);
        let Some(entries) = read_table(device, at * sector)? else {
            return Err(
                PLACE.corrupt(format!("sector {at} contains no table of logical partitions"))
            );
        };
        let [data, next, ..] = entries;
        if data.is_used() {
            found.partitions.push(partition(sector, number, at, data));
            number += 1;
        }
        if !next.is_extended() {
            return Ok(());
        }
        before = Some(at);
        at = extended.first + next.first;
    }
    Err(PLACE.corrupt("the chain of logical partitions does not end"))
}

fn read_table(device: &dyn Device, at: u64) -> Result<Option<[Entry; 4]>> {
    let Some(bytes) = read_at(device, at, 512)? else { return Ok(None) };
    if bytes[510..] != [0x55, 0xAA] {
        return Ok(None);
    }
    Ok(Some([0, 1, 2, 3].map(|index| {
        let entry = &bytes[TABLE + index * ENTRY_SIZE..][..ENTRY_SIZE];
        Entry {
            status: entry[0],
            kind: entry[4],
            first: u64::from(u32_at(entry, 8)),
            sectors: u64::from(u32_at(entry, 12)),
        }
    })))
}

/// No product overflows, because sector numbers and lengths have at most 33 bits, and the sector size has 16 bits. A partition may end past
/// the end of a truncated device.
fn partition(sector: u64, number: u32, base: u64, entry: Entry) -> Partition {
    let (start, len) = ((base + entry.first) * sector, entry.sectors * sector);
    Partition { number, start, len, name: String::new() }
}
