//! The on-disk inode. Source: "Index Nodes" in Linux's ext4 documentation.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// The size of the fixed part, which inodes of every revision have.
pub(crate) const GOOD_OLD_SIZE: usize = 128;
/// The byte offset of `i_checksum_lo` in the inode.
pub(crate) const CHECKSUM_LO_OFFSET: usize = 0x7C;
/// The byte offset of `i_checksum_hi` in the inode.
pub(crate) const CHECKSUM_HI_OFFSET: usize = 0x82;

/// The fixed part: the first 128 bytes of an inode.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawInode {
    pub(crate) i_mode: U16,
    pub(crate) i_uid: U16,
    pub(crate) i_size_lo: U32,
    pub(crate) i_atime: U32,
    pub(crate) i_ctime: U32,
    pub(crate) i_mtime: U32,
    pub(crate) i_dtime: U32,
    pub(crate) i_gid: U16,
    pub(crate) i_links_count: U16,
    pub(crate) i_blocks_lo: U32,
    pub(crate) i_flags: U32,
    pub(crate) i_version_lo: U32,
    pub(crate) i_block: [u8; 60],
    pub(crate) i_generation: U32,
    pub(crate) i_file_acl_lo: U32,
    pub(crate) i_size_high: U32,
    pub(crate) i_obso_faddr: U32,
    pub(crate) i_blocks_high: U16,
    pub(crate) i_file_acl_high: U16,
    pub(crate) i_uid_high: U16,
    pub(crate) i_gid_high: U16,
    pub(crate) i_checksum_lo: U16,
    pub(crate) i_reserved: U16,
}

layout!(RawInode: 128 {
    i_size_lo @ 0x04, i_links_count @ 0x1A, i_flags @ 0x20, i_block @ 0x28, i_generation @ 0x64, i_file_acl_lo @ 0x68,
    i_blocks_high @ 0x74, i_checksum_lo @ 0x7C,
});

/// The extra fields, from byte 128 of an inode on. Only the first `i_extra_isize` bytes are valid.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawInodeExtra {
    pub(crate) i_extra_isize: U16,
    pub(crate) i_checksum_hi: U16,
    pub(crate) i_ctime_extra: U32,
    pub(crate) i_mtime_extra: U32,
    pub(crate) i_atime_extra: U32,
    pub(crate) i_crtime: U32,
    pub(crate) i_crtime_extra: U32,
    pub(crate) i_version_hi: U32,
    pub(crate) i_projid: U32,
}

layout!(RawInodeExtra: 32 { i_checksum_hi @ 0x02, i_crtime @ 0x10, i_projid @ 0x1C });
