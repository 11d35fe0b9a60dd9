//! The pool of threads. Tasks share its handles.

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use ironmap::{Engine, Error, FileOptions, Files, NoIoUring, Queue, QueueOptions, Result};

use crate::file::AsyncFile;
use crate::promise::{Answer, Wakes, promise};
use crate::threads::Threads;
use crate::worker::{Job, Store, Worker};

/// The default number of threads of a pool whose threads have only one request in flight each.
const ONE_EACH: usize = 16;

/// Whether a queue of this engine can have several requests in flight at a time. Even then, only requests to a device that supports NOWAIT
/// are in flight together.
fn is_ring(engine: Engine) -> bool {
    matches!(engine, Engine::IoUring | Engine::IoUringPoll)
}

/// Options of a [`Pool`].
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    threads: Option<usize>,
    queue: QueueOptions,
    depth: u32,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { threads: None, queue: QueueOptions::new(), depth: 64 }
    }
}

impl PoolOptions {
    /// Creates options for queues with 64 requests in flight. The number of threads depends on the [engine](Files::engine).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of threads, at least one. By default, a pool has two threads. One thread submits and completes most requests. The
    /// second thread takes requests while the first is busy, for example with a sync. With psync, a request occupies its thread until it is
    /// complete, so each thread has only one request in flight. Therefore, the default with psync is [`depth`](Self::depth) threads, at
    /// most 16. If the device of a host file does not support NOWAIT ([`DeviceReport::nowait`](ironmap::DeviceReport::nowait)), the kernel
    /// waits during the submission of each read. So when the pool of a host opens the first such file, it also increases its threads to the
    /// default number for psync.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads.max(1));
        self
    }

    /// Sets the number of requests that each thread has in flight.
    #[must_use]
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = depth.max(1);
        self
    }

    /// Sets the options of the queues, except their depth. The depth remains the value of [`depth`](Self::depth).
    #[must_use]
    pub fn queue(mut self, options: QueueOptions) -> Self {
        self.queue = options;
        self
    }

    fn report(&self, files: &impl Files) -> PoolReport {
        let (engine, no_io_uring) = (files.engine(), files.no_io_uring());
        // Requests to the null engine do not wait, so a second thread would not make them faster.
        let blocks = engine.is_immediate() && engine != Engine::Null;
        let (chosen, depth) = match blocks {
            true => ((self.depth as usize).min(ONE_EACH), 1),
            false => (2, self.depth),
        };
        let reason = match (self.threads, blocks) {
            (Some(_), _) => "the options set the number of threads",
            (None, true) => {
                "a thread waits for each request of this engine, so several threads keep several requests in flight"
            }
            (None, false) => "a thread has many requests of this engine in flight",
        };
        let threads = self.threads.unwrap_or(chosen);
        PoolReport { engine, no_io_uring, threads, depth, reason, abandoned: 0 }
    }
}

/// The number of threads of a [`Pool`], and the reason for this number.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolReport {
    /// The engine of the volume or host. If the kernel refuses io_uring, as in many containers, this is [`Engine::Psync`].
    pub engine: Engine,
    /// The reason why the engine is psync: the errno with which the kernel refuses io_uring, or a device without NOWAIT. `None` with any
    /// other engine, or if the options of the volume or host request psync.
    pub no_io_uring: Option<NoIoUring>,
    /// The number of threads.
    pub threads: usize,
    /// The number of requests that each thread has in flight.
    pub depth: u32,
    /// The reason for the number of threads.
    pub reason: &'static str,
    /// The number of requests that were in flight on lost queues. A queue is lost if the kernel refuses io_uring to its thread, or if the
    /// descriptor of the queue was closed. These requests end with an error. Their memory is never freed, because the kernel may still
    /// carry out the requests. The thread creates a new queue for its next request. If the kernel refuses the new queue too, the request
    /// fails.
    pub abandoned: u64,
}

impl fmt::Display for PoolReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, no_io_uring, threads, depth, reason, abandoned } = self;
        write!(f, "the engine is {engine}")?;
        if let Some(reason) = no_io_uring {
            write!(f, ", because {reason}")?;
        }
        f.write_str("; ")?;
        write!(
            f,
            "the pool has {threads} threads, each with up to {depth} requests in flight: {reason}"
        )?;
        match abandoned {
            0 => Ok(()),
            _ => write!(f, "; {abandoned} requests were in flight when their queues were lost"),
        }
    }
}

/// Opens a file of the pool's volume or host.
type Open = dyn Fn(&Path, FileOptions) -> Result<ironmap::File> + Send + Sync;

/// A few threads, each with a queue, for all files of a volume or a host. Clones are handles of the same pool. When the last handle is
/// dropped, the threads carry out the accepted requests, and then end.
#[derive(Clone)]
pub struct Pool {
    threads: Threads<Job>,
    open: Arc<Open>,
    report: Arc<PoolReport>,
    abandoned: Arc<AtomicU64>,
}

impl Pool {
    /// Starts the threads. Each thread creates its queue before this call returns.
    ///
    /// # Errors
    /// The error of the first queue that cannot be created; `Io` if no thread can be started.
    pub fn new(files: impl Files + Send + Sync + 'static, options: PoolOptions) -> Result<Self> {
        let report = Arc::new(options.report(&files));
        let (queue_options, depth) = (options.queue.depth(options.depth), options.depth as usize);
        let files = Arc::new(files);
        let abandoned = Arc::<AtomicU64>::default();
        let open: Arc<Open> = {
            let files = Arc::clone(&files);
            Arc::new(move |path: &Path, options| files.open_with(path, options))
        };
        let store = Arc::new(Store {
            queue: Box::new(move || files.queue(&queue_options)),
            abandoned: Arc::clone(&abandoned),
        });
        let make = move || Worker::new(Arc::clone(&store), depth);
        let most = match options.threads {
            None if is_ring(report.engine) => depth.min(ONE_EACH).max(report.threads),
            _ => report.threads,
        };
        let threads = Threads::start(report.threads, most, report.depth == 1, make)?;
        Ok(Self { threads, open, report, abandoned })
    }

    /// Returns the engine, the number of threads, and the number of requests that were abandoned up to this call.
    #[must_use]
    pub fn report(&self) -> PoolReport {
        let mut report = PoolReport::clone(&self.report);
        report.abandoned = self.abandoned.load(Ordering::Relaxed);
        let threads = self.threads.count();
        if threads > report.threads {
            report.reason = "a thread waits for each read of a device without NOWAIT, so several threads keep several reads in flight";
        }
        report.threads = threads;
        report
    }

    /// Opens a file on a thread of the pool, because an open may read metadata from the device.
    pub fn open(&self, path: impl Into<PathBuf>) -> Opening {
        self.open_with(path, FileOptions::new())
    }

    /// Opens a file with options.
    ///
    /// # Errors
    /// The errors of [`Files::open_with`](ironmap::Files::open_with).
    pub fn open_with(&self, path: impl Into<PathBuf>, options: FileOptions) -> Opening {
        let (promise, answer) = promise();
        let (open, path) = (Arc::clone(&self.open), path.into());
        let run = move |_: Result<&mut Queue>, wakes: &mut Wakes| {
            promise.keep(open(&path, options), wakes);
        };
        self.threads.push(Job::Run(Box::new(run)));
        Opening { pool: self.clone(), answer }
    }

    /// Runs a function on a thread of the pool, and passes this thread's queue to it. This method is for calls that wait, such as
    /// [`Queue::read_many`]. While the function runs, the thread does not complete its other requests in flight, and a file with such a
    /// request cannot be locked as a whole. Therefore, an operation of the function that locks a whole file, such as a truncation, can fail
    /// with `Busy`. When the function returns, it must have no requests in flight.
    ///
    /// If the function panics, the answer is an error, and the thread continues.
    pub fn run<T, E>(
        &self,
        function: impl FnOnce(&mut Queue) -> Result<T, E> + Send + 'static,
    ) -> Answer<Result<T, E>>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let (promise, answer) = promise();
        self.threads.push(Job::Run(Box::new(move |queue, wakes| {
            promise.keep(queue.map_err(E::from).and_then(function), wakes);
        })));
        answer
    }

    /// Makes a handle of a file that the volume or host of this pool has opened.
    #[must_use]
    pub fn file(&self, file: ironmap::File) -> AsyncFile {
        let device = file.host().and_then(|report| report.device);
        let waits = is_ring(self.report.engine)
            && device.is_some_and(|device| device.nowait == Some(false));
        if waits {
            self.threads.grow();
        }
        AsyncFile::new(file, self.clone(), waits)
    }

    pub(crate) fn push(&self, job: Job) {
        self.threads.push(job);
    }

    pub(crate) fn push_all(&self, jobs: impl Iterator<Item = Job>) {
        self.threads.push_all(jobs);
    }
}

/// The future of a call that opens a file.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Opening {
    pool: Pool,
    answer: Answer<Result<ironmap::File>>,
}

impl Future for Opening {
    type Output = Result<AsyncFile>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = Pin::new(&mut self.answer).poll(context);
        answer.map(|opened| opened.map(|file| self.pool.file(file)))
    }
}
