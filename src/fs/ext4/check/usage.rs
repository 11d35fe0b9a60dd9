//! The blocks in use, and the structures with fixed positions.

use super::bits::Bits;
use crate::error::Place;
use crate::fs::check::{FindingSite, Findings, Kind};
use crate::fs::ext4::RoCompat;
use crate::fs::ext4::superblock::Superblock;
use crate::sorting::Sorting;

/// The blocks of a structure with a fixed position, which no file may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fixed {
    pub(super) start: u64,
    pub(super) count: u64,
    pub(super) structure: &'static str,
}

/// The used clusters. Without bigalloc, a cluster is one block.
pub(super) struct Usage {
    clusters: Bits,
    fixed: Vec<Fixed>,
    cluster_blocks: u64,
    first: u64,
    end: u64,
    /// Whether files may share data blocks (feature `shared_blocks`).
    shared: bool,
}

impl Usage {
    pub(super) fn new(sb: &Superblock) -> Self {
        let (first, cluster_blocks) =
            (u64::from(sb.first_data_block), u64::from(sb.cluster_blocks));
        let clusters = (sb.blocks_count - first).div_ceil(cluster_blocks);
        Self {
            clusters: Bits::new(clusters),
            fixed: Vec::new(),
            cluster_blocks,
            first,
            end: sb.blocks_count,
            shared: sb.ro_compat.contains(RoCompat::SHARED_BLOCKS),
        }
    }

    /// Whether a range of blocks lies in the part of the volume that files may use.
    pub(super) fn contains(&self, start: u64, count: u64) -> bool {
        start >= self.first.max(1) && start.checked_add(count).is_some_and(|end| end <= self.end)
    }

    /// Records the structures with fixed positions. Returns the pairs of structures that overlap.
    pub(super) fn set_fixed(&mut self, mut fixed: Vec<Fixed>) -> Vec<(Fixed, Fixed)> {
        fixed.retain(|fixed| fixed.count > 0);
        fixed.order_by_key(|fixed| fixed.start);
        let mut overlaps = Vec::new();
        let mut last: Option<Fixed> = None;
        for fixed in &fixed {
            if let Some(last) = last.filter(|last| last.start + last.count > fixed.start) {
                overlaps.push((last, *fixed));
            }
            let ends_later = |last: &Fixed| last.start + last.count < fixed.start + fixed.count;
            if last.as_ref().is_none_or(ends_later) {
                last = Some(*fixed);
            }
            let end = (fixed.start + fixed.count).min(self.end);
            if fixed.start.max(self.first) < end {
                let first = self.cluster(fixed.start.max(self.first));
                self.clusters.set_range(first..self.cluster(end - 1) + 1);
            }
        }
        self.fixed = fixed;
        overlaps
    }

    /// The structure with a fixed position that overlaps this range of blocks.
    pub(super) fn fixed_in(&self, start: u64, count: u64) -> Option<&Fixed> {
        let after = self.fixed.partition_point(|fixed| fixed.start < start + count);
        let before = self.fixed[..after].last()?;
        (before.start + before.count > start).then_some(before)
    }

    /// Marks blocks as used. If some of these blocks were already used, adds a finding. Returns whether all blocks were free.
    pub(super) fn claim(
        &mut self,
        findings: &mut Findings,
        site: impl Into<FindingSite>,
        start: u64,
        count: u64,
    ) -> bool {
        let clusters = self.cluster(start)..self.cluster(start + count - 1) + 1;
        let Some(clash) = self.clusters.set_range(clusters) else { return true };
        let block = (self.first + clash.start * self.cluster_blocks).max(start);
        let end = (self.first + clash.end * self.cluster_blocks).min(start + count);
        let count = end - block;
        findings.add(
            site,
            match self.fixed_in(block, count) {
                Some(Fixed { structure, .. }) => Kind::ClaimsMetadata { block, count, structure },
                None => Kind::ClaimedTwice { block, count },
            },
        );
        false
    }

    /// Marks blocks of content as used. Files may share these blocks if the volume has the feature `shared_blocks`. Nodes of maps are never
    /// shared, and another function marks them.
    pub(super) fn claim_content(
        &mut self,
        findings: &mut Findings,
        place: Place,
        start: u64,
        count: u64,
    ) -> bool {
        if self.shared && self.fixed_in(start, count).is_none() {
            let clusters = self.cluster(start)..self.cluster(start + count - 1) + 1;
            self.clusters.set_range(clusters);
            return true;
        }
        self.claim(findings, place, start, count)
    }

    /// The number of the cluster that contains a block of the volume.
    pub(super) fn cluster(&self, block: u64) -> u64 {
        (block - self.first) / self.cluster_blocks
    }

    pub(super) fn bits(&self) -> &Bits {
        &self.clusters
    }

    /// The number of used blocks.
    pub(super) fn blocks(&self) -> u64 {
        self.clusters.count(0..self.cluster(self.end - 1) + 1) * self.cluster_blocks
    }
}
