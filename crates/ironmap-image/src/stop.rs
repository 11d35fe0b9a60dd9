//! The request to end a job early: it stops at the next file and tidies up, so that nothing is left to recover or to remove.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use rustix_libc::io::Errno;

use crate::failure::Failure;

/// The number of the last signal that came, or 0. A handler of signals sets it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// The number itself, for a handler of signals.
    pub fn flag(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.0)
    }

    fn signal(&self) -> i32 {
        self.0.load(Ordering::Relaxed) as i32
    }

    /// Whether a signal came.
    pub fn is_set(&self) -> bool {
        self.signal() != 0
    }

    /// Fails once a signal came.
    ///
    /// # Errors
    /// A signal came.
    pub fn check(&self) -> Result<(), Failure> {
        match self.signal() {
            0 => Ok(()),
            signal => Err(Failure::interrupted(signal)),
        }
    }

    /// The failure, or the signal if one came: anything can fail after that.
    pub fn cause(&self, failure: Failure) -> Failure {
        self.check().err().unwrap_or(failure)
    }

    /// Waits until there is something to read, or nobody who could write any more.
    ///
    /// # Errors
    /// `INTR` once a signal came, `CANCELED` once it is not wanted any more.
    pub fn wait(&self, fd: impl AsFd, is_wanted: impl Fn() -> bool) -> Result<(), Errno> {
        let turn = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
        while !self.is_set() {
            if !is_wanted() {
                return Err(Errno::CANCELED);
            }
            match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&turn)) {
                // Interrupted by a signal, which the next turn sees: a read would wait for data that may never come.
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                // The read reports the error.
                _ => return Ok(()),
            }
        }
        Err(Errno::INTR)
    }
}
