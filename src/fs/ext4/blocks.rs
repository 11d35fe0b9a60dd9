//! Metadata blocks: read once, kept in memory within a limit, and seen as the journal's recovery leaves them.

use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::Arc;

use quick_cache::sync::Cache;

use super::disk::journal;
use crate::device::Device;
use crate::error::{Context, ErrorKind, Place, Result};
use crate::events::{Direction, ErrorEvent, Events};
use crate::sys::Buffer;
use crate::units::{BlockSize, FilePos, FsBlock, InodeNo};

/// How much memory cached metadata blocks may take, in bytes.
const CACHE_BYTES: usize = 64 << 20;

/// A block of metadata, shared and immutable.
#[derive(Clone)]
pub(crate) struct Block(Arc<Buffer>);

impl Block {
    pub(crate) fn new(buffer: Buffer) -> Self {
        Self(Arc::new(buffer))
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Where the current content of a block stands when it is not at its own place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relocated {
    /// In this block of the journal, as it is.
    Journal(FsBlock),
    /// In this block of the journal, but for its first four bytes: they are the journal's magic number, and zero there.
    Escaped(FsBlock),
}

/// What an in-memory recovery of the journal changes: the blocks that the device does not hold at their own place.
#[derive(Default)]
pub(crate) struct Overlay(BTreeMap<FsBlock, Relocated>);

impl Overlay {
    pub(crate) fn insert(&mut self, block: FsBlock, content: Relocated) {
        self.0.insert(block, content);
    }

    pub(crate) fn get(&self, block: FsBlock) -> Option<Relocated> {
        self.0.get(&block).copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The relocated blocks within a range, in order.
    pub(crate) fn range(
        &self,
        blocks: Range<FsBlock>,
    ) -> impl Iterator<Item = (FsBlock, Relocated)> {
        self.0.range(blocks).map(|(block, content)| (*block, *content))
    }
}

/// All metadata reads of a volume go through here.
pub(crate) struct Blocks {
    device: Arc<dyn Device>,
    size: BlockSize,
    count: u64,
    cache: Cache<FsBlock, Block>,
    overlay: Overlay,
    events: Arc<Events>,
}

impl Blocks {
    /// Blocks of `size` bytes, `count` of them; the device's errors are told to `events`.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        size: BlockSize,
        count: u64,
        events: Arc<Events>,
    ) -> Self {
        let cache = Cache::new(CACHE_BYTES / size.bytes());
        Self { device, size, count, cache, overlay: Overlay::default(), events }
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(crate) fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// From now on these blocks are seen where recovery found them. What was cached before is forgotten.
    pub(crate) fn set_overlay(&mut self, overlay: Overlay) {
        self.overlay = overlay;
        self.cache.clear();
    }

    /// Whether `count` blocks from `block` lie within the file system.
    pub(crate) fn contain(&self, block: FsBlock, count: u64) -> bool {
        block.0.checked_add(count).is_some_and(|end| end <= self.count)
    }

    /// A block of metadata. `place` names the structure and field that point to it, for the error.
    pub(crate) fn read(&self, block: FsBlock, place: Place) -> Result<Block> {
        if !self.contain(block, 1) {
            let count = self.count;
            return Err(place.corrupt(format!("points to block {block} of {count}")));
        }
        if let Some(hit) = self.cache.get(&block) {
            return Ok(hit);
        }
        let content = match self.overlay.get(block) {
            None => self.read_device(block)?,
            Some(copy) => self.read_relocated(copy)?,
        };
        self.cache.insert(block, content.clone());
        Ok(content)
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

    /// A block as the device holds it, neither cached nor relocated. The caller has checked the number.
    pub(crate) fn read_device(&self, block: FsBlock) -> Result<Block> {
        self.read_buffer(block).map(Block::new)
    }

    fn read_buffer(&self, block: FsBlock) -> Result<Buffer> {
        let mut buffer = Buffer::aligned(self.size.bytes())?;
        let at = self.size.offset_of(block);
        let read = self.device.read_exact_at(&mut buffer, at);
        if let Err(ErrorKind::Io(errno)) = read.as_ref().map_err(|error| error.kind()) {
            self.events.report(ErrorEvent {
                direction: Direction::Metadata,
                inode: InodeNo(0),
                pos: FilePos(at.0),
                len: buffer.len() as u64,
                errno,
            });
        }
        read.context(|| format!("metadata block {block}"))?;
        Ok(buffer)
    }
}
