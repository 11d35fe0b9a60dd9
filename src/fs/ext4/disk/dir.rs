//! The on-disk structures of linear and hashed directories. Source: "Directory Entries" in Linux's ext4 documentation.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// The maximum length of a name, in bytes.
pub(crate) const MAX_NAME: usize = 255;

/// The fixed part of an entry. The name is stored after this part. An entry with inode number 0 is unused space.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawDirEntry {
    pub(crate) inode: U32,
    pub(crate) rec_len: U16,
    pub(crate) name_len: u8,
    pub(crate) file_type: u8,
}

layout!(RawDirEntry: 8 { rec_len @ 4, name_len @ 6, file_type @ 7 });

/// The checksum at the end of a block of entries. It has the form of an unused entry.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawDirTail {
    pub(crate) det_reserved_zero1: U32,
    pub(crate) det_rec_len: U16,
    pub(crate) det_reserved_zero2: u8,
    pub(crate) det_reserved_ft: u8,
    pub(crate) det_checksum: U32,
}

layout!(RawDirTail: 12 { det_rec_len @ 4, det_reserved_ft @ 7, det_checksum @ 8 });

/// The value of `det_reserved_ft` in every tail.
pub(crate) const TAIL_FILE_TYPE: u8 = 0xDE;

/// The byte offset of [`RawDxRootInfo`] in the first block of a directory. The block begins with the entries `.` and `..`.
pub(crate) const DX_ROOT_INFO_OFFSET: usize = 0x18;
/// The byte offset of [`RawDxCount`] in the root.
pub(crate) const DX_ROOT_COUNT_OFFSET: usize = 0x20;
/// The byte offset of [`RawDxCount`] in a node other than the root. The node begins with an unused entry.
pub(crate) const DX_NODE_COUNT_OFFSET: usize = 0x08;

/// The header of the tree in the root of a hashed directory.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawDxRootInfo {
    pub(crate) reserved_zero: U32,
    pub(crate) hash_version: u8,
    pub(crate) info_length: u8,
    pub(crate) indirect_levels: u8,
    pub(crate) unused_flags: u8,
}

layout!(RawDxRootInfo: 8 { hash_version @ 4, info_length @ 5, indirect_levels @ 6, unused_flags @ 7 });

/// The capacity of a node and its number of entries. These numbers are stored in place of the first entry's hash, which is always 0.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawDxCount {
    pub(crate) limit: U16,
    pub(crate) count: U16,
}

layout!(RawDxCount: 4 { limit @ 0, count @ 2 });

/// An entry of a node. It refers to block `block` of the directory. The names in or below this block have hashes from `hash` up to the hash
/// of the next entry.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawDxEntry {
    pub(crate) hash: U32,
    pub(crate) block: U32,
}

layout!(RawDxEntry: 8 { hash @ 0, block @ 4 });

/// The bits of [`RawDxEntry::block`] that contain the block number.
pub(crate) const DX_BLOCK_MASK: u32 = 0x0FFF_FFFF;

/// The checksum of a node. It is stored after the space for `limit` entries.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawDxTail {
    pub(crate) dt_reserved: U32,
    pub(crate) dt_checksum: U32,
}

layout!(RawDxTail: 8 { dt_checksum @ 4 });
