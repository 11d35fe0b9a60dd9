//! Checks the reverse-mapping tree. A record contains a run of blocks, the owner, and the offset in the file.

use zerocopy::FromBytes;

use super::super::disk::tree::{RawOwner, owner_bits};
use super::Checker;
use super::owners::{FREE, Owned, Space};
use super::tree::{self, Key, Walked, be32, be64};
use crate::fs::check::Kind;

const NAMES: [&str; 2] = [tree::OWNERS.name, tree::REALTIME_OWNERS.name];

/// The sort key of records. The key ignores the flag of unwritten extents.
pub(super) fn key(start: u64, owner: u64, offset: u64) -> Key {
    [start, owner, offset & !owner_bits::UNWRITTEN]
}

/// The key of the last block of a record.
pub(super) fn high_key(raw: &[u8]) -> Key {
    let (start, owner, offset) = (be32(raw, 0), be64(raw, 8), be64(raw, 16));
    let more = be32(raw, 4).saturating_sub(1);
    let has_offset = owner >> 63 == 0 && offset & owner_bits::MAP_BLOCK == 0;
    let offset = if has_offset { offset.wrapping_add(more) } else { offset };
    key(start + more, owner, offset)
}

/// Sorts runs and merges adjacent runs of the same owner with adjacent offsets.
fn joined(runs: &[Owned]) -> Vec<Owned> {
    let mut sorted: Vec<_> = runs.iter().filter(|run| run.owner != FREE).copied().collect();
    let bits = |run: &Owned| run.offset & !owner_bits::OFFSET;
    sorted.sort_unstable_by_key(|run| (run.owner, bits(run), run.start, run.offset));
    let mut joined: Vec<Owned> = Vec::with_capacity(sorted.len());
    // Runs of the same owner can overlap. Therefore a run can continue any run in `open`, not only the last run.
    let mut open: Vec<usize> = Vec::new();
    for run in sorted {
        open.retain(|at| {
            let before = &joined[*at];
            before.owner == run.owner
                && bits(before) == bits(&run)
                && before.end() >= run.start.into()
        });
        let continued = open.iter().copied().find(|at| {
            let before = &joined[*at];
            let expected =
                if run.has_offset() { before.offset + u64::from(before.len) } else { run.offset };
            before.end() == u64::from(run.start)
                && expected == run.offset
                && before.len.checked_add(run.len).is_some()
        });
        match continued {
            Some(at) => joined[at].len += run.len,
            None => {
                open.push(joined.len());
                joined.push(run);
            }
        }
    }
    joined.sort_unstable();
    joined
}

impl Checker<'_> {
    /// Decodes the records of the tree that are within the group.
    pub(super) fn recorded_owners(&mut self, space: Space, found: &Walked) -> Vec<Owned> {
        let (length, mut site) = (self.group_len(space), space.site(NAMES));
        site.place = site.place.field("record");
        let raws = <[RawOwner]>::ref_from_bytes(&found.records).unwrap_or_default();
        let mut records = Vec::with_capacity(raws.len());
        for raw in raws {
            let run = Owned {
                start: raw.rm_startblock.get(),
                len: raw.rm_blockcount.get(),
                owner: raw.rm_owner.get(),
                offset: raw.rm_offset.get(),
            };
            let bits = !owner_bits::OFFSET & !owner_bits::ATTRIBUTES & !owner_bits::UNWRITTEN;
            let odd = if run.owner >> 63 == 1 {
                run.offset != 0
            } else {
                run.offset & owner_bits::UNUSED != 0
            } || run.offset & owner_bits::MAP_BLOCK != 0
                && run.offset & bits & !owner_bits::MAP_BLOCK != 0;
            if run.len == 0 || run.end() > length {
                let what = Kind::Outside { block: run.start.into(), count: run.len.into() };
                self.findings.add(site, what);
            } else if run.owner == FREE || odd {
                let what = format!(
                    "the record of block {} has the invalid owner {:#x} or offset {:#x}",
                    run.start, run.owner, run.offset
                );
                self.wrong(site, what);
            } else {
                records.push(run);
            }
        }
        records
    }

    /// Compares the tree's records with the owners that the check found.
    pub(super) fn check_recorded_owners(&mut self, space: Space, owned: &[Owned]) {
        let Some(recorded) = self.group(space).recorded.take() else { return };
        let (found, recorded) = (joined(owned), joined(&recorded));
        let site = space.site(NAMES);
        let told = |run: &Owned| {
            let (start, owner, offset) = (run.start, run.owner as i64, run.offset);
            format!("{} blocks from block {start} on, of owner {owner} at {offset:#x}", run.len)
        };
        self.compare_records(site, (&recorded, &found), told, Self::add_of_space);
    }
}
