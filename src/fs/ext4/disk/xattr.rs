//! The on-disk structures of extended attributes. Source: "Extended Attributes" in Linux's ext4 documentation.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// The value of `h_magic` in an attribute block, and before the attributes in an inode.
pub(crate) const MAGIC: u32 = 0xEA02_0000;
/// The byte offset of `h_checksum` in an attribute block. The checksum is computed with zeros in this field.
pub(crate) const CHECKSUM_OFFSET: usize = 0x10;

/// The start of an attribute block.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawXattrHeader {
    pub(crate) h_magic: U32,
    pub(crate) h_refcount: U32,
    pub(crate) h_blocks: U32,
    pub(crate) h_hash: U32,
    pub(crate) h_checksum: U32,
    pub(crate) h_reserved: [U32; 3],
}

layout!(RawXattrHeader: 32 { h_blocks @ 0x08, h_hash @ 0x0C, h_checksum @ 0x10 });

/// The fixed part of an attribute's entry. The name is stored after this part. Four zero bytes end the list of entries.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawXattrEntry {
    pub(crate) e_name_len: u8,
    pub(crate) e_name_index: u8,
    pub(crate) e_value_offs: U16,
    pub(crate) e_value_inum: U32,
    pub(crate) e_value_size: U32,
    pub(crate) e_hash: U32,
}

layout!(RawXattrEntry: 16 { e_name_index @ 1, e_value_offs @ 2, e_value_inum @ 4, e_value_size @ 8, e_hash @ 12 });

/// The value of `a_version` in an access control list on disk.
pub(crate) const ACL_VERSION: u32 = 1;

/// The fixed part of an entry of an access control list. In the entry of a named user or group, a 32-bit `e_id` is stored after this part.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawAclEntry {
    pub(crate) e_tag: U16,
    pub(crate) e_perm: U16,
}

layout!(RawAclEntry: 4 { e_perm @ 2 });
