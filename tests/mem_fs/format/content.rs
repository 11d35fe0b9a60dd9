//! The content of files: maps, blocks, and operations that need exclusive access.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use ironmap::bio::Buffer;
use ironmap::device::{Device, Segmented};
use ironmap::fs::Stat;
use ironmap::iomap::{
    CompletionWork, Extent, ExtentMap, ExtentState, Iomap, IomapFlags, IomapType, Written,
};
use ironmap::open_file::{OpenInode, Unconverted};
use ironmap::units::{BlockSize, DevOffset, FileBlock, FilePos, FsBlock};
use ironmap::{Error, ErrorKind, Result};

const SIZE: BlockSize = BlockSize::from_shift(12).unwrap();
/// The block size in bytes.
pub(super) const BLOCK: u64 = 1 << 12;
/// The maximum size of a file.
pub(super) const LARGEST: u64 = 1 << 40;

/// The number of blocks for which a write to a shared block allocates new blocks at once.
const AHEAD: u64 = 4;

/// The blocks of a file.
#[derive(Default)]
pub(super) struct Blocks {
    /// The blocks with the content of the file, by their index in the file.
    data: BTreeMap<u64, Block>,
    /// New blocks for writes to shared blocks (copy-on-write), by their index in the file. They contain no data of the file: a write to a
    /// shared block puts one of them into `data` when it completes. A write allocates blocks for later writes too, so there may be new blocks
    /// for blocks that are not shared.
    staged: BTreeMap<u64, u64>,
}

#[derive(Clone, Copy)]
struct Block {
    /// The number of the block on the device.
    place: u64,
    written: bool,
    /// Whether another file shares the block. A shared block is never written again and never freed.
    shared: bool,
}

impl Blocks {
    /// The places of all blocks that belong to the file alone.
    pub(super) fn own_places(&self) -> impl Iterator<Item = u64> {
        let data = self.data.values().filter(|block| !block.shared).map(|block| block.place);
        data.chain(self.staged.values().copied())
    }

    /// The number of blocks with content.
    pub(super) fn count(&self) -> usize {
        self.data.len()
    }

    pub(super) fn are_shared(&self) -> bool {
        self.data.values().any(|block| block.shared)
    }

    /// Makes a second list of the same blocks for another file. In both lists, the blocks are marked as shared. Unwritten blocks are not shared:
    /// they are holes in the second list.
    pub(super) fn share(&mut self) -> Self {
        let written = |block: &&mut Block| block.written;
        self.data.values_mut().filter(written).for_each(|block| block.shared = true);
        let shared = self.data.iter().filter(|(_, block)| block.shared);
        Self {
            data: shared.map(|(index, block)| (*index, *block)).collect(),
            staged: BTreeMap::new(),
        }
    }

    /// The mapping of one block, for a position in a file that shares blocks.
    pub(super) fn lookup(&self, pos: FilePos, to_write: bool) -> Result<Iomap> {
        let (iomap, number) = (self.map()?.lookup(pos), pos.0 / BLOCK);
        let Some(found) = self.data.get(&number) else { return Ok(iomap) };
        let (pos, kind) = (FilePos(number * BLOCK), iomap.kind);
        let (place, kind, flags) = match (found.shared, to_write, self.staged.get(&number)) {
            (false, ..) => (found.place, kind, IomapFlags::empty()),
            (true, true, None) => (0, IomapType::Hole, IomapFlags::SHARED),
            (true, true, Some(copy)) => (*copy, IomapType::Mapped, IomapFlags::SHARED),
            (true, false, _) => (found.place, kind, IomapFlags::SHARED),
        };
        let mut block = iomap;
        (block.pos, block.len, block.addr) = (pos, BLOCK, DevOffset(place * BLOCK));
        (block.kind, block.flags) = (kind, flags);
        Ok(block)
    }

    pub(super) fn map(&self) -> Result<ExtentMap> {
        let extent = |(first, block): (&u64, &Block)| Extent {
            first: FileBlock(*first),
            start: FsBlock(block.place),
            len: 1,
            state: match (block.written, block.shared) {
                (true, true) => ExtentState::Shared,
                (true, false) => ExtentState::Written,
                (false, _) => ExtentState::Unwritten,
            },
        };
        let extents = self.data.iter().map(extent).collect();
        ExtentMap::new(extents, SIZE).map_err(|_| Error::invalid("blocks out of order"))
    }
}

/// A regular file whose content is being changed.
pub(super) struct OpenFile<'a> {
    pub(super) device: &'a dyn Device,
    pub(super) free: &'a mut BTreeSet<u64>,
    pub(super) open: &'a Arc<OpenInode>,
    pub(super) stat: &'a mut Stat,
    pub(super) blocks: &'a mut Blocks,
}

impl OpenFile<'_> {
    /// The place for a new block of the file, if possible at `goal`. If the volume has a second device, it contains the odd blocks of each
    /// file, as long as it has space.
    fn free_place(&mut self, block: u64, goal: u64) -> Result<u64> {
        let has_second = self.device.end() > DevOffset(Segmented::REALTIME);
        let goal = match (has_second, block % 2) {
            (false, _) => goal,
            (true, 0) => 0,
            (true, _) => Segmented::REALTIME / BLOCK,
        };
        let place = self.free.range(goal..).chain(self.free.iter()).next().copied();
        let place = place.ok_or_else(no_space)?;
        self.free.remove(&place);
        Ok(place)
    }

    /// The place to which data of a block are written. If the file has no block for them, allocates a new block, directly after the previous
    /// block of the file if possible.
    fn place(&mut self, block: u64) -> Result<u64> {
        let found = self.blocks.data.get(&block).copied();
        if let Some(found) = found.filter(|found| !found.shared) {
            return Ok(found.place);
        }
        if found.is_some() {
            return self.stage(block);
        }
        let before = block.checked_sub(1).and_then(|before| self.blocks.data.get(&before));
        let place = self.free_place(block, before.map_or(0, |before| before.place + 1))?;
        self.blocks.data.insert(block, Block { place, written: false, shared: false });
        Ok(place)
    }

    /// The new block for a write to a shared block. Also allocates new blocks for the blocks after it, as long as there is space.
    fn stage(&mut self, block: u64) -> Result<u64> {
        for ahead in block..block + AHEAD {
            if !self.blocks.staged.contains_key(&ahead) {
                match self.free_place(ahead, 0) {
                    Ok(place) => drop(self.blocks.staged.insert(ahead, place)),
                    Err(error) if ahead == block => return Err(error),
                    Err(_) => break,
                }
            }
        }
        Ok(self.blocks.staged[&block])
    }

    /// Frees the new blocks for writes to shared blocks of a range. No write to the range is in flight.
    pub(super) fn give_back(&mut self, blocks: Range<u64>) {
        let mut given = self.blocks.staged.split_off(&blocks.start);
        self.blocks.staged.append(&mut given.split_off(&blocks.end));
        self.free.extend(given.values());
    }

    /// The content of a block as readers see it.
    fn read(&self, block: u64) -> Result<Buffer> {
        let mut content = Buffer::aligned(BLOCK as usize)?;
        if let Some(found) = self.blocks.data.get(&block).filter(|found| found.written) {
            self.device.read_exact_at(&mut content, DevOffset(found.place * BLOCK))?;
        }
        Ok(content)
    }

    fn put(&mut self, block: u64, content: &Buffer) -> Result<()> {
        let place = self.place(block)?;
        let at = DevOffset(place * BLOCK);
        self.device.write_all_at(&[IoSlice::new(content)], at, false)?;
        self.enter(block, place);
        Ok(())
    }

    /// Allocates blocks for the holes in a range of bytes. If the allocation fails, returns the end of the part that was allocated.
    pub(super) fn allocate(&mut self, range: &Range<u64>) -> Result<(), u64> {
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            self.place(block).map_err(|_| block * BLOCK)?;
        }
        Ok(())
    }

    /// Updates the metadata after data were written: the file size, and the marks of blocks as written. If a write covered only a part of a
    /// block, the rest is zeroed before the block is marked as written.
    pub(super) fn convert(&mut self) -> Result<()> {
        let what = self.open.unconverted();
        if what == Unconverted::default() {
            return Ok(());
        }
        for part in &what.written {
            for block in part.pos.0 / BLOCK..part.end().0.div_ceil(BLOCK) {
                if part.work.contains(CompletionWork::REMAP) {
                    self.enter(block, (part.addr.0 + block * BLOCK - part.pos.0) / BLOCK);
                } else {
                    self.convert_block(block, &what.written)?;
                }
            }
        }
        for range in &what.cancelled {
            self.give_back(range.start / BLOCK..range.end.div_ceil(BLOCK));
        }
        self.stat.size = self.stat.size.max(what.size);
        self.open.converted(&what);
        Ok(())
    }

    /// Puts a block with data into the map.
    fn enter(&mut self, block: u64, place: u64) {
        if self.blocks.staged.get(&block) == Some(&place) {
            self.blocks.staged.remove(&block);
        }
        self.blocks.data.insert(block, Block { place, written: true, shared: false });
    }

    fn convert_block(&mut self, block: u64, written: &[Written]) -> Result<()> {
        let Some(found) = self.blocks.data.get_mut(&block).filter(|found| !found.written) else {
            return Ok(());
        };
        let (start, end) = (block * BLOCK, (block + 1) * BLOCK);
        let converts = |part: &&Written| !part.work.contains(CompletionWork::REMAP);
        if written.iter().filter(converts).any(|part| part.pos.0 <= start && part.end().0 >= end) {
            found.written = true;
            return Ok(());
        }
        let (mut on_device, mut content) =
            (vec![0; BLOCK as usize], Buffer::aligned(BLOCK as usize)?);
        self.device.read_exact_at(&mut on_device, DevOffset(found.place * BLOCK))?;
        for part in written.iter().filter(converts) {
            let part = part.pos.0.clamp(start, end) - start..part.end().0.clamp(start, end) - start;
            let part = part.start as usize..part.end as usize;
            content[part.clone()].copy_from_slice(&on_device[part]);
        }
        self.put(block, &content)
    }

    /// The blocks that overlap a range. For each block, also returns the overlapping part, as offsets in the block.
    fn parts(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
        (range.start / BLOCK..range.end.div_ceil(BLOCK)).map(move |block| {
            let from = range.start.max(block * BLOCK) - block * BLOCK;
            let to = range.end.min((block + 1) * BLOCK) - block * BLOCK;
            (block, from as usize..to as usize)
        })
    }

    fn zero(&mut self, range: Range<u64>) -> Result<()> {
        for (block, part) in Self::parts(range) {
            if self.blocks.data.get(&block).is_some_and(|found| found.written) {
                let mut content = self.read(block)?;
                content[part].fill(0);
                self.put(block, &content)?;
            }
        }
        Ok(())
    }

    /// Zeros the part of the last block that lies past the end of the file.
    pub(super) fn zero_tail(&mut self) -> Result<()> {
        self.zero(self.stat.size..self.stat.size.next_multiple_of(BLOCK))
    }

    /// Writes data. If space runs out, writes only a part of them.
    pub(super) fn write(&mut self, pos: u64, bytes: &[u8]) -> Result<usize> {
        let end = pos.checked_add(bytes.len() as u64).filter(|end| *end <= LARGEST);
        let end = end.ok_or_else(too_large)?;
        if pos > self.stat.size {
            self.zero_tail()?;
        }
        let mut done = 0;
        for (block, part) in Self::parts(pos..end) {
            let mut content = self.read(block)?;
            content[part.clone()].copy_from_slice(&bytes[done..done + part.len()]);
            match self.put(block, &content) {
                Err(error) if error.kind() == ErrorKind::NoSpace && done > 0 => break,
                put => put?,
            }
            done += part.len();
            self.stat.size = self.stat.size.max(pos + done as u64);
        }
        Ok(done)
    }

    pub(super) fn resize(&mut self, size: u64) -> Result<()> {
        if size > LARGEST {
            return Err(too_large());
        }
        if size > self.stat.size {
            self.zero_tail()?;
        } else {
            self.punch(size..u64::MAX)?;
        }
        self.stat.size = size;
        Ok(())
    }

    pub(super) fn preallocate(&mut self, range: Range<u64>, keep_size: bool) -> Result<()> {
        if range.end > LARGEST {
            return Err(too_large());
        }
        let reached = self.allocate(&range).map_or_else(|reached| reached, |()| range.end);
        if !keep_size && reached > self.stat.size && reached > range.start {
            self.zero_tail()?;
            self.stat.size = reached;
        }
        if reached < range.end { Err(no_space()) } else { Ok(()) }
    }

    /// Frees the whole blocks in a range. Zeros the partial blocks at the ends of the range.
    pub(super) fn punch(&mut self, range: Range<u64>) -> Result<()> {
        let range = range.start.min(LARGEST)..range.end.min(LARGEST);
        let (first, last) = (range.start.div_ceil(BLOCK), range.end / BLOCK);
        if first > last {
            return self.zero(range);
        }
        self.zero(range.start..first * BLOCK)?;
        self.zero(last * BLOCK..range.end)?;
        let mut whole = self.blocks.data.split_off(&first);
        self.blocks.data.append(&mut whole.split_off(&last));
        let own = whole.values().filter(|block| !block.shared);
        self.free.extend(own.map(|block| block.place));
        self.give_back(first..last);
        Ok(())
    }

    pub(super) fn collapse(&mut self, range: Range<u64>) -> Result<()> {
        let blocks = whole_blocks(&range)?;
        if range.end >= self.stat.size {
            return Err(Error::invalid("a range that reaches the end"));
        }
        self.punch(range)?;
        self.shift(blocks.end, |block| block - (blocks.end - blocks.start));
        self.stat.size -= (blocks.end - blocks.start) * BLOCK;
        Ok(())
    }

    pub(super) fn insert(&mut self, range: Range<u64>) -> Result<()> {
        let blocks = whole_blocks(&range)?;
        if range.start >= self.stat.size {
            return Err(Error::invalid("a position past the end"));
        }
        let size = self.stat.size.saturating_add(range.end - range.start);
        if size > LARGEST {
            return Err(too_large());
        }
        self.shift(blocks.start, |block| block + (blocks.end - blocks.start));
        self.stat.size = size;
        Ok(())
    }

    /// Changes the indexes of the block `from` and of all blocks after it.
    fn shift(&mut self, from: u64, to: impl Fn(u64) -> u64) {
        self.give_back(from..u64::MAX);
        let moved = self.blocks.data.split_off(&from);
        self.blocks.data.extend(moved.into_iter().map(|(block, found)| (to(block), found)));
    }
}

fn whole_blocks(range: &Range<u64>) -> Result<Range<u64>> {
    if !range.start.is_multiple_of(BLOCK) || !range.end.is_multiple_of(BLOCK) {
        return Err(Error::invalid("not whole blocks"));
    }
    Ok(range.start / BLOCK..range.end / BLOCK)
}

pub(super) fn no_space() -> Error {
    Error::new(ErrorKind::NoSpace, "no block is free")
}

fn too_large() -> Error {
    Error::new(ErrorKind::FileTooLarge, "past the last block that a file can have")
}
