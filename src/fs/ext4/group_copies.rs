//! The copies of a group descriptor, for reads of a volume with a damaged descriptor.
//!
//! The position of a group's structures changes only if the volume is resized, and a resize also changes the copies. A copy can therefore
//! replace a damaged descriptor. All other fields of a copy are outdated.

use std::collections::HashMap;
use std::ops::Range;

use super::Ext4;
use super::features::{Compat, Incompat};
use super::group::Group;
use crate::error::{Error, Result};
use crate::sync::Mutex;
use crate::units::FsBlock;

/// The maximum number of backups that are compared.
const MOST: usize = 8;

/// The descriptors that were compared with their copies, by group.
pub(super) type Compared = Mutex<HashMap<u32, Group>>;

impl Ext4 {
    /// Reads the descriptor of a group. If the descriptor is damaged, a copy is used, and the damage is reported once. With checksums, the
    /// first copy with the right checksum is used. Without checksums, only a position outside the volume shows that a descriptor is damaged.
    /// All copies must then agree about the positions.
    pub(super) fn group_or_copy(&self, group: u32, compared: &Compared) -> Result<Group> {
        if let Some(known) = compared.lock().get(&group) {
            return Ok(*known);
        }
        let block = self.descriptor_block(group);
        let why = match self.group_at(group, block) {
            Ok(found) => return Ok(found),
            Err(why) => why,
        };
        let found = self.copy_of(group, block, why)?;
        compared.lock().insert(group, found);
        Ok(found)
    }

    /// Whether only the positions of a group's structures are known, because the group's descriptor is damaged.
    pub(super) fn has_only_positions(&self, group: u32) -> bool {
        self.left.compared().is_some_and(|compared| compared.lock().contains_key(&group))
    }

    fn copy_of(&self, group: u32, block: FsBlock, why: Error) -> Result<Group> {
        let copies = self.descriptor_copies(group).into_iter().filter(|copy| *copy != block);
        let valid = copies.filter_map(|copy| Some((copy, self.group_at(group, copy).ok()?)));
        let copies: Vec<_> =
            valid.filter(|(_, found)| self.places_are_possible(group, found)).collect();
        let is_unanimous = copies.windows(2).all(|pair| pair[0].1.places() == pair[1].1.places());
        let (how, found) = match copies.first() {
            Some((copy, found)) if is_unanimous || self.superblock.has_uninit_groups() => {
                (format!("the copy in block {copy} is used"), found.positions_only())
            }
            _ => match self.group_unverified(group, block) {
                Some(found) => ("ironmap uses it, because it has no valid copy".to_owned(), found),
                None => return Err(why),
            },
        };
        self.left.tell_descriptor(group, &how, &why);
        Ok(found)
    }

    /// The blocks of the group's bitmaps and of its inode table.
    fn ranges(&self, group: &Group) -> [Range<u64>; 3] {
        let range = |start: FsBlock, count| start.0..start.0.saturating_add(count);
        let table = range(group.inode_table, self.superblock.inode_table_blocks());
        [range(group.block_bitmap, 1), range(group.inode_bitmap, 1), table]
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
