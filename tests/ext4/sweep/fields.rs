//! The fields of the superblock, and the values that the tests store in them.

use std::collections::BTreeSet;

/// The fields of a superblock, in order. Each has a name, a word length in bytes, and a number of words.
#[rustfmt::skip]
const FIELDS: &[(&str, usize, usize)] = &[
    ("s_inodes_count", 4, 1), ("s_blocks_count_lo", 4, 1), ("s_r_blocks_count_lo", 4, 1), ("s_free_blocks_count_lo", 4, 1),
    ("s_free_inodes_count", 4, 1), ("s_first_data_block", 4, 1), ("s_log_block_size", 4, 1), ("s_log_cluster_size", 4, 1),
    ("s_blocks_per_group", 4, 1), ("s_clusters_per_group", 4, 1), ("s_inodes_per_group", 4, 1), ("s_mtime", 4, 1), ("s_wtime", 4, 1),
    ("s_mnt_count", 2, 1), ("s_max_mnt_count", 2, 1), ("s_magic", 2, 1), ("s_state", 2, 1), ("s_errors", 2, 1), ("s_minor_rev_level", 2, 1),
    ("s_lastcheck", 4, 1), ("s_checkinterval", 4, 1), ("s_creator_os", 4, 1), ("s_rev_level", 4, 1), ("s_def_resuid", 2, 1), ("s_def_resgid", 2, 1),
    ("s_first_ino", 4, 1), ("s_inode_size", 2, 1), ("s_block_group_nr", 2, 1), ("s_feature_compat", 4, 1), ("s_feature_incompat", 4, 1),
    ("s_feature_ro_compat", 4, 1), ("s_uuid", 1, 16), ("s_volume_name", 1, 16), ("s_last_mounted", 1, 64), ("s_algorithm_usage_bitmap", 4, 1),
    ("s_prealloc_blocks", 1, 1), ("s_prealloc_dir_blocks", 1, 1), ("s_reserved_gdt_blocks", 2, 1), ("s_journal_uuid", 1, 16),
    ("s_journal_inum", 4, 1), ("s_journal_dev", 4, 1), ("s_last_orphan", 4, 1), ("s_hash_seed", 4, 4), ("s_def_hash_version", 1, 1),
    ("s_jnl_backup_type", 1, 1), ("s_desc_size", 2, 1), ("s_default_mount_opts", 4, 1), ("s_first_meta_bg", 4, 1), ("s_mkfs_time", 4, 1),
    ("s_jnl_blocks", 4, 17), ("s_blocks_count_hi", 4, 1), ("s_r_blocks_count_hi", 4, 1), ("s_free_blocks_count_hi", 4, 1),
    ("s_min_extra_isize", 2, 1), ("s_want_extra_isize", 2, 1), ("s_flags", 4, 1), ("s_raid_stride", 2, 1), ("s_mmp_interval", 2, 1),
    ("s_mmp_block", 8, 1), ("s_raid_stripe_width", 4, 1), ("s_log_groups_per_flex", 1, 1), ("s_checksum_type", 1, 1), ("s_encryption_level", 1, 1),
    ("s_reserved_pad", 1, 1), ("s_kbytes_written", 8, 1), ("s_snapshot_inum", 4, 1), ("s_snapshot_id", 4, 1), ("s_snapshot_r_blocks_count", 8, 1),
    ("s_snapshot_list", 4, 1), ("s_error_count", 4, 1), ("s_first_error_time", 4, 1), ("s_first_error_ino", 4, 1), ("s_first_error_block", 8, 1),
    ("s_first_error_func", 1, 32), ("s_first_error_line", 4, 1), ("s_last_error_time", 4, 1), ("s_last_error_ino", 4, 1), ("s_last_error_line", 4, 1),
    ("s_last_error_block", 8, 1), ("s_last_error_func", 1, 32), ("s_mount_opts", 1, 64), ("s_usr_quota_inum", 4, 1), ("s_grp_quota_inum", 4, 1),
    ("s_overhead_clusters", 4, 1), ("s_backup_bgs", 4, 2), ("s_encrypt_algos", 1, 4), ("s_encrypt_pw_salt", 1, 16), ("s_lpf_ino", 4, 1),
    ("s_prj_quota_inum", 4, 1), ("s_checksum_seed", 4, 1), ("s_wtime_hi", 1, 1), ("s_mtime_hi", 1, 1), ("s_mkfs_time_hi", 1, 1),
    ("s_lastcheck_hi", 1, 1), ("s_first_error_time_hi", 1, 1), ("s_last_error_time_hi", 1, 1), ("s_first_error_errcode", 1, 1),
    ("s_last_error_errcode", 1, 1), ("s_encoding", 2, 1), ("s_encoding_flags", 2, 1), ("s_orphan_file_inum", 4, 1), ("s_reserved", 4, 94),
    ("s_checksum", 4, 1),
];

/// Fields that are not changed: the magic number, and fields in which every value is valid.
const LEFT_OUT: &[&str] =
    &["s_magic", "s_uuid", "s_volume_name", "s_last_mounted", "s_mount_opts", "s_hash_seed"];

/// Fields that are probably not read by any mount or check.
const QUIET: &[&str] = &[
    "s_mtime",
    "s_wtime",
    "s_mnt_count",
    "s_max_mnt_count",
    "s_minor_rev_level",
    "s_lastcheck",
    "s_checkinterval",
    "s_def_resuid",
    "s_def_resgid",
    "s_algorithm_usage_bitmap",
    "s_prealloc_blocks",
    "s_prealloc_dir_blocks",
    "s_jnl_backup_type",
    "s_mkfs_time",
    "s_jnl_blocks",
    "s_raid_stride",
    "s_mmp_interval",
    "s_mmp_block",
    "s_raid_stripe_width",
    "s_encryption_level",
    "s_reserved_pad",
    "s_kbytes_written",
    "s_snapshot_inum",
    "s_snapshot_id",
    "s_snapshot_r_blocks_count",
    "s_snapshot_list",
    "s_first_error_time",
    "s_first_error_ino",
    "s_first_error_block",
    "s_first_error_func",
    "s_first_error_line",
    "s_last_error_time",
    "s_last_error_ino",
    "s_last_error_line",
    "s_last_error_block",
    "s_last_error_func",
    "s_overhead_clusters",
    "s_encrypt_algos",
    "s_encrypt_pw_salt",
    "s_lpf_ino",
    "s_wtime_hi",
    "s_mtime_hi",
    "s_mkfs_time_hi",
    "s_lastcheck_hi",
    "s_first_error_time_hi",
    "s_last_error_time_hi",
    "s_first_error_errcode",
    "s_last_error_errcode",
    "s_encoding",
    "s_encoding_flags",
    "s_reserved",
];

/// A word of the superblock.
#[derive(Clone, Copy)]
pub(super) struct Field {
    pub(super) name: &'static str,
    at: usize,
    len: usize,
}

/// The first word of each field, with its position.
pub(super) fn fields() -> impl Iterator<Item = Field> {
    let place = |at: &mut usize, (name, len, count): &(&'static str, usize, usize)| {
        let field = Field { name, at: *at, len: *len };
        *at += len * count;
        Some(field)
    };
    let known = |field: &Field| !LEFT_OUT.contains(&field.name) && field.name != "s_checksum";
    FIELDS.iter().scan(0, place).filter(known)
}

impl Field {
    pub(super) fn is_quiet(self) -> bool {
        QUIET.contains(&self.name)
    }

    /// The value of the field in a superblock.
    pub(super) fn get(self, superblock: &[u8]) -> u64 {
        let bytes = &superblock[self.at..][..self.len];
        bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    pub(super) fn set(self, superblock: &mut [u8], value: u64) {
        superblock[self.at..][..self.len].copy_from_slice(&value.to_le_bytes()[..self.len]);
    }

    /// Other values for the field: limits, and neighbours of the valid value. For a feature word: the valid value with one bit changed, for
    /// each bit.
    pub(super) fn hostile(self, sound: &[u8]) -> BTreeSet<u64> {
        let (now, most) = (self.get(sound), u64::MAX >> (64 - 8 * self.len));
        let mut values: BTreeSet<u64> = if self.name.starts_with("s_feature") {
            (0..20).map(|bit| now ^ 1 << bit).collect()
        } else if self.name == "s_checksum_seed" {
            // A changed seed would make all checksums wrong.
            [0, now.wrapping_add(1)].into()
        } else {
            let near =
                [now.wrapping_add(1), now.wrapping_sub(1), now.wrapping_mul(2), now / 2, most];
            let powers = (0..64).map(|bit| 1 << bit);
            let limits = [0, 3, 5, 7, 10, 11, 12, 31, 33, 63, 100, 255, 999, 1000, 65_535];
            powers.chain(limits).chain(near).collect()
        };
        values.retain(|value| *value <= most && *value != now);
        values
    }
}
