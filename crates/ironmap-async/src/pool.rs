//! The pool: its threads, and the handle that tasks share.

use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ironmap::{Errno, Error, FileOptions, Files, Queue, QueueOptions, Result};

use crate::file::AsyncFile;
use crate::promise::{Answer, promise};
use crate::worker::{self, Bell, Job, Open};

/// Options of a [`Pool`].
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    threads: usize,
    queue: QueueOptions,
    depth: u32,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { threads: 2, queue: QueueOptions::new(), depth: 64 }
    }
}

impl PoolOptions {
    /// Creates options for two threads, each with a queue of 64 requests.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of threads, at least one. One thread suffices for most devices: it submits and completes millions of requests a second.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// The number of requests that each thread has in flight.
    #[must_use]
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = depth.max(1);
        self
    }

    /// Other options of the queues. Their depth is that of [`depth`](Self::depth).
    #[must_use]
    pub fn queue(mut self, options: QueueOptions) -> Self {
        self.queue = options;
        self
    }
}

/// A few threads with a queue each, for all files of a volume or a host. Clones are handles of the same pool. When the last handle is
/// dropped, the threads carry out the accepted requests, and end.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
    /// Closes the pool when the last handle is dropped.
    _close: Arc<Close>,
}

/// The state that handles and threads share.
pub(crate) struct Shared {
    jobs: Mutex<Jobs>,
    /// The number of threads that wait, or are about to wait, for a job. A new job rings the bells of only these threads.
    waiting: AtomicUsize,
    /// The number of threads that have not ended.
    threads: AtomicUsize,
    bells: Vec<Bell>,
    open: Box<Open>,
}

#[derive(Default)]
struct Jobs {
    queued: VecDeque<Job>,
    /// Whether the last handle was dropped.
    closed: bool,
    /// Whether the last thread has ended.
    dead: bool,
}

struct Close {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Pool {
    /// Starts the threads. Each creates its queue before the call returns.
    ///
    /// # Errors
    /// The error of the first queue that cannot be created; `Io` if no thread can be started.
    pub fn new(files: impl Files + Send + Sync + 'static, options: PoolOptions) -> Result<Self> {
        let files = Arc::new(files);
        let bells = (0..options.threads).map(|_| Bell::new()).collect::<Result<Vec<_>>>()?;
        let open: Box<Open> = {
            let files = Arc::clone(&files);
            Box::new(move |path: &std::path::Path, options| files.open_with(path, options))
        };
        let shared = Arc::new(Shared {
            jobs: Mutex::default(),
            waiting: AtomicUsize::new(0),
            threads: AtomicUsize::new(options.threads),
            bells,
            open,
        });
        let close = Close { shared: Arc::clone(&shared), threads: Mutex::default() };
        let queue_options = options.queue.depth(options.depth);
        let depth = options.depth as usize;
        let (started, starts) = std::sync::mpsc::channel();
        for index in 0..options.threads {
            let (files, shared) = (Arc::clone(&files), Arc::clone(&shared));
            let (options, started) = (queue_options, started.clone());
            let thread =
                std::thread::Builder::new().name(format!("ironmap-{index}")).spawn(move || {
                    match files.queue(&options) {
                        Ok(queue) => {
                            let _ = started.send(Ok(()));
                            drop(started);
                            worker::run(&shared, index, queue, depth);
                        }
                        Err(error) => drop(started.send(Err(error))),
                    }
                });
            let errno =
                |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(Errno::EAGAIN.0));
            let thread =
                thread.map_err(|error| Error::io(errno(error), "start a thread of the pool"))?;
            close.threads().push(thread);
        }
        drop(started);
        for _ in 0..options.threads {
            let lost = || Err(Error::invalid("a thread of the pool ended before it had a queue"));
            starts.recv().unwrap_or_else(|_| lost())?;
        }
        Ok(Self { shared, _close: Arc::new(close) })
    }

    /// Opens a file. The call is carried out by a thread of the pool, because it may read metadata.
    pub fn open(&self, path: impl Into<PathBuf>) -> Opening {
        self.open_with(path, FileOptions::new())
    }

    /// Opens a file with options.
    ///
    /// # Errors
    /// The errors of [`Files::open_with`](ironmap::Files::open_with).
    pub fn open_with(&self, path: impl Into<PathBuf>, options: FileOptions) -> Opening {
        let (promise, answer) = promise();
        self.shared.push(Job::Open { path: path.into(), options, promise });
        Opening { pool: self.clone(), answer }
    }

    /// Runs a function on a thread of the pool, with the queue of that thread: for calls that wait, such as
    /// [`Queue::read_many`]. Requests of that thread that are in flight are completed after the function has returned. An operation of
    /// the function that needs the whole content of a file for itself can fail with `Busy` because of such a request. The function must
    /// leave no requests of its own in flight.
    ///
    /// If the function panics, the answer is an error, and the thread goes on.
    pub fn run<T, E>(
        &self,
        function: impl FnOnce(&mut Queue) -> Result<T, E> + Send + 'static,
    ) -> Answer<Result<T, E>>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let (promise, answer) = promise();
        self.shared.push(Job::Run(Box::new(move |queue| promise.keep(function(queue)))));
        answer
    }

    /// A handle of a file that the volume or host of this pool has opened.
    #[must_use]
    pub fn file(&self, file: ironmap::File) -> AsyncFile {
        AsyncFile::new(file, self.clone())
    }

    pub(crate) fn push(&self, job: Job) {
        self.shared.push(job);
    }

    pub(crate) fn push_all(&self, jobs: impl Iterator<Item = Job>) {
        self.shared.push_all(jobs);
    }
}

/// A file that is being opened.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Opening {
    pool: Pool,
    answer: Answer<Result<ironmap::File>>,
}

impl Future for Opening {
    type Output = Result<AsyncFile>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        let answer = std::pin::Pin::new(&mut self.answer).poll(context);
        answer.map(|opened| opened.map(|file| self.pool.file(file)))
    }
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        // No other code runs under the lock, so the jobs are valid even after a panic.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: Job) {
        self.push_all(std::iter::once(job));
    }

    /// Adds several jobs at once.
    pub(crate) fn push_all(&self, jobs: impl Iterator<Item = Job>) {
        let count = {
            let mut queued = self.jobs();
            if queued.dead {
                // The jobs are dropped without the lock, because their wakers run other code.
                drop(queued);
                return drop(jobs.collect::<Vec<_>>());
            }
            let before = queued.queued.len();
            queued.queued.extend(jobs);
            queued.queued.len() - before
        };
        self.ring(count);
    }

    /// Wakes up to this many threads.
    fn ring(&self, count: usize) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.bells.iter().filter(|bell| bell.ring_if_waiting()).take(count).count();
        }
    }

    /// Takes at most `most` jobs. `None` if the pool is closed and no job is queued.
    pub(crate) fn take(&self, most: usize, into: &mut Vec<Job>) -> Option<()> {
        let mut jobs = self.jobs();
        let count = most.min(jobs.queued.len());
        into.extend(jobs.queued.drain(..count));
        (count > 0 || !jobs.closed).then_some(())
    }

    /// Waits until a job is pushed, the pool is closed, or a request has completed. A thread with free slots calls this.
    pub(crate) fn wait(&self, index: usize, completions: Option<BorrowedFd<'_>>) {
        let bell = &self.bells[index];
        self.waiting.fetch_add(1, Ordering::SeqCst);
        bell.announce();
        // A job that was pushed before the announcement has not rung the bell, so the thread must look for jobs before it waits.
        let has_jobs = {
            let jobs = self.jobs();
            !jobs.queued.is_empty() || jobs.closed && completions.is_none()
        };
        if !has_jobs {
            bell.wait(completions);
        }
        bell.answer();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Records the end of a thread. If the pool is open when the last thread ends, that thread has panicked. Then no further job is carried
    /// out, and the answers of the queued jobs are lost.
    pub(crate) fn thread_ended(&self) {
        if self.threads.fetch_sub(1, Ordering::SeqCst) == 1 {
            let dropped = {
                let mut jobs = self.jobs();
                jobs.dead = true;
                std::mem::take(&mut jobs.queued)
            };
            drop(dropped);
        }
    }

    pub(crate) fn open_with(
        &self,
        path: &std::path::Path,
        options: FileOptions,
    ) -> Result<ironmap::File> {
        (self.open)(path, options)
    }
}

impl Close {
    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Close {
    /// Waits for the threads, except if one of them drops the last handle.
    fn drop(&mut self) {
        self.shared.jobs().closed = true;
        self.shared.bells.iter().for_each(Bell::ring);
        let own = std::thread::current().id();
        for thread in self.threads().drain(..) {
            if thread.thread().id() != own {
                // An error of the join is ignored: the thread has panicked, and the futures of its requests report the lost answers.
                let _ = thread.join();
            }
        }
    }
}
