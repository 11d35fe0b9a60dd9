//! Map changes that the log contains as unfinished intents. These changes are applied when a map is read.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::Result;
use crate::iomap::{Extent, ExtentState};
use crate::units::{FileBlock, FsBlock, InodeNo};

/// A change of a file's map: a range of the file gets other blocks, or becomes a hole.
#[derive(Clone, Copy, Debug)]
pub(super) struct MapChange {
    pub(super) first: FileBlock,
    pub(super) len: u32,
    /// Whether the new blocks are realtime blocks.
    pub(super) is_realtime: bool,
    /// The number of the first new block, encoded as in an on-disk extent; `None` for a hole.
    pub(super) to: Option<(u64, ExtentState)>,
}

/// An exchange of the blocks of two file ranges.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    pub(super) sides: [Side; 2],
    /// The number of blocks in each range.
    pub(super) len: u64,
    /// Whether the exchange is limited to the written extents of the first file.
    pub(super) only_written: bool,
    /// Whether the files also exchange their sizes.
    pub(super) sizes: bool,
}

/// One of the two files of an exchange: its inode, and the first block of the exchanged range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    pub(super) inode: InodeNo,
    pub(super) generation: u32,
    pub(super) first: FileBlock,
}

/// The map changes of each inode, in log order. If an inode has an exchange, the exchange is applied after the inode's other changes, and
/// does not overlap them.
#[derive(Debug, Default)]
pub(super) struct MapChanges {
    changes: BTreeMap<InodeNo, Vec<MapChange>>,
    exchanges: BTreeMap<InodeNo, Exchange>,
}

impl MapChanges {
    pub(super) fn add(&mut self, inode: InodeNo, change: MapChange) {
        self.changes.entry(inode).or_default().push(change);
    }

    /// Adds an exchange. Returns false if one of the inodes already has an exchange, or if both inodes are equal. A log with two exchanges
    /// of one inode is invalid, because the kernel locks a file until its exchange ends.
    pub(super) fn exchange(&mut self, exchange: Exchange) -> bool {
        let inodes = exchange.sides.map(|side| side.inode);
        if inodes[0] == inodes[1] || inodes.iter().any(|inode| self.exchanges.contains_key(inode)) {
            return false;
        }
        self.exchanges.extend(inodes.map(|inode| (inode, exchange)));
        true
    }

    /// Whether the log contains changes of an inode's map.
    pub(super) fn has(&self, inode: InodeNo) -> bool {
        self.changes.contains_key(&inode) || self.exchanges.contains_key(&inode)
    }

    /// The exchange of an inode. The side of this inode is first in the result.
    pub(super) fn exchange_of(&self, inode: InodeNo) -> Option<(Exchange, [Side; 2])> {
        let exchange = *self.exchanges.get(&inode)?;
        let [one, other] = exchange.sides;
        Some((exchange, if one.inode == inode { [one, other] } else { [other, one] }))
    }

    /// Applies an inode's changes, except its exchange, to sorted extents. `locate` returns the position of the new blocks of a change.
    pub(super) fn apply(
        &self,
        inode: InodeNo,
        extents: &mut Vec<Extent>,
        locate: impl Fn(&MapChange, u64) -> Result<FsBlock>,
    ) -> Result<()> {
        let Some(changes) = self.changes.get(&inode) else { return Ok(()) };
        // A log can have as many changes as the map has extents. To avoid quadratic time, a change must not process the complete map.
        let mut pieces = Pieces::of(extents);
        for change in changes {
            let to = match change.to {
                Some((number, state)) => Some((locate(change, number)?, state)),
                None => None,
            };
            change.apply(&mut pieces, to);
        }
        *extents = pieces.in_order();
        Ok(())
    }
}

impl MapChange {
    fn apply(&self, pieces: &mut Pieces, to: Option<(FsBlock, ExtentState)>) {
        let end = FileBlock(self.first.0 + u64::from(self.len));
        pieces.cut(&(self.first..end));
        if let Some((start, state)) = to {
            let (first, len) = (self.first, self.len);
            pieces.add(Extent { first, start, len, state });
        }
    }
}

impl Exchange {
    /// Replaces the blocks in the exchanged range of the file `own` by the blocks in the exchanged range of the file `other`. `extents` are
    /// the extents of `own`. `others` are the extents of `other`. `first` are the extents of the exchange's first file.
    pub(super) fn apply(
        &self,
        [own, other]: [Side; 2],
        extents: &mut Vec<Extent>,
        others: &[Extent],
        first: &[Extent],
    ) {
        let range = |from: u64, to: u64, side: Side| {
            FileBlock(side.first.0 + from)..FileBlock(side.first.0 + to)
        };
        let mut pieces = Pieces::of(extents);
        for (from, to) in self.parts(first) {
            let theirs = range(from, to, other);
            pieces.cut(&range(from, to, own));
            let at = others.partition_point(|extent| extent.end() <= theirs.start);
            for extent in others[at..].iter().map_while(|extent| extent.within(&theirs)) {
                let first = FileBlock(own.first.0 + (extent.first.0 - other.first.0));
                pieces.add(Extent { first, ..extent });
            }
        }
        *extents = pieces.in_order();
    }

    /// The start and end of each exchanged part, in blocks from the beginning of the range.
    fn parts(&self, first: &[Extent]) -> Vec<(u64, u64)> {
        if !self.only_written {
            return vec![(0, self.len)];
        }
        let start = self.sides[0].first;
        let whole = start..FileBlock(start.0 + self.len);
        let written = first.iter().filter(|extent| extent.state == ExtentState::Written);
        written
            .filter_map(|extent| extent.within(&whole))
            .map(|extent| (extent.first.0 - start.0, extent.end().0 - start.0))
            .collect()
    }
}

/// The extents that are being changed. The key of an extent is its first file block.
struct Pieces(BTreeMap<FileBlock, Extent>);

impl Pieces {
    fn of(extents: &[Extent]) -> Self {
        Self(extents.iter().map(|extent| (extent.first, *extent)).collect())
    }

    fn add(&mut self, extent: Extent) {
        self.0.insert(extent.first, extent);
    }

    /// Makes a range of the file a hole.
    fn cut(&mut self, range: &Range<FileBlock>) {
        let behind = range.end..FileBlock(u64::MAX);
        // An extent that begins before the range can extend into the range or past the end of the range.
        if let Some((_, extent)) = self.0.range_mut(..range.start).next_back() {
            let whole = *extent;
            if let Some(kept) = whole.within(&(FileBlock(0)..range.start)) {
                *extent = kept;
            }
            whole.within(&behind).into_iter().for_each(|rest| self.add(rest));
        }
        while let Some((first, extent)) = self.0.range(range.clone()).next() {
            let (first, rest) = (*first, extent.within(&behind));
            self.0.remove(&first);
            rest.into_iter().for_each(|rest| self.add(rest));
        }
    }

    fn in_order(self) -> Vec<Extent> {
        self.0.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(first: u64, start: u64, len: u32) -> Extent {
        let (first, start) = (FileBlock(first), FsBlock(start));
        Extent { first, start, len, state: ExtentState::Written }
    }

    #[test]
    fn a_range_gets_other_blocks() {
        let mut extents = vec![extent(0, 100, 10), extent(20, 200, 10)];
        let mut make = |first: u64, len: u32, to: Option<u64>| {
            let to = to.map(|start| (start, ExtentState::Written));
            let mut changes = MapChanges::default();
            changes.add(
                InodeNo(1),
                MapChange { first: FileBlock(first), len, is_realtime: false, to },
            );
            changes.apply(InodeNo(1), &mut extents, |_, start| Ok(FsBlock(start))).unwrap();
            extents.clone()
        };
        assert_eq!(make(5, 20, None), [extent(0, 100, 5), extent(25, 205, 5)]);
        let made = make(5, 2, Some(300));
        assert_eq!(made, [extent(0, 100, 5), extent(5, 300, 2), extent(25, 205, 5)]);
        // Three more changes follow. They replace a part of one extent, several extents, and all extents.
        let made = make(1, 2, Some(400));
        let front = [extent(0, 100, 1), extent(1, 400, 2), extent(3, 103, 2), extent(5, 300, 2)];
        assert_eq!(made, [&front[..], &[extent(25, 205, 5)]].concat());
        assert_eq!(
            make(2, 24, None),
            [&front[..1], &[extent(1, 400, 1), extent(26, 206, 4)]].concat()
        );
        assert_eq!(make(0, 100, Some(7)), [extent(0, 7, 100)]);
    }

    #[test]
    fn two_files_exchange_a_range() {
        let (one, other) = (vec![extent(0, 100, 10)], vec![extent(50, 200, 4), extent(56, 300, 4)]);
        let side =
            |inode, first| Side { inode: InodeNo(inode), generation: 0, first: FileBlock(first) };
        let sides = [side(1, 2), side(2, 51)];
        let exchange = Exchange { sides, len: 6, only_written: false, sizes: false };
        let mut changed = one.clone();
        exchange.apply(sides, &mut changed, &other, &one);
        let expected = [extent(0, 100, 2), extent(2, 201, 3), extent(7, 300, 1), extent(8, 108, 2)];
        assert_eq!(changed, expected);
        let mut changed = other.clone();
        exchange.apply([sides[1], sides[0]], &mut changed, &one, &one);
        assert_eq!(changed, [extent(50, 200, 1), extent(51, 102, 6), extent(57, 301, 3)]);
        // With `only_written`, a range that is a hole in the first file is not exchanged.
        let exchange = Exchange { only_written: true, ..exchange };
        let holes = [extent(0, 100, 4)];
        let mut changed = other.clone();
        exchange.apply([sides[1], sides[0]], &mut changed, &holes, &holes);
        assert_eq!(
            changed,
            [extent(50, 200, 1), extent(51, 102, 2), extent(53, 203, 1), extent(56, 300, 4)]
        );
    }
}
