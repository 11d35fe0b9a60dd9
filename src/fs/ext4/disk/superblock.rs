//! The on-disk superblock: 1024 bytes at byte 1024 of the volume. Source: "Super Block" in Linux's ext4 documentation.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// The value of `s_magic` on ext2, ext3 and ext4 volumes.
pub(crate) const MAGIC: u16 = 0xEF53;
/// The value of `s_rev_level` on volumes with features or with a variable inode size. This is the highest known revision.
pub(crate) const REV_DYNAMIC: u32 = 1;
/// A bit of `s_state`: the volume was unmounted cleanly.
pub(crate) const STATE_VALID: u16 = 1;
/// A bit of `s_state`: errors were detected.
pub(crate) const STATE_ERROR: u16 = 2;
/// The number of the first inode that is not reserved on a volume of revision 0. On other volumes, this is the minimum of `s_first_ino`.
pub(crate) const FIRST_INODE: u32 = 11;
/// The byte offset of the primary superblock on the device.
pub(crate) const OFFSET: u64 = 1024;

#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawSuperblock {
    pub(crate) s_inodes_count: U32,
    pub(crate) s_blocks_count_lo: U32,
    pub(crate) s_r_blocks_count_lo: U32,
    pub(crate) s_free_blocks_count_lo: U32,
    pub(crate) s_free_inodes_count: U32,
    pub(crate) s_first_data_block: U32,
    pub(crate) s_log_block_size: U32,
    pub(crate) s_log_cluster_size: U32,
    pub(crate) s_blocks_per_group: U32,
    pub(crate) s_clusters_per_group: U32,
    pub(crate) s_inodes_per_group: U32,
    pub(crate) s_mtime: U32,
    pub(crate) s_wtime: U32,
    pub(crate) s_mnt_count: U16,
    pub(crate) s_max_mnt_count: U16,
    pub(crate) s_magic: U16,
    pub(crate) s_state: U16,
    pub(crate) s_errors: U16,
    pub(crate) s_minor_rev_level: U16,
    pub(crate) s_lastcheck: U32,
    pub(crate) s_checkinterval: U32,
    pub(crate) s_creator_os: U32,
    pub(crate) s_rev_level: U32,
    pub(crate) s_def_resuid: U16,
    pub(crate) s_def_resgid: U16,
    pub(crate) s_first_ino: U32,
    pub(crate) s_inode_size: U16,
    pub(crate) s_block_group_nr: U16,
    pub(crate) s_feature_compat: U32,
    pub(crate) s_feature_incompat: U32,
    pub(crate) s_feature_ro_compat: U32,
    pub(crate) s_uuid: [u8; 16],
    pub(crate) s_volume_name: [u8; 16],
    pub(crate) s_last_mounted: [u8; 64],
    pub(crate) s_algorithm_usage_bitmap: U32,
    pub(crate) s_prealloc_blocks: u8,
    pub(crate) s_prealloc_dir_blocks: u8,
    pub(crate) s_reserved_gdt_blocks: U16,
    pub(crate) s_journal_uuid: [u8; 16],
    pub(crate) s_journal_inum: U32,
    pub(crate) s_journal_dev: U32,
    pub(crate) s_last_orphan: U32,
    pub(crate) s_hash_seed: [U32; 4],
    pub(crate) s_def_hash_version: u8,
    pub(crate) s_jnl_backup_type: u8,
    pub(crate) s_desc_size: U16,
    pub(crate) s_default_mount_opts: U32,
    pub(crate) s_first_meta_bg: U32,
    pub(crate) s_mkfs_time: U32,
    pub(crate) s_jnl_blocks: [U32; 17],
    pub(crate) s_blocks_count_hi: U32,
    pub(crate) s_r_blocks_count_hi: U32,
    pub(crate) s_free_blocks_count_hi: U32,
    pub(crate) s_min_extra_isize: U16,
    pub(crate) s_want_extra_isize: U16,
    pub(crate) s_flags: U32,
    pub(crate) s_raid_stride: U16,
    pub(crate) s_mmp_interval: U16,
    pub(crate) s_mmp_block: U64,
    pub(crate) s_raid_stripe_width: U32,
    pub(crate) s_log_groups_per_flex: u8,
    pub(crate) s_checksum_type: u8,
    pub(crate) s_encryption_level: u8,
    pub(crate) s_reserved_pad: u8,
    pub(crate) s_kbytes_written: U64,
    pub(crate) s_snapshot_inum: U32,
    pub(crate) s_snapshot_id: U32,
    pub(crate) s_snapshot_r_blocks_count: U64,
    pub(crate) s_snapshot_list: U32,
    pub(crate) s_error_count: U32,
    pub(crate) s_first_error_time: U32,
    pub(crate) s_first_error_ino: U32,
    pub(crate) s_first_error_block: U64,
    pub(crate) s_first_error_func: [u8; 32],
    pub(crate) s_first_error_line: U32,
    pub(crate) s_last_error_time: U32,
    pub(crate) s_last_error_ino: U32,
    pub(crate) s_last_error_line: U32,
    pub(crate) s_last_error_block: U64,
    pub(crate) s_last_error_func: [u8; 32],
    pub(crate) s_mount_opts: [u8; 64],
    pub(crate) s_usr_quota_inum: U32,
    pub(crate) s_grp_quota_inum: U32,
    pub(crate) s_overhead_clusters: U32,
    pub(crate) s_backup_bgs: [U32; 2],
    pub(crate) s_encrypt_algos: [u8; 4],
    pub(crate) s_encrypt_pw_salt: [u8; 16],
    pub(crate) s_lpf_ino: U32,
    pub(crate) s_prj_quota_inum: U32,
    pub(crate) s_checksum_seed: U32,
    pub(crate) s_wtime_hi: u8,
    pub(crate) s_mtime_hi: u8,
    pub(crate) s_mkfs_time_hi: u8,
    pub(crate) s_lastcheck_hi: u8,
    pub(crate) s_first_error_time_hi: u8,
    pub(crate) s_last_error_time_hi: u8,
    pub(crate) s_first_error_errcode: u8,
    pub(crate) s_last_error_errcode: u8,
    pub(crate) s_encoding: U16,
    pub(crate) s_encoding_flags: U16,
    pub(crate) s_orphan_file_inum: U32,
    pub(crate) s_reserved: [U32; 94],
    pub(crate) s_checksum: U32,
}

layout!(RawSuperblock: 1024 {
    s_magic @ 0x38, s_first_ino @ 0x54, s_uuid @ 0x68, s_journal_inum @ 0xE0, s_hash_seed @ 0xEC, s_desc_size @ 0xFE,
    s_jnl_blocks @ 0x10C, s_blocks_count_hi @ 0x150, s_mmp_block @ 0x168, s_error_count @ 0x194, s_mount_opts @ 0x200,
    s_usr_quota_inum @ 0x240, s_backup_bgs @ 0x24C, s_checksum_seed @ 0x270, s_encoding @ 0x27C,
    s_orphan_file_inum @ 0x280, s_checksum @ 0x3FC,
});
