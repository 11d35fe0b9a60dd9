//! The records of the journal's fast-commit area, in little-endian byte order. Source of the names and their meaning: "Fast commits" in
//! Linux's ext4 documentation. The layout was determined from images that Linux wrote.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::extent::RawExtent;
use super::layout;

/// The values of `fc_tag`.
pub(crate) const ADD_RANGE: u16 = 1;
pub(crate) const DEL_RANGE: u16 = 2;
pub(crate) const CREAT: u16 = 3;
pub(crate) const LINK: u16 = 4;
pub(crate) const UNLINK: u16 = 5;
pub(crate) const INODE: u16 = 6;
pub(crate) const PAD: u16 = 7;
pub(crate) const TAIL: u16 = 8;
pub(crate) const HEAD: u16 = 9;

/// The start of a record: the type of the record, and the length of the value after this structure.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawTagLength {
    pub(crate) fc_tag: U16,
    pub(crate) fc_len: U16,
}

layout!(RawTagLength: 4 { fc_len @ 2 });

/// The head of the fast-commit area. It contains the number of the transaction after which the fast commits were made.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawHead {
    pub(crate) fc_features: U32,
    pub(crate) fc_tid: U32,
}

layout!(RawHead: 8 { fc_tid @ 4 });

/// The tail of a fast commit. The checksum covers all bytes after the previous tail, up to `fc_crc`.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawTail {
    pub(crate) fc_tid: U32,
    pub(crate) fc_crc: U32,
}

layout!(RawTail: 8 { fc_crc @ 4 });

/// A new extent of a file.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawAddRange {
    pub(crate) fc_ino: U32,
    pub(crate) fc_ex: RawExtent,
}

layout!(RawAddRange: 16 { fc_ex @ 4 });

/// A range of a file that becomes a hole.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawDelRange {
    pub(crate) fc_ino: U32,
    pub(crate) fc_lblk: U32,
    pub(crate) fc_len: U32,
}

layout!(RawDelRange: 12 { fc_lblk @ 4, fc_len @ 8 });

/// A name in a directory. The bytes of the name are stored after this structure, up to the end of the record.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawDentry {
    pub(crate) fc_parent_ino: U32,
    pub(crate) fc_ino: U32,
}

layout!(RawDentry: 8 { fc_ino @ 4 });
