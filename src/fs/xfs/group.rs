//! The headers of allocation groups, and the counters in these headers.

use zerocopy::FromBytes;

use super::Superblock;
use super::disk::group::{
    FREE_CRC, FREE_MAGIC, FREE_SECTOR, INODES_CRC, INODES_MAGIC, INODES_SECTOR, RawFree, RawInodes,
};
use super::features::RoCompat;
use super::header::{array, crc_of};
use super::metadata::Metadata;
use super::overlay::Replayed;
use crate::error::{Error, Place, Result};
use crate::units::DevOffset;

/// The number of groups whose headers are checked when a volume is opened. This limit keeps the opening of large volumes fast.
const AGES: u32 = 1024;

/// Sums up the free blocks and the inodes of all groups. This is necessary after a crash, because the superblock's counters are then
/// outdated. Groups with damaged headers are not counted, and the first error is returned.
pub(super) fn count(metadata: &Metadata, superblock: &mut Superblock) -> Option<Error> {
    let (mut blocks, mut inodes, mut free_inodes) = (0_u64, 0_u64, 0_u64);
    let mut fault = None;
    for group in 0..superblock.geometry.groups {
        match free_space(metadata, superblock, group) {
            Ok(free) => {
                let counts = [free.agf_freeblks, free.agf_flcount, free.agf_btreeblks];
                blocks += counts.iter().map(|count| u64::from(count.get())).sum::<u64>();
            }
            Err(error) => fault = fault.or(Some(error)),
        }
        match self::inodes(metadata, superblock, group) {
            Ok(raw) => {
                inodes += u64::from(raw.agi_count.get());
                free_inodes += u64::from(raw.agi_freecount.get());
            }
            Err(error) => fault = fault.or(Some(error)),
        }
    }
    superblock.free_blocks = blocks.min(superblock.geometry.blocks);
    (superblock.inodes, superblock.free_inodes) = (inodes, free_inodes.min(inodes));
    fault
}

/// Reads and checks a group's inode header.
pub(super) fn inodes(
    metadata: &Metadata,
    superblock: &Superblock,
    group: u32,
) -> Result<RawInodes> {
    let (raw, place) = inodes_of_any_age(metadata, superblock, group)?;
    metadata.check_age(raw.agi_lsn.get(), place)?;
    Ok(raw)
}

/// Refuses a volume if the last change of a group's header is past the head of the log. Linux refuses such a volume, because a mount reads
/// all headers to reserve space. Other faults of a header are reported when the header is read.
pub(super) fn check_ages(metadata: &Metadata, superblock: &Superblock) -> Result<()> {
    for group in 0..superblock.geometry.groups.min(AGES) {
        if let Ok((raw, place)) = free_space_of_any_age(metadata, superblock, group) {
            metadata.check_age(raw.agf_lsn.get(), place)?;
        }
        if let Ok((raw, place)) = inodes_of_any_age(metadata, superblock, group) {
            metadata.check_age(raw.agi_lsn.get(), place)?;
        }
    }
    Ok(())
}

/// Reads the inode header of the group that contains the root inode. Refuses a volume if the group's length in this header contradicts the
/// superblock. Linux refuses such a volume, because a mount reads that header. Other faults of the header are reported when the header is
/// read.
pub(super) fn check_length(metadata: &Metadata, superblock: &Superblock) -> Result<()> {
    let geometry = &superblock.geometry;
    let group = superblock.root.0 >> geometry.inodes_per_block_log >> geometry.group_blocks_log;
    let group = u32::try_from(group).unwrap_or(u32::MAX);
    if group >= geometry.groups {
        return Ok(());
    }
    let Ok((raw, place)) = inodes_of_any_age(metadata, superblock, group) else { return Ok(()) };
    let (stored, expected) = (u64::from(raw.agi_length.get()), geometry.group_len(group));
    if stored == expected {
        return Ok(());
    }
    Err(place
        .field("agi_length")
        .corrupt(format!("the length is {stored} blocks, but should be {expected}")))
}

fn inodes_of_any_age(
    metadata: &Metadata,
    superblock: &Superblock,
    group: u32,
) -> Result<(RawInodes, Place)> {
    let place = Place::new("header of inodes").block(superblock.geometry.group_block(group));
    let bytes = header(metadata, superblock, group, INODES_SECTOR, INODES_CRC, place)?;
    let Ok((raw, _)) = RawInodes::read_from_prefix(&bytes) else {
        return Err(place.corrupt("the header is truncated"));
    };
    if raw.agi_magicnum != INODES_MAGIC || raw.agi_seqno.get() != group {
        return Err(place.field("agi_seqno").corrupt(format!(
            "the magic number is wrong, or the header does not belong to group {group}"
        )));
    }
    Ok((raw, place))
}

/// The number of blocks in the free-space trees, without the root blocks. The superblock counts these blocks as free.
pub(super) fn free_space_trees(metadata: &Metadata, superblock: &Superblock) -> Result<u64> {
    (0..superblock.geometry.groups).try_fold(0, |sum, group| {
        let free = free_space(metadata, superblock, group)?;
        // `agf_btreeblks` also counts the blocks of the reverse-mapping tree, so these blocks are subtracted.
        let owners = match superblock.ro_compat.contains(RoCompat::RMAPBT) {
            true => free.agf_rmap_blocks.get().saturating_sub(1),
            false => 0,
        };
        Ok(sum + u64::from(free.agf_btreeblks.get().saturating_sub(owners)))
    })
}

/// Reads and checks a group's free-space header.
pub(super) fn free_space(
    metadata: &Metadata,
    superblock: &Superblock,
    group: u32,
) -> Result<RawFree> {
    let (raw, place) = free_space_of_any_age(metadata, superblock, group)?;
    metadata.check_age(raw.agf_lsn.get(), place)?;
    Ok(raw)
}

fn free_space_of_any_age(
    metadata: &Metadata,
    superblock: &Superblock,
    group: u32,
) -> Result<(RawFree, Place)> {
    let place = Place::new("header of free space").block(superblock.geometry.group_block(group));
    let bytes = header(metadata, superblock, group, FREE_SECTOR, FREE_CRC, place)?;
    let Ok((free, _)) = RawFree::read_from_prefix(&bytes) else {
        return Err(place.corrupt("the header is truncated"));
    };
    if free.agf_magicnum != FREE_MAGIC || free.agf_seqno.get() != group {
        return Err(place.field("agf_seqno").corrupt(format!(
            "the magic number is wrong, or the header does not belong to group {group}"
        )));
    }
    Ok((free, place))
}

/// Reads a sector at the start of a group and checks its checksum.
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
    // The read covers whole sectors of the device. The sectors of the device can be larger than the sectors of the volume.
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
