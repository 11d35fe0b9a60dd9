//! On-disk structures of the B+tree of a file's map. Source: "B+trees" and "Data Fork" in "XFS Algorithms & Data Structures".

use zerocopy::big_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// `bb_magic` of a block of a map's tree, without and with checksums: `BMAP`, `BMA3`.
pub(crate) const MAP: u32 = u32::from_be_bytes(*b"BMAP");
pub(crate) const MAP_V5: u32 = u32::from_be_bytes(*b"BMA3");
/// Size of a block's header, without and with checksums.
pub(crate) const HEADER: usize = 24;
pub(crate) const HEADER_V5: usize = 72;
/// The value of a sibling pointer if there is no sibling.
pub(crate) const NONE: u64 = u64::MAX;

/// The root of a map's tree in the inode; keys and pointers follow.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawRoot {
    pub(crate) bb_level: U16,
    pub(crate) bb_numrecs: U16,
}

layout!(RawRoot: 4 { bb_numrecs @ 2 });

/// The header of a block of the tree other than the root, without the fields that exist only with checksums.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawHeader {
    pub(crate) bb_magic: [u8; 4],
    pub(crate) bb_level: U16,
    pub(crate) bb_numrecs: U16,
    pub(crate) bb_leftsib: U64,
    pub(crate) bb_rightsib: U64,
}

layout!(RawHeader: 24 { bb_numrecs @ 6, bb_rightsib @ 16 });

/// A packed extent: unwritten (1 bit), first block of the file (54), first block on the device (52), number of blocks (21).
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawExtent {
    pub(crate) l0: U64,
    pub(crate) l1: U64,
}

layout!(RawExtent: 16 { l1 @ 8 });

impl RawExtent {
    pub(crate) fn is_unwritten(self) -> bool {
        self.l0.get() >> 63 == 1
    }

    pub(crate) fn file_block(self) -> u64 {
        self.l0.get() << 1 >> 10
    }

    pub(crate) fn fs_block(self) -> u64 {
        (self.l0.get() & 0x1FF) << 43 | self.l1.get() >> 21
    }

    pub(crate) fn count(self) -> u32 {
        (self.l1.get() & 0x1F_FFFF) as u32
    }
}
