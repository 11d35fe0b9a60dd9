//! A whole file's map in memory, immutable, with a lookup whose cost does not grow with the number of extents.

use super::{Iomap, IomapFlags, IomapType};
use crate::units::{BlockSize, DevOffset, FileBlock, FilePos, FsBlock};

/// What stands in the blocks of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentState {
    /// Data.
    Written,
    /// Allocated, never written.
    Unwritten,
    /// Data whose current copy stands in the journal; the extent's start is there.
    Journal,
    /// Data whose current copy is not on the device as it is: [`read_inline`](super::MapFile::read_inline) gives it. The extent's
    /// start is its own place.
    Memory,
}

/// Consecutive blocks of a file that lie consecutively on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First block in the file.
    pub first: FileBlock,
    /// First block on the device.
    pub start: FsBlock,
    /// Number of blocks; never 0.
    pub len: u32,
    /// What stands there.
    pub state: ExtentState,
}

impl Extent {
    /// First block of the file after the extent.
    #[must_use]
    #[inline(always)]
    pub fn end(&self) -> FileBlock {
        FileBlock(self.first.0 + u64::from(self.len))
    }

    fn precedes(&self, next: &Self) -> bool {
        let adjoining =
            self.end() == next.first && self.start.0 + u64::from(self.len) == next.start.0;
        adjoining && self.state == next.state && self.len.checked_add(next.len).is_some()
    }

    /// The mapping that an extent stands for.
    #[must_use]
    #[inline(always)]
    pub fn to_iomap(self, size: BlockSize) -> Iomap {
        let (kind, flags) = match self.state {
            ExtentState::Written => (IomapType::Mapped, IomapFlags::empty()),
            ExtentState::Unwritten => (IomapType::Unwritten, IomapFlags::empty()),
            ExtentState::Journal => (IomapType::Mapped, IomapFlags::JOURNAL),
            ExtentState::Memory => (IomapType::Inline, IomapFlags::JOURNAL),
        };
        Iomap {
            pos: size.pos_of(self.first),
            len: u64::from(self.len) << size.shift(),
            addr: size.offset_of(self.start),
            kind,
            flags,
        }
    }
}

/// A sorted, merged list of extents with an index over the file's blocks.
///
/// The file is cut into chunks of equal size, about as many as there are extents; the index holds for each chunk the first
/// extent that ends behind the chunk's start. A lookup reads one index entry and then, on average, one or two extents: two
/// cache lines whether the file has ten extents or a million. Where extents crowd into few chunks, a binary search within
/// the chunk bounds the cost. Memory: 24 bytes an extent and 4 to 8 bytes for the index.
#[derive(Debug)]
pub struct ExtentMap {
    size: BlockSize,
    chunk_shift: u32,
    extents: Box<[Extent]>,
    index: Box<[u32]>,
}

impl ExtentMap {
    /// Builds the map of extents that are in order.
    ///
    /// # Errors
    /// Gives back the first extent that begins before the one before it ends.
    pub fn new(mut extents: Vec<Extent>, size: BlockSize) -> Result<Self, Extent> {
        if let Some(pair) = extents.windows(2).find(|pair| pair[1].first < pair[0].end()) {
            return Err(pair[1]);
        }
        // In place: a second list would double the memory that a hostile map takes.
        extents.dedup_by(|next, last| {
            let merges = last.precedes(next);
            if merges {
                last.len += next.len;
            }
            merges
        });
        let extents = extents.into_boxed_slice();
        let blocks = extents.last().map_or(0, |last| last.end().0);
        let mut chunk_shift = 0;
        while blocks >> chunk_shift > extents.len() as u64 {
            chunk_shift += 1;
        }
        let chunks = if blocks == 0 { 0 } else { ((blocks - 1) >> chunk_shift) + 1 };
        let mut index = Vec::with_capacity(chunks as usize + 1);
        let mut at = 0_u32;
        for chunk in 0..chunks {
            while extents[at as usize].end().0 <= chunk << chunk_shift {
                at += 1;
            }
            index.push(at);
        }
        Ok(Self { size, chunk_shift, extents, index: index.into_boxed_slice() })
    }

    /// The extents in order, merged where they adjoin in the file and on the device.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The mapping that holds a position. Behind the last extent there is a hole without end.
    #[must_use]
    #[inline(always)]
    pub fn lookup(&self, pos: FilePos) -> Iomap {
        let block = self.size.block_of(pos);
        let chunk = (block.0 >> self.chunk_shift) as usize;
        // The extent that holds the block, or the first behind it, is the chunk's own entry or stands before the next's.
        let low = self.index.get(chunk).map_or(self.extents.len(), |low| *low as usize);
        match self.extents.get(low) {
            Some(extent) if extent.first <= block && block < extent.end() => {
                extent.to_iomap(self.size)
            }
            _ => self.search(block, chunk, low),
        }
    }

    #[inline(never)]
    fn search(&self, block: FileBlock, chunk: usize, low: usize) -> Iomap {
        let high = self.index.get(chunk + 1).map_or(self.extents.len(), |next| *next as usize);
        let at = low + self.extents[low..high].partition_point(|extent| extent.end() <= block);
        match self.extents.get(at) {
            Some(extent) if extent.first <= block => extent.to_iomap(self.size),
            next => self.hole(at.checked_sub(1).map(|before| &self.extents[before]), next),
        }
    }

    #[cold]
    fn hole(&self, before: Option<&Extent>, after: Option<&Extent>) -> Iomap {
        let from = before.map_or(FilePos(0), |extent| self.size.pos_of(extent.end()));
        let to = after.map_or(FilePos(u64::MAX), |extent| self.size.pos_of(extent.first));
        Iomap {
            pos: from,
            len: to.0 - from.0,
            addr: DevOffset(0),
            kind: IomapType::Hole,
            flags: if after.is_none() { IomapFlags::LAST } else { IomapFlags::empty() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: BlockSize = BlockSize::from_shift(12).unwrap();

    fn extent(first: u64, len: u32, start: u64) -> Extent {
        Extent { first: FileBlock(first), start: FsBlock(start), len, state: ExtentState::Written }
    }

    /// Every block of the map found by lookup equals the one found by a walk.
    fn agrees(extents: &[Extent]) {
        let map = ExtentMap::new(extents.to_vec(), SIZE).unwrap();
        let end = extents.last().map_or(0, |last| last.end().0);
        for block in 0..end + 2000 {
            let found = map.lookup(FilePos(block * 4096 + 7));
            assert!(
                found.pos.0 <= block * 4096 && found.end().0 > block * 4096,
                "block {block}: {found:?}"
            );
            match extents.iter().find(|extent| extent.first.0 <= block && block < extent.end().0) {
                Some(extent) => {
                    assert_eq!(found.kind, IomapType::Mapped);
                    let addr = found.addr_of(FilePos(block * 4096));
                    assert_eq!(addr.0, (extent.start.0 + block - extent.first.0) * 4096);
                }
                None => assert_eq!(found.kind, IomapType::Hole),
            }
        }
    }

    #[test]
    fn lookup_finds_what_a_walk_finds() {
        agrees(&[]);
        agrees(&[extent(0, 1, 50)]);
        agrees(&[extent(5, 3, 50)]);
        agrees(&[extent(0, 4, 10), extent(4, 4, 100), extent(9, 1, 7), extent(1000, 2, 3)]);
        let crowded: Vec<_> = (0..200)
            .map(|i| extent(i * 2, 1, 1000 + i * 7))
            .chain([extent(5000, 900, 9)])
            .collect();
        agrees(&crowded);
    }

    #[test]
    fn adjoining_extents_merge_and_overlapping_ones_are_refused() {
        let map = ExtentMap::new(vec![extent(0, 4, 10), extent(4, 4, 14)], SIZE).unwrap();
        assert_eq!(map.extents(), [extent(0, 8, 10)]);
        assert_eq!(
            ExtentMap::new(vec![extent(0, 4, 10), extent(3, 4, 90)], SIZE).unwrap_err(),
            extent(3, 4, 90)
        );
    }
}
