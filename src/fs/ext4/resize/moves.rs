//! The blocks that a resize moves. All blocks of a cluster move together. A cluster moves at most once.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::Result;
use crate::fs::ext4::Superblock;
use crate::fs::ext4::mkfs::space::Space;

/// The blocks that files and metadata must leave.
pub(super) struct Evicted {
    /// The first block past the end of the new volume. Files and metadata must leave all blocks from this block on.
    pub(super) from: u64,
    /// The blocks that the backup of the superblock in the new last group will use.
    pub(super) backup: Range<u64>,
}

impl Evicted {
    /// Whether files and metadata must leave any block of a range.
    pub(super) fn meets(&self, blocks: &Range<u64>) -> bool {
        blocks.end > self.from || blocks.start < self.backup.end && self.backup.start < blocks.end
    }
}

/// The old and the new positions of all moved blocks.
pub(super) struct Moves {
    first: u64,
    cluster: u64,
    /// The moved ranges. The key is the old position, and the value is the length and the new position.
    to: BTreeMap<u64, (u64, u64)>,
    /// The moved ranges. The key is the new position, and the value is the length and the old position.
    from: BTreeMap<u64, (u64, u64)>,
    /// The block after the last allocated block. The search for the next allocation begins here.
    goal: u64,
}

impl Moves {
    pub(super) fn new(sb: &Superblock) -> Self {
        Self {
            first: sb.first_data_block.into(),
            cluster: sb.cluster_blocks.into(),
            to: BTreeMap::new(),
            from: BTreeMap::new(),
            goal: 0,
        }
    }

    /// Finds the range of `map` that contains a block. Returns the start of the range, its length, and the position to which the start is
    /// mapped.
    fn holding(map: &BTreeMap<u64, (u64, u64)>, block: u64) -> Option<(u64, u64, u64)> {
        let (start, (len, other)) = map.range(..=block).next_back()?;
        (block < start + len).then_some((*start, *len, *other))
    }

    fn insert(&mut self, old: u64, new: u64, len: u64) {
        self.to.insert(old, (len, new));
        self.from.insert(new, (len, old));
    }

    /// Allocates new positions for the clusters of a range that must move and that have no new position yet.
    pub(super) fn evict(
        &mut self,
        blocks: &Range<u64>,
        evicted: &Evicted,
        space: &mut Space,
    ) -> Result<()> {
        let start = self.first + (blocks.start - self.first) / self.cluster * self.cluster;
        let end = self.first + (blocks.end - self.first).next_multiple_of(self.cluster);
        let mut at = start;
        while at < end {
            if let Some((start, len, _)) = Self::holding(&self.to, at) {
                at = start + len;
                continue;
            }
            let goes = |at: u64| evicted.meets(&(at..at + self.cluster));
            if !goes(at) {
                at += self.cluster;
                continue;
            }
            let limit = self.to.range(at..).next().map_or(end, |(next, _)| (*next).min(end));
            let mut stop = at + self.cluster;
            while stop < limit && goes(stop) {
                stop += self.cluster;
            }
            for run in self.allocate(space, stop - at)? {
                let len = run.end - run.start;
                self.insert(at, run.start, len);
                at += len;
            }
        }
        Ok(())
    }

    /// Moves a range to a contiguous range of free blocks, for structures that must be contiguous.
    pub(super) fn evict_run(&mut self, start: u64, count: u64, space: &mut Space) -> Result<u64> {
        let new = space.take_run(0, count)?;
        self.insert(start, new, count);
        Ok(new)
    }

    fn allocate(&mut self, space: &mut Space, count: u64) -> Result<Vec<Range<u64>>> {
        let runs = space.allocate(self.goal, count)?;
        self.goal = runs.last().map_or(self.goal, |run| run.end);
        Ok(runs)
    }

    /// Allocates a position for a new block, which has no position in the old volume.
    pub(super) fn new_block(&mut self, space: &mut Space) -> Result<u64> {
        Ok(self.allocate(space, 1)?[0].start)
    }

    /// The position of a block in the new volume. A block that does not move has the same position as in the old volume.
    pub(super) fn place(&self, block: u64) -> u64 {
        Self::holding(&self.to, block).map_or(block, |(start, _, new)| new + (block - start))
    }

    /// The positions of a range of blocks in the new volume. There may be several positions, because parts of the range may have moved
    /// separately.
    pub(super) fn places(&self, blocks: Range<u64>) -> Vec<Range<u64>> {
        let mut pieces = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let end = match Self::holding(&self.to, at) {
                Some((start, len, _)) => start + len,
                None => self.to.range(at..).next().map_or(blocks.end, |(next, _)| *next),
            };
            let end = end.min(blocks.end);
            let new = self.place(at);
            pieces.push(new..new + (end - at));
            at = end;
        }
        pieces
    }

    /// The old position of the content that moves to `block`; `None` if no content moves to `block`.
    pub(super) fn source(&self, block: u64) -> Option<u64> {
        Self::holding(&self.from, block).map(|(start, _, old)| old + (block - start))
    }

    /// All moved ranges: the old position, the new position, and the length.
    pub(super) fn all(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.to.iter().map(|(old, (len, new))| (*old, *new, *len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each cluster moves only once, and all pieces of a cluster move together.
    #[test]
    fn a_cluster_moves_as_a_whole_and_once() {
        let mut moves =
            Moves { first: 0, cluster: 4, to: BTreeMap::new(), from: BTreeMap::new(), goal: 0 };
        let mut space = Space::new(0..100, 4);
        space.take(0..4);
        let evicted = Evicted { from: 100, backup: 0..0 };
        moves.evict(&(97..105), &evicted, &mut space).unwrap();
        assert_eq!(moves.place(97), 97);
        assert_eq!(moves.place(101), 5);
        moves.evict(&(102..110), &evicted, &mut space).unwrap();
        assert_eq!(moves.places(98..112), [98..100, 4..12, 12..16]);
        assert_eq!(moves.source(9), Some(105));
        assert_eq!(moves.source(3), None);
    }
}
