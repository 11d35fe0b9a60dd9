//! Checks the free list of a group: blocks that the group reserves for its free-space trees.

use std::collections::HashSet;

use zerocopy::FromBytes;

use super::super::disk::group::{LIST_CRC, LIST_MAGIC, LIST_SECTOR, RawFree, RawList};
use super::super::disk::tree::owner;
use super::super::header::array;
use super::Checker;
use super::owners::Space;
use crate::error::Place;
use crate::fs::check::{FindingSite, Kind};

impl Checker<'_> {
    /// Checks the part of the list that the header marks as used. Returns the number of blocks in this part.
    pub(super) fn check_list(&mut self, group: u32, raw: &RawFree) -> u32 {
        let header = FindingSite::of_group(group, Place::new("header of free space"));
        let site = FindingSite::of_group(group, Place::new("list of free blocks"));
        let field = |name| FindingSite { place: site.place.field(name), ..site };
        let (bytes, replayed) = match self.sector(group, LIST_SECTOR) {
            Ok(read) => read,
            Err(error) => {
                self.findings.error(site, &error);
                return 0;
            }
        };
        let is_v5 = self.fs.superblock.is_v5();
        let start = if is_v5 { size_of::<RawList>() } else { 0 };
        if is_v5 && let Ok((list, _)) = RawList::ref_from_prefix(&bytes) {
            if list.agfl_magicnum != LIST_MAGIC {
                let what = "the magic number is not XAFL".into();
                self.findings.add(field("agfl_magicnum"), Kind::Damaged { what });
            }
            if !replayed {
                self.fs.check_sum(&mut self.findings, &bytes, LIST_CRC, field("agfl_crc"));
            }
            self.findings.expect(field("agfl_seqno"), list.agfl_seqno.get(), group);
            self.fs.check_uuid(&mut self.findings, list.agfl_uuid, site);
            self.fs.check_age(&mut self.findings, list.agfl_lsn.get(), site);
        }
        let size = ((bytes.len() - start) / 4) as u32;
        let [first, last, count] =
            [&raw.agf_flfirst, &raw.agf_fllast, &raw.agf_flcount].map(|field| field.get());
        if first >= size || last >= size || count > size {
            let what = format!(
                "a list with space for {size} entries cannot have {count} entries, from position {first} to position {last}"
            );
            let place = header.place.field("agf_flfirst");
            self.findings.add(FindingSite { place, ..header }, Kind::Damaged { what });
            return 0;
        }
        let held = (last + size - first) % size + 1;
        // The index of the last entry is one less than the index of the first entry in two cases: the list is empty, or the list is full.
        if count != held && !(count == 0 && held == size) {
            let place = header.place.field("agf_flcount");
            self.findings.expect(FindingSite { place, ..header }, count, held);
        }
        let mut seen = HashSet::new();
        for index in 0..count {
            let at = start + ((first + index) % size) as usize * 4;
            let block = u32::from_be_bytes(array(&bytes, at));
            if block == 0 || u64::from(block) >= self.fs.superblock.geometry.group_len(group) {
                self.findings
                    .add(field("agfl_bno"), Kind::Outside { block: block.into(), count: 1 });
            } else if seen.insert(block) {
                self.claim(Space::Data(group), (block, 1), owner::GROUP, 0);
            } else {
                self.findings
                    .add(field("agfl_bno"), Kind::ClaimedTwice { block: block.into(), count: 1 });
            }
        }
        count
    }
}
