//! Headers of allocation groups. Source: "Allocation Groups" in "XFS Algorithms & Data Structures".

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// The values of the fields `agf_magicnum` and `agi_magicnum`.
pub(crate) const FREE_MAGIC: [u8; 4] = *b"XAGF";
pub(crate) const INODES_MAGIC: [u8; 4] = *b"XAGI";
/// Numbers of two sectors in a group: the sector of the free-space header and the sector of the inode header.
pub(crate) const FREE_SECTOR: u64 = 1;
pub(crate) const INODES_SECTOR: u64 = 2;
/// Byte offsets of the checksums in these headers.
pub(crate) const FREE_CRC: usize = 216;
pub(crate) const INODES_CRC: usize = 312;

/// The free-space header of a group.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawFree {
    pub(crate) agf_magicnum: [u8; 4],
    pub(crate) agf_versionnum: U32,
    pub(crate) agf_seqno: U32,
    pub(crate) agf_length: U32,
    pub(crate) agf_roots: [U32; 3],
    pub(crate) agf_levels: [U32; 3],
    pub(crate) agf_flfirst: U32,
    pub(crate) agf_fllast: U32,
    pub(crate) agf_flcount: U32,
    pub(crate) agf_freeblks: U32,
    pub(crate) agf_longest: U32,
    pub(crate) agf_btreeblks: U32,
    pub(crate) agf_uuid: [u8; 16],
    pub(crate) agf_rmap_blocks: U32,
    pub(crate) agf_refcount_blocks: U32,
    pub(crate) agf_refcount_root: U32,
    pub(crate) agf_refcount_level: U32,
    pub(crate) agf_spare: [u8; 112],
    pub(crate) agf_lsn: U64,
}

layout!(RawFree: 216 {
    agf_length @ 12, agf_flcount @ 48, agf_freeblks @ 52, agf_btreeblks @ 60, agf_rmap_blocks @ 80, agf_refcount_level @ 92, agf_lsn @ 208,
});

/// The inode header of a group.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawInodes {
    pub(crate) agi_magicnum: [u8; 4],
    pub(crate) agi_versionnum: U32,
    pub(crate) agi_seqno: U32,
    pub(crate) agi_length: U32,
    pub(crate) agi_count: U32,
    pub(crate) agi_root: U32,
    pub(crate) agi_level: U32,
    pub(crate) agi_freecount: U32,
    pub(crate) agi_newino: U32,
    pub(crate) agi_dirino: U32,
    pub(crate) agi_unlinked: [U32; 64],
    pub(crate) agi_uuid: [u8; 16],
    pub(crate) agi_crc: [u8; 4],
    pub(crate) agi_pad32: U32,
    pub(crate) agi_lsn: U64,
    pub(crate) agi_free_root: U32,
    pub(crate) agi_free_level: U32,
    pub(crate) agi_iblocks: U32,
    pub(crate) agi_fblocks: U32,
}

layout!(RawInodes: 344 { agi_count @ 16, agi_freecount @ 28, agi_unlinked @ 40, agi_uuid @ 296, agi_lsn @ 320, agi_fblocks @ 340 });

/// Number of the sector, in a group, that contains the free list. The blocks in the list are reserved for the free-space trees.
pub(crate) const LIST_SECTOR: u64 = 3;
/// The value of the field `agfl_magicnum`.
pub(crate) const LIST_MAGIC: [u8; 4] = *b"XAFL";
/// Byte offset of the free list's checksum.
pub(crate) const LIST_CRC: usize = 32;

/// The header of the free list on volumes with checksums.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawList {
    pub(crate) agfl_magicnum: [u8; 4],
    pub(crate) agfl_seqno: U32,
    pub(crate) agfl_uuid: [u8; 16],
    pub(crate) agfl_lsn: U64,
    pub(crate) agfl_crc: [u8; 4],
}

layout!(RawList: 36 { agfl_uuid @ 8, agfl_lsn @ 24, agfl_crc @ 32 });
