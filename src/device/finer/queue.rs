//! A queue whose requests may be shorter than the units of the device below.
//!
//! Reads and requests of whole units are in flight in the queue below. A write of a part of a unit is complete when `submit` returns. It
//! must not stay in flight after that, because it locks its units, and the lock must be released even if no thread pops the completion.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use super::Inner;
use crate::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Done, Memory};
use crate::device::{
    AnyQueue, BlockFile, DeviceQueue, Drained, LentPart, through_queue, with_below,
};
use crate::error::{Errno, Error};
use crate::units::DevOffset;

pub(super) struct FinerQueue {
    below: AnyQueue,
    inner: Arc<Inner>,
    /// The bios in flight in the queue below. The `BioEnd` of each bio is replaced by the bio's index in this table.
    flying: Vec<Option<Flying>>,
    done: VecDeque<Done>,
    depth: usize,
}

enum Flying {
    /// A request that is passed on unchanged. `end` belongs to the caller's bio. `ticket` is the number that `units` has assigned to a
    /// write of whole units.
    Whole { end: BioEnd, ticket: Option<u64> },
    /// The caller's bio. The queue below reads all units that the bio touches.
    Around(Bio),
}

impl FinerQueue {
    pub(super) fn new(below: AnyQueue, inner: Arc<Inner>, depth: usize) -> Self {
        Self { below, inner, flying: Vec::new(), done: VecDeque::new(), depth }
    }

    /// Whether the bio is passed on unchanged to the queue below.
    fn passes(&self, bio: &Bio) -> bool {
        let fits = |buf: &Buffer| self.inner.fits(bio.at.0, buf.len());
        bio.dev != Dev::OWN || bio.op == BioOp::Flush || bio.memory.buffers().iter().all(fits)
    }

    fn complete(&mut self, bio: Bio, result: Result<usize, Errno>) {
        self.done.push_back(Done { bio, result });
    }

    /// Submits a bio to the queue below.
    fn send(&mut self, mut bio: Bio, flying: impl FnOnce(BioEnd) -> Flying) -> Result<(), Bio> {
        let place = self.flying.iter().position(Option::is_none).unwrap_or(self.flying.len());
        if place == self.flying.len() {
            self.flying.push(None);
        }
        let end = std::mem::replace(&mut bio.end, BioEnd::Part { request: place as u32, part: 0 });
        self.below.submit(bio).map_err(|mut bio| {
            bio.end = end;
            bio
        })?;
        self.flying[place] = Some(flying(end));
        Ok(())
    }

    /// Submits a request of whole units to the queue below.
    fn send_whole(&mut self, bio: Bio) -> Result<(), Bio> {
        let writes = bio.dev == Dev::OWN && bio.op == BioOp::Write;
        let units = writes.then(|| self.inner.around(bio.at.0, bio.memory.len() as u64));
        let ticket = units.map(|units| self.inner.units.begin(units));
        let sent = self.send(bio, |end| Flying::Whole { end, ticket });
        if let (Err(_), Some(ticket)) = (&sent, ticket) {
            self.inner.units.end(ticket);
        }
        sent
    }

    /// Reads all units that the range of a read touches. If one request can cover these units, it is submitted to the queue below.
    /// Otherwise, calls of the device read the units.
    fn read_around(&mut self, mut bio: Bio) -> Result<(), Bio> {
        let units = self.inner.around(bio.at.0, bio.memory.len() as u64);
        let [start, stop] = [units.start, units.end].map(|at| at.saturating_mul(self.inner.unit));
        let fits = stop - start <= self.inner.most && stop <= self.inner.below.end().0;
        let Ok(buffer) = Buffer::aligned(if fits { (stop - start) as usize } else { 0 }) else {
            self.complete(bio, Err(Errno::ENOMEM));
            return Ok(());
        };
        if !fits {
            let (at, flags) = (bio.at, bio.flags);
            let bufs = bio.memory.buffers_mut().iter_mut().map(|buf| &mut **buf);
            let result = self.read_parts(bufs, at, flags);
            self.complete(bio, result);
            return Ok(());
        }
        let Bio { op, flags, dev, end, .. } = bio;
        let memory = Memory::Flat(buffer);
        let around = Bio { op, flags, dev, at: DevOffset(start), memory, end };
        let mut own = Some(bio);
        let sent = self.send(around, |_| match own.take() {
            Some(bio) => Flying::Around(bio),
            // This arm is never reached, because `send` calls the closure at most once.
            None => Flying::Whole { end, ticket: None },
        });
        match (sent, own) {
            (Err(_), Some(bio)) => Err(bio),
            (sent, _) => sent,
        }
    }

    /// Reads by a call of the device, at most up to the end of the device.
    fn read_parts<'b>(
        &self,
        bufs: impl Iterator<Item = &'b mut [u8]>,
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        if flags.contains(BioFlags::NOWAIT) {
            return Err(Errno::EAGAIN);
        }
        let mut done = 0;
        for buf in bufs {
            let pos = DevOffset(at.0 + done as u64);
            let left = usize::try_from(self.inner.below.end().0.saturating_sub(pos.0));
            let len = buf.len().min(left.unwrap_or(usize::MAX));
            let read = self.inner.below.read_exact_at(&mut buf[..len], pos);
            read.map_err(|error| error.errno())?;
            done += len;
            if len < buf.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Writes by a call of the device.
    fn write(&self, bufs: &[IoSlice<'_>], at: DevOffset, flags: BioFlags) -> Result<usize, Errno> {
        if flags.contains(BioFlags::ATOMIC) {
            return Err(Errno::EOPNOTSUPP);
        }
        if flags.contains(BioFlags::NOWAIT) {
            return Err(Errno::EAGAIN);
        }
        if !self.inner.below.is_writable() {
            return Err(Errno::EBADF);
        }
        let written = self.inner.write(bufs, at, flags.contains(BioFlags::DSYNC));
        written.map_err(|error: Error| error.errno())?;
        Ok(bufs.iter().map(|buf| buf.len()).sum())
    }

    /// Pops the completions of the queue below.
    fn collect(&mut self) {
        while let Some(mut done) = self.below.pop() {
            let BioEnd::Part { request: place, .. } = done.bio.end else { continue };
            match self.flying.get_mut(place as usize).and_then(Option::take) {
                Some(Flying::Whole { end, ticket }) => {
                    done.bio.end = end;
                    if ticket.is_some_and(|ticket| self.inner.units.end(ticket)) {
                        self.repeat(&mut done);
                    }
                    self.done.push_back(done);
                }
                Some(Flying::Around(bio)) => self.done.push_back(self.parted(bio, &done)),
                None => {}
            }
        }
    }

    /// Repeats a queued write, because a concurrent call may have overwritten its data with older bytes.
    #[cold]
    fn repeat(&self, done: &mut Done) {
        if let Ok(count) = done.result {
            let bufs = done.bio.memory.buffers();
            let bufs: Vec<_> = bufs.iter().map(|buf| IoSlice::new(buf)).collect();
            // A call of the device repeats the write. It always transfers all bytes, and DSYNC is the only flag that it obeys.
            let flags = done.bio.flags & BioFlags::DSYNC;
            done.result = self.write(&bufs, done.bio.at, flags).map(|_| count);
        }
    }

    /// Returns the caller's bio. The bio's memory contains the requested bytes of the units that were read.
    fn parted(&self, mut bio: Bio, around: &Done) -> Done {
        let skip = (bio.at.0 % self.inner.unit) as usize;
        let [units] = around.bio.memory.buffers() else {
            return Done { bio, result: Err(Errno::EIO) };
        };
        let result = around.result.map(|count| {
            let mut rest = units.get(skip..count.min(units.len())).unwrap_or_default();
            let mut done = 0;
            for buf in bio.memory.buffers_mut() {
                let (now, later) = rest.split_at(buf.len().min(rest.len()));
                buf[..now.len()].copy_from_slice(now);
                (rest, done) = (later, done + now.len());
            }
            done
        });
        Done { bio, result }
    }
}

impl DeviceQueue for FinerQueue {
    through_queue!(resources, with_below);

    fn read_now(
        &mut self,
        dev: Dev,
        buf: &mut [u8],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        if dev != Dev::OWN || self.inner.fits(at.0, buf.len()) {
            return self.below.read_now(dev, buf, at, flags);
        }
        self.read_parts([buf].into_iter(), at, flags)
    }

    fn read_parts_now(&mut self, dev: Dev, parts: &mut [LentPart<'_>], flags: BioFlags) {
        let fits =
            |part: &LentPart<'_>| part.bufs.iter().all(|buf| self.inner.fits(part.at.0, buf.len()));
        if dev != Dev::OWN || parts.iter().all(fits) {
            return self.below.read_parts_now(dev, parts, flags);
        }
        for part in parts {
            let bufs = part.bufs.iter_mut().map(|buf: &mut IoSliceMut<'_>| &mut **buf);
            part.result = self.read_parts(bufs, part.at, flags);
        }
    }

    fn write_now(
        &mut self,
        dev: Dev,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        if dev != Dev::OWN {
            return self.below.write_now(dev, bufs, at, flags);
        }
        if !bufs.iter().all(|buf| self.inner.fits(at.0, buf.len())) {
            return self.write(bufs, at, flags);
        }
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        let _locked = self.inner.units.lock(self.inner.around(at.0, len));
        self.below.write_now(dev, bufs, at, flags)
    }

    fn flush_now(&mut self, dev: Dev) -> Result<(), Errno> {
        self.below.flush_now(dev)
    }

    fn room(&self) -> usize {
        (self.depth - self.in_flight().min(self.depth)).min(self.below.room())
    }

    fn in_flight(&self) -> usize {
        self.done.len() + self.below.in_flight()
    }

    fn submit(&mut self, bio: Bio) -> Result<(), Bio> {
        if self.room() == 0 {
            return Err(bio);
        }
        if self.passes(&bio) {
            return self.send_whole(bio);
        }
        if bio.op == BioOp::Read {
            return self.read_around(bio);
        }
        let bufs: Vec<_> = bio.memory.buffers().iter().map(|buf| IoSlice::new(buf)).collect();
        let result = self.write(&bufs, bio.at, bio.flags);
        drop(bufs);
        self.complete(bio, result);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Errno> {
        let committed = self.below.commit();
        // If the queue below does not accept a bio, it returns the bio as a completion with the error.
        self.collect();
        committed
    }

    fn wait(&mut self, min: usize) -> Result<(), Errno> {
        let min = min.min(self.in_flight());
        if self.done.len() >= min {
            return self.commit();
        }
        while self.done.len() < min {
            let waited = self.below.wait(self.below.in_flight().min(1));
            self.collect();
            waited?;
        }
        Ok(())
    }

    fn drain(&mut self) -> Drained {
        let drained = self.below.drain();
        for flying in self.flying.drain(..).flatten() {
            if let Flying::Whole { ticket: Some(ticket), .. } = flying {
                self.inner.units.end(ticket);
            }
        }
        self.done.clear();
        drained
    }

    fn pop(&mut self) -> Option<Done> {
        if self.done.is_empty() {
            self.collect();
        }
        self.done.pop_front()
    }
}

impl Drop for FinerQueue {
    fn drop(&mut self) {
        self.drain();
    }
}
