//! The geometry of a new volume: the numbers of its groups, inodes and reserved blocks. The geometry is computed from the volume's size and
//! the options.
//!
//! If the options do not determine one of these numbers, the number is the same as in volumes that mke2fs makes (docs/PROVENANCE.md).

use super::features::Features;
use super::options::MkfsOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::ext4::superblock::{Superblock, sparse_backup};
use crate::fs::ext4::{Compat, Incompat, RoCompat};
use crate::units::BlockSize;

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;
const PAGE: u64 = 4096;
/// The maximum number of blocks or inodes in a group. A small descriptor stores these counts in 16 bits.
const MAX_PER_GROUP: u32 = (1 << 16) - 8;
/// The minimum number of inodes per group. With this number, group 0 has enough inodes for all files of a new volume.
const MIN_INODES_PER_GROUP: u32 = 16;
/// The minimum size of a group in clusters. If a volume has more inodes than its inode bitmaps have bits, its groups become smaller, so
/// that there are more groups and more inode bitmaps.
const MIN_CLUSTERS_PER_GROUP: u32 = 256;
/// The minimum number of blocks for files in the last group. A last group with fewer blocks for files is omitted.
const WORTHWHILE: u64 = 50;
const MIN_JOURNAL: u64 = 1024;
const MAX_JOURNAL: u64 = 10_240_000;

/// The geometry of a volume. Lengths are in blocks, except where the field's name or comment says otherwise.
#[derive(Clone, Debug)]
pub(in crate::fs::ext4) struct Geometry {
    pub(in crate::fs::ext4) features: Features,
    pub(in crate::fs::ext4) block_size: BlockSize,
    pub(in crate::fs::ext4) cluster_blocks: u32,
    pub(in crate::fs::ext4) first_data_block: u32,
    pub(in crate::fs::ext4) blocks: u64,
    pub(in crate::fs::ext4) blocks_per_group: u32,
    pub(in crate::fs::ext4) groups: u32,
    pub(in crate::fs::ext4) inode_size: u16,
    pub(in crate::fs::ext4) inodes_per_group: u32,
    /// The number of blocks of the inode table of one group.
    pub(in crate::fs::ext4) table_blocks: u32,
    /// The size of a group descriptor, 32 or 64 bytes.
    pub(in crate::fs::ext4) descriptor_size: u32,
    /// The number of blocks of one copy of all group descriptors.
    pub(in crate::fs::ext4) descriptor_blocks: u32,
    /// The number of blocks that are reserved after the group descriptors, so that the volume can grow.
    pub(in crate::fs::ext4) reserved_descriptor_blocks: u32,
    pub(in crate::fs::ext4) groups_per_flex: u32,
    /// The number of blocks of the journal with its fast-commit area; 0 if there is no journal.
    pub(in crate::fs::ext4) journal_blocks: u32,
    pub(in crate::fs::ext4) fast_commit_blocks: u32,
    /// The number of blocks of the orphan file; 0 if there is no orphan file.
    pub(in crate::fs::ext4) orphan_blocks: u32,
}

impl Geometry {
    /// Computes the geometry of a volume of `size` bytes, on a device with sectors of `sector` bytes.
    pub(super) fn new(options: &MkfsOptions, size: u64, sector: u32) -> Result<Self> {
        let block_size = block_size(options, size, sector)?;
        let mut features = options.features;
        let inode_size = inode_size(options, block_size, &features)?;
        let cluster_blocks = cluster_blocks(options, block_size, &features)?;
        let bytes = block_size.bytes() as u32;
        let boot_block_outside = bytes == 1024 && cluster_blocks == 1;
        // The size is rounded down to complete pages. A page cache could not access an incomplete page at the end of the volume.
        let blocks = (size / PAGE * PAGE) >> block_size.shift();
        limit_to_width(&mut features, blocks)?;
        if cluster_blocks > 1 && bytes == 1024 {
            // With bigalloc and blocks of 1 KiB, only group 0 begins with the boot block. In the other groups, the reserved descriptor
            // blocks would be one block away from the positions that the format requires. The feature resize_inode is therefore switched
            // off.
            features.compat.remove(Compat::RESIZE_INODE);
        }
        let journal = journal_blocks(options, &mut features, blocks, block_size)?;
        let fast_commit = features.compat.contains(Compat::FAST_COMMIT);
        let fast_commit_blocks = if fast_commit { journal / 64 } else { 0 };
        let orphan_file = features.compat.contains(Compat::ORPHAN_FILE);
        if features.compat.contains(Compat::RESIZE_INODE) && bytes > 1024 {
            // The size of the resize inode is the size that a double-indirect block can map. This size exceeds 2 GiB, and therefore
            // requires the feature large_file.
            features.ro_compat.insert(RoCompat::LARGE_FILE);
        }
        let wide = features.incompat.contains(Incompat::SIXTY_FOUR_BIT);
        let mut geometry = Self {
            features,
            block_size,
            cluster_blocks,
            first_data_block: u32::from(boot_block_outside),
            blocks,
            blocks_per_group: (bytes * 8).min(MAX_PER_GROUP) * cluster_blocks,
            groups: 0,
            inode_size,
            inodes_per_group: 0,
            table_blocks: 0,
            descriptor_size: if wide { 64 } else { 32 },
            descriptor_blocks: 0,
            reserved_descriptor_blocks: 0,
            groups_per_flex: groups_per_flex(options, &features)?,
            journal_blocks: journal + fast_commit_blocks,
            fast_commit_blocks,
            orphan_blocks: if orphan_file { (blocks / 4096).clamp(32, 512) as u32 } else { 0 },
        };
        let inodes = inodes(options, size, u64::from(cluster_blocks) << block_size.shift())?;
        while !geometry.divide(inodes)? {
            geometry.blocks = blocks;
            geometry.blocks_per_group -= 8 * cluster_blocks;
            if geometry.blocks_per_group / cluster_blocks < MIN_CLUSTERS_PER_GROUP {
                let what =
                    format!("the volume is too small for {inodes} inodes: ask for fewer inodes");
                return Err(Error::new(ErrorKind::NoSpace, what));
            }
        }
        Ok(geometry)
    }

    /// Divides the volume into groups. Omits the last group if its own metadata leave hardly any space for files. Returns false if the
    /// inode bitmaps of all groups together have too few bits for the inodes.
    fn divide(&mut self, inodes: u64) -> Result<bool> {
        let too_small =
            || Err(Error::new(ErrorKind::NoSpace, "the volume is too small for a file system"));
        let per_group = u64::from(self.blocks_per_group);
        for _ in 0..2 {
            let Some(blocks) = self.blocks.checked_sub(u64::from(self.first_data_block)) else {
                return too_small();
            };
            if blocks == 0 {
                return too_small();
            }
            self.groups = u32::try_from(blocks.div_ceil(per_group)).map_err(|_| {
                Error::unsupported("the volume would have more than 2^32 groups: use larger blocks")
            })?;
            if !self.set_inodes(inodes)? {
                return Ok(false);
            }
            self.set_descriptors()?;
            let rest = blocks % per_group;
            if rest == 0 || rest >= self.least_last_group() {
                return Ok(true);
            }
            self.blocks -= rest;
        }
        too_small()
    }

    /// The minimum size of the last group, in blocks: its metadata and some blocks for files.
    pub(in crate::fs::ext4) fn least_last_group(&self) -> u64 {
        let own = 2 + u64::from(self.table_blocks);
        let backup = if self.has_backup(self.groups - 1) { self.backup_blocks() } else { 0 };
        own + backup + WORTHWHILE
    }

    /// The geometry of an existing volume, without the sizes of its journal and its orphan file.
    pub(in crate::fs::ext4) fn of(sb: &Superblock) -> Self {
        let features =
            Features { compat: sb.compat, incompat: sb.incompat, ro_compat: sb.ro_compat };
        Self {
            features,
            block_size: sb.block_size,
            cluster_blocks: sb.cluster_blocks,
            first_data_block: sb.first_data_block,
            blocks: sb.blocks_count,
            blocks_per_group: sb.blocks_per_group,
            groups: sb.groups,
            inode_size: sb.inode_size,
            inodes_per_group: sb.inodes_per_group,
            table_blocks: sb.inode_table_blocks() as u32,
            descriptor_size: u32::from(sb.descriptor_size),
            descriptor_blocks: sb.groups.div_ceil(sb.descriptors_per_block()),
            reserved_descriptor_blocks: u32::from(sb.reserved_descriptor_blocks),
            groups_per_flex: sb.flex_groups,
            journal_blocks: 0,
            fast_commit_blocks: 0,
            orphan_blocks: 0,
        }
    }

    /// Computes the number of inodes per group from the requested number of inodes of the volume. Rounds the number so that an inode table
    /// fills complete blocks, and the used part of an inode bitmap fills complete bytes. Returns false if an inode bitmap has too few bits.
    fn set_inodes(&mut self, wanted: u64) -> Result<bool> {
        let bytes = self.block_size.bytes() as u64;
        let size = u64::from(self.inode_size);
        let most = u64::from(MAX_PER_GROUP).min(bytes * 8) / (bytes / size) * (bytes / size);
        if wanted > u64::from(u32::MAX) {
            return Err(Error::invalid(
                "the volume would have more than 2^32 inodes: ask for fewer inodes",
            ));
        }
        let wanted = wanted.div_ceil(u64::from(self.groups)).max(u64::from(MIN_INODES_PER_GROUP));
        let whole_blocks = (wanted * size).div_ceil(bytes) * bytes / size;
        let per_group = whole_blocks / 8 * 8;
        if per_group > most {
            return Ok(false);
        }
        if per_group * u64::from(self.groups) > u64::from(u32::MAX) {
            return Err(Error::invalid(
                "the volume would have more than 2^32 inodes: ask for fewer inodes",
            ));
        }
        self.inodes_per_group = per_group as u32;
        self.table_blocks = (per_group * size).div_ceil(bytes) as u32;
        Ok(true)
    }

    fn set_descriptors(&mut self) -> Result<()> {
        let per_block = self.descriptors_per_block();
        self.descriptor_blocks = self.groups.div_ceil(per_block);
        if self.features.compat.contains(Compat::RESIZE_INODE) {
            // The reserved blocks permit growth by a factor of 1024. Their maximum number is the number of pointers in the resize inode's
            // double-indirect block.
            let most = (self.blocks * 1024).min(u64::from(u32::MAX));
            let most = most - u64::from(self.first_data_block);
            let groups = most.div_ceil(u64::from(self.blocks_per_group));
            let blocks = groups.div_ceil(u64::from(per_block)) as u32;
            let blocks = blocks.saturating_sub(self.descriptor_blocks);
            self.reserved_descriptor_blocks = blocks.min(self.block_size.bytes() as u32 / 4);
        }
        if self.backup_blocks() + 2 >= u64::from(self.blocks_per_group) {
            return Err(Error::unsupported(
                "the group descriptors do not fit into a group: use meta_bg or larger blocks",
            ));
        }
        Ok(())
    }

    /// The number of group descriptors per block.
    pub(in crate::fs::ext4) fn descriptors_per_block(&self) -> u32 {
        self.block_size.bytes() as u32 / self.descriptor_size
    }

    /// The number of blocks that one copy of the superblock and one copy of all group descriptors need together.
    fn backup_blocks(&self) -> u64 {
        if self.features.incompat.contains(Incompat::META_BG) {
            return 2;
        }
        1 + u64::from(self.descriptor_blocks) + u64::from(self.reserved_descriptor_blocks)
    }

    /// The two groups that have backups with the feature sparse_super2: group 1 and the last group.
    pub(in crate::fs::ext4) fn backup_groups(&self) -> [u32; 2] {
        let last = self.groups - 1;
        [last.min(1), if last > 1 { last } else { 0 }]
    }

    fn has_backup(&self, group: u32) -> bool {
        if self.features.compat.contains(Compat::SPARSE_SUPER2) {
            return group == 0 || self.backup_groups().contains(&group);
        }
        let sparse = self.features.ro_compat.contains(RoCompat::SPARSE_SUPER);
        sparse_backup(group) || !sparse
    }
}

fn block_size(options: &MkfsOptions, size: u64, sector: u32) -> Result<BlockSize> {
    let usual = if size < 512 * MIB { 1024 } else { 4096 };
    let bytes = options.block_size.unwrap_or(sector.max(usual));
    let shift = bytes.is_power_of_two().then(|| bytes.trailing_zeros() as u8);
    // A block of ext4 has at least 1024 bytes. Other formats also permit 512.
    let shift = shift.filter(|shift| *shift >= 10);
    shift.and_then(BlockSize::from_shift).ok_or_else(|| {
        Error::invalid(format!(
            "the block size is {bytes}, but it must be a power of two from 1024 to 65536"
        ))
    })
}

fn inode_size(options: &MkfsOptions, block: BlockSize, features: &Features) -> Result<u16> {
    let size = options.inode_size.unwrap_or(256);
    if size < 128 || !size.is_power_of_two() || usize::from(size) > block.bytes() {
        let most = block.bytes();
        return Err(Error::invalid(format!(
            "the inode size is {size}, but it must be a power of two from 128 to {most}"
        )));
    }
    let inline = features.incompat.contains(Incompat::INLINE_DATA);
    if size == 128 && (inline || features.ro_compat.contains(RoCompat::PROJECT)) {
        return Err(Error::invalid(
            "an inode of 128 bytes is too small for inline_data or project",
        ));
    }
    Ok(size)
}

fn cluster_blocks(options: &MkfsOptions, block: BlockSize, features: &Features) -> Result<u32> {
    if !features.ro_compat.contains(RoCompat::BIGALLOC) {
        return match options.cluster_size {
            None => Ok(1),
            Some(_) => {
                Err(Error::invalid("a cluster size is only possible with the feature bigalloc"))
            }
        };
    }
    let bytes = block.bytes() as u32;
    let cluster = options.cluster_size.unwrap_or(16 * bytes);
    if cluster < 2 * bytes || !cluster.is_power_of_two() || cluster / bytes > 1 << 12 {
        return Err(Error::invalid(format!(
            "the cluster size is {cluster} bytes, but it must be a power of two from 2 to 4096 blocks"
        )));
    }
    Ok(cluster / bytes)
}

fn groups_per_flex(options: &MkfsOptions, features: &Features) -> Result<u32> {
    if !features.incompat.contains(Incompat::FLEX_BG) {
        return Ok(1);
    }
    let groups = options.groups_per_flex;
    if !groups.is_power_of_two() {
        return Err(Error::invalid(format!(
            "the number of groups in a flex group is {groups}, but it must be a power of two"
        )));
    }
    Ok(groups)
}

/// Checks the features of a volume that needs 64-bit block numbers. Without the feature 64bit, the size is refused. With it, the feature
/// resize_inode is switched off, because the resize inode cannot contain 64-bit block numbers.
fn limit_to_width(features: &mut Features, blocks: u64) -> Result<()> {
    if blocks <= u64::from(u32::MAX) {
        return Ok(());
    }
    if !features.incompat.contains(Incompat::SIXTY_FOUR_BIT) {
        return Err(Error::invalid(format!(
            "a volume of {blocks} blocks needs the feature 64bit or larger blocks"
        )));
    }
    features.compat.remove(Compat::RESIZE_INODE);
    Ok(())
}

/// The size of the journal in blocks, without the fast-commit area. A very small volume gets no journal.
fn journal_blocks(
    options: &MkfsOptions,
    features: &mut Features,
    blocks: u64,
    block: BlockSize,
) -> Result<u32> {
    if !features.compat.contains(Compat::HAS_JOURNAL) {
        return Ok(0);
    }
    if let Some(bytes) = options.journal_size {
        let wanted = bytes >> block.shift();
        if !(MIN_JOURNAL..=MAX_JOURNAL).contains(&wanted) || wanted > blocks / 2 {
            let most = MAX_JOURNAL.min(blocks / 2);
            let (least, most) = (MIN_JOURNAL << block.shift(), most << block.shift());
            return Err(Error::invalid(format!(
                "a journal size of {bytes} bytes is not possible: the range is {least} to {most}"
            )));
        }
        return Ok(wanted as u32);
    }
    Ok(match blocks {
        ..2048 => {
            features.edit("^has_journal")?;
            0
        }
        2048..32_768 => 1024,
        32_768..262_144 => 4096,
        262_144..524_288 => 8192,
        _ => {
            let doubled = (u64::BITS - (blocks >> 22).leading_zeros()).min(4);
            (16 << 10) << doubled
        }
    })
}

/// The number of inodes that the options request, or the default number.
fn inodes(options: &MkfsOptions, size: u64, cluster: u64) -> Result<u64> {
    if let Some(inodes) = options.inodes {
        return Ok(inodes);
    }
    let usual: u64 = match size {
        size if size < 3 * MIB => 8192,
        size if size < 512 * MIB => 4096,
        size if size < 4 * TIB => 16384,
        size if size < 16 * TIB => 32768,
        _ => 65536,
    };
    // The requested number of bytes per inode may be less than the size of a cluster: symbolic links and inline files need no cluster.
    let ratio = options.inode_ratio.unwrap_or(usual.max(cluster));
    if ratio < 1024 {
        return Err(Error::invalid(format!(
            "the inode ratio is {ratio} bytes, but the minimum is 1024"
        )));
    }
    Ok(size / ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(size: u64) -> Geometry {
        Geometry::new(&MkfsOptions::default(), size, 512).unwrap()
    }

    /// The requested number of bytes per inode may be less than a block or a cluster. The expected numbers are from volumes that mke2fs
    /// 1.47 has made.
    #[test]
    fn a_ratio_of_inodes_that_is_asked_for_is_obeyed() {
        let inodes = |options: &MkfsOptions| {
            let geometry = Geometry::new(options, 64 * MIB, 512).unwrap();
            geometry.inodes_per_group * geometry.groups
        };
        let with = |block: u32| MkfsOptions::default().block_size(block);
        assert_eq!(inodes(&with(65_536)), 1024);
        assert_eq!(inodes(&with(65_536).inode_ratio(4096)), 16_384);
        assert_eq!(inodes(&with(4096).inode_ratio(1024)), 65_536);
        let mut clusters = with(4096).cluster_size(65_536);
        clusters.features.edit("bigalloc").unwrap();
        assert_eq!(inodes(&clusters), 1024);
        assert_eq!(inodes(&clusters.inode_ratio(16_384)), 4096);
    }

    /// The journal and the reserved blocks have the same sizes as in volumes that mke2fs 1.47 has made.
    #[test]
    fn sizes_of_journals_and_of_what_is_reserved_are_those_of_mke2fs() {
        const GIB: u64 = 1 << 30;
        let figures = |geometry: Geometry| {
            let Geometry { journal_blocks, orphan_blocks, inodes_per_group, .. } = geometry;
            (journal_blocks, geometry.reserved_descriptor_blocks, orphan_blocks, inodes_per_group)
        };
        assert_eq!(figures(of(MIB)), (0, 7, 0, 128));
        assert_eq!(figures(of(2 * MIB)), (1024, 15, 32, 256));
        assert_eq!(figures(of(31 * MIB)), (1024, 247, 32, 1984));
        assert_eq!(figures(of(511 * MIB)), (8192, 256, 127, 2040));
        assert_eq!(figures(of(1023 * MIB)), (4096, 127, 63, 8192));
        assert_eq!(figures(of(8 * GIB)), (16384, 1023, 512, 8192));
        assert_eq!(figures(of(16 * GIB)), (32768, 1024, 512, 8192));
        assert_eq!(figures(of(32 * GIB)), (65536, 1024, 512, 8192));
        assert_eq!(figures(of(64 * GIB)), (131_072, 1024, 512, 8192));
        assert_eq!(figures(of(512 * GIB)), (262_144, 1024, 512, 8192));
        assert_eq!(figures(of(8 << 40)), (262_144, 1024, 512, 4096));
    }

    #[test]
    fn impossible_geometry_is_refused() {
        let refused = |change: &dyn Fn(&mut MkfsOptions), size: u64| {
            let mut options = MkfsOptions::default();
            change(&mut options);
            Geometry::new(&options, size, 512).unwrap_err().to_string()
        };
        assert!(refused(&|o| o.block_size = Some(3000), MIB).contains("power of two"));
        assert!(refused(&|o| o.inode_size = Some(64), MIB).contains("from 128"));
        assert!(refused(&|o| o.cluster_size = Some(8192), MIB).contains("the feature bigalloc"));
        assert!(
            refused(&|o| o.journal_size = Some(1 << 30), 64 * MIB).contains("a journal size of")
        );
        assert!(refused(&|o| o.inodes = Some(1 << 30), 64 * MIB).contains("1073741824 inodes"));
        let narrow = |o: &mut MkfsOptions| o.features.edit("^64bit").unwrap();
        assert!(refused(&narrow, 32 << 40).contains("64bit"));
        for size in [0, 1024, 2048, 16 << 10] {
            assert!(refused(&|_| (), size).contains("too small"), "{size}");
        }
    }
}
