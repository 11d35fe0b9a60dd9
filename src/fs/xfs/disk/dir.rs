//! On-disk structures of directories. Source: "Directories" in "XFS Algorithms & Data Structures".

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// Magic of a block that contains only entries, and magic of a directory's only block. Each exists without and with checksums.
pub(crate) const DATA: u32 = u32::from_be_bytes(*b"XD2D");
pub(crate) const BLOCK: u32 = u32::from_be_bytes(*b"XD2B");
pub(crate) const DATA_V5: u32 = u32::from_be_bytes(*b"XDD3");
pub(crate) const BLOCK_V5: u32 = u32::from_be_bytes(*b"XDB3");
/// Size of the header of a block with entries.
pub(crate) const DATA_HEADER: usize = 16;
pub(crate) const DATA_HEADER_V5: usize = 64;
/// Magic of the three kinds of blocks in the hash index: a single leaf, one of several leaves, and a node above leaves.
pub(crate) const LEAF_ONE: u16 = 0xD2F1;
pub(crate) const LEAF: u16 = 0xD2FF;
pub(crate) const NODE: u16 = 0xFEBE;
pub(crate) const LEAF_ONE_V5: u16 = 0x3DF1;
pub(crate) const LEAF_V5: u16 = 0x3DFF;
pub(crate) const NODE_V5: u16 = 0x3EBE;
/// Size of the header of a leaf, and of a node.
pub(crate) const LEAF_HEADER: usize = 16;
pub(crate) const LEAF_HEADER_V5: usize = 64;
/// First byte of the hash index in the directory's file. The free-space index follows at [`FREE_OFFSET`].
pub(crate) const LEAF_OFFSET: u64 = 1 << 35;
/// First byte of the free-space index: blocks that record the free space in each block of entries.
pub(crate) const FREE_OFFSET: u64 = 1 << 36;
/// Magic of a block of the free-space index (without and with checksums), and the size of the block's header.
pub(crate) const FREE: u32 = u32::from_be_bytes(*b"XD2F");
pub(crate) const FREE_V5: u32 = u32::from_be_bytes(*b"XDF3");
pub(crate) const FREE_HEADER: usize = 16;
pub(crate) const FREE_HEADER_V5: usize = 64;
/// The value in the free-space index for a block of entries that does not exist.
pub(crate) const NO_BLOCK: u16 = 0xFFFF;
/// The codes of file types in entries.
pub(crate) const REGULAR: u8 = 1;
pub(crate) const DIRECTORY: u8 = 2;
/// First two bytes of unused space between entries.
pub(crate) const FREE_TAG: u16 = 0xFFFF;
/// The alignment of entries in bytes. Addresses of entries count units of this length.
pub(crate) const ALIGN: usize = 8;
/// `address` of a removed entry in the hash index.
pub(crate) const STALE: u32 = 0;

/// An entry of the hash index: the hash of a name, and the address of the directory entry.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawHashEntry {
    pub(crate) hashval: U32,
    /// In a leaf: the address in units of [`ALIGN`] from the start of the directory. In a node: the block number of a child.
    pub(crate) address: U32,
}

layout!(RawHashEntry: 8 { address @ 4 });

/// One of the three largest unused runs of a block of entries. The block's header ends with these three structures.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawUnused {
    pub(crate) offset: U16,
    pub(crate) length: U16,
}

layout!(RawUnused: 4 { length @ 2 });

/// Byte offset of the first unused run, without and with checksums.
pub(crate) const UNUSED_AT: usize = 4;
pub(crate) const UNUSED_AT_V5: usize = 48;

/// The tail at the end of a directory's only block. The hash index precedes the tail.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawBlockTail {
    pub(crate) count: U32,
    pub(crate) stale: U32,
}

layout!(RawBlockTail: 8 { stale @ 4 });

/// The sibling links of a block of a hash index. Directories and attributes use the same format.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawLinks {
    pub(crate) forw: U32,
    pub(crate) back: U32,
    pub(crate) magic: U16,
    pub(crate) pad: U16,
}

layout!(RawLinks: 12 { magic @ 8 });
