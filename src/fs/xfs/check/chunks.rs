//! Checks the inode trees. A record describes a chunk of 64 inodes, which can have holes.

use zerocopy::FromBytes;

use super::super::disk::superblock::version;
use super::super::disk::tree::{RawChunk, owner};
use super::super::features::Incompat;
use super::Checker;
use super::owners::Space;
use super::table::{CHUNK, Chunk};
use super::tree::Walked;
use crate::error::Place;
use crate::fs::check::{FindingSite, Kind};

/// The number of inodes for each bit of the hole mask.
const PER_BIT: u32 = 4;

/// A decoded record of an inode tree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    start: u32,
    holes: u64,
    free: u64,
}

impl Checker<'_> {
    /// Checks the chunks of a group and adds them to the table of inodes.
    pub(super) fn check_chunks(&mut self, group: u32, found: &Walked) -> Vec<Record> {
        let geometry = self.fs.superblock.geometry;
        let site = FindingSite::of_group(group, Place::new("inode tree").field("record"));
        let (log, length) = (geometry.inodes_per_block_log, geometry.group_len(group));
        let raws = <[RawChunk]>::ref_from_bytes(&found.records).unwrap_or_default();
        let (mut records, mut end) = (Vec::with_capacity(raws.len()), 0);
        for raw in raws {
            let record = self.decode_chunk(raw, site);
            let start = u64::from(record.start);
            let (first, after) = (start >> log, (start + CHUNK).div_ceil(1 << log));
            let is_at_block = start.is_multiple_of(CHUNK.min(1 << log));
            // A chunk may extend past the group's end only if the chunk's inodes past this end are holes.
            let holes_after = record.holes
                | u64::MAX
                    .checked_shl((length << log).saturating_sub(start).min(64) as u32)
                    .unwrap_or(0);
            if first == 0
                || first >= length
                || !is_at_block
                || after > length && holes_after != record.holes
            {
                let what = Kind::Outside { block: first, count: after - first };
                self.findings.add(site, what);
                continue;
            }
            if start < end {
                self.wrong(
                    site,
                    format!("the chunk at inode {start} of the group overlaps the previous chunk"),
                );
                continue;
            }
            end = start + CHUNK;
            self.check_alignment(record, site);
            self.claim_chunk(group, record);
            let exist = u64::from((!record.holes).count_ones());
            let free = u64::from((record.free & !record.holes).count_ones());
            let counts = &mut self.groups[group as usize].inodes;
            (counts.0, counts.1) = (counts.0 + exist, counts.1 + free);
            self.inodes.chunks.push(Chunk {
                first: u64::from(group) << geometry.group_blocks_log << log | start,
                group,
                holes: record.holes,
                free: record.free,
                states: Box::new([Default::default(); CHUNK as usize]),
            });
            records.push(record);
        }
        records
    }

    fn decode_chunk(&mut self, raw: &RawChunk, site: FindingSite) -> Record {
        let (start, free) = (raw.ir_startino.get(), raw.ir_free.get());
        let sparse = self.fs.superblock.incompat.contains(Incompat::SPARSE_INODES);
        let (mask, count, free_count) = if sparse {
            (raw.ir_holemask.get(), raw.ir_count.into(), u32::from(raw.ir_freecount))
        } else {
            let [a, b] = raw.ir_holemask.get().to_be_bytes();
            (0, CHUNK as u32, u32::from_be_bytes([a, b, raw.ir_count, raw.ir_freecount]))
        };
        let four = (1_u64 << PER_BIT) - 1;
        let holes = (0..16)
            .filter(|bit| mask >> bit & 1 == 1)
            .fold(0, |holes, bit| holes | four << (bit * PER_BIT));
        let field = |name| FindingSite { place: site.place.field(name), ..site };
        self.findings.expect(field("ir_count"), count, (!holes).count_ones());
        self.findings.expect(field("ir_freecount"), free_count, (free & !holes).count_ones());
        if holes & !free != 0 {
            self.wrong(field("ir_free"), format!("chunk {start} marks inodes in a hole as used"));
        }
        if mask == u16::MAX {
            self.wrong(field("ir_holemask"), format!("chunk {start} has no inodes"));
        }
        Record { start, holes, free }
    }

    fn check_alignment(&mut self, record: Record, site: FindingSite) {
        let raw = &self.superblock;
        let aligned =
            self.fs.superblock.is_v5() || raw.sb_versionnum.get() & version::ALIGNED_INODES != 0;
        let unit = raw.sb_inoalignmt.get();
        let block = record.start >> self.fs.superblock.geometry.inodes_per_block_log;
        if aligned && unit > 1 && !block.is_multiple_of(unit) {
            self.wrong(
                site,
                format!("the chunk at block {block} of the group is not aligned to {unit} blocks"),
            );
        }
    }

    /// Claims the blocks of a chunk. A block without an inode of the chunk is not claimed.
    fn claim_chunk(&mut self, group: u32, record: Record) {
        let log = self.fs.superblock.geometry.inodes_per_block_log;
        if 1 << log > CHUNK {
            // If several chunks share a block, only the first chunk claims it.
            let block = record.start >> log;
            let before = self.inodes.chunks.last();
            let geometry = &self.fs.superblock.geometry;
            let is_new = before.is_none_or(|chunk| {
                chunk.group != group || {
                    let within = chunk.first & ((1 << geometry.group_blocks_log << log) - 1);
                    within >> log != u64::from(block)
                }
            });
            if is_new {
                self.claim(Space::Data(group), (block, 1), owner::INODES, 0);
            }
            return;
        }
        let per_block = 1_u64 << log;
        for index in (0..CHUNK).step_by(per_block as usize) {
            let bits = if per_block == 64 { u64::MAX } else { (1 << per_block) - 1 };
            if !record.holes & bits << index != 0 {
                let block = ((u64::from(record.start) + index) >> log) as u32;
                self.claim(Space::Data(group), (block, 1), owner::INODES, 0);
            }
        }
    }

    /// Checks the tree of free inodes. It must contain exactly the chunks that have a free inode in the inode tree.
    pub(super) fn check_free_chunks(&mut self, group: u32, all: &[Record], found: &Walked) {
        let site = FindingSite::of_group(group, Place::new("tree of free inodes").field("record"));
        let raws = <[RawChunk]>::ref_from_bytes(&found.records).unwrap_or_default();
        let have: Vec<_> = raws.iter().map(|raw| self.decode_chunk(raw, site)).collect();
        let wanted: Vec<_> =
            all.iter().filter(|record| record.free & !record.holes != 0).copied().collect();
        let mut rest = &have[..];
        for record in &wanted {
            match rest.iter().position(|other| other.start >= record.start) {
                Some(at) => {
                    if at > 0 {
                        let start = rest[0].start;
                        self.wrong(
                            site,
                            format!(
                                "chunk {start} of the group has no free inodes, or does not exist"
                            ),
                        );
                    }
                    rest = &rest[at..];
                    if rest[0].start != record.start {
                        self.wrong(
                            site,
                            format!("the tree lacks chunk {} of the group", record.start),
                        );
                        continue;
                    }
                    if rest[0] != *record {
                        self.wrong(
                            site,
                            format!(
                                "chunk {} differs from the same chunk in the inode tree",
                                record.start
                            ),
                        );
                    }
                    rest = &rest[1..];
                }
                None => {
                    self.wrong(site, format!("the tree lacks chunk {} of the group", record.start));
                }
            }
        }
        if let Some(record) = rest.first() {
            self.wrong(
                site,
                format!(
                    "chunk {} of the group has no free inodes, or does not exist",
                    record.start
                ),
            );
        }
    }
}
