//! A thread's submission and completion queue.

use std::sync::Arc;

use crate::bio::Buffer;
use crate::device::{AnyQueue, Device, DeviceQueue, QueueOptions, with_queue};
use crate::dio::{self, Completion, State, Stats};
use crate::error::{Error, Result};
use crate::events::Events;

/// One thread's way to the files of a volume: requests go down through it and completions come back through it.
///
/// A queue belongs to the thread that made it (it is neither `Send` nor `Sync`), and shares nothing with other queues: two
/// threads that read one file meet nowhere. Dropping it waits for the requests in flight and frees their memory.
pub struct Queue {
    pub(crate) device: AnyQueue,
    pub(crate) state: State,
    /// Which volume it belongs to.
    pub(crate) volume: u32,
}

impl Queue {
    pub(crate) fn new(
        device: &dyn Device,
        options: &QueueOptions,
        volume: u32,
        events: Arc<Events>,
    ) -> Result<Self> {
        let mut state = State::new(options.slots(), events);
        state.admit(device.limits());
        Ok(Self { device: device.queue(options)?, state, volume })
    }

    /// Switches the simple path on (as it is at first) or off, to show what it brings.
    pub fn set_simple(&mut self, on: bool) {
        self.state.set_simple(on);
    }

    /// What this queue has counted.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        self.state.stats()
    }

    /// How many requests are submitted and not yet popped.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.state.outstanding()
    }

    /// `count` buffers of `size` bytes, registered with the kernel where the device has a use for it: requests on them need
    /// not pin their pages. Once per queue; at most 1 GiB.
    ///
    /// # Errors
    /// `Io` with EINVAL for none or too many bytes, ENOMEM where the memory may not be locked, EBUSY the second time.
    pub fn register_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>> {
        with_queue!(&mut self.device, queue => queue.register_buffers(count, size))
            .map_err(|errno| Error::io(errno, format!("register {count} buffers of {size} bytes")))
    }

    /// Hands submitted requests to the device and sees what has completed, without waiting.
    ///
    /// # Errors
    /// `Io` where the kernel refuses; the requests stay queued.
    pub fn poll(&mut self) -> Result<()> {
        with_queue!(&mut self.device, queue => dio::poll(queue, &mut self.state))
    }

    /// The same, and waits until `min` requests (or all outstanding, if fewer) have completed: that many [`pop`](Self::pop)s give
    /// a completion. Where the device cut a transfer short, it is the pop that waits for the rest.
    ///
    /// # Errors
    /// `Io` where the kernel refuses; the requests stay queued.
    #[inline]
    pub fn wait(&mut self, min: usize) -> Result<()> {
        with_queue!(&mut self.device, queue => dio::wait(queue, &mut self.state, min))
    }

    /// Takes a completion, if one is there; after [`wait`](Self::wait) it can wait itself, after [`poll`](Self::poll) never.
    /// Completions come in the order of the device, not of submission.
    #[inline]
    pub fn pop(&mut self) -> Option<Completion> {
        with_queue!(&mut self.device, queue => dio::pop(queue, &mut self.state))
    }
}
