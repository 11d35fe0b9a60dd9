//! Partition tables of whole disks and their images: GPT, and MBR with its logical partitions.

mod gpt;
mod mbr;

use std::fmt;

use crate::device::Device;
use crate::error::{ErrorKind, Result};
use crate::units::DevOffset;

/// The kinds of partition table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// GUID partition table, of UEFI.
    Gpt,
    /// Master boot record, of the PC BIOS.
    Mbr,
}

/// A partition table, checked: every partition lies within the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionTable {
    /// Which kind.
    pub kind: TableKind,
    /// The partitions in the order of their numbers; unused numbers are left out.
    pub partitions: Vec<Partition>,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number as Linux counts: from 1, an MBR's logical partitions from 5.
    pub number: u32,
    /// First byte on the device.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Its name, where the table records one.
    pub name: String,
}

impl PartitionTable {
    /// Reads the device's partition table; `None` if it has no table.
    ///
    /// # Errors
    /// `Corrupt` where both copies of a GPT are damaged, or the table contradicts itself or the device; `Io`.
    pub fn read(device: &dyn Device) -> Result<Option<Self>> {
        // Images are in sectors of 512 bytes, seldom of 4096; a block device says its own. The unit of an NBD server says nothing of them. The
        // GPT's signature decides.
        let sector = u64::from(device.limits().logical_block).max(512);
        for sector in [sector, 512, 4096] {
            if let Some(partitions) = gpt::read(device, sector)? {
                return Ok(Some(Self { kind: TableKind::Gpt, partitions }));
            }
        }
        let partitions = match mbr::read(device, sector) {
            // Larger than the device.
            Err(error) if sector > 512 && error.kind() == ErrorKind::Corrupt => {
                mbr::read(device, 512).map_err(|_| error)?
            }
            partitions => partitions?,
        };
        Ok(partitions.map(|partitions| Self { kind: TableKind::Mbr, partitions }))
    }
}

impl fmt::Display for TableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpt => "GPT",
            Self::Mbr => "MBR",
        })
    }
}

/// One line: `its GPT has p1 (100 MiB, "boot"), p2 (2 GiB)`.
impl fmt::Display for PartitionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, partitions } = self;
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

/// Reads sectors, or gives `None` where they are not within the device.
fn read_at(device: &dyn Device, at: u64, len: usize) -> Result<Option<Vec<u8>>> {
    if at.checked_add(len as u64).is_none_or(|end| end > device.size()) {
        return Ok(None);
    }
    let mut bytes = vec![0; len];
    device.read_exact_at(&mut bytes, DevOffset(at))?;
    Ok(Some(bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
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

    /// A sparse image with a table made by a partitioner; `None`, and said so, where that program is not there.
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
        assert_eq!(table.to_string(), r#"its GPT has p1 (8 MiB, "boot"), p3 (16 MiB, "Größe")"#);
    }

    #[test]
    fn a_damaged_gpt_is_read_from_its_backup_and_never_believed() {
        // A byte of the header's fields, and one of the entries: both are covered by checksums.
        for at in [512 + 72, 1024 + 33] {
            let Some(image) = gpt_disk() else { return };
            flip(&image, at);
            assert_eq!(table(image.path()).unwrap().unwrap().partitions, gpt_parts());
            flip(&image, 64 * MIB - 512 + 72);
            assert_eq!(table(image.path()).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn a_gpt_cut_short_is_corrupt_where_a_partition_exceeds_the_image() {
        let Some(image) = gpt_disk() else { return };
        image.as_file().set_len(20 * MIB).unwrap();
        let error = table(image.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        image.as_file().set_len(40 * MIB).unwrap();
        assert_eq!(table(image.path()).unwrap().unwrap().partitions, gpt_parts());
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
    }

    /// An MBR by hand: a primary partition or an extended one in sector `at`'s slot.
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
        // A boot sector ends in 55 AA too; its code reads as entries with impossible status bytes.
        image.as_file().write_all_at(&[0xEB; 510], 0).unwrap();
        image.as_file().write_all_at(&[0x55, 0xAA], 510).unwrap();
        assert_eq!(table(image.path()).unwrap(), None);
        image.as_file().set_len(300).unwrap();
        assert_eq!(table(image.path()).unwrap(), None);
    }
}
