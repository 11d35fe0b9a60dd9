//! An event. A thread can wait for the event and for the completions of a queue at the same time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ironmap::{Errno, Error, Readiness, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// A descriptor that is readable if requests have completed.
pub(crate) type Source<'a> = BorrowedFd<'a>;

/// The descriptor that signals the completions of a queue.
#[allow(clippy::unnecessary_wraps, reason = "the model has no source")]
pub(crate) fn source(ready: &Readiness) -> Option<Source<'_>> {
    Some(ready.as_fd())
}

pub(crate) struct Event(OwnedFd);

impl Event {
    pub(crate) fn new() -> Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let what = "create the pool's eventfd";
        event.map(Self).map_err(|errno| Error::io(Errno(errno.raw_os_error()), what))
    }

    pub(crate) fn set(&self) {
        // Each call adds one to the counter. The counter cannot overflow, because the thread that waits resets it.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn reset(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }

    /// Waits until the event is set or `other` is readable. The wait may also end earlier.
    pub(crate) fn wait(&self, other: Option<Source<'_>>) {
        let second = other.unwrap_or(self.0.as_fd());
        let mut both = [PollFd::new(&self.0, PollFlags::IN), PollFd::new(&second, PollFlags::IN)];
        let fds = if other.is_some() { &mut both[..] } else { &mut both[..1] };
        // A signal may interrupt the wait. This does no harm, because the thread looks for jobs and completions after each wait.
        let _ = poll(fds, None);
    }
}
