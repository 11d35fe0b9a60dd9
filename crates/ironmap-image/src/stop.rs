//! The request to end a job early. The job stops at the next file and cleans up, so that the user need not recover or remove anything.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use rustix_libc::io::Errno;

use crate::failure::Failure;

/// The number of the last signal, or 0. A signal handler sets it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// Returns the shared number of the last signal, for a signal handler that sets it.
    pub fn flag(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.0)
    }

    fn signal(&self) -> i32 {
        self.0.load(Ordering::Relaxed) as i32
    }

    /// Whether a signal has arrived.
    pub fn is_set(&self) -> bool {
        self.signal() != 0
    }

    /// Checks whether a signal has arrived.
    ///
    /// # Errors
    /// Fails if a signal has arrived.
    pub fn check(&self) -> Result<(), Failure> {
        match self.signal() {
            0 => Ok(()),
            signal => Err(Failure::interrupted(signal)),
        }
    }

    /// Returns the failure. If a signal has arrived, returns the signal instead, because it may have caused the failure.
    pub fn cause(&self, failure: Failure) -> Failure {
        self.check().err().unwrap_or(failure)
    }

    /// Waits until data are available, or until the last writer has closed the file.
    ///
    /// # Errors
    /// `INTR` if a signal has arrived, `CANCELED` if `is_wanted` returns `false`.
    pub fn wait(&self, fd: impl AsFd, is_wanted: impl Fn() -> bool) -> Result<(), Errno> {
        let turn = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
        while !self.is_set() {
            if !is_wanted() {
                return Err(Errno::CANCELED);
            }
            match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&turn)) {
                // A signal may have interrupted the wait. The next iteration checks for a signal, because a read could wait forever.
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                // The caller's read returns the data, or reports the error of the file.
                _ => return Ok(()),
            }
        }
        Err(Errno::INTR)
    }
}
