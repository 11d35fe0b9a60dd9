//! On-disk structures of extended attributes. Source: "Extended Attributes" in "XFS Algorithms & Data Structures".

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// Magic of a leaf, without and with checksums.
pub(crate) const LEAF: u16 = 0xFBEE;
pub(crate) const LEAF_V5: u16 = 0x3BEE;
/// Size of a leaf's header.
pub(crate) const LEAF_HEADER: usize = 32;
pub(crate) const LEAF_HEADER_V5: usize = 80;
/// Byte offset of the counters in a leaf's header, without and with checksums.
pub(crate) const COUNTS: usize = 12;
pub(crate) const COUNTS_V5: usize = 56;
/// The number of unused runs that a leaf's header lists.
pub(crate) const FREE_RUNS: usize = 3;
/// The alignment of names in a leaf, in bytes.
pub(crate) const ALIGN: usize = 4;
/// Magic of a block of a remote value: `XARM`.
pub(crate) const REMOTE: u32 = u32::from_be_bytes(*b"XARM");
/// Magic of a block of a symbolic link: `XSLM`.
pub(crate) const SYMLINK: u32 = u32::from_be_bytes(*b"XSLM");
/// Size of the header in blocks of remote values and symbolic links.
pub(crate) const REMOTE_HEADER: usize = 56;

/// The bits of the field `flags` of an entry.
pub(crate) mod flags {
    pub(crate) const LOCAL: u8 = 0x1;
    pub(crate) const ROOT: u8 = 0x2;
    pub(crate) const SECURE: u8 = 0x4;
    pub(crate) const PARENT: u8 = 0x8;
    pub(crate) const INCOMPLETE: u8 = 0x80;
}

/// The counters of a leaf.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawCounts {
    pub(crate) count: U16,
    pub(crate) usedbytes: U16,
    pub(crate) firstused: U16,
    pub(crate) holes: u8,
    pub(crate) pad1: u8,
    /// The first byte and the length of each unused run.
    pub(crate) freemap: [[U16; 2]; FREE_RUNS],
}

layout!(RawCounts: 20 { firstused @ 4, freemap @ 8 });

/// The header of the attribute list in an inode.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawShort {
    pub(crate) totsize: U16,
    pub(crate) count: u8,
    pub(crate) padding: u8,
}

layout!(RawShort: 4 { count @ 2 });

/// The header of one attribute in an inode. The name and the value follow.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawShortEntry {
    pub(crate) namelen: u8,
    pub(crate) valuelen: u8,
    pub(crate) flags: u8,
}

layout!(RawShortEntry: 3 { flags @ 2 });

/// An entry of a leaf.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawEntry {
    pub(crate) hashval: U32,
    pub(crate) nameidx: U16,
    pub(crate) flags: u8,
    pub(crate) pad2: u8,
}

layout!(RawEntry: 8 { nameidx @ 4, flags @ 6 });

/// The header of a name in a leaf, if the value follows in the same leaf.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawLocal {
    pub(crate) valuelen: U16,
    pub(crate) namelen: u8,
}

layout!(RawLocal: 3 { namelen @ 2 });

/// The header of a name in a leaf, if the value is in separate blocks.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawRemote {
    pub(crate) valueblk: U32,
    pub(crate) valuelen: U32,
    pub(crate) namelen: u8,
}

layout!(RawRemote: 9 { valuelen @ 4, namelen @ 8 });

/// The value of a parent pointer: the inode number of a directory, and the directory's generation.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawParent {
    pub(crate) p_ino: U64,
    pub(crate) p_gen: U32,
}

layout!(RawParent: 12 { p_gen @ 8 });

/// An entry of an access control list. A count precedes the entries.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawAclEntry {
    pub(crate) ae_tag: U32,
    pub(crate) ae_id: U32,
    pub(crate) ae_perm: U16,
    pub(crate) ae_pad: U16,
}

layout!(RawAclEntry: 12 { ae_id @ 4, ae_perm @ 8 });
