//! Reads metadata, and caches them in a limited amount of memory. The returned metadata include the changes from the log's recovery.

use std::ops::Range;
use std::sync::Arc;

use super::geometry::Geometry;
use super::overlay::{Overlay, Replayed};
use super::symlink::MOST_BLOCKS;
use crate::device::{Ahead, AheadQueue, Device};
use crate::error::{Context, ErrorKind, Place, Result};
use crate::events::{Direction, ErrorEvent, Events};
use crate::fs::block::Block;
use crate::sync::{Cache, Mutex};
use crate::sys::Buffer;
use crate::units::{DevOffset, FilePos, FsBlock, InodeNo};

/// The maximum sizes of the caches in bytes. `INODE_BYTES` limits the cache of inode blocks. `CACHE_BYTES` limits the cache of single
/// blocks, and also the cache of structures.
const INODE_BYTES: usize = 16 << 20;
const CACHE_BYTES: usize = 16 << 20;

/// The reader of all metadata of a volume.
pub(crate) struct Metadata {
    device: Arc<dyn Device>,
    geometry: Geometry,
    cache: Cache<FsBlock, Block>,
    /// The runs of inode blocks, by first block.
    inodes: Cache<FsBlock, Block>,
    /// Structures that consist of several blocks. The key is the list of the blocks.
    structures: Cache<Vec<FsBlock>, Block>,
    pub(super) overlay: Overlay,
    /// The log position (LSN) of the log's head. This field has the maximum value if the log is not read, or if the metadata of this volume
    /// contain no log positions.
    pub(super) head: u64,
    events: Arc<Events>,
    /// Blocks that were read ahead for a check of the volume.
    ahead: Mutex<Ahead>,
}

impl Metadata {
    pub(super) fn new(device: Arc<dyn Device>, geometry: Geometry, events: Arc<Events>) -> Self {
        let cache = Cache::new(CACHE_BYTES / geometry.block.bytes());
        let inodes = Cache::new(INODE_BYTES / geometry.inode_run_bytes());
        let largest = geometry.dir_block().max(MOST_BLOCKS as usize * geometry.block.bytes());
        let structures = Cache::new(CACHE_BYTES / largest);
        let (overlay, head) = (Overlay::default(), u64::MAX);
        let ahead = Mutex::default();
        Self { device, geometry, cache, inodes, structures, overlay, head, events, ahead }
    }

    /// Refuses a structure whose last change is past the head of the log, as Linux does. The log records of that change are lost. These
    /// records may also have contained changes of other structures, which are then missing.
    pub(super) fn check_age(&self, lsn: u64, place: Place) -> Result<()> {
        if self.is_past_head(lsn) {
            let head = self.head;
            let what = format!(
                "the LSN {lsn:#x} is past the head of the log, {head:#x}: log records are lost, run xfs_repair (--noload reads the volume anyway)"
            );
            return Err(place.field("lsn").corrupt(what));
        }
        Ok(())
    }

    /// Whether a structure's last change is past the head of the log. The LSN in a structure that is never logged is the maximum value; for
    /// such a structure, the result is false.
    pub(super) fn is_past_head(&self, lsn: u64) -> bool {
        lsn != u64::MAX && lsn > self.head
    }

    pub(super) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Reads one block. The caller has checked the block number.
    pub(super) fn block(&self, block: FsBlock) -> Result<Block> {
        self.cache.get_or_insert_with(&block, || self.read(&[block]).map(Block::new))
    }

    /// Reads the run of inode blocks that contains `block`. The other blocks of the run are likely to be needed next. Returns the run and
    /// the byte offset of `block` in the run. If the run cannot be read as a whole, only `block` is read.
    pub(super) fn inodes(&self, block: FsBlock) -> Result<(Block, usize)> {
        let Range { start, end } = self.geometry.inode_blocks(block);
        let run = || {
            let blocks: Vec<_> = (start..end).map(FsBlock).collect();
            self.read(&blocks).map(Block::new)
        };
        if (start..end).contains(&block.0)
            && let Ok(content) = self.inodes.get_or_insert_with(&FsBlock(start), run)
        {
            return Ok((content, (block.0 - start) as usize * self.geometry.block.bytes()));
        }
        Ok((self.block(block)?, 0))
    }

    /// Reads the blocks of one structure, which need not be contiguous.
    pub(super) fn blocks(&self, blocks: &[FsBlock]) -> Result<Block> {
        match blocks {
            [block] => self.block(*block),
            blocks => {
                let read = || self.read(blocks).map(Block::new);
                self.structures.get_or_insert_with(&blocks.to_vec(), read)
            }
        }
    }

    /// Whether recovery of the log changed any of these blocks.
    pub(super) fn replayed(&self, blocks: &[FsBlock]) -> Replayed {
        let size = self.geometry.block;
        let touched =
            |block: &FsBlock| self.overlay.touches(size.offset_of(*block).0, size.bytes());
        let any = blocks.iter().any(|block| touched(block) == Replayed::Yes);
        if any { Replayed::Yes } else { Replayed::No }
    }

    fn read(&self, blocks: &[FsBlock]) -> Result<Buffer> {
        let size = self.geometry.block;
        let mut buffer = Buffer::aligned(size.bytes() * blocks.len())?;
        let mut rest = &mut buffer[..];
        let mut blocks = blocks;
        while let Some(first) = blocks.first() {
            let adjoins = |(at, block): (usize, &FsBlock)| block.0 == first.0 + at as u64;
            let count = blocks.iter().enumerate().take_while(|entry| adjoins(*entry)).count();
            let (run, behind) = rest.split_at_mut(count * size.bytes());
            self.read_at(size.offset_of(*first), run)?;
            (rest, blocks) = (behind, &blocks[count..]);
        }
        Ok(buffer)
    }

    /// Reads runs of blocks ahead, together, for a check that will need them. Each run consists of its first block and the number of its
    /// blocks. Blocks that an earlier call read ahead are dropped. At most `BATCH` bytes are read ahead; all other blocks are read when
    /// they are needed.
    pub(super) fn announce(
        &self,
        queue: &mut AheadQueue<'_>,
        runs: impl Iterator<Item = (FsBlock, u64)>,
    ) {
        let size = self.geometry.block;
        let bytes = |(first, count): (FsBlock, u64)| {
            let start = size.offset_of(first).0;
            start..start.saturating_add(count.saturating_mul(size.bytes() as u64))
        };
        self.ahead.lock().read(queue, runs.map(bytes).collect());
    }

    /// Reads whole sectors of the device in their state after recovery.
    pub(super) fn read_at(&self, at: DevOffset, bytes: &mut [u8]) -> Result<Replayed> {
        if let Some((buffer, offset)) = self.ahead.lock().get(at.0, bytes.len()) {
            bytes.copy_from_slice(&buffer[offset..offset + bytes.len()]);
        } else {
            let read = self.device.read_exact_at(bytes, at);
            let read = self.told(read, at, bytes.len() as u64);
            read.context(|| format!("read of metadata at byte {at}"))?;
        }
        Ok(self.overlay.patch(at.0, bytes))
    }

    /// Makes all writes to the device durable.
    ///
    /// # Errors
    /// `Io`. After a failed flush or a failed write-through request, all later calls return the same error.
    pub(super) fn flush(&self) -> Result<()> {
        let flushed = self.events.durability().flush(&*self.device);
        self.told(flushed, DevOffset(0), 0).context(|| "flush the device")
    }

    /// If `result` is an I/O error of the device, reports it as an event. Returns `result` unchanged.
    fn told(&self, result: Result<()>, at: DevOffset, len: u64) -> Result<()> {
        if let Err(ErrorKind::Io(errno)) = result.as_ref().map_err(|error| error.kind()) {
            let (direction, inode, pos) = (Direction::Metadata, InodeNo(0), FilePos(at.0));
            self.events.report(ErrorEvent { direction, inode, pos, len, errno });
        }
        result
    }
}
