//! On-disk structures of the B+trees of an allocation group. Source: "B+trees", "Free Space", "Inode", "Reverse-Mapping" and "Reference
//! Count" in "XFS Algorithms & Data Structures".

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// Size of a block's header, without and with checksums.
pub(crate) const HEADER: usize = 16;
pub(crate) const HEADER_V5: usize = 56;
/// The block number that means "no sibling" or "no block".
pub(crate) const NONE: u32 = u32::MAX;

/// The header of a block, without the fields that exist only with checksums.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawHeader {
    pub(crate) bb_magic: [u8; 4],
    pub(crate) bb_level: U16,
    pub(crate) bb_numrecs: U16,
    pub(crate) bb_leftsib: U32,
    pub(crate) bb_rightsib: U32,
}

layout!(RawHeader: 16 { bb_numrecs @ 6, bb_rightsib @ 12 });

/// A record in both free-space trees. A key has the same format.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawFreeExtent {
    pub(crate) ar_startblock: U32,
    pub(crate) ar_blockcount: U32,
}

layout!(RawFreeExtent: 8 { ar_blockcount @ 4 });

/// A record in both inode trees. On volumes without sparse inodes, the second word contains only the count of free inodes.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawChunk {
    pub(crate) ir_startino: U32,
    pub(crate) ir_holemask: U16,
    pub(crate) ir_count: u8,
    pub(crate) ir_freecount: u8,
    pub(crate) ir_free: U64,
}

layout!(RawChunk: 16 { ir_holemask @ 4, ir_freecount @ 7, ir_free @ 8 });

/// A record in the reverse-mapping tree. A key has no block count, and the offset in a key has no flag for unwritten extents.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawOwner {
    pub(crate) rm_startblock: U32,
    pub(crate) rm_blockcount: U32,
    pub(crate) rm_owner: U64,
    pub(crate) rm_offset: U64,
}

layout!(RawOwner: 24 { rm_owner @ 8, rm_offset @ 16 });

/// The flag bits of the field `rm_offset`.
pub(crate) mod owner_bits {
    pub(crate) const ATTRIBUTES: u64 = 1 << 63;
    pub(crate) const MAP_BLOCK: u64 = 1 << 62;
    pub(crate) const UNWRITTEN: u64 = 1 << 61;
    /// The unused bits between these flags and the offset.
    pub(crate) const UNUSED: u64 = (1 << 61) - (1 << 54);
    pub(crate) const OFFSET: u64 = (1 << 54) - 1;
}

/// Codes for owners that are not inodes. They are negative numbers.
pub(crate) mod owner {
    /// Copies of the superblock and headers of groups.
    pub(crate) const HEADERS: u64 = -3_i64 as u64;
    pub(crate) const LOG: u64 = -4_i64 as u64;
    /// The free-space trees and the reverse-mapping tree, with the blocks that are reserved for them.
    pub(crate) const GROUP: u64 = -5_i64 as u64;
    pub(crate) const INODE_TREES: u64 = -6_i64 as u64;
    pub(crate) const INODES: u64 = -7_i64 as u64;
    pub(crate) const REFCOUNTS: u64 = -8_i64 as u64;
    /// Blocks that are reserved for copy on write and are not in any file's map.
    pub(crate) const COPIES: u64 = -9_i64 as u64;
}

/// A record in the tree of reference counts.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawShared {
    pub(crate) rc_startblock: U32,
    pub(crate) rc_blockcount: U32,
    pub(crate) rc_refcount: U32,
}

layout!(RawShared: 12 { rc_refcount @ 8 });

/// The bit of `rc_startblock` that marks blocks reserved for copy on write.
pub(crate) const COPY: u32 = 1 << 31;
