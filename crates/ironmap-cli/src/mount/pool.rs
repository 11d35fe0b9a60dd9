//! Threads for requests that wait for the device.
//!
//! One thread reads the kernel's requests. With several reading threads, each request would wake another thread. This takes longer than
//! most requests. The reading thread itself serves requests that do not wait. It serves any request if no other request is in progress. A
//! request that would delay others is passed to a thread of the pool.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

type Job = Box<dyn FnOnce() + Send>;

pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// The kernel's connection, once it exists.
    connection: Arc<OnceLock<OwnedFd>>,
}

#[derive(Default)]
struct Shared {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// The number of jobs that wait or run in the pool.
    unfinished: usize,
    ended: bool,
}

impl Shared {
    /// Locks the jobs. A panic of a job cannot leave the queue inconsistent, so a poisoned lock is ignored.
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut jobs = self.lock();
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                drop(jobs);
                // The panic message is already printed, and the drop of the request has sent the reply EIO. The thread continues with the
                // next job.
                let _ = panic::catch_unwind(AssertUnwindSafe(job));
                jobs = self.lock();
                jobs.unfinished -= 1;
            } else if jobs.ended {
                return;
            } else {
                jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Pool {
    pub(super) fn new(threads: usize) -> Self {
        let shared = Arc::<Shared>::default();
        let start = |_| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.serve())
        };
        let threads = (0..threads).map(start).collect();
        Self { shared, threads, connection: Arc::default() }
    }

    /// Returns the cell in which the caller stores the connection.
    pub(super) fn connection(&self) -> Arc<OnceLock<OwnedFd>> {
        Arc::clone(&self.connection)
    }

    /// Whether work of the calling thread delays no other request. This is true if no job is in progress, and the kernel has sent no other
    /// request.
    pub(super) fn is_alone(&self) -> bool {
        if self.shared.lock().unfinished > 0 {
            return false;
        }
        let Some(connection) = self.connection.get() else { return true };
        let mut fds = [PollFd::new(connection, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
    }

    pub(super) fn give(&self, job: impl FnOnce() + Send + 'static) {
        let mut jobs = self.shared.lock();
        jobs.waiting.push_back(Box::new(job));
        jobs.unfinished += 1;
        drop(jobs);
        self.shared.changed.notify_one();
    }

    /// Waits for all jobs.
    pub(super) fn end(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// After a panic of a job, the thread continues, and the count of jobs is correct.
    #[test]
    fn a_job_that_panics_takes_no_thread_with_it() {
        let mut pool = Pool::new(1);
        let (done, is_done) = channel();
        pool.give(|| panic!("a panic on purpose"));
        pool.give(move || done.send(()).unwrap());
        is_done.recv().unwrap();
        pool.end();
        assert!(pool.is_alone());
    }
}
