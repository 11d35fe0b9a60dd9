//! A thread of the pool. It takes jobs, submits their requests to its queue, and sets their answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ironmap::units::FilePos;
use ironmap::{
    Buffer, Completion, DioFlags, Error, File, FileOptions, Memory, Queue, Readiness, Result,
};

use crate::file::{Appended, Failed, Transferred};
use crate::promise::{Promise, Wakes};
use crate::sync::{Source, source};
use crate::threads::Work;

/// Opens a file of the volume or host of the pool.
pub(crate) type Open = dyn Fn(&Path, FileOptions) -> Result<File> + Send + Sync;

/// A function that the caller passed. It sets its answer itself.
pub(crate) type Run = dyn FnOnce(&mut Queue, &mut Wakes) + Send;

/// The work that a thread does for one request.
pub(crate) enum Job {
    Read {
        file: File,
        buffer: Buffer,
        pos: FilePos,
        promise: Promise<Transferred>,
    },
    Write {
        file: File,
        buffer: Buffer,
        pos: FilePos,
        flags: DioFlags,
        promise: Promise<Transferred>,
    },
    Append {
        file: File,
        buffer: Buffer,
        flags: DioFlags,
        promise: Promise<Appended>,
    },
    Sync {
        file: File,
        data_only: bool,
        promise: Promise<Result<()>>,
    },
    Run(Box<Run>),
    Open {
        path: PathBuf,
        options: FileOptions,
        promise: Promise<Result<File>>,
    },
}

/// A request in flight.
enum InFlight {
    Transfer(Promise<Transferred>),
    Append(FilePos, usize, Promise<Appended>),
}

/// The queue of a thread, and its requests in flight.
pub(crate) struct Worker {
    queue: Queue,
    open: Arc<Open>,
    /// The descriptor that signals the queue's completions. A polled device has none. Then the thread waits for a completion, and takes no
    /// job during this wait.
    ready: Option<Readiness>,
    /// The requests in flight, by their tokens.
    requests: Vec<Option<InFlight>>,
    free: Vec<usize>,
    wakes: Wakes,
}

impl Worker {
    pub(crate) fn new(mut queue: Queue, depth: usize, open: Arc<Open>) -> Self {
        let ready = queue.readiness().ok();
        let requests = (0..depth).map(|_| None).collect();
        let (free, wakes) = ((0..depth).rev().collect(), Wakes::default());
        Self { queue, open, ready, requests, free, wakes }
    }

    /// Returns a free token. One is free, because the thread takes no more jobs than there are free tokens.
    fn token(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.requests.push(None);
            self.requests.len() - 1
        })
    }

    fn began(
        &mut self,
        token: usize,
        submitted: Result<(), Box<ironmap::Rejected>>,
        request: InFlight,
    ) {
        match submitted {
            Ok(()) => self.requests[token] = Some(request),
            Err(rejected) => {
                self.free.push(token);
                request.end(Err(rejected.error), rejected.memory, &mut self.wakes);
            }
        }
    }
}

impl Work for Worker {
    type Job = Job;

    fn blocks(job: &Job) -> bool {
        matches!(job, Job::Sync { .. } | Job::Run(_) | Job::Open { .. })
    }

    fn room(&self) -> usize {
        self.free.len()
    }

    fn in_flight(&self) -> usize {
        self.requests.len() - self.free.len()
    }

    fn begin(&mut self, job: Job) {
        if Self::blocks(&job) {
            // This job blocks the thread. So the requests that were begun are submitted first.
            self.collect();
        }
        match job {
            Job::Read { file, buffer, pos, promise } => {
                let token = self.token();
                let flags = DioFlags::empty();
                let submitted = file.submit_read(&mut self.queue, buffer, pos, flags, token as u64);
                self.began(token, submitted, InFlight::Transfer(promise));
            }
            Job::Write { file, buffer, pos, flags, promise } => {
                let token = self.token();
                let submitted =
                    file.submit_write(&mut self.queue, buffer, pos, flags, token as u64);
                self.began(token, submitted, InFlight::Transfer(promise));
            }
            Job::Append { file, buffer, flags, promise } => {
                let (token, len) = (self.token(), buffer.len());
                let submitted = file.submit_append(&mut self.queue, buffer, flags, token as u64);
                let (pos, submitted) = match submitted {
                    Ok(pos) => (pos, Ok(())),
                    Err(rejected) => (FilePos(0), Err(rejected)),
                };
                self.began(token, submitted, InFlight::Append(pos, len, promise));
            }
            Job::Sync { file, data_only, promise } => {
                let synced = match data_only {
                    true => file.sync_data(&mut self.queue),
                    false => file.sync(&mut self.queue),
                };
                promise.keep(synced, &mut self.wakes);
            }
            // If the function panics, the thread continues, and so do the requests in flight. The answer of the function is lost.
            Job::Run(run) => {
                drop(catch_unwind(AssertUnwindSafe(|| run(&mut self.queue, &mut self.wakes))));
            }
            Job::Open { path, options, promise } => {
                promise.keep((self.open)(&path, options), &mut self.wakes);
            }
        }
    }

    fn collect(&mut self) -> usize {
        let mut count = 0;
        if self.in_flight() > 0 {
            // The error is ignored. After a permanent error, the queue returns this error as the result of each request that the kernel has
            // not accepted.
            let _ = self.queue.poll();
            while let Some(Completion { token, memory, result, .. }) = self.queue.pop() {
                count += 1;
                if let Some(request) = self.requests[token as usize].take() {
                    self.free.push(token as usize);
                    request.end(result, memory, &mut self.wakes);
                }
            }
        }
        self.wakes.wake();
        count
    }

    fn source(&self) -> Option<Source<'_>> {
        self.ready.as_ref().and_then(source)
    }

    fn reset(&self) {
        if let Some(ready) = &self.ready {
            ready.clear();
        }
    }

    fn wait(&mut self) {
        // An error is ignored, as in `collect`.
        let _ = self.queue.wait(1);
    }
}

impl InFlight {
    fn end(self, result: Result<usize>, memory: Memory, wakes: &mut Wakes) {
        let buffer = match memory {
            Memory::Flat(buffer) => Some(buffer),
            Memory::Vectored(buffers) => buffers.into_iter().next(),
        };
        let answer = |result: Result<usize>| match (result, buffer) {
            (Ok(count), Some(buffer)) => Ok((count, buffer)),
            (Ok(_), None) => Err(Failed::lost_memory()),
            (Err(error), buffer) => Err(Failed { error, buffer }),
        };
        match self {
            Self::Transfer(promise) => promise.keep(answer(result), wakes),
            Self::Append(pos, len, promise) => {
                let appended = match answer(result) {
                    Ok((count, buffer)) if count < len => {
                        let what = format!("only {count} of {len} bytes were appended");
                        let error = Error::new(ironmap::ErrorKind::NoSpace, what);
                        Err(Failed { error, buffer: Some(buffer) })
                    }
                    answer => answer.map(|(_, buffer)| (pos, buffer)),
                };
                promise.keep(appended, wakes);
            }
        }
    }
}
