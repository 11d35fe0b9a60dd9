//! An inode that was read from the inode table.

use zerocopy::FromBytes;

use super::reader::Bytes;
use crate::error::Place;
use crate::fs::ext4::disk::inode::{GOOD_OLD_SIZE, RawInode};
use crate::fs::ext4::{Ext4, Incompat};
use crate::fs::{FileType, InodeFlags};
use crate::units::{FsBlock, InodeNo};

const PLACE: Place = Place::new("inode");

/// An inode that was read from the inode table.
pub(super) struct Found {
    pub(super) number: InodeNo,
    pub(super) block: FsBlock,
    pub(super) raw: RawInode,
    pub(super) bytes: Bytes,
}

impl Found {
    pub(super) fn new(number: u32, block: FsBlock, bytes: Bytes) -> Option<Self> {
        let (raw, _) = RawInode::read_from_prefix(&bytes).ok()?;
        Some(Self { number: InodeNo(u64::from(number)), block, raw, bytes })
    }

    pub(super) fn raw(&self) -> &RawInode {
        &self.raw
    }

    pub(super) fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.raw.i_flags.get())
    }

    pub(super) fn place(&self, field: &'static str) -> Place {
        PLACE.inode(self.number).block(self.block).field(field)
    }

    pub(super) fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(u32::from(self.raw.i_mode.get()))
    }

    pub(super) fn size(&self) -> u64 {
        u64::from(self.raw.i_size_lo.get()) | u64::from(self.raw.i_size_high.get()) << 32
    }

    /// The checksum seed for the inode and for the metadata blocks that belong to the inode.
    pub(super) fn seed(&self, fs: &Ext4) -> Option<u32> {
        let seed = fs.superblock.seed?;
        Some(seed.of_inode(self.number, self.raw.i_generation.get()))
    }

    /// `i_extra_isize`, and the bytes of the inode after its first 128 bytes.
    pub(super) fn extra(&self) -> (usize, &[u8]) {
        let rest = &self.bytes[GOOD_OLD_SIZE..];
        let size = rest.first_chunk::<2>().map_or(0, |size| u16::from_le_bytes(*size));
        (usize::from(size), rest)
    }

    /// The bytes after the last field, which contain extended attributes.
    pub(super) fn xattr_area(&self) -> &[u8] {
        let (size, rest) = self.extra();
        if size == 0 { &[] } else { rest.get(size..).unwrap_or_default() }
    }

    pub(super) fn xattr_block(&self, fs: &Ext4) -> u64 {
        let wide = fs.superblock.incompat.contains(Incompat::SIXTY_FOUR_BIT);
        let high = if wide { self.raw.i_file_acl_high.get() } else { 0 };
        u64::from(self.raw.i_file_acl_lo.get()) | u64::from(high) << 32
    }
}
