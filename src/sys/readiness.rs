//! An event for an event loop, signalled when requests of a ring complete.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use super::entry::Width;
use super::ring::{Ring, errno};
use super::tuples::Passenger;
use crate::error::Errno;

impl<T: Passenger, W: Width> Ring<T, W> {
    /// Returns an eventfd that the kernel signals for each completion. The ring's own descriptor is not sufficient: some rings post
    /// completions only when a thread enters the ring, so a poll of their descriptor would never wake (Linux 6.18,
    /// `io_req_local_work_add`).
    ///
    /// # Errors
    /// EOPNOTSUPP if the ring polls its devices; EMFILE if the process has too many open files.
    pub(crate) fn readiness(&mut self) -> Result<OwnedFd, Errno> {
        if self.ring.params().is_setup_iopoll() {
            return Err(Errno::EOPNOTSUPP);
        }
        if self.event.is_none() {
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let registered = self.ring.submitter().register_eventfd(event.as_raw_fd());
            registered.map_err(|error| errno(&error))?;
            self.event = Some(event);
        }
        let event = self.event.as_ref().ok_or(Errno::EBADF)?;
        Ok(rustix::io::fcntl_dupfd_cloexec(event, 0)?)
    }
}
