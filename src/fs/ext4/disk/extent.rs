//! The on-disk nodes of an extent tree. Source: "Extent Tree" in Linux's ext4 documentation.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// The value of `eh_magic`.
pub(crate) const MAGIC: u16 = 0xF30A;
/// The maximum depth of the trees that Linux creates and reads.
pub(crate) const MAX_DEPTH: u16 = 5;
/// The maximum depth of the trees that Linux can free.
pub(crate) const MOST_LEVELS: u16 = 32;
/// The maximum length of a written extent in blocks. An `ee_len` above this value means an unwritten extent of `ee_len - INIT_MAX_LEN`
/// blocks.
pub(crate) const INIT_MAX_LEN: u16 = 32768;

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawExtentHeader {
    pub(crate) eh_magic: U16,
    pub(crate) eh_entries: U16,
    pub(crate) eh_max: U16,
    pub(crate) eh_depth: U16,
    pub(crate) eh_generation: U32,
}

layout!(RawExtentHeader: 12 { eh_entries @ 2, eh_max @ 4, eh_depth @ 6 });

/// The content of `i_block` for the root of an extent tree without extents.
pub(crate) fn empty_root() -> Vec<u8> {
    let mut root = vec![0; 60];
    root[..2].copy_from_slice(&MAGIC.to_le_bytes());
    // This is `eh_max`, the number of entries that fit after the header.
    root[4] = 4;
    root
}

/// An entry of an inner node. It contains the location of a node on the next lower level.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawExtentIndex {
    pub(crate) ei_block: U32,
    pub(crate) ei_leaf_lo: U32,
    pub(crate) ei_leaf_hi: U16,
    pub(crate) ei_unused: U16,
}

layout!(RawExtentIndex: 12 { ei_leaf_lo @ 4, ei_leaf_hi @ 8 });

/// An entry of a leaf: an extent.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawExtent {
    pub(crate) ee_block: U32,
    pub(crate) ee_len: U16,
    pub(crate) ee_start_hi: U16,
    pub(crate) ee_start_lo: U32,
}

layout!(RawExtent: 12 { ee_len @ 4, ee_start_hi @ 6, ee_start_lo @ 8 });

/// The common form of an index entry and an extent. `key` is the first file block.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawEntry {
    pub(crate) key: U32,
    pub(crate) rest: [u8; 8],
}

layout!(RawEntry: 12 { rest @ 4 });

/// The checksum at the end of a node's block. It is stored after the space for `eh_max` entries.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawExtentTail {
    pub(crate) et_checksum: U32,
}

layout!(RawExtentTail: 4 { et_checksum @ 0 });
