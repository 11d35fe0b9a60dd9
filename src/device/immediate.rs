//! The queue of devices that complete each request immediately.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use super::{BlockFile, DeviceQueue, Drained, LentPart};
use crate::bio::{Bio, BioFlags, BioOp, Dev, Done, Memory, Whole};
use crate::error::Errno;
use crate::sys::Fifo;
use crate::units::DevOffset;

/// Transfers data before the call returns.
pub trait Transfer {
    /// Reads by one transfer, which may be short.
    ///
    /// # Errors
    /// The device's errno.
    fn read(&mut self, buf: &mut [u8], at: DevOffset, flags: BioFlags) -> Result<usize, Errno>;

    /// Reads into several buffers; the transfer may be short. The default implementation makes a separate read for each buffer.
    ///
    /// # Errors
    /// The device's errno.
    fn read_vectored(
        &mut self,
        bufs: &mut [IoSliceMut<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let mut done = 0;
        for buf in bufs {
            let count = self.read(buf, DevOffset(at.0 + done as u64), flags)?;
            done += count;
            if count < buf.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Writes by one transfer, which may be short.
    ///
    /// # Errors
    /// The device's errno.
    fn write(
        &mut self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno>;

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// The device's errno.
    fn flush(&mut self) -> Result<(), Errno>;
}

/// The devices to which an [`Immediate`] queue sends requests: one device, or several files.
pub trait Transfers {
    /// The type of each device to which the queue sends requests.
    type One<'a>: Transfer
    where
        Self: 'a;

    /// Returns the device with this number. If there is no device with this number, requests to the result fail with EBADF.
    fn device(&mut self, dev: Dev) -> Self::One<'_>;

    /// The implementation of [`DeviceQueue::attach`].
    ///
    /// # Errors
    /// EOPNOTSUPP if there is only one device.
    fn attach(&mut self, file: &Arc<BlockFile>, lasting: bool) -> Result<Dev, Errno> {
        let _ = (file, lasting);
        Err(Errno::EOPNOTSUPP)
    }

    /// The implementation of [`DeviceQueue::detach`].
    fn detach(&mut self, dev: Dev) {
        let _ = dev;
    }
}

impl<T: Transfer> Transfers for T {
    type One<'a>
        = &'a mut T
    where
        T: 'a;

    #[inline(always)]
    fn device(&mut self, _dev: Dev) -> &mut T {
        self
    }
}

impl<T: Transfer> Transfer for &mut T {
    #[inline(always)]
    fn read(&mut self, buf: &mut [u8], at: DevOffset, flags: BioFlags) -> Result<usize, Errno> {
        (**self).read(buf, at, flags)
    }

    #[inline]
    fn read_vectored(
        &mut self,
        bufs: &mut [IoSliceMut<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        (**self).read_vectored(bufs, at, flags)
    }

    #[inline(always)]
    fn write(
        &mut self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        (**self).write(bufs, at, flags)
    }

    fn flush(&mut self) -> Result<(), Errno> {
        (**self).flush()
    }
}

/// Carries out a bio.
#[inline(always)]
pub(super) fn run(device: &mut impl Transfer, bio: &mut Bio) -> Result<usize, Errno> {
    match (bio.op, &mut bio.memory) {
        (BioOp::Read, Memory::Flat(buffer)) => device.read(buffer, bio.at, bio.flags),
        (BioOp::Read, Memory::Vectored(buffers)) => {
            let mut slices: Vec<_> =
                buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
            device.read_vectored(&mut slices, bio.at, bio.flags)
        }
        (BioOp::Write, Memory::Flat(buffer)) => {
            device.write(&[IoSlice::new(buffer)], bio.at, bio.flags)
        }
        (BioOp::Write, Memory::Vectored(buffers)) => {
            let slices: Vec<_> = buffers.iter().map(|buffer| IoSlice::new(buffer)).collect();
            device.write(&slices, bio.at, bio.flags)
        }
        (BioOp::Flush, _) => device.flush().map(|()| 0),
    }
}

/// The queue of a device that completes each request immediately. A bio can be popped as soon as `submit` has returned.
#[derive(Debug)]
pub struct Immediate<T> {
    transfers: T,
    done: Fifo<Done>,
    fresh: bool,
}

impl<T: Transfers> Immediate<T> {
    pub(crate) fn new(transfers: T, depth: usize) -> Self {
        Self { transfers, done: Fifo::new(depth), fresh: false }
    }

    pub(super) fn transfers(&self) -> &T {
        &self.transfers
    }

    pub(super) fn transfers_mut(&mut self) -> &mut T {
        &mut self.transfers
    }
}

impl<T: Transfers> DeviceQueue for Immediate<T> {
    #[inline(always)]
    fn read_now(
        &mut self,
        dev: Dev,
        buf: &mut [u8],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        self.transfers.device(dev).read(buf, at, flags)
    }

    fn read_parts_now(&mut self, dev: Dev, parts: &mut [LentPart<'_>], flags: BioFlags) {
        for part in parts {
            let mut device = self.transfers.device(dev);
            part.result = device.read_vectored(&mut part.bufs, part.at, flags);
        }
    }

    #[inline(always)]
    fn write_now(
        &mut self,
        dev: Dev,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        self.transfers.device(dev).write(bufs, at, flags)
    }

    fn flush_now(&mut self, dev: Dev) -> Result<(), Errno> {
        self.transfers.device(dev).flush()
    }

    fn attach(&mut self, file: &Arc<BlockFile>, lasting: bool) -> Result<Dev, Errno> {
        self.transfers.attach(file, lasting)
    }

    fn detach(&mut self, dev: Dev) {
        self.transfers.detach(dev);
    }

    #[inline]
    fn room(&self) -> usize {
        self.done.room()
    }

    #[inline]
    fn in_flight(&self) -> usize {
        self.done.len()
    }

    #[inline(always)]
    fn submit(&mut self, mut bio: Bio) -> Result<(), Bio> {
        let Some(slot) = self.done.vacant() else { return Err(bio) };
        let result = run(&mut self.transfers.device(bio.dev), &mut bio);
        self.fresh = true;
        slot.fill(Done { bio, result });
        Ok(())
    }

    #[inline]
    fn commit(&mut self) -> Result<(), Errno> {
        Ok(())
    }

    #[inline]
    fn wait(&mut self, _min: usize) -> Result<(), Errno> {
        Ok(())
    }

    fn drain(&mut self) -> Drained {
        self.done.clear();
        Drained::Ended
    }

    #[inline]
    fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.fresh)
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<Done> {
        self.done.pop()
    }

    #[inline(always)]
    fn pop_whole(&mut self) -> Option<Result<Whole, Done>> {
        let Done { bio: Bio { memory, end, .. }, result } = self.done.front()?;
        let whole = end.whole().filter(|_| *result == Ok(memory.len()));
        let Some((token, slot)) = whole else { return self.done.pop().map(Err) };
        let memory = self.done.pop()?.bio.memory;
        Some(Ok(Whole { token, slot, memory }))
    }
}
