//! Partition tables of whole disks and their images: GPT, and MBR with its logical partitions.

mod gpt;
pub mod kinds;
mod make;
mod mbr;

use std::fmt;
use std::ops::Range;

pub use self::make::{ALIGNMENT, NewPartition, NewTable, usable};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::units::DevOffset;

/// The kinds of partition table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// GUID partition table (UEFI).
    Gpt,
    /// Master boot record (PC BIOS).
    Mbr,
}

/// A partition table that has passed all checks. On a truncated device, a partition may end past the end of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionTable {
    /// The kind of the table.
    pub kind: TableKind,
    /// The partitions in the order of their numbers, without unused numbers.
    pub partitions: Vec<Partition>,
    /// A text for the user about an ignored fault, for example the loss of the first copy of a GPT.
    pub fault: Option<String>,
    /// The byte ranges of the table itself: both copies of a GPT, or all tables of an MBR with logical partitions. No partition can use
    /// them.
    pub tables: Vec<Range<u64>>,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The number of the partition, as in Linux. Numbers begin at 1. The logical partitions of an MBR begin at 5.
    pub number: u32,
    /// The first byte on the device.
    pub start: u64,
    /// The length in bytes.
    pub len: u64,
    /// The name of the partition, if the table contains names.
    pub name: String,
}

impl Partition {
    /// Returns the first byte of the partition, and its length on a device of `size` bytes. If `truncated` is set and the partition ends
    /// past the end of the device, this is the length of the part that is on the device.
    ///
    /// # Errors
    /// `Corrupt` if the partition ends past the end of the device, unless `truncated` is set and at least one byte is on the device.
    pub fn within(&self, size: u64, truncated: bool) -> Result<(u64, u64)> {
        let Self { number, start, len, .. } = *self;
        let rest = size.saturating_sub(start);
        if len <= rest || rest > 0 && truncated {
            return Ok((start, len.min(rest)));
        }
        let end = start.saturating_add(len);
        let hint = if rest > 0 { ": --truncated reads the remaining part" } else { "" };
        Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "partition {number} has bytes {start} to {end}, but the device has only {size} bytes{hint}"
            ),
        ))
    }
}

impl PartitionTable {
    /// Reads the partition table of a device. Returns `None` if the device has no table.
    ///
    /// # Errors
    /// `Corrupt` for a GPT if both copies are damaged or lost, if the copies disagree, or if only the backup remains; `Corrupt` for a table
    /// that contains contradictions; `Io`.
    pub fn read(device: &dyn Device) -> Result<Option<Self>> {
        // A block device reports its sector size. An image usually has sectors of 512 bytes, and rarely sectors of 4096 bytes. The block
        // size of an NBD server says nothing about the sector size. Therefore, this code tries several sizes until it finds the signature
        // of a GPT.
        let sector = u64::from(device.limits().logical_block).max(512);
        let sectors = [sector, 512, 4096];
        // If there is an MBR that does not declare a GPT, any GPT on the disk is older than the MBR. Like Linux, this code ignores such a
        // GPT.
        let protective = mbr::is_protective(device)?;
        if protective != Some(false)
            && let Some(found) = gpt::read(device, sectors, protective.is_some())?
        {
            let gpt::Found { partitions, fault, usable } = found;
            let tables = vec![0..usable.start, usable.end..u64::MAX];
            return Ok(Some(Self { kind: TableKind::Gpt, partitions, fault, tables }));
        }
        let found = match mbr::read(device, sector) {
            Err(error) if sector > 512 && error.kind() == ErrorKind::Corrupt => {
                mbr::read(device, 512).map_err(|_| error)?
            }
            // If partitions end past the end of the device, the table may count in units of 512 bytes, so this code reads the table again
            // with this unit.
            Ok(Some(found)) if sector > 512 && !fit(&found.partitions, device) => {
                mbr::read(device, 512)?.or(Some(found))
            }
            found => found?,
        };
        let Some(mbr::Found { partitions, tables }) = found else {
            gpt::refuse_lone_backup(device, sectors)?;
            return Ok(None);
        };
        Ok(Some(Self { kind: TableKind::Mbr, partitions, fault: None, tables }))
    }

    /// If a partition contains `offset`, returns the end of this partition. Otherwise, returns the start of the next partition, or the
    /// start of the table's next bytes if they come first.
    #[must_use]
    pub fn end_from(&self, offset: u64) -> u64 {
        let ends = self.partitions.iter().filter_map(|partition| {
            let end = partition.start.saturating_add(partition.len);
            [partition.start, end].into_iter().find(|end| *end > offset)
        });
        let tables = self.tables.iter().map(|table| table.start).filter(|start| *start > offset);
        // A damaged table may contain a partition that overlaps the bytes of the table itself. Therefore, the start of a table counts as an
        // end only if the offset is not in a partition.
        let tables = tables.filter(|_| !self.is_in_partition(offset));
        ends.chain(tables).min().unwrap_or(u64::MAX)
    }

    /// Whether a byte of the device belongs to the partition table and not to a partition.
    #[must_use]
    pub fn has_byte(&self, at: u64) -> bool {
        self.tables.iter().any(|table| table.contains(&at)) && !self.is_in_partition(at)
    }

    fn is_in_partition(&self, at: u64) -> bool {
        let within = |partition: &Partition| {
            at.checked_sub(partition.start).is_some_and(|into| into < partition.len)
        };
        self.partitions.iter().any(within)
    }
}

/// Whether all partitions end within the device.
fn fit(partitions: &[Partition], device: &dyn Device) -> bool {
    partitions.iter().all(|Partition { start, len, .. }| start + len <= device.size())
}

impl fmt::Display for TableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpt => "GPT",
            Self::Mbr => "MBR",
        })
    }
}

/// Shows the table in one line: `its GPT has p1 (100 MiB, "boot"), p2 (2 GiB)`.
impl fmt::Display for PartitionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, partitions, .. } = self;
        write!(f, "its {kind} has ")?;
        if partitions.is_empty() {
            f.write_str("no partitions")?;
        }
        for (index, Partition { number, len, name, .. }) in partitions.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}p{number} ({} MiB", len >> 20)?;
            if !name.is_empty() {
                write!(f, ", {name:?}")?;
            }
            f.write_str(")")?;
        }
        Ok(())
    }
}

/// Reads sectors. Returns `None` unless all of the sectors are within the device.
fn read_at(device: &dyn Device, at: u64, len: usize) -> Result<Option<Vec<u8>>> {
    if at.checked_add(len as u64).is_none_or(|end| end > device.size()) {
        return Ok(None);
    }
    let mut bytes = vec![0; len];
    device.read_exact_at(&mut bytes, DevOffset(at))?;
    Ok(Some(bytes))
}

/// Returns the little-endian 32-bit number at byte `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default())
}

/// Returns the little-endian 64-bit number at byte `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::sync::Arc;

    use super::*;
    use crate::device::{BlockFile, OpenMode, Psync};
    use crate::error::ErrorKind;

    const MIB: u64 = 1 << 20;

    /// Creates a sparse image and runs a partitioning program on it. If the program is missing, prints a message and returns `None`.
    fn disk(program: &str, args: &[&str], script: &str) -> Option<tempfile::NamedTempFile> {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(64 * MIB).unwrap();
        let child = Command::new(program)
            .args(args)
            .arg(image.path())
            .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        let Ok(mut child) = child else {
            eprintln!("skipped: {program} is not installed");
            return None;
        };
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "{program}");
        Some(image)
    }

    fn gpt_disk() -> Option<tempfile::NamedTempFile> {
        disk("sgdisk", &["-n", "1:2048:+8M", "-c", "1:boot", "-n", "3:0:+16M", "-c", "3:Größe"], "")
    }

    fn table(path: &Path) -> Result<Option<PartitionTable>> {
        let mode = OpenMode { direct: false, exclusive: false, ..OpenMode::default() };
        PartitionTable::read(&Psync::new(Arc::new(BlockFile::open(path, &mode).unwrap())))
    }

    fn part(number: u32, start: u64, len: u64, name: &str) -> Partition {
        Partition { number, start, len, name: name.to_owned() }
    }

    fn gpt_parts() -> Vec<Partition> {
        vec![part(1, MIB, 8 * MIB, "boot"), part(3, 9 * MIB, 16 * MIB, "Größe")]
    }

    fn flip(image: &tempfile::NamedTempFile, at: u64) {
        let mut byte = [0];
        image.as_file().read_exact_at(&mut byte, at).unwrap();
        image.as_file().write_all_at(&[byte[0] ^ 0x40], at).unwrap();
    }

    #[test]
    fn a_gpt_is_read_as_sgdisk_wrote_it() {
        let Some(image) = gpt_disk() else { return };
        let table = table(image.path()).unwrap().unwrap();
        assert_eq!((table.kind, &table.partitions), (TableKind::Gpt, &gpt_parts()));
        assert_eq!(table.tables, [0..34 * 512, 64 * MIB - 33 * 512..u64::MAX]);
        assert_eq!(table.to_string(), r#"its GPT has p1 (8 MiB, "boot"), p3 (16 MiB, "Größe")"#);
    }

    /// A user can select a part of the disk by the first byte of the part. The part ends at the end of its partition, at the start of the
    /// next partition, or at the backup of the table.
    #[test]
    fn a_place_ends_where_a_partition_begins_or_ends() {
        let Some(image) = gpt_disk() else { return };
        let table = table(image.path()).unwrap().unwrap();
        let backup = 64 * MIB - 33 * 512;
        for (offset, end, is_table) in [
            (0, MIB, true),
            (17 * 512, MIB, true),
            (34 * 512, MIB, false),
            (MIB, 9 * MIB, false),
            (2 * MIB, 9 * MIB, false),
            (9 * MIB, 25 * MIB, false),
            (25 * MIB, backup, false),
            (backup, u64::MAX, true),
        ] {
            assert_eq!(
                (table.end_from(offset), table.has_byte(offset)),
                (end, is_table),
                "{offset}"
            );
        }
    }

    #[test]
    fn a_damaged_gpt_is_read_from_its_backup_and_never_used() {
        // The first round damages a byte of the header, and the second round damages a byte of the entries. Checksums cover both.
        for at in [512 + 72, 1024 + 33] {
            let Some(image) = gpt_disk() else { return };
            flip(&image, at);
            assert_eq!(table(image.path()).unwrap().unwrap().partitions, gpt_parts());
            flip(&image, 64 * MIB - 512 + 72);
            assert_eq!(table(image.path()).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }

    /// If the first copy of a table is lost, the backup is used and the table reports a fault. If the backup is lost, the table reports no
    /// fault. If both copies are lost, the disk is refused.
    #[test]
    fn a_gpt_is_read_by_the_copy_that_is_left() {
        const LAST: u64 = 64 * MIB - 512;
        let zero = |image: &tempfile::NamedTempFile, sectors: &[u64]| {
            for at in sectors {
                image.as_file().write_all_at(&[0; 512], *at).unwrap();
            }
        };
        // Each case consists of the lost sectors and the expected result: an error, or whether the table has a fault.
        for (lost, expected) in [
            (&[][..], Ok(false)),
            (&[LAST], Ok(false)),
            (&[512], Ok(true)),
            (&[512, LAST], Err("the header in sector 1 and the backup")),
            (&[0, 512], Err("only the backup in sector 131071 is left")),
            (&[0], Ok(false)),
        ] {
            let Some(image) = gpt_disk() else { return };
            zero(&image, lost);
            match (table(image.path()), expected) {
                (Ok(Some(table)), Ok(fault)) => {
                    assert_eq!((table.kind, table.partitions), (TableKind::Gpt, gpt_parts()));
                    assert_eq!(table.fault.is_some(), fault, "{lost:?}: {:?}", table.fault);
                }
                (Err(error), Err(what)) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{lost:?}");
                    assert!(error.to_string().contains(what), "{lost:?}: {error}");
                }
                (found, _) => panic!("{lost:?}: {found:?}"),
            }
        }
        let Some(image) = gpt_disk() else { return };
        zero(&image, &[0, 512, LAST]);
        assert_eq!(table(image.path()).unwrap(), None);
    }

    /// A copy of the table counts as a backup only at the position that the table names.
    #[test]
    fn copies_that_disagree_are_refused_and_older_ones_are_not_copies() {
        let (Some(image), Some(other)) = (gpt_disk(), gpt_disk()) else { return };
        let mut copy = [0; 33 * 512];
        other.as_file().read_exact_at(&mut copy, 64 * MIB - 33 * 512).unwrap();
        image.as_file().write_all_at(&copy, 64 * MIB - 33 * 512).unwrap();
        let error = table(image.path()).unwrap_err().to_string();
        assert!(error.contains("its backup in sector 131071 disagree"), "{error}");
        // The disk is copied to a larger disk. The end of the larger disk contains the backup of an older table.
        let Some(image) = gpt_disk() else { return };
        image.as_file().set_len(128 * MIB).unwrap();
        let Some(larger) = disk("sh", &["-c", "truncate -s 128M $0; sgdisk -n 1 $0"], "") else {
            return;
        };
        larger.as_file().read_exact_at(&mut copy, 128 * MIB - 33 * 512).unwrap();
        image.as_file().write_all_at(&copy, 128 * MIB - 33 * 512).unwrap();
        let found = table(image.path()).unwrap().unwrap();
        assert_eq!((found.partitions, found.fault), (gpt_parts(), None));
    }

    /// On a hybrid disk, only the partitions of the GPT are used. The partitions in the MBR are ignored.
    #[test]
    fn a_hybrid_table_is_read_only_by_its_gpt() {
        let Some(image) = gpt_disk() else { return };
        entry(&image, 0, 1, 0x83, 2048, 16384);
        assert_eq!(table(image.path()).unwrap().unwrap().partitions, gpt_parts());
        image.as_file().write_all_at(&[0; 512], 512).unwrap();
        let found = table(image.path()).unwrap().unwrap();
        assert_eq!((found.partitions, found.fault.is_some()), (gpt_parts(), true));
        image.as_file().write_all_at(&[0; 512], 64 * MIB - 512).unwrap();
        assert_eq!(table(image.path()).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_partition_may_end_past_a_disk_that_was_cut_short() {
        for len in [20 * MIB, 40 * MIB] {
            let Some(image) = gpt_disk() else { return };
            image.as_file().set_len(len).unwrap();
            assert_eq!(table(image.path()).unwrap().unwrap().partitions, gpt_parts());
        }
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(4 * MIB).unwrap();
        entry(&image, 0, 0, 0x83, 2048, 2048);
        entry(&image, 0, 1, 5, 4096, 32768);
        // The first logical partition ends past the end of the device. The table of the second logical partition is past the end of the
        // device, so the second partition is lost.
        entry(&image, 4096, 0, 0x83, 2048, 8192);
        entry(&image, 4096, 1, 5, 16384, 8192);
        let expected = [part(1, MIB, MIB, ""), part(5, 3 * MIB, 4 * MIB, "")];
        assert_eq!(table(image.path()).unwrap().unwrap().partitions, expected);
    }

    #[test]
    fn an_mbr_with_logical_partitions_is_read_as_sfdisk_wrote_it() {
        let script = "label: dos\nstart=2048, size=8192, type=83\n\
                      start=12288, size=65536, type=5\nstart=14336, size=4096, type=83\n\
                      start=20480, size=8192, type=82\n";
        let Some(image) = disk("sfdisk", &["-q", "--no-reread"], script) else { return };
        let table = table(image.path()).unwrap().unwrap();
        assert_eq!(table.kind, TableKind::Mbr);
        let expected = [
            part(1, MIB, 4 * MIB, ""),
            part(5, 7 * MIB, 2 * MIB, ""),
            part(6, 10 * MIB, 4 * MIB, ""),
        ];
        assert_eq!(table.partitions, expected);
        // A part of the disk that begins before a table in the chain of logical partitions ends where this table begins. The bytes of a
        // table do not belong to any partition.
        let [_, chain @ ..] = &table.tables[..] else { panic!("{:?}", table.tables) };
        assert_eq!(chain.len(), 2);
        for at in chain {
            assert_eq!(table.end_from(at.start - 512), at.start);
            assert!(table.has_byte(at.start) && table.has_byte(at.end - 1));
            assert!(!table.has_byte(at.end));
        }
    }

    /// Writes an entry for a primary or extended partition to a slot of the table in sector `at`.
    fn entry(image: &tempfile::NamedTempFile, at: u64, slot: u64, kind: u8, start: u32, len: u32) {
        let mut bytes = [0; 16];
        bytes[4] = kind;
        bytes[8..12].copy_from_slice(&start.to_le_bytes());
        bytes[12..].copy_from_slice(&len.to_le_bytes());
        image.as_file().write_all_at(&bytes, at * 512 + 446 + slot * 16).unwrap();
        image.as_file().write_all_at(&[0x55, 0xAA], at * 512 + 510).unwrap();
    }

    #[test]
    fn a_chain_of_logical_partitions_that_loops_is_corrupt() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(MIB).unwrap();
        entry(&image, 0, 0, 5, 64, 1024);
        entry(&image, 64, 0, 0x83, 8, 8);
        entry(&image, 64, 1, 5, 0, 64);
        assert_eq!(table(image.path()).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn sectors_that_only_look_like_a_table_are_none() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(MIB).unwrap();
        assert_eq!(table(image.path()).unwrap(), None);
        // A boot sector of a file system also ends with 55 AA. If its code is read as a partition table, the status bytes of the entries
        // are wrong.
        image.as_file().write_all_at(&[0xEB; 510], 0).unwrap();
        image.as_file().write_all_at(&[0x55, 0xAA], 510).unwrap();
        assert_eq!(table(image.path()).unwrap(), None);
        image.as_file().set_len(300).unwrap();
        assert_eq!(table(image.path()).unwrap(), None);
    }
}
