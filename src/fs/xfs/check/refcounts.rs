//! Checks the tree of reference counts: the runs of blocks that several file extents share, and the runs that are reserved for copy on
//! write.

use zerocopy::FromBytes;

use super::super::disk::tree::{COPY, RawShared, owner};
use super::Checker;
use super::owners::{Owned, Space};
use super::tree::{self, Walked};
use crate::fs::check::Kind;

const NAMES: [&str; 2] = [tree::REFCOUNTS.name, tree::REALTIME_REFCOUNTS.name];

/// A run of blocks, and its reference count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shared {
    start: u32,
    end: u32,
    count: u32,
}

/// Returns the runs of blocks to which two or more extents refer.
fn shared(owned: &[Owned]) -> Vec<Shared> {
    let mut events = Vec::new();
    for run in owned.iter().filter(|run| run.is_data()) {
        events.push((run.start, 1_i64));
        events.push((run.end().min(u32::MAX.into()) as u32, -1));
    }
    events.sort_unstable();
    let (mut runs, mut count, mut from) = (Vec::new(), 0_i64, 0);
    let mut at = 0;
    while at < events.len() {
        let place = events[at].0;
        if count >= 2 && from < place {
            add(&mut runs, Shared { start: from, end: place, count: count as u32 });
        }
        while at < events.len() && events[at].0 == place {
            count += events[at].1;
            at += 1;
        }
        from = place;
    }
    runs
}

/// Appends a run. If the run follows the last run directly and has the same count, the last run is lengthened instead.
fn add(runs: &mut Vec<Shared>, run: Shared) {
    match runs.last_mut() {
        Some(last) if last.end == run.start && last.count == run.count => last.end = run.end,
        _ => runs.push(run),
    }
}

impl Checker<'_> {
    /// Decodes the records of the tree. Blocks that are reserved for copy on write are claimed as used.
    pub(super) fn recorded_counts(&mut self, space: Space, found: &Walked) -> Vec<Shared> {
        let (length, mut site) = (self.group_len(space), space.site(NAMES));
        site.place = site.place.field("record");
        let raws = <[RawShared]>::ref_from_bytes(&found.records).unwrap_or_default();
        let (mut runs, mut end, mut was_copy) = (Vec::new(), 0, false);
        for raw in raws {
            let (word, len, count) =
                (raw.rc_startblock.get(), raw.rc_blockcount.get(), raw.rc_refcount.get());
            let (start, is_copy) = (word & !COPY, word & COPY != 0);
            let run_end = u64::from(start) + u64::from(len);
            let is_first = start == 0 && matches!(space, Space::Data(_));
            if is_first || len == 0 || run_end > length {
                let what = Kind::Outside { block: start.into(), count: len.into() };
                self.findings.add(site, what);
                continue;
            }
            if is_copy == was_copy && u64::from(start) < end {
                self.wrong(site, format!("the run at block {start} overlaps the previous run"));
            }
            (end, was_copy) = (run_end, is_copy);
            if is_copy {
                self.findings.expect(site, count, 1_u32);
                self.claim(space, (start, len), owner::COPIES, 0);
            } else if count < 2 {
                self.wrong(site, format!("the run at block {start} has count {count}, but shared blocks have 2 or more"));
            } else {
                add(&mut runs, Shared { start, end: run_end as u32, count });
            }
        }
        runs
    }

    /// Compares the tree's records with the shared runs that the check found in file maps.
    pub(super) fn check_recorded_counts(&mut self, space: Space, owned: &[Owned]) {
        let Some(recorded) = self.group(space).shared.take() else { return };
        let found = shared(owned);
        let site = space.site(NAMES);
        let told = |run: &Shared| {
            format!("blocks {} to {} with count {}", run.start, run.end - 1, run.count)
        };
        self.compare_records(site, (&recorded, &found), told, Self::add_of_space);
    }
}
