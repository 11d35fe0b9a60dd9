//! The content of files: maps, blocks, and operations that need exclusive access.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use ironmap::bio::Buffer;
use ironmap::device::Device;
use ironmap::fs::Stat;
use ironmap::iomap::{Extent, ExtentMap, ExtentState, Iomap, IomapFlags, IomapType};
use ironmap::open_file::{OpenInode, Unconverted};
use ironmap::units::{BlockSize, DevOffset, FileBlock, FilePos, FsBlock};
use ironmap::{Error, ErrorKind, Result};

const SIZE: BlockSize = BlockSize::from_shift(12).unwrap();
/// The block size in bytes.
pub(super) const BLOCK: u64 = 1 << 12;
/// The maximum size of a file.
pub(super) const LARGEST: u64 = 1 << 40;

/// The blocks of a file, by their index in the file.
#[derive(Default)]
pub(super) struct Blocks(BTreeMap<u64, Block>);

#[derive(Clone, Copy)]
struct Block {
    /// The number of the block on the device.
    place: u64,
    written: bool,
    /// Whether another file shares the block. A shared block is never written again and never freed.
    shared: bool,
    /// The new block for a write to shared data (copy-on-write), if such a write has allocated one.
    copy: Option<u64>,
}

impl Blocks {
    pub(super) fn places(&self) -> impl Iterator<Item = u64> {
        self.0.values().map(|block| block.place)
    }

    pub(super) fn are_shared(&self) -> bool {
        self.0.values().any(|block| block.shared)
    }

    /// Makes a second list of the same blocks for another file. In both lists, the blocks are marked as shared.
    pub(super) fn share(&mut self) -> Self {
        self.0.values_mut().for_each(|block| block.shared = true);
        Self(self.0.clone())
    }

    /// The mapping of one block, for a position in a file that shares blocks.
    pub(super) fn lookup(&self, pos: FilePos, to_write: bool) -> Result<Iomap> {
        let (iomap, number) = (self.map()?.lookup(pos), pos.0 / BLOCK);
        let Some(found) = self.0.get(&number) else { return Ok(iomap) };
        let (pos, kind) = (FilePos(number * BLOCK), iomap.kind);
        let (place, kind, flags) = match (found.shared, to_write, found.copy) {
            (false, ..) => (found.place, kind, IomapFlags::empty()),
            (true, true, None) => (0, IomapType::Hole, IomapFlags::SHARED),
            (true, true, Some(copy)) => (copy, IomapType::Mapped, IomapFlags::SHARED),
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
            state: if block.written { ExtentState::Written } else { ExtentState::Unwritten },
        };
        let extents = self.0.iter().map(extent).collect();
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
    /// A block of the file. If it does not exist, allocates a new block, directly after the previous block of the file if possible.
    fn place(&mut self, block: u64) -> Result<Block> {
        if let Some(found) = self.blocks.0.get(&block).filter(|found| !found.shared) {
            return Ok(*found);
        }
        if let Some(place) = self.blocks.0.get(&block).and_then(|found| found.copy) {
            return Ok(Block { place, written: false, shared: false, copy: None });
        }
        let before = block.checked_sub(1).and_then(|before| self.blocks.0.get(&before));
        let goal = before.map_or(0, |before| before.place + 1);
        let place = self.free.range(goal..).chain(self.free.iter()).next().copied();
        let place = place.ok_or_else(no_space)?;
        self.free.remove(&place);
        if let Some(shared) = self.blocks.0.get_mut(&block) {
            shared.copy = Some(place);
            return Ok(Block { place, ..*shared });
        }
        let new = Block { place, written: false, shared: false, copy: None };
        self.blocks.0.insert(block, new);
        Ok(new)
    }

    /// The content of a block as readers see it.
    fn read(&self, block: u64) -> Result<Buffer> {
        let mut content = Buffer::aligned(BLOCK as usize)?;
        if let Some(found) = self.blocks.0.get(&block).filter(|found| found.written) {
            self.device.read_exact_at(&mut content, DevOffset(found.place * BLOCK))?;
        }
        Ok(content)
    }

    fn put(&mut self, block: u64, content: &Buffer) -> Result<()> {
        let Block { place, .. } = self.place(block)?;
        let at = DevOffset(place * BLOCK);
        self.device.write_all_at(&[IoSlice::new(content)], at, false)?;
        self.blocks.0.insert(block, Block { place, written: true, shared: false, copy: None });
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
        for range in &what.written {
            for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
                self.convert_block(block, &what.written)?;
            }
        }
        self.stat.size = self.stat.size.max(what.size);
        self.open.converted(&what);
        Ok(())
    }

    fn convert_block(&mut self, block: u64, written: &[Range<u64>]) -> Result<()> {
        if let Some(shared) = self.blocks.0.get_mut(&block).filter(|found| found.shared) {
            if let Some(place) = shared.copy {
                *shared = Block { place, written: true, shared: false, copy: None };
            }
            return Ok(());
        }
        let Some(found) = self.blocks.0.get_mut(&block).filter(|found| !found.written) else {
            return Ok(());
        };
        let (start, end) = (block * BLOCK, (block + 1) * BLOCK);
        if written.iter().any(|range| range.start <= start && range.end >= end) {
            found.written = true;
            return Ok(());
        }
        let (mut on_device, mut content) =
            (vec![0; BLOCK as usize], Buffer::aligned(BLOCK as usize)?);
        self.device.read_exact_at(&mut on_device, DevOffset(found.place * BLOCK))?;
        for range in written {
            let part = range.start.clamp(start, end) - start..range.end.clamp(start, end) - start;
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
            if self.blocks.0.get(&block).is_some_and(|found| found.written) {
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
        let mut whole = Blocks(self.blocks.0.split_off(&first));
        self.blocks.0.append(&mut whole.0.split_off(&last));
        self.free.extend(whole.places());
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
        let moved = self.blocks.0.split_off(&from);
        self.blocks.0.extend(moved.into_iter().map(|(block, found)| (to(block), found)));
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
