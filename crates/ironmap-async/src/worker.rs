//! A thread of the pool. It takes jobs, submits their requests to its queue, and sets their answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ironmap::units::FilePos;
use ironmap::{Buffer, Completion, DioFlags, Error, File, Memory, Queue, Readiness, Result};

use crate::file::{Appended, Failed, Transferred};
use crate::promise::{Promise, Wakes};
use crate::sync::{Source, source};
use crate::threads::Work;

/// Creates a queue of the pool's volume or host.
type NewQueue = dyn Fn() -> Result<Queue> + Send + Sync;

/// The pool's volume or host.
pub(crate) struct Store {
    pub(crate) queue: Box<NewQueue>,
    /// The number of requests that lost queues had in flight.
    pub(crate) abandoned: Arc<AtomicU64>,
}

/// A function of the caller, which sets its answer itself. If the thread has no queue, the function gets an error.
pub(crate) type Run = dyn FnOnce(Result<&mut Queue>, &mut Wakes) + Send;

/// The work that a thread does for one request.
pub(crate) enum Job {
    Read {
        file: Arc<File>,
        buffer: Buffer,
        pos: FilePos,
        /// Whether the read completes before its submission returns.
        waits: bool,
        promise: Promise<Transferred>,
    },
    Write {
        file: Arc<File>,
        buffer: Buffer,
        pos: FilePos,
        flags: DioFlags,
        promise: Promise<Transferred>,
    },
    Append {
        file: Arc<File>,
        buffer: Buffer,
        flags: DioFlags,
        promise: Promise<Appended>,
    },
    Sync {
        file: Arc<File>,
        data_only: bool,
        promise: Promise<Result<()>>,
    },
    Run(Box<Run>),
}

/// A request in flight.
enum InFlight {
    Transfer(Promise<Transferred>),
    Append(FilePos, usize, Promise<Appended>),
}

/// The requests in flight, indexed by their tokens.
struct Requests {
    slots: Vec<Option<InFlight>>,
    free: Vec<usize>,
}

/// The queue of a thread, and its requests in flight.
pub(crate) struct Worker {
    store: Arc<Store>,
    /// The queue. `None` after the queue was lost, until the next job.
    own: Option<Own>,
    requests: Requests,
    wakes: Wakes,
}

struct Own {
    queue: Queue,
    /// The descriptor of the queue's completions. A polled device has no descriptor, so the thread takes no job while it waits for a
    /// completion.
    ready: Option<Readiness>,
}

impl Own {
    fn new(store: &Store) -> Result<Self> {
        let mut queue = (store.queue)()?;
        let ready = queue.readiness().ok();
        Ok(Self { queue, ready })
    }
}

impl Requests {
    /// Returns a free token. The thread takes no more jobs than there are free tokens.
    fn token(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        })
    }

    fn began(
        &mut self,
        token: usize,
        submitted: Result<(), Box<ironmap::Rejected>>,
        request: InFlight,
        wakes: &mut Wakes,
    ) {
        match submitted {
            Ok(()) => self.slots[token] = Some(request),
            Err(rejected) => {
                self.free.push(token);
                request.end(Err(rejected.error), first(rejected.memory), wakes);
            }
        }
    }

    fn ended(&mut self, token: usize) -> Option<InFlight> {
        let request = self.slots[token].take();
        if request.is_some() {
            self.free.push(token);
        }
        request
    }
}

impl Worker {
    pub(crate) fn new(store: Arc<Store>, depth: usize) -> Result<Self> {
        let own = Some(Own::new(&store)?);
        let slots = (0..depth).map(|_| None).collect();
        let (requests, wakes) =
            (Requests { slots, free: (0..depth).rev().collect() }, Wakes::default());
        Ok(Self { store, own, requests, wakes })
    }

    /// Ends the requests that a lost queue still has in flight, and returns their number. Dropping the queue does not free their memory,
    /// because the kernel may still use it.
    #[cold]
    fn abandon(&mut self, error: &Error) -> usize {
        // The drop makes the volume read-only if writes are in flight. The queue is dropped first, so that the volume is already read-only
        // when a task gets the error of its request.
        self.own = None;
        let mut count = 0;
        for token in 0..self.requests.slots.len() {
            if let Some(request) = self.requests.ended(token) {
                count += 1;
                let what = "the queue was lost with the request in flight";
                let error = Error::io(error.errno(), what);
                // The counter `abandoned` is incremented first, so that a task that sees the answer also sees the new count.
                self.store.abandoned.fetch_add(1, Ordering::Relaxed);
                request.end(Err(error), None, &mut self.wakes);
            }
        }
        count
    }
}

impl Work for Worker {
    type Job = Job;

    fn blocks(job: &Job) -> bool {
        match job {
            Job::Read { waits, .. } => *waits,
            Job::Write { .. } | Job::Append { .. } => false,
            Job::Sync { .. } | Job::Run(_) => true,
        }
    }

    fn room(&self) -> usize {
        self.requests.free.len()
    }

    fn in_flight(&self) -> usize {
        self.requests.slots.len() - self.requests.free.len()
    }

    fn begin(&mut self, job: Job) {
        if Self::blocks(&job) {
            // This job blocks the thread, so the requests that have begun are submitted first.
            self.collect();
        }
        let Self { store, own, requests, wakes } = self;
        let queue = match own {
            Some(own) => &mut own.queue,
            None => match Own::new(store) {
                Ok(new) => &mut own.insert(new).queue,
                Err(error) => return job.refuse(error, wakes),
            },
        };
        match job {
            Job::Read { file, buffer, pos, promise, .. } => {
                let token = requests.token();
                let flags = DioFlags::empty();
                let submitted = file.submit_read(queue, buffer, pos, flags, token as u64);
                requests.began(token, submitted, InFlight::Transfer(promise), wakes);
            }
            Job::Write { file, buffer, pos, flags, promise } => {
                let token = requests.token();
                let submitted = file.submit_write(queue, buffer, pos, flags, token as u64);
                requests.began(token, submitted, InFlight::Transfer(promise), wakes);
            }
            Job::Append { file, buffer, flags, promise } => {
                let (token, len) = (requests.token(), buffer.len());
                let submitted = file.submit_append(queue, buffer, flags, token as u64);
                let (pos, submitted) = match submitted {
                    Ok(pos) => (pos, Ok(())),
                    Err(rejected) => (FilePos(0), Err(rejected)),
                };
                requests.began(token, submitted, InFlight::Append(pos, len, promise), wakes);
            }
            Job::Sync { file, data_only, promise } => {
                let synced = match data_only {
                    true => file.sync_data(queue),
                    false => file.sync(queue),
                };
                promise.keep(synced, wakes);
            }
            // If the function panics, the thread and its requests in flight continue. The answer of the function is lost.
            Job::Run(run) => {
                drop(catch_unwind(AssertUnwindSafe(|| run(Ok(queue), wakes))));
            }
        }
    }

    fn collect(&mut self) -> usize {
        let mut count = 0;
        if self.in_flight() > 0
            && let Some(own) = &mut self.own
        {
            let lost = own.queue.poll().err();
            // If the queue is lost, `pop` returns the requests that the kernel has not accepted, each with the error as its result.
            while let Some(Completion { token, memory, result, .. }) = own.queue.pop() {
                count += 1;
                if let Some(request) = self.requests.ended(token as usize) {
                    request.end(result, first(memory), &mut self.wakes);
                }
            }
            if let Some(error) = lost {
                count += self.abandon(&error);
            }
        }
        self.wakes.wake();
        count
    }

    fn source(&self) -> Option<Source<'_>> {
        self.own.as_ref().and_then(|own| own.ready.as_ref()).and_then(source)
    }

    fn reset(&self) {
        if let Some(ready) = self.own.as_ref().and_then(|own| own.ready.as_ref()) {
            ready.clear();
        }
    }

    fn wait(&mut self) {
        if let Some(own) = &mut self.own {
            // The code ignores an error of this wait, because `collect` gets the same error.
            let _ = own.queue.wait(1);
        }
    }
}

/// Returns the memory of a request of the pool: one buffer.
fn first(memory: Memory) -> Option<Buffer> {
    match memory {
        Memory::Flat(buffer) => Some(buffer),
        Memory::Vectored(buffers) => buffers.into_iter().next(),
    }
}

impl Job {
    /// Ends the job with an error, because the thread has no queue.
    #[cold]
    fn refuse(self, error: Error, wakes: &mut Wakes) {
        match self {
            Self::Read { buffer, promise, .. } | Self::Write { buffer, promise, .. } => {
                promise.keep(Err(Failed { error, buffer: Some(buffer) }), wakes);
            }
            Self::Append { buffer, promise, .. } => {
                promise.keep(Err(Failed { error, buffer: Some(buffer) }), wakes);
            }
            Self::Sync { promise, .. } => promise.keep(Err(error), wakes),
            Self::Run(run) => drop(catch_unwind(AssertUnwindSafe(|| run(Err(error), wakes)))),
        }
    }
}

impl InFlight {
    #[inline(always)] // each request runs this function, and without inlining the result would be copied one more time
    fn end(self, result: Result<usize>, buffer: Option<Buffer>, wakes: &mut Wakes) {
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
