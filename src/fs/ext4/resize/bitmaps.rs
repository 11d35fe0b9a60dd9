//! The block bitmaps that a resize changes, and the descriptors of all groups of the new volume.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Volume;
use super::edits::{Edits, Rank};
use super::shape::Shape;
use crate::error::{Place, Result};
use crate::fs::ext4::alloc::bitmap::{self, Bits};
use crate::fs::ext4::group::{Group, GroupMut};
use crate::fs::ext4::{Ext4, Incompat, Superblock};
use crate::sys::Buffer;
use crate::units::FsBlock;

const BLOCK_BITMAP: Place = Place::new("block bitmap");

/// Block bitmaps in memory, with the changes so far. Only the bitmaps of groups that the resize changes are in memory.
pub(super) struct Bitmaps<'a> {
    fs: &'a Ext4,
    groups: BTreeMap<u32, Buffer>,
}

impl<'a> Bitmaps<'a> {
    pub(super) fn new(volume: &'a Volume) -> Self {
        Self { fs: &volume.found, groups: BTreeMap::new() }
    }

    /// Returns the bitmap of a group of the old volume, for changes. The first call for a group reads the bitmap.
    pub(super) fn group(&mut self, number: u32) -> Result<&mut Buffer> {
        match self.groups.entry(number) {
            std::collections::btree_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let mut content = Buffer::aligned(self.fs.superblock.block_size.bytes())?;
                self.fs.copy_block_bitmap(number, &mut content)?;
                Ok(entry.insert(content))
            }
        }
    }

    /// Marks the clusters that contain these blocks of the old volume as used, or as free if `in_use` is false.
    pub(super) fn mark(&mut self, blocks: Range<u64>, in_use: bool) -> Result<()> {
        let sb = &self.fs.superblock;
        if blocks.is_empty() {
            return Ok(());
        }
        let start = sb.cluster_floor(blocks.start);
        for (group, clusters) in sb.cluster_ranges(FsBlock(start), blocks.end - start) {
            let bytes = self.group(group)?;
            if in_use { bitmap::set(bytes, clusters) } else { bitmap::clear(bytes, clusters) }
        }
        Ok(())
    }

    /// Adds the changed bitmaps to `edits`, the blocks to write, and stores the new counts of free clusters in the descriptors. A changed
    /// bitmap becomes initialised. The content of an uninitialised bitmap is computed from the superblock, which the resize changes. The
    /// bitmap of the last group must always be initialised.
    pub(super) fn store(
        self,
        new: &Superblock,
        descriptors: &mut Descriptors,
        edits: &mut Edits<'_>,
    ) -> Result<()> {
        let mut before = Buffer::aligned(new.block_size.bytes())?;
        for (number, mut bytes) in self.groups {
            let clusters = new.clusters_in(number);
            // No block corresponds to the bits past the end of the group. These bits must be set.
            let bits = bytes.len() as u32 * 8;
            bitmap::set(&mut bytes, clusters..bits);
            before.fill(0);
            self.fs.copy_block_bitmap(number, &mut before)?;
            let free = Bits::new(&bytes, None).clear_bits(0..clusters);
            let group = descriptors.group(new, number);
            if *before == *bytes && !group.blocks_uninit && group.free_clusters == free {
                continue;
            }
            descriptors.change(new, number, |descriptor| {
                new.seal_block_bitmap(&bytes, descriptor);
                let mut group = GroupMut::new(descriptor);
                group.set_free_clusters(free);
                group.set_blocks_initialised();
            });
            edits.put(group.block_bitmap, Rank::Bitmaps, bytes);
        }
        Ok(())
    }
}

impl Ext4 {
    /// Returns a copy of the block bitmap of a group. If the bitmap is uninitialised, its content is computed.
    pub(super) fn copy_block_bitmap(&self, number: u32, into: &mut [u8]) -> Result<()> {
        let group = self.group(number)?;
        if group.blocks_uninit {
            self.superblock.fill_block_bitmap(number, &self.system_clusters(number)?, into);
        } else {
            into.copy_from_slice(&self.blocks.read(group.block_bitmap, BLOCK_BITMAP)?);
        }
        Ok(())
    }
}

/// The descriptors of all groups of the new volume.
pub(super) struct Descriptors {
    pub(super) bytes: Buffer,
}

impl Descriptors {
    /// Reads the descriptors of the old volume. The descriptors of new groups are zeros.
    pub(super) fn new(volume: &Volume, shape: &Shape) -> Result<Self> {
        let fs = &volume.found;
        let (old, size) = (&fs.superblock, fs.superblock.block_size.bytes());
        let per_block = old.descriptors_per_block();
        let mut bytes = Buffer::aligned(shape.geometry.descriptor_blocks as usize * size)?;
        for (index, block) in (0..).zip(bytes.chunks_exact_mut(size)) {
            let first = index * per_block;
            if first < old.groups {
                let place = Place::new("group descriptor");
                block.copy_from_slice(&fs.blocks.read(fs.descriptor_block(first), place)?);
            }
            // The last descriptor block of the old volume may contain any bytes after the last descriptor. These bytes are replaced by
            // zeros.
            if old.groups > first && old.groups - first < per_block {
                let used = (old.groups - first) as usize * usize::from(old.descriptor_size);
                block[used..].fill(0);
            }
        }
        Ok(Self { bytes })
    }

    fn range(sb: &Superblock, number: u32) -> Range<usize> {
        let size = usize::from(sb.descriptor_size);
        // The sizes of a descriptor and of a block are powers of two. A descriptor therefore never extends across the end of a block.
        number as usize * size..(number as usize + 1) * size
    }

    /// The decoded descriptor of a group.
    pub(super) fn group(&self, sb: &Superblock, number: u32) -> Group {
        sb.decode_group(&self.bytes[Self::range(sb, number)]).unwrap_or_default()
    }

    /// The bytes of a descriptor, for changes. The caller must then store the descriptor's checksum.
    pub(super) fn bytes_of(&mut self, sb: &Superblock, number: u32) -> &mut [u8] {
        &mut self.bytes[Self::range(sb, number)]
    }

    /// Changes a descriptor and stores its checksum.
    pub(super) fn change(&mut self, sb: &Superblock, number: u32, change: impl FnOnce(&mut [u8])) {
        let bytes = self.bytes_of(sb, number);
        change(bytes);
        sb.seal_descriptor(number, bytes);
    }

    /// Stores the sums of free blocks and inodes in the superblock, and adds the changed descriptor blocks to `edits`, the blocks to write.
    pub(super) fn store(
        &self,
        volume: &Volume,
        shape: &mut Shape,
        edits: &mut Edits<'_>,
    ) -> Result<()> {
        let sb = &shape.sb;
        let (mut clusters, mut inodes) = (0, 0);
        for number in 0..sb.groups {
            let group = self.group(sb, number);
            clusters += u64::from(group.free_clusters);
            inodes += group.free_inodes;
        }
        let free = clusters * u64::from(sb.cluster_blocks);
        shape.raw.s_free_blocks_count_lo.set(free as u32);
        if sb.incompat.contains(Incompat::SIXTY_FOUR_BIT) {
            shape.raw.s_free_blocks_count_hi.set((free >> 32) as u32);
        }
        shape.raw.s_free_inodes_count.set(inodes);

        let (fs, layout) = (&volume.found, shape.layout());
        let size = sb.block_size.bytes();
        let mut next = 0;
        for (range, at) in layout.descriptor_copies() {
            // This function writes only the first copy of each descriptor block. The other copies are written at the end of the resize,
            // because no reader needs them before.
            if range.end <= next {
                continue;
            }
            next = range.end;
            for (index, at) in range.zip(at..) {
                let bytes = &self.bytes[index as usize * size..][..size];
                let in_use = fs.superblock.contains(FsBlock(at));
                if in_use && *fs.blocks.read_device(FsBlock(at))? == *bytes {
                    continue;
                }
                let rank = if in_use { Rank::Bitmaps } else { Rank::Fresh };
                let mut content = Buffer::aligned(size)?;
                content.copy_from_slice(bytes);
                edits.put(FsBlock(at), rank, content);
            }
        }
        Ok(())
    }
}
