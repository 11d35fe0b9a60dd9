//! The copies of a group descriptor, for reads of a volume with a damaged descriptor.
//!
//! The position of a group's structures changes only if the volume is resized, and a resize also changes the copies. A copy can therefore
//! replace a damaged descriptor. All other fields of a copy are outdated.

use std::collections::HashMap;
use std::ops::Range;

use super::Ext4;
use super::features::{Compat, Incompat};
use super::group::{Group, PLACE};
use crate::error::{Error, Result};
use crate::fs::FileType;
use crate::sync::Mutex;
use crate::units::FsBlock;

/// The maximum number of backups that are compared.
const MOST: usize = 8;
/// The maximum number of groups whose structures are searched for overlaps.
const MOST_NEAR: u32 = 256;

/// The descriptors that were compared with their copies, by group.
pub(super) type Compared = Mutex<HashMap<u32, Group>>;

impl Ext4 {
    /// Reads the descriptor of a group. If the descriptor is damaged, a copy is used, and the damage is reported once. With checksums, the
    /// first copy with the right checksum is used. Without checksums, most of the copies must agree about the positions.
    pub(super) fn group_or_copy(&self, group: u32, compared: &Compared) -> Result<Group> {
        if let Some(known) = compared.lock().get(&group) {
            return Ok(*known);
        }
        let block = self.descriptor_block(group);
        let first = self.group_at(group, block);
        if first.is_ok() && self.superblock.has_uninit_groups() {
            return first;
        }
        let found = self.compare_copies(group, block, first)?;
        compared.lock().insert(group, found);
        Ok(found)
    }

    fn compare_copies(&self, group: u32, block: FsBlock, first: Result<Group>) -> Result<Group> {
        let is_possible = |found: &Group| self.places_are_possible(group, found);
        let mut copies: Vec<(FsBlock, Group)> = Vec::new();
        copies.extend(first.as_ref().ok().copied().filter(is_possible).map(|found| (block, found)));
        for copy in self.descriptor_copies(group).into_iter().filter(|copy| *copy != block) {
            let found = self.group_at(group, copy).ok().filter(is_possible);
            copies.extend(found.map(|found| (copy, found)));
        }
        let chosen = match self.superblock.has_uninit_groups() {
            true => copies.first(),
            false => self.most_likely(group, &copies),
        };
        let is_unanimous = copies.windows(2).all(|pair| pair[0].1.places() == pair[1].1.places());
        match (chosen, first) {
            // The positions of this copy are those of the primary descriptor.
            (Some((_, chosen)), Ok(first)) if chosen.places() == first.places() => {
                if !is_unanimous {
                    self.left.tell_descriptor(
                        group,
                        "ironmap uses it",
                        &self.differs(group, block),
                    );
                }
                Ok(first)
            }
            (Some((copy, chosen)), first) => {
                let why = first.err().unwrap_or_else(|| self.differs(group, block));
                self.left.tell_descriptor(
                    group,
                    &format!("the copy in block {copy} is used"),
                    &why,
                );
                Ok(chosen.positions_only())
            }
            (None, Ok(first)) => Ok(first),
            (None, Err(why)) => {
                let Some(found) = self.group_unverified(group, block) else { return Err(why) };
                self.left.tell_descriptor(
                    group,
                    "ironmap uses it, because it has no valid copy",
                    &why,
                );
                Ok(found)
            }
        }
    }

    /// The descriptor with the positions that most of the copies have. If there are several, prefers positions that do not overlap the
    /// structures of other groups, then an inode table that contains inodes, and then the primary descriptor.
    fn most_likely<'a>(
        &self,
        group: u32,
        copies: &'a [(FsBlock, Group)],
    ) -> Option<&'a (FsBlock, Group)> {
        let [(_, first), rest @ ..] = copies else { return None };
        if rest.iter().all(|(_, other)| other.places() == first.places()) {
            return copies.first();
        }
        let taken = self.places_near(group);
        let rank = |(_, one): &&(FsBlock, Group)| {
            let alike = copies.iter().filter(|(_, other)| one.places() == other.places()).count();
            let ranges = self.ranges(one);
            let overlaps = |range: &Range<u64>| {
                taken.iter().any(|at| at.start < range.end && range.start < at.end)
            };
            (alike, !ranges.iter().any(overlaps), self.inodes_at(one.inode_table))
        };
        // `max_by_key` returns the last of several maxima, but the first must be preferred.
        copies.iter().rev().max_by_key(rank)
    }

    /// The structures of the other groups that mke2fs places together with those of `group`.
    fn places_near(&self, group: u32) -> Vec<Range<u64>> {
        let sb = &self.superblock;
        let together = sb.flex_groups.clamp(1, MOST_NEAR);
        let first = group - group % together;
        let others =
            (first..first.saturating_add(together).min(sb.groups)).filter(|it| *it != group);
        let found = others.filter_map(|it| self.group_at(it, self.descriptor_block(it)).ok());
        found.flat_map(|found| self.ranges(&found)).collect()
    }

    /// The number of inodes in a block, or 0 if the block does not belong to an inode table.
    fn inodes_at(&self, block: FsBlock) -> usize {
        let Ok(content) = self.blocks.read(block, PLACE) else { return 0 };
        let inodes = content.chunks_exact(usize::from(self.superblock.inode_size));
        let modes = inodes.map(|inode| u32::from(u16::from_le_bytes([inode[0], inode[1]])));
        let used: Vec<_> = modes.filter(|mode| *mode != 0).map(FileType::from_mode).collect();
        if used.contains(&None) { 0 } else { used.len() }
    }

    /// The blocks of the group's bitmaps and of its inode table.
    fn ranges(&self, group: &Group) -> [Range<u64>; 3] {
        let range = |start: FsBlock, count| start.0..start.0.saturating_add(count);
        let table = range(group.inode_table, self.superblock.inode_table_blocks());
        [range(group.block_bitmap, 1), range(group.inode_bitmap, 1), table]
    }

    #[cold]
    fn differs(&self, group: u32, block: FsBlock) -> Error {
        PLACE
            .block(block)
            .corrupt(format!("the positions of group {group} differ between the copies"))
    }

    /// The blocks with the copies of a group's descriptor. The primary descriptor can be one of them.
    fn descriptor_copies(&self, group: u32) -> Vec<FsBlock> {
        let sb = &self.superblock;
        let per_block = sb.block_size.bytes() as u32 / u32::from(sb.descriptor_size);
        let index = group / per_block;
        if sb.incompat.contains(Incompat::META_BG) && index >= sb.first_meta_bg {
            let first = u64::from(index) * u64::from(per_block);
            let groups = [first, first + 1, first + u64::from(per_block) - 1];
            let groups = groups.into_iter().filter(|group| *group < u64::from(sb.groups));
            return groups.map(|group| self.meta_descriptor_block(group as u32)).collect();
        }
        let block = |group| FsBlock(sb.group_start(group).0 + 1 + u64::from(index));
        let primary = FsBlock((1024 >> sb.block_size.shift()) + 1 + u64::from(index));
        let mut copies = vec![primary];
        if sb.compat.contains(Compat::SPARSE_SUPER2) {
            let backups = sb.backup_groups.iter().filter(|group| (1..sb.groups).contains(*group));
            copies.extend(backups.map(|group| block(*group)));
        } else {
            let backups = (1..sb.groups).filter(|group| sb.group_has_backup(*group));
            copies.extend(backups.take(MOST).map(block));
        }
        copies
    }

    /// Whether a group's structures can have these positions.
    fn places_are_possible(&self, number: u32, group: &Group) -> bool {
        let sb = &self.superblock;
        let [one, other, table] = self.ranges(group);
        let first = sb.group_start(number).0;
        let own = match sb.incompat.contains(Incompat::FLEX_BG) {
            true => u64::from(sb.first_data_block) + 1..sb.blocks_count,
            false => first..(first + u64::from(sb.blocks_per_group)).min(sb.blocks_count),
        };
        let within = |range: &Range<u64>| own.start <= range.start && range.end <= own.end;
        let apart = one != other && ![&one, &other].iter().any(|it| table.contains(&it.start));
        apart && [one, other, table].iter().all(within)
    }
}

impl Group {
    /// The positions of the group's structures.
    fn places(&self) -> [FsBlock; 3] {
        [self.block_bitmap, self.inode_bitmap, self.inode_table]
    }
}
