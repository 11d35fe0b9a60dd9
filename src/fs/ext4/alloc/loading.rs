//! What is on disk: descriptors, added up when the volume is opened, and bitmaps, each checked before it is used for the first time.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use super::Allocator;
use super::bitmap::{self, Bits};
use super::summary::{GroupState, Locked, chunks};
use crate::error::{Place, Result};
use crate::fs::ext4::Ext4;
use crate::fs::ext4::block::Block;
use crate::fs::ext4::group::Group;
use crate::sys::Buffer;

pub(super) const DESCRIPTOR: Place = Place::new("group descriptor");
pub(super) const BLOCK_BITMAP: Place = Place::new("block bitmap");
pub(super) const INODE_BITMAP: Place = Place::new("inode bitmap");

impl Allocator {
    /// Reads all descriptors.
    ///
    /// # Errors
    /// `Corrupt` for a descriptor that counts more than its group has, or points out of the volume.
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
                    let what = format!("group {number}: {count} of {all}");
                    return Err(place.field(field).corrupt(what));
                }
            }
            clusters += u64::from(group.free_clusters);
            inodes += group.free_inodes;
            directories = directories.saturating_add(group.directories);
            groups.push(GroupState::new(&group));
        }
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

impl Ext4 {
    /// The block bitmap of a group; where none was ever written, what it would be.
    pub(super) fn block_bitmap(
        &self,
        number: u32,
        group: &Group,
        locked: &mut Locked,
    ) -> Result<Block> {
        let system = match &locked.system {
            Some(system) => system,
            None => locked.system.insert(self.system_clusters(number)?),
        };
        let content = if group.blocks_uninit {
            let mut fresh = Buffer::aligned(self.superblock.block_size.bytes())?;
            self.fill_block_bitmap(number, system, &mut fresh);
            Block::new(fresh)
        } else {
            self.blocks.read(group.block_bitmap, BLOCK_BITMAP)?
        };
        if !locked.blocks_checked {
            self.check_block_bitmap(number, group, system, &content)?;
            locked.blocks_checked = true;
        }
        Ok(content)
    }

    /// The block bitmap of a group in which nothing was allocated: `bytes` are zeros.
    pub(in crate::fs::ext4) fn fill_block_bitmap(
        &self,
        number: u32,
        system: &[Range<u32>],
        bytes: &mut [u8],
    ) {
        for range in system {
            bitmap::set(bytes, range.clone());
        }
        bitmap::set(bytes, self.superblock.clusters_in(number)..bytes.len() as u32 * 8);
    }

    fn check_block_bitmap(
        &self,
        number: u32,
        group: &Group,
        system: &[Range<u32>],
        content: &[u8],
    ) -> Result<()> {
        let sb = &self.superblock;
        let place = BLOCK_BITMAP.block(group.block_bitmap);
        if !group.blocks_uninit {
            let computed = sb.block_bitmap_checksum(content);
            self.compare_checksum(group.block_bitmap_checksum, computed, place)?;
        }
        let bits = Bits::new(content, None);
        let (free, counted) = (bits.clear_bits(0..sb.clusters_in(number)), group.free_clusters);
        if free != counted {
            return Err(
                place.corrupt(format!("{free} clusters are free, the descriptor counts {counted}"))
            );
        }
        match system.iter().find(|range| !bits.is_set((*range).clone())) {
            Some(range) => {
                let start = sb.cluster_start(number, range.start);
                Err(place.corrupt(format!("metadata from block {start} on is not marked in use")))
            }
            None => Ok(()),
        }
    }

    /// The inode bitmap of a group; where none was ever written, what it would be.
    pub(super) fn inode_bitmap(&self, group: &Group, locked: &mut Locked) -> Result<Block> {
        let content = if group.inodes_uninit {
            let mut fresh = Buffer::aligned(self.superblock.block_size.bytes())?;
            self.fill_inode_bitmap(&mut fresh);
            Block::new(fresh)
        } else {
            self.blocks.read(group.inode_bitmap, INODE_BITMAP)?
        };
        if !locked.inodes_checked {
            self.check_inode_bitmap(group, &content)?;
            locked.inodes_checked = true;
        }
        Ok(content)
    }

    /// The inode bitmap of a group without inodes: `bytes` are zeros.
    pub(super) fn fill_inode_bitmap(&self, bytes: &mut [u8]) {
        bitmap::set(bytes, self.superblock.inodes_per_group..bytes.len() as u32 * 8);
    }

    fn check_inode_bitmap(&self, group: &Group, content: &[u8]) -> Result<()> {
        let sb = &self.superblock;
        let place = INODE_BITMAP.block(group.inode_bitmap);
        if !group.inodes_uninit {
            let computed = sb.inode_bitmap_checksum(content);
            self.compare_checksum(group.inode_bitmap_checksum, computed, place)?;
        }
        let bits = Bits::new(content, None);
        let (free, counted) = (bits.clear_bits(0..sb.inodes_per_group), group.free_inodes);
        if free != counted {
            return Err(
                place.corrupt(format!("{free} inodes are free, the descriptor counts {counted}"))
            );
        }
        let used = sb.inodes_per_group - group.unused_inodes;
        if bits.next_set(used, sb.inodes_per_group) < sb.inodes_per_group {
            return Err(place.corrupt(format!("inodes are in use behind the first {used}")));
        }
        Ok(())
    }

    /// Small descriptors hold the lower half of a sum only.
    fn compare_checksum(&self, stored: u32, computed: Option<u32>, place: Place) -> Result<()> {
        let Some(computed) = computed else { return Ok(()) };
        let whole = self.superblock.descriptor_size >= 64;
        let computed = if whole { computed } else { computed & 0xFFFF };
        if stored == computed { Ok(()) } else { Err(place.bad_checksum(stored, computed)) }
    }
}
