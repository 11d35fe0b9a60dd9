//! Reads metadata in pieces of several blocks. A check reads nearly all metadata, and many metadata blocks are contiguous. Larger reads
//! therefore save requests.

use std::ops::Deref;
use std::sync::Arc;

use quick_cache::unsync::Cache;

use crate::device::{Ahead, AheadQueue};
use crate::error::{Place, Result};
use crate::fs::ext4::Ext4;
use crate::sys::Buffer;
use crate::units::FsBlock;

/// The size of a piece in bytes. A read at a random position reads one piece. If the block size is larger than this size, a piece is one
/// block.
const PIECE: usize = 16 << 10;
/// The maximum number of pieces (several adjacent blocks each) in one read. Only sequential reads reach this maximum.
const AHEAD: u64 = 64;
/// The maximum total size in bytes of the cached blocks.
const KEPT: usize = 32 << 20;

/// The reader of metadata in the state after the journal's recovery.
pub(super) struct Reader<'a> {
    fs: &'a Ext4,
    /// The cached pieces by number. A piece consists of adjacent blocks that are read together. Pieces that were read in one request share
    /// a buffer.
    pieces: Cache<u64, Piece>,
    blocks_per_piece: u64,
    /// To detect sequential reads: the number of the piece (several adjacent blocks) that follows the last read, and the number of pieces
    /// in that read.
    next: u64,
    sequence: u64,
    /// The blocks that were read ahead at the caller's request.
    ahead: Ahead,
    queue: AheadQueue<'a>,
}

/// A buffer, and the number of the first block in it.
#[derive(Clone)]
struct Piece {
    first: u64,
    buffer: Arc<Buffer>,
}

/// A block in memory, or a part of it.
#[derive(Clone)]
pub(super) struct Bytes {
    buffer: Arc<Buffer>,
    at: usize,
    len: usize,
}

impl Bytes {
    pub(super) fn all(content: &[u8]) -> Self {
        Self { buffer: Arc::new(content.to_vec().into()), at: 0, len: content.len() }
    }

    /// Returns the `len` bytes at offset `at` of this block. The bytes are not copied.
    pub(super) fn part(&self, at: usize, len: usize) -> Self {
        debug_assert!(at + len <= self.len);
        Self { buffer: Arc::clone(&self.buffer), at: self.at + at, len }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.at..self.at + self.len]
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(fs: &'a Ext4) -> Self {
        let piece = PIECE.max(fs.superblock.block_size.bytes());
        let blocks_per_piece = (piece >> fs.superblock.block_size.shift()) as u64;
        let (ahead, queue) = (Ahead::default(), AheadQueue::new(&**fs.blocks.device()));
        Self {
            fs,
            pieces: Cache::new(KEPT / piece),
            blocks_per_piece,
            next: 0,
            sequence: 1,
            ahead,
            queue,
        }
    }

    /// Reads runs of blocks ahead, so that [`block`](Self::block) can return them from memory. Each run consists of its first block and the
    /// number of its blocks. The blocks of the previous call are dropped. At most `BATCH` bytes are read ahead; other blocks are read when
    /// they are needed.
    pub(super) fn announce(&mut self, runs: impl Iterator<Item = (FsBlock, u64)>) {
        let size = self.fs.superblock.block_size;
        let bytes = |(first, count): (FsBlock, u64)| {
            let start = size.offset_of(first).0;
            start..start.saturating_add(count.saturating_mul(size.bytes() as u64))
        };
        self.ahead.read(&mut self.queue, runs.map(bytes).collect());
    }

    /// Returns a block that was read ahead. Returns `None` for a block whose current content is in the journal, because the block that was
    /// read ahead is outdated.
    fn announced(&self, block: FsBlock) -> Option<Bytes> {
        let size = self.fs.superblock.block_size;
        let (buffer, at) = self.ahead.get(size.offset_of(block).0, size.bytes())?;
        let is_moved = self.fs.blocks.overlay().get(block).is_some();
        (!is_moved).then(|| Bytes { buffer: Arc::clone(buffer), at, len: size.bytes() })
    }

    /// Reads a block, together with the adjacent blocks of its piece. If this read fails, the unreadable sector may be in another block of
    /// the piece. In this case only the requested block is read.
    pub(super) fn block(&mut self, block: FsBlock, place: Place) -> Result<Bytes> {
        // A transaction may contain a version of the block that is newer than the block on the device.
        if let Some(content) = self.fs.blocks.dirty().get(block) {
            return Ok(Bytes::all(&content));
        }
        // The last piece (several adjacent blocks) may be shorter, because it ends at the volume's end.
        if self.fs.superblock.contains(block) {
            if let Some(bytes) = self.announced(block) {
                return Ok(bytes);
            }
            let number = block.0 / self.blocks_per_piece;
            if let Some(piece) = self.pieces.get(&number) {
                return Ok(self.within(piece.clone(), block));
            }
            if let Ok(piece) = self.load(number) {
                return Ok(self.within(piece, block));
            }
        }
        self.fs.blocks.read(block, place).map(|content| Bytes::all(&content))
    }

    fn within(&self, piece: Piece, block: FsBlock) -> Bytes {
        let size = self.fs.superblock.block_size;
        let at = ((block.0 - piece.first) as usize) << size.shift();
        Bytes { buffer: piece.buffer, at, len: size.bytes() }
    }

    /// Reads a piece (several adjacent blocks). Each sequential read has twice as many pieces as the previous read, up to a limit.
    fn load(&mut self, number: u64) -> Result<Piece> {
        self.sequence = if number == self.next { (self.sequence * 2).min(AHEAD) } else { 1 };
        self.next = number + self.sequence;
        let (blocks, size) = (&self.fs.blocks, self.fs.superblock.block_size);
        let count = self.fs.superblock.blocks_count;
        let first = number * self.blocks_per_piece;
        let end = (self.next * self.blocks_per_piece).min(count);
        let mut buffer = Buffer::aligned(((end - first) as usize) << size.shift())?;
        blocks.device().read_exact_at(&mut buffer, size.offset_of(FsBlock(first)))?;
        for (block, copy) in blocks.overlay().range(FsBlock(first)..FsBlock(end)) {
            let content = blocks.read_relocated(copy)?;
            let at = ((block.0 - first) as usize) << size.shift();
            buffer[at..at + size.bytes()].copy_from_slice(&content);
        }
        let piece = Piece { first, buffer: Arc::new(buffer) };
        for number in number..end.div_ceil(self.blocks_per_piece) {
            self.pieces.insert(number, piece.clone());
        }
        Ok(piece)
    }
}
