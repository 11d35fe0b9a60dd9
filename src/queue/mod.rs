//! A thread's submission and completion queue.

mod finish;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::bio::Buffer;
use crate::device::{AnyQueue, DeviceQueue, Drained, QueueOptions, with_queue};
use crate::dio::{self, Completion, Io, State, Stats};
use crate::error::{Error, Result};
use crate::events::Events;
use crate::host::Lanes;
use crate::open_file::{Owner, Views};

/// A thread's access to the files of a volume or a host: requests are submitted to it, and completions are popped from it.
///
/// A queue belongs to the thread that made it (it is neither `Send` nor `Sync`), and shares no state with other queues: two threads that read one
/// file do not contend. Dropping a queue waits for its requests in flight and frees their memory.
///
/// A process can be forbidden to use io_uring while it has requests in flight (a seccomp filter), or lose its descriptor. Then the completions of
/// these requests cannot be observed. Dropping the queue leaks their memory, and the device stays open until the process ends. If some of the
/// requests are writes, which may reach the device at any time, the volume becomes read-only and reports the reason. A request that the kernel had
/// not accepted only fails.
///
/// # In an event loop
///
/// A loop that stays on one thread waits for [`readiness`](Self::readiness), as `examples/tokio_reader.rs` does. A runtime that moves tasks between
/// threads keeps each queue in a thread of its own, which gets requests over a channel:
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::mpsc::{Receiver, Sender, channel}; // in a runtime: its channels, a `oneshot` for the answer
///
/// use ironmap::prelude::*;
///
/// type Read = (u64, Sender<ironmap::Result<(usize, Buffer)>>);
///
/// fn serve(volume: &Volume, file: &File, reads: &Receiver<Read>) -> ironmap::Result<()> {
///     let (mut queue, mut asked) = (volume.queue(&QueueOptions::new())?, HashMap::new());
///     for token in 0.. {
///         // If no request is in flight, the thread waits for the next read; otherwise it only takes a queued one.
///         let read = if asked.is_empty() { reads.recv().ok() } else { reads.try_recv().ok() };
///         if let Some((position, answer)) = read {
///             file.submit_read(&mut queue, Buffer::aligned(4096)?, position, DioFlags::empty(), token)?;
///             asked.insert(token, answer);
///             continue;
///         } else if asked.is_empty() {
///             break; // all senders are gone
///         }
///         queue.wait(1)?;
///         while let Some(completion) = queue.pop() {
///             if let Some(answer) = asked.remove(&completion.token) {
///                 let _ = answer.send(completion.into_buffer()); // the asker may have gone
///             }
///         }
///     }
///     Ok(())
/// }
/// # fn main() -> ironmap::Result<()> {
/// # let ram = std::sync::Arc::new(ironmap::device::Ram::new(8 << 20));
/// # ironmap::tools::make(&*ram, &ironmap::fs::ext4::MkfsOptions::new())?;
/// # let volume = VolumeOptions::new().write(true).open_on(ram)?;
/// # volume.write("/file", b"content")?;
/// # let file = volume.open("/file", FileOptions::new())?;
///
/// let (asks, reads) = channel();
/// let server = std::thread::spawn(move || serve(&volume, &file, &reads));
/// let (answer, answered) = channel();
/// asks.send((0, answer)).unwrap();
/// let (count, buffer) = answered.recv().unwrap()?;
/// assert_eq!(&buffer[..count], b"content");
/// # drop(asks);
/// # server.join().unwrap()
/// # }
/// ```
pub struct Queue {
    pub(crate) device: AnyQueue,
    pub(crate) state: State,
    /// For host files: their maps in the last tenure that this thread saw.
    pub(crate) lanes: Option<Box<Lanes>>,
    /// The views of files that can change.
    pub(crate) views: Views,
    owner: Owner,
}

impl Queue {
    pub(crate) fn new(
        device: AnyQueue,
        options: &QueueOptions,
        owner: Owner,
        lanes: Option<Box<Lanes>>,
        events: Arc<Events>,
    ) -> Self {
        let state = State::new(options.slots(), events);
        Self { device, state, lanes, views: Views::default(), owner }
    }

    /// Refuses a file of another owner.
    #[inline(always)]
    pub(crate) fn check(&self, owner: Owner) -> Result<()> {
        if self.owner == owner { Ok(()) } else { Err(foreign()) }
    }

    /// Switches the simple path on (the default) or off, to measure it.
    #[doc(hidden)] // For measurements only.
    pub fn set_simple(&mut self, on: bool) {
        self.state.set_simple(on);
    }

    /// The largest number of bytes of this queue's bounce buffers: 2 MiB by default, at least 64 KiB. A request that needs more is copied piece by
    /// piece. If all buffers are in use, the request waits for completions, or fails with EAGAIN if it must not wait. An atomic write that is copied
    /// cannot be longer than this limit.
    pub fn set_bounce_limit(&mut self, limit: usize) {
        self.state.set_bounce_limit(self.device.as_dyn(), limit);
    }

    /// The present number of bytes of the bounce buffers, which are allocated when they are first needed. Reads that are repeated, and data that are
    /// copied and written before a call returns, use a separate buffer of 64 KiB, which the limit does not include.
    #[must_use]
    pub fn bounce_bytes(&self) -> usize {
        self.state.bounce_bytes()
    }

    /// The counters of this queue.
    #[doc(hidden)] // These counters belong to the layer below, and change with it.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        self.state.stats()
    }

    /// The number of requests that were submitted and not yet popped.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.state.outstanding()
    }

    /// Allocates `count` buffers of `size` bytes. They are registered with the kernel if the device can use that, so that requests need not pin their
    /// pages. A queue can do this once, for at most 1 GiB.
    ///
    /// # Errors
    /// `Io` with EINVAL for zero or too many bytes, ENOMEM if the process may not lock so much memory, EBUSY for a second call.
    pub fn register_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>> {
        with_queue!(&mut self.device, queue => queue.register_buffers(count, size))
            .map_err(|errno| Error::io(errno, format!("register {count} buffers of {size} bytes")))
    }

    /// A descriptor for an event loop, which becomes readable when a request completes. The program [clears](Readiness::clear) it, calls
    /// [`poll`](Self::poll), which submits queued requests, and pops. If there was no completion and requests are outstanding, it waits until the
    /// descriptor is readable. All calls return descriptors of the same event.
    ///
    /// # Errors
    /// `Io` with EOPNOTSUPP if the queue's devices are polled ([`DioFlags::HIPRI`](crate::dio::DioFlags::HIPRI)), and if no descriptor is free.
    pub fn readiness(&mut self) -> Result<Readiness> {
        let fd = with_queue!(&mut self.device, queue => queue.readiness());
        fd.map(Readiness)
            .map_err(|errno| Error::io(errno, "a descriptor of the queue's completions"))
    }

    /// Submits queued requests to the device and collects completions, without waiting for the device. The call may sync the files of completed
    /// writes that must be durable ([`DioFlags::DSYNC`](crate::dio::DioFlags::DSYNC)), and such a sync waits.
    ///
    /// # Errors
    /// `Io` if the kernel refuses, permanently: requests that it has not accepted can be popped, with that error.
    pub fn poll(&mut self) -> Result<()> {
        with_queue!(&mut self.device, queue => dio::poll(queue, &mut self.state))?;
        self.finish_writes();
        Ok(())
    }

    /// Submits queued requests, and waits until `min` requests (or all outstanding, if fewer) have completed: that many calls of [`pop`](Self::pop)
    /// return a completion. If the device cut a transfer short, the pop waits for the remaining bytes.
    ///
    /// # Errors
    /// The errors of [`poll`](Self::poll).
    #[inline]
    pub fn wait(&mut self, min: usize) -> Result<()> {
        with_queue!(&mut self.device, queue => dio::wait(queue, &mut self.state, min))?;
        self.finish_writes();
        Ok(())
    }

    /// Does the completion work of finished writes.
    #[inline]
    fn finish_writes(&mut self) {
        if self.state.files.expects() {
            Io { queue: self.device.as_dyn(), state: &mut self.state }.take_completed();
            self.finish_left();
        }
    }

    /// Takes an available completion. After [`wait`](Self::wait) this call may wait too, for the remaining bytes of a short transfer. After
    /// [`poll`](Self::poll) it never waits, with these exceptions: a read of a host file whose lease was lost in the meantime is repeated through the
    /// kernel; a short transfer of a bounce buffer and a read that did not match its checksums are repeated before the call returns. The last
    /// completion of a host file without a handle closes the file, and may wait until its lease is taken again. Completions come in the order of the
    /// device, not of submission.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<Completion> {
        // Each path is separate, because a completion that is lent must be in memory, and is moved more often.
        if self.lanes.is_some() {
            return self.pop_finished();
        }
        // Each device is separate for the same reason.
        with_queue!(&mut self.device, device => dio::pop(device, &mut self.state))
    }

    /// Completes one of the requests in flight, and waits for one if necessary. The request can then be popped.
    pub(crate) fn pump(&mut self) -> Result<()> {
        Io { queue: self.device.as_dyn(), state: &mut self.state }.pump()
    }

    #[inline(never)]
    fn pop_finished(&mut self) -> Option<Completion> {
        let mut popped = with_queue!(&mut self.device, device => dio::pop(device, &mut self.state));
        if let (Some(lanes), Some(completion)) = (&mut self.lanes, &mut popped) {
            lanes.accept(&mut self.device, &mut self.state, completion);
        }
        popped
    }
}

/// The completions of a [`Queue`] for an event loop: `epoll`, `poll`, or an `AsyncFd` of tokio. It owns its descriptor, which stays the same until
/// the value is dropped, as `AsyncFd::register` requires.
#[derive(Debug)]
pub struct Readiness(OwnedFd);

impl Readiness {
    /// Makes the descriptor unreadable until the next completion. Without this call a level-triggered loop, such as `poll(2)`, would not wait again.
    pub fn clear(&self) {
        // An eventfd that is not signalled has nothing to read.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Readiness {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for Queue {
    /// Waits for the requests in flight, as long as the kernel serves the queue. The resources of leaked requests are not released.
    fn drop(&mut self) {
        let drained = with_queue!(&mut self.device, device => device.drain());
        if drained == (Drained::Leaked { writes: true }) {
            self.lose();
        }
    }
}

#[cold]
fn foreign() -> Error {
    Error::invalid("the queue belongs to another volume or host")
}
