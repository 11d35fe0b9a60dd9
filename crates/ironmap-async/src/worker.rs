//! A thread of the pool: it takes jobs, submits their requests to its queue, and sets their answers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ironmap::units::FilePos;
use ironmap::{
    Buffer, Completion, DioFlags, Errno, Error, File, FileOptions, Memory, Queue, Readiness, Result,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::file::{Appended, Failed, Transferred};
use crate::pool::Shared;
use crate::promise::Promise;

/// Opens a file of the pool's volume or host.
pub(crate) type Open = dyn Fn(&Path, FileOptions) -> Result<File> + Send + Sync;

/// A function of the caller. It sets its answer itself.
pub(crate) type Run = dyn FnOnce(&mut Queue) + Send;

/// The work of one request.
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

struct Worker<'a> {
    shared: &'a Shared,
    index: usize,
    queue: Queue,
    /// The descriptor of the queue's completions. A polled device has none: then the thread waits for a completion, and takes no job
    /// meanwhile.
    ready: Option<Readiness>,
    /// The requests in flight, by their tokens.
    requests: Vec<Option<InFlight>>,
    free: Vec<usize>,
}

pub(crate) fn run(shared: &Shared, index: usize, mut queue: Queue, depth: usize) {
    let _end = EndOfThread(shared);
    let ready = queue.readiness().ok();
    let requests = (0..depth).map(|_| None).collect();
    let mut worker =
        Worker { shared, index, queue, ready, requests, free: (0..depth).rev().collect() };
    let mut jobs = Vec::with_capacity(depth);
    loop {
        let open = shared.take(worker.free.len(), &mut jobs);
        let began = jobs.len();
        jobs.drain(..).for_each(|job| worker.begin(job));
        let ended = worker.collect();
        if worker.in_flight() == 0 && open.is_none() {
            return;
        }
        if began + ended == 0 {
            worker.wait();
        }
    }
}

impl Worker<'_> {
    fn in_flight(&self) -> usize {
        self.requests.len() - self.free.len()
    }

    /// Submits a job. A job that cannot be in flight is carried out before the call returns.
    fn begin(&mut self, job: Job) {
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
            Job::Sync { file, data_only, promise } => promise.keep(match data_only {
                true => file.sync_data(&mut self.queue),
                false => file.sync(&mut self.queue),
            }),
            // A panic of the function ends neither the thread nor the requests in flight. The answer is then lost.
            Job::Run(run) => {
                drop(catch_unwind(AssertUnwindSafe(|| run(&mut self.queue))));
            }
            Job::Open { path, options, promise } => {
                promise.keep(self.shared.open_with(&path, options));
            }
        }
    }

    /// A free token. The thread takes no more jobs than there are free tokens.
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
                request.end(Err(rejected.error), rejected.memory);
            }
        }
    }

    /// Sets the answers of completed requests; returns their number.
    fn collect(&mut self) -> usize {
        if self.in_flight() == 0 {
            return 0;
        }
        if let Some(ready) = &self.ready {
            // A completion after this call makes the descriptor readable again.
            ready.clear();
        }
        // An error is ignored: after a permanent error, the requests that the kernel has not accepted are popped with this error.
        let _ = self.queue.poll();
        let mut count = 0;
        while let Some(Completion { token, memory, result, .. }) = self.queue.pop() {
            count += 1;
            if let Some(request) = self.requests[token as usize].take() {
                self.free.push(token as usize);
                request.end(result, memory);
            }
        }
        count
    }

    /// Waits for a completion or a job.
    fn wait(&mut self) {
        let in_flight = self.in_flight() > 0;
        match &self.ready {
            _ if in_flight && self.free.is_empty() => drop(self.queue.wait(1)),
            None if in_flight => drop(self.queue.wait(1)),
            ready => {
                let completions = ready.as_ref().filter(|_| in_flight).map(AsFd::as_fd);
                self.shared.wait(self.index, completions);
            }
        }
    }
}

impl InFlight {
    fn end(self, result: Result<usize>, memory: Memory) {
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
            Self::Transfer(promise) => promise.keep(answer(result)),
            Self::Append(pos, len, promise) => promise.keep(match answer(result) {
                Ok((count, buffer)) if count < len => {
                    let what = format!("only {count} of {len} bytes were appended");
                    let error = Error::new(ironmap::ErrorKind::NoSpace, what);
                    Err(Failed { error, buffer: Some(buffer) })
                }
                answer => answer.map(|(_, buffer)| (pos, buffer)),
            }),
        }
    }
}

/// Closes the pool if a thread panics and no other thread is left, so that no future waits for ever.
struct EndOfThread<'a>(&'a Shared);

impl Drop for EndOfThread<'_> {
    fn drop(&mut self) {
        self.0.thread_ended();
    }
}

/// Wakes one thread of the pool.
pub(crate) struct Bell {
    event: OwnedFd,
    /// Whether the thread waits, or is about to wait, for the bell.
    waits: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event
            .map_err(|errno| Error::io(Errno(errno.raw_os_error()), "create the pool's eventfd"))?;
        Ok(Self { event, waits: AtomicBool::new(false) })
    }

    pub(crate) fn ring(&self) {
        // The counter cannot overflow, because the thread resets it, and each ring adds one.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Rings the bell if the thread waits. Returns whether the bell was rung.
    pub(crate) fn ring_if_waiting(&self) -> bool {
        let waits = self.waits.swap(false, Ordering::SeqCst);
        if waits {
            self.ring();
        }
        waits
    }

    /// Announces that the thread is about to wait. From then on, a job that is pushed rings the bell.
    pub(crate) fn announce(&self) {
        self.waits.store(true, Ordering::SeqCst);
    }

    /// Waits for the bell, or for a completion.
    pub(crate) fn wait(&self, completions: Option<BorrowedFd<'_>>) {
        let other = completions.unwrap_or(self.event.as_fd());
        let mut both =
            [PollFd::new(&self.event, PollFlags::IN), PollFd::new(&other, PollFlags::IN)];
        let fds = if completions.is_some() { &mut both[..] } else { &mut both[..1] };
        // A signal may interrupt the wait. The thread then looks for jobs and completions, as after any other end of the wait.
        let _ = poll(fds, None);
    }

    /// Ends the wait, and resets the bell.
    pub(crate) fn answer(&self) {
        self.waits.store(false, Ordering::SeqCst);
        let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
    }
}
