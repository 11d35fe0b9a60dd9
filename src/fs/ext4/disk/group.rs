//! The on-disk group descriptor, with 32 or 64 bytes. Source: "Block Group Descriptors" in Linux's ext4 documentation.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// The size of a descriptor without the feature 64bit. With that feature, the size is `s_desc_size`.
pub(crate) const SMALL: usize = 32;
/// A bit of `bg_flags`: the inode table and the inode bitmap are not initialised. No inode of the group is in use.
pub(crate) const INODE_UNINIT: u16 = 1;
/// A bit of `bg_flags`: the block bitmap is not initialised. Only blocks of the group's own metadata are in use.
pub(crate) const BLOCK_UNINIT: u16 = 2;
/// A bit of `bg_flags`: the unused part of the inode table is zeroed.
pub(crate) const INODE_ZEROED: u16 = 4;
/// The byte offset of `bg_checksum`. The checksum does not cover its own bytes.
pub(crate) const CHECKSUM_OFFSET: usize = 0x1E;

/// The first half of a descriptor, which every descriptor has.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawGroupLow {
    pub(crate) bg_block_bitmap_lo: U32,
    pub(crate) bg_inode_bitmap_lo: U32,
    pub(crate) bg_inode_table_lo: U32,
    pub(crate) bg_free_blocks_count_lo: U16,
    pub(crate) bg_free_inodes_count_lo: U16,
    pub(crate) bg_used_dirs_count_lo: U16,
    pub(crate) bg_flags: U16,
    pub(crate) bg_exclude_bitmap_lo: U32,
    pub(crate) bg_block_bitmap_csum_lo: U16,
    pub(crate) bg_inode_bitmap_csum_lo: U16,
    pub(crate) bg_itable_unused_lo: U16,
    pub(crate) bg_checksum: U16,
}

layout!(RawGroupLow: 32 { bg_free_blocks_count_lo @ 0x0C, bg_flags @ 0x12, bg_checksum @ 0x1E });

/// The second half of a descriptor, which exists only with the feature 64bit.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawGroupHigh {
    pub(crate) bg_block_bitmap_hi: U32,
    pub(crate) bg_inode_bitmap_hi: U32,
    pub(crate) bg_inode_table_hi: U32,
    pub(crate) bg_free_blocks_count_hi: U16,
    pub(crate) bg_free_inodes_count_hi: U16,
    pub(crate) bg_used_dirs_count_hi: U16,
    pub(crate) bg_itable_unused_hi: U16,
    pub(crate) bg_exclude_bitmap_hi: U32,
    pub(crate) bg_block_bitmap_csum_hi: U16,
    pub(crate) bg_inode_bitmap_csum_hi: U16,
    pub(crate) bg_reserved: U32,
}

layout!(RawGroupHigh: 32 { bg_inode_table_hi @ 0x08, bg_itable_unused_hi @ 0x12 });
