//! The structures of a tag area on disk. Their numbers are little-endian. The tuples have the format of T10 and NVMe.
//!
//! ```text
//! superblock | dirty map | generations | tags | journal | superblock
//! ```
//!
//! All structures consist of blocks of 4096 bytes. The types in this module do not check the values.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The size of a block in bytes. The block is the unit of the area.
pub(super) const BLOCK: usize = 4096;
/// [`BLOCK`] as `u64`, for positions on a device.
pub(super) const BLOCK_LEN: u64 = BLOCK as u64;

pub(super) const MAGIC: [u8; 8] = *b"ironPI01";
pub(super) const VERSION: u32 = 1;

/// A bit of `features`: the application tag of a tuple is the generation of the sector's region.
pub(super) const GENERATIONS: u32 = 0x1;
/// All known bits of `features`.
pub(super) const KNOWN_FEATURES: u32 = GENERATIONS;

pub(super) const KIND_T10: u8 = 1;
pub(super) const KIND_NVME64: u8 = 2;
pub(super) const MODE_BITMAP: u8 = 1;
pub(super) const MODE_JOURNAL: u8 = 2;
/// The value of `state` in a closed device: no program has the device open for writing, and no recovery is needed.
pub(super) const STATE_CLEAN: u8 = 1;
pub(super) const STATE_OPEN: u8 = 2;

/// The superblock: the first and the last block of the area. If both copies are valid, the copy with the higher sequence applies.
#[derive(Clone, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawSuperblock {
    pub(super) magic: [u8; 8],
    pub(super) version: U32,
    /// The features that a program must support to open the device.
    pub(super) features: U32,
    pub(super) uuid: [u8; 16],
    /// The identity of the data device, or zeros if the device has no identity.
    pub(super) data_uuid: [u8; 16],
    /// The size of the data in bytes.
    pub(super) data_size: U64,
    /// The position of the area on its device, in bytes. 0 if the tags have a separate device.
    pub(super) area_start: U64,
    /// The length of the area in bytes.
    pub(super) area_len: U64,
    pub(super) sequence: U64,
    /// The length of a region of the dirty map in bytes.
    pub(super) region: U64,
    /// The length of the journal in bytes; 0 in bitmap mode.
    pub(super) journal_len: U64,
    /// The length of a sector in bytes.
    pub(super) interval: U32,
    pub(super) application: U16,
    pub(super) kind: u8,
    pub(super) mode: u8,
    pub(super) state: u8,
    pub(super) reserved: [u8; 3987],
    /// The CRC32C of all fields before this field.
    pub(super) checksum: U32,
}

/// A sealed block: a block of the dirty map, a block of the generations, or a head of the journal. The block ends with a checksum of its
/// content.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawSealed {
    pub(super) content: [u8; SEALED],
    /// The CRC32C of the number of the block in the area (as u64), followed by the content.
    pub(super) checksum: U32,
}

/// The number of bytes of content in a sealed block.
pub(super) const SEALED: usize = BLOCK - 4;

/// The first bytes of a journal head. A journal has two heads, which are written alternately.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawJournalHead {
    pub(super) magic: [u8; 8],
    /// The sequence number of the first record that a replay must examine.
    pub(super) sequence: U64,
    /// The position of the first record that a replay must examine. It is counted in blocks from the first block after the heads.
    pub(super) position: U64,
}

pub(super) const HEAD_MAGIC: [u8; 8] = *b"ironPIjh";
pub(super) const RECORD_MAGIC: [u8; 8] = *b"ironPIjr";

/// The first part of a journal record. The extents, the tuples, padding up to a whole block, and the data follow.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawRecord {
    pub(super) magic: [u8; 8],
    pub(super) uuid: [u8; 16],
    pub(super) sequence: U64,
    /// The length of the whole record in bytes. It is a multiple of a block.
    pub(super) len: U64,
    pub(super) extents: U32,
    /// The CRC32C of the whole record, computed with this field as 0.
    pub(super) checksum: U32,
    /// The CRC64 (NVMe) of the rest of the record. The CRC32C is not sufficient if data end with their own CRC32C, as an ext4 superblock
    /// does: after a torn write, the record could contain an older superblock, and the record's CRC32C would still be correct.
    pub(super) body: U64,
}

/// Consecutive sectors. The record contains their data, or marks them as [discarded](DISCARDED).
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawExtent {
    pub(super) sector: U64,
    pub(super) count: U64,
}

/// A bit in the count of an extent. It means that the extent's sectors were discarded and may have any content. The record then contains
/// only this extent, without tuples and data.
pub(super) const DISCARDED: u64 = 1 << 63;

const _: () = {
    assert!(size_of::<RawSuperblock>() == BLOCK);
    assert!(core::mem::offset_of!(RawSuperblock, data_size) == 48);
    assert!(core::mem::offset_of!(RawSuperblock, interval) == 96);
    assert!(core::mem::offset_of!(RawSuperblock, checksum) == BLOCK - 4);
    assert!(size_of::<RawSealed>() == BLOCK);
    assert!(size_of::<RawJournalHead>() == 24);
    assert!(size_of::<RawRecord>() == 56);
    assert!(size_of::<RawExtent>() == 16);
};
