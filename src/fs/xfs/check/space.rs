//! Checks free space, which two trees record: one sorted by position and one sorted by length.

use zerocopy::FromBytes;

use super::super::disk::group::RawFree;
use super::super::disk::tree::RawFreeExtent;
use super::Checker;
use super::owners::{FREE, Space};
use super::tree::Walked;
use crate::error::Place;
use crate::fs::check::{FindingSite, Kind};

/// A run of free blocks: the first block and the number of blocks.
type Run = (u32, u32);

fn runs(found: &Walked) -> Vec<Run> {
    let raws = <[RawFreeExtent]>::ref_from_bytes(&found.records).unwrap_or_default();
    raws.iter().map(|raw| (raw.ar_startblock.get(), raw.ar_blockcount.get())).collect()
}

impl Checker<'_> {
    /// Checks the free extents and claims their blocks as free.
    pub(super) fn check_free_space(
        &mut self,
        group: u32,
        by_place: &Walked,
        by_length: &Walked,
        header: &RawFree,
    ) {
        let length = self.fs.superblock.geometry.group_len(group);
        let site = FindingSite::of_group(group, Place::new("free space by place"));
        let free = runs(by_place);
        let (mut end, mut sum, mut longest) = (None, 0_u64, 0);
        for (start, count) in free.iter().copied() {
            let after = u64::from(start) + u64::from(count);
            if start == 0 || count == 0 || after > length {
                let (block, count) = (start.into(), count.into());
                self.findings.add(site, Kind::Outside { block, count });
                continue;
            }
            if end.is_some_and(|end| u64::from(start) <= end) {
                self.wrong(
                    site,
                    format!("the extent at block {start} is adjacent to the previous extent, or overlaps it"),
                );
            }
            end = Some(after);
            sum += u64::from(count);
            longest = longest.max(count);
            self.claim(Space::Data(group), (start, count), FREE, 0);
        }
        self.groups[group as usize].free += sum;
        self.groups[group as usize].free_is_known = by_place.whole;
        if by_place.whole && by_length.whole {
            let mut other = runs(by_length);
            other.sort_unstable();
            let mut sorted = free;
            sorted.sort_unstable();
            let site = FindingSite::of_group(group, Place::new("free space by length"));
            let lacks = sorted.iter().filter(|run| other.binary_search(run).is_err()).count();
            let more = other.iter().filter(|run| sorted.binary_search(run).is_err()).count();
            if lacks + more > 0 || sorted.len() != other.len() {
                let what = format!(
                    "{lacks} extents are only in the tree by place, and {more} extents are only in the tree by length"
                );
                self.wrong(site, what);
            }
        }
        if by_place.whole {
            let place = Place::new("header of free space");
            let site = |field| FindingSite::of_group(group, place.field(field));
            self.findings.expect(site("agf_freeblks"), header.agf_freeblks.get(), sum);
            self.findings.expect(site("agf_longest"), header.agf_longest.get(), longest);
        }
    }
}
