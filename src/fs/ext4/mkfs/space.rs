//! The used blocks during the layout of a volume. The used blocks are stored as sorted ranges. Even the largest volume therefore needs no
//! bitmap in memory.

#![allow(
    clippy::single_range_in_vec_init,
    reason = "the list has a single run here, but may have several"
)]

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::{Error, ErrorKind, Result};

/// The used blocks of a volume.
pub(in crate::fs::ext4) struct Space {
    /// The start and the end of each used range. No two ranges adjoin.
    taken: BTreeMap<u64, u64>,
    blocks: Range<u64>,
    /// The number of blocks in a cluster. Ranges of files begin and end at multiples of this number.
    cluster: u64,
}

impl Space {
    pub(in crate::fs::ext4) fn new(blocks: Range<u64>, cluster: u64) -> Self {
        Self { taken: BTreeMap::new(), blocks, cluster }
    }

    /// Marks blocks as used. The blocks must be free.
    pub(in crate::fs::ext4) fn take(&mut self, blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        let mut start = blocks.start;
        if let Some((&before, &end)) = self.taken.range(..=start).next_back() {
            debug_assert!(end <= start, "{blocks:?} is already allocated");
            if end == start {
                start = before;
            }
        }
        let end = self.taken.remove(&blocks.end).unwrap_or(blocks.end);
        self.taken.insert(start, end);
    }

    /// The free ranges from `from` on. Each range is shortened at both ends to multiples of `align`.
    fn gaps(&self, from: u64, align: u64) -> impl Iterator<Item = Range<u64>> {
        let from = match self.taken.range(..=from).next_back() {
            Some((_, &end)) => end.max(from),
            None => from.max(self.blocks.start),
        };
        let starts = std::iter::once(from).chain(self.taken.range(from..).map(|(_, end)| *end));
        let ends = self.taken.range(from..).map(|(start, _)| *start);
        let ends = ends.chain(std::iter::once(self.blocks.end));
        let gaps = starts.zip(ends);
        gaps.map(move |(start, end)| start.next_multiple_of(align)..end / align * align)
            .filter(|gap| !gap.is_empty())
    }

    /// Allocates contiguous blocks for the metadata of groups. The search begins at `goal` and ends at the first free range that is long
    /// enough. The allocation begins at the start of this range.
    pub(in crate::fs::ext4) fn take_run(&mut self, goal: u64, count: u64) -> Result<u64> {
        let run = self.gaps(goal, 1).find(|gap| gap.end - gap.start >= count);
        let start = run.ok_or_else(no_space)?.start;
        self.take(start..start + count);
        Ok(start)
    }

    /// Allocates blocks for a file: one run from `goal` on if possible, otherwise several free ranges. The returned ranges contain only the
    /// file's blocks. All blocks of the allocated clusters are marked as used.
    pub(in crate::fs::ext4) fn allocate(
        &mut self,
        goal: u64,
        count: u64,
    ) -> Result<Vec<Range<u64>>> {
        let whole = count.next_multiple_of(self.cluster);
        let fits = |gap: &Range<u64>| gap.end - gap.start >= whole;
        let start = self.blocks.start;
        let run = self.gaps(goal, self.cluster).find(fits);
        let run = run.or_else(|| self.gaps(start, self.cluster).find(fits));
        if let Some(run) = run {
            self.take(run.start..run.start + whole);
            return Ok(vec![run.start..run.start + count]);
        }
        let mut left = count;
        let mut ranges = Vec::new();
        for gap in self.gaps(start, self.cluster) {
            let len = left.min(gap.end - gap.start);
            ranges.push(gap.start..gap.start + len);
            left -= len;
            if left == 0 {
                break;
            }
        }
        if left > 0 {
            return Err(no_space());
        }
        for range in &ranges {
            let len = (range.end - range.start).next_multiple_of(self.cluster);
            self.take(range.start..range.start + len);
        }
        Ok(ranges)
    }

    /// The used parts of a range.
    pub(in crate::fs::ext4) fn taken_in(
        &self,
        within: Range<u64>,
    ) -> impl Iterator<Item = Range<u64>> {
        let first = self.taken.range(..=within.start).next_back();
        let from = first.map_or(within.start, |(start, _)| *start);
        self.taken.range(from..within.end).filter_map(move |(&start, &end)| {
            let part = start.max(within.start)..end.min(within.end);
            (!part.is_empty()).then_some(part)
        })
    }

    /// The clusters in the range `within` that contain used blocks. Returns them as ranges of cluster numbers. Cluster 0 begins at the
    /// start of `within`. The ranges do not overlap.
    pub(in crate::fs::ext4) fn clusters_in(
        &self,
        within: Range<u64>,
    ) -> impl Iterator<Item = Range<u64>> {
        let (base, cluster) = (within.start, self.cluster);
        let mut next = 0;
        self.taken_in(within).map(move |taken| {
            let start = ((taken.start - base) / cluster).max(next);
            next = (taken.end - base).div_ceil(cluster).max(start);
            start..next
        })
    }
}

fn no_space() -> Error {
    Error::new(ErrorKind::NoSpace, "the volume is too small for its metadata")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_ranges_are_merged_and_counted() {
        let mut space = Space::new(1..100, 1);
        space.take(10..20);
        space.take(30..40);
        space.take(20..30);
        assert_eq!(space.taken, BTreeMap::from([(10, 40)]));
        assert_eq!(space.take_run(1, 10).unwrap(), 40);
        assert_eq!(space.take_run(1, 9).unwrap(), 1);
        assert_eq!(space.taken_in(5..60).collect::<Vec<_>>(), [5..50]);
        assert_eq!(space.allocate(60, 50).unwrap(), [50..100]);
        assert!(space.take_run(1, 1).is_err());
    }

    #[test]
    fn files_get_whole_clusters() {
        let mut space = Space::new(0..128, 16);
        space.take(0..17);
        space.take(40..41);
        assert_eq!(space.allocate(0, 20).unwrap(), [48..68]);
        assert!(space.allocate(0, 49).is_err(), "only 80..128 is free");
        assert_eq!(space.allocate(0, 48).unwrap(), [80..128]);
        assert_eq!(space.clusters_in(32..128).collect::<Vec<_>>(), [0..1, 1..6]);
    }
}
