//! A submission and completion queue, which belongs to one thread.

mod finish;
mod kinds;

pub use self::kinds::ForKind;

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::bio::Buffer;
use crate::device::{AnyQueue, DeviceQueue, Drained, QueueOptions, with_queue};
use crate::dio::{self, Completion, Io, State, Stats};
use crate::error::{Errno, Error, Result};
use crate::events::Events;
use crate::host::Lanes;
use crate::open_file::{Owner, Views};

/// The access of one thread to the files of a volume or a host. The thread submits requests to its queue, and pops their completions.
///
/// A queue belongs to the thread that created it (it is neither `Send` nor `Sync`). Queues share no state, so two threads that read one
/// file do not slow each other down. The drop of a queue waits for its requests in flight and frees their memory. Unsafe code, such as a
/// binding for another language, may drop a queue in another thread under two conditions: the queue has no [outstanding](Self::outstanding)
/// requests, and a device of this crate has created the queue.
///
/// The kernel may stop serving a queue while requests are in flight. There are two causes: a seccomp filter forbids io_uring to the
/// process, or the process closes the descriptor of the io_uring. The completions of these requests cannot be observed. Therefore the drop
/// of the queue leaks their memory, and the device stays open until the process ends. If some of the requests are writes, they may reach
/// the device at any time. In this case, the volume becomes read-only and reports the reason. Requests that the kernel had not accepted
/// fail and have no effect.
///
/// # In an event loop
///
/// An event loop on one thread waits for [`readiness`](Self::readiness). In a runtime that moves tasks between threads, each queue needs a
/// separate thread. The crate `ironmap-async` provides such threads, and handles through which tasks use the queues. The thread in this
/// example receives requests over a channel:
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::mpsc::{Receiver, Sender, channel}; // a runtime has its own channels, for example `oneshot`
///
/// use ironmap::prelude::*;
///
/// type Read = (u64, Sender<ironmap::Result<(usize, Buffer)>>);
///
/// fn serve(volume: &Volume, file: &File, reads: &Receiver<Read>) -> ironmap::Result<()> {
///     let (mut queue, mut asked) = (volume.queue(&QueueOptions::new())?, HashMap::new());
///     for token in 0.. {
///         // If no request is in flight, the thread waits for the next read. Otherwise it takes a read only if one has arrived.
///         let read = if asked.is_empty() { reads.recv().ok() } else { reads.try_recv().ok() };
///         if let Some((position, answer)) = read {
///             file.submit_read(&mut queue, Buffer::aligned(4096)?, position, DioFlags::empty(), token)?;
///             asked.insert(token, answer);
///             continue;
///         } else if asked.is_empty() {
///             break; // all senders were dropped
///         }
///         queue.wait(1)?;
///         while let Some(completion) = queue.pop() {
///             if let Some(answer) = asked.remove(&completion.token) {
///                 let _ = answer.send(completion.into_buffer()); // an error means that the receiver was dropped
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
/// # let file = volume.open("/file")?;
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
    /// The maps of host files (files of mounted file systems). A map is valid for one tenure: a period during which the lease is held
    /// without interruption.
    pub(crate) lanes: Option<Box<Lanes>>,
    /// The queue's views of files that can change: copies of their sizes and maps.
    pub(crate) views: Views,
    pub(crate) owner: Owner,
    /// Whether memory was registered, which a queue can do once.
    has_registered: bool,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("outstanding", &self.outstanding()).finish_non_exhaustive()
    }
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
        Self { device, state, lanes, views: Views::default(), owner, has_registered: false }
    }

    /// Returns an error if a file belongs to another volume or host.
    #[inline(always)]
    pub(crate) fn check(&self, owner: Owner) -> Result<()> {
        if self.owner == owner { Ok(()) } else { Err(foreign()) }
    }

    /// Switches the short code path for simple requests on or off, for measurements. It is on by default.
    #[doc(hidden)] // This function is public only for measurements.
    pub fn set_simple(&mut self, on: bool) {
        self.state.set_simple(on);
    }

    /// Sets the maximum number of bytes in bounce buffers of this queue. The default is 2 MiB, and the minimum is 64 KiB. The data of a
    /// larger request are copied piece by piece. If all buffers are in use, a request waits for completions; a request with NOWAIT fails
    /// with EAGAIN. If the data of an atomic write are copied, the write cannot be longer than this limit.
    pub fn set_bounce_limit(&mut self, limit: usize) {
        self.state.set_bounce_limit(self.device.as_dyn(), limit);
    }

    /// The present number of bytes in bounce buffers. A bounce buffer is allocated at its first use. One buffer of 64 KiB does not count
    /// towards the limit. This buffer serves repeated reads, and writes that complete within the call that submits them.
    #[must_use]
    pub fn bounce_bytes(&self) -> usize {
        self.state.bounce_bytes()
    }

    /// The counters of this queue.
    #[doc(hidden)] // The direct-I/O layer defines these counters, and may change them.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        self.state.stats()
    }

    /// The number of requests that were submitted but not yet popped.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.state.outstanding()
    }

    /// Allocates `count` buffers of `size` bytes each. If the device supports it, also registers the buffers with the kernel, so that the
    /// kernel need not pin their pages for each request. A queue can do this once, for at most 1 GiB in total.
    ///
    /// # Errors
    /// `Io` with EINVAL for zero or too many bytes, with ENOMEM if the process may not lock so much memory, with EBUSY for a second call.
    pub fn register_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>> {
        self.register(|device| with_queue!(device, queue => queue.register_buffers(count, size)))
            .map_err(|errno| Error::io(errno, format!("register {count} buffers of {size} bytes")))
    }

    /// Registers memory by `register`, at most once for each queue.
    fn register<T>(
        &mut self,
        register: impl FnOnce(&mut AnyQueue) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if self.has_registered {
            return Err(Errno::EBUSY);
        }
        let registered = register(&mut self.device)?;
        self.has_registered = true;
        Ok(registered)
    }

    /// Registers memory of the caller with the kernel, for example the pool of a database engine ([`Buffer::from_owner`]). For registered
    /// memory, the kernel need not pin pages for each request. Buffers that are split off this memory are registered too. A queue can do
    /// this once, for at most 1 GiB, and not after [`register_buffers`](Self::register_buffers). The memory is released after the queue was
    /// dropped.
    ///
    /// # Errors
    /// `Io` with EINVAL for zero or too many bytes, with ENOMEM if the process may not lock so much memory, with EBUSY for a second call.
    pub fn register_memory(&mut self, buffer: &mut Buffer) -> Result<()> {
        let len = buffer.len();
        self.register(|device| with_queue!(device, queue => queue.register_memory(buffer)))
            .map_err(|errno| Error::io(errno, format!("register {len} bytes of memory")))
    }

    /// A descriptor for an event loop. It becomes readable when a request completes. The program repeats these steps. It
    /// [clears](Readiness::clear) the descriptor. It calls [`poll`](Self::poll), which also submits queued requests. It pops all
    /// completions. If there was no completion and requests are outstanding, it waits for the descriptor. The descriptors of several calls
    /// refer to the same event.
    ///
    /// # Errors
    /// `Io` with EOPNOTSUPP if the queue polls its devices ([`DioFlags::HIPRI`](crate::dio::DioFlags::HIPRI)); `Io` if no descriptor is
    /// free.
    pub fn readiness(&mut self) -> Result<Readiness> {
        let fd = with_queue!(&mut self.device, queue => queue.readiness());
        fd.map(Readiness).map_err(|errno| Error::io(errno, "create an eventfd for the queue"))
    }

    /// Submits queued requests to the device and collects completions, without waiting for the device. There is one exception: if completed
    /// writes must be durable ([`DioFlags::DSYNC`](crate::dio::DioFlags::DSYNC)), the call syncs their files and waits.
    ///
    /// # Errors
    /// `Io` if the kernel refuses the call. In this case, all later calls fail too, and requests that the kernel has not accepted complete
    /// with this error.
    pub fn poll(&mut self) -> Result<()> {
        with_queue!(&mut self.device, queue => dio::poll(queue, &mut self.state))?;
        self.finish_writes();
        Ok(())
    }

    /// Submits queued requests, and waits until `min` requests have completed. If fewer requests are outstanding, waits for all of them.
    /// For each completed request, a call of [`pop`](Self::pop) returns a completion. If a transfer was short, `pop` waits until the rest
    /// is transferred.
    ///
    /// # Errors
    /// The errors of [`poll`](Self::poll).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn wait(&mut self, min: usize) -> Result<()> {
        with_queue!(&mut self.device, queue => dio::wait(queue, &mut self.state, min))?;
        self.finish_writes();
        Ok(())
    }

    /// Syncs the files of writes whose transfers are complete, or converts unwritten extents of these files, so that the writes can
    /// complete.
    #[inline]
    fn finish_writes(&mut self) {
        if self.state.files.expects() {
            Io { queue: self.device.as_dyn(), state: &mut self.state }.take_completed();
            self.finish_left();
        }
    }

    /// Returns a completion, if there is one. Completions are in the order in which the device completes the requests.
    ///
    /// After [`wait`](Self::wait), this call may wait for the rest of a short transfer. After [`poll`](Self::poll), this call waits only in
    /// these cases:
    ///
    /// - A read of a host file is repeated through the kernel, if the lease was lost during the read.
    /// - A short transfer through a bounce buffer is continued.
    /// - A read that did not match its checksums is repeated.
    /// - The last completion of a host file closes the file, if no handle has it open. The close waits while the lease of a file is being
    ///   acquired.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn pop(&mut self) -> Option<Completion> {
        self.pop_as(|completion| completion)
    }

    /// Pops a completion, and converts it. For a simple request, the compiler can leave out the completion.
    #[doc(hidden)] // For bindings of other languages.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn pop_as<T>(&mut self, convert: impl Fn(Completion) -> T) -> Option<T> {
        // The two branches call `pop` separately, so that each returns the completion directly. If a completion were passed by reference,
        // it would have to be in memory, and would be moved once more.
        if self.lanes.is_some() {
            return self.pop_finished().map(convert);
        }
        // For each kind of device, this macro makes a separate call of `pop`. This also avoids the move of the completion through memory.
        with_queue!(&mut self.device, device => dio::pop_as(device, &mut self.state, convert))
    }

    /// Processes one completed request, so that its completion can be popped. If no request has completed, waits for one before that.
    pub(crate) fn pump(&mut self) -> Result<()> {
        Io { queue: self.device.as_dyn(), state: &mut self.state }.pump()
    }

    #[inline(never)]
    fn pop_finished(&mut self) -> Option<Completion> {
        let mut popped = with_queue!(&mut self.device, device => {
            dio::pop_as(device, &mut self.state, |completion| completion)
        });
        if let (Some(lanes), Some(completion)) = (&mut self.lanes, &mut popped) {
            lanes.accept(&mut self.device, &mut self.state, completion);
        }
        popped
    }
}

/// A descriptor that becomes readable when requests of a [`Queue`] complete. It is for an event loop: `epoll`, `poll`, or an `AsyncFd` of
/// tokio. The value owns the descriptor. The descriptor stays the same until the value is dropped, as `AsyncFd::register` requires.
#[derive(Debug)]
pub struct Readiness(OwnedFd);

impl Readiness {
    /// Makes the descriptor unreadable until the next completion. Without this call, a level-triggered wait (`poll(2)`) returns
    /// immediately.
    pub fn clear(&self) {
        // If the eventfd is not signalled, the read fails. This error is ignored, because the descriptor is already unreadable.
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
    /// Waits for the requests in flight. If the kernel refuses to serve the queue, the requests are leaked, and their resources are not
    /// released.
    fn drop(&mut self) {
        let drained = with_queue!(&mut self.device, device => device.drain());
        if drained == (Drained::Leaked { writes: true }) {
            self.lose();
        }
    }
}

#[cold]
fn foreign() -> Error {
    Error::invalid("the queue belongs to another Volume or Host")
}
