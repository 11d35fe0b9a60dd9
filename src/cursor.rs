//! A file with the interface of `std::io`. The cursor has its own position and its own queue.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::error::{Error, Result};
use crate::file::File;
use crate::queue::Queue;
use crate::units::FilePos;

/// A file with a current position, for [`Read`], [`Write`] and [`Seek`]. Each call is one request to the device. For small transfers, wrap
/// the cursor in a [`BufReader`](io::BufReader) or [`BufWriter`](io::BufWriter).
pub struct Cursor {
    file: File,
    queue: Queue,
    pos: FilePos,
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, pos, .. } = self;
        f.debug_struct("Cursor").field("file", file).field("pos", &pos.0).finish_non_exhaustive()
    }
}

impl Cursor {
    /// Creates a cursor at the beginning of the file. The queue must belong to the file's volume or host.
    #[must_use]
    pub fn new(file: File, queue: Queue) -> Self {
        Self { file, queue, pos: FilePos(0) }
    }

    /// The position of the next read or write.
    #[must_use]
    pub fn position(&self) -> FilePos {
        self.pos
    }

    /// Makes all written data durable (`fsync`).
    ///
    /// # Errors
    /// The errors of [`File::sync`].
    pub fn sync(&mut self) -> Result<()> {
        self.file.sync(&mut self.queue)
    }

    /// Returns the file and the queue.
    #[must_use]
    pub fn into_parts(self) -> (File, Queue) {
        (self.file, self.queue)
    }

    fn moved(&mut self, count: usize) -> io::Result<usize> {
        self.pos = self.pos.checked_add(count as u64).ok_or_else(past_the_end)?;
        Ok(count)
    }
}

impl Read for Cursor {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(&mut self.queue, buf, self.pos)?;
        self.moved(count)
    }
}

impl Write for Cursor {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let count = self.file.write_at(&mut self.queue, buf, self.pos)?;
        // `write_at` does not return the position of an append, so the cursor moves to the end of the file.
        if self.file.appends() {
            self.pos = FilePos(self.file.size());
            return Ok(count);
        }
        self.moved(count)
    }

    /// Does nothing, because the cursor has no buffer. Written data are durable after [`sync`](Cursor::sync).
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Cursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(pos) => Some(pos),
            SeekFrom::Current(distance) => self.pos.0.checked_add_signed(distance),
            SeekFrom::End(distance) => self.file.size().checked_add_signed(distance),
        };
        self.pos = FilePos(to.ok_or_else(past_the_end)?);
        Ok(self.pos.0)
    }
}

fn past_the_end() -> Error {
    Error::invalid("the new position is negative or larger than 2^63 - 1")
}
