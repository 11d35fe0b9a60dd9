//! Converts on-disk structures to records, with the field names in Linux's documentation.

use super::value::{Fields, Value, record, with_texts};
use crate::fs::ext4::disk::dir::{RawDxCount, RawDxEntry, RawDxRootInfo};
use crate::fs::ext4::disk::extent::{RawExtent, RawExtentHeader, RawExtentIndex};
use crate::fs::ext4::disk::group::{RawGroupHigh, RawGroupLow};
use crate::fs::ext4::disk::inode::{RawInode, RawInodeExtra};
use crate::fs::ext4::disk::journal::{RawCommit, RawHeader, RawJournalSuperblock, RawRevoke};
use crate::fs::ext4::disk::mmp::RawMmp;
use crate::fs::ext4::disk::superblock::RawSuperblock;
use crate::fs::ext4::disk::xattr::{RawXattrEntry, RawXattrHeader};

#[rustfmt::skip]
pub(super) fn superblock(raw: &RawSuperblock) -> Fields {
    let fields = record!(raw, RawSuperblock {
        s_inodes_count, s_blocks_count_lo, s_r_blocks_count_lo, s_free_blocks_count_lo, s_free_inodes_count,
        s_first_data_block, s_log_block_size, s_log_cluster_size, s_blocks_per_group, s_clusters_per_group,
        s_inodes_per_group, s_mtime, s_wtime, s_mnt_count, s_max_mnt_count, s_magic, s_state, s_errors,
        s_minor_rev_level, s_lastcheck, s_checkinterval, s_creator_os, s_rev_level, s_def_resuid, s_def_resgid,
        s_first_ino, s_inode_size, s_block_group_nr, s_feature_compat, s_feature_incompat, s_feature_ro_compat, s_uuid,
        s_volume_name, s_last_mounted, s_algorithm_usage_bitmap, s_prealloc_blocks, s_prealloc_dir_blocks,
        s_reserved_gdt_blocks, s_journal_uuid, s_journal_inum, s_journal_dev, s_last_orphan, s_hash_seed,
        s_def_hash_version, s_jnl_backup_type, s_desc_size, s_default_mount_opts, s_first_meta_bg, s_mkfs_time,
        s_jnl_blocks, s_blocks_count_hi, s_r_blocks_count_hi, s_free_blocks_count_hi, s_min_extra_isize,
        s_want_extra_isize, s_flags, s_raid_stride, s_mmp_interval, s_mmp_block, s_raid_stripe_width,
        s_log_groups_per_flex, s_checksum_type, s_encryption_level, s_reserved_pad, s_kbytes_written, s_snapshot_inum,
        s_snapshot_id, s_snapshot_r_blocks_count, s_snapshot_list, s_error_count, s_first_error_time,
        s_first_error_ino, s_first_error_block, s_first_error_func, s_first_error_line, s_last_error_time,
        s_last_error_ino, s_last_error_line, s_last_error_block, s_last_error_func, s_mount_opts, s_usr_quota_inum,
        s_grp_quota_inum, s_overhead_clusters, s_backup_bgs, s_encrypt_algos, s_encrypt_pw_salt, s_lpf_ino,
        s_prj_quota_inum, s_checksum_seed, s_wtime_hi, s_mtime_hi, s_mkfs_time_hi, s_lastcheck_hi,
        s_first_error_time_hi, s_last_error_time_hi, s_first_error_errcode, s_last_error_errcode, s_encoding,
        s_encoding_flags, s_orphan_file_inum, s_checksum,
    } but s_reserved);
    with_texts(fields, &["s_volume_name", "s_last_mounted", "s_mount_opts", "s_first_error_func", "s_last_error_func"])
}

#[rustfmt::skip]
pub(super) fn group(low: &RawGroupLow, high: Option<&RawGroupHigh>) -> Fields {
    let mut fields = record!(low, RawGroupLow {
        bg_block_bitmap_lo, bg_inode_bitmap_lo, bg_inode_table_lo, bg_free_blocks_count_lo, bg_free_inodes_count_lo,
        bg_used_dirs_count_lo, bg_flags, bg_exclude_bitmap_lo, bg_block_bitmap_csum_lo, bg_inode_bitmap_csum_lo,
        bg_itable_unused_lo, bg_checksum,
    });
    if let Some(high) = high {
        fields.extend(record!(high, RawGroupHigh {
            bg_block_bitmap_hi, bg_inode_bitmap_hi, bg_inode_table_hi, bg_free_blocks_count_hi,
            bg_free_inodes_count_hi, bg_used_dirs_count_hi, bg_itable_unused_hi, bg_exclude_bitmap_hi,
            bg_block_bitmap_csum_hi, bg_inode_bitmap_csum_hi,
        } but bg_reserved));
    }
    fields
}

#[rustfmt::skip]
pub(super) fn inode(raw: &RawInode) -> Fields {
    record!(raw, RawInode {
        i_mode, i_uid, i_size_lo, i_atime, i_ctime, i_mtime, i_dtime, i_gid, i_links_count, i_blocks_lo, i_flags,
        i_version_lo, i_block, i_generation, i_file_acl_lo, i_size_high, i_obso_faddr, i_blocks_high, i_file_acl_high,
        i_uid_high, i_gid_high, i_checksum_lo,
    } but i_reserved)
}

/// The fields after the first 128 bytes, up to the length in `i_extra_isize`.
#[rustfmt::skip]
pub(super) fn inode_extra(raw: &RawInodeExtra) -> Fields {
    /// The byte offset of the end of each field.
    const ENDS: [u16; 9] = [2, 4, 8, 12, 16, 20, 24, 28, 32];
    let mut fields = record!(raw, RawInodeExtra {
        i_extra_isize, i_checksum_hi, i_ctime_extra, i_mtime_extra, i_atime_extra, i_crtime, i_crtime_extra,
        i_version_hi, i_projid,
    });
    let present = ENDS.iter().take_while(|end| **end <= raw.i_extra_isize.get()).count();
    fields.truncate(present.max(1));
    fields
}

pub(super) fn extent_header(raw: &RawExtentHeader) -> Fields {
    record!(raw, RawExtentHeader { eh_magic, eh_entries, eh_max, eh_depth, eh_generation })
}

pub(super) fn extent_index(raw: &RawExtentIndex) -> Fields {
    record!(raw, RawExtentIndex { ei_block, ei_leaf_lo, ei_leaf_hi } but ei_unused)
}

pub(super) fn extent(raw: &RawExtent) -> Fields {
    record!(raw, RawExtent { ee_block, ee_len, ee_start_hi, ee_start_lo })
}

pub(super) fn dx_root_info(raw: &RawDxRootInfo) -> Fields {
    record!(
        raw,
        RawDxRootInfo { reserved_zero, hash_version, info_length, indirect_levels, unused_flags }
    )
}

pub(super) fn dx_count(raw: &RawDxCount) -> Fields {
    record!(raw, RawDxCount { limit, count })
}

pub(super) fn dx_entry(raw: &RawDxEntry) -> Fields {
    record!(raw, RawDxEntry { hash, block })
}

pub(super) fn xattr_header(raw: &RawXattrHeader) -> Fields {
    record!(raw, RawXattrHeader { h_magic, h_refcount, h_blocks, h_hash, h_checksum } but h_reserved)
}

#[rustfmt::skip]
pub(super) fn xattr_entry(raw: &RawXattrEntry) -> Fields {
    record!(raw, RawXattrEntry {
        e_name_len, e_name_index, e_value_offs, e_value_inum, e_value_size, e_hash,
    })
}

#[rustfmt::skip]
pub(super) fn mmp(raw: &RawMmp) -> Fields {
    let fields = record!(raw, RawMmp {
        mmp_magic, mmp_seq, mmp_time, mmp_nodename, mmp_bdevname, mmp_check_interval, mmp_checksum,
    } but mmp_pad1, mmp_pad2);
    with_texts(fields, &["mmp_nodename", "mmp_bdevname"])
}

pub(super) fn journal_header(raw: &RawHeader) -> Fields {
    record!(raw, RawHeader { h_magic, h_blocktype, h_sequence })
}

#[rustfmt::skip]
pub(super) fn journal_superblock(raw: &RawJournalSuperblock) -> Fields {
    let mut fields = journal_header(&raw.s_header);
    fields.extend(record!(raw, RawJournalSuperblock {
        s_blocksize, s_maxlen, s_first, s_sequence, s_start, s_errno, s_feature_compat, s_feature_incompat,
        s_feature_ro_compat, s_uuid, s_nr_users, s_dynsuper, s_max_transaction, s_max_trans_data, s_checksum_type,
        s_num_fc_blocks, s_checksum,
    } but s_header, s_padding2, s_padding, s_users));
    fields
}

#[rustfmt::skip]
pub(super) fn journal_commit(raw: &RawCommit) -> Fields {
    let mut fields = journal_header(&raw.h_header);
    fields.extend(record!(raw, RawCommit {
        h_chksum_type, h_chksum_size, h_chksum, h_commit_sec, h_commit_nsec,
    } but h_header, h_padding));
    fields
}

pub(super) fn journal_revoke(raw: &RawRevoke) -> Fields {
    let mut fields = journal_header(&raw.r_header);
    fields.push(("r_count", Value::from(raw.r_count.get())));
    fields
}
