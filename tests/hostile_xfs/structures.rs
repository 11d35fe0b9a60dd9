//! Finds the structures of a volume by their magic numbers, and repairs their checksums.

use std::fs::File;
use std::os::unix::fs::FileExt;

const SECTOR: usize = 512;

/// The kind of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Superblock,
    Group,
    /// A B+tree block of an allocation group.
    Tree,
    Inode,
    Map,
    Directory,
    Index,
    /// A block of a directory that records free space in the directory's data blocks.
    Room,
    Attribute,
    Remote,
    /// A block of a realtime group: of its bitmap, its summary, or a B+tree.
    Realtime,
    /// A record of the log.
    Record,
}

impl Kind {
    #[allow(dead_code, reason = "the tests of the check name the kinds that they damage")]
    pub(crate) const ALL: [Self; 12] = [
        Self::Superblock,
        Self::Group,
        Self::Tree,
        Self::Inode,
        Self::Map,
        Self::Directory,
        Self::Index,
        Self::Room,
        Self::Attribute,
        Self::Remote,
        Self::Realtime,
        Self::Record,
    ];
}

/// A structure, with its position and the position of its checksum.
#[derive(Clone, Copy)]
pub(crate) struct Structure {
    pub(crate) kind: Kind,
    pub(crate) at: u64,
    pub(crate) len: usize,
    /// The position of the checksum. Volumes of version 4, and log records without a checksum, have `None`.
    crc: Option<usize>,
}

impl Structure {
    pub(crate) fn read(&self, file: &File) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        file.read_exact_at(&mut bytes, self.at).unwrap();
        bytes
    }

    /// Computes the checksum and stores it.
    pub(crate) fn repair(&self, bytes: &mut [u8]) {
        let Some(crc) = self.crc else { return };
        bytes[crc..crc + 4].fill(0);
        let sum = match self.kind {
            Kind::Record => {
                let data = self.len.min(SECTOR + data_len(bytes));
                crc32c::crc32c_append(crc32c::crc32c(&bytes[..328]), &bytes[SECTOR..data])
            }
            _ => crc32c::crc32c(bytes),
        };
        bytes[crc..crc + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn data_len(record: &[u8]) -> usize {
    word(record, 12) as usize
}

/// Finds all structures of a volume. Each log record must have one header block. Linux writes such records if its log buffers are small.
pub(crate) fn find(file: &File) -> Vec<Structure> {
    let mut first = vec![0; SECTOR];
    file.read_exact_at(&mut first, 0).unwrap();
    let block = word(&first, 4) as usize;
    let inode = usize::from(u16::from_be_bytes([first[104], first[105]]));
    let dir_block = block << first[192];
    let mut structures = Vec::new();
    let mut at = 0;
    let mut bytes = vec![0; block.max(dir_block)];
    // The search reads the data of the image file and skips its holes. Most of the volume was never written.
    while let Ok(next) = rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        let Ok(end) = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(next)) else { break };
        let start = next / SECTOR as u64 * SECTOR as u64;
        for at in (start..end).step_by(SECTOR) {
            bytes.fill(0);
            let mut read = 0;
            while read < bytes.len() {
                match file.read_at(&mut bytes[read..], at + read as u64).unwrap() {
                    0 => break,
                    count => read += count,
                }
            }
            if read >= SECTOR {
                structures.extend(known(&bytes[..read], at, (block, dir_block, inode)));
            }
        }
        at = end;
    }
    structures
}

fn known(
    bytes: &[u8],
    at: u64,
    (block, dir_block, inode): (usize, usize, usize),
) -> Option<Structure> {
    let (kind, len, crc) = match &bytes[..4] {
        b"XFSB" => {
            let is_v5 = bytes[101] & 0xF == 5;
            (Kind::Superblock, SECTOR, is_v5.then_some(224))
        }
        // In version 4, the field of the UUID contains zeros.
        b"XAGF" => (Kind::Group, SECTOR, has_any(&bytes[64..80]).then_some(216)),
        b"XAGI" => (Kind::Group, SECTOR, has_any(&bytes[296..312]).then_some(312)),
        b"XAFL" => (Kind::Group, SECTOR, Some(32)),
        b"AB3B" | b"AB3C" | b"IAB3" | b"FIB3" | b"RMB3" | b"R3FC" => (Kind::Tree, block, Some(52)),
        b"ABTB" | b"ABTC" | b"IABT" => (Kind::Tree, block, None),
        b"XDF3" => (Kind::Room, dir_block, Some(4)),
        b"BMPZ" | b"SUMY" => (Kind::Realtime, block, Some(4)),
        b"MAPR" | b"RCNT" => (Kind::Realtime, block, Some(64)),
        b"BMA3" => (Kind::Map, block, Some(64)),
        b"BMAP" => (Kind::Map, block, None),
        b"XDB3" | b"XDD3" => (Kind::Directory, dir_block, Some(4)),
        b"XD2B" | b"XD2D" => (Kind::Directory, dir_block, None),
        b"XSLM" | b"XARM" => (Kind::Remote, block, Some(12)),
        [0xFE, 0xED, 0xBA, 0xBE] => {
            let len = SECTOR + data_len(bytes);
            // Records that are too long for one header block are skipped.
            if len > bytes.len() || word(bytes, 320) > 32 << 10 {
                return None;
            }
            (Kind::Record, len.next_multiple_of(SECTOR), Some(32))
        }
        [b'I', b'N', ..] if matches!(bytes[4], 1..=3) => {
            (Kind::Inode, inode, (bytes[4] == 3).then_some(100))
        }
        // A node of attributes has one block, and a node of a directory may have several. Here the checksum covers the same range in both
        // cases.
        _ => match &bytes[8..10] {
            [0x3D, 0xF1 | 0xFF] | [0x3E, 0xBE] => (Kind::Index, dir_block, Some(12)),
            [0xD2, 0xF1 | 0xFF] | [0xFE, 0xBE] => (Kind::Index, dir_block, None),
            [0x3B, 0xEE] => (Kind::Attribute, block, Some(12)),
            [0xFB, 0xEE] => (Kind::Attribute, block, None),
            _ => return None,
        },
    };
    let fits = bytes.len() >= len && crc.is_none_or(|crc| crc + 4 <= len);
    fits.then_some(Structure { kind, at, len, crc })
}

fn has_any(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| *byte != 0)
}
