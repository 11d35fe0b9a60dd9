//! A file as `std::io` has it: a position that moves on, and a queue of its own.

use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::error::{Error, Result};
use crate::file::File;
use crate::queue::Queue;
use crate::units::FilePos;

/// A file that is read and written from a position on, by [`Read`], [`Write`] and [`Seek`]. Each call is a request of its own to the device:
/// for small pieces put it into a [`BufReader`](io::BufReader) or [`BufWriter`](io::BufWriter).
pub struct Cursor {
    file: File,
    queue: Queue,
    pos: FilePos,
}

impl Cursor {
    /// At the beginning of the file. The queue must be of the file's volume or host.
    #[must_use]
    pub fn new(file: File, queue: Queue) -> Self {
        Self { file, queue, pos: FilePos(0) }
    }

    /// Where the next read or write begins.
    #[must_use]
    pub fn position(&self) -> FilePos {
        self.pos
    }

    /// Makes all written data durable (`fsync`).
    ///
    /// # Errors
    /// As [`File::sync`].
    pub fn sync(&mut self) -> Result<()> {
        self.file.sync(&mut self.queue)
    }

    /// The file and the queue.
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
        // A handle that appends does not say where.
        if self.file.appends() {
            self.pos = FilePos(self.file.size());
            return Ok(count);
        }
        self.moved(count)
    }

    /// Does nothing: nothing is kept back. Written data are durable after [`sync`](Cursor::sync).
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
    Error::invalid("a position that no file can have")
}
