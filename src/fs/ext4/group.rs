//! Group descriptors, which contain the locations of a group's bitmaps and inode table.

use std::ops::Range;

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::Ext4;
use super::checksum::{Kind, crc16, crc32c_raw};
use super::disk::group::{
    BLOCK_UNINIT, CHECKSUM_OFFSET, INODE_UNINIT, RawGroupHigh, RawGroupLow, SMALL,
};
use super::features::{Incompat, RoCompat};
use super::superblock::Superblock;
use crate::error::{Place, Result};
use crate::fs::block::Part;
use crate::units::FsBlock;

pub(super) const PLACE: Place = Place::new("group descriptor");

/// A group descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Group {
    pub(crate) block_bitmap: FsBlock,
    pub(crate) inode_bitmap: FsBlock,
    pub(crate) inode_table: FsBlock,
    /// Whether no inode of this group is in use.
    pub(crate) inodes_uninit: bool,
    /// Whether the block bitmap was never written.
    pub(crate) blocks_uninit: bool,
    /// The number of free clusters.
    pub(crate) free_clusters: u32,
    pub(crate) free_inodes: u32,
    pub(crate) directories: u32,
    /// The number of inodes at the end of the inode table that were never in use; 0 if descriptors have no checksums.
    pub(crate) unused_inodes: u32,
    pub(crate) block_bitmap_checksum: u32,
    pub(crate) inode_bitmap_checksum: u32,
}

/// Reads a number from its two halves. Only large descriptors contain the upper half.
macro_rules! halves {
    ($low:ident, $high:ident, $low_field:ident, $high_field:ident) => {
        u32::from($low.$low_field.get())
            | $high.map_or(0, |high| u32::from(high.$high_field.get()) << 16)
    };
}

impl Ext4 {
    /// The block that contains the descriptor of a group.
    pub(super) fn descriptor_block(&self, group: u32) -> FsBlock {
        let sb = &self.superblock;
        let per_block = sb.block_size.bytes() as u32 / u32::from(sb.descriptor_size);
        let index = group / per_block;
        if !sb.incompat.contains(Incompat::META_BG) || index < sb.first_meta_bg {
            let superblock = match sb.copy {
                0 => 1024 / sb.block_size.bytes() as u64,
                group => sb.group_start(group).0,
            };
            return FsBlock(superblock + 1 + u64::from(index));
        }
        self.meta_descriptor_block(index * per_block)
    }

    /// The block of group `group` that contains the descriptors of its meta group. If the group has a backup superblock, the descriptor
    /// block follows the backup.
    pub(super) fn meta_descriptor_block(&self, group: u32) -> FsBlock {
        let sb = &self.superblock;
        // With bigalloc, blocks of 1 KiB are counted from 0. Group 0 then begins with the boot block.
        let boot = group == 0 && sb.first_data_block == 0 && sb.block_size.bytes() == 1024;
        let before = u64::from(sb.group_has_backup(group)) + u64::from(boot);
        FsBlock(sb.group_start(group).0 + before)
    }

    /// The byte range of a group's descriptor in its block.
    pub(super) fn descriptor_range(&self, group: u32) -> Range<usize> {
        let size = usize::from(self.superblock.descriptor_size);
        let at = (group as usize % (self.superblock.block_size.bytes() / size)) * size;
        at..at + size
    }

    /// The descriptor of a group, as a part of a block. The part has its own checksum.
    pub(super) fn descriptor_part(&self, group: u32) -> Part {
        let sb = &self.superblock;
        let per_block = sb.block_size.bytes() as u32 / u32::from(sb.descriptor_size);
        Part::numbered(Kind::Descriptors, group, per_block)
    }

    /// Reads the descriptor of a group and verifies its checksum. `group` must be less than the number of groups. On a volume that is open
    /// read-only, a [copy](Self::group_or_copy) replaces a damaged descriptor.
    pub(crate) fn group(&self, group: u32) -> Result<Group> {
        match self.left.compared() {
            Some(compared) => self.group_or_copy(group, compared),
            None => self.group_at(group, self.descriptor_block(group)),
        }
    }

    /// Reads the descriptor of a group in `block`, which contains the primary descriptor or a copy.
    pub(super) fn group_at(&self, group: u32, block: FsBlock) -> Result<Group> {
        let place = PLACE.block(block);
        let content = self.blocks.read(block, place)?;
        let bytes = &content[self.descriptor_range(group)];
        content
            .verify_once(self.descriptor_part(group), || self.verify_group(group, bytes, place))?;
        self.decode_in_volume(group, bytes, place)
    }

    /// Reads the descriptor of a group, even if its checksum is wrong. Returns `None` if it cannot be used.
    pub(super) fn group_unverified(&self, group: u32, block: FsBlock) -> Option<Group> {
        let place = PLACE.block(block);
        let content = self.blocks.read(block, place).ok()?;
        let found = self.decode_in_volume(group, &content[self.descriptor_range(group)], place);
        found.ok().map(|found| found.positions_only())
    }

    fn decode_in_volume(&self, group: u32, bytes: &[u8], place: Place) -> Result<Group> {
        let sb = &self.superblock;
        let Some(mut found) = sb.decode_group(bytes) else {
            return Err(place.corrupt("the group descriptor is truncated"));
        };
        if sb.copy != 0 {
            // The volume was opened with a backup superblock. The descriptors next to a backup are outdated.
            found = found.positions_only();
        }
        let inode_table = found.inode_table;
        if !self.blocks.contain(inode_table, sb.inode_table_blocks()) {
            return Err(place
                .field("bg_inode_table")
                .corrupt(format!("the inode table of group {group} begins at block {inode_table} and ends outside the volume")));
        }
        Ok(found)
    }

    fn verify_group(&self, group: u32, bytes: &[u8], place: Place) -> Result<()> {
        match self.superblock.descriptor_checksums(group, bytes) {
            Some((stored, computed)) if stored != computed => {
                Err(place.field("bg_checksum").bad_checksum(stored, computed))
            }
            _ => Ok(()),
        }
    }
}

impl Group {
    /// A descriptor of which only the positions are reliable. The fields about unused parts are cleared, so that the caller reads the complete
    /// table and the bitmaps.
    pub(super) fn positions_only(self) -> Self {
        Self { inodes_uninit: false, blocks_uninit: false, unused_inodes: 0, ..self }
    }
}

impl Superblock {
    /// Decodes a descriptor without checks. Returns `None` if `bytes` is shorter than a descriptor.
    pub(super) fn decode_group(&self, bytes: &[u8]) -> Option<Group> {
        let (low, rest) = RawGroupLow::ref_from_prefix(bytes).ok()?;
        let high = RawGroupHigh::ref_from_prefix(rest).ok().map(|(high, _)| high);
        let block = |low: U32, high: Option<U32>| {
            FsBlock(u64::from(low.get()) | high.map_or(0, |high| u64::from(high.get()) << 32))
        };
        let checked = self.has_uninit_groups();
        let flag = |bit: u16| checked && low.bg_flags.get() & bit != 0;
        let unused = halves!(low, high, bg_itable_unused_lo, bg_itable_unused_hi);
        Some(Group {
            block_bitmap: block(low.bg_block_bitmap_lo, high.map(|high| high.bg_block_bitmap_hi)),
            inode_bitmap: block(low.bg_inode_bitmap_lo, high.map(|high| high.bg_inode_bitmap_hi)),
            inode_table: block(low.bg_inode_table_lo, high.map(|high| high.bg_inode_table_hi)),
            inodes_uninit: flag(INODE_UNINIT),
            blocks_uninit: flag(BLOCK_UNINIT),
            free_clusters: halves!(low, high, bg_free_blocks_count_lo, bg_free_blocks_count_hi),
            free_inodes: halves!(low, high, bg_free_inodes_count_lo, bg_free_inodes_count_hi),
            directories: halves!(low, high, bg_used_dirs_count_lo, bg_used_dirs_count_hi),
            unused_inodes: if checked { unused } else { 0 },
            block_bitmap_checksum: halves!(
                low,
                high,
                bg_block_bitmap_csum_lo,
                bg_block_bitmap_csum_hi
            ),
            inode_bitmap_checksum: halves!(
                low,
                high,
                bg_inode_bitmap_csum_lo,
                bg_inode_bitmap_csum_hi
            ),
        })
    }

    /// Whether descriptors have checksums. Only descriptors with checksums have flags for uninitialised groups.
    pub(super) fn has_uninit_groups(&self) -> bool {
        self.ro_compat.intersects(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM)
    }

    /// The stored and the computed checksum of a descriptor; `None` if the volume has no checksums.
    pub(super) fn descriptor_checksums(&self, group: u32, bytes: &[u8]) -> Option<(u16, u16)> {
        let stored = bytes.get(CHECKSUM_OFFSET..)?.first_chunk()?;
        Some((u16::from_le_bytes(*stored), self.descriptor_checksum(group, bytes)?))
    }

    /// The checksum of a group's descriptor: CRC32C with the feature metadata_csum, CRC16 with the feature uninit_bg. Returns `None` if the
    /// volume has neither feature.
    fn descriptor_checksum(&self, group: u32, bytes: &[u8]) -> Option<u16> {
        let number = group.to_le_bytes();
        if let Some(seed) = self.seed {
            let mut sum = crc32c_raw(seed.0, &number);
            sum = crc32c_raw(sum, &bytes[..CHECKSUM_OFFSET]);
            sum = crc32c_raw(sum, &[0; 2]);
            Some(crc32c_raw(sum, &bytes[SMALL..]) as u16)
        } else {
            let parts = [&self.uuid, &number[..], &bytes[..CHECKSUM_OFFSET], &bytes[SMALL..]];
            self.ro_compat.contains(RoCompat::GDT_CSUM).then(|| crc16(&parts))
        }
    }

    /// Stores the checksum of a group's descriptor. `descriptor` must have the descriptor size that the superblock contains.
    pub(crate) fn seal_descriptor(&self, group: u32, descriptor: &mut [u8]) {
        if let Some(sum) = self.descriptor_checksum(group, descriptor) {
            descriptor[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2].copy_from_slice(&sum.to_le_bytes());
        }
    }

    /// The checksum of a group's block bitmap. The checksum covers one bit for each cluster of a full group. This number of bits also
    /// applies to a shorter last group.
    pub(crate) fn block_bitmap_checksum(&self, bitmap: &[u8]) -> Option<u32> {
        let clusters = self.blocks_per_group / self.cluster_blocks;
        self.seed.map(|seed| crc32c_raw(seed.0, &bitmap[..clusters as usize / 8]))
    }

    /// The checksum of a group's inode bitmap. The checksum covers one bit per inode of the group.
    pub(crate) fn inode_bitmap_checksum(&self, bitmap: &[u8]) -> Option<u32> {
        self.seed.map(|seed| crc32c_raw(seed.0, &bitmap[..self.inodes_per_group as usize / 8]))
    }

    /// Stores the checksum of the block bitmap in the descriptor. The caller must then update the descriptor's own checksum. A 32-byte
    /// descriptor stores only the lower half of the bitmap's checksum.
    pub(crate) fn seal_block_bitmap(&self, bitmap: &[u8], descriptor: &mut [u8]) {
        if let Some(sum) = self.block_bitmap_checksum(bitmap) {
            GroupMut::new(descriptor).set_block_bitmap_checksum(sum);
        }
    }

    /// Stores the checksum of the inode bitmap in the descriptor, like [`seal_block_bitmap`](Self::seal_block_bitmap).
    pub(crate) fn seal_inode_bitmap(&self, bitmap: &[u8], descriptor: &mut [u8]) {
        if let Some(sum) = self.inode_bitmap_checksum(bitmap) {
            GroupMut::new(descriptor).set_inode_bitmap_checksum(sum);
        }
    }

    /// The number of blocks of a group's inode table.
    pub(crate) fn inode_table_blocks(&self) -> u64 {
        let bytes = u64::from(self.inodes_per_group) * u64::from(self.inode_size);
        self.block_size.blocks_for(bytes)
    }
}

/// A group's descriptor that can be changed. The function that creates a `GroupMut` stores the descriptor's checksum after the changes.
pub(crate) struct GroupMut<'a> {
    bytes: &'a mut [u8],
}

/// Defines a function that stores a number as a lower and an upper half. A small descriptor has only the lower half.
macro_rules! setter {
    ($(#[$doc:meta])* $name:ident: $low:ident, $high:ident) => {
        $(#[$doc])*
        pub(crate) fn $name(&mut self, value: u32) {
            let Ok((low, rest)) = RawGroupLow::mut_from_prefix(self.bytes) else { return };
            low.$low.set(value as u16);
            if let Ok((high, _)) = RawGroupHigh::mut_from_prefix(rest) {
                high.$high.set((value >> 16) as u16);
            }
        }
    };
}

impl<'a> GroupMut<'a> {
    /// Wraps the bytes of a descriptor. `bytes` must have the length of a descriptor.
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes }
    }

    setter!(
        /// Sets the number of free clusters.
        set_free_clusters: bg_free_blocks_count_lo, bg_free_blocks_count_hi
    );
    setter!(set_free_inodes: bg_free_inodes_count_lo, bg_free_inodes_count_hi);
    setter!(set_directories: bg_used_dirs_count_lo, bg_used_dirs_count_hi);
    setter!(set_unused_inodes: bg_itable_unused_lo, bg_itable_unused_hi);
    setter!(set_block_bitmap_checksum: bg_block_bitmap_csum_lo, bg_block_bitmap_csum_hi);
    setter!(set_inode_bitmap_checksum: bg_inode_bitmap_csum_lo, bg_inode_bitmap_csum_hi);

    /// Sets the positions of the bitmaps and of the inode table.
    pub(crate) fn set_places(&mut self, block_bitmap: u64, inode_bitmap: u64, inode_table: u64) {
        let Ok((low, rest)) = RawGroupLow::mut_from_prefix(self.bytes) else { return };
        low.bg_block_bitmap_lo.set(block_bitmap as u32);
        low.bg_inode_bitmap_lo.set(inode_bitmap as u32);
        low.bg_inode_table_lo.set(inode_table as u32);
        if let Ok((high, _)) = RawGroupHigh::mut_from_prefix(rest) {
            high.bg_block_bitmap_hi.set((block_bitmap >> 32) as u32);
            high.bg_inode_bitmap_hi.set((inode_bitmap >> 32) as u32);
            high.bg_inode_table_hi.set((inode_table >> 32) as u32);
        }
    }

    /// Marks the block bitmap as initialised.
    pub(crate) fn set_blocks_initialised(&mut self) {
        self.clear_flag(BLOCK_UNINIT);
    }

    /// Marks the inode bitmap as initialised.
    pub(crate) fn set_inodes_initialised(&mut self) {
        self.clear_flag(INODE_UNINIT);
    }

    fn clear_flag(&mut self, flag: u16) {
        if let Ok((low, _)) = RawGroupLow::mut_from_prefix(self.bytes) {
            low.bg_flags.set(low.bg_flags.get() & !flag);
        }
    }
}
