//! Growth of a volume: the last group is extended to its full size, and groups are added.

use super::Volume;
use super::bitmaps::{Bitmaps, Descriptors};
use super::commit::Size;
use super::edits::Edits;
use super::shape::Shape;
use crate::error::Result;
use crate::fs::ext4::Superblock;
use crate::fs::ext4::alloc::bitmap;
use crate::fs::ext4::mkfs::groups::{TablesAre, Used};
use crate::fs::ext4::mkfs::layout::{Layout, Tables};
use crate::fs::ext4::mkfs::output::Output;
use crate::fs::ext4::mkfs::space::Space;

/// Grows the volume to `shape`. If `zeros_from` is `Some`, the device reads as zeros from that byte on.
pub(super) fn grow(volume: &Volume, mut shape: Shape, zeros_from: Option<u64>) -> Result<()> {
    let old = &volume.found.superblock;
    let cluster = u64::from(old.cluster_blocks);
    let first = u64::from(old.first_data_block);
    // The last cluster of the old volume may extend past the old end and belong to a file. New metadata therefore begin at the next
    // cluster.
    let from = first + (old.blocks_count - first).next_multiple_of(cluster);
    let (sb, geometry) = (&shape.sb, &shape.geometry);
    let mut space = Space::new(from..sb.blocks_count, cluster);
    let mut tables = Vec::with_capacity(sb.groups as usize);
    for number in 0..old.groups {
        let group = volume.found.group(number)?;
        tables.push(Tables {
            block_bitmap: group.block_bitmap.0,
            inode_bitmap: group.inode_bitmap.0,
            inode_table: group.inode_table.0,
        });
    }
    tables.resize(sb.groups as usize, Tables::default());
    let mut layout = Layout { sb, geometry, tables };
    for group in old.groups..sb.groups {
        space.take(layout.backup(group));
    }
    let mut start = old.groups;
    while start < sb.groups {
        let end = (start + 1).next_multiple_of(sb.flex_groups).min(sb.groups);
        layout.place_tables(start..end, &mut space)?;
        start = end;
    }

    let mut bitmaps = Bitmaps::new(volume);
    mark_old_groups(&mut bitmaps, old, &layout, &space)?;
    let double = volume.double_of_resize_inode()?;
    let mut descriptors = Descriptors::new(volume, &shape)?;
    volume.check_held()?;

    // This loop writes only blocks past the end of the old volume.
    let output = Output::new(&**volume.device(), sb.block_size)?;
    let zeros_from = zeros_from.unwrap_or(u64::MAX) >> sb.block_size.shift();
    let mut tables = TablesAre::Zero;
    for group in &layout.tables[old.groups as usize..] {
        let range = group.inode_table..group.inode_table + u64::from(geometry.table_blocks);
        if range.start > zeros_from {
            continue;
        }
        if sb.has_uninit_groups() {
            tables = TablesAre::Unknown;
        } else {
            output.zero(range)?;
        }
    }
    for number in old.groups..sb.groups {
        let descriptor = descriptors.bytes_of(sb, number);
        layout.write_group((number, Used::default()), &space, tables, &output, descriptor)?;
    }

    let mut edits = Edits::default();
    bitmaps.store(sb, &mut descriptors, &mut edits)?;
    if let Some(double) = double {
        volume.edit_resize_inode(&shape, double, &mut edits)?;
    }
    descriptors.store(volume, &mut shape, &mut edits)?;
    volume.commit(&edits, &shape, &descriptors.bytes, Size::WithEdits)
}

/// Changes the bitmaps of the old volume's groups. The last of these groups gets more clusters, and the blocks of removed backups become
/// free.
fn mark_old_groups(
    bitmaps: &mut Bitmaps<'_>,
    old: &Superblock,
    layout: &Layout<'_>,
    space: &Space,
) -> Result<()> {
    let (sb, last) = (layout.sb, old.groups - 1);
    let bits = bitmaps.group(last)?;
    bitmap::clear(bits, old.clusters_in(last)..sb.clusters_in(last));
    let blocks = layout.blocks_of(last);
    for taken in space.clusters_in(blocks) {
        bitmap::set(bits, taken.start as u32..taken.end as u32);
    }
    // With the feature sparse_super2, the last group has a backup. The backup in the old last group is removed, because the new last group
    // gets one.
    for group in old.backup_groups.into_iter().filter(|group| (1..old.groups).contains(group)) {
        if old.group_has_backup(group) && !sb.group_has_backup(group) {
            let start = old.group_start(group).0;
            bitmaps.mark(start..start + old.copies_in(group), false)?;
        }
    }
    Ok(())
}
