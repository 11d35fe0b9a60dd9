//! Metadata blocks. Blocks that were read are cached in memory. The cache has a maximum size. If the journal was recovered only in memory,
//! reads return the recovered content.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use super::dirty::{Dirty, Version};
use super::disk::journal;
use super::jbd2::tid::Member;
use super::order::{Held, Rank, before};
use crate::device::Device;
use crate::error::{Context, ErrorKind, Place, Result};
use crate::events::{Direction, ErrorEvent, Events};
use crate::fs::block::{Block, Part};
use crate::sync::Cache;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sys::Buffer;
use crate::units::{BlockSize, FilePos, FsBlock, InodeNo};

/// The maximum memory of cached metadata blocks in bytes.
const CACHE_BYTES: usize = 64 << 20;

/// The number of blocks in a range that [`Blocks::read_in_order`] reads at once. It is the default of Linux's `inode_readahead_blks`.
const AHEAD: u64 = 32;

/// The maximum number of attempts to change a block. An attempt fails if the block is evicted from the cache between the read and the
/// change.
const ATTEMPTS: u32 = 64;

/// The location of a block's current content, if this is not the block's home location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relocated {
    /// The content is in this block of the journal, without changes.
    Journal(FsBlock),
    /// The content is in this block of the journal, but its first four bytes must be replaced by the journal's magic number. The journal
    /// stores zeros there: the magic number marks the journal's own blocks.
    Escaped(FsBlock),
}

/// The result of an in-memory recovery of the journal: the blocks whose current content is not at their home location.
#[derive(Default)]
pub(crate) struct Overlay {
    blocks: BTreeMap<FsBlock, Relocated>,
    /// The block numbers that represent the blocks of an external journal's device. These numbers are past the end of the volume. The range
    /// is empty if the journal is internal.
    outside: Range<u64>,
}

impl Overlay {
    /// An overlay without relocated blocks. `range` becomes the field `outside`.
    pub(crate) fn outside(range: Range<u64>) -> Self {
        Self { blocks: BTreeMap::new(), outside: range }
    }

    pub(crate) fn insert(&mut self, block: FsBlock, content: Relocated) {
        self.blocks.insert(block, content);
    }

    pub(crate) fn remove(&mut self, block: FsBlock) {
        self.blocks.remove(&block);
    }

    pub(crate) fn get(&self, block: FsBlock) -> Option<Relocated> {
        self.blocks.get(&block).copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The relocated blocks within a range, in order.
    pub(crate) fn range(
        &self,
        blocks: Range<FsBlock>,
    ) -> impl Iterator<Item = (FsBlock, Relocated)> {
        self.blocks.range(blocks).map(|(block, content)| (*block, *content))
    }
}

/// The reader and cache of all metadata of a volume.
pub(crate) struct Blocks {
    device: Arc<dyn Device>,
    size: BlockSize,
    count: u64,
    cache: Cache<FsBlock, Block>,
    overlay: Overlay,
    dirty: Dirty,
    events: Arc<Events>,
    /// The block after the last one that [`read_in_order`](Self::read_in_order) has read from the device.
    next: AtomicU64,
}

impl Blocks {
    /// A reader for `count` blocks of `size` bytes. Errors of the device are reported to `events`.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        size: BlockSize,
        count: u64,
        events: Arc<Events>,
    ) -> Self {
        let cache = Cache::new(CACHE_BYTES / size.bytes());
        let (overlay, dirty) = (Overlay::default(), Dirty::default());
        Self { device, size, count, cache, overlay, dirty, events, next: AtomicU64::new(0) }
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(crate) fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// Sets the overlay: the locations in the journal of the blocks that a recovery in memory has found. Reads of these blocks are
    /// redirected to these locations. Clears the cache.
    pub(crate) fn set_overlay(&mut self, overlay: Overlay) {
        self.overlay = overlay;
        self.cache.clear();
    }

    /// Removes the overlay that [`set_overlay`](Self::set_overlay) has set, and returns it. The caller must not use this `Blocks`
    /// afterwards.
    pub(crate) fn take_overlay(&mut self) -> Overlay {
        std::mem::take(&mut self.overlay)
    }

    /// Whether the `count` blocks from `block` on lie within the file system.
    pub(crate) fn contain(&self, block: FsBlock, count: u64) -> bool {
        block.0.checked_add(count).is_some_and(|end| end <= self.count)
    }

    /// Reads a block of metadata. Errors contain `place`, which names the structure and the field that points to the block.
    pub(crate) fn read(&self, block: FsBlock, place: Place) -> Result<Block> {
        if !self.contain(block, 1) && !self.overlay.outside.contains(&block.0) {
            let count = self.count;
            return Err(
                place.corrupt(format!("block {block} is outside the volume of {count} blocks"))
            );
        }
        before(Rank::Block);
        match self.dirty.get(block) {
            Some(content) => Ok(content),
            None => self.read_clean(block),
        }
    }

    /// Reads a block of a table on a volume that is open for reading. If the caller reads the blocks in order, also reads the next blocks from
    /// the device, so that a walk over a table needs few requests.
    pub(crate) fn read_in_order(&self, block: FsBlock, place: Place) -> Result<Block> {
        if let Some(content) = self.cache.get(&block) {
            return Ok(content);
        }
        let mut end = block.0.saturating_add(1);
        if self.next.load(Ordering::Relaxed) == block.0 && self.contain(block, 1) {
            end = (block.0 / AHEAD + 1) * AHEAD;
            self.read_ahead(block, end.min(self.count));
        }
        self.next.store(end, Ordering::Relaxed);
        self.read(block, place)
    }

    /// Reads blocks into the cache. An error is ignored, because the caller's own read reports it.
    fn read_ahead(&self, first: FsBlock, end: u64) {
        let relocated = |block: &u64| self.overlay.get(FsBlock(*block)).is_some();
        let end = (first.0..end).find(relocated).unwrap_or(end);
        let len = (end.saturating_sub(first.0) as usize) << self.size.shift();
        let Ok(mut buffer) = Buffer::aligned(len) else { return };
        if len == 0 || self.device.read_exact_at(&mut buffer, self.size.offset_of(first)).is_err() {
            return;
        }
        for (block, content) in (first.0..end).zip(buffer.chunks(self.size.bytes())) {
            let copy = || -> Result<Block> {
                let mut copy = Buffer::aligned(content.len())?;
                copy.copy_from_slice(content);
                Ok(Block::new(copy))
            };
            let _ = self.cache.get_or_insert_with(&FsBlock(block), copy);
        }
    }

    /// Whether the cache contains the block, or a transaction contains a version of the block.
    pub(crate) fn has(&self, block: FsBlock) -> bool {
        self.dirty.get(block).is_some() || self.cache.get(&block).is_some()
    }

    /// Reads a block that has no version in a transaction.
    fn read_clean(&self, block: FsBlock) -> Result<Block> {
        // During the read, the cache contains a placeholder for the block. If another thread replaces the placeholder with newer content,
        // the older content of this read is not cached.
        self.cache.get_or_insert_with(&block, || match self.overlay.get(block) {
            None => self.read_device(block),
            Some(copy) => self.read_relocated(copy),
        })
    }

    /// The block versions that have not been written to their home location.
    pub(super) fn dirty(&self) -> &Dirty {
        &self.dirty
    }

    /// Changes a block in a transaction. Returns whether this is the transaction's first change of the block. `change` receives the newest
    /// content. If `change` returns an error, it must leave the content unchanged.
    pub(super) fn update<R>(
        &self,
        block: FsBlock,
        member: &Member,
        place: Place,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<(R, bool)> {
        self.newest(block, place, |version| version.change(member, change))
    }

    /// Changes one part of a block. `change` also updates the part's checksum.
    pub(super) fn update_sealed<R>(
        &self,
        (block, part): (FsBlock, Part),
        member: &Member,
        place: Place,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<(R, bool)> {
        self.newest(block, place, |version| version.change_sealed(member, part, change))
    }

    fn newest<R>(
        &self,
        block: FsBlock,
        place: Place,
        work: impl FnOnce(&mut Version) -> Result<R>,
    ) -> Result<R> {
        for _ in 0..ATTEMPTS {
            self.read(block, place)?;
            // If several threads need this block, one thread reads it from the device. That thread passes the content to the other threads,
            // and caches it afterwards. Another thread may look into the cache too early, and then reads the block again. The content on
            // the device does not change between the two reads.
            let clean = || self.cache.get(&block).or_else(|| self.read_clean(block).ok());
            let slot = self.dirty.slot(block, clean);
            if let Some(mut version) = slot.as_ref().and_then(|slot| slot.lock()) {
                let _held = Held::new(Rank::Block);
                return work(&mut version);
            }
        }
        Err(place.corrupt(format!("block {block} is repeatedly evicted from the cache")))
    }

    /// Replaces the content of a block without reading it from the device. `fill` receives zeros.
    pub(super) fn create<R>(
        &self,
        block: FsBlock,
        member: &Member,
        fill: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<(R, bool)> {
        before(Rank::Block);
        let mut buffer = Buffer::aligned(self.size.bytes())?;
        let result = fill(&mut buffer);
        let content = Block::new(buffer);
        loop {
            let slot = self.dirty.slot(block, || Some(content.clone()));
            if let Some(mut version) = slot.as_ref().and_then(|slot| slot.lock()) {
                return Ok((result, version.replace(member, content)));
            }
        }
    }

    /// Caches content that was written outside of transactions.
    pub(super) fn keep(&self, block: FsBlock, content: Block) {
        self.cache.insert(block, content);
    }

    /// Removes a freed block from the cache and from the versions of transactions.
    pub(super) fn forget(&self, block: FsBlock, member: &Member) {
        self.dirty.forget(block, member);
        self.cache.remove(&block);
    }

    /// Records that a version of a block was written to the block's home location. If that version is still the newest version, the block
    /// no longer counts as changed.
    pub(super) fn written(&self, block: FsBlock, version: &Block) {
        self.dirty.convert(block, version, |content| self.cache.insert(block, content));
    }

    /// Writes versions to their home locations. Adjoining blocks are written together.
    pub(super) fn write_home(&self, versions: &[(FsBlock, Block)]) -> Result<()> {
        let mut rest = versions;
        while let Some((first, _)) = rest.first() {
            let adjoins =
                |(at, (block, _)): (usize, &(FsBlock, Block))| block.0 == first.0 + at as u64;
            let count = rest.iter().enumerate().take_while(|entry| adjoins(*entry)).count();
            let (run, behind) = rest.split_at(count);
            let bufs: Vec<_> = run.iter().map(|(_, block)| IoSlice::new(block)).collect();
            self.write_device(*first, &bufs, false)?;
            rest = behind;
        }
        Ok(())
    }

    /// Writes consecutive blocks to the device, starting at `first`.
    pub(super) fn write_device(
        &self,
        first: FsBlock,
        bufs: &[IoSlice<'_>],
        fua: bool,
    ) -> Result<()> {
        let at = self.size.offset_of(first);
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        let write = |through| self.device.write_all_at(bufs, at, through);
        let written = match fua {
            true => self.events.durability().write_durable(&*self.device, write),
            false => write(false),
        };
        self.told(written, at.0, len).context(|| format!("write of metadata block {first}"))
    }

    /// Makes all writes durable.
    ///
    /// # Errors
    /// `Io`. All later calls return the same error. The caller must abort the volume.
    pub(super) fn flush(&self) -> Result<()> {
        self.told(self.events.durability().flush(&*self.device), 0, 0)
    }

    /// Checks that no flush of the device has failed.
    ///
    /// # Errors
    /// `Io` if an earlier flush of the device has failed.
    pub(super) fn check_durable(&self) -> Result<()> {
        self.events.durability().check()
    }

    pub(super) fn report(&self, event: ErrorEvent) {
        self.events.report(event);
    }

    /// Reports an error of the device as an event, and returns the result.
    fn told(&self, result: Result<()>, at: u64, len: u64) -> Result<()> {
        if let Err(ErrorKind::Io(errno)) = result.as_ref().map_err(|error| error.kind()) {
            let direction = Direction::Metadata;
            let (inode, pos) = (InodeNo(0), FilePos(at));
            self.report(ErrorEvent { direction, inode, pos, len, errno });
        }
        result
    }

    /// The content of a relocated block.
    pub(crate) fn read_relocated(&self, relocated: Relocated) -> Result<Block> {
        match relocated {
            Relocated::Journal(copy) => self.read_device(copy),
            Relocated::Escaped(copy) => {
                let mut buffer = self.read_buffer(copy)?;
                buffer[..4].copy_from_slice(&journal::MAGIC.to_be_bytes());
                Ok(Block::new(buffer))
            }
        }
    }

    /// Reads a block from the device, without the cache and the overlay. The caller must have checked the block number.
    pub(crate) fn read_device(&self, block: FsBlock) -> Result<Block> {
        self.read_buffer(block).map(Block::new)
    }

    fn read_buffer(&self, block: FsBlock) -> Result<Buffer> {
        let mut buffer = Buffer::aligned(self.size.bytes())?;
        let at = self.size.offset_of(block);
        let read = self.device.read_exact_at(&mut buffer, at);
        self.told(read, at.0, buffer.len() as u64)
            .context(|| format!("read of metadata block {block}"))?;
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::device::Ram;

    /// All changes succeed if several threads change a block that is not in memory. The scheduler can interrupt the reading thread before
    /// the block is in the cache.
    #[test]
    fn several_threads_change_a_block_that_none_of_them_has_read() {
        const THREADS: usize = 4;
        const COUNT: u64 = 3000;
        let size = BlockSize::from_shift(10).unwrap();
        let device = Arc::new(Ram::new(COUNT << 10));
        let blocks = Blocks::new(device, size, COUNT, Arc::default());
        let barrier = Barrier::new(THREADS);
        let place = Place::new("counter");
        let change = |block| {
            barrier.wait();
            blocks.update(FsBlock(block), &Member::in_test(1), place, |bytes| {
                bytes[0] += 1;
                Ok(())
            })
        };
        thread::scope(|scope| {
            // Each thread visits all blocks: at each block, the threads wait for each other at the barrier.
            let count_failed = || (0..COUNT).filter(|block| change(*block).is_err()).count();
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(count_failed)).collect();
            assert!(threads.into_iter().all(|thread| thread.join().unwrap() == 0));
        });
        for block in 0..COUNT {
            assert_eq!(usize::from(blocks.read(FsBlock(block), place).unwrap()[0]), THREADS);
        }
    }
}
