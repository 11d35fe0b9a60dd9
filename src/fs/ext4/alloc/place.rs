//! The layout of groups: clusters, and the blocks of the file system's own structures.

use std::ops::Range;

use super::bitmap;
use crate::error::Result;
use crate::fs::ext4::superblock::Superblock;
use crate::fs::ext4::{Ext4, Incompat};
use crate::units::{FsBlock, InodeNo};

impl Superblock {
    /// The group that contains a block, and the index of the block's cluster within this group. The block must be within the file system.
    pub(in crate::fs::ext4) fn cluster_of(&self, block: FsBlock) -> (u32, u32) {
        let index = block.0.saturating_sub(u64::from(self.first_data_block));
        let per_group = u64::from(self.blocks_per_group);
        ((index / per_group) as u32, (index % per_group) as u32 / self.cluster_blocks)
    }

    /// The first block of the cluster that contains a block.
    pub(in crate::fs::ext4) fn cluster_floor(&self, block: u64) -> u64 {
        let first = u64::from(self.first_data_block);
        let cluster = u64::from(self.cluster_blocks);
        first + block.saturating_sub(first) / cluster * cluster
    }

    /// The first block of a cluster.
    pub(in crate::fs::ext4) fn cluster_start(&self, group: u32, cluster: u32) -> FsBlock {
        FsBlock(self.group_start(group).0 + u64::from(cluster) * u64::from(self.cluster_blocks))
    }

    /// The number of clusters of a group; the last group may have fewer. A cluster that extends past the file system's end is not counted.
    pub(in crate::fs::ext4) fn clusters_in(&self, group: u32) -> u32 {
        let blocks =
            (self.blocks_count - self.group_start(group).0).min(u64::from(self.blocks_per_group));
        (blocks / u64::from(self.cluster_blocks)) as u32
    }

    /// Splits a range of blocks within the file system into ranges of clusters, one for each group.
    pub(in crate::fs::ext4) fn cluster_ranges(
        &self,
        start: FsBlock,
        count: u64,
    ) -> impl Iterator<Item = (u32, Range<u32>)> {
        let end = start.0 + count;
        let mut at = start.0;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (group, first) = self.cluster_of(FsBlock(at));
            let group_end = self.group_start(group).0 + u64::from(self.blocks_per_group);
            let here = end.min(group_end) - at;
            at += here;
            Some((group, first..first + here.div_ceil(u64::from(self.cluster_blocks)) as u32))
        })
    }

    /// The group of an inode.
    pub(in crate::fs::ext4) fn group_of(&self, inode: InodeNo) -> u32 {
        let group = inode.0.saturating_sub(1) / u64::from(self.inodes_per_group);
        (group as u32).min(self.groups - 1)
    }

    /// The groups of the flex group that contains this group. The bitmaps and inode tables of a flex group are stored together.
    pub(in crate::fs::ext4) fn flex_of(&self, group: u32) -> Range<u32> {
        let first = group - group % self.flex_groups;
        first..first.saturating_add(self.flex_groups).min(self.groups)
    }

    /// The number of blocks that a group reserves at its start: a copy of the superblock, a copy of the descriptors, and blocks for further
    /// descriptors.
    pub(in crate::fs::ext4) fn copies_in(&self, group: u32) -> u64 {
        let per_block = self.descriptors_per_block();
        let backup = u64::from(self.group_has_backup(group));
        // With 1 KiB blocks, the boot block is block 0. If group 0 begins at block 0, the boot block precedes the superblock.
        let boot =
            u64::from(group == 0 && self.first_data_block == 0 && self.block_size.bytes() == 1024);
        let meta_bg = self.incompat.contains(Incompat::META_BG);
        if meta_bg && group / per_block >= self.first_meta_bg {
            return boot + backup + u64::from(self.is_meta_copy(group));
        }
        let all = if meta_bg { self.first_meta_bg } else { self.groups.div_ceil(per_block) };
        let descriptors = u64::from(all) + u64::from(self.reserved_descriptor_blocks);
        boot + backup * (1 + descriptors)
    }

    /// Whether a group contains a copy of its meta group's descriptors. The first two groups and the last group of a meta group contain
    /// such a copy.
    pub(in crate::fs::ext4) fn is_meta_copy(&self, group: u32) -> bool {
        let per_block = self.descriptors_per_block();
        let place = group % per_block;
        place <= 1 || place == per_block - 1
    }

    /// Initialises the block bitmap of a group in which only the file system's own structures use blocks. The caller passes zeroed `bytes`.
    pub(in crate::fs::ext4) fn fill_block_bitmap(
        &self,
        group: u32,
        system: &[Range<u32>],
        bytes: &mut [u8],
    ) {
        for range in system {
            bitmap::set(bytes, range.clone());
        }
        bitmap::set(bytes, self.clusters_in(group)..bytes.len() as u32 * 8);
    }

    /// The number of descriptors per block.
    pub(in crate::fs::ext4) fn descriptors_per_block(&self) -> u32 {
        self.block_size.bytes() as u32 / u32::from(self.descriptor_size)
    }
}

impl Ext4 {
    /// The clusters of this group that contain the file system's own structures. With flex_bg, these may be structures of other groups in
    /// the flex group.
    pub(in crate::fs::ext4) fn system_clusters(&self, group: u32) -> Result<Box<[Range<u32>]>> {
        let sb = &self.superblock;
        let mut blocks = vec![(sb.group_start(group), sb.copies_in(group))];
        for neighbour in sb.flex_of(group) {
            let descriptor = self.group(neighbour)?;
            blocks.push((descriptor.block_bitmap, 1));
            blocks.push((descriptor.inode_bitmap, 1));
            blocks.push((descriptor.inode_table, sb.inode_table_blocks()));
        }
        let here = |(start, count): (FsBlock, u64)| {
            sb.cluster_ranges(start, count)
                .find(|(other, _)| *other == group)
                .map(|(_, range)| range)
        };
        Ok(blocks.into_iter().filter_map(here).collect())
    }
}
