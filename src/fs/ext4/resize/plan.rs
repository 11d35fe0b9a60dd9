//! The plan for a smaller volume: the new positions of all blocks and inodes that must move. The plan is computed before any write.

use std::ops::Range;

use super::Volume;
use super::moves::{Evicted, Moves};
use super::names::check_inline;
use super::numbers::Numbers;
use super::scan::{Item, Map};
use super::shape::Shape;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::InodeFlags;
use crate::fs::ext4::alloc::bitmap::Bits;
use crate::fs::ext4::disk::extent::{INIT_MAX_LEN, RawExtent};
use crate::fs::ext4::mkfs::layout::Tables;
use crate::fs::ext4::mkfs::map::{FileMap, extent, pointers, tree};
use crate::fs::ext4::mkfs::space::Space;
use crate::fs::ext4::{Incompat, RoCompat};
use crate::iomap::ExtentState;
use crate::sys::Buffer;
use crate::units::InodeNo;

/// An inode that must change when the volume shrinks.
pub(super) struct Change {
    pub(super) number: InodeNo,
    /// The new block map, if blocks of the inode move.
    pub(super) map: Option<FileMap>,
    /// The blocks of the old map. The blocks of the new map replace them.
    pub(super) old_nodes: Vec<u64>,
}

/// The plan for a shrink: the new positions of all blocks and inodes that must move.
pub(super) struct Plan {
    /// The new positions of the bitmaps and inode tables of the remaining groups.
    pub(super) tables: Vec<Tables>,
    pub(super) moves: Moves,
    pub(super) numbers: Numbers,
    pub(super) changes: Vec<Change>,
    /// The new position of the resize inode's double-indirect block.
    pub(super) double: Option<u64>,
}

impl Plan {
    /// Plans the shrink of a volume with the inodes `items` to the geometry `shape`.
    ///
    /// # Errors
    /// `NoSpace` if the new volume is too small; `Unsupported` with the name of a structure that cannot move.
    pub(super) fn new(volume: &Volume, items: &[Item], shape: &Shape) -> Result<Self> {
        let sb = &shape.sb;
        let (mut space, evicted) = room(volume, shape)?;
        let mut moves = Moves::new(sb);
        let tables = tables(volume, shape, &evicted, &mut moves, &mut space)?;
        let double = volume.double_of_resize_inode()?;
        if let Some(double) = double {
            moves.evict(&(double..double + 1), &evicted, &mut space)?;
        }
        let double = double.map(|double| moves.place(double));
        if let Some(block) = sb.mmp_block
            && evicted.meets(&(block.0..block.0 + 1))
        {
            let what = "the MMP block is beyond the new end: tune2fs -O ^mmp removes the block";
            return Err(Error::unsupported(what));
        }
        let numbers = Numbers::new(volume, items, sb)?;
        check_inline(volume, &numbers, items)?;
        let mut plan = Self { tables, moves, numbers, changes: Vec::new(), double };
        for item in items {
            plan.add(item, shape, &evicted, &mut space)?;
        }
        Ok(plan)
    }

    /// Plans a step of a shrink that moves only the journal.
    pub(super) fn of_journal(volume: &Volume, item: &Item, shape: &Shape) -> Result<Self> {
        let (mut space, evicted) = room(volume, shape)?;
        let (moves, numbers) = (Moves::new(&shape.sb), Numbers::default());
        let tables = volume.tables()?;
        let mut plan = Self { tables, moves, numbers, changes: Vec::new(), double: None };
        plan.add(item, shape, &evicted, &mut space)?;
        Ok(plan)
    }

    /// Whether the shrink changes an inode.
    pub(super) fn moves_inode(&self, number: InodeNo) -> bool {
        self.changes.iter().any(|change| change.number == number)
    }

    /// The blocks of the old volume that become unused: the old positions of moved data, and the replaced blocks of maps.
    pub(super) fn old_blocks(&self) -> impl Iterator<Item = Range<u64>> {
        let nodes = self.changes.iter().flat_map(|change| &change.old_nodes);
        let moved = self.moves.all().map(|(from, _, len)| from..from + len);
        nodes.map(|node| *node..node + 1).chain(moved)
    }

    /// The blocks of the new volume that become used: the new positions of moved data, and the new blocks of maps.
    pub(super) fn new_blocks(&self) -> impl Iterator<Item = Range<u64>> {
        let maps = self.changes.iter().filter_map(|change| change.map.as_ref());
        let nodes = maps.flat_map(|map| &map.blocks).map(|(node, _)| *node..node + 1);
        nodes.chain(self.moves.all().map(|(_, to, len)| to..to + len))
    }

    fn add(
        &mut self,
        item: &Item,
        shape: &Shape,
        evicted: &Evicted,
        space: &mut Space,
    ) -> Result<()> {
        let (sb, moves) = (&shape.sb, &mut self.moves);
        let number = self.numbers.of(item.number);
        let Map { extents, nodes } = &item.map;
        let mut moved = nodes.iter().any(|node| evicted.meets(&(*node..node + 1)));
        for extent in extents {
            let range = extent.start.0..extent.start.0 + u64::from(extent.len);
            moved |= evicted.meets(&range);
            moves.evict(&range, evicted, space)?;
        }
        // The checksums of the map's blocks cover the inode's number. If the number changes, these blocks must be written again.
        moved |= number != item.number && !nodes.is_empty();
        let attributes = item.xattr.map(|block| block..block + 1);
        if let Some(block) = &attributes {
            moves.evict(block, evicted, space)?;
        }
        let map = if moved { Some(self.map(item, number, shape, space)?) } else { None };
        let grown = map.as_ref().is_some_and(|map| map.blocks.len() != nodes.len());
        if grown && sb.ro_compat.contains(RoCompat::QUOTA) {
            let what = "the maps of some files would need more blocks, and ironmap cannot add these blocks to the quota: use resize2fs, or tune2fs -O ^quota";
            return Err(Error::unsupported(what));
        }
        let attributes = attributes.is_some_and(|block| evicted.meets(&block));
        if map.is_some() || attributes || number != item.number {
            let old_nodes = if map.is_some() { nodes.clone() } else { Vec::new() };
            self.changes.push(Change { number: item.number, map, old_nodes });
        }
        Ok(())
    }

    fn map(
        &mut self,
        item: &Item,
        number: InodeNo,
        shape: &Shape,
        space: &mut Space,
    ) -> Result<FileMap> {
        let (sb, moves) = (&shape.sb, &mut self.moves);
        if item.flags.contains(InodeFlags::EXTENTS) {
            let entries = entries(&item.map, moves);
            let seed = sb.inode_seed(number, item.generation);
            return tree(&entries, sb.block_size, seed, &mut || moves.new_block(space));
        }
        let mut data = Vec::new();
        for extent in &item.map.extents {
            let range = extent.start.0..extent.start.0 + u64::from(extent.len);
            let places = moves.places(range);
            data.extend((extent.first.0..).zip(places.into_iter().flatten()));
        }
        pointers(data.into_iter(), sb.block_size, &mut || moves.new_block(space))
    }
}

/// The space of the new volume, for allocations, and the blocks that files and metadata must leave.
fn room(volume: &Volume, shape: &Shape) -> Result<(Space, Evicted)> {
    let (old, sb) = (&volume.found.superblock, &shape.sb);
    let mut space = space(volume, shape)?;
    let last = sb.groups - 1;
    if shape.layout().backup(last).end > sb.blocks_count {
        return Err(Error::new(
            ErrorKind::NoSpace,
            "the volume would be too small for its group descriptors",
        ));
    }
    let gains = sb.group_has_backup(last) && !old.group_has_backup(last);
    let backup = if gains { shape.layout().backup(last) } else { 0..0 };
    let taken: Vec<_> = space.taken_in(backup.clone()).collect();
    let mut from = backup.start;
    for range in taken {
        space.take(from..range.start);
        from = range.end;
    }
    space.take(from..backup.end);

    Ok((space, Evicted { from: sb.blocks_count, backup }))
}

/// The extents of a map in the new volume. Adjoining extents are merged.
fn entries(map: &Map, moves: &Moves) -> Vec<RawExtent> {
    let mut entries = Vec::new();
    let mut last: Option<(u64, u64, u64, bool)> = None;
    let mut add = |piece: Option<(u64, u64, u64, bool)>| {
        if let Some((first, start, len, unwritten)) = piece {
            let len = len as u16;
            let raw = if unwritten { len + INIT_MAX_LEN } else { len };
            entries.push(extent(first as u32, start, raw));
        }
    };
    for old in &map.extents {
        let unwritten = old.state == ExtentState::Unwritten;
        let most = u64::from(INIT_MAX_LEN) - u64::from(unwritten);
        let mut first = old.first.0;
        for place in moves.places(old.start.0..old.start.0 + u64::from(old.len)) {
            let (mut start, mut len) = (place.start, place.end - place.start);
            while len > 0 {
                let joined = match &mut last {
                    Some((at, from, count, state))
                        if *at + *count == first
                            && *from + *count == start
                            && *state == unwritten
                            && *count < most =>
                    {
                        let more = len.min(most - *count);
                        *count += more;
                        more
                    }
                    _ => {
                        let more = len.min(most);
                        add(last.replace((first, start, more, unwritten)));
                        more
                    }
                };
                (first, start, len) = (first + joined, start + joined, len - joined);
            }
        }
    }
    add(last);
    entries
}

/// The blocks of the new volume that are also in use in the old volume. The plan must not allocate these blocks, because a write to them
/// before the new size is set would damage the old volume.
fn space(volume: &Volume, shape: &Shape) -> Result<Space> {
    let (old, sb) = (&volume.found.superblock, &shape.sb);
    let cluster = u64::from(sb.cluster_blocks);
    let mut space = Space::new(u64::from(sb.first_data_block)..sb.blocks_count, cluster);
    let mut bytes = Buffer::aligned(sb.block_size.bytes())?;
    for group in 0..sb.groups {
        bytes.fill(0);
        volume.found.copy_block_bitmap(group, &mut bytes)?;
        let (clusters, bits) = (sb.clusters_in(group), Bits::new(&bytes, None));
        debug_assert!(clusters <= old.clusters_in(group));
        let mut at = bits.next_set(0, clusters);
        while at < clusters {
            let end = bits.next_clear(at, clusters);
            space.take(sb.cluster_start(group, at).0..sb.cluster_start(group, end).0);
            at = bits.next_set(end, clusters);
        }
    }
    Ok(space)
}

/// The positions of the bitmaps and inode tables of the remaining groups in the new volume.
fn tables(
    volume: &Volume,
    shape: &Shape,
    evicted: &Evicted,
    moves: &mut Moves,
    space: &mut Space,
) -> Result<Vec<Tables>> {
    let sb = &shape.sb;
    let flexible = sb.incompat.contains(Incompat::FLEX_BG);
    let mut place = |start: u64, count: u64, group: u32| {
        if !evicted.meets(&(start..start + count)) {
            return Ok(start);
        }
        if !flexible {
            return Err(Error::unsupported(format!(
                "metadata of group {group} would have to move, which needs flex_bg: choose another size"
            )));
        }
        moves.evict_run(start, count, space)
    };
    let mut tables = Vec::with_capacity(sb.groups as usize);
    for number in 0..sb.groups {
        let group = volume.found.group(number)?;
        tables.push(Tables {
            block_bitmap: place(group.block_bitmap.0, 1, number)?,
            inode_bitmap: place(group.inode_bitmap.0, 1, number)?,
            inode_table: place(group.inode_table.0, sb.inode_table_blocks(), number)?,
        });
    }
    Ok(tables)
}
