//! Extended attributes, after "Extended Attributes" in Linux's ext4 documentation.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// `h_magic` of an attribute block, and of the attributes in an inode.
pub(crate) const MAGIC: u32 = 0xEA02_0000;
/// Byte offset of `h_checksum` in an attribute block. Its bytes count as 0 in the checksum.
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

/// An entry of an attribute without its name. The name follows. Four zero bytes end the list.
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

/// `a_version` of an access control list on disk.
pub(crate) const ACL_VERSION: u32 = 1;

/// An entry of an access control list. For named users and groups a 32-bit `e_id` follows.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawAclEntry {
    pub(crate) e_tag: U16,
    pub(crate) e_perm: U16,
}

layout!(RawAclEntry: 4 { e_perm @ 2 });
