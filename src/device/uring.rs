//! io_uring: requests in batches, registered file and buffers, polling where the device has it.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::psync::rw_flags;
use super::{AnyQueue, BlockFile, Device, DeviceQueue, LentPart, Limits, QueueOptions};
use crate::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Done};
use crate::error::{Errno, Error, Result};
use crate::sys::{Lent, Ring, RingOp, RingOptions, Transfer};
use crate::units::DevOffset;

/// How a ring is driven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UringOptions {
    /// Poll for completions. Ignored, with [`Limits::poll`] saying so, where the device has no poll queues.
    pub poll: bool,
    /// A kernel thread submits (SQPOLL), and sleeps after this many milliseconds without work.
    pub sqpoll_idle: Option<u32>,
}

/// A block device or image, read and written through io_uring.
///
/// It needs a device that understands NOWAIT: elsewhere the kernel hands every request to a worker thread, and
/// [`Psync`](super::Psync) is faster.
#[derive(Debug)]
pub struct Uring {
    file: Arc<BlockFile>,
    options: UringOptions,
}

impl Uring {
    /// The device over an open file.
    #[must_use]
    pub fn new(file: Arc<BlockFile>, options: UringOptions) -> Self {
        Self { file, options }
    }
}

impl Device for Uring {
    fn limits(&self) -> &Limits {
        self.file.limits()
    }

    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read_exact_at(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
        self.file.read_exact_at(buf, at)
    }

    fn queue(&self, options: &QueueOptions) -> Result<AnyQueue> {
        let ring = RingOptions {
            entries: options.slots() as u32,
            iopoll: self.options.poll && self.file.limits().poll,
            sqpoll_idle: self.options.sqpoll_idle,
        };
        let ring = Ring::new(self.file.fd(), ring).map_err(|errno| Error::io(errno, "io_uring"))?;
        Ok(AnyQueue::Uring(UringQueue { ring, file: Arc::clone(&self.file) }))
    }
}

/// What travels with a bio's memory through the ring.
struct Attached {
    op: BioOp,
    flags: BioFlags,
    at: DevOffset,
    end: BioEnd,
}

/// A thread's ring.
pub struct UringQueue {
    // Before the file: the ring is drained while the file is open.
    ring: Ring<Attached>,
    file: Arc<BlockFile>,
}

impl UringQueue {
    /// A ring polls by its own flag, so HIPRI has no meaning within one.
    fn flags(&self, flags: BioFlags) -> i32 {
        rw_flags(flags - BioFlags::HIPRI, self.file.limits()).bits() as i32
    }
}

fn result(raw: i32) -> Result<usize, Errno> {
    usize::try_from(raw).map_err(|_| Errno(-raw))
}

impl DeviceQueue for UringQueue {
    fn read_now(&mut self, buf: &mut [u8], at: DevOffset, flags: BioFlags) -> Result<usize, Errno> {
        let mut part = [LentPart::new(smallvec![IoSliceMut::new(buf)], at)];
        self.read_parts_now(&mut part, flags);
        part[0].result
    }

    fn read_parts_now(&mut self, parts: &mut [LentPart<'_>], flags: BioFlags) {
        let rw_flags = self.flags(flags);
        let file = &self.file;
        let mut lent: SmallVec<[Transfer<'_, '_>; 2]> = parts
            .iter_mut()
            .map(|part| Transfer::new(Lent::Read(&mut part.bufs), file.absolute(part.at)))
            .collect();
        self.ring.transfer_now(&mut lent, rw_flags);
        let results: SmallVec<[i32; 2]> = lent.iter().map(|transfer| transfer.result).collect();
        drop(lent);
        for (part, raw) in parts.iter_mut().zip(results) {
            part.result = result(raw);
        }
    }

    fn write_now(
        &mut self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let rw_flags = self.flags(flags);
        let mut lent = [Transfer::new(Lent::Write(bufs), self.file.absolute(at))];
        self.ring.transfer_now(&mut lent, rw_flags);
        result(lent[0].result)
    }

    fn flush_now(&mut self) -> Result<(), Errno> {
        rustix::fs::fdatasync(self.file.fd()).map_err(Errno::from)
    }

    #[inline]
    fn room(&self) -> usize {
        self.ring.room()
    }

    #[inline]
    fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    #[inline]
    fn submit(&mut self, bio: Bio) -> Result<(), Bio> {
        let op = match bio.op {
            BioOp::Read => RingOp::Read,
            BioOp::Write => RingOp::Write,
            BioOp::Flush => RingOp::Flush,
        };
        let Bio { op: bio_op, flags, at, memory, end } = bio;
        let rw_flags = if flags.is_empty() { 0 } else { self.flags(flags) };
        let attached = Attached { op: bio_op, flags, at, end };
        self.ring
            .push(op, self.file.absolute(at), rw_flags, memory, attached)
            .map_err(|(memory, _)| Bio { op: bio_op, flags, at, memory, end })
    }

    #[inline]
    fn commit(&mut self) -> Result<(), Errno> {
        self.ring.wait(0)
    }

    #[inline]
    fn wait(&mut self, min: usize) -> Result<(), Errno> {
        self.ring.wait(min.min(self.ring.in_flight()))
    }

    #[inline]
    fn pop(&mut self) -> Option<Done> {
        let (Attached { op, flags, at, end }, memory, raw) = self.ring.pop()?;
        Some(Done { bio: Bio { op, flags, at, memory, end }, result: result(raw) })
    }

    fn register_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, Errno> {
        self.ring.register(count, size)
    }
}
