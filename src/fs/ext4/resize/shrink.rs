//! Shrinks a volume: blocks and inodes past the new end are moved, and then the size is reduced.

use std::ops::Range;

use super::Volume;
use super::bitmaps::{Bitmaps, Descriptors};
use super::commit::Size;
use super::edits::Edits;
use super::grow::grow;
use super::inodes::find;
use super::plan::Plan;
use super::scan::Item;
use super::shape::Shape;
use crate::error::{Context, Error, ErrorKind, Place, Result};
use crate::fs::check::Severity;
use crate::fs::ext4::Superblock;
use crate::fs::ext4::group::GroupMut;
use crate::fs::ext4::mkfs::layout::Tables;
use crate::units::InodeNo;

const VOLUME: Place = Place::new("volume");

/// A step of a shrink.
#[derive(Clone, Copy)]
enum Step {
    /// The journal moves to its position in a volume of this many blocks. The size does not change. The move is a separate step, because a
    /// transaction in the log cannot move the log itself.
    Journal(u64),
    /// The volume shrinks to this many blocks.
    End(u64),
}

/// The result of a rehearsal (a shrink that is made in memory only): the steps that are possible, and the number of the volume's blocks
/// after these steps.
struct Rehearsed {
    steps: Vec<Step>,
    end: u64,
}

/// Shrinks the volume to `shape`.
///
/// # Errors
/// `NoSpace` with the smallest possible size; `Unsupported` with the name of a structure that cannot move. With these errors, nothing has
/// been written.
pub(super) fn shrink(volume: Volume, shape: &Shape) -> Result<()> {
    let (goal, size) = (shape.sb.blocks_count, shape.sb.block_size);
    let Rehearsed { steps, end } = rehearse(volume.rehearsal()?, goal)?;
    if end > goal {
        let reason = Plan::new(&volume, &volume.scan()?, shape).err();
        let unsupported = reason.filter(|error| error.kind() == ErrorKind::Unsupported);
        let bytes = end << size.shift();
        let what =
            format!("{goal} blocks are too few: the minimum is {end} blocks ({bytes} bytes)");
        return Err(unsupported.unwrap_or_else(|| Error::new(ErrorKind::NoSpace, what)));
    }
    let volume = steps.into_iter().try_fold(volume, Volume::step)?;
    if end < goal {
        let shape = Shape::new(&volume.raw, &volume.found.superblock, goal, volume.clock)?;
        grow(&volume, shape, None)?;
    }
    Ok(())
}

/// Shrinks a volume as far as possible. Returns the final number of blocks.
pub(super) fn to_minimum(volume: Volume) -> Result<u64> {
    let Rehearsed { steps, end } = rehearse(volume.rehearsal()?, 0)?;
    steps.into_iter().try_fold(volume, Volume::step)?;
    Ok(end)
}

/// The smallest possible number of blocks for a volume. The function shrinks `volume` to find this number. The device of `volume` must
/// therefore store all changes in memory.
pub(super) fn least(volume: Volume) -> Result<u64> {
    Ok(rehearse(volume, 0)?.end)
}

/// Shrinks a volume in memory to `goal` blocks. If a volume of exactly `goal` blocks is impossible, the result has fewer blocks. If too
/// much data is in use, the volume shrinks as far as possible. Several steps may be needed: one step removes inode tables, and the next
/// step can use their blocks.
fn rehearse(mut volume: Volume, goal: u64) -> Result<Rehearsed> {
    volume.check_sound()?;
    let (mut steps, mut moved) = (Vec::new(), false);
    loop {
        let now = volume.found.superblock.blocks_count;
        let items = volume.scan()?;
        let step = match volume.fits(&items, goal, true)? {
            Some((blocks, _)) => Step::End(blocks),
            None => match volume.smallest(&items, moved)? {
                (blocks, _) if blocks >= now => break,
                (blocks, true) => Step::Journal(blocks),
                (blocks, false) => Step::End(blocks),
            },
        };
        volume = volume.step(step)?;
        volume.check_sound().context(|| "check of the smaller volume (nothing was written)")?;
        steps.push(step);
        moved = matches!(step, Step::Journal(_));
        if matches!(step, Step::End(blocks) if blocks <= goal) {
            break;
        }
    }
    if moved {
        // The last step moves only the journal, and the volume cannot shrink after it. The step is therefore omitted.
        steps.pop();
    }
    Ok(Rehearsed { steps, end: volume.found.superblock.blocks_count })
}

impl Volume {
    /// Refuses a volume with faults. A resize would make some faults worse: if two files share a block, the block would move for only one
    /// of them; a damaged bitmap would get a valid checksum; a damaged resize inode may point to any block.
    pub(super) fn check_sound(&self) -> Result<()> {
        let report = self.found.check(&mut |_| ())?;
        match report.findings.iter().find(|finding| finding.severity != Severity::Note) {
            None => Ok(()),
            Some(first) => {
                Err(VOLUME.corrupt(format!("the check found errors, run e2fsck -f first: {first}")))
            }
        }
    }

    pub(super) fn journal(&self) -> Option<InodeNo> {
        self.found.superblock.journal_inode
    }

    /// Does one step of a shrink. The caller has checked that the step is possible.
    fn step(self, step: Step) -> Result<Self> {
        let items = self.scan()?;
        let (Step::Journal(blocks) | Step::End(blocks)) = step;
        let shape = Shape::new(&self.raw, &self.found.superblock, blocks, self.clock)?;
        if let Step::Journal(_) = step
            && let Some(journal) = self.journal().and_then(|number| find(&items, number))
        {
            let plan = Plan::of_journal(&self, journal, &shape)?;
            return self.move_journal(&plan, &items);
        }
        let plan = Plan::new(&self, &items, &shape)?;
        self.cut(&plan, &items, shape)
    }

    /// Looks for a way to shrink the volume to at most `blocks` blocks. Returns the number of blocks of the smaller volume, and whether the
    /// journal must move first. Returns `None` if no way exists. If `stays` is true, the journal must not move.
    fn fits(&self, items: &[Item], blocks: u64, stays: bool) -> Result<Option<(u64, bool)>> {
        let Ok(shape) = Shape::new(&self.raw, &self.found.superblock, blocks, self.clock) else {
            return Ok(None);
        };
        let planned = Plan::new(self, items, &shape).and_then(|plan| {
            let journal = self.journal().filter(|number| plan.moves_inode(*number));
            let journal = journal.and_then(|number| find(items, number));
            journal.map(|item| Plan::of_journal(self, item, &shape)).transpose()
        });
        match planned {
            Ok(Some(_)) if stays => Ok(None),
            Ok(journal) => Ok(Some((shape.sb.blocks_count, journal.is_some()))),
            Err(error) if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Unsupported) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The smallest number of blocks to which one step can shrink the volume, and whether the journal must move first. If `stays` is true,
    /// the journal must not move.
    fn smallest(&self, items: &[Item], stays: bool) -> Result<(u64, bool)> {
        // The search starts at 0 blocks. The number of used blocks is no lower bound: it includes the metadata of groups that the shrink
        // removes.
        let (mut low, mut least) = (0, (self.found.superblock.blocks_count, false));
        while least.0 - low > 1 {
            let middle = low + (least.0 - low) / 2;
            match self.fits(items, middle, stays)? {
                Some((blocks, journal)) => least = (blocks.max(low + 1), journal),
                None => low = middle,
            }
        }
        Ok(least)
    }

    /// Moves only the journal. The size does not change.
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

    /// The positions of the bitmaps and inode tables of all groups.
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

    /// Moves all blocks and inodes as `plan` says, and then reduces the size of the volume.
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

    /// The blocks of the new volume that become free in this step, and the blocks that become used.
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

    /// Opens the volume again after the step, and frees the blocks that the smaller volume does not need.
    fn after(self, changes: &Changes) -> Result<Self> {
        let volume = self.reopen()?;
        volume.free(changes)?;
        volume.reopen()
    }

    /// Frees the blocks that only the larger volume needed. They are freed after the new size is set. If they were freed earlier and the
    /// shrink was interrupted, a kernel could mount the larger volume and allocate these blocks.
    fn free(&self, changes: &Changes) -> Result<()> {
        let sb = &self.found.superblock;
        let mut shape = Shape::new(&self.raw, sb, sb.blocks_count, self.clock)?;
        let mut edits = Edits::default();
        let mut descriptors = Descriptors::new(self, &shape)?;
        let mut bitmaps = Bitmaps::new(self);
        for range in &changes.freed {
            bitmaps.mark(range.clone(), false)?;
        }
        // The freed ranges may contain blocks with moved data. These blocks are marked as used again.
        changes.mark_taken(&mut bitmaps)?;
        bitmaps.store(&shape.sb, &mut descriptors, &mut edits)?;
        if edits.is_empty() {
            return Ok(());
        }
        descriptors.store(self, &mut shape, &mut edits)?;
        self.commit(&edits, &shape, &descriptors.bytes, Size::WithEdits)
    }
}

/// The blocks that only the old volume uses, and the blocks that only the new volume uses.
struct Changes {
    freed: Vec<Range<u64>>,
    taken: Vec<Range<u64>>,
}

impl Changes {
    fn mark_taken(&self, bitmaps: &mut Bitmaps<'_>) -> Result<()> {
        self.taken.iter().try_for_each(|range| bitmaps.mark(range.clone(), true))
    }
}
