//! The on-disk blocks of the orphan file. Source: "Orphan file" in Linux's ext4 documentation.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// The value of `ob_magic`.
pub(crate) const MAGIC: u32 = 0x0B10_CA04;

/// The tail of a block of the orphan file. The bytes before the tail are inode numbers. The number 0 means a free entry.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawOrphanTail {
    pub(crate) ob_magic: U32,
    pub(crate) ob_checksum: U32,
}

layout!(RawOrphanTail: 8 { ob_checksum @ 4 });
