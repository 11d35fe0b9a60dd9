//! The choice of a group for a new inode.
//!
//! An inode is allocated near its directory, and the file's blocks near the inode. The group of a directory therefore decides which data
//! are stored together. This module uses the Orlov allocator's policy. Directories in the root are spread over the volume, because their
//! contents are probably unrelated. Other directories are placed near their parents while there is space for their content.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::Allocator;
use super::summary::get;
use crate::fs::ext4::ROOT;
use crate::fs::ext4::superblock::Superblock;
use crate::units::InodeNo;

/// The expected number of files in a directory. This number limits the number of directories in a region.
const FILES_OF_A_DIRECTORY: u64 = 64;
/// The free space of a region may be lower than the average of all regions by 1/`SHORTAGE` of the region's size. Below this limit the
/// region gets no more directories.
const SHORTAGE: u64 = 4;

/// Groups with adjacent inode tables (a flex group), and the free resources of these groups.
struct Region {
    groups: Range<u32>,
    clusters: u64,
    inodes: u64,
    directories: u64,
}

impl Allocator {
    /// The group of the parent directory, or a nearby group with free inodes and blocks.
    pub(super) fn group_for_file(&self, sb: &Superblock, parent: InodeNo) -> u32 {
        let home = sb.group_of(parent);
        let flex = sb.flex_of(home);
        let mut near = (home..flex.end).chain(flex.start..home);
        near.find(|group| self.has_room(*group)).unwrap_or(home)
    }

    /// The group for a new directory.
    pub(super) fn group_for_directory(&self, sb: &Superblock, parent: InodeNo) -> u32 {
        let home = sb.flex_of(sb.group_of(parent)).start;
        let step = sb.flex_groups as usize;
        let starts = (home..sb.groups).step_by(step).chain((0..home).step_by(step));
        let average = self.average(sb);
        let mut regions = starts
            .map(|start| self.region(sb.flex_of(start)))
            .filter(|region| region.fits(sb, &average));
        let region = if parent == ROOT {
            regions.min_by_key(|region| region.directories)
        } else {
            regions.find(|region| region.takes_child(sb, &average))
        };
        region.map_or(home, |region| self.emptiest(region.groups))
    }

    fn average(&self, sb: &Superblock) -> Region {
        let count = u64::from(sb.groups.div_ceil(sb.flex_groups));
        Region {
            groups: 0..sb.groups,
            clusters: self.free_clusters.load(Ordering::Relaxed) / count,
            inodes: u64::from(get(&self.free_inodes)) / count,
            directories: u64::from(get(&self.directories)) / count,
        }
    }

    fn region(&self, groups: Range<u32>) -> Region {
        let (mut clusters, mut inodes, mut directories) = (0, 0, 0);
        for group in groups.clone() {
            let state = self.group(group);
            clusters += u64::from(get(&state.available));
            inodes += u64::from(get(&state.free_inodes));
            directories += u64::from(get(&state.directories));
        }
        Region { groups, clusters, inodes, directories }
    }

    /// The group with the fewest directories. Different directories are thus placed in different groups. Threads that create files in these
    /// directories do not contend for one group.
    fn emptiest(&self, groups: Range<u32>) -> u32 {
        let first = groups.start;
        let directories = |group: &u32| get(&self.group(*group).directories);
        groups.filter(|group| self.has_room(*group)).min_by_key(directories).unwrap_or(first)
    }

    fn has_room(&self, group: u32) -> bool {
        let state = self.group(group);
        get(&state.free_inodes) > 0 && get(&state.available) > 0
    }
}

impl Region {
    /// Whether the region has space for another directory: the region must have a free inode. The numbers of free inodes and free clusters
    /// must not be far below the average of all regions.
    fn fits(&self, sb: &Superblock, average: &Self) -> bool {
        let clusters = self.count() * u64::from(sb.blocks_per_group / sb.cluster_blocks);
        self.inodes > 0
            && self.inodes >= average.inodes.saturating_sub(self.all_inodes(sb) / SHORTAGE)
            && self.clusters >= average.clusters.saturating_sub(clusters / SHORTAGE)
    }

    /// Whether the region may get another directory. The number of the region's directories may exceed the average of all regions by
    /// 1/`FILES_OF_A_DIRECTORY` of the region's inodes.
    fn takes_child(&self, sb: &Superblock, average: &Self) -> bool {
        self.directories < average.directories + self.all_inodes(sb) / FILES_OF_A_DIRECTORY
    }

    fn count(&self) -> u64 {
        u64::from(self.groups.end - self.groups.start)
    }

    fn all_inodes(&self, sb: &Superblock) -> u64 {
        self.count() * u64::from(sb.inodes_per_group)
    }
}
