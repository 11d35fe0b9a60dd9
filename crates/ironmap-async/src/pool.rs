//! The pool of threads. Tasks share its handles.

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ironmap::{Engine, Error, FileOptions, Files, Queue, QueueOptions, Result};

use crate::file::AsyncFile;
use crate::promise::{Answer, promise};
use crate::threads::Threads;
use crate::worker::{Job, Open, Worker};

/// The maximum number of threads of a pool whose queues have only one request in flight each.
const ONE_EACH: usize = 16;

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

    /// Sets the number of threads, at least one. By default, a pool has two threads: one carries out most requests, and the other takes
    /// requests while the first is busy, for example with a sync. With an engine such as psync, a call carries out its request before it
    /// returns, so each thread has only one request in flight. Then the default number of threads is the [`depth`](Self::depth), at most
    /// 16.
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

    /// Sets the other options of the queues. Their depth remains the value of [`depth`](Self::depth).
    #[must_use]
    pub fn queue(mut self, options: QueueOptions) -> Self {
        self.queue = options;
        self
    }

    fn report(&self, engine: Engine) -> PoolReport {
        // Requests to the null engine never wait. So a second thread would not make them faster.
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
        PoolReport { engine, threads: self.threads.unwrap_or(chosen), depth, reason }
    }
}

/// The number of threads of a [`Pool`], and the reason for this number.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolReport {
    /// The engine of the volume or host. If the kernel refuses io_uring, as in many containers, this is [`Engine::Psync`].
    pub engine: Engine,
    /// The number of threads.
    pub threads: usize,
    /// The number of requests that each thread has in flight.
    pub depth: u32,
    /// The reason for the number of threads.
    pub reason: &'static str,
}

impl fmt::Display for PoolReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, threads, depth, reason } = self;
        write!(f, "engine {engine}, {threads} threads, {depth} requests in flight each: {reason}")
    }
}

/// A few threads, each with a queue, for all files of a volume or a host. A clone is another handle of the same pool. When the last handle
/// is dropped, the threads carry out the requests that they have accepted, and end.
#[derive(Clone)]
pub struct Pool {
    threads: Threads<Job>,
    report: Arc<PoolReport>,
}

impl Pool {
    /// Starts the threads. Each thread creates its queue before this call returns.
    ///
    /// # Errors
    /// Returns the error of the first queue that cannot be created. Returns `Io` if no thread can be started.
    pub fn new(files: impl Files + Send + Sync + 'static, options: PoolOptions) -> Result<Self> {
        let report = Arc::new(options.report(files.engine()));
        let (queue_options, depth) = (options.queue.depth(options.depth), options.depth as usize);
        let files = Arc::new(files);
        let open: Arc<Open> = {
            let files = Arc::clone(&files);
            Arc::new(move |path: &Path, options| files.open_with(path, options))
        };
        let make = move || Ok(Worker::new(files.queue(&queue_options)?, depth, Arc::clone(&open)));
        let threads = Threads::start(report.threads, report.depth == 1, make)?;
        Ok(Self { threads, report })
    }

    /// The engine, the number of threads, and the reason for it.
    #[must_use]
    pub fn report(&self) -> &PoolReport {
        &self.report
    }

    /// Opens a file. A thread of the pool opens it, because an open may read metadata from the device.
    pub fn open(&self, path: impl Into<PathBuf>) -> Opening {
        self.open_with(path, FileOptions::new())
    }

    /// Opens a file with options.
    ///
    /// # Errors
    /// The errors of [`Files::open_with`](ironmap::Files::open_with).
    pub fn open_with(&self, path: impl Into<PathBuf>, options: FileOptions) -> Opening {
        let (promise, answer) = promise();
        self.threads.push(Job::Open { path: path.into(), options, promise });
        Opening { pool: self.clone(), answer }
    }

    /// Runs a function on a thread of the pool, and passes this thread's queue to it. Use it for calls that wait, such as
    /// [`Queue::read_many`]. While the function runs, the thread completes none of its own requests in flight. So if the function calls an
    /// operation that needs the whole file for itself, the operation can fail with `Busy`. The function must not leave requests of its own
    /// in flight.
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
        self.threads
            .push(Job::Run(Box::new(move |queue, wakes| promise.keep(function(queue), wakes))));
        answer
    }

    /// Makes a handle of a file. The volume or host of this pool must have opened the file.
    #[must_use]
    pub fn file(&self, file: ironmap::File) -> AsyncFile {
        AsyncFile::new(file, self.clone())
    }

    pub(crate) fn push(&self, job: Job) {
        self.threads.push(job);
    }

    pub(crate) fn push_all(&self, jobs: impl Iterator<Item = Job>) {
        self.threads.push_all(jobs);
    }
}

/// The future of an open.
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
