//! Checks blocks of directory entries. Entries and unused runs fill a block from its header to its end, and the header lists the largest
//! unused runs.

use zerocopy::FromBytes;

use super::super::disk::dir::{
    ALIGN, BLOCK, BLOCK_V5, DATA, DATA_HEADER, DATA_HEADER_V5, DATA_V5, FREE_TAG, NO_BLOCK,
    RawBlockTail, RawHashEntry, RawUnused, STALE, UNUSED_AT, UNUSED_AT_V5,
};
use super::super::header::{Header, array};
use super::Checker;
use super::directories::{Dir, Entry};
use crate::error::Place;
use crate::fs::check::Kind;
use crate::fs::xfs::Xfs;
use crate::sorting::Sorting;
use crate::units::InodeNo;

impl Xfs {
    /// The length of the header of a block of entries, in bytes.
    pub(super) fn dir_header(&self) -> usize {
        if self.superblock.is_v5() { DATA_HEADER_V5 } else { DATA_HEADER }
    }
}

/// The entries of a block.
struct Area<'a> {
    bytes: &'a [u8],
    /// The block's position in the directory, in units of 8 bytes.
    base: u32,
    place: Place,
}

impl Checker<'_> {
    /// Checks all blocks of entries. `is_only` is true if the directory's only block also contains the index.
    pub(super) fn check_entry_blocks(&mut self, dir: &mut Dir<'_>, blocks: u64, is_only: bool) {
        let geometry = self.fs.superblock.geometry;
        let log = geometry.dir_block_log;
        let mut pieces = dir.map.pieces.iter().peekable();
        let mut number = 0;
        while number < blocks {
            let first = number << log;
            // A hole is skipped in one step, because it may be long.
            while pieces.next_if(|piece| piece.first + u64::from(piece.len) <= first).is_some() {}
            let next = pieces.peek().map_or(blocks, |piece| piece.first >> log);
            if next > number {
                // Only the first 32 GiB of the file contain entries. This limits the memory for `bests`, which has one element for each
                // block.
                let until = next.min(blocks);
                dir.bests.resize(until as usize, NO_BLOCK);
                number = until;
                continue;
            }
            let best = self.check_entry_block(dir, number, is_only);
            dir.bests.push(best.unwrap_or(NO_BLOCK));
            dir.whole &= best.is_some();
            number += 1;
        }
        if is_only && blocks != 1 {
            let what = format!("the directory has {blocks} blocks of entries, but no index");
            self.findings.add(dir.found.part("directory"), Kind::Damaged { what });
        }
    }

    /// Checks a block of entries. Returns its longest unused run, or `None` if the block cannot be read.
    fn check_entry_block(&mut self, dir: &mut Dir<'_>, number: u64, is_only: bool) -> Option<u16> {
        let geometry = self.fs.superblock.geometry;
        let place = dir.found.part("directory block");
        let first = number << geometry.dir_block_log;
        let Some(blocks) = dir.map.run(first, 1 << geometry.dir_block_log) else {
            let what = format!("block {number} of the directory has a hole");
            self.findings.add(place, Kind::Damaged { what });
            return None;
        };
        let place = place.block(blocks[0]);
        let content = self.read(place, &blocks)?;
        let bytes = &content[..];
        let is_v5 = self.fs.superblock.is_v5();
        let magic = u32::from_be_bytes(array(bytes, 0));
        let expected = match (is_only, is_v5) {
            (true, false) => BLOCK,
            (true, true) => BLOCK_V5,
            (false, false) => DATA,
            (false, true) => DATA_V5,
        };
        if magic != expected {
            let what = format!("{magic:#010x}");
            self.findings.add(place.field("magic"), Kind::Damaged { what });
            return None;
        }
        let owner = (dir.found.number, place);
        self.fs.check_seal(&mut self.findings, bytes, Header::DIR_DATA, &blocks, owner);
        let start = self.fs.dir_header();
        let base = (number * (geometry.dir_block() / ALIGN) as u64) as u32;
        let mut end = bytes.len();
        let mut index: &[RawHashEntry] = &[];
        if is_only {
            let tail = RawBlockTail::ref_from_suffix(&bytes[start..]).ok();
            let found = tail.and_then(|(before, tail)| {
                let count = tail.count.get() as usize;
                let (_, index) =
                    <[RawHashEntry]>::ref_from_suffix_with_elems(before, count).ok()?;
                Some((tail, index))
            });
            let Some((tail, entries)) = found else {
                let what = "the index exceeds the block".into();
                self.findings.add(place.field("count"), Kind::Damaged { what });
                return None;
            };
            end -= size_of::<RawBlockTail>() + size_of_val(entries);
            let stale = entries.iter().filter(|entry| entry.address.get() == STALE).count();
            self.findings.expect(place.field("stale"), tail.stale.get(), stale as u64);
            index = entries;
        }
        let area = Area { bytes: &bytes[..end], base, place };
        let runs = self.check_area(dir, &area, start);
        let best = self.check_unused(bytes, &runs, place);
        if is_only {
            let mut entries = Vec::new();
            self.take_index(index, &mut entries, &mut 0, place);
            self.compare_index(dir, entries, place);
        }
        Some(best)
    }

    /// Checks the entries of a block. Returns the offset and length of each unused run.
    fn check_area(&mut self, dir: &mut Dir<'_>, area: &Area<'_>, start: usize) -> Vec<(u16, u16)> {
        let (bytes, place) = (area.bytes, area.place);
        let (mut at, mut runs, mut was_unused) = (start, Vec::new(), false);
        while at < bytes.len() {
            let rest = &bytes[at..];
            if u16::from_be_bytes(array(rest, 0)) == FREE_TAG {
                let len = usize::from(u16::from_be_bytes(array(rest, 2)));
                if len < ALIGN || !len.is_multiple_of(ALIGN) || len > rest.len() {
                    let what = format!(
                        "the length of {len} unused bytes at byte {at} of the block is not valid"
                    );
                    self.findings.add(place.field("length"), Kind::Damaged { what });
                    dir.whole = false;
                    break;
                }
                let tag = u16::from_be_bytes(array(rest, len - 2));
                self.findings.expect(place.field("tag"), tag, at as u64);
                if was_unused {
                    self.wrong(
                        place,
                        format!("two runs of unused bytes are adjacent at byte {at} of the block"),
                    );
                }
                was_unused = true;
                runs.push((at as u16, len as u16));
                at += len;
                continue;
            }
            was_unused = false;
            let len = usize::from(rest.get(8).copied().unwrap_or(0));
            let whole = self.fs.entry_len(len);
            if len == 0 || whole > rest.len() {
                let what = format!(
                    "the name of {len} bytes at byte {at} of the block is empty or exceeds the block"
                );
                self.findings.add(place.field("namelen"), Kind::Damaged { what });
                dir.whole = false;
                break;
            }
            let tag = u16::from_be_bytes(array(rest, whole - 2));
            self.findings.expect(place.field("tag"), tag, at as u64);
            let entry = Entry {
                name: &rest[9..9 + len],
                target: InodeNo(u64::from_be_bytes(array(rest, 0))),
                file_type: self.fs.superblock.has_ftype.then(|| rest[9 + len]),
                address: area.base.wrapping_add((at / ALIGN) as u32),
            };
            self.check_entry(dir, &entry, place);
            at += whole;
        }
        runs
    }

    /// Checks that the header lists the three longest unused runs, longest first. Returns the length of the longest run.
    fn check_unused(&mut self, bytes: &[u8], runs: &[(u16, u16)], place: Place) -> u16 {
        let at = if self.fs.superblock.is_v5() { UNUSED_AT_V5 } else { UNUSED_AT };
        let stored = <[RawUnused; 3]>::ref_from_prefix(&bytes[at..]);
        let Ok((stored, _)) = stored else { return 0 };
        let mut lengths: Vec<u16> = runs.iter().map(|(_, len)| *len).collect();
        lengths.order_by(|a, b| b.cmp(a));
        lengths.resize(3, 0);
        let place = place.field("bestfree");
        for (slot, expected) in stored.iter().zip(&lengths) {
            let (offset, length) = (slot.offset.get(), slot.length.get());
            // If several runs have the same length, the header may list any of them.
            let exists = length == 0 && offset == 0 || runs.contains(&(offset, length));
            if length != *expected || !exists {
                let what = format!(
                    "the longest unused run is {length} bytes from byte {offset} on, but should have {expected} bytes"
                );
                self.wrong(place, what);
            }
        }
        lengths[0]
    }
}
