//! The on-disk blocks of the journal. The integers in these blocks are big-endian, unlike the integers in other ext4 structures. Source:
//! "Journal (jbd2)" in Linux's ext4 documentation.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// The value of `h_magic`. Every block of the journal begins with this number, except the logged copies of blocks.
pub(crate) const MAGIC: u32 = 0xC03B_3998;

/// The values of `h_blocktype`.
pub(crate) const DESCRIPTOR: u32 = 1;
pub(crate) const COMMIT: u32 = 2;
pub(crate) const SUPERBLOCK_V1: u32 = 3;
pub(crate) const SUPERBLOCK_V2: u32 = 4;
pub(crate) const REVOKE: u32 = 5;

/// The header of every block of the journal, except the logged copies of blocks.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawHeader {
    pub(crate) h_magic: U32,
    pub(crate) h_blocktype: U32,
    pub(crate) h_sequence: U32,
}

layout!(RawHeader: 12 { h_blocktype @ 4, h_sequence @ 8 });

/// The values of `s_checksum_type` and `h_chksum_type`.
pub(crate) const CHECKSUM_CRC32: u8 = 1;
pub(crate) const CHECKSUM_CRC32C: u8 = 4;

/// The journal's superblock, in the first block of the journal. A superblock of version 1 ends before `s_feature_compat`.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawJournalSuperblock {
    pub(crate) s_header: RawHeader,
    pub(crate) s_blocksize: U32,
    pub(crate) s_maxlen: U32,
    pub(crate) s_first: U32,
    pub(crate) s_sequence: U32,
    pub(crate) s_start: U32,
    pub(crate) s_errno: U32,
    pub(crate) s_feature_compat: U32,
    pub(crate) s_feature_incompat: U32,
    pub(crate) s_feature_ro_compat: U32,
    pub(crate) s_uuid: [u8; 16],
    pub(crate) s_nr_users: U32,
    pub(crate) s_dynsuper: U32,
    pub(crate) s_max_transaction: U32,
    pub(crate) s_max_trans_data: U32,
    pub(crate) s_checksum_type: u8,
    pub(crate) s_padding2: [u8; 3],
    pub(crate) s_num_fc_blocks: U32,
    pub(crate) s_padding: [U32; 41],
    pub(crate) s_checksum: U32,
    pub(crate) s_users: [u8; 768],
}

layout!(RawJournalSuperblock: 1024 {
    s_blocksize @ 0x0C, s_sequence @ 0x18, s_feature_compat @ 0x24, s_uuid @ 0x30, s_checksum_type @ 0x50,
    s_num_fc_blocks @ 0x54, s_checksum @ 0xFC,
});

/// The bits of `t_flags`.
pub(crate) const TAG_ESCAPED: u32 = 1;
pub(crate) const TAG_SAME_UUID: u32 = 2;
pub(crate) const TAG_LAST: u32 = 8;
/// The length of the UUID that is stored after a tag without the bit [`TAG_SAME_UUID`].
pub(crate) const TAG_UUID_LEN: usize = 16;

/// A tag in a descriptor block of a journal with the feature CSUM_V3. A tag describes a logged copy of a block.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawTag3 {
    pub(crate) t_blocknr: U32,
    pub(crate) t_flags: U32,
    pub(crate) t_blocknr_high: U32,
    pub(crate) t_checksum: U32,
}

layout!(RawTag3: 16 { t_flags @ 4, t_blocknr_high @ 8, t_checksum @ 12 });

/// The start of a tag in a journal without the feature CSUM_V3. In a journal with the feature 64BIT, the upper half of the block number is
/// stored after this structure.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawTag {
    pub(crate) t_blocknr: U32,
    pub(crate) t_checksum: U16,
    pub(crate) t_flags: U16,
}

layout!(RawTag: 8 { t_checksum @ 4, t_flags @ 6 });

/// The length of a tag in a journal without the feature CSUM_V3. With the feature CSUM_V2, a tag has two additional bytes after its fields.
/// Source: images made by debugfs.
pub(crate) const fn tag_len(wide: bool, csum_v2: bool) -> usize {
    size_of::<RawTag>() + if wide { 4 } else { 0 } + if csum_v2 { 2 } else { 0 }
}

/// The start of a revoke block. The revoked block numbers are stored after this structure. A number has 8 bytes in a journal with the
/// feature 64BIT, otherwise 4 bytes.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawRevoke {
    pub(crate) r_header: RawHeader,
    /// The number of used bytes in the block, including this structure.
    pub(crate) r_count: U32,
}

layout!(RawRevoke: 16 { r_count @ 12 });

/// The length of the checksum at the end of a descriptor or revoke block. Only journals with the feature CSUM_V2 or CSUM_V3 have this
/// checksum.
pub(crate) const TAIL_LEN: usize = 4;

/// The start of a commit block.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawCommit {
    pub(crate) h_header: RawHeader,
    pub(crate) h_chksum_type: u8,
    pub(crate) h_chksum_size: u8,
    pub(crate) h_padding: [u8; 2],
    pub(crate) h_chksum: [U32; 8],
    pub(crate) h_commit_sec: U64,
    pub(crate) h_commit_nsec: U32,
}

layout!(RawCommit: 60 { h_chksum_type @ 12, h_chksum @ 16, h_commit_sec @ 48 });

/// The byte range of `h_chksum[0]` in a commit block. The checksum is computed with zeros in this range.
pub(crate) const COMMIT_CHECKSUM: std::ops::Range<usize> = 16..20;

/// The length of the fields of a commit block, rounded up to a multiple of 8. Linux also accepts a checksum that was computed with zeros
/// after these bytes.
pub(crate) const COMMIT_FIELDS: usize = 64;
