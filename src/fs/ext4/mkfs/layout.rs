//! The layout of the metadata of each group.
//!
//! The format determines the positions of the copies of the superblock and of the group descriptors. The bitmaps and inode tables of a flex
//! group are stored together. They begin at the first free block of the flex group's first group, in this order: all block bitmaps, all
//! inode bitmaps, all inode tables.

use std::ops::Range;

use super::geometry::Geometry;
use super::map::put;
use super::space::Space;
use crate::error::{Error, Result};
use crate::fs::ext4::Incompat;
use crate::fs::ext4::superblock::Superblock;
use crate::sys::Buffer;

/// The block numbers of a group's bitmaps, and of the first block of its inode table.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::fs::ext4) struct Tables {
    pub(in crate::fs::ext4) block_bitmap: u64,
    pub(in crate::fs::ext4) inode_bitmap: u64,
    pub(in crate::fs::ext4) inode_table: u64,
}

/// The positions of a volume's metadata.
pub(in crate::fs::ext4) struct Layout<'a> {
    pub(in crate::fs::ext4) sb: &'a Superblock,
    pub(in crate::fs::ext4) geometry: &'a Geometry,
    pub(in crate::fs::ext4) tables: Vec<Tables>,
}

impl<'a> Layout<'a> {
    /// Assigns positions to all metadata.
    pub(in crate::fs::ext4) fn new(
        sb: &'a Superblock,
        geometry: &'a Geometry,
        space: &mut Space,
    ) -> Result<Self> {
        let tables = vec![Tables::default(); sb.groups as usize];
        let mut layout = Self { sb, geometry, tables };
        for group in 0..sb.groups {
            space.take(layout.backup(group));
        }
        let flex = geometry.groups_per_flex;
        for first in (0..sb.groups).step_by(flex as usize) {
            layout.place_tables(first..(first + flex).min(sb.groups), space)?;
        }
        Ok(layout)
    }

    pub(in crate::fs::ext4) fn place_tables(
        &mut self,
        groups: Range<u32>,
        space: &mut Space,
    ) -> Result<()> {
        let goal = self.sb.group_start(groups.start).0;
        let table_blocks = u64::from(self.geometry.table_blocks);
        let tables = &mut self.tables[groups.start as usize..groups.end as usize];
        for group in &mut *tables {
            group.block_bitmap = space.take_run(goal, 1)?;
        }
        for group in &mut *tables {
            group.inode_bitmap = space.take_run(goal, 1)?;
        }
        for group in &mut *tables {
            group.inode_table = space.take_run(goal, table_blocks)?;
        }
        // Without the feature flex_bg, each group must contain its own metadata.
        let end = self.blocks_of(groups.start).end;
        let flexible = self.sb.incompat.contains(Incompat::FLEX_BG);
        if !flexible && self.tables[groups.start as usize].inode_table + table_blocks > end {
            let group = groups.start;
            return Err(Error::invalid(format!(
                "the inode table does not fit into group {group}: ask for fewer inodes"
            )));
        }
        Ok(())
    }

    /// The blocks of a group. The last group may be shorter.
    pub(in crate::fs::ext4) fn blocks_of(&self, group: u32) -> Range<u64> {
        let start = self.sb.group_start(group).0;
        let end = start + u64::from(self.sb.blocks_per_group);
        start..end.min(self.sb.blocks_count)
    }

    /// The block of the superblock's copy, in a group that has a copy. In group 0, it is the block that contains byte 1024 of the volume.
    /// In all other groups, it is the first block of the group.
    pub(in crate::fs::ext4) fn superblock_at(&self, group: u32) -> u64 {
        let start = self.sb.group_start(group).0;
        if group == 0 { 1024 >> self.sb.block_size.shift() } else { start }
    }

    /// The first blocks of a group with a backup: a copy of the superblock, a copy of the group descriptors, and the reserved descriptor
    /// blocks.
    pub(in crate::fs::ext4) fn backup(&self, group: u32) -> Range<u64> {
        let start = self.sb.group_start(group).0;
        start..start + self.sb.copies_in(group)
    }

    /// All copies of descriptor blocks. An item describes one copy: the indexes of the copied descriptor blocks, and the block number at
    /// which the copy begins. With meta groups, each copy contains one descriptor block, and each descriptor block has three copies.
    pub(in crate::fs::ext4) fn descriptor_copies(&self) -> impl Iterator<Item = (Range<u32>, u64)> {
        let per_block = self.geometry.descriptors_per_block();
        let all = self.geometry.descriptor_blocks;
        let together =
            if self.sb.incompat.contains(Incompat::META_BG) { self.sb.first_meta_bg } else { all };
        (0..self.sb.groups).filter_map(move |group| {
            let backup = self.sb.group_has_backup(group);
            let at = self.superblock_at(group) + u64::from(backup);
            if group / per_block < together {
                backup.then_some((0..together, at))
            } else {
                let index = group / per_block;
                self.sb.is_meta_copy(group).then_some((index..index + 1, at))
            }
        })
    }

    /// The first reserved descriptor block in a group with a backup.
    pub(in crate::fs::ext4) fn reserved_at(&self, group: u32) -> u64 {
        self.superblock_at(group) + 1 + u64::from(self.geometry.descriptor_blocks)
    }

    /// Returns the map blocks of the resize inode with their contents, and the number of all blocks of this inode. The resize inode owns
    /// the reserved descriptor blocks. `double` is the double-indirect block of the inode's map. Each slot of `double` points to a reserved
    /// descriptor block after the primary descriptors. Each of these blocks contains the numbers of its copies in the backups, in the order
    /// of the groups.
    pub(in crate::fs::ext4) fn resize_map(&self, double: u64) -> Result<(Vec<(u64, Buffer)>, u64)> {
        let geometry = self.geometry;
        let size = self.sb.block_size.bytes();
        let backups: Vec<_> =
            (1..self.sb.groups).filter(|group| self.sb.group_has_backup(*group)).collect();
        let (mut top, mut count) = (Buffer::aligned(size)?, 1);
        let mut blocks = Vec::new();
        for index in 0..geometry.reserved_descriptor_blocks {
            let primary = self.reserved_at(0) + u64::from(index);
            let slot = (geometry.descriptor_blocks + index) as usize % (size / 4);
            put(&mut top, slot, primary as u32);
            let mut block = Buffer::aligned(size)?;
            for (slot, group) in backups.iter().enumerate().take(size / 4) {
                put(&mut block, slot, (self.reserved_at(*group) + u64::from(index)) as u32);
            }
            blocks.push((primary, block));
            count += 1 + backups.len() as u64;
        }
        blocks.push((double, top));
        Ok((blocks, count))
    }

    /// The number of blocks in this group that contain the group's own metadata. If the block bitmap is uninitialised, the kernel treats
    /// only these blocks as used.
    pub(in crate::fs::ext4) fn own_blocks(&self, group: u32) -> u64 {
        let backup = self.backup(group);
        let within = self.blocks_of(group);
        let Tables { block_bitmap, inode_bitmap, inode_table } = self.tables[group as usize];
        let table_end = inode_table + u64::from(self.geometry.table_blocks);
        let table = table_end.min(within.end).saturating_sub(inode_table.max(within.start));
        backup.end - backup.start
            + u64::from(within.contains(&block_bitmap))
            + u64::from(within.contains(&inode_bitmap))
            + table
    }
}
