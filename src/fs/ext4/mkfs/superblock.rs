//! The superblock of a new volume.

use zerocopy::FromZeros;
use zerocopy::little_endian::U32;

use super::geometry::Geometry;
use super::options::MkfsOptions;
use crate::error::{Error, Result};
use crate::fs::ext4::checksum::crc32c_raw;
use crate::fs::ext4::disk::superblock::{
    FIRST_INODE, MAGIC, REV_DYNAMIC, RawSuperblock, STATE_VALID,
};
use crate::fs::ext4::{Compat, Incompat, RoCompat};

/// A bit of `s_flags`: directory hashes are computed from signed characters. New volumes have this bit on every machine.
const SIGNED_HASH: u32 = 1;
const HALF_MD4: u8 = 1;
/// The bits of `s_default_mount_opts` that enable user attributes and access control lists.
const MOUNT_XATTR_USER_AND_ACL: u32 = 0xC;
const CHECKSUM_TYPE_CRC32C: u8 = 1;
/// The length of the extra fields, which follow the first 128 bytes of an inode.
pub(super) const EXTRA_ISIZE: u16 = 32;
/// The value of `s_encoding` for UTF-8 with the tables of Unicode 12.1.
const ENCODING_UTF8_12_1: u16 = 1;
/// The number of seconds between two updates of the sequence number of multiple mount protection.
pub(super) const MMP_INTERVAL: u16 = 5;

/// The values that identify a volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    pub(super) uuid: [u8; 16],
    pub(super) hash_seed: [u8; 16],
    pub(super) time: i64,
}

/// Builds the superblock. The checksum and the numbers that depend on the layout are set later.
pub(super) fn superblock(
    geometry: &Geometry,
    options: &MkfsOptions,
    identity: &Identity,
) -> Result<RawSuperblock> {
    let features = geometry.features;
    let mut raw = RawSuperblock::new_zeroed();
    let log = u32::from(geometry.block_size.shift() - 10);
    raw.s_magic.set(MAGIC);
    raw.s_rev_level.set(REV_DYNAMIC);
    raw.s_feature_compat.set(features.compat.bits());
    raw.s_feature_incompat.set(features.incompat.bits());
    raw.s_feature_ro_compat.set(features.ro_compat.bits());

    raw.s_log_block_size.set(log);
    raw.s_log_cluster_size.set(log + geometry.cluster_blocks.trailing_zeros());
    raw.s_first_data_block.set(geometry.first_data_block);
    raw.s_blocks_count_lo.set(geometry.blocks as u32);
    raw.s_blocks_count_hi.set((geometry.blocks >> 32) as u32);
    raw.s_blocks_per_group.set(geometry.blocks_per_group);
    raw.s_clusters_per_group.set(geometry.blocks_per_group / geometry.cluster_blocks);
    raw.s_inodes_per_group.set(geometry.inodes_per_group);
    raw.s_inodes_count.set(geometry.inodes_per_group * geometry.groups);
    raw.s_inode_size.set(geometry.inode_size);
    raw.s_first_ino.set(FIRST_INODE);
    if geometry.inode_size > 128 {
        raw.s_min_extra_isize.set(EXTRA_ISIZE);
        raw.s_want_extra_isize.set(EXTRA_ISIZE);
    }
    raw.s_reserved_gdt_blocks.set(geometry.reserved_descriptor_blocks as u16);
    if features.incompat.contains(Incompat::SIXTY_FOUR_BIT) {
        raw.s_desc_size.set(geometry.descriptor_size as u16);
    }
    if features.incompat.contains(Incompat::FLEX_BG) {
        raw.s_log_groups_per_flex = geometry.groups_per_flex.trailing_zeros() as u8;
    }
    if features.compat.contains(Compat::SPARSE_SUPER2) {
        raw.s_backup_bgs = geometry.backup_groups().map(U32::new);
    }
    raw.s_raid_stride.set(options.stride);
    raw.s_raid_stripe_width.set(options.stripe_width);

    let percent = options.reserved_percent;
    if !(0.0..=50.0).contains(&percent) {
        return Err(Error::invalid(format!(
            "{percent} percent of the blocks cannot be reserved: the range is 0 to 50"
        )));
    }
    let reserved = (geometry.blocks as f64 * percent / 100.0) as u64;
    raw.s_r_blocks_count_lo.set(reserved as u32);
    raw.s_r_blocks_count_hi.set((reserved >> 32) as u32);

    raw.s_state.set(STATE_VALID);
    raw.s_errors.set(options.on_error.to_raw());
    raw.s_max_mnt_count.set(u16::MAX);
    raw.s_default_mount_opts.set(MOUNT_XATTR_USER_AND_ACL);
    raw.s_def_hash_version = HALF_MD4;
    raw.s_flags.set(SIGNED_HASH);
    if features.incompat.contains(Incompat::CASEFOLD) {
        raw.s_encoding.set(ENCODING_UTF8_12_1);
    }
    if features.incompat.contains(Incompat::MMP) {
        raw.s_mmp_interval.set(MMP_INTERVAL);
    }
    name(&mut raw, options, identity)?;
    Ok(raw)
}

/// Sets the label, the identity and the times of the volume.
fn name(raw: &mut RawSuperblock, options: &MkfsOptions, identity: &Identity) -> Result<()> {
    let label = &options.label;
    let Some(name) = raw.s_volume_name.get_mut(..label.len()) else {
        return Err(Error::invalid(format!(
            "the label has {} bytes; it can have at most 16",
            label.len()
        )));
    };
    name.copy_from_slice(label);
    raw.s_uuid = identity.uuid;
    let (words, _) = identity.hash_seed.as_chunks::<4>();
    for (word, bytes) in raw.s_hash_seed.iter_mut().zip(words) {
        word.set(u32::from_le_bytes(*bytes));
    }
    if RoCompat::from_bits_retain(raw.s_feature_ro_compat.get()).contains(RoCompat::METADATA_CSUM) {
        raw.s_checksum_type = CHECKSUM_TYPE_CRC32C;
    }
    if Incompat::from_bits_retain(raw.s_feature_incompat.get()).contains(Incompat::CSUM_SEED) {
        raw.s_checksum_seed.set(crc32c_raw(!0, &identity.uuid));
    }
    // The superblock stores a time in 40 bits. An inode stores a time in only 34 bits, and its earliest time is in the year 1901.
    let time = identity.time;
    if !(0..(1 << 34) - (1 << 31)).contains(&time) {
        return Err(Error::invalid(format!(
            "the time {time}, in seconds since 1970, does not fit into an inode"
        )));
    }
    let high = (time >> 32) as u8;
    for low in [&mut raw.s_mkfs_time, &mut raw.s_wtime, &mut raw.s_lastcheck] {
        low.set(time as u32);
    }
    for byte in [&mut raw.s_mkfs_time_hi, &mut raw.s_wtime_hi, &mut raw.s_lastcheck_hi] {
        *byte = high;
    }
    Ok(())
}
