//! A smaller volume: blocks and inodes beyond its end move, then the end is cut off.

use std::ops::Range;

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::bitmaps::{Bitmaps, Descriptors};
use super::commit::Size;
use super::edits::{Edits, Rank};
use super::plan::{Change, Plan};
use super::scan::Item;
use super::shape::Shape;
use super::{Resized, Volume};
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::InodeFlags;
use crate::fs::ext4::attr::seal_xattr_block;
use crate::fs::ext4::disk::inode::RawInode;
use crate::fs::ext4::group::GroupMut;
use crate::fs::ext4::inode::{seal_inode, sectors};
use crate::fs::ext4::mkfs::layout::Tables;
use crate::fs::ext4::orphan::seal_orphan_block;
use crate::fs::ext4::{Incompat, RoCompat, Superblock};
use crate::sys::Buffer;
use crate::units::{FsBlock, InodeNo};

const INODE: Place = Place::new("inode");

/// Makes the volume that of `shape`, which is smaller. The result is the volume as it was before.
pub(super) fn shrink(volume: Volume, mut shape: Shape) -> Result<Volume> {
    volume.check_sound()?;
    let items = volume.scan()?;
    let plan = volume.plan(&items, &shape)?;
    if !volume.moves_journal(&plan) {
        volume.cut(&plan, &items, &mut shape)?;
        return Ok(volume);
    }
    // The journal cannot hold its own move. Nothing else moves with it, and the volume keeps its size.
    let journal = volume.journal().and_then(|number| find(&items, number));
    if let Some(journal) = journal {
        let plan = Plan::of_journal(&volume, journal, &shape)?;
        volume.move_journal(&plan, &items, shape.sb.blocks_count)?;
    }
    let volume = volume.reopen()?;
    let mut shape =
        Shape::new(&volume.raw, &volume.found.superblock, shape.sb.blocks_count, volume.clock)?;
    let items = volume.scan()?;
    let plan = volume.plan(&items, &shape)?;
    volume.cut(&plan, &items, &mut shape)?;
    Ok(volume)
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
        volume = shrink(volume, shape)?.reopen()?;
    }
}

impl Volume {
    /// Refuses a volume that a check finds something wrong with: two files that share a block cannot both move it.
    fn check_sound(&self) -> Result<()> {
        let report = self.found.check(&mut |_| ())?;
        match report.findings.iter().find(|_| !report.is_clean()) {
            None => Ok(()),
            Some(first) => {
                Err(INODE.corrupt(format!("a check finds errors, use e2fsck -f first: {first}")))
            }
        }
    }

    fn journal(&self) -> Option<InodeNo> {
        self.found.superblock.journal_inode
    }

    fn moves_journal(&self, plan: &Plan) -> bool {
        plan.changes.iter().any(|change| Some(change.number) == self.journal())
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

    /// Moves the journal alone; the volume keeps its size, and its old blocks stay in use.
    fn move_journal(&self, plan: &Plan, items: &[Item], end: u64) -> Result<()> {
        let mut shape = Shape::new(
            &self.raw,
            &self.found.superblock,
            self.found.superblock.blocks_count,
            self.clock,
        )?;
        let mut edits = Edits::with(&plan.moves);
        let mut descriptors = Descriptors::new(self, &shape)?;
        let mut bitmaps = Bitmaps::new(self);
        for change in &plan.changes {
            self.edit_inode(plan, change, items, &mut shape, &mut edits)?;
        }
        // Blocks beyond the new end stay in use until they are cut off: a crash must not leave the journal in free blocks.
        for node in plan.changes.iter().flat_map(|change| &change.old_nodes) {
            bitmaps.mark(within(*node..node + 1, end), false)?;
        }
        for (from, _, len) in plan.moves.all() {
            bitmaps.mark(within(from..from + len, end), false)?;
        }
        mark_new(plan, &mut bitmaps)?;
        bitmaps.store(&shape.sb, &mut descriptors, &mut edits)?;
        descriptors.store(self, &mut shape, &mut edits)?;
        self.commit(&edits, &shape, &descriptors.bytes, Size::Same)
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
    fn cut(&self, plan: &Plan, items: &[Item], shape: &mut Shape) -> Result<()> {
        let fs = &self.found;
        let (old, end) = (&fs.superblock, shape.sb.blocks_count);
        let mut edits = Edits::with(&plan.moves);
        let mut descriptors = Descriptors::new(self, shape)?;
        plan.numbers.store(shape, &plan.tables, &mut descriptors, &mut edits)?;
        for change in &plan.changes {
            self.edit_inode(plan, change, items, shape, &mut edits)?;
        }
        self.edit_names(plan, shape, items, &mut edits)?;

        let mut bitmaps = Bitmaps::new(self);
        bitmaps.group(shape.sb.groups - 1)?;
        // First what becomes free: some of it may be in use again.
        for node in plan.changes.iter().flat_map(|change| &change.old_nodes) {
            bitmaps.mark(within(*node..node + 1, end), false)?;
        }
        let tables = self.tables()?;
        let table_blocks = old.inode_table_blocks();
        let own = |tables: &Tables| {
            let Tables { block_bitmap, inode_bitmap, inode_table } = *tables;
            [
                block_bitmap..block_bitmap + 1,
                inode_bitmap..inode_bitmap + 1,
                inode_table..inode_table + table_blocks,
            ]
        };
        for range in tables.iter().flat_map(own) {
            bitmaps.mark(within(range, end), false)?;
        }
        let layout = shape.layout();
        for group in 0..shape.sb.groups {
            let start = old.group_start(group).0;
            bitmaps.mark(within(start..start + old.copies_in(group), end), false)?;
        }
        for (from, _, len) in plan.moves.all() {
            bitmaps.mark(within(from..from + len, end), false)?;
        }
        for group in 0..shape.sb.groups {
            bitmaps.mark(layout.backup(group), true)?;
        }
        for range in plan.tables.iter().flat_map(own) {
            bitmaps.mark(range, true)?;
        }
        mark_new(plan, &mut bitmaps)?;

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
            self.edit_resize_inode(shape, double, &mut edits)?;
        }
        descriptors.store(self, shape, &mut edits)?;
        self.commit(&edits, shape, &descriptors.bytes, Size::AfterEdits)
    }

    /// Gives an inode its number, its map and its attribute block of the new volume.
    fn edit_inode(
        &self,
        plan: &Plan,
        change: &Change,
        items: &[Item],
        shape: &mut Shape,
        edits: &mut Edits<'_>,
    ) -> Result<()> {
        let fs = &self.found;
        let Some(item) = find(items, change.number) else { return Ok(()) };
        let number = plan.numbers.of(change.number);
        let Shape { raw: superblock, sb, .. } = shape;
        let size = usize::from(sb.inode_size);
        let old_place = fs.inode_place(change.number)?;
        let old = fs.blocks.read(old_place.block, INODE)?;
        let old = &old[old_place.at..old_place.at + size];
        let (block, at) = place_in(sb, &plan.tables, number);
        let map = change.map.as_ref();
        let attributes = item.xattr.map(|block| plan.moves.place(block));
        edits.edit(fs, block, Rank::Inodes, |bytes| {
            let bytes = &mut bytes[at..at + size];
            bytes.copy_from_slice(old);
            let Ok((raw, _)) = RawInode::mut_from_prefix(bytes) else {
                return Err(INODE.inode(number).corrupt("it is cut short"));
            };
            if let Some(map) = map {
                raw.i_block = map.i_block;
                let shift = sb.block_size.shift() - 9;
                let per_node = u64::from(sb.cluster_blocks) << shift;
                let before = change.old_nodes.len() as u64 * per_node;
                let after = map.blocks.len() as u64 * per_node;
                let total = (sectors(sb, raw) + after).saturating_sub(before);
                let in_blocks =
                    InodeFlags::from_bits_retain(raw.i_flags.get()).contains(InodeFlags::HUGE_FILE);
                let total = if in_blocks { total >> shift } else { total };
                raw.i_blocks_lo.set(total as u32);
                if sb.ro_compat.contains(RoCompat::HUGE_FILE) {
                    raw.i_blocks_high.set((total >> 32) as u16);
                }
            }
            if let Some(block) = attributes {
                raw.i_file_acl_lo.set(block as u32);
                if sb.incompat.contains(Incompat::SIXTY_FOUR_BIT) {
                    raw.i_file_acl_high.set((block >> 32) as u16);
                }
            }
            seal_inode(sb, number, bytes);
            Ok(())
        })??;
        for (at, content) in map.into_iter().flat_map(|map| &map.blocks) {
            let mut copy = Buffer::aligned(content.len())?;
            copy.copy_from_slice(content);
            edits.put(FsBlock(*at), Rank::Fresh, copy);
        }
        if let Some(block) = attributes.filter(|block| item.xattr != Some(*block)) {
            edits.edit(fs, FsBlock(block), Rank::Inodes, |bytes| {
                seal_xattr_block(sb.seed, FsBlock(block), bytes);
            })?;
        }
        if self.journal() == Some(change.number)
            && let Some(map) = map
            && superblock.s_jnl_backup_type == 1
        {
            let (words, _) = map.i_block.as_chunks::<4>();
            for (to, word) in superblock.s_jnl_blocks.iter_mut().zip(words) {
                *to = U32::new(u32::from_le_bytes(*word));
            }
        }
        if sb.orphan_file == Some(change.number) {
            // Checksums of its blocks are made of their places.
            let seed = sb.inode_seed(number, item.generation);
            for extent in &item.map.extents {
                let range = extent.start.0..extent.start.0 + u64::from(extent.len);
                for block in plan.moves.places(range).into_iter().flatten() {
                    edits.edit(fs, FsBlock(block), Rank::Entries, |bytes| {
                        seal_orphan_block(seed, FsBlock(block), bytes);
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// The item of an inode, of a list in the order of numbers.
fn find(items: &[Item], number: InodeNo) -> Option<&Item> {
    items.binary_search_by_key(&number, |item| item.number).ok().map(|at| &items[at])
}

/// Where an inode stands in the tables of the new volume.
fn place_in(sb: &Superblock, tables: &[Tables], number: InodeNo) -> (FsBlock, usize) {
    let index = number.0 - 1;
    let per_group = u64::from(sb.inodes_per_group);
    let byte = index % per_group * u64::from(sb.inode_size);
    let table = tables[(index / per_group) as usize].inode_table;
    let block = FsBlock(table + (byte >> sb.block_size.shift()));
    (block, byte as usize & (sb.block_size.bytes() - 1))
}

/// The part of a range before the new end.
fn within(range: Range<u64>, end: u64) -> Range<u64> {
    range.start.min(end)..range.end.min(end)
}

/// Marks the blocks that have new places.
fn mark_new(plan: &Plan, bitmaps: &mut Bitmaps<'_>) -> Result<()> {
    let maps = plan.changes.iter().filter_map(|change| change.map.as_ref());
    for (node, _) in maps.flat_map(|map| &map.blocks) {
        bitmaps.mark(*node..*node + 1, true)?;
    }
    plan.moves.all().try_for_each(|(_, to, len)| bitmaps.mark(to..to + len, true))
}
