//! The numbers of the resized volume.

use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use crate::error::{Error, Result};
use crate::fs::Clock;
use crate::fs::ext4::disk::superblock::RawSuperblock;
use crate::fs::ext4::mkfs::geometry::Geometry;
use crate::fs::ext4::mkfs::layout::Layout;
use crate::fs::ext4::superblock::set_time;
use crate::fs::ext4::superblock::{Superblock, seal_superblock};
use crate::fs::ext4::{Compat, Incompat};

/// The resized volume, before blocks are assigned to it.
pub(super) struct Shape {
    /// The superblock, without the counts of free space.
    pub(super) raw: RawSuperblock,
    pub(super) sb: Superblock,
    pub(super) geometry: Geometry,
}

impl Shape {
    /// A volume of `blocks` blocks. It has fewer blocks if the last group would be hardly larger than its metadata.
    ///
    /// # Errors
    /// `InvalidInput` or `Unsupported`, with the reason why the size is impossible.
    pub(super) fn new(
        old: &RawSuperblock,
        sb: &Superblock,
        blocks: u64,
        clock: Clock,
    ) -> Result<Self> {
        let first = u64::from(sb.first_data_block);
        let (cluster, per_group) = (u64::from(sb.cluster_blocks), u64::from(sb.blocks_per_group));
        let mut blocks = first + blocks.saturating_sub(first) / cluster * cluster;
        if blocks >> 32 != 0 && !sb.incompat.contains(Incompat::SIXTY_FOUR_BIT) {
            return Err(Error::unsupported(format!(
                "{blocks} blocks need the feature 64bit: resize2fs -b switches it on"
            )));
        }
        if blocks >> 32 != 0 && sb.compat.contains(Compat::RESIZE_INODE) {
            return Err(Error::unsupported(format!(
                "{blocks} blocks are more than resize_inode can count: tune2fs -O ^resize_inode, e2fsck -f"
            )));
        }
        loop {
            if blocks <= first {
                return Err(Error::invalid(format!("a volume cannot have {blocks} blocks")));
            }
            let shape = Self::of_blocks(old, sb, blocks, clock)?;
            let rest = (blocks - first) % per_group;
            let unchanged = blocks == sb.blocks_count;
            let alone = shape.sb.groups == 1;
            if rest == 0 || unchanged || alone || rest >= shape.geometry.least_last_group() {
                return Ok(shape);
            }
            blocks -= rest;
        }
    }

    /// The positions of the superblock's and the descriptors' copies, which follow from the numbers.
    pub(super) fn layout(&self) -> Layout<'_> {
        Layout { sb: &self.sb, geometry: &self.geometry, tables: Vec::new() }
    }

    fn of_blocks(old: &RawSuperblock, sb: &Superblock, blocks: u64, clock: Clock) -> Result<Self> {
        let mut raw = old.clone();
        let per_group = u64::from(sb.blocks_per_group);
        let groups = (blocks - u64::from(sb.first_data_block)).div_ceil(per_group);
        let inodes = groups.checked_mul(u64::from(sb.inodes_per_group));
        let (Ok(groups), Some(inodes)) =
            (u32::try_from(groups), inodes.and_then(|inodes| u32::try_from(inodes).ok()))
        else {
            return Err(Error::unsupported(format!("{groups} groups have more than 2^32 inodes")));
        };
        raw.s_blocks_count_lo.set(blocks as u32);
        raw.s_inodes_count.set(inodes);
        // The reserved share of the volume stays the same.
        let reserved = u128::from(sb.reserved_blocks) * u128::from(blocks);
        let reserved = (reserved / u128::from(sb.blocks_count)) as u64;
        raw.s_r_blocks_count_lo.set(reserved as u32);
        if sb.incompat.contains(Incompat::SIXTY_FOUR_BIT) {
            raw.s_blocks_count_hi.set((blocks >> 32) as u32);
            raw.s_r_blocks_count_hi.set((reserved >> 32) as u32);
        }
        // Linux computes this field at a mount.
        raw.s_overhead_clusters.set(0);
        descriptors(&mut raw, sb, groups)?;
        backups(&mut raw, sb, groups);
        set_time(&mut raw.s_wtime, &mut raw.s_wtime_hi, clock.now());
        seal_superblock(&mut raw);
        let sb = Superblock::decode(raw.as_bytes(), blocks << sb.block_size.shift())?;
        let geometry = Geometry::of(&sb);
        Ok(Self { raw, sb, geometry })
    }
}

/// Updates the number of descriptor blocks. They grow into the reserved blocks; if the volume shrinks, some become reserved again.
fn descriptors(raw: &mut RawSuperblock, sb: &Superblock, groups: u32) -> Result<()> {
    let per_block = sb.descriptors_per_block();
    let (before, after) = (sb.groups.div_ceil(per_block), groups.div_ceil(per_block));
    if sb.incompat.contains(Incompat::META_BG) {
        raw.s_first_meta_bg.set(sb.first_meta_bg.min(after));
        return Ok(());
    }
    let reserved = u32::from(sb.reserved_descriptor_blocks);
    let most = sb.block_size.bytes() as u32 / 4;
    let reserved = if after > before {
        reserved.checked_sub(after - before).ok_or_else(|| {
            let groups = u64::from((before + reserved) * per_block);
            let most = (groups * u64::from(sb.blocks_per_group)) << sb.block_size.shift();
            Error::unsupported(format!(
                "the group descriptors need {after} blocks and have room for {}: {most} bytes are possible, or more with resize2fs",
                before + reserved
            ))
        })?
    } else if sb.compat.contains(Compat::RESIZE_INODE) {
        (reserved + (before - after)).min(most)
    } else {
        reserved
    };
    raw.s_reserved_gdt_blocks.set(reserved as u16);
    Ok(())
}

/// With sparse_super2, the second of the two backups moves with the last group, as in resize2fs. A
/// volume without backups gets none, unless it had only one group.
fn backups(raw: &mut RawSuperblock, sb: &Superblock, groups: u32) {
    if !sb.compat.contains(Compat::SPARSE_SUPER2) || groups == sb.groups {
        return;
    }
    let [first, second] = sb.backup_groups;
    let first = match (sb.groups, groups) {
        (_, 1) => 0,
        (1, _) => 1,
        _ => first,
    };
    let any = first != 0 || second != 0;
    let second = if any && groups > 2 { groups - 1 } else { 0 };
    raw.s_backup_bgs = [first, second].map(U32::new);
}
