//! The on-disk inode. Source: "On-disk Inode" in "XFS Algorithms & Data Structures".

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// The value of the field `di_magic`: `IN`.
pub(crate) const MAGIC: u16 = u16::from_be_bytes(*b"IN");
/// Byte offset of `di_crc`. In versions 1 and 2 the forks begin at the same offset.
pub(crate) const CRC_OFFSET: usize = 100;
pub(crate) const FORKS_V2: usize = 100;
/// Byte offset of the forks of version 3.
pub(crate) const FORKS_V3: usize = 176;

/// The values of the fields `di_format` and `di_aformat`.
pub(crate) mod format {
    pub(crate) const DEVICE: u8 = 0;
    pub(crate) const LOCAL: u8 = 1;
    pub(crate) const EXTENTS: u8 = 2;
    pub(crate) const BTREE: u8 = 3;
    pub(crate) const META_BTREE: u8 = 5;
}

/// The bits of the field `di_flags`.
pub(crate) mod flags {
    pub(crate) const REALTIME: u16 = 0x1;
    pub(crate) const NEW_BITMAP: u16 = 0x4;
    pub(crate) const IMMUTABLE: u16 = 0x8;
    pub(crate) const APPEND: u16 = 0x10;
    pub(crate) const SYNC: u16 = 0x20;
    pub(crate) const NO_ATIME: u16 = 0x40;
    pub(crate) const NO_DUMP: u16 = 0x80;
    pub(crate) const REALTIME_INHERIT: u16 = 0x100;
    pub(crate) const PROJECT_INHERIT: u16 = 0x200;
    pub(crate) const NO_SYMLINKS: u16 = 0x400;
    pub(crate) const EXTENT_SIZE: u16 = 0x800;
    pub(crate) const EXTENT_SIZE_INHERIT: u16 = 0x1000;
    pub(crate) const NO_DEFRAG: u16 = 0x2000;
    pub(crate) const UNUSED: u16 = 0x8000;
    /// The flags that each internal file in the metadata directories has. Metadata directories also have `NO_SYMLINKS`.
    pub(crate) const METADATA: u16 = IMMUTABLE | SYNC | NO_ATIME | NO_DUMP | NO_DEFRAG;
    pub(crate) const METADATA_DIRECTORY: u16 = METADATA | NO_SYMLINKS;
}

/// The bits of the field `di_flags2`.
pub(crate) mod flags2 {
    pub(crate) const DAX: u64 = 0x1;
    pub(crate) const COPY_SIZE: u64 = 0x4;
    pub(crate) const BIGTIME: u64 = 0x8;
    pub(crate) const REFLINK: u64 = 0x2;
    pub(crate) const NREXT64: u64 = 0x10;
    pub(crate) const METADATA: u64 = 0x20;
    pub(crate) const ALL: u64 = 0x3F;
}

/// The values of the field `di_metatype`: the kind of an internal file. The field is stored in the bytes of `di_onlink`.
pub(crate) mod metatype {
    pub(crate) const DIRECTORY: u16 = 1;
    pub(crate) const USER_QUOTA: u16 = 2;
    pub(crate) const GROUP_QUOTA: u16 = 3;
    pub(crate) const PROJECT_QUOTA: u16 = 4;
    pub(crate) const REALTIME_BITMAP: u16 = 5;
    pub(crate) const REALTIME_SUMMARY: u16 = 6;
    pub(crate) const REALTIME_OWNERS: u16 = 7;
    pub(crate) const REALTIME_REFCOUNTS: u16 = 8;
}

/// The fields that all inode versions have.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawInode {
    pub(crate) di_magic: U16,
    pub(crate) di_mode: U16,
    pub(crate) di_version: u8,
    pub(crate) di_format: u8,
    pub(crate) di_onlink: U16,
    pub(crate) di_uid: U32,
    pub(crate) di_gid: U32,
    pub(crate) di_nlink: U32,
    pub(crate) di_projid_lo: U16,
    pub(crate) di_projid_hi: U16,
    pub(crate) di_big_nextents: U64,
    pub(crate) di_atime: U64,
    pub(crate) di_mtime: U64,
    pub(crate) di_ctime: U64,
    pub(crate) di_size: U64,
    pub(crate) di_nblocks: U64,
    pub(crate) di_extsize: U32,
    pub(crate) di_nextents: U32,
    pub(crate) di_anextents: U16,
    pub(crate) di_forkoff: u8,
    pub(crate) di_aformat: u8,
    pub(crate) di_dmevmask: U32,
    pub(crate) di_dmstate: U16,
    pub(crate) di_flags: U16,
    pub(crate) di_gen: U32,
    pub(crate) di_next_unlinked: U32,
}

layout!(RawInode: 100 {
    di_uid @ 8, di_nlink @ 16, di_big_nextents @ 24, di_atime @ 32, di_size @ 56, di_nextents @ 76, di_forkoff @ 82, di_flags @ 90,
    di_next_unlinked @ 96,
});

/// The fields that only version 3 has.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawInodeV3 {
    pub(crate) di_crc: [u8; 4],
    pub(crate) di_changecount: U64,
    pub(crate) di_lsn: U64,
    pub(crate) di_flags2: U64,
    pub(crate) di_cowextsize: U32,
    pub(crate) di_pad2: [u8; 12],
    pub(crate) di_crtime: U64,
    pub(crate) di_ino: U64,
    pub(crate) di_uuid: [u8; 16],
}

layout!(RawInodeV3: 76 { di_lsn @ 12, di_flags2 @ 20, di_crtime @ 44, di_ino @ 52, di_uuid @ 60 });
