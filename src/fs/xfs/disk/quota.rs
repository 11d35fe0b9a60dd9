//! On-disk records of the usage and limits of users, groups and projects. Source: "Quota Inodes" in "XFS Algorithms & Data Structures".

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// The value of the field `d_magic`: `DQ`.
pub(crate) const MAGIC: u16 = u16::from_be_bytes(*b"DQ");
/// The bit of `d_type` for times in the `bigtime` format.
pub(crate) const BIGTIME: u8 = 0x80;
/// Byte offset of the checksum.
pub(crate) const CRC: usize = 108;

/// Bits of `sb_qflags` that mark the recorded usage as correct.
pub(crate) mod flags {
    pub(crate) const USERS_CHECKED: u16 = 0x0004;
    pub(crate) const GROUPS_CHECKED: u16 = 0x0100;
    pub(crate) const PROJECTS_CHECKED: u16 = 0x0400;
}

/// An entry of a quota file.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawQuota {
    pub(crate) d_magic: U16,
    pub(crate) d_version: u8,
    pub(crate) d_type: u8,
    pub(crate) d_id: U32,
    pub(crate) d_limits: [U64; 4],
    pub(crate) d_bcount: U64,
    pub(crate) d_icount: U64,
    pub(crate) d_times: [u8; 16],
    pub(crate) d_rtb_limits: [U64; 2],
    pub(crate) d_rtbcount: U64,
    pub(crate) d_rtb_times: [u8; 8],
    pub(crate) dd_fill: U32,
    pub(crate) dd_crc: [u8; 4],
    pub(crate) dd_lsn: U64,
    pub(crate) dd_uuid: [u8; 16],
}

layout!(RawQuota: 136 { d_id @ 4, d_bcount @ 40, d_icount @ 48, d_rtbcount @ 88, dd_crc @ 108, dd_lsn @ 112, dd_uuid @ 120 });
