//! Reads of a range of a file, one after the other for the caller, and ahead of the caller on a device that answers late.

use std::collections::BTreeMap;
use std::ops::Range;

use ironmap::bio::{Buffer, Completion, Memory};
use ironmap::dio::DioFlags;
use ironmap::{Engine, Error, File, Queue};

use crate::failure::Failure;

/// Bytes of one read: large enough that the cost of a request does not show.
pub(crate) const CHUNK: usize = 1 << 20;
/// Reads in flight on a server: with 20 ms each they are 400 MiB/s. Elsewhere more memory than the processor's cache has only costs time.
const OF_SERVERS: u64 = 8;

/// The reads of one queue, which has no other requests.
pub(crate) struct Ahead {
    depth: u64,
    /// Whole chunks.
    free: Vec<Buffer>,
    /// The token of the next read. No token is used twice, so that a completion that an error has left is not taken for another.
    token: u64,
    done: BTreeMap<u64, Completion>,
}

impl Ahead {
    /// Of volumes with this engine.
    pub(crate) fn new(engine: Engine) -> Self {
        let depth = if engine == Engine::Nbd { OF_SERVERS } else { 1 };
        Self { depth, free: Vec::new(), token: 0, done: BTreeMap::new() }
    }

    /// Gives the bytes of a range to `take`, in their order; fewer if the file ends before. Gives back where they end.
    pub(crate) fn read(
        &mut self,
        queue: &mut Queue,
        file: &File,
        range: Range<u64>,
        failed: impl Fn(&Error) -> Failure,
        take: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        let result = self.read_in_order(queue, file, range, failed, take);
        // Reads past the end, or after an error.
        while queue.outstanding() > 0 && self.collect(queue).is_ok() {}
        for completion in std::mem::take(&mut self.done).into_values() {
            if let Memory::Flat(buffer) = completion.memory {
                self.keep(buffer);
            }
        }
        result
    }

    fn read_in_order(
        &mut self,
        queue: &mut Queue,
        file: &File,
        range: Range<u64>,
        failed: impl Fn(&Error) -> Failure,
        mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        let (mut next, mut taken, mut first) = (range.start, range.start, self.token);
        while taken < range.end {
            while next < range.end && self.token - first < self.depth {
                let len = (range.end - next).min(CHUNK as u64);
                self.submit(queue, file, next, len as usize).map_err(|error| failed(&error))?;
                next += len;
            }
            let completion = loop {
                if let Some(completion) = self.done.remove(&first) {
                    break completion;
                }
                self.collect(queue).map_err(|error| failed(&error))?;
            };
            first += 1;
            let (count, buffer) = completion.into_buffer().map_err(|error| failed(&error))?;
            let result = take(&buffer[..count]);
            let is_end = count < buffer.len();
            self.keep(buffer);
            result?;
            taken += count as u64;
            if is_end {
                break;
            }
        }
        Ok(taken)
    }

    fn submit(&mut self, queue: &mut Queue, file: &File, at: u64, len: usize) -> Result<(), Error> {
        let kept = if len == CHUNK { self.free.pop() } else { None };
        let buffer = kept.map_or_else(|| Buffer::aligned(len), Ok)?;
        let submitted = file.submit_read(queue, buffer, at, DioFlags::empty(), self.token);
        submitted.map_err(|refused| refused.error)?;
        self.token += 1;
        Ok(())
    }

    /// Waits for a completion, and takes all that have come.
    fn collect(&mut self, queue: &mut Queue) -> Result<(), Error> {
        queue.wait(1)?;
        while let Some(completion) = queue.pop() {
            self.done.insert(completion.token, completion);
        }
        Ok(())
    }

    fn keep(&mut self, buffer: Buffer) {
        if buffer.len() == CHUNK {
            self.free.push(buffer);
        }
    }
}
