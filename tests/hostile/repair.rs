//! Repairs the checksums of a damaged volume. So tests also reach the code that runs after the verification of a checksum.

use super::scratch::Scratch;
use super::spots::{INODE, JOURNAL_MAGIC, Raw, SUPERBLOCK, Spot, Sum};

/// CRC32C without the final inversion. ext4 uses this form to continue a checksum over several parts.
pub(crate) fn crc(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// Repairs all checksums of a volume.
pub(crate) fn repair(scratch: &mut Scratch, spots: &[Spot]) {
    let log = Log::of(scratch, spots);
    if let Some(log) = &log {
        log.repair(scratch);
    }
    if !Raw(scratch.bytes()).checksums() {
        calm(scratch, spots);
        return;
    }
    let sum = crc(!0, &scratch.bytes()[SUPERBLOCK..SUPERBLOCK + 0x3FC]);
    scratch.write(SUPERBLOCK + 0x3FC, &sum.to_le_bytes());
    let raw = Raw(scratch.bytes());
    let seed = if raw.u32(SUPERBLOCK + 0x60) & 0x2000 != 0 {
        raw.u32(SUPERBLOCK + 0x270)
    } else {
        crc(!0, &scratch.bytes()[SUPERBLOCK + 0x68..][..16])
    };
    calm(scratch, spots);
    for spot in spots {
        if let Some((at, sum)) = checksum(scratch, spot, seed) {
            scratch.write(
                spot.at + at,
                &sum.to_le_bytes()[..if matches!(spot.sum, Sum::Group(_)) { 2 } else { 4 }],
            );
        }
    }
    // Inodes contain the roots of maps and attributes, which have checksums of their own. So the checksums of inodes are repaired last.
    for spot in spots.iter().filter(|spot| spot.sum == Sum::Inode) {
        inode(scratch, spot, seed);
    }
}

/// Sequence numbers in the block of the multiple mount protection. If the block has one of these numbers, an open does not wait.
const MMP_CLEAN: u32 = 0xFF4D_4D50;
const MMP_FSCK: u32 = 0xE24D_4D50;

/// Resets two states that disturb the tests: a mount protection that makes an open wait, and hashes of attributes that end a test early.
fn calm(scratch: &mut Scratch, spots: &[Spot]) {
    for spot in spots {
        match spot.sum {
            Sum::Mmp => {
                let sequence = Raw(scratch.bytes()).u32(spot.at + 4);
                if !matches!(sequence, MMP_CLEAN | MMP_FSCK) {
                    scratch.write(spot.at + 4, &MMP_CLEAN.to_le_bytes());
                }
            }
            Sum::XattrBlock => unhash(scratch, spot.at + 32, spot.at + spot.len),
            Sum::XattrList => unhash(scratch, spot.at + 4, spot.at + spot.len),
            _ => {}
        }
    }
}

/// Sets each `e_hash` in a list of attributes to 0. The value 0 means that the attribute has no hash.
fn unhash(scratch: &mut Scratch, from: usize, end: usize) {
    let mut at = from;
    while at + 16 <= end && Raw(scratch.bytes()).u32(at) != 0 {
        scratch.write(at + 12, &[0; 4]);
        at += 16 + usize::from(scratch.bytes()[at]).next_multiple_of(4);
    }
}

/// The checksum of a structure, and its position in the volume.
fn checksum(scratch: &Scratch, spot: &Spot, seed: u32) -> Option<(usize, u32)> {
    let bytes = scratch.bytes();
    let content = &bytes[spot.at..spot.at + spot.len];
    let raw = Raw(content);
    let block = (spot.at / scratch.block_size()) as u64;
    let owner = || {
        let generation = &bytes[spot.owner + 0x64..][..4];
        crc(crc(seed, &spot.inode.to_le_bytes()), generation)
    };
    Some(match spot.sum {
        Sum::Group(number) => {
            let sum = crc(crc(crc(seed, &number.to_le_bytes()), &content[..0x1E]), &[0; 2]);
            (0x1E, crc(sum, &content[0x20..]))
        }
        Sum::Extent => {
            let at = 12 + raw.u16(4) * 12;
            (at, crc(owner(), content.get(..at).filter(|_| at + 4 <= spot.len)?))
        }
        Sum::Directory => (spot.len - 4, crc(owner(), &content[..spot.len - 12])),
        Sum::Htree { root } => {
            let at = if root { 0x20 } else { 8 };
            let (limit, count) = (raw.u16(at), raw.u16(at + 2));
            let tail = at + limit * 8;
            let reserved = content.get(tail..tail + 8)?;
            let sum = crc(owner(), content.get(..at + count * 8)?);
            (tail + 4, crc(crc(sum, &reserved[..4]), &[0; 4]))
        }
        Sum::XattrBlock => {
            let sum = crc(crc(seed, &block.to_le_bytes()), &content[..16]);
            (16, crc(crc(sum, &[0; 4]), &content[20..]))
        }
        Sum::Mmp => (0x3FC, crc(seed, &content[..0x3FC])),
        Sum::Orphan => {
            let at = spot.len - 8;
            (at + 4, crc(crc(owner(), &block.to_le_bytes()), &content[..at]))
        }
        _ => return None,
    })
}

fn inode(scratch: &mut Scratch, spot: &Spot, seed: u32) {
    let mut content = scratch.bytes()[spot.at..spot.at + INODE].to_vec();
    let high = Raw(&content).u16(128) >= 4;
    content[0x7C..0x7E].fill(0);
    if high {
        content[0x82..0x84].fill(0);
    }
    let sum = crc(crc(seed, &spot.inode.to_le_bytes()), &content[0x64..0x68]);
    let sum = crc(sum, &content).to_le_bytes();
    scratch.write(spot.at + 0x7C, &sum[..2]);
    if high {
        scratch.write(spot.at + 0x82, &sum[2..]);
    }
}

/// The journal blocks that the recovery reads.
struct Log {
    superblock: usize,
    /// For each block: its index in the journal, and its position in the volume.
    blocks: Vec<(u32, usize)>,
    block_size: usize,
}

impl Log {
    fn of(scratch: &Scratch, spots: &[Spot]) -> Option<Self> {
        let superblock = spots.iter().find(|spot| spot.sum == Sum::JournalSuperblock)?.at;
        let blocks = spots.iter().filter_map(|spot| match spot.sum {
            Sum::Journal { index } => Some((index, spot.at)),
            _ => None,
        });
        // The code uses the block size of the undamaged volume, because a change may have altered the field with the block size.
        let block_size = scratch.block_size();
        Some(Self { superblock, blocks: blocks.collect(), block_size })
    }

    fn repair(&self, scratch: &mut Scratch) {
        let superblock = scratch.bytes()[self.superblock..][..1024].to_vec();
        let features = Raw(&superblock).be32(0x28);
        for (_, at) in &self.blocks {
            let mut content = scratch.bytes()[*at..][..self.block_size].to_vec();
            if fast_commit(&mut content) {
                scratch.write(*at, &content);
            }
        }
        if features & 0x18 == 0 {
            return;
        }
        let mut unsigned = superblock.clone();
        unsigned[0xFC..0x100].fill(0);
        scratch.write(self.superblock + 0xFC, &crc(!0, &unsigned).to_be_bytes());
        let seed = crc(!0, &superblock[0x30..0x40]);
        for (index, at) in &self.blocks {
            let raw = Raw(scratch.bytes());
            if raw.be32(*at) != JOURNAL_MAGIC {
                continue;
            }
            match raw.be32(*at + 4) {
                1 => {
                    self.tags(scratch, seed, features, *index, *at);
                    self.sum(scratch, seed, *at, self.block_size - 4);
                }
                2 => self.sum(scratch, seed, *at, 16),
                5 => self.sum(scratch, seed, *at, self.block_size - 4),
                _ => {}
            }
        }
    }

    /// Repairs the checksum in a block. For the computation, the field of the checksum contains zeros.
    fn sum(&self, scratch: &mut Scratch, seed: u32, at: usize, field: usize) {
        scratch.write(at + field, &[0; 4]);
        let sum = crc(seed, &scratch.bytes()[at..][..self.block_size]);
        scratch.write(at + field, &sum.to_be_bytes());
    }

    /// Repairs the checksums in the tags of a descriptor block. Each tag contains the checksum of a copied block after the descriptor.
    fn tags(&self, scratch: &mut Scratch, seed: u32, features: u32, index: u32, at: usize) {
        let third = features & 0x10 != 0;
        let len = if third { 16 } else { 8 + if features & 2 != 0 { 4 } else { 0 } + 2 };
        let sequence = crc(seed, &scratch.bytes()[at + 8..][..4]);
        let (mut offset, mut copy) = (12, index + 1);
        while offset + len + 4 <= self.block_size {
            let Some((_, place)) = self.blocks.iter().find(|(index, _)| *index == copy) else {
                return;
            };
            let sum = crc(sequence, &scratch.bytes()[*place..][..self.block_size]).to_be_bytes();
            let flags = if third {
                scratch.write(at + offset + 12, &sum);
                scratch.bytes()[at + offset + 7]
            } else {
                scratch.write(at + offset + 4, &sum[2..]);
                scratch.bytes()[at + offset + 7]
            };
            offset += len + if flags & 2 == 0 { 16 } else { 0 };
            copy += 1;
            if flags & 8 != 0 {
                return;
            }
        }
    }
}

/// Repairs the checksums in the tail records of a block of fast commits. Returns whether there is a tail record.
pub(crate) fn fast_commit(block: &mut [u8]) -> bool {
    if block[..2] != [9, 0] || block.iter().all(|byte| *byte == 0) {
        return false;
    }
    let (mut at, mut sum, mut found) = (0, 0, false);
    while at + 4 <= block.len() {
        let (tag, len) = (Raw(block).u16(at), Raw(block).u16(at + 2));
        if tag == 8 && at + 12 <= block.len() {
            sum = crc(sum, &block[at..at + 8]);
            block[at + 8..at + 12].copy_from_slice(&sum.to_le_bytes());
            return true;
        }
        let Some(record) = block.get(at..at + 4 + len) else { break };
        sum = crc(sum, record);
        at += 4 + len;
        found |= tag == 8;
    }
    found
}
