//! The on-disk structures of quota files in the format "vfsv1", which mke2fs and the kernel write.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// The block size of a quota file, in bytes. It does not depend on the volume's block size.
pub(crate) const BLOCK: usize = 1024;
/// The values of `dqh_magic` in the quota files of users, groups and projects.
pub(crate) const MAGICS: [u32; 3] = [0xD9C0_1F11, 0xD9C0_1927, 0xD9C0_3F14];
/// The value of `dqh_version`.
pub(crate) const VERSION: u32 = 1;
/// The number of the block that contains the root of the tree. Block 0 contains the header.
pub(crate) const ROOT: u32 = 1;
/// The number of levels of the tree above the blocks of entries. Each level is indexed by one byte of an id. The root is indexed by the
/// highest byte.
pub(crate) const LEVELS: u32 = 4;
/// The unit of the limits for space, in bytes.
pub(crate) const LIMIT_UNIT: u64 = 1024;

/// The header, in the first block of a quota file.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawQuotaHeader {
    pub(crate) dqh_magic: U32,
    pub(crate) dqh_version: U32,
    pub(crate) dqi_bgrace: U32,
    pub(crate) dqi_igrace: U32,
    pub(crate) dqi_flags: U32,
    pub(crate) dqi_blocks: U32,
    pub(crate) dqi_free_blk: U32,
    pub(crate) dqi_free_entry: U32,
}

layout!(RawQuotaHeader: 32 { dqi_bgrace @ 8, dqi_blocks @ 20, dqi_free_entry @ 28 });

/// The start of a block of entries.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawQuotaLeaf {
    pub(crate) dqdh_next_free: U32,
    pub(crate) dqdh_prev_free: U32,
    pub(crate) dqdh_entries: U16,
    pub(crate) dqdh_pad: [U16; 3],
}

layout!(RawQuotaLeaf: 16 { dqdh_entries @ 8 });

/// The limits and the usage of one user, group or project.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawQuotaEntry {
    pub(crate) dqb_id: U32,
    pub(crate) dqb_pad: U32,
    pub(crate) dqb_ihardlimit: U64,
    pub(crate) dqb_isoftlimit: U64,
    pub(crate) dqb_curinodes: U64,
    pub(crate) dqb_bhardlimit: U64,
    pub(crate) dqb_bsoftlimit: U64,
    /// The used space, in bytes.
    pub(crate) dqb_curspace: U64,
    pub(crate) dqb_btime: U64,
    pub(crate) dqb_itime: U64,
}

layout!(RawQuotaEntry: 72 { dqb_curinodes @ 24, dqb_curspace @ 48 });
