//! Formats whose magic number is short or has no fixed position. For these formats, the functions also check other fields of the header.

use super::magics::{At, FAT};

/// A format that a function recognises by checking some bytes of the device.
pub(super) struct Checked {
    pub(super) name: &'static str,
    pub(super) places: &'static [At],
    /// The number of bytes that the function receives. Near the end of a device, it receives fewer bytes.
    pub(super) len: usize,
    pub(super) check: fn(&[u8]) -> bool,
}

const LAST_SECTOR: &[At] = &[At::End { unit: 512, back: 512 }];
/// The positions of ZFS uberblocks. ZFS has four labels, two at each end of the device. The second half of each label contains copies of
/// the pool's uberblock.
const ZFS_LABELS: &[At] = &[
    At::Start(128 << 10),
    At::Start((256 + 128) << 10),
    At::End { unit: 256 << 10, back: (512 - 128) << 10 },
    At::End { unit: 256 << 10, back: (256 - 128) << 10 },
];
/// The number of bytes in which to search for the first record header of an external XFS log. The log may begin within a record.
const LOG_START: usize = 256 << 10;

pub(super) const CHECKED: &[Checked] = &[
    Checked {
        name: "a member of a ZFS pool: not supported",
        places: ZFS_LABELS,
        len: 128 << 10,
        check: is_zfs,
    },
    Checked {
        name: "the log of an XFS volume: not a file system",
        places: &[At::Start(0)],
        len: LOG_START,
        check: is_xfs_log,
    },
    Checked {
        name: "a member of a RAID array of the machine's firmware: name the array's device",
        places: LAST_SECTOR,
        len: 512,
        check: is_firmware_raid,
    },
    Checked {
        name: "a Minix file system: not supported",
        places: &[At::Start(1024)],
        len: 32,
        check: is_minix,
    },
    Checked {
        name: "an HFS file system: not supported",
        places: &[At::Start(1024)],
        len: 64,
        check: is_hfs,
    },
    Checked {
        name: "a Sun partition table: not supported",
        places: &[At::Start(0)],
        len: 512,
        check: is_sun_label,
    },
    Checked { name: FAT, places: &[At::Start(0)], len: 512, check: is_fat },
];

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |two| u16::from_le_bytes([two[0], two[1]]))
}

/// An uberblock begins with 0x00BAB10C as a 64-bit number in either byte order. Its length is 1 KiB or more.
fn is_zfs(bytes: &[u8]) -> bool {
    const MAGIC: u64 = 0x00BA_B10C;
    bytes.chunks_exact(1024).any(|slot| {
        slot.starts_with(&MAGIC.to_le_bytes()) || slot.starts_with(&MAGIC.to_be_bytes())
    })
}

/// A record header contains the magic number of the log, version 1 or 2, and one of three formats.
fn is_xfs_log(bytes: &[u8]) -> bool {
    bytes.chunks_exact(512).any(|sector| {
        sector.starts_with(&[0xFE, 0xED, 0xBA, 0xBE])
            && matches!(sector[4..12], [_, _, _, _, 0, 0, 0, 1 | 2])
            && matches!(sector[300..304], [0, 0, 0, 1..=3])
    })
}

/// Whether a sector contains the RAID metadata of one of three vendors. VIA: the number 0xAA55, a version of at most 2, and a checksum of
/// 50 bytes. Silicon Image: a number at byte 96, and a checksum of words. JMicron: the letters `JM`, and a checksum of words.
fn is_firmware_raid(sector: &[u8]) -> bool {
    if sector.len() < 512 {
        return false;
    }
    let sum = |words: usize| {
        (0..words).fold(0_u16, |sum, word| sum.wrapping_add(u16_at(sector, 2 * word)))
    };
    let via = u16_at(sector, 0) == 0xAA55
        && sector[2] <= 2
        && sector[..50].iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)) == sector[50];
    let silicon =
        sector[96..100] == [0, 0, 0, 0x2F] && sum(0x9F).wrapping_neg() == u16_at(sector, 0x13E);
    let jmicron = sector.starts_with(b"JM") && matches!(sum(64), 0 | 1);
    via || silicon || jmicron
}

/// Whether the bytes are a Minix superblock: it contains a magic number in either byte order, its inode map is large enough for the inodes,
/// and the data begin after the maps.
fn is_minix(bytes: &[u8]) -> bool {
    if bytes.len() < 32 {
        return false;
    }
    let order = |at: usize, swapped: bool| match swapped {
        true => u16_at(bytes, at).swap_bytes(),
        false => u16_at(bytes, at),
    };
    [false, true].into_iter().any(|swapped| {
        let old = matches!(order(16, swapped), 0x137F | 0x138F | 0x2468 | 0x2478);
        let new = order(24, swapped) == 0x4D5A;
        // In version 3, a 32-bit number precedes the fields that are checked here.
        let at = if new { 6 } else { 4 };
        let inodes = if new { 1 } else { u32::from(order(0, swapped)) };
        let (inode_map, zone_map) = (order(at, swapped), order(at + 2, swapped));
        let bits = u32::from(inode_map) * 8192;
        let zone_log = order(at + 6, swapped);
        (old || new)
            && (1..=bits).contains(&inodes)
            && zone_map > 0
            && order(at + 4, swapped) > 2
            && zone_log <= 10
    })
}

/// Whether the bytes are a Sun disk label: it contains two magic bytes near its end, and the XOR of all its 16-bit words is 0.
fn is_sun_label(bytes: &[u8]) -> bool {
    let (words, _) = bytes.as_chunks::<2>();
    bytes.get(508..510) == Some(&[0xDA, 0xBE])
        && words.iter().fold(0, |sum, word| sum ^ u16::from_be_bytes(*word)) == 0
}

/// Whether the bytes are an HFS volume header: it begins with two letters, and the size of an allocation block is a multiple of 512 bytes.
fn is_hfs(bytes: &[u8]) -> bool {
    let size = bytes
        .get(20..24)
        .map_or(0, |four| u32::from_be_bytes([four[0], four[1], four[2], four[3]]));
    bytes.starts_with(b"BD") && size > 0 && size.is_multiple_of(512)
}

/// Whether a sector is a FAT boot sector without a format name, as old programs wrote it: it has a jump instruction, FAT parameters and the
/// boot signature.
fn is_fat(sector: &[u8]) -> bool {
    sector.len() == 512
        && matches!(sector[0], 0xEB | 0xE9)
        && sector[510..] == [0x55, 0xAA]
        && matches!(u16_at(sector, 11), 512 | 1024 | 2048 | 4096)
        && sector[13].is_power_of_two()
        && u16_at(sector, 14) > 0
        && matches!(sector[16], 1 | 2)
        && matches!(sector[21], 0xF0 | 0xF8..)
}
