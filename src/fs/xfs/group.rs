//! Allocation groups: the counters in their headers.

use zerocopy::FromBytes;

use super::Superblock;
use super::disk::group::{
    FREE_CRC, FREE_MAGIC, FREE_SECTOR, INODES_CRC, INODES_LSN, INODES_MAGIC, INODES_SECTOR,
    RawFree, RawInodes,
};
use super::features::RoCompat;
use super::header::{array, crc_of};
use super::metadata::Metadata;
use super::overlay::Replayed;
use crate::error::{Place, Result};
use crate::units::DevOffset;

/// Adds up free blocks and inodes of all groups: after a crash the superblock has older counters. `head` is that of the log, cycle and block.
pub(super) fn count(
    metadata: &Metadata,
    superblock: &mut Superblock,
    head: (u32, u32),
) -> Result<()> {
    let (mut blocks, mut inodes, mut free_inodes) = (0_u64, 0_u64, 0_u64);
    for group in 0..superblock.geometry.groups {
        let free = free_space(metadata, superblock, group)?;
        let place =
            Place::new("header of free space").block(superblock.geometry.group_block(group));
        check_age(free.agf_lsn.get(), superblock, head, place)?;
        let counts = [free.agf_freeblks, free.agf_flcount, free.agf_btreeblks];
        blocks += counts.iter().map(|count| u64::from(count.get())).sum::<u64>();
        let place = Place::new("header of inodes").block(superblock.geometry.group_block(group));
        let (raw, lsn) = inodes_and_lsn(metadata, superblock, group)?;
        check_age(lsn, superblock, head, place)?;
        inodes += u64::from(raw.agi_count.get());
        free_inodes += u64::from(raw.agi_freecount.get());
    }
    superblock.free_blocks = blocks.min(superblock.geometry.blocks);
    (superblock.inodes, superblock.free_inodes) = (inodes, free_inodes.min(inodes));
    Ok(())
}

/// A group's header of inodes, checked.
pub(super) fn inodes(
    metadata: &Metadata,
    superblock: &Superblock,
    group: u32,
) -> Result<RawInodes> {
    inodes_and_lsn(metadata, superblock, group).map(|(raw, _)| raw)
}

fn inodes_and_lsn(
    metadata: &Metadata,
    superblock: &Superblock,
    group: u32,
) -> Result<(RawInodes, u64)> {
    let place = Place::new("header of inodes").block(superblock.geometry.group_block(group));
    let bytes = header(metadata, superblock, group, INODES_SECTOR, INODES_CRC, place)?;
    let Ok((raw, _)) = RawInodes::read_from_prefix(&bytes) else {
        return Err(place.corrupt("it is cut short"));
    };
    if raw.agi_magicnum != INODES_MAGIC || raw.agi_seqno.get() != group {
        return Err(place.field("agi_seqno").corrupt(format!("it is not of group {group}")));
    }
    Ok((raw, u64::from_be_bytes(array(&bytes, INODES_LSN))))
}

/// Blocks of the trees of free space, without their roots: the superblock counts them as free.
pub(super) fn free_space_trees(metadata: &Metadata, superblock: &Superblock) -> Result<u64> {
    (0..superblock.geometry.groups).try_fold(0, |sum, group| {
        let free = free_space(metadata, superblock, group)?;
        // The count has the tree of owners too.
        let owners = match superblock.ro_compat.contains(RoCompat::RMAPBT) {
            true => free.agf_rmap_blocks.get().saturating_sub(1),
            false => 0,
        };
        Ok(sum + u64::from(free.agf_btreeblks.get().saturating_sub(owners)))
    })
}

pub(super) fn free_space(
    metadata: &Metadata,
    superblock: &Superblock,
    group: u32,
) -> Result<RawFree> {
    let place = Place::new("header of free space").block(superblock.geometry.group_block(group));
    let bytes = header(metadata, superblock, group, FREE_SECTOR, FREE_CRC, place)?;
    let Ok((free, _)) = RawFree::read_from_prefix(&bytes) else {
        return Err(place.corrupt("it is cut short"));
    };
    if free.agf_magicnum != FREE_MAGIC || free.agf_seqno.get() != group {
        return Err(place.field("agf_seqno").corrupt(format!("it is not of group {group}")));
    }
    Ok(free)
}

/// Refuses a header with changes from past the head of the log: these records are lost, and nothing else has them.
fn check_age(
    lsn: u64,
    superblock: &Superblock,
    (cycle, block): (u32, u32),
    place: Place,
) -> Result<()> {
    let newest = u64::from(cycle) << 32 | u64::from(block);
    if superblock.is_v5() && lsn != u64::MAX && lsn > newest {
        let what = format!("{lsn:#x} is past the head of the log, {newest:#x}");
        return Err(place.field("lsn").corrupt(what));
    }
    Ok(())
}

/// A sector of a group's beginning, its checksum right.
fn header(
    metadata: &Metadata,
    superblock: &Superblock,
    group: u32,
    sector: u64,
    crc: usize,
    place: Place,
) -> Result<Vec<u8>> {
    let geometry = &superblock.geometry;
    let at = geometry.group_start(group).0 + sector * geometry.sector as u64;
    // Sectors of the device can be larger than those of the volume.
    let unit = u64::from(metadata.device().limits().logical_block);
    let (from, to) = (at / unit * unit, (at + geometry.sector as u64).next_multiple_of(unit));
    let mut bytes = vec![0; (to - from) as usize];
    let replayed = metadata.read_at(DevOffset(from), &mut bytes)?;
    let bytes = bytes.split_off((at - from) as usize);
    let sector = &bytes[..geometry.sector];
    if superblock.is_v5() && replayed == Replayed::No {
        let stored = u32::from_le_bytes(array(sector, crc));
        let computed = crc_of(sector, crc);
        if stored != computed {
            return Err(place.field("crc").bad_checksum(stored, computed));
        }
    }
    Ok(sector.to_vec())
}
