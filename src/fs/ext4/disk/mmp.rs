//! The on-disk block of multiple mount protection. Source: "Multiple Mount Protection" in Linux's ext4 documentation.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// The value of `mmp_magic`.
pub(crate) const MAGIC: u32 = 0x004D_4D50;
/// The value of `mmp_seq` on a volume that is not in use.
pub(crate) const SEQ_CLEAN: u32 = 0xFF4D_4D50;
/// The value of `mmp_seq` while e2fsck checks the volume.
pub(crate) const SEQ_FSCK: u32 = 0xE24D_4D50;
/// The byte offset of `mmp_checksum`. The checksum covers all bytes before this offset.
pub(crate) const CHECKSUM_OFFSET: usize = 0x3FC;

#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawMmp {
    pub(crate) mmp_magic: U32,
    pub(crate) mmp_seq: U32,
    pub(crate) mmp_time: U64,
    pub(crate) mmp_nodename: [u8; 64],
    pub(crate) mmp_bdevname: [u8; 32],
    pub(crate) mmp_check_interval: U16,
    pub(crate) mmp_pad1: U16,
    pub(crate) mmp_pad2: [U32; 226],
    pub(crate) mmp_checksum: U32,
}

layout!(RawMmp: 1024 { mmp_nodename @ 0x10, mmp_check_interval @ 0x70, mmp_checksum @ 0x3FC });
