//! One block of tags in memory, and the writes in flight to its sectors.
//!
//! A write does not wait for another write to the same sector, because possibly no thread polls the queue of the other write. During a
//! write, a sector may contain its old data or the data of any write in flight. The tuples of all these data are kept in memory. If writes
//! overlap, the writer that completes last writes the sector again. At that time, no other write to the sector is in flight, so data and
//! tag come from one write.

use std::ops::Range;

use smallvec::SmallVec;

use super::disk::BLOCK;
use super::tagging::{LONGEST, Packed, load};
use crate::bio::Buffer;
use crate::error::Result;
use crate::protection::TupleKind;

/// The largest number of tuples in a block.
const MOST: usize = BLOCK / 8;

/// The tuples that may match the current content of a sector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Candidates {
    pub(super) tuples: SmallVec<[Packed; 2]>,
    /// Whether a write to the sector is in flight.
    pub(super) busy: bool,
}

/// A sector with several overlapping writes. The entry exists until the last of these writes ends.
#[derive(Debug)]
struct Contested {
    index: usize,
    writers: u32,
    /// The number of times that a write to this sector began or ended while other writes to the sector were in flight.
    turns: u32,
    tuples: SmallVec<[Packed; 4]>,
}

/// The outcome of a write to a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Written,
    /// The data may have been written in full, in part, or not at all.
    Unknown,
    /// No data were written.
    Nothing,
}

#[derive(Debug)]
pub(super) struct TagBlock {
    kind: TupleKind,
    /// The number of the block whose tags are in this memory.
    pub(super) block: Option<u64>,
    pub(super) loading: bool,
    /// Whether the block is being written to the device.
    pub(super) writing: bool,
    pub(super) dirty: bool,
    /// The number of changes of the block in memory.
    pub(super) changes: u64,
    /// Whether the block has been used since the last search for a block to evict.
    pub(super) used: bool,
    pub(super) tuples: Buffer,
    /// The tuples of the writes in flight. A tuple is valid if its sector's bit in `busy` is set. If several writes to a sector are in
    /// flight, the tuple belongs to the newest write.
    pending: Option<Box<[u8; BLOCK]>>,
    busy: [u64; MOST / 64],
    /// The number of writes in flight. The block stays in memory until all these writes end.
    pub(super) pins: u32,
    contested: Vec<Contested>,
}

impl TagBlock {
    pub(super) fn new(kind: TupleKind) -> Result<Self> {
        Ok(Self {
            kind,
            block: None,
            loading: false,
            writing: false,
            dirty: false,
            changes: 0,
            used: false,
            tuples: Buffer::aligned(BLOCK)?,
            pending: None,
            busy: [0; MOST / 64],
            pins: 0,
            contested: Vec::new(),
        })
    }

    /// Whether this block can be evicted from memory. A dirty block must first be written to the device.
    pub(super) fn is_free(&self) -> bool {
        self.pins == 0 && !self.loading && !self.writing
    }

    fn bytes(&self, range: Range<usize>) -> Range<usize> {
        let size = self.kind.bytes();
        range.start * size..range.end * size
    }

    #[inline]
    pub(super) fn tuple(&self, index: usize) -> Packed {
        load(self.kind, &self.tuples[index * self.kind.bytes()..])
    }

    pub(super) fn set(&mut self, index: usize, tuple: Packed) {
        let bytes = self.bytes(index..index + 1);
        let tuple = &tuple[..bytes.len()];
        self.tuples[bytes].copy_from_slice(tuple);
        self.changed();
    }

    /// The tuples of a range of sectors, in order.
    #[inline]
    pub(super) fn tuples(&self, range: Range<usize>) -> &[u8] {
        &self.tuples[self.bytes(range)]
    }

    fn pending(&self, index: usize) -> Packed {
        let bytes = self.bytes(index..index + 1);
        self.pending.as_ref().map_or([0; LONGEST], |pending| load(self.kind, &pending[bytes]))
    }

    #[inline]
    pub(super) fn is_busy(&self, index: usize) -> bool {
        self.busy[index / 64] >> (index % 64) & 1 != 0
    }

    pub(super) fn any_busy(&self, range: Range<usize>) -> bool {
        words(range).any(|(word, mask)| self.busy[word] & mask != 0)
    }

    fn set_busy(&mut self, range: Range<usize>, busy: bool) {
        for (word, mask) in words(range) {
            let word = &mut self.busy[word];
            *word = if busy { *word | mask } else { *word & !mask };
        }
    }

    /// Returns the tuples that may match the current content of a sector.
    pub(super) fn candidates(&self, index: usize) -> Candidates {
        let mut tuples = SmallVec::new();
        tuples.push(self.tuple(index));
        let busy = self.is_busy(index);
        if busy {
            tuples.push(self.pending(index));
            let contested = self.contested.iter().filter(|contested| contested.index == index);
            tuples.extend(contested.flat_map(|contested| contested.tuples.iter().copied()));
        }
        Candidates { tuples, busy }
    }

    /// Begins a write with these tuples.
    #[inline]
    pub(super) fn claim(&mut self, range: Range<usize>, tuples: &[u8]) {
        if self.any_busy(range.clone()) {
            self.contest(range.clone(), tuples);
        }
        let bytes = self.bytes(range.clone());
        let pending = self.pending.get_or_insert_with(|| Box::new([0; BLOCK]));
        pending[bytes].copy_from_slice(tuples);
        self.set_busy(range, true);
        self.pins += 1;
    }

    #[cold]
    fn contest(&mut self, range: Range<usize>, tuples: &[u8]) {
        for (index, tuple) in range.zip(tuples.chunks_exact(self.kind.bytes())) {
            if !self.is_busy(index) {
                continue;
            }
            let (tuple, before) = (load(self.kind, tuple), self.pending(index));
            let found = self.contested.iter_mut().find(|contested| contested.index == index);
            if let Some(contested) = found {
                contested.writers += 1;
                contested.turns += 1;
                contested.tuples.push(tuple);
            } else {
                let tuples = [before, tuple].into_iter().collect();
                self.contested.push(Contested { index, writers: 2, turns: 1, tuples });
            }
        }
    }

    /// Ends a write. Returns the indexes of the sectors for which the writer must call [`resolve`](Self::resolve).
    #[inline]
    pub(super) fn end(&mut self, range: Range<usize>, outcome: Outcome) -> SmallVec<[usize; 2]> {
        if self.contested.is_empty() && outcome != Outcome::Unknown {
            if outcome == Outcome::Written {
                self.accept(range.clone());
            }
            self.set_busy(range, false);
            self.pins -= 1;
            return SmallVec::new();
        }
        let left = self.end_each(range, outcome);
        if left.is_empty() {
            self.pins -= 1;
        }
        left
    }

    fn accept(&mut self, range: Range<usize>) {
        let bytes = self.bytes(range);
        if let Some(pending) = &self.pending {
            self.tuples[bytes.clone()].copy_from_slice(&pending[bytes]);
            self.changed();
        }
    }

    fn changed(&mut self) {
        self.dirty = true;
        self.changes += 1;
    }

    #[cold]
    fn end_each(&mut self, range: Range<usize>, outcome: Outcome) -> SmallVec<[usize; 2]> {
        let mut left = SmallVec::new();
        for index in range {
            match self.contested.iter_mut().find(|contested| contested.index == index) {
                Some(contested) if contested.writers > 1 => {
                    contested.writers -= 1;
                    contested.turns += 1;
                }
                Some(_) => left.push(index),
                None if outcome == Outcome::Unknown => left.push(index),
                None => {
                    if outcome == Outcome::Written {
                        self.accept(index..index + 1);
                    }
                    self.set_busy(index..index + 1, false);
                }
            }
        }
        left
    }

    /// Returns the number of times that a write to this sector began or ended while other writes to the sector were in flight. The last
    /// writer calls this function before it reads or rewrites the sector.
    pub(super) fn turns(&self, index: usize) -> u32 {
        let found = self.contested.iter().find(|contested| contested.index == index);
        found.map_or(0, |contested| contested.turns)
    }

    /// Sets the tuple that the last writer has computed for the sector. `turns` is the result of an earlier call of [`turns`](Self::turns).
    /// If another write to the sector has begun or ended since that call, the tuple is not set. If `tuple` is `None`, the content is
    /// unknown, and the tag stays unchanged. Returns false if another write has both begun and ended since that call: it is then unknown
    /// which of the two writers wrote last.
    #[must_use]
    pub(super) fn resolve(&mut self, index: usize, tuple: Option<Packed>, turns: u32) -> bool {
        let found = self.contested.iter().position(|contested| contested.index == index);
        if let Some(at) = found {
            let contested = &mut self.contested[at];
            if contested.turns != turns {
                contested.tuples.extend(tuple);
            }
            if contested.writers > 1 {
                contested.writers -= 1;
                return true;
            }
            if contested.turns != turns {
                return false;
            }
            self.contested.swap_remove(at);
        }
        if let Some(tuple) = tuple {
            self.set(index, tuple);
        }
        self.set_busy(index..index + 1, false);
        true
    }
}

/// Splits a range of a bit set into words. Returns the index of each word, with a mask of the range's bits in this word.
#[inline]
fn words(range: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    (range.start / 64..range.end.div_ceil(64)).map(move |word| {
        let (from, to) = (word * 64, word * 64 + 64);
        let low = u64::MAX << range.start.saturating_sub(from);
        let high = u64::MAX >> to.saturating_sub(range.end);
        (word, low & high)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(fill: u8) -> Packed {
        let mut tuple = [0; LONGEST];
        tuple[..8].fill(fill);
        tuple
    }

    fn slot() -> TagBlock {
        TagBlock::new(TupleKind::T10).unwrap()
    }

    /// After a claim of a range, exactly the sectors of this range are busy.
    #[test]
    fn a_range_is_busy_where_it_was_claimed() {
        for start in [0, 1, 62, 63, 64, 65, 127, 300] {
            for count in [1, 2, 63, 64, 65, 128, 212] {
                let (mut slot, range) = (slot(), start..start + count);
                slot.claim(range.clone(), &vec![1; count * 8]);
                for index in 0..MOST {
                    assert_eq!(slot.is_busy(index), range.contains(&index), "{index} of {range:?}");
                    assert_eq!(slot.any_busy(index..index + 1), range.contains(&index));
                }
                assert!(slot.end(range.clone(), Outcome::Written).is_empty());
                assert!(!slot.any_busy(0..MOST) && slot.is_free() && slot.dirty);
                assert!(
                    (0..MOST)
                        .all(|index| slot.tuple(index) == tuple(range.contains(&index).into()))
                );
            }
        }
    }

    /// If several writes to a sector are in flight, the sector may contain its old data or the data of any of these writes. The last writer
    /// resolves the sector.
    #[test]
    fn of_writers_that_met_the_last_one_resolves() {
        let mut slot = slot();
        for fill in 1..=3 {
            slot.claim(7..8, &[fill; 8]);
        }
        let expected: Vec<_> = [0, 1, 2, 3].map(tuple).into();
        let mut seen = slot.candidates(7).tuples.to_vec();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, expected);
        assert!(slot.end(7..8, Outcome::Written).is_empty());
        assert!(slot.end(7..8, Outcome::Written).is_empty());
        assert_eq!(slot.end(7..8, Outcome::Written)[..], [7]);
        // A new writer joins before the last writer has resolved the sector, and must then resolve it.
        let turns = slot.turns(7);
        slot.claim(7..8, &[4; 8]);
        assert!(slot.resolve(7, Some(tuple(3)), turns));
        slot.pins -= 1;
        assert!(slot.is_busy(7) && slot.candidates(7).tuples.contains(&tuple(3)));
        assert_eq!(slot.end(7..8, Outcome::Written)[..], [7]);
        // Another write begins and ends before the last writer resolves the sector. The sector may contain the data of either write.
        let turns = slot.turns(7);
        slot.claim(7..8, &[5; 8]);
        assert!(slot.end(7..8, Outcome::Written).is_empty());
        assert!(!slot.resolve(7, Some(tuple(4)), turns) && slot.is_busy(7));
        // Another write begins before the last writer calls `turns`, and ends after this call. The sector may contain the data of either
        // write.
        slot.claim(7..8, &[6; 8]);
        let turns = slot.turns(7);
        assert!(slot.end(7..8, Outcome::Written).is_empty());
        assert!(!slot.resolve(7, Some(tuple(4)), turns) && slot.is_busy(7));
        let turns = slot.turns(7);
        assert!(slot.resolve(7, Some(tuple(4)), turns));
        slot.pins -= 1;
        assert_eq!((slot.tuple(7), slot.is_busy(7), slot.is_free()), (tuple(4), false, true));
    }

    /// After a failed write, the content of the sectors is unknown, so they must be read. After a write that wrote nothing, the tags do not
    /// change.
    #[test]
    fn the_tags_of_a_writer_depend_on_its_end() {
        let mut slot = slot();
        slot.claim(0..3, &[1; 24]);
        assert_eq!(slot.end(0..3, Outcome::Unknown)[..], [0, 1, 2]);
        for index in 0..3 {
            assert!(slot.is_busy(index));
            assert!(slot.resolve(index, (index < 2).then(|| tuple(9)), 0));
        }
        slot.pins -= 1;
        assert_eq!([0, 1, 2].map(|index| slot.tuple(index)), [9, 9, 0].map(tuple));
        slot.claim(0..3, &[2; 24]);
        assert!(slot.end(0..3, Outcome::Nothing).is_empty());
        assert_eq!([0, 1, 2].map(|index| slot.tuple(index)), [9, 9, 0].map(tuple));
        assert!(slot.is_free() && !slot.any_busy(0..3));
    }
}
