//! The blocks of the orphan file, after "Orphan file" in Linux's ext4 documentation.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// `ob_magic`.
pub(crate) const MAGIC: u32 = 0x0B10_CA04;

/// The tail of a block. Inode numbers precede it; 0 stands for a free entry.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawOrphanTail {
    pub(crate) ob_magic: U32,
    pub(crate) ob_checksum: U32,
}

layout!(RawOrphanTail: 8 { ob_checksum @ 4 });
