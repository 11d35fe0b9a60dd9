//! Reads descriptors and bitmaps from disk. The counts in the descriptors are summed when the volume is opened. Each bitmap is checked
//! before its first use.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use super::Allocator;
use super::bitmap::{self, Bits};
use super::group::LockedGroup;
use super::summary::{GroupState, chunks};
use crate::error::{Place, Result};
use crate::fs::block::Block;
use crate::fs::ext4::group::Group;
use crate::fs::ext4::superblock::Superblock;
use crate::fs::ext4::{Ext4, Incompat};
use crate::sys::Buffer;
use crate::units::FsBlock;

pub(super) const DESCRIPTOR: Place = Place::new("group descriptor");
pub(super) const BLOCK_BITMAP: Place = Place::new("block bitmap");
pub(super) const INODE_BITMAP: Place = Place::new("inode bitmap");

impl Allocator {
    /// Reads all descriptors.
    ///
    /// # Errors
    /// `Corrupt` for a descriptor with a count above the size of its group, or with a pointer outside the volume.
    pub(crate) fn load(fs: &Ext4) -> Result<Self> {
        let sb = &fs.superblock;
        let (mut clusters, mut inodes, mut directories) = (0_u64, 0, 0_u32);
        let mut groups = Vec::with_capacity(sb.groups as usize);
        for number in 0..sb.groups {
            let group = fs.group(number)?;
            let place = DESCRIPTOR.block(fs.descriptor_block(number));
            let bitmaps =
                [("bg_block_bitmap", group.block_bitmap), ("bg_inode_bitmap", group.inode_bitmap)];
            for (field, block) in bitmaps {
                if block.0 <= u64::from(sb.first_data_block) || !sb.contains(block) {
                    return Err(place.field(field).corrupt(format!("group {number}: {block}")));
                }
            }
            let counts = [
                ("bg_free_blocks_count", group.free_clusters, sb.clusters_in(number)),
                ("bg_free_inodes_count", group.free_inodes, sb.inodes_per_group),
                ("bg_used_dirs_count", group.directories, sb.inodes_per_group),
                ("bg_itable_unused", group.unused_inodes, sb.inodes_per_group),
            ];
            for (field, count, all) in counts {
                if count > all {
                    let what = format!(
                        "group {number}: the count is {count}, but the maximum in this group is {all}"
                    );
                    return Err(place.field(field).corrupt(what));
                }
            }
            clusters += u64::from(group.free_clusters);
            inodes += group.free_inodes;
            directories = directories.saturating_add(group.directories);
            groups.push(GroupState::new(&group));
        }
        Zones::of(fs)?.check_apart()?;
        Ok(Self {
            chunks: chunks(&groups),
            groups: groups.into(),
            cluster_blocks: sb.cluster_blocks,
            free_clusters: AtomicU64::new(clusters),
            kept_back: AtomicU64::new(0),
            free_inodes: AtomicU32::new(inodes),
            directories: AtomicU32::new(directories),
            discard: AtomicBool::new(false),
            keep_reserve: AtomicBool::new(false),
        })
    }
}

/// The ranges of superblocks, descriptors, bitmaps and inode tables, sorted. Each range is a first block and a length.
#[derive(Default)]
pub(in crate::fs::ext4) struct Zones(Vec<(u64, u64)>);

impl Zones {
    /// # Errors
    /// `Corrupt` for a bitmap or table outside its group on a volume without flex_bg; errors of the device.
    pub(in crate::fs::ext4) fn of(fs: &Ext4) -> Result<Self> {
        let mut zones = Self::default();
        for number in 0..fs.superblock.groups {
            zones.add_group(&fs.superblock, number, &fs.group(number)?)?;
        }
        zones.0.sort_unstable();
        Ok(zones)
    }

    /// Whether a block is in one of the ranges. The ranges must not overlap.
    pub(in crate::fs::ext4) fn has(&self, block: FsBlock) -> bool {
        let after = self.0.partition_point(|(start, _)| *start <= block.0);
        let before = after.checked_sub(1).and_then(|at| self.0.get(at));
        before.is_some_and(|(start, count)| block.0 - start < *count)
    }

    /// # Errors
    /// `Corrupt` for a bitmap or table outside its group on a volume without flex_bg.
    fn add_group(&mut self, sb: &Superblock, number: u32, group: &Group) -> Result<()> {
        let start = sb.group_start(number);
        let end = start.0.saturating_add(sb.blocks_per_group.into()).min(sb.blocks_count);
        let own = [
            (group.block_bitmap, 1),
            (group.inode_bitmap, 1),
            (group.inode_table, sb.inode_table_blocks()),
        ];
        for (first, count) in own {
            let within = first >= start && first.0.saturating_add(count) <= end;
            if !within && !sb.incompat.contains(Incompat::FLEX_BG) {
                let what = format!(
                    "a bitmap or the inode table is outside of group {number}, although flex_bg is not set"
                );
                return Err(DESCRIPTOR.block(first).corrupt(what));
            }
            self.0.push((first.0, count));
        }
        let copies = sb.copies_in(number);
        self.0.extend((copies > 0).then_some((start.0, copies)));
        Ok(())
    }

    /// Checks that the ranges do not overlap. If two ranges overlapped, a write to one structure would damage the other structure. Linux
    /// refuses most volumes with overlapping ranges.
    ///
    /// # Errors
    /// `Corrupt`.
    fn check_apart(&self) -> Result<()> {
        for pair in self.0.windows(2) {
            let ((start, count), (next, _)) = (pair[0], pair[1]);
            if start.saturating_add(count) > next {
                let what = "superblocks, descriptors, bitmaps or inode tables overlap";
                return Err(DESCRIPTOR.block(FsBlock(next)).corrupt(what));
            }
        }
        Ok(())
    }
}

impl LockedGroup<'_> {
    /// Returns the block bitmap of a group. An uninitialised bitmap is computed; any other bitmap is read from the device.
    pub(super) fn block_bitmap(&mut self) -> Result<Block> {
        if self.state.system.is_none() {
            self.state.system = Some(self.fs.system_clusters(self.number)?);
        }
        let content = if self.descriptor.blocks_uninit {
            let mut fresh = Buffer::aligned(self.fs.superblock.block_size.bytes())?;
            self.fill_block_bitmap(&mut fresh);
            Block::new(fresh)
        } else {
            self.fs.blocks.read(self.descriptor.block_bitmap, BLOCK_BITMAP)?
        };
        if !self.state.blocks_checked {
            self.check_block_bitmap(&content)?;
            self.state.blocks_checked = true;
        }
        Ok(content)
    }

    /// Initialises the block bitmap of a group without allocated blocks. The caller passes zeroed `bytes`.
    pub(super) fn fill_block_bitmap(&self, bytes: &mut [u8]) {
        self.fs.superblock.fill_block_bitmap(self.number, self.system(), bytes);
    }

    fn check_block_bitmap(&self, content: &[u8]) -> Result<()> {
        let sb = &self.fs.superblock;
        let place = BLOCK_BITMAP.block(self.descriptor.block_bitmap);
        if !self.descriptor.blocks_uninit {
            let computed = sb.block_bitmap_checksum(content);
            self.compare_checksum(self.descriptor.block_bitmap_checksum, computed, place)?;
        }
        let bits = Bits::new(content, None);
        let (free, counted) =
            (bits.clear_bits(0..sb.clusters_in(self.number)), self.descriptor.free_clusters);
        if free != counted {
            return Err(place.corrupt(format!(
                "{free} clusters are free, but the group descriptor counts {counted}"
            )));
        }
        match self.system().iter().find(|range| !bits.is_set((*range).clone())) {
            Some(range) => {
                let start = sb.cluster_start(self.number, range.start);
                Err(place
                    .corrupt(format!("the metadata from block {start} on is not marked as in use")))
            }
            None => Ok(()),
        }
    }

    /// Returns the inode bitmap of a group. An uninitialised bitmap is computed; any other bitmap is read from the device.
    pub(super) fn inode_bitmap(&mut self) -> Result<Block> {
        let content = if self.descriptor.inodes_uninit {
            let mut fresh = Buffer::aligned(self.fs.superblock.block_size.bytes())?;
            self.fill_inode_bitmap(&mut fresh);
            Block::new(fresh)
        } else {
            self.fs.blocks.read(self.descriptor.inode_bitmap, INODE_BITMAP)?
        };
        if !self.state.inodes_checked {
            self.check_inode_bitmap(&content)?;
            self.state.inodes_checked = true;
        }
        Ok(content)
    }

    /// Initialises the inode bitmap of a group without allocated inodes. The caller passes zeroed `bytes`.
    pub(super) fn fill_inode_bitmap(&self, bytes: &mut [u8]) {
        bitmap::set(bytes, self.fs.superblock.inodes_per_group..bytes.len() as u32 * 8);
    }

    fn check_inode_bitmap(&self, content: &[u8]) -> Result<()> {
        let sb = &self.fs.superblock;
        let place = INODE_BITMAP.block(self.descriptor.inode_bitmap);
        if !self.descriptor.inodes_uninit {
            let computed = sb.inode_bitmap_checksum(content);
            self.compare_checksum(self.descriptor.inode_bitmap_checksum, computed, place)?;
        }
        let bits = Bits::new(content, None);
        let (free, counted) =
            (bits.clear_bits(0..sb.inodes_per_group), self.descriptor.free_inodes);
        if free != counted {
            return Err(place.corrupt(format!(
                "{free} inodes are free, but the group descriptor counts {counted}"
            )));
        }
        let used = sb.inodes_per_group - self.descriptor.unused_inodes;
        if bits.next_set(used, sb.inodes_per_group) < sb.inodes_per_group {
            return Err(place.corrupt(format!("inodes after the first {used} are in use, but bg_itable_unused counts them as unused")));
        }
        Ok(())
    }

    /// Compares the stored checksum of a bitmap with the computed checksum. A small descriptor stores only the lower half of the checksum.
    fn compare_checksum(&self, stored: u32, computed: Option<u32>, place: Place) -> Result<()> {
        let Some(computed) = computed else { return Ok(()) };
        let whole = self.fs.superblock.descriptor_size >= 64;
        let computed = if whole { computed } else { computed & 0xFFFF };
        if stored == computed { Ok(()) } else { Err(place.bad_checksum(stored, computed)) }
    }
}
