//! The interface of a device's queue.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use smallvec::SmallVec;

use super::BlockFile;
use crate::bio::{Bio, BioFlags, BioOp, Buffer, Dev, Done, Whole};
use crate::error::Errno;
use crate::units::DevOffset;

/// A part of a synchronous read: memory that the caller lends, the position on the device, and the result.
#[derive(Debug)]
pub struct LentPart<'a> {
    /// The memory. The buffers are filled one after the other.
    pub bufs: SmallVec<[IoSliceMut<'a>; 2]>,
    /// The position on the device at which the part begins.
    pub at: DevOffset,
    /// The number of bytes read, which may be less than the length of the memory. The device sets this field.
    pub result: Result<usize, Errno>,
}

impl<'a> LentPart<'a> {
    /// Creates a part that has not been read yet.
    #[must_use]
    pub fn new(bufs: SmallVec<[IoSliceMut<'a>; 2]>, at: DevOffset) -> Self {
        Self { bufs, at, result: Ok(0) }
    }

    /// The length of the memory in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a part has at least one byte")]
    pub fn len(&self) -> usize {
        self.bufs.iter().map(|buf| buf.len()).sum()
    }
}

/// The state of a queue's bios after a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// No bio is in flight.
    Ended,
    /// The kernel has permanently refused the queue while bios were in flight, and will not report the completions of these bios.
    /// Therefore, their memory is never freed, and their files stay open until the process ends.
    Leaked {
        /// Whether writes are among the bios that are still in flight. The device may still carry out these writes at any time.
        writes: bool,
    },
}

impl Drained {
    /// Returns the result of a drain that leaves bios in flight.
    pub(super) fn with(left: impl Iterator<Item = BioOp>) -> Self {
        left.fold(Self::Ended, |drained, op| {
            let before = matches!(drained, Self::Leaked { writes: true });
            Self::Leaked { writes: before || op == BioOp::Write }
        })
    }
}

/// A queue of requests to a device. One thread uses it.
///
/// The synchronous methods (`..._now`) use memory that the call borrows. The asynchronous methods accept bios and return them: `submit`
/// queues a bio, `commit` submits queued bios to the device, `wait` waits for completions, and `pop` returns a completed bio.
pub trait DeviceQueue {
    /// Reads by one transfer, which may be short.
    ///
    /// # Errors
    /// The device's errno.
    fn read_now(
        &mut self,
        dev: Dev,
        buf: &mut [u8],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno>;

    /// Reads several parts, concurrently if the device supports this.
    fn read_parts_now(&mut self, dev: Dev, parts: &mut [LentPart<'_>], flags: BioFlags);

    /// Writes by one transfer, which may be short.
    ///
    /// # Errors
    /// The device's errno.
    fn write_now(
        &mut self,
        dev: Dev,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno>;

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// The device's errno.
    fn flush_now(&mut self, dev: Dev) -> Result<(), Errno>;

    /// Attaches a file, so that this queue can send requests to the file too. The file stays open until it is detached. Without `lasting`,
    /// the attachment is faster, but each request is a little slower; this suits a file with only a few requests.
    ///
    /// # Errors
    /// EOPNOTSUPP if the queue can serve only its own device.
    fn attach(&mut self, file: &Arc<BlockFile>, lasting: bool) -> Result<Dev, Errno> {
        let _ = (file, lasting);
        Err(Errno::EOPNOTSUPP)
    }

    /// Detaches an attached file. No request to the file may be in flight. After this call, requests to the file fail with EBADF.
    fn detach(&mut self, dev: Dev) {
        let _ = dev;
    }

    /// The number of bios that can still be submitted. If it is 0, the caller must pop a bio before the next submission.
    fn room(&self) -> usize;

    /// The number of bios that were submitted but not yet popped.
    fn in_flight(&self) -> usize;

    /// Queues a bio.
    ///
    /// # Errors
    /// Returns the bio if no slot is free.
    #[allow(
        clippy::result_large_err,
        reason = "the error returns the complete bio without an allocation"
    )]
    fn submit(&mut self, bio: Bio) -> Result<(), Bio>;

    /// Submits queued bios to the device without waiting, and collects completions.
    ///
    /// # Errors
    /// The errno of the submission. This error is permanent. The bios that the device has not accepted can then be popped, with the same
    /// errno.
    fn commit(&mut self) -> Result<(), Errno>;

    /// Submits queued bios as [`commit`](Self::commit) does, and waits until `min` bios can be popped. If fewer bios are in flight, waits
    /// for all of them.
    ///
    /// # Errors
    /// The errors of [`commit`](Self::commit).
    fn wait(&mut self, min: usize) -> Result<(), Errno>;

    /// Ends the queue: waits for the bios in flight, and drops all completed bios. No other method may be called afterwards. Dropping a
    /// queue also drains it, but a caller that has lent a resource to a bio must call this method, because only its result states whether
    /// the bio has ended.
    fn drain(&mut self) -> Drained;

    /// Removes and returns a completed bio.
    fn pop(&mut self) -> Option<Done>;

    /// Removes and returns a completed bio. For most bios, only the parts that the completion needs are copied out of the queue, because
    /// each copied word costs one or two instructions.
    #[inline(always)]
    fn pop_whole(&mut self) -> Option<Result<Whole, Done>> {
        self.pop().map(Done::whole)
    }

    /// Whether a popped bio may have completed after the previous call of this method. A caller that measures latencies calls this method
    /// after each pop, and reads the clock only if the result is true. Completions arrive in batches, so most pops need no read of the
    /// clock.
    fn take_fresh(&mut self) -> bool {
        true
    }

    /// Returns an eventfd that is signalled when bios complete. The caller then collects the completions with [`commit`](Self::commit) and
    /// [`pop`](Self::pop). If the device completes every bio in `submit`, the eventfd is always signalled.
    ///
    /// # Errors
    /// EOPNOTSUPP if the queue must poll the device for completions; EMFILE if the process has too many open files.
    fn readiness(&mut self) -> Result<std::os::fd::OwnedFd, Errno> {
        always_ready()
    }

    /// Allocates buffers that are registered with the kernel, so that the kernel need not pin their pages for each request. If the queue
    /// does not support registration, the buffers are aligned but not registered.
    ///
    /// # Errors
    /// ENOMEM, or EINVAL for zero or too many bytes.
    fn register_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, Errno> {
        unregistered(count, size)
    }

    /// Registers memory of the caller. The registration also applies to all buffers that are later split off this memory. If the queue does
    /// not support registration, the call has no effect.
    ///
    /// # Errors
    /// EINVAL for zero or too many bytes; EBUSY if memory of the caller is already registered with the queue; ENOMEM.
    fn register_memory(&mut self, buffer: &mut Buffer) -> Result<(), Errno> {
        if buffer.is_empty() { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// Registers a buffer that many requests will use one after another. The buffer must be a whole allocation. The call has no effect if
    /// the queue does not support registration, or has no free entry in its table.
    fn register_one(&mut self, buffer: &mut Buffer) {
        let _ = buffer;
    }

    /// Ends the registration of a buffer. The caller must do this before it drops the buffer.
    fn unregister_one(&mut self, buffer: &mut Buffer) {
        let _ = buffer;
    }
}

/// Returns an eventfd that is always signalled.
pub(super) fn always_ready() -> Result<std::os::fd::OwnedFd, Errno> {
    let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
    Ok(rustix::event::eventfd(1, flags)?)
}

/// Allocates aligned buffers that are not registered with the kernel.
pub(super) fn unregistered(count: usize, size: usize) -> Result<Vec<Buffer>, Errno> {
    count.checked_mul(size).filter(|total| *total > 0).ok_or(Errno::EINVAL)?;
    (0..count).map(|_| Buffer::aligned(size).map_err(|_| Errno::ENOMEM)).collect()
}

/// Runs an expression with the queue in the field `below` of `Self`.
macro_rules! with_below {
    ($above:expr, $queue:ident => $body:expr) => {
        match $above {
            Self { below: $queue, .. } => $body,
        }
    };
}
pub(crate) use with_below;

/// Forwards methods of [`DeviceQueue`] to another queue, which the macro `$with` selects. The first argument selects the methods:
/// `requests` for all request methods; `progress` for flush, commit, drain and the queries for free slots and new completions; `resources`
/// for files and registered memory.
macro_rules! through_queue {
    (requests, $with:ident) => {
        $crate::device::through_queue!(progress, $with);

        #[inline(always)]
        fn read_now(
            &mut self,
            dev: Dev,
            buf: &mut [u8],
            at: DevOffset,
            flags: BioFlags,
        ) -> Result<usize, Errno> {
            $with!(self, queue => queue.read_now(dev, buf, at, flags))
        }

        fn read_parts_now(&mut self, dev: Dev, parts: &mut [LentPart<'_>], flags: BioFlags) {
            $with!(self, queue => queue.read_parts_now(dev, parts, flags));
        }

        #[inline(always)]
        fn write_now(
            &mut self,
            dev: Dev,
            bufs: &[IoSlice<'_>],
            at: DevOffset,
            flags: BioFlags,
        ) -> Result<usize, Errno> {
            $with!(self, queue => queue.write_now(dev, bufs, at, flags))
        }

        #[inline(always)]
        fn submit(&mut self, bio: Bio) -> Result<(), Bio> {
            $with!(self, queue => queue.submit(bio))
        }

        fn in_flight(&self) -> usize {
            $with!(self, queue => queue.in_flight())
        }

        #[inline]
        fn wait(&mut self, min: usize) -> Result<(), Errno> {
            $with!(self, queue => queue.wait(min))
        }

        #[inline(always)]
        fn pop(&mut self) -> Option<Done> {
            $with!(self, queue => queue.pop())
        }

        #[inline(always)]
        fn pop_whole(&mut self) -> Option<Result<Whole, Done>> {
            $with!(self, queue => queue.pop_whole())
        }
    };
    (progress, $with:ident) => {
        fn flush_now(&mut self, dev: Dev) -> Result<(), Errno> {
            $with!(self, queue => queue.flush_now(dev))
        }

        fn room(&self) -> usize {
            $with!(self, queue => queue.room())
        }

        #[inline]
        fn commit(&mut self) -> Result<(), Errno> {
            $with!(self, queue => queue.commit())
        }

        fn drain(&mut self) -> Drained {
            $with!(self, queue => queue.drain())
        }

        #[inline]
        fn take_fresh(&mut self) -> bool {
            $with!(self, queue => queue.take_fresh())
        }
    };
    (resources, $with:ident) => {
        fn attach(&mut self, file: &Arc<BlockFile>, lasting: bool) -> Result<Dev, Errno> {
            $with!(self, queue => queue.attach(file, lasting))
        }

        fn detach(&mut self, dev: Dev) {
            $with!(self, queue => queue.detach(dev));
        }

        fn readiness(&mut self) -> Result<std::os::fd::OwnedFd, Errno> {
            $with!(self, queue => queue.readiness())
        }

        fn register_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, Errno> {
            $with!(self, queue => queue.register_buffers(count, size))
        }

        fn register_memory(&mut self, buffer: &mut Buffer) -> Result<(), Errno> {
            $with!(self, queue => queue.register_memory(buffer))
        }

        fn register_one(&mut self, buffer: &mut Buffer) {
            $with!(self, queue => queue.register_one(buffer));
        }

        fn unregister_one(&mut self, buffer: &mut Buffer) {
            $with!(self, queue => queue.unregister_one(buffer));
        }
    };
}
pub(crate) use through_queue;
