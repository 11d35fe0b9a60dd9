//! Compares the superblock's counters with the sums of the counts of all groups.

use super::super::disk::superblock::features2;
use super::Checker;
use crate::error::Place;

const PLACE: Place = Place::new("superblock");

impl Checker<'_> {
    /// Whether the volume has lazy counters. With lazy counters, XFS writes the superblock's counters only at unmounts. The group headers
    /// then also count the blocks of trees.
    pub(super) fn has_lazy_counters(&self) -> bool {
        self.fs.superblock.is_v5()
            || self.superblock.sb_features2.get() & features2::LAZY_COUNTERS != 0
    }

    pub(super) fn check_counters(&mut self) {
        // After a crash, lazy counters are outdated, and the next mount computes them again. The counters in a copy of the superblock are
        // always outdated.
        if self.fs.log().recovered && self.has_lazy_counters() || self.fs.copy.is_some() {
            return;
        }
        let groups = &self.groups;
        let inodes: u64 = groups.iter().map(|group| group.inodes.0).sum();
        let free_inodes: u64 = groups.iter().map(|group| group.inodes.1).sum();
        let free: u64 = groups.iter().map(|group| group.free).sum();
        let known = groups.iter().all(|group| group.free_is_known);
        let raw = &self.superblock;
        let stored = [raw.sb_icount.get(), raw.sb_ifree.get(), raw.sb_fdblocks.get()];
        let (extents, realtime) = (raw.sb_frextents.get(), raw.sb_rblocks.get());
        self.findings.expect(PLACE.field("sb_icount"), stored[0], inodes);
        self.findings.expect(PLACE.field("sb_ifree"), stored[1], free_inodes);
        if known {
            self.findings.expect(PLACE.field("sb_fdblocks"), stored[2], free);
        }
        if realtime == 0 {
            self.findings.expect(PLACE.field("sb_frextents"), extents, 0_u64);
        }
    }
}
