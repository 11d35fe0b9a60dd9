//! Threads for what waits for the device.
//!
//! One thread takes the kernel's requests: with several, each request would wake another one, which costs more than most requests do. It
//! answers what needs no waiting, and what comes alone; what would keep others waiting goes to one of the threads here.

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
    /// The kernel's connection, once there is one.
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
    /// Those that wait, and those that are under way.
    unfinished: usize,
    ended: bool,
}

impl Shared {
    /// No job leaves the queue half changed.
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut jobs = self.lock();
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                drop(jobs);
                // One that panics has said so, and its request is answered with EIO as it goes: the others are served on.
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

    /// Where the connection is told of.
    pub(super) fn connection(&self) -> Arc<OnceLock<OwnedFd>> {
        Arc::clone(&self.connection)
    }

    /// Whether nobody would wait for what the calling thread does now: nothing is under way, and the kernel has no other request.
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

    /// Waits for all that was given.
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

    /// The thread of a job that panics serves on, and the job is not counted as under way for ever.
    #[test]
    fn a_job_that_panics_takes_no_thread_with_it() {
        let mut pool = Pool::new(1);
        let (done, is_done) = channel();
        pool.give(|| panic!("as it is meant to"));
        pool.give(move || done.send(()).unwrap());
        is_done.recv().unwrap();
        pool.end();
        assert!(pool.is_alone());
    }
}
