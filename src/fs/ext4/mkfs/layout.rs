//! Where the metadata of each group stands.
//!
//! Copies of the superblock and of the descriptors have places that the format gives. Bitmaps and inode tables of the groups of
//! a flex group follow each other from that group's first free block on: all block bitmaps, all inode bitmaps, all tables.

use std::ops::Range;

use super::geometry::Geometry;
use super::space::Space;
use crate::error::{Error, Result};
use crate::fs::ext4::Incompat;
use crate::fs::ext4::superblock::Superblock;

/// Where a group's bitmaps and its inode table begin.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tables {
    pub(super) block_bitmap: u64,
    pub(super) inode_bitmap: u64,
    pub(super) inode_table: u64,
}

/// The places of a volume's metadata.
pub(super) struct Layout<'a> {
    pub(super) sb: &'a Superblock,
    pub(super) geometry: &'a Geometry,
    pub(super) tables: Vec<Tables>,
}

impl<'a> Layout<'a> {
    /// Finds a place for everything, and takes it.
    pub(super) fn new(
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

    fn place_tables(&mut self, groups: Range<u32>, space: &mut Space) -> Result<()> {
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
        // Without flex_bg each group holds its own.
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

    /// The blocks of a group; the last one may be shorter.
    pub(super) fn blocks_of(&self, group: u32) -> Range<u64> {
        let start = self.sb.group_start(group).0;
        let end = start + u64::from(self.sb.blocks_per_group);
        start..end.min(self.sb.blocks_count)
    }

    /// Where the copy of the superblock stands, in a group that has one. In front of the very first, blocks of 1 KiB that
    /// clusters count from 0 leave room for the boot block.
    pub(super) fn superblock_at(&self, group: u32) -> u64 {
        let start = self.sb.group_start(group).0;
        if group == 0 { 1024 >> self.sb.block_size.shift() } else { start }
    }

    /// The blocks of the copies of superblock and descriptors at the start of a group, the reserved blocks included.
    pub(super) fn backup(&self, group: u32) -> Range<u64> {
        let start = self.sb.group_start(group).0;
        let superblock = u64::from(self.sb.group_has_backup(group));
        let boot = if group == 0 { self.superblock_at(0) - start } else { 0 };
        let descriptors = if self.sb.incompat.contains(Incompat::META_BG) {
            u64::from(self.is_meta_copy(group))
        } else {
            let all = self.geometry.descriptor_blocks + self.geometry.reserved_descriptor_blocks;
            superblock * u64::from(all)
        };
        start..start + boot + superblock + descriptors
    }

    /// Whether a group holds a copy of its meta group's descriptors: the first two and the last one do.
    fn is_meta_copy(&self, group: u32) -> bool {
        let size = self.geometry.descriptors_per_block();
        let index = group % size;
        index <= 1 || index == size - 1
    }

    /// Each copy of descriptors, of all of them or of a meta group's: the index of its first block among all, and where it stands.
    pub(super) fn descriptor_copies(&self) -> impl Iterator<Item = (u32, u64)> {
        let meta = self.sb.incompat.contains(Incompat::META_BG);
        let per_block = self.geometry.descriptors_per_block();
        (0..self.sb.groups).filter_map(move |group| {
            let backup = self.sb.group_has_backup(group);
            let at = self.superblock_at(group) + u64::from(backup);
            if meta {
                self.is_meta_copy(group).then_some((group / per_block, at))
            } else {
                backup.then_some((0, at))
            }
        })
    }

    /// The reserved descriptor blocks in a group with a backup: where the first stands.
    pub(super) fn reserved_at(&self, group: u32) -> u64 {
        self.superblock_at(group) + 1 + u64::from(self.geometry.descriptor_blocks)
    }

    /// How many blocks a group holds of its own metadata alone: the kernel takes these for used where the bitmap is not
    /// initialised.
    pub(super) fn own_blocks(&self, group: u32) -> u64 {
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
