//! The superblock, which is the first sector of each allocation group. Source: "Superblocks" in "XFS Algorithms & Data Structures".

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// The value of the field `sb_magicnum`: `XFSB`.
pub(crate) const MAGIC: u32 = u32::from_be_bytes(*b"XFSB");
/// Byte offset of `sb_crc`.
pub(crate) const CRC_OFFSET: usize = 224;

/// `sb_versionnum`: the lowest four bits are the version, and the other bits are features.
pub(crate) mod version {
    pub(crate) const NUMBER: u16 = 0xF;
    pub(crate) const QUOTA: u16 = 0x40;
    pub(crate) const ALIGNED_INODES: u16 = 0x80;
    pub(crate) const STRIPES: u16 = 0x100;
    pub(crate) const SHARED: u16 = 0x200;
    pub(crate) const LOG_SECTORS: u16 = 0x800;
    pub(crate) const DIR_V2: u16 = 0x2000;
    pub(crate) const ASCII_CI: u16 = 0x4000;
    pub(crate) const MORE_BITS: u16 = 0x8000;
}

/// The bits of the field `sb_features2`.
pub(crate) mod features2 {
    pub(crate) const LAZY_COUNTERS: u32 = 0x2;
    pub(crate) const ATTR2: u32 = 0x8;
    pub(crate) const PROJID32: u32 = 0x80;
    pub(crate) const CHECKSUMS: u32 = 0x100;
    pub(crate) const FTYPE: u32 = 0x200;
}

#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawSuperblock {
    pub(crate) sb_magicnum: U32,
    pub(crate) sb_blocksize: U32,
    pub(crate) sb_dblocks: U64,
    pub(crate) sb_rblocks: U64,
    pub(crate) sb_rextents: U64,
    pub(crate) sb_uuid: [u8; 16],
    pub(crate) sb_logstart: U64,
    pub(crate) sb_rootino: U64,
    pub(crate) sb_rbmino: U64,
    pub(crate) sb_rsumino: U64,
    pub(crate) sb_rextsize: U32,
    pub(crate) sb_agblocks: U32,
    pub(crate) sb_agcount: U32,
    pub(crate) sb_rbmblocks: U32,
    pub(crate) sb_logblocks: U32,
    pub(crate) sb_versionnum: U16,
    pub(crate) sb_sectsize: U16,
    pub(crate) sb_inodesize: U16,
    pub(crate) sb_inopblock: U16,
    pub(crate) sb_fname: [u8; 12],
    pub(crate) sb_blocklog: u8,
    pub(crate) sb_sectlog: u8,
    pub(crate) sb_inodelog: u8,
    pub(crate) sb_inopblog: u8,
    pub(crate) sb_agblklog: u8,
    pub(crate) sb_rextslog: u8,
    pub(crate) sb_inprogress: u8,
    pub(crate) sb_imax_pct: u8,
    pub(crate) sb_icount: U64,
    pub(crate) sb_ifree: U64,
    pub(crate) sb_fdblocks: U64,
    pub(crate) sb_frextents: U64,
    pub(crate) sb_uquotino: U64,
    pub(crate) sb_gquotino: U64,
    pub(crate) sb_qflags: U16,
    pub(crate) sb_flags: u8,
    pub(crate) sb_shared_vn: u8,
    pub(crate) sb_inoalignmt: U32,
    pub(crate) sb_unit: U32,
    pub(crate) sb_width: U32,
    pub(crate) sb_dirblklog: u8,
    pub(crate) sb_logsectlog: u8,
    pub(crate) sb_logsectsize: U16,
    pub(crate) sb_logsunit: U32,
    pub(crate) sb_features2: U32,
    pub(crate) sb_bad_features2: U32,
    pub(crate) sb_features_compat: U32,
    pub(crate) sb_features_ro_compat: U32,
    pub(crate) sb_features_incompat: U32,
    pub(crate) sb_features_log_incompat: U32,
    pub(crate) sb_crc: [u8; 4],
    pub(crate) sb_spino_align: U32,
    pub(crate) sb_pquotino: U64,
    pub(crate) sb_lsn: U64,
    pub(crate) sb_meta_uuid: [u8; 16],
    // Fields of volumes with metadata directories: the root of these directories, and the layout of the realtime groups.
    pub(crate) sb_metadirino: U64,
    pub(crate) sb_rgcount: U32,
    pub(crate) sb_rgextents: U32,
    pub(crate) sb_rgblklog: u8,
    pub(crate) sb_pad: [u8; 7],
    // Fields of volumes with zones: the first block of the zones on the volume's own device, and the number of reserved blocks.
    pub(crate) sb_rtstart: U64,
    pub(crate) sb_rtreserved: U64,
}

/// The value of the field `rsb_magicnum`: `Frog`.
pub(crate) const REALTIME_MAGIC: u32 = u32::from_be_bytes(*b"Frog");
/// Byte offset of `rsb_crc`.
pub(crate) const REALTIME_CRC: usize = 4;

/// The superblock of a realtime device with groups, at its beginning (`struct xfs_rtsb`).
#[derive(Debug, FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RawRealtimeSuperblock {
    pub(crate) rsb_magicnum: U32,
    pub(crate) rsb_crc: [u8; 4],
    pub(crate) rsb_pad: [u8; 4],
    pub(crate) rsb_fname: [u8; 12],
    pub(crate) rsb_uuid: [u8; 16],
    pub(crate) rsb_meta_uuid: [u8; 16],
}

layout!(RawRealtimeSuperblock: 56 { rsb_fname @ 12, rsb_uuid @ 24, rsb_meta_uuid @ 40 });

layout!(RawSuperblock: 304 {
    sb_uuid @ 32, sb_rootino @ 56, sb_agblocks @ 84, sb_versionnum @ 100, sb_fname @ 108, sb_blocklog @ 120, sb_icount @ 128,
    sb_uquotino @ 160, sb_dirblklog @ 192, sb_features2 @ 200, sb_features_incompat @ 216, sb_crc @ 224, sb_meta_uuid @ 248,
    sb_metadirino @ 264, sb_rgblklog @ 280, sb_rtstart @ 288,
});
