//! The whole map of a file, in memory. The map is immutable. The cost of a look-up does not grow with the number of extents.

use std::ops::Range;

use super::{Iomap, IomapFlags, IomapType};
use crate::units::{BlockSize, DevOffset, FileBlock, FilePos, FsBlock};

/// The kind of content in the blocks of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentState {
    /// The blocks contain data.
    Written,
    /// The blocks contain data and also belong to other files. A write must not change them.
    Shared,
    /// The blocks are allocated and were never written.
    Unwritten,
    /// The current data are in the journal. The extent's first device block is a block of the journal.
    Journal,
    /// The current data are in memory, and a read of the device would return other data. [`read_inline`](super::MapFile::read_inline)
    /// returns the current data. The extent's first device block is the block to which the data belong.
    Memory,
}

/// Consecutive blocks of a file that are also consecutive on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first block in the file.
    pub first: FileBlock,
    /// The first block on the device.
    pub start: FsBlock,
    /// The number of blocks. Never 0.
    pub len: u32,
    /// The content of the blocks.
    pub state: ExtentState,
}

impl Extent {
    /// The first block of the file after the extent.
    #[must_use]
    #[inline(always)]
    pub fn end(&self) -> FileBlock {
        FileBlock(self.first.0 + u64::from(self.len))
    }

    /// Returns the part of the extent that is within a range of the file's blocks.
    pub(crate) fn within(&self, range: &Range<FileBlock>) -> Option<Self> {
        let first = self.first.max(range.start);
        let end = self.end().min(range.end);
        (first < end).then(|| Self {
            first,
            start: FsBlock(self.start.0 + (first.0 - self.first.0)),
            len: (end.0 - first.0) as u32,
            state: self.state,
        })
    }

    fn precedes(&self, next: &Self) -> bool {
        let adjoining =
            self.end() == next.first && self.start.0 + u64::from(self.len) == next.start.0;
        adjoining && self.state == next.state && self.len.checked_add(next.len).is_some()
    }

    /// Returns the mapping of an extent.
    #[must_use]
    #[inline(always)]
    pub fn to_iomap(self, size: BlockSize) -> Iomap {
        let (kind, flags) = match self.state {
            ExtentState::Written => (IomapType::Mapped, IomapFlags::empty()),
            ExtentState::Shared => (IomapType::Mapped, IomapFlags::SHARED),
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

/// A sorted list of extents, with an index of the file's blocks. Contiguous extents are merged.
///
/// The file is divided into chunks of equal size, about as many as there are extents. For each chunk, the index contains a copy of the
/// first extent that ends past the start of the chunk. In a large map, each step of a search is a cache miss. Therefore, a look-up first
/// reads two index entries whose addresses it can compute: the entry of the block's chunk, and the next entry. In most cases, one of these
/// two extents contains the block. In all other cases, the look-up uses a binary search in the chunk's part of the list: if the block is in
/// a hole, if its content is not data on the device, or if its extent follows another extent in the same chunk. For each extent, the list
/// needs 24 bytes, and the index needs 10 to 20 bytes.
#[derive(Debug)]
pub struct ExtentMap {
    size: BlockSize,
    chunk_shift: u32,
    extents: Box<[Extent]>,
    index: Box<[Chunk]>,
}

/// The first extent that ends past the start of a chunk.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    /// The index of the extent in the list, plus [`SHARED`](Self::SHARED) if the state of the extent is `Shared`.
    at: u32,
    /// The length of the extent in blocks. If it is 0, the fields below do not describe the extent.
    len: u32,
    /// The lower half of the number of the extent's first block in the file.
    first: u32,
    /// The number of the extent's first block on the device: its lower half and its upper half. With a single `u64`, a chunk would need 24
    /// bytes instead of 20.
    start: [u32; 2],
}

impl Chunk {
    /// The largest number of blocks in a chunk, and in an extent that the index describes. Within this limit, the numbers of two blocks
    /// that are compared differ by less than 2^31, so a comparison of their lower halves is sufficient.
    const LONGEST: u64 = 1 << 29;
    /// The bit of `at` for a shared extent. A list in memory has fewer extents than this number.
    const SHARED: u32 = 1 << 31;

    fn new(at: usize, extent: &Extent, blocks: Range<u64>) -> Self {
        let short =
            blocks.end - blocks.start <= Self::LONGEST && u64::from(extent.len) <= Self::LONGEST;
        let reaches = extent.first.0 < blocks.end;
        let is_shared = extent.state == ExtentState::Shared;
        let told = short && reaches && (is_shared || extent.state == ExtentState::Written);
        Self {
            at: at as u32 | if is_shared { Self::SHARED } else { 0 },
            len: if told { extent.len } else { 0 },
            first: extent.first.0 as u32,
            start: [extent.start.0 as u32, (extent.start.0 >> 32) as u32],
        }
    }

    /// Returns the mapping of the chunk's extent, or `None` if the fields do not describe the extent or the block is not in it.
    #[inline(always)]
    fn iomap(&self, block: FileBlock, size: BlockSize) -> Option<Iomap> {
        let within = (block.0 as u32).wrapping_sub(self.first);
        (within < self.len).then(|| Iomap {
            pos: size.pos_of(FileBlock(block.0 - u64::from(within))),
            len: u64::from(self.len) << size.shift(),
            addr: size
                .offset_of(FsBlock(u64::from(self.start[0]) | u64::from(self.start[1]) << 32)),
            kind: IomapType::Mapped,
            flags: if self.at & Self::SHARED == 0 {
                IomapFlags::empty()
            } else {
                IomapFlags::SHARED
            },
        })
    }

    /// The index of the extent in the list.
    fn at(&self) -> usize {
        (self.at & !Self::SHARED) as usize
    }
}

impl ExtentMap {
    /// Builds the map from extents, which must be in order.
    ///
    /// # Errors
    /// Returns the first extent that begins before the end of the previous one.
    pub fn new(mut extents: Vec<Extent>, size: BlockSize) -> Result<Self, Extent> {
        if let Some(pair) = extents.windows(2).find(|pair| pair[1].first < pair[0].end()) {
            return Err(pair[1]);
        }
        // The extents are merged within their list. For a hostile image with a large map, a second list would double the memory.
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
        let mut index = Vec::with_capacity(chunks as usize);
        let mut at = 0;
        for chunk in 0..chunks {
            while extents[at].end().0 <= chunk << chunk_shift {
                at += 1;
            }
            let blocks = chunk << chunk_shift..(chunk + 1) << chunk_shift;
            index.push(Chunk::new(at, &extents[at], blocks));
        }
        Ok(Self { size, chunk_shift, extents, index: index.into_boxed_slice() })
    }

    /// The extents in order. Extents that are contiguous in the file and on the device are merged.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Returns the mapping that contains a position. After the last extent, the mapping is an endless hole.
    #[must_use]
    #[inline(always)]
    pub fn lookup(&self, pos: FilePos) -> Iomap {
        let block = self.size.block_of(pos);
        let number = (block.0 >> self.chunk_shift) as usize;
        let chunk = self.index.get(number).and_then(|chunk| chunk.iomap(block, self.size));
        chunk.unwrap_or_else(|| self.search(block, number))
    }

    #[inline(never)]
    fn search(&self, block: FileBlock, number: usize) -> Iomap {
        let next = self.index.get(number + 1);
        if let Some(iomap) = next.and_then(|next| next.iomap(block, self.size)) {
            return iomap;
        }
        // The search covers the extents from the first extent of this chunk to the first extent of the next chunk. It finds the extent that
        // contains the block or, if the block is in a hole, the first extent after the block.
        let of = |chunk: Option<&Chunk>| chunk.map_or(self.extents.len(), Chunk::at);
        let (low, high) = (of(self.index.get(number)), of(next));
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

    /// Returns the mapping that a linear search in the extents finds.
    fn walk(extents: &[Extent], block: u64) -> Iomap {
        let at = extents.iter().position(|extent| block < extent.end().0);
        let after = at.map(|at| extents[at]);
        match after {
            Some(extent) if extent.first.0 <= block => extent.to_iomap(SIZE),
            _ => {
                let from = match at.unwrap_or(extents.len()) {
                    0 => 0,
                    at => extents[at - 1].end().0 * 4096,
                };
                let to = after.map_or(u64::MAX, |extent| extent.first.0 * 4096);
                let flags = if at.is_none() { IomapFlags::LAST } else { IomapFlags::empty() };
                let kind = IomapType::Hole;
                Iomap { pos: FilePos(from), len: to - from, addr: DevOffset(0), kind, flags }
            }
        }
    }

    /// Checks that a look-up of each of these blocks returns the result of a linear search.
    fn agrees(extents: &[Extent], blocks: impl IntoIterator<Item = u64>) {
        let map = ExtentMap::new(extents.to_vec(), SIZE).unwrap();
        for block in blocks {
            let found = map.lookup(FilePos(block * 4096 + 7));
            assert_eq!(found, walk(extents, block), "block {block} of {extents:?}");
        }
    }

    #[test]
    fn lookup_finds_what_a_walk_finds() {
        agrees(&[], 0..2000);
        agrees(&[extent(0, 1, 50)], 0..2000);
        agrees(&[extent(5, 3, 50)], 0..2000);
        agrees(
            &[extent(0, 4, 10), extent(4, 4, 100), extent(9, 1, 7), extent(1000, 2, 3)],
            0..3000,
        );
        let crowded: Vec<_> = (0..200)
            .map(|i| extent(i * 2, 1, 1000 + i * 7))
            .chain([extent(5000, 900, 9)])
            .collect();
        agrees(&crowded, 0..8000);
    }

    /// Tests random maps. Some chunks and extents are too long for the index, and some block numbers have equal lower halves.
    #[test]
    fn lookup_finds_what_a_walk_finds_in_random_maps() {
        let mut state = 0x1D0_E87E_2026_u64; // The seed of the random numbers.
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let states = [
            ExtentState::Written,
            ExtentState::Shared,
            ExtentState::Unwritten,
            ExtentState::Journal,
            ExtentState::Memory,
        ];
        for round in 0..600 {
            // Most extents and holes are short. The lengths of the long ones have up to this number of bits.
            let bits = [4, 12, 32][round % 3];
            let mut extents = Vec::new();
            let mut at = 0;
            for _ in 0..1 + random(60) {
                let rare = random(8) == 0;
                at += if rare { random(1 << (bits + 2)) } else { random(3) };
                let longest = if random(8) == 0 { (1 << bits) - 1 } else { 9 };
                let len = 1 + random(longest) as u32;
                let state = states[random(16).saturating_sub(11) as usize];
                let start = FsBlock(random(1 << 48));
                extents.push(Extent { first: FileBlock(at), start, len, state });
                at = extents[extents.len() - 1].end().0;
            }
            let edges = extents.iter().flat_map(|extent| {
                let (first, end) = (extent.first.0, extent.end().0);
                [first.saturating_sub(1), first, first + 1, end - 1, end, end + 1]
            });
            let alike = edges.clone().flat_map(|block| {
                (1..4).flat_map(move |i| [block + (i << 32), block.saturating_sub(i << 32)])
            });
            let edges: Vec<_> = edges.chain(alike).collect();
            let within: Vec<_> = (0..200).map(|_| random(at + 10)).collect();
            agrees(&extents, edges.into_iter().chain(within));
        }
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
