//! The on-disk structures of a tag area only. Little endian, except the tuples, which have the format of T10 and NVMe.
//!
//! ```text
//! superblock | dirty map | generations | tags | journal | superblock
//! ```
//!
//! Everything is in blocks of 4096 bytes. No value read here has been checked yet.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The unit of the area in bytes.
pub(super) const BLOCK: usize = 4096;
/// The same as a length on the device.
pub(super) const BLOCK_LEN: u64 = BLOCK as u64;

pub(super) const MAGIC: [u8; 8] = *b"ironPI01";
pub(super) const VERSION: u32 = 1;

/// `features`: the application tag counts the generations of its region.
pub(super) const GENERATIONS: u32 = 0x1;
/// `features`: all that is known.
pub(super) const KNOWN_FEATURES: u32 = GENERATIONS;

pub(super) const KIND_T10: u8 = 1;
pub(super) const KIND_NVME64: u8 = 2;
pub(super) const MODE_BITMAP: u8 = 1;
pub(super) const MODE_JOURNAL: u8 = 2;
/// `state`: nobody has it open for writing, and nothing is to be recovered.
pub(super) const STATE_CLEAN: u8 = 1;
pub(super) const STATE_OPEN: u8 = 2;

/// The first and the last block of the area. The valid one of the higher sequence counts.
#[derive(Clone, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawSuperblock {
    pub(super) magic: [u8; 8],
    pub(super) version: U32,
    /// A program that does not know one of these must not open the device.
    pub(super) features: U32,
    pub(super) uuid: [u8; 16],
    /// Of the data device, as far as it has an identity; else zeros.
    pub(super) data_uuid: [u8; 16],
    /// Bytes.
    pub(super) data_size: U64,
    /// Where the area begins on its device, in bytes. 0 on a device of its own.
    pub(super) area_start: U64,
    /// Bytes.
    pub(super) area_len: U64,
    pub(super) sequence: U64,
    /// Bytes of a region of the dirty map.
    pub(super) region: U64,
    /// Bytes of the journal; 0 in bitmap mode.
    pub(super) journal_len: U64,
    /// Bytes of a sector.
    pub(super) interval: U32,
    pub(super) application: U16,
    pub(super) kind: u8,
    pub(super) mode: u8,
    pub(super) state: u8,
    pub(super) reserved: [u8; 3987],
    /// CRC32C of all before it.
    pub(super) checksum: U32,
}

/// A block of the dirty map, of the generations, or a head of the journal: content and its checksum.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawSealed {
    pub(super) content: [u8; SEALED],
    /// CRC32C of the block's number in the area (u64) and the content.
    pub(super) checksum: U32,
}

/// How many bytes a sealed block holds.
pub(super) const SEALED: usize = BLOCK - 4;

/// The first bytes of a head of the journal. There are two, written in turns.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawJournalHead {
    pub(super) magic: [u8; 8],
    /// The first record that may have to be replayed.
    pub(super) sequence: U64,
    /// Where it begins, in blocks from the first after the heads.
    pub(super) position: U64,
}

pub(super) const HEAD_MAGIC: [u8; 8] = *b"ironPIjh";
pub(super) const RECORD_MAGIC: [u8; 8] = *b"ironPIjr";

/// The begin of a journal record. The extents follow, then the tuples up to a whole block, and then the data.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawRecord {
    pub(super) magic: [u8; 8],
    pub(super) uuid: [u8; 16],
    pub(super) sequence: U64,
    /// Bytes of everything: a multiple of a block.
    pub(super) len: U64,
    pub(super) extents: U32,
    /// CRC32C of all of the record, with this field 0.
    pub(super) checksum: U32,
    /// CRC64 (NVMe) of the rest of the record. A CRC32C is blind to data that end with their own CRC32C, as an ext4 superblock does: with another
    /// one in its place, left by a torn write, the record's would be the same.
    pub(super) body: U64,
}

/// Sectors in a row that a record holds, or that it says are [discarded](DISCARDED).
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawExtent {
    pub(super) sector: U64,
    pub(super) count: U64,
}

/// In the count of an extent: its sectors may hold anything from then on. It has neither tuples nor data, and its record no other extent.
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
