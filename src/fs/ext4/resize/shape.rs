//! The geometry of the resized volume.

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

/// The superblock and the geometry of the resized volume, before positions are assigned to its blocks.
pub(super) struct Shape {
    /// The superblock. Its counts of free blocks and inodes are set later.
    pub(super) raw: RawSuperblock,
    pub(super) sb: Superblock,
    pub(super) geometry: Geometry,
}

impl Shape {
    /// Computes the geometry of a volume with `blocks` blocks. The last group is omitted if its own metadata would leave hardly any space
    /// for files. The volume then has fewer blocks.
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
                "a volume of {blocks} blocks needs the feature 64bit: resize2fs -b enables the feature"
            )));
        }
        if blocks >> 32 != 0 && sb.compat.contains(Compat::RESIZE_INODE) {
            return Err(Error::unsupported(format!(
                "{blocks} blocks are too many for the feature resize_inode: disable the feature first (tune2fs -O ^resize_inode, e2fsck -f)"
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

    /// The layout of the copies of the superblock and of the group descriptors. The positions of bitmaps and inode tables are not part of
    /// this layout.
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
            return Err(Error::unsupported(format!(
                "a volume of {groups} groups would have more than 2^32 inodes"
            )));
        };
        raw.s_blocks_count_lo.set(blocks as u32);
        raw.s_inodes_count.set(inodes);
        // The reserved blocks keep their percentage of all blocks.
        let reserved = u128::from(sb.reserved_blocks) * u128::from(blocks);
        let reserved = (reserved / u128::from(sb.blocks_count)) as u64;
        raw.s_r_blocks_count_lo.set(reserved as u32);
        if sb.incompat.contains(Incompat::SIXTY_FOUR_BIT) {
            raw.s_blocks_count_hi.set((blocks >> 32) as u32);
            raw.s_r_blocks_count_hi.set((reserved >> 32) as u32);
        }
        // If `s_overhead_clusters` is 0, Linux computes the overhead at a mount.
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

/// Updates the number of descriptor blocks. If more blocks are needed, they are taken from the reserved descriptor blocks. If fewer are
/// needed, the unused descriptor blocks become reserved.
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
                "the group descriptors need {after} blocks, but only {} are reserved: the largest possible size is {most} bytes; resize2fs can make the volume larger",
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

/// Updates the groups that have backups with the feature sparse_super2. The second of the two backups is always in the last group, as in
/// resize2fs. A volume with several groups and without backups stays without backups. A volume with one group gets backups when it grows.
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
