//! Recognises the content of a device that is not a file system of ironmap's, so that a refusal can name it.

use crate::device::Device;
use crate::error::{Error, ErrorKind};
use crate::partition::PartitionTable;
use crate::units::DevOffset;

/// The magic number of a format, and its place.
struct Magic {
    at: u64,
    bytes: &'static [u8],
    name: &'static str,
}

const fn magic(at: u64, bytes: &'static [u8], name: &'static str) -> Magic {
    Magic { at, bytes, name }
}

/// Where the superblock of ext2, ext3 and ext4 ends: a smaller device has no room for it.
pub(crate) const SMALLEST: u64 = 2048;

const SWAP: &str = "a Linux swap area, not a file system";
const LUKS: &str = "a LUKS container: unlock it first, and name the device below /dev/mapper";
const LVM: &str = "an LVM physical volume: name a logical volume below /dev/mapper (of an image: losetup -Pf first, then vgchange -ay)";
const RAID: &str = "a member of a Linux RAID array: name the array's device (of an image: losetup -Pf first, then mdadm --assemble --scan)";
const VIRTUAL_DISK: &str =
    "a VDI, VHD or Parallels image: qemu-nbd serves it, and nbd+unix:///?socket=PATH reads it";
const FAT: &str = "a FAT file system: not supported";

/// In the order of trust: a long magic at a place of its own first, two bytes that may be chance last.
const MAGICS: &[Magic] = &[
    magic(0, b"LUKS\xBA\xBE", LUKS),
    magic(65536 + 64, b"_BHRfS_M", "a btrfs file system: not supported"),
    magic(
        4096 + 24,
        &[0xC6, 0x85, 0x73, 0xF6, 0x4E, 0x1A, 0x45, 0xCA],
        "a bcachefs file system: not supported",
    ),
    magic(1024, &[0x10, 0x20, 0xF5, 0xF2], "an F2FS file system: not supported"),
    magic(1024, &[0xE2, 0xE1, 0xF5, 0xE0], "an EROFS file system: not supported"),
    magic(65536 + 52, b"ReIsEr", "a ReiserFS file system: not supported"),
    magic(32768, b"JFS1", "a JFS file system: not supported"),
    magic(32768 + 1, b"CD001", "an ISO 9660 file system: not supported"),
    magic(0, b"hsqs", "a SquashFS file system: not supported"),
    magic(3, b"NTFS    ", "an NTFS file system: not supported"),
    magic(3, b"-FVE-FS-", "a BitLocker volume: not supported"),
    magic(3, b"EXFAT   ", "an exFAT file system: not supported"),
    magic(54, b"FAT12   ", FAT),
    magic(54, b"FAT16   ", FAT),
    magic(82, b"FAT32   ", FAT),
    // The header stands at the end of the first page, whose size is that of the machine that made it.
    magic(4096 - 10, b"SWAPSPACE2", SWAP),
    magic(8192 - 10, b"SWAPSPACE2", SWAP),
    magic(16384 - 10, b"SWAPSPACE2", SWAP),
    magic(65536 - 10, b"SWAPSPACE2", SWAP),
    magic(4096 - 10, b"SWAP-SPACE", SWAP),
    magic(512, b"LABELONE", LVM),
    magic(0, b"LABELONE", LVM),
    magic(0, &[0xFC, 0x4E, 0x2B, 0xA9], RAID),
    magic(4096, &[0xFC, 0x4E, 0x2B, 0xA9], RAID),
    magic(0, b"QFI\xFB", "a qcow2 image: name its format, as in qcow2:FILE"),
    magic(0, b"KDMV", "a VMDK image: name its format, as in vmdk:FILE"),
    magic(0, b"# Disk Descripto", "a VMDK image: name its format, as in vmdk:FILE"),
    magic(0, b"vhdxfile", "a VHDX image: name its format, as in vhdx:FILE"),
    magic(64, &[0x7F, 0x10, 0xDA, 0xBE], VIRTUAL_DISK),
    magic(0, b"conectix", VIRTUAL_DISK),
    magic(0, b"WithoutFreeSpace", VIRTUAL_DISK),
    magic(0, b"WithouFreSpacExt", VIRTUAL_DISK),
    magic(0, b"\xFD7zXZ\0", "compressed with xz: unpack it first"),
    magic(0, &[0x28, 0xB5, 0x2F, 0xFD], "compressed with zstd: unpack it first"),
    magic(0, &[0x1F, 0x8B, 0x08], "compressed with gzip: unpack it first"),
];

/// The content of the device, by its magic numbers: `a btrfs file system: not supported`. `None` where nothing is known.
#[must_use]
pub fn probe(device: &dyn Device) -> Option<&'static str> {
    let found = |magic: &&Magic| {
        let mut bytes = [0; 16];
        let bytes = &mut bytes[..magic.bytes.len()];
        let fits = magic.at + bytes.len() as u64 <= device.size();
        fits && device.read_exact_at(bytes, DevOffset(magic.at)).is_ok() && bytes == magic.bytes
    };
    MAGICS.iter().find(found).map(|magic| magic.name)
}

/// The error for a device without a file system that ironmap knows.
#[must_use]
pub(crate) fn unknown_format(device: &dyn Device) -> Error {
    let what = match device.size() {
        0 => "is empty".to_owned(),
        size => match (probe(device), PartitionTable::read(device)) {
            (Some(what), _) => format!("holds {what}"),
            _ if size < SMALLEST => {
                format!("has only {size} bytes: too small for a file system")
            }
            (None, Ok(Some(table))) => {
                let first = table.partitions.first().map_or(1, |partition| partition.number);
                format!("has a partition table: name one, as in @p{first}; {table}")
            }
            (None, Err(error)) => format!("has a damaged partition table: {error}"),
            (None, Ok(None)) => "holds no ext2, ext3, ext4 or XFS file system".to_owned(),
        },
    };
    Error::new(ErrorKind::UnknownFormat, what)
}

/// The content of a device that a user may still need, as a clause: a format or a partition table. `None` where nothing is known.
pub(crate) fn occupant(device: &dyn Device) -> Option<String> {
    if let Some(what) = probe(device) {
        // How it could be read is of no interest here.
        let what = what.split([':', ',']).next().unwrap_or(what);
        return Some(format!("holds {what}"));
    }
    match PartitionTable::read(device) {
        Ok(None) => None,
        Ok(Some(_)) => Some("has a partition table".to_owned()),
        Err(error) => Some(format!("has a damaged partition table: {error}")),
    }
}
