//! A smaller volume: blocks and inodes beyond its end move, then the end is cut off.

use std::ops::Range;

use super::bitmaps::{Bitmaps, Descriptors};
use super::commit::Size;
use super::edits::Edits;
use super::inodes::find;
use super::plan::Plan;
use super::scan::Item;
use super::shape::Shape;
use super::{Resized, Volume};
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::check::Severity;
use crate::fs::ext4::Superblock;
use crate::fs::ext4::group::GroupMut;
use crate::fs::ext4::mkfs::layout::Tables;
use crate::units::InodeNo;

const VOLUME: Place = Place::new("volume");

/// Makes the volume that of `shape`, which is smaller. The result is the volume as it was before.
pub(super) fn shrink(volume: Volume, shape: Shape) -> Result<Volume> {
    volume.check_sound()?;
    let items = volume.scan()?;
    let plan = volume.plan(&items, &shape)?;
    let journal = volume.journal().filter(|number| plan.moves_inode(*number));
    let Some(journal) = journal.and_then(|number| find(&items, number)) else {
        return volume.cut(&plan, &items, shape);
    };
    // The journal cannot hold its own move. Nothing else moves with it, and the volume keeps its size.
    let moved = Plan::of_journal(&volume, journal, &shape)?;
    let volume = volume.move_journal(&moved, &items)?;
    let sb = &volume.found.superblock;
    let shape = Shape::new(&volume.raw, sb, shape.sb.blocks_count, volume.clock)?;
    let items = volume.scan()?;
    let plan = volume.plan(&items, &shape)?;
    volume.cut(&plan, &items, shape)
}

/// Shrinks a volume until it gets no smaller: tables of groups that go are room for the next step.
pub(super) fn to_minimum(volume: Volume) -> Result<Resized> {
    let sb = &volume.found.superblock;
    let (shift, before) = (sb.block_size.shift(), sb.blocks_count);
    let mut volume = volume;
    loop {
        let now = volume.found.superblock.blocks_count;
        let least = volume.least(&volume.scan()?)?;
        if least >= now {
            return Ok(Resized { block_size: 1 << shift, before, blocks: now });
        }
        let shape = Shape::new(&volume.raw, &volume.found.superblock, least, volume.clock)?;
        volume = shrink(volume, shape)?;
    }
}

impl Volume {
    /// Refuses a volume that a check finds something wrong with: two files that share a block cannot both move it, a broken bitmap would get
    /// a right checksum, and the resize inode may lead anywhere.
    pub(super) fn check_sound(&self) -> Result<()> {
        let report = self.found.check(&mut |_| ())?;
        match report.findings.iter().find(|finding| finding.severity != Severity::Note) {
            None => Ok(()),
            Some(first) => {
                Err(VOLUME.corrupt(format!("a check finds errors, use e2fsck -f first: {first}")))
            }
        }
    }

    pub(super) fn journal(&self) -> Option<InodeNo> {
        self.found.superblock.journal_inode
    }

    /// The plan for a shape.
    ///
    /// # Errors
    /// As [`Plan::new`]; where the shape is too small, with the smallest size that is possible.
    fn plan(&self, items: &[Item], shape: &Shape) -> Result<Plan> {
        match Plan::new(self, items, shape) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                let size = self.found.superblock.block_size;
                let least = self.least(items)?;
                let (asked, bytes) = (shape.sb.blocks_count, least << size.shift());
                Err(Error::new(
                    ErrorKind::NoSpace,
                    format!(
                        "{asked} blocks are too few: {least} blocks ({bytes} bytes) at least in one step"
                    ),
                ))
            }
            plan => plan,
        }
    }

    /// The smallest number of blocks for which there is a plan.
    pub(super) fn least(&self, items: &[Item]) -> Result<u64> {
        let sb = &self.found.superblock;
        let fits = |blocks: u64| -> Result<Option<u64>> {
            let shape = match Shape::new(&self.raw, sb, blocks, self.clock) {
                Ok(shape) => shape,
                Err(_) => return Ok(None),
            };
            match Plan::new(self, items, &shape) {
                Ok(_) => Ok(Some(shape.sb.blocks_count)),
                Err(error)
                    if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Unsupported) =>
                {
                    Ok(None)
                }
                Err(error) => Err(error),
            }
        };
        // The space in use now is less than that of the smallest volume, except for the metadata of groups that go.
        let (mut low, mut high) = (0, sb.blocks_count);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match fits(middle)? {
                Some(blocks) => high = blocks.max(low + 1),
                None => low = middle,
            }
        }
        Ok(high)
    }

    /// Moves the journal alone; the volume keeps its size.
    fn move_journal(self, plan: &Plan, items: &[Item]) -> Result<Self> {
        let sb = &self.found.superblock;
        let mut shape = Shape::new(&self.raw, sb, sb.blocks_count, self.clock)?;
        let mut edits = Edits::with(&plan.moves);
        let mut descriptors = Descriptors::new(&self, &shape)?;
        let mut bitmaps = Bitmaps::new(&self);
        for change in &plan.changes {
            self.edit_inode(plan, change, items, &mut shape, &mut edits)?;
        }
        let taken = plan.new_blocks().collect();
        let changes = Changes { freed: plan.old_blocks().collect(), taken };
        changes.mark_taken(&mut bitmaps)?;
        bitmaps.store(&shape.sb, &mut descriptors, &mut edits)?;
        descriptors.store(&self, &mut shape, &mut edits)?;
        self.commit(&edits, &shape, &descriptors.bytes, Size::Same)?;
        self.after(&changes)
    }

    /// Where the bitmaps and tables of all groups stand.
    pub(super) fn tables(&self) -> Result<Vec<Tables>> {
        (0..self.found.superblock.groups)
            .map(|number| {
                let group = self.found.group(number)?;
                Ok(Tables {
                    block_bitmap: group.block_bitmap.0,
                    inode_bitmap: group.inode_bitmap.0,
                    inode_table: group.inode_table.0,
                })
            })
            .collect()
    }

    /// Moves all that the plan says, and cuts the end off.
    fn cut(self, plan: &Plan, items: &[Item], mut shape: Shape) -> Result<Self> {
        let mut edits = Edits::with(&plan.moves);
        let mut descriptors = Descriptors::new(&self, &shape)?;
        plan.numbers.store(&shape, &plan.tables, &mut descriptors, &mut edits)?;
        for change in &plan.changes {
            self.edit_inode(plan, change, items, &mut shape, &mut edits)?;
        }
        self.edit_names(plan, &shape, items, &mut edits)?;

        let mut bitmaps = Bitmaps::new(&self);
        bitmaps.group(shape.sb.groups - 1)?;
        let changes = self.changes_of_space(plan, &shape)?;
        changes.mark_taken(&mut bitmaps)?;

        for (number, tables) in (0..).zip(&plan.tables) {
            descriptors.change(&shape.sb, number, |descriptor| {
                GroupMut::new(descriptor).set_places(
                    tables.block_bitmap,
                    tables.inode_bitmap,
                    tables.inode_table,
                );
            });
        }
        bitmaps.store(&shape.sb, &mut descriptors, &mut edits)?;
        if let Some(double) = plan.double {
            self.edit_resize_inode(&shape, double, &mut edits)?;
        }
        descriptors.store(&self, &mut shape, &mut edits)?;
        self.commit(&edits, &shape, &descriptors.bytes, Size::AfterEdits)?;
        self.after(&changes)
    }

    /// The blocks that the new volume frees and takes, before its end.
    fn changes_of_space(&self, plan: &Plan, shape: &Shape) -> Result<Changes> {
        let (old, end) = (&self.found.superblock, shape.sb.blocks_count);
        let own = |tables: &Tables| {
            let Tables { block_bitmap, inode_bitmap, inode_table } = *tables;
            let table = inode_table..inode_table + old.inode_table_blocks();
            [block_bitmap..block_bitmap + 1, inode_bitmap..inode_bitmap + 1, table]
        };
        let copies = |sb: &Superblock| -> Vec<_> {
            let start = |group| sb.group_start(group).0;
            (0..shape.sb.groups)
                .map(|group| start(group)..start(group) + sb.copies_in(group))
                .collect()
        };
        let mut freed = copies(old);
        freed.extend(self.tables()?.iter().flat_map(own));
        freed.extend(plan.old_blocks());
        let mut taken = copies(&shape.sb);
        taken.extend(plan.tables.iter().flat_map(own));
        taken.extend(plan.new_blocks());
        let within = |range: Range<u64>| range.start.min(end)..range.end.min(end);
        Ok(Changes { freed: freed.into_iter().map(within).collect(), taken })
    }

    /// The volume after changes, without the blocks that it no longer needs.
    fn after(self, changes: &Changes) -> Result<Self> {
        let volume = self.reopen()?;
        volume.free(changes)?;
        volume.reopen()
    }

    /// Frees the blocks that only the larger volume needed. They stay in use until the new size is set: before that, a kernel that mounts the
    /// volume must not get them.
    fn free(&self, changes: &Changes) -> Result<()> {
        let sb = &self.found.superblock;
        let mut shape = Shape::new(&self.raw, sb, sb.blocks_count, self.clock)?;
        let mut edits = Edits::default();
        let mut descriptors = Descriptors::new(self, &shape)?;
        let mut bitmaps = Bitmaps::new(self);
        for range in &changes.freed {
            bitmaps.mark(range.clone(), false)?;
        }
        // Some of it is in use again.
        changes.mark_taken(&mut bitmaps)?;
        bitmaps.store(&shape.sb, &mut descriptors, &mut edits)?;
        if edits.is_empty() {
            return Ok(());
        }
        descriptors.store(self, &mut shape, &mut edits)?;
        self.commit(&edits, &shape, &descriptors.bytes, Size::WithEdits)
    }
}

/// Blocks that are in use in one of the two volumes only, and those that stay.
struct Changes {
    freed: Vec<Range<u64>>,
    taken: Vec<Range<u64>>,
}

impl Changes {
    fn mark_taken(&self, bitmaps: &mut Bitmaps<'_>) -> Result<()> {
        self.taken.iter().try_for_each(|range| bitmaps.mark(range.clone(), true))
    }
}
