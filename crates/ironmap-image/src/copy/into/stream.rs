//! Writes the content of large files with direct writes, several of which are in flight at a time.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use ironmap::bio::Buffer;
use ironmap::dio::{Completion, DioFlags};
use ironmap::units::FilePos;
use ironmap::{Error, ErrorKind, File, Queue, Result};

use super::step::PIECE;
use crate::progress::Progress;

/// The maximum number of writes in flight.
const IN_FLIGHT: usize = 4;
/// A length in bytes that is a multiple of every device's sector size.
const SECTORS: usize = 4096;

/// The maximum length of a small file in bytes. The memory for several small files is split off from one buffer of `PIECE` bytes.
const SMALL: usize = 64 << 10;

/// Buffers of `PIECE` bytes. They are reused, because allocating new pages would take as long as copying the data. Small files share a
/// buffer, because many allocations of different lengths are slow.
#[derive(Clone, Default)]
pub(super) struct Pieces(Arc<Mutex<Spare>>);

#[derive(Default)]
struct Spare {
    whole: Vec<Buffer>,
    /// The unused part of the buffer from which small files get their memory.
    rest: Option<Buffer>,
}

impl Pieces {
    /// Returns memory of this length, with arbitrary content.
    pub(super) fn take(&self, len: usize) -> Result<Buffer> {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if len > SMALL {
            let whole = if len == PIECE as usize { spare.whole.pop() } else { None };
            return whole.map_or_else(|| Buffer::aligned(len), Ok);
        }
        let room = len.next_multiple_of(SECTORS);
        let mut rest = match spare.rest.take().filter(|rest| rest.len() >= room) {
            Some(rest) => rest,
            None => Buffer::aligned(PIECE as usize)?,
        };
        let mut memory = rest.split_to(room);
        spare.rest = Some(rest);
        Ok(memory.split_to(len))
    }

    /// Returns memory for reuse. A buffer is freed if its length is not `PIECE`.
    pub(super) fn put(&self, memory: impl IntoIterator<Item = Buffer>) {
        let whole = memory.into_iter().filter(|buffer| buffer.len() == PIECE as usize);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).whole.extend(whole);
    }
}

/// Direct writes to one file at a time. The caller must finish them before any other operation on the file.
pub(super) struct Stream {
    queue: Queue,
    pieces: Pieces,
}

impl Stream {
    pub(super) fn new(queue: Queue, pieces: Pieces) -> Self {
        Self { queue, pieces }
    }

    /// Starts a write. If the maximum number of writes is in flight, waits for a completion first. The returned error may belong to an
    /// earlier write.
    pub(super) fn write(
        &mut self,
        file: &File,
        pos: FilePos,
        mut bytes: Buffer,
        progress: &Progress,
    ) -> Result<()> {
        // The last, partial sector is written separately, so that the copy waits only for that write.
        let whole = bytes.len() / SECTORS * SECTORS;
        let rest = if whole < bytes.len() {
            let head = bytes.split_to(whole);
            Some(mem::replace(&mut bytes, head))
        } else {
            None
        };
        let behind = FilePos(pos.0 + whole as u64);
        for (pos, bytes) in [(pos, Some(bytes)), (behind, rest)] {
            let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) else { continue };
            self.wait(IN_FLIGHT - 1, progress)?;
            let flags = DioFlags::empty();
            let started = file.submit_write(&mut self.queue, bytes, pos, flags, 0);
            started.map_err(|rejected| rejected.error)?;
        }
        self.queue.poll()?;
        self.take(progress)
    }

    /// Waits until no write is in flight, and returns the first error.
    pub(super) fn finish(&mut self, progress: &Progress) -> Result<()> {
        self.wait(0, progress)
    }

    /// Waits until at most `most` writes are in flight.
    fn wait(&mut self, most: usize, progress: &Progress) -> Result<()> {
        let mut result = Ok(());
        while self.queue.outstanding() > most {
            self.queue.wait(1)?;
            result = result.and(self.take(progress));
        }
        result
    }

    /// Takes the completed writes from the queue.
    fn take(&mut self, progress: &Progress) -> Result<()> {
        let mut first = Ok(());
        while let Some(Completion { memory, result, .. }) = self.queue.pop() {
            let written = result.and_then(|count| {
                progress.advance(count as u64);
                check_whole(count, memory.len())
            });
            first = first.and(written);
            self.pieces.put(memory.into_buffers());
        }
        first
    }
}

/// Checks that a write was complete. A short write means that the volume has no more space.
pub(super) fn check_whole(count: usize, len: usize) -> Result<()> {
    if count == len {
        return Ok(());
    }
    Err(Error::new(ErrorKind::NoSpace, "the volume has no free blocks"))
}

/// Waits until no write is in flight.
pub(super) fn finish(stream: &mut Option<Stream>, progress: &Progress) -> Result<()> {
    stream.as_mut().map_or(Ok(()), |stream| stream.finish(progress))
}
