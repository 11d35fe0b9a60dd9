//! A file of a pool. The threads of the pool carry out its requests.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ironmap::units::FilePos;
use ironmap::{Buffer, DioFlags, Error, ErrorKind, File};

use crate::pool::Pool;
use crate::promise::{Answer, Lost, Promise, promise};
use crate::worker::Job;

/// The number of bytes that were read or written, and the buffer.
pub(crate) type Transferred = Result<(usize, Buffer), Failed>;

/// The position of an append, and the buffer.
pub(crate) type Appended = Result<(FilePos, Buffer), Failed>;

/// A request that failed, with its buffer.
#[derive(Debug)]
#[non_exhaustive]
pub struct Failed {
    /// The error.
    pub error: Error,
    /// The memory. `None` if the thread of the request panicked, or if the queue of this thread was lost
    /// ([`abandoned`](crate::PoolReport::abandoned)).
    pub buffer: Option<Buffer>,
}

impl Failed {
    pub(crate) fn lost_memory() -> Self {
        Self { error: lost(), buffer: None }
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Busy, "the thread that carried out the request has ended")
}

impl<T> Lost for Result<T, Failed> {
    fn lost() -> Self {
        Err(Failed::lost_memory())
    }
}

impl<T, E: From<Error>> Lost for Result<T, E> {
    fn lost() -> Self {
        Err(lost().into())
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

/// A file of a pool. The threads of the pool carry out its requests. A clone is cheap and refers to the same file.
#[derive(Clone)]
pub struct AsyncFile {
    /// The open file. Each request holds a clone of this `Arc`, which is smaller than a [`File`] and faster to copy.
    file: Arc<File>,
    pool: Pool,
    /// Whether a read occupies its thread until the read is complete.
    waits: bool,
}

impl AsyncFile {
    pub(crate) fn new(file: File, pool: Pool, waits: bool) -> Self {
        Self { file: Arc::new(file), pool, waits }
    }

    /// The file itself, for calls that need no queue.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The pool that carries out the requests of this file.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Starts a read that fills `buffer`. The answer contains the number of bytes read and the buffer. At the end of the file, the number
    /// can be smaller than the length of the buffer.
    pub fn read_at(
        &self,
        buffer: Buffer,
        pos: impl Into<FilePos>,
    ) -> Answer<Result<(usize, Buffer), Failed>> {
        let (promise, answer) = promise();
        self.pool.push(self.read(buffer, pos.into(), promise));
        answer
    }

    /// Starts several reads together. Returns one answer for each range, in the order of the ranges.
    pub fn read_ranges(&self, ranges: Vec<(FilePos, Buffer)>) -> Ranges {
        let mut answers = Vec::with_capacity(ranges.len());
        let jobs = ranges.into_iter().map(|(pos, buffer)| {
            let (promise, answer) = promise();
            answers.push(Range::Waiting(answer));
            self.read(buffer, pos, promise)
        });
        self.pool.push_all(jobs);
        Ranges(answers)
    }

    fn read(&self, buffer: Buffer, pos: FilePos, promise: Promise<Transferred>) -> Job {
        Job::Read { file: Arc::clone(&self.file), buffer, pos, waits: self.waits, promise }
    }

    /// Starts a write of all of `buffer`. Without [`DioFlags::DSYNC`], the data are durable after the next [`sync`](Self::sync).
    pub fn write_at(
        &self,
        buffer: Buffer,
        pos: impl Into<FilePos>,
        flags: DioFlags,
    ) -> Answer<Result<(usize, Buffer), Failed>> {
        let (promise, answer) = promise();
        let (file, pos) = (Arc::clone(&self.file), pos.into());
        self.pool.push(Job::Write { file, buffer, pos, flags, promise });
        answer
    }

    /// Starts an append of the whole `buffer`. The answer contains the position of the appended data.
    pub fn append(
        &self,
        buffer: Buffer,
        flags: DioFlags,
    ) -> Answer<Result<(FilePos, Buffer), Failed>> {
        let (promise, answer) = promise();
        self.pool.push(Job::Append { file: Arc::clone(&self.file), buffer, flags, promise });
        answer
    }

    /// Makes all completed writes of the file durable, together with all of its metadata.
    pub fn sync(&self) -> Answer<ironmap::Result<()>> {
        self.sync_with(false)
    }

    /// Makes all completed writes of the file durable, together with the metadata that are needed to read the data.
    pub fn sync_data(&self) -> Answer<ironmap::Result<()>> {
        self.sync_with(true)
    }

    fn sync_with(&self, data_only: bool) -> Answer<ironmap::Result<()>> {
        let (promise, answer) = promise();
        self.pool.push(Job::Sync { file: Arc::clone(&self.file), data_only, promise });
        answer
    }
}

/// The reads of several ranges. This future is ready when all of the reads are complete.
#[must_use = "the reads run in any case, but only an awaited future returns their data"]
pub struct Ranges(Vec<Range>);

enum Range {
    Waiting(Answer<Transferred>),
    Ready(Transferred),
}

impl Future for Ranges {
    type Output = Vec<Result<(usize, Buffer), Failed>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut waits = false;
        for range in &mut self.0 {
            if let Range::Waiting(answer) = range {
                match Pin::new(answer).poll(context) {
                    Poll::Ready(value) => *range = Range::Ready(value),
                    Poll::Pending => waits = true,
                }
            }
        }
        if waits {
            return Poll::Pending;
        }
        let ready = self.0.drain(..).map(|range| match range {
            Range::Ready(value) => value,
            Range::Waiting(_) => Err(Failed::lost_memory()),
        });
        Poll::Ready(ready.collect())
    }
}
