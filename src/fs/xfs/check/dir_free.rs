//! Checks the free-space index of a large directory. The blocks of this index record the free space of each block of entries.

use super::super::disk::dir::{FREE, FREE_HEADER, FREE_HEADER_V5, FREE_V5, NO_BLOCK};
use super::super::header::{Header, array};
use super::Checker;
use super::directories::Dir;
use crate::fs::check::Kind;

impl Checker<'_> {
    /// Compares the blocks of the free-space index with the blocks of entries. The index begins at block `start` of the file.
    pub(super) fn check_rooms(&mut self, dir: &Dir<'_>, start: u64) {
        let geometry = self.fs.superblock.geometry;
        let log = geometry.dir_block_log;
        let header = if self.fs.superblock.is_v5() { FREE_HEADER_V5 } else { FREE_HEADER };
        let per_block = (geometry.dir_block() - header) / 2;
        let pieces =
            dir.map.pieces.iter().filter(|piece| piece.first + u64::from(piece.len) > start);
        let mut seen = 0;
        for piece in pieces {
            let end = piece.first + u64::from(piece.len);
            let mut first = piece.first.max(start).next_multiple_of(1 << log);
            while first < end {
                let number = (first - start) >> log;
                self.check_rooms_block(dir, first, number, per_block);
                seen = seen.max(number + 1);
                first += 1 << log;
            }
        }
        // The index must record all blocks of entries. Linux finds no free space in blocks that the index does not record.
        let covered = (seen as usize).saturating_mul(per_block);
        if dir.whole && dir.bests.len() > covered {
            let place = dir.found.part("directory free space");
            self.wrong(
                place,
                format!(
                    "the index does not record the free space of block {covered} and later blocks"
                ),
            );
        }
    }

    fn check_rooms_block(&mut self, dir: &Dir<'_>, first: u64, number: u64, per_block: usize) {
        let place = dir.found.part("directory free space");
        let is_v5 = self.fs.superblock.is_v5();
        let Some(blocks) = dir.map.run(first, 1 << self.fs.superblock.geometry.dir_block_log)
        else {
            return;
        };
        let place = place.block(blocks[0]);
        let Some(content) = self.read(place, &blocks) else { return };
        let bytes = &content[..];
        let word = |at: usize| u32::from_be_bytes(array(bytes, at));
        let (magic, header) = if is_v5 { (FREE_V5, FREE_HEADER_V5) } else { (FREE, FREE_HEADER) };
        if word(0) != magic {
            let what = format!("{:#010x}", word(0));
            return self.findings.add(place.field("magic"), Kind::Damaged { what });
        }
        let owner = (dir.found.number, place);
        self.fs.check_seal(&mut self.findings, bytes, Header::DIR_DATA, &blocks, owner);
        let at = if is_v5 { 48 } else { 4 };
        let (from, valid, used) = (word(at), word(at + 4) as usize, word(at + 8));
        let expected = number.saturating_mul(per_block as u64);
        self.findings.expect(place.field("firstdb"), from, expected);
        if valid > per_block {
            let what = format!("{valid} of {per_block}");
            return self.findings.add(place.field("nvalid"), Kind::Damaged { what });
        }
        let rooms: Vec<u16> =
            (0..valid).map(|index| u16::from_be_bytes(array(bytes, header + index * 2))).collect();
        let count = rooms.iter().filter(|room| **room != NO_BLOCK).count();
        self.findings.expect(place.field("nused"), used, count as u64);
        if !dir.whole {
            return;
        }
        let start = usize::try_from(expected).unwrap_or(usize::MAX);
        let of =
            |index: usize| dir.bests.get(start.saturating_add(index)).copied().unwrap_or(NO_BLOCK);
        let wrong = (0..valid.max(dir.bests.len().saturating_sub(start).min(per_block)))
            .find(|index| rooms.get(*index).copied().unwrap_or(NO_BLOCK) != of(*index));
        if let Some(index) = wrong {
            let stored = rooms.get(index).copied().unwrap_or(NO_BLOCK);
            let what = format!(
                "block {} has {stored} free bytes on record, but should have {}",
                start + index,
                of(index)
            );
            self.wrong(place.field("bests"), what);
        }
    }
}
