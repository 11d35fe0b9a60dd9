//! The threads of a pool. They take jobs, carry them out, and sleep while there are no jobs and no completions.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

use ironmap::{Errno, Error, Result};

use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Event, Mutex, MutexGuard, Source, mpsc};

/// The jobs of one thread. Only this thread uses the value.
pub(crate) trait Work {
    type Job;

    /// Whether a job blocks its thread, so that the thread begins no other job until this job has ended.
    fn blocks(job: &Self::Job) -> bool;

    /// The number of jobs that the thread can begin now.
    fn room(&self) -> usize;

    /// The number of jobs that have begun and have not ended yet.
    fn in_flight(&self) -> usize;

    /// Begins a job. A job that blocks the thread is carried out before this call returns.
    fn begin(&mut self, job: Self::Job);

    /// Submits the jobs that were begun. Ends the jobs that are complete, and returns their number.
    fn collect(&mut self) -> usize;

    /// The descriptor that signals completions, so that a thread can wait for jobs and completions at the same time. `None` if this is not
    /// possible.
    fn source(&self) -> Option<Source<'_>>;

    /// Resets the descriptor that signals completions. A completion after this call sets it again.
    fn reset(&self);

    /// Waits for a completion.
    fn wait(&mut self);
}

/// Starts the thread with this index. The thread reports whether it has created its [`Work`].
type Spawn = dyn Fn(usize, Option<Started>) -> std::io::Result<JoinHandle<()>> + Send + Sync;
type Started = mpsc::Sender<Result<()>>;

/// The threads, and the jobs that they take. A clone is a handle of the same threads. When the last handle is dropped, the threads carry
/// out the accepted jobs, and then end.
pub(crate) struct Threads<J> {
    handover: Arc<Handover<J>>,
    /// Closes the handover of jobs to the threads when the last handle is dropped.
    close: Arc<Close<J>>,
}

impl<J> Clone for Threads<J> {
    fn clone(&self) -> Self {
        Self { handover: Arc::clone(&self.handover), close: Arc::clone(&self.close) }
    }
}

impl<J: Send + 'static> Threads<J> {
    /// Starts `count` threads. [`grow`](Self::grow) can increase this number to `most`. Each thread creates its own [`Work`] before the
    /// call returns. If `divides` is set, a thread takes only its share of the queued jobs.
    ///
    /// # Errors
    /// The first error of `make`; `Io` if no thread can be started.
    pub(crate) fn start<W: Work<Job = J>>(
        count: usize,
        most: usize,
        divides: bool,
        make: impl Fn() -> Result<W> + Send + Sync + 'static,
    ) -> Result<Self> {
        let handover = Arc::new(Handover::new(count.max(most), divides)?);
        let spawn = Box::new(spawn(&handover, make));
        let threads = Mutex::new(Vec::new());
        let threads = Self {
            close: Arc::new(Close { handover: Arc::clone(&handover), threads, spawn }),
            handover,
        };
        let (started, starts) = mpsc::channel();
        for _ in 0..count {
            threads.add(&mut threads.close.threads(), Some(started.clone())).map_err(|error| {
                let errno = Errno(error.raw_os_error().unwrap_or(Errno::EAGAIN.0));
                Error::io(errno, "start a thread of the pool")
            })?;
        }
        drop(started);
        for _ in 0..count {
            let lost =
                || Err(Error::invalid("a thread of the pool ended before it could create a queue"));
            starts.recv().unwrap_or_else(|_| lost())?;
        }
        Ok(threads)
    }

    fn add(
        &self,
        threads: &mut Vec<JoinHandle<()>>,
        started: Option<Started>,
    ) -> std::io::Result<()> {
        // The thread is counted before it starts, because it may end at once.
        self.handover.jobs().threads += 1;
        let thread = (self.close.spawn)(threads.len(), started)
            .inspect_err(|_| self.handover.jobs().threads -= 1)?;
        threads.push(thread);
        Ok(())
    }

    /// Adds threads, up to the number `most` of [`start`](Self::start). The call does not wait until they run. If a thread cannot be
    /// started or cannot create its [`Work`], there are fewer threads.
    pub(crate) fn grow(&self) {
        let mut threads = self.close.threads();
        while threads.len() < self.handover.bells.len() && self.add(&mut threads, None).is_ok() {}
    }

    /// The number of threads that have not ended.
    pub(crate) fn count(&self) -> usize {
        self.handover.jobs().threads
    }

    pub(crate) fn push(&self, job: J) {
        self.handover.add(|queued| queued.push_back(job));
    }

    /// Adds several jobs at once.
    pub(crate) fn push_all(&self, jobs: impl Iterator<Item = J>) {
        self.handover.add(|queued| queued.extend(jobs));
    }
}

/// Makes the function that starts a thread.
fn spawn<W: Work<Job: Send + 'static>>(
    handover: &Arc<Handover<W::Job>>,
    make: impl Fn() -> Result<W> + Send + Sync + 'static,
) -> impl Fn(usize, Option<Started>) -> std::io::Result<JoinHandle<()>> + Send + Sync + 'static {
    let (make, handover) = (Arc::new(make), Arc::clone(handover));
    move |index, started| {
        let (make, handover) = (Arc::clone(&make), Arc::clone(&handover));
        let run = move || {
            let mut thread = Thread { handover: &handover, index, searches: false };
            let made = make();
            drop(make);
            let (told, work) = match made {
                Ok(work) => (Ok(()), Some(work)),
                Err(error) => (Err(error), None),
            };
            if let Some(started) = started {
                let _ = started.send(told);
            }
            if let Some(mut work) = work {
                // After a panic, the answers to the requests of this thread are lost. The code catches the panic, because a model checker
                // treats any other panic as an error.
                drop(catch_unwind(AssertUnwindSafe(|| thread.run(&mut work))));
            }
        };
        thread::Builder::new().name(format!("ironmap-{index}")).spawn(run)
    }
}

/// The jobs that no thread has taken yet, and one event (`bells`) for each thread. Setting the event of a thread wakes the thread.
struct Handover<J> {
    jobs: Mutex<Jobs<J>>,
    bells: Vec<Event>,
    /// Whether each job blocks its thread. If so, a thread takes only its share of the queued jobs.
    divides: bool,
}

struct Jobs<J> {
    queued: VecDeque<J>,
    /// The number of threads that will look at the queue before they sleep or block. If this number is not zero, a new job wakes no thread,
    /// so that one thread submits the jobs of many tasks together.
    searching: usize,
    /// The indexes of the threads that sleep.
    asleep: Vec<usize>,
    /// The number of threads that were started and have not ended.
    threads: usize,
    /// Whether the last handle was dropped.
    closed: bool,
}

impl<J> Jobs<J> {
    /// Chooses a sleeping thread for the queued jobs. Returns `None` if another thread is already looking for jobs. The chosen thread
    /// counts as searching from then on. The caller wakes the chosen thread with its event in `bells`.
    fn wake_one(&mut self) -> Option<usize> {
        if self.queued.is_empty() || self.searching > 0 {
            return None;
        }
        let index = self.asleep.pop()?;
        self.searching += 1;
        Some(index)
    }
}

impl<J> Handover<J> {
    fn new(most: usize, divides: bool) -> Result<Self> {
        let (queued, asleep) = (VecDeque::new(), Vec::with_capacity(most));
        let jobs = Jobs { queued, searching: 0, asleep, threads: 0, closed: false };
        let bells = (0..most).map(|_| Event::new()).collect::<Result<_>>()?;
        Ok(Self { jobs: Mutex::new(jobs), bells, divides })
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs<J>> {
        // While the lock is held, no code of a task or an executor runs, so a panic in such code leaves the jobs valid.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, add: impl FnOnce(&mut VecDeque<J>)) {
        let woken = {
            let mut queue = self.jobs();
            if queue.threads == 0 {
                // Dropping a job runs a waker, which is code of the executor, so the lock is released first.
                drop(queue);
                return add(&mut VecDeque::new());
            }
            add(&mut queue.queued);
            queue.wake_one()
        };
        self.ring(woken);
    }

    fn ring(&self, woken: impl IntoIterator<Item = usize>) {
        woken.into_iter().for_each(|index| self.bells[index].set());
    }
}

/// One thread of the pool. The drop of this value records that the thread has ended, even after a panic.
struct Thread<'a, J> {
    handover: &'a Handover<J>,
    index: usize,
    /// Whether this thread is counted in `searching`.
    searches: bool,
}

impl<J> Thread<'_, J> {
    /// Carries out jobs. Ends after the last handle was dropped and all jobs have ended.
    fn run<W: Work<Job = J>>(&mut self, work: &mut W) {
        let (mut jobs, mut idle) = (VecDeque::new(), false);
        loop {
            let open = self.take(work.room(), W::blocks, &mut jobs);
            let began = jobs.len();
            jobs.drain(..).for_each(|job| work.begin(job));
            let ended = work.collect();
            if work.in_flight() == 0 && open.is_none() {
                return;
            }
            // The thread yields once before it sleeps, so that tasks and the device can run. Otherwise, threads that share a processor
            // would wake each other for every single request.
            match (began + ended > 0, idle) {
                (true, _) => idle = false,
                (false, false) => {
                    idle = true;
                    thread::yield_now();
                }
                (false, true) => {
                    idle = false;
                    self.sleep(work);
                }
            }
        }
    }

    /// Moves at most `most` jobs into `into`, which is empty before the call. A job that blocks the thread comes last. Returns `None` if
    /// the last handle was dropped and no job is queued.
    fn take(
        &mut self,
        most: usize,
        blocks: impl Fn(&J) -> bool,
        into: &mut VecDeque<J>,
    ) -> Option<()> {
        let divides = self.handover.divides;
        let mut jobs = self.handover.jobs();
        if !self.searches {
            (self.searches, jobs.searching) = (true, jobs.searching + 1);
        }
        let queued = jobs.queued.len();
        let most = most.min(if divides { queued.div_ceil(jobs.threads) } else { queued });
        let first = jobs.queued.iter().take(most).position(blocks);
        let count = first.map_or(most, |first| first + 1);
        if count == queued {
            std::mem::swap(&mut jobs.queued, into);
        } else {
            into.extend(jobs.queued.drain(..count));
        }
        let open = (count > 0 || !jobs.closed).then_some(());
        if first.is_some() || divides && count > 0 {
            self.stop_searching(jobs);
        }
        open
    }

    /// Announces that this thread will not look at the queue for some time. If jobs are queued, wakes another thread.
    fn stop_searching(&mut self, mut jobs: MutexGuard<'_, Jobs<J>>) {
        if std::mem::take(&mut self.searches) {
            jobs.searching -= 1;
        }
        let woken = jobs.wake_one();
        drop(jobs);
        self.handover.ring(woken);
    }

    /// Sleeps until one of three events: the thread is woken for a job, the threads must end, or a job in flight has ended.
    fn sleep(&mut self, work: &mut impl Work<Job = J>) {
        let in_flight = work.in_flight() > 0;
        if in_flight && (work.room() == 0 || work.source().is_none()) {
            self.stop_searching(self.handover.jobs());
            return work.wait();
        }
        if in_flight {
            // A completion before the reset does not set the descriptor again, so the thread must look for completions once more before it
            // sleeps.
            work.reset();
            if work.collect() > 0 {
                return;
            }
        }
        let mut jobs = self.handover.jobs();
        if !jobs.queued.is_empty() || jobs.closed && !in_flight {
            return;
        }
        jobs.asleep.push(self.index);
        self.stop_searching(jobs);
        let bell = &self.handover.bells[self.index];
        bell.wait(work.source().filter(|_| in_flight));
        let mut jobs = self.handover.jobs();
        match jobs.asleep.iter().position(|index| *index == self.index) {
            // A completion has ended the wait before another thread has set this thread's event, so this thread is still in the list of
            // sleeping threads. This code removes it from the list.
            Some(at) => drop(jobs.asleep.remove(at)),
            // Another thread has set this thread's event, or will set it soon. If the event is set only after the reset, the next sleep
            // ends early.
            None => {
                self.searches = true;
                drop(jobs);
                bell.reset();
            }
        }
    }
}

impl<J> Drop for Thread<'_, J> {
    /// If handles of the pool still exist when the last thread ends, this thread has panicked, and no thread can carry out the queued jobs.
    /// This code drops the jobs, so that no future waits forever.
    fn drop(&mut self) {
        let mut jobs = self.handover.jobs();
        jobs.threads -= 1;
        let dropped = match jobs.threads {
            0 => std::mem::take(&mut jobs.queued),
            _ => VecDeque::new(),
        };
        self.stop_searching(jobs);
        drop(dropped);
    }
}

struct Close<J> {
    handover: Arc<Handover<J>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    spawn: Box<Spawn>,
}

impl<J> Close<J> {
    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J> Drop for Close<J> {
    /// Waits until the threads have ended. If one of these threads drops the last handle, it does not wait.
    fn drop(&mut self) {
        let asleep = {
            let mut jobs = self.handover.jobs();
            jobs.closed = true;
            jobs.searching += jobs.asleep.len();
            std::mem::take(&mut jobs.asleep)
        };
        self.handover.ring(asleep);
        let own = thread::current().id();
        let threads = std::mem::take(&mut *self.threads());
        for thread in threads {
            if thread.thread().id() != own {
                // The code ignores an error of the join. It means that the thread has panicked, and the answers of its requests are lost.
                let _ = thread.join();
            }
        }
    }
}
