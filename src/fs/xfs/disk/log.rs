//! On-disk structures of the log. Source: "Journaling Log" in "XFS Algorithms & Data Structures". Headers of records and operations are
//! big-endian. Items have the byte order of the processor that wrote them; only little-endian items are supported.

use zerocopy::big_endian::{U32, U64};
use zerocopy::little_endian as le;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// Bytes of a log block. The size does not depend on the sector size or the block size.
pub(crate) const BLOCK: usize = 512;
/// The value of the field `h_magicno`.
pub(crate) const MAGIC: u32 = 0xFEED_BABE;
/// The value of `h_fmt` if items are little-endian.
pub(crate) const FORMAT_LITTLE_ENDIAN: u32 = 1;
/// The number of data blocks whose first words are saved in one header block of a record. In the data blocks, cycle numbers replace these
/// words.
pub(crate) const CYCLES_PER_HEADER: usize = 64;
/// The number of bytes that the checksum covers in a header block. The first value is for the first header block, the second value for each
/// further header block.
pub(crate) const CHECKED_HEADER: usize = 328;
pub(crate) const CHECKED_EXTENSION: usize = 260;
/// Byte offsets of the words that were saved from the data blocks: in the first header block, and in a further header block.
pub(crate) const CYCLES_AT: usize = 44;
pub(crate) const EXTENSION_CYCLES_AT: usize = 4;
pub(crate) const CRC_AT: usize = 32;
/// The value of the field `th_magic`.
pub(crate) const TRANSACTION_MAGIC: u32 = 0x5452_414E;
/// Bytes of the header of a transaction.
pub(crate) const TRANSACTION_HEADER: usize = 16;

/// The bits of the field `oh_flags`.
pub(crate) mod operation {
    pub(crate) const START: u8 = 0x01;
    pub(crate) const COMMIT: u8 = 0x02;
    pub(crate) const WAS_CONTINUED: u8 = 0x08;
    pub(crate) const END: u8 = 0x10;
    pub(crate) const UNMOUNT: u8 = 0x20;
}

/// The type of an item, in its first two bytes.
pub(crate) mod item {
    pub(crate) const EFI: u16 = 0x1236;
    pub(crate) const EFD: u16 = 0x1237;
    pub(crate) const INODE: u16 = 0x123B;
    pub(crate) const BUFFER: u16 = 0x123C;
    pub(crate) const DQUOT: u16 = 0x123D;
    pub(crate) const QUOTA_OFF: u16 = 0x123E;
    pub(crate) const INODE_CREATE: u16 = 0x123F;
    pub(crate) const RUI: u16 = 0x1240;
    pub(crate) const RUD: u16 = 0x1241;
    pub(crate) const CUI: u16 = 0x1242;
    pub(crate) const CUD: u16 = 0x1243;
    pub(crate) const BUI: u16 = 0x1244;
    pub(crate) const BUD: u16 = 0x1245;
    pub(crate) const ATTRI: u16 = 0x1246;
    pub(crate) const ATTRD: u16 = 0x1247;
    pub(crate) const XMI: u16 = 0x1248;
    pub(crate) const XMD: u16 = 0x1249;
    // Items of a realtime device with groups.
    pub(crate) const EFI_RT: u16 = 0x124A;
    pub(crate) const EFD_RT: u16 = 0x124B;
    pub(crate) const RUI_RT: u16 = 0x124C;
    pub(crate) const RUD_RT: u16 = 0x124D;
    pub(crate) const CUI_RT: u16 = 0x124E;
    pub(crate) const CUD_RT: u16 = 0x124F;
}

/// The bits of the field `blf_flags`.
pub(crate) mod buffer {
    /// Only `di_next_unlinked` of the inodes in the buffer is logged.
    pub(crate) const INODES: u16 = 0x1;
    /// The blocks were freed, so earlier content in the log must not be applied.
    pub(crate) const CANCEL: u16 = 0x2;
    /// The number of buffer bytes that each bit of an item's map describes.
    pub(crate) const CHUNK: usize = 128;
}

/// The bits of the field `xmi_flags`.
pub(crate) mod exchange {
    /// The attribute forks are exchanged instead of the data forks.
    pub(crate) const ATTR: u64 = 0x1;
    /// The exchange also swaps the file sizes.
    pub(crate) const SIZES: u64 = 0x2;
    /// Only ranges that are written in the first file are exchanged.
    pub(crate) const WRITTEN: u64 = 0x4;
}

/// The values of the field `alfi_op_flags`.
pub(crate) mod attribute {
    pub(crate) const SET: u32 = 1;
    pub(crate) const REMOVE: u32 = 2;
    pub(crate) const REPLACE: u32 = 3;
    // Operations that change parent pointers.
    pub(crate) const SET_PARENT: u32 = 4;
    pub(crate) const REMOVE_PARENT: u32 = 5;
    pub(crate) const REPLACE_PARENT: u32 = 6;
}

/// The bits of the field `me_flags`.
pub(crate) mod mapping {
    /// The mask of the bits that contain the kind of change.
    pub(crate) const TYPE: u32 = 0xFF;
    pub(crate) const MAP: u32 = 1;
    pub(crate) const UNMAP: u32 = 2;
    pub(crate) const REALTIME: u32 = 1 << 29;
    pub(crate) const UNWRITTEN: u32 = 1 << 30;
    /// The change affects the attribute fork instead of the data fork.
    pub(crate) const ATTR: u32 = 1 << 31;
}

/// The bits of the field `ilf_fields`.
pub(crate) mod inode {
    pub(crate) const DATA_LOCAL: u32 = 0x2;
    pub(crate) const DATA_EXTENTS: u32 = 0x4;
    pub(crate) const DATA_ROOT: u32 = 0x8;
    pub(crate) const DEVICE: u32 = 0x10;
    pub(crate) const ATTR_LOCAL: u32 = 0x40;
    pub(crate) const ATTR_EXTENTS: u32 = 0x80;
    pub(crate) const ATTR_ROOT: u32 = 0x100;
    pub(crate) const DATA_OWNER: u32 = 0x200;
    pub(crate) const ATTR_OWNER: u32 = 0x400;
}

/// The first block of a record's header.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawRecord {
    pub(crate) h_magicno: U32,
    pub(crate) h_cycle: U32,
    pub(crate) h_version: U32,
    pub(crate) h_len: U32,
    pub(crate) h_lsn: U64,
    pub(crate) h_tail_lsn: U64,
    pub(crate) h_crc: [u8; 4],
    pub(crate) h_prev_block: U32,
    pub(crate) h_num_logops: U32,
    pub(crate) h_cycle_data: [U32; CYCLES_PER_HEADER],
    pub(crate) h_fmt: U32,
    pub(crate) h_fs_uuid: [u8; 16],
    pub(crate) h_size: U32,
}

layout!(RawRecord: 324 { h_lsn @ 16, h_crc @ 32, h_cycle_data @ 44, h_fmt @ 300, h_size @ 320 });

/// The header of an operation; `oh_len` bytes follow.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawOperation {
    pub(crate) oh_tid: U32,
    pub(crate) oh_len: U32,
    pub(crate) oh_clientid: u8,
    pub(crate) oh_flags: u8,
    pub(crate) oh_res2: [u8; 2],
}

layout!(RawOperation: 12 { oh_flags @ 9 });

/// The first region of a buffer item; a bitmap follows.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawBufferItem {
    pub(crate) blf_type: le::U16,
    pub(crate) blf_size: le::U16,
    pub(crate) blf_flags: le::U16,
    pub(crate) blf_len: le::U16,
    pub(crate) blf_blkno: le::U64,
    pub(crate) blf_map_size: le::U32,
}

layout!(RawBufferItem: 20 { blf_blkno @ 8 });

/// The first region of an inode item.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawInodeItem {
    pub(crate) ilf_type: le::U16,
    pub(crate) ilf_size: le::U16,
    pub(crate) ilf_fields: le::U32,
    pub(crate) ilf_asize: le::U16,
    pub(crate) ilf_dsize: le::U16,
    pub(crate) ilf_pad: le::U32,
    pub(crate) ilf_ino: le::U64,
    pub(crate) ilf_u: [u8; 16],
    pub(crate) ilf_blkno: le::U64,
    pub(crate) ilf_len: le::U32,
    pub(crate) ilf_boffset: le::U32,
}

layout!(RawInodeItem: 56 { ilf_ino @ 16, ilf_blkno @ 40 });

/// An intent to change maps. An array of [`RawMapping`] follows.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawMappingIntent {
    pub(crate) bui_type: le::U16,
    pub(crate) bui_size: le::U16,
    pub(crate) bui_nextents: le::U32,
    pub(crate) bui_id: le::U64,
}

layout!(RawMappingIntent: 16 { bui_id @ 8 });

/// A change of a map.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawMapping {
    pub(crate) me_owner: le::U64,
    pub(crate) me_startblock: le::U64,
    pub(crate) me_startoff: le::U64,
    pub(crate) me_len: le::U32,
    pub(crate) me_flags: le::U32,
}

layout!(RawMapping: 32 { me_startoff @ 16, me_flags @ 28 });

/// An intent to change an attribute. The name and the value are in separate regions.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawAttributeIntent {
    pub(crate) alfi_type: le::U16,
    pub(crate) alfi_size: le::U16,
    pub(crate) alfi_igen: le::U32,
    pub(crate) alfi_id: le::U64,
    pub(crate) alfi_ino: le::U64,
    pub(crate) alfi_op_flags: le::U32,
    pub(crate) alfi_name_len: le::U32,
    pub(crate) alfi_value_len: le::U32,
    pub(crate) alfi_attr_filter: le::U32,
}

layout!(RawAttributeIntent: 40 { alfi_ino @ 16, alfi_name_len @ 28, alfi_attr_filter @ 36 });

/// An intent to exchange ranges of two files.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawExchange {
    pub(crate) xmi_type: le::U16,
    pub(crate) xmi_size: le::U16,
    pub(crate) xmi_pad: le::U32,
    pub(crate) xmi_id: le::U64,
    pub(crate) xmi_inodes: [le::U64; 2],
    pub(crate) xmi_generations: [le::U32; 2],
    pub(crate) xmi_startoffs: [le::U64; 2],
    pub(crate) xmi_blockcount: le::U64,
    pub(crate) xmi_flags: le::U64,
    pub(crate) xmi_sizes: [le::U64; 2],
}

layout!(RawExchange: 88 { xmi_inodes @ 16, xmi_startoffs @ 40, xmi_flags @ 64, xmi_sizes @ 72 });

/// An item that logs the creation of inodes.
#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawInodeCreate {
    pub(crate) icl_type: le::U16,
    pub(crate) icl_size: le::U16,
    pub(crate) icl_ag: U32,
    pub(crate) icl_agbno: U32,
    pub(crate) icl_count: U32,
    pub(crate) icl_isize: U32,
    pub(crate) icl_length: U32,
    pub(crate) icl_gen: U32,
}

layout!(RawInodeCreate: 28 { icl_ag @ 4, icl_gen @ 24 });
