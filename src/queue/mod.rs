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

/// One thread's way to the files of a volume, or of a host: requests go down through it and completions come back through it.
///
/// A queue belongs to the thread that made it (it is neither `Send` nor `Sync`), and shares nothing with other queues: two
/// threads that read one file meet nowhere. Dropping it waits for the requests in flight and frees their memory.
///
/// A process can be forbidden to use io_uring while it has requests in flight (a seccomp filter), or lose its descriptor. Then nobody learns when
/// they end, and dropping the queue leaks them: their memory, and the device, which stays open until the process ends. Where writes are among
/// them, which may reach the device at any time, the volume is read-only from then on and says why. A request that the kernel had not taken is only an
/// error.
///
/// # In an event loop
///
/// A loop that stays on one thread waits for [`readiness`](Self::readiness), as `examples/tokio_reader.rs` does. A runtime that moves tasks between
/// threads keeps each queue in a thread of its own, and asks that by a channel:
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
///         // Without a request in flight the thread waits for the next read, else it takes one that is there.
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
/// # Volume::make(&*ram, &ironmap::fs::ext4::MkfsOptions::new())?;
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
    /// For host files: their maps as this thread knows them.
    pub(crate) lanes: Option<Box<Lanes>>,
    /// Files that can change, as this thread knows them.
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

    /// Switches the simple path on (as it is at first) or off, to measure it.
    #[doc(hidden)] // For measurements.
    pub fn set_simple(&mut self, on: bool) {
        self.state.set_simple(on);
    }

    /// How much memory the bounce buffers of this queue take at most, in bytes: 2 MiB at first, 64 KiB at least. A request that needs more
    /// goes through them piece by piece; one that finds them in use waits for completions, or fails with EAGAIN if it may not. An atomic
    /// write that is copied can be no longer than this.
    pub fn set_bounce_limit(&mut self, limit: usize) {
        self.state.set_bounce_limit(self.device.as_dyn(), limit);
    }

    /// How much they take now: they are made when they are first needed. Data that are read once more, and data that are copied and written before a call
    /// returns, has one of its own of 64 KiB, beside the limit.
    #[must_use]
    pub fn bounce_bytes(&self) -> usize {
        self.state.bounce_bytes()
    }

    /// The counts of this queue: how its requests went.
    #[doc(hidden)] // Of the layer below, and changed with it.
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

    /// A descriptor for an event loop, which becomes readable when a request completes. The program [clears](Readiness::clear) it, calls
    /// [`poll`](Self::poll), which hands submitted requests over, and pops; if nothing was there and requests are outstanding, it waits until this
    /// is readable. It is of the whole queue, however often it is asked for.
    ///
    /// # Errors
    /// `Io` with EOPNOTSUPP where the queue's devices are polled ([`DioFlags::HIPRI`](crate::dio::DioFlags::HIPRI)), and where no descriptor is left.
    pub fn readiness(&mut self) -> Result<Readiness> {
        let fd = with_queue!(&mut self.device, queue => queue.readiness());
        fd.map(Readiness)
            .map_err(|errno| Error::io(errno, "a descriptor of the queue's completions"))
    }

    /// Hands submitted requests to the device and collects completions, without waiting for the device. For writes that are complete and must be durable
    /// ([`DioFlags::DSYNC`](crate::dio::DioFlags::DSYNC)), it can sync their files, and that waits.
    ///
    /// # Errors
    /// `Io` where the kernel refuses, for good: requests that it has not taken can be popped, with that error.
    pub fn poll(&mut self) -> Result<()> {
        with_queue!(&mut self.device, queue => dio::poll(queue, &mut self.state))?;
        self.finish_writes();
        Ok(())
    }

    /// The same, and waits until `min` requests (or all outstanding, if fewer) have completed: that many [`pop`](Self::pop)s give
    /// a completion. Where the device cut a transfer short, it is the pop that waits for the rest.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    #[inline]
    pub fn wait(&mut self, min: usize) -> Result<()> {
        with_queue!(&mut self.device, queue => dio::wait(queue, &mut self.state, min))?;
        self.finish_writes();
        Ok(())
    }

    /// Does what writes that are complete have left to be done.
    #[inline]
    fn finish_writes(&mut self) {
        if self.state.files.expects() {
            Io { queue: self.device.as_dyn(), state: &mut self.state }.take_completed();
            self.finish_left();
        }
    }

    /// Takes a completion, if one is there; after [`wait`](Self::wait) it can wait itself, after [`poll`](Self::poll) never, except
    /// for a read of a host file whose lease went meanwhile, which is done again through the kernel, and for what a bounce buffer's
    /// transfer left undone or a read that did not match its checksums, which are done again at once.
    /// The last completion of a host file whose handle has gone closes it, and can wait for its lease's being taken again.
    /// Completions come in the order of the device, not of submission.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<Completion> {
        // Each way by itself: a completion that is lent must lie in memory, and is moved more often.
        if self.lanes.is_some() {
            return self.pop_finished();
        }
        // And each device by itself: data of one of several lie in memory too.
        with_queue!(&mut self.device, device => dio::pop(device, &mut self.state))
    }

    /// Completes one of the requests in flight, and waits for one if necessary; it can be popped then.
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

/// The completions of a [`Queue`], as an event loop waits for them: `epoll`, `poll`, or an `AsyncFd` of tokio's. It owns its descriptor, which is the
/// same one until this is dropped: `AsyncFd::register` asks for that.
#[derive(Debug)]
pub struct Readiness(OwnedFd);

impl Readiness {
    /// Makes it unreadable until the next completion. Without it a loop that waits for a level, as `poll(2)` does, would not wait again.
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
    /// Requests in flight end while what they need is there, and nothing is given back for those that do not.
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
