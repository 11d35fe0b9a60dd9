//! Blocks and clusters of a file with extents. With bigalloc, space is allocated and freed in clusters, but extents count blocks. A cluster
//! belongs to the file while any of its blocks is mapped. The offset of a block in its cluster is the same in the file and on the device.
//!
//! Sources: "Bigalloc" in Linux's ext4 documentation, and volumes written by Linux.

use std::ops::Range;

use super::path::Tree;
use crate::error::Result;
use crate::iomap::Extent;
use crate::units::FsBlock;

/// Space that is about to be freed. Each range of blocks consists of complete clusters.
#[derive(Default)]
pub(super) struct Space {
    pub(super) ranges: Vec<(FsBlock, u64)>,
    pub(super) clusters: u64,
}

impl Tree<'_> {
    pub(super) fn cluster_blocks(&self) -> u64 {
        u64::from(self.inode.fs.superblock.cluster_blocks)
    }

    /// The clusters of the file that contain blocks of `range`, but no mapped block outside of `range`.
    pub(super) fn own_clusters(&self, range: Range<u64>) -> Result<Range<u64>> {
        let blocks = self.cluster_blocks();
        let (mut first, mut end) = (range.start / blocks, range.end.div_ceil(blocks));
        if self.maps_any(first * blocks..range.start)? {
            first += 1;
        }
        if first < end && self.maps_any(range.end..end * blocks)? {
            end -= 1;
        }
        Ok(first..end)
    }

    /// The space on the device that `extents` use in the file's clusters `within`. The extents must be sorted.
    pub(super) fn space(&self, extents: &[Extent], within: Range<u64>) -> Result<Space> {
        let blocks = self.cluster_blocks();
        let mut space = Space::default();
        let mut next = within.start;
        for extent in extents {
            let first = (extent.first.0 / blocks).max(next);
            let end = extent.end().0.div_ceil(blocks).min(within.end);
            if first >= end {
                continue;
            }
            next = end;
            let start = (extent.start.0 + first * blocks).checked_sub(extent.first.0);
            let Some(start) = start.filter(|start| start.is_multiple_of(blocks)) else {
                let place = self.place().field("ee_start");
                let what = format!("the offset of block {} in its cluster is wrong", extent.start);
                return Err(place.corrupt(what));
            };
            space.clusters += end - first;
            let len = (end - first) * blocks;
            match space.ranges.last_mut() {
                Some((last, count)) if last.0 + *count == start => *count += len,
                _ => space.ranges.push((FsBlock(start), len)),
            }
        }
        Ok(space)
    }
}
