//! Checks that each request of a caller is within its device. The check applies to calls and to requests through a queue.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::queue::through_queue;
use super::{AnyQueue, BlockFile, DeviceQueue, Drained, LentPart, with_below};
use crate::bio::{Bio, BioFlags, BioOp, Buffer, Dev, Done, Whole};
use crate::error::{Errno, Error, Result};
use crate::units::DevOffset;

/// The proof that a request is within its device. Other crates cannot create a proof, so they cannot call a method whose name ends in
/// `_within`. A proof for one device is not valid for the device below it. Therefore, a device over another device calls the methods
/// without this suffix, which check the range again.
#[derive(Clone, Copy, Debug)]
pub struct InRange(());

impl InRange {
    /// The proof for requests through the queues of volumes and hosts. The position of each such request comes from a file's block map.
    pub(crate) const BY_THE_MAP: Self = Self(());
    /// The proof for requests of a [`BoundedQueue`], which checks each request.
    pub(super) const BY_THE_QUEUE: Self = Self(());
}

/// Checks that the range of an operation is within the device.
pub(super) fn check_range(end: DevOffset, what: &str, at: DevOffset, len: u64) -> Result<InRange> {
    if is_within(end.0, at, len) {
        return Ok(InRange(()));
    }
    Err(Error::invalid(format!(
        "{what} of {len} bytes at {at}: the range ends past the device's end at {end}"
    )))
}

#[inline(always)]
fn is_within(end: u64, at: DevOffset, len: u64) -> bool {
    len <= end && at.0 <= end - len
}

/// A device's queue for callers that use the device without a file system. A request past the end of its device fails with EINVAL and
/// transfers nothing. The caller can pop this refused bio as soon as `submit` has returned. A refused bio does not signal
/// [`readiness`](DeviceQueue::readiness), so an event loop must pop before it waits.
pub struct BoundedQueue {
    below: AnyQueue,
    /// The end of each device, indexed by the device's number. The entry of a detached file permits every position, because the queue below
    /// refuses requests to this file.
    ends: Vec<u64>,
    /// The refused bios. Each of them ends past the end of its device.
    refused: Vec<Done>,
}

impl BoundedQueue {
    pub(super) fn new(below: AnyQueue, end: DevOffset) -> Self {
        Self { below, ends: vec![end.0], refused: Vec::new() }
    }

    /// Returns the queue without the position checks. Only two callers use it: benchmarks of a raw device, and a device whose map contains
    /// only ranges within the devices below it.
    #[doc(hidden)]
    #[must_use]
    pub fn unbounded(self) -> AnyQueue {
        self.below
    }

    /// Returns the queue below. Its variant shows the kind of device.
    #[must_use]
    pub fn kind(&self) -> &AnyQueue {
        &self.below
    }

    #[inline(always)]
    fn check(&self, dev: Dev, at: DevOffset, len: usize) -> Result<(), Errno> {
        let end = *self.ends.get(dev.0 as usize).ok_or(Errno::EBADF)?;
        if is_within(end, at, len as u64) { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

impl DeviceQueue for BoundedQueue {
    through_queue!(progress, with_below);

    #[inline(always)]
    fn read_now(
        &mut self,
        dev: Dev,
        buf: &mut [u8],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        self.check(dev, at, buf.len())?;
        self.below.read_now(dev, buf, at, flags)
    }

    fn read_parts_now(&mut self, dev: Dev, parts: &mut [LentPart<'_>], flags: BioFlags) {
        if parts.iter().all(|part| self.check(dev, part.at, part.len()).is_ok()) {
            return self.below.read_parts_now(dev, parts, flags);
        }
        for part in parts {
            match self.check(dev, part.at, part.len()) {
                Ok(()) => self.below.read_parts_now(dev, std::slice::from_mut(part), flags),
                Err(errno) => part.result = Err(errno),
            }
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
        self.check(dev, at, bufs.iter().map(|buf| buf.len()).sum())?;
        self.below.write_now(dev, bufs, at, flags)
    }

    #[inline(always)]
    fn submit(&mut self, bio: Bio) -> Result<(), Bio> {
        let len = if bio.op == BioOp::Flush { 0 } else { bio.memory.len() };
        if let Err(errno) = self.check(bio.dev, bio.at, len) {
            self.refused.push(Done { bio, result: Err(errno) });
            return Ok(());
        }
        self.below.submit(bio)
    }

    fn in_flight(&self) -> usize {
        self.below.in_flight() + self.refused.len()
    }

    fn wait(&mut self, min: usize) -> Result<(), Errno> {
        self.below.wait(min.saturating_sub(self.refused.len()))
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<Done> {
        if self.refused.is_empty() { self.below.pop() } else { self.refused.pop() }
    }

    #[inline(always)]
    fn pop_whole(&mut self) -> Option<Result<Whole, Done>> {
        if self.refused.is_empty() {
            return self.below.pop_whole();
        }
        self.refused.pop().map(Done::whole)
    }

    fn attach(&mut self, file: &Arc<BlockFile>, lasting: bool) -> Result<Dev, Errno> {
        let dev = self.below.attach(file, lasting)?;
        let place = dev.0 as usize;
        if place >= self.ends.len() {
            self.ends.resize(place + 1, 0);
        }
        self.ends[place] = file.size();
        Ok(dev)
    }

    fn detach(&mut self, dev: Dev) {
        self.below.detach(dev);
        if let (true, Some(end)) = (dev != Dev::OWN, self.ends.get_mut(dev.0 as usize)) {
            *end = u64::MAX;
        }
    }

    fn readiness(&mut self) -> Result<OwnedFd, Errno> {
        self.below.readiness()
    }

    fn register_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, Errno> {
        self.below.register_buffers(count, size)
    }

    fn register_memory(&mut self, buffer: &mut Buffer) -> Result<(), Errno> {
        self.below.register_memory(buffer)
    }

    fn register_one(&mut self, buffer: &mut Buffer) {
        self.below.register_one(buffer);
    }

    fn unregister_one(&mut self, buffer: &mut Buffer) {
        self.below.unregister_one(buffer);
    }
}
