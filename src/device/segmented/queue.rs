//! The queue of a segmented device. A request within one range goes to the queue of the device that contains the range. A request that
//! spans several ranges, or a flush of several devices, is carried out during its submission, one range or device after another.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use smallvec::SmallVec;

use super::map::{Map, Number};
use crate::bio::slices::{cut, cut_mut};
use crate::bio::{Bio, BioFlags, BioOp, Buffer, Dev, Done, Whole};
use crate::device::{AnyQueue, Device, DeviceQueue, Drained, LentPart, QueueOptions};
use crate::error::{Errno, Result as Checked};
use crate::units::DevOffset;

/// Opens a queue of each device, and combines the queues into one queue. The queues below need not check positions, because the table of
/// segments (`map`) contains only ranges that are on their devices.
pub(super) fn queue_over(
    below: &[Arc<dyn Device>],
    map: &Arc<Map>,
    writable: bool,
    options: &QueueOptions,
) -> Checked<AnyQueue> {
    let queues = below.iter().map(|device| Ok(device.queue(options)?.unbounded()));
    Ok(match AnyQueue::of_ranges(queues.collect::<Checked<_>>()?, map, writable) {
        Ok(queue) => queue,
        Err(queues) => AnyQueue::other(SegmentedQueue::new(map, writable, queues, options)),
    })
}

struct SegmentedQueue {
    map: Arc<Map>,
    writable: bool,
    /// The queue of each device.
    queues: Box<[AnyQueue]>,
    /// The queue whose completions are popped next.
    turn: usize,
    /// The bios in the queues below. In those queues, each bio contains its index in this table. The field `token` of an unused entry
    /// contains the index of the next unused entry.
    flying: Box<[Flying]>,
    /// The first entry of `flying` that is not in use.
    unused: u64,
    in_flight: usize,
    /// The bios that ended during their submission.
    done: VecDeque<Done>,
}

/// The fields of a bio that have other values while the bio is in a queue below.
struct Flying {
    token: u64,
    at: DevOffset,
}

impl SegmentedQueue {
    fn new(map: &Arc<Map>, writable: bool, queues: Vec<AnyQueue>, options: &QueueOptions) -> Self {
        let unused = |index: usize| Flying { token: index as u64 + 1, at: DevOffset(0) };
        Self {
            map: Arc::clone(map),
            writable,
            queues: queues.into(),
            turn: 0,
            flying: (0..options.slots()).map(unused).collect(),
            unused: 0,
            in_flight: 0,
            done: VecDeque::new(),
        }
    }

    /// Returns the queue of the only device, if there is one device.
    fn only(&mut self) -> Option<&mut AnyQueue> {
        match &mut *self.queues {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Reads the ranges below one after another.
    fn read_ranges(
        &mut self,
        bufs: &mut [IoSliceMut<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let Self { map, queues, .. } = self;
        map.read(bufs, at, flags, |found, bufs| {
            let mut one = [LentPart::new(bufs, found.at)];
            queues[found.device.index()].read_parts_now(Dev::OWN, &mut one, flags);
            one[0].result
        })
    }

    /// Writes the ranges below one after another.
    fn write_ranges(
        &mut self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let Self { map, queues, .. } = self;
        map.write(bufs, at, |found, bufs| {
            queues[found.device.index()].write_now(Dev::OWN, &bufs, found.at, flags)
        })
    }

    /// Returns the device whose queue can carry out a bio, and the bio's position on this device. Returns `None` if the bio needs several
    /// ranges or devices.
    #[inline(always)]
    fn place(&self, bio: &Bio) -> Option<(Number, DevOffset)> {
        match bio.op {
            BioOp::Flush => (self.queues.len() == 1).then_some((Number::of(0), bio.at)),
            _ => self.map.place(bio.at, bio.memory.len()),
        }
    }

    /// Ends a bio during its submission.
    #[cold]
    #[allow(clippy::result_large_err, reason = "the error returns the complete bio")]
    fn end(&mut self, bio: Bio, result: Result<usize, Errno>) -> Result<(), Bio> {
        if self.room() == 0 {
            return Err(bio);
        }
        self.done.push_back(Done { bio, result });
        Ok(())
    }

    /// Frees the entry of a bio that has left its queue.
    #[inline(always)]
    fn land(&mut self, number: u64) -> Option<Flying> {
        let entry = self.flying.get_mut(number as usize)?;
        let landed = std::mem::replace(entry, Flying { token: self.unused, at: DevOffset(0) });
        (self.unused, self.in_flight) = (number, self.in_flight - 1);
        Some(landed)
    }

    /// Restores the fields of a bio that has left the queue below. If the read has failed, repeats it in the alternative way.
    #[cold]
    fn landed(&mut self, mut done: Done) -> Done {
        let number = done.bio.end.renumber(0);
        if let Some(Flying { token, at }) = self.land(number) {
            done.bio.end.renumber(token);
            done.bio.at = at;
        }
        if let Err(errno) = done.result {
            let Bio { at, flags, memory, .. } = &mut done.bio;
            let len = memory.len();
            let mut bufs = cut_mut(memory.buffers_mut(), 0..len);
            done.result = self.map.read_again(&mut bufs, *at, *flags, errno);
        }
        done
    }
}

/// Files cannot be attached, because this queue interprets every position as a position in the segmented device.
impl DeviceQueue for SegmentedQueue {
    #[inline]
    fn read_now(
        &mut self,
        _dev: Dev,
        buf: &mut [u8],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let Some((device, below)) = self.map.place(at, buf.len()) else {
            return self.read_ranges(&mut [IoSliceMut::new(buf)], at, flags);
        };
        let Some(queue) = self.queues.get_mut(device.index()) else { return Err(Errno::EINVAL) };
        match queue.read_now(Dev::OWN, buf, below, flags) {
            Err(errno) => self.map.read_again(&mut [IoSliceMut::new(buf)], at, flags, errno),
            result => result,
        }
    }

    fn read_parts_now(&mut self, dev: Dev, parts: &mut [LentPart<'_>], flags: BioFlags) {
        let whole: Option<SmallVec<[_; 8]>> =
            parts.iter().map(|part| self.map.place(part.at, part.len())).collect();
        let is_plain = self.map.other.is_none();
        let (Some(whole), Some(only)) = (whole, self.only().filter(|_| is_plain)) else {
            for part in parts {
                part.result = self.read_ranges(&mut part.bufs, part.at, flags);
            }
            return;
        };
        let above: SmallVec<[_; 8]> = parts.iter().map(|part| part.at).collect();
        parts.iter_mut().zip(whole).for_each(|(part, (_, below))| part.at = below);
        only.read_parts_now(dev, parts, flags);
        parts.iter_mut().zip(above).for_each(|(part, at)| part.at = at);
    }

    fn write_now(
        &mut self,
        _dev: Dev,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        if !self.writable {
            return Err(Errno::EROFS);
        }
        let len = bufs.iter().map(|buf| buf.len()).sum();
        match self.map.place(at, len) {
            Some((device, below)) => match self.queues.get_mut(device.index()) {
                Some(queue) => queue.write_now(Dev::OWN, bufs, below, flags),
                None => Err(Errno::EINVAL),
            },
            None => self.write_ranges(bufs, at, flags),
        }
    }

    /// Flushes all devices, even if the flush of one device fails.
    fn flush_now(&mut self, _dev: Dev) -> Result<(), Errno> {
        if !self.writable {
            return Err(Errno::EROFS);
        }
        let flushed = self.queues.iter_mut().map(|queue| queue.flush_now(Dev::OWN));
        flushed.fold(Ok(()), Result::and)
    }

    fn room(&self) -> usize {
        let room = self.flying.len().saturating_sub(self.in_flight());
        self.queues.iter().map(DeviceQueue::room).fold(room, usize::min)
    }

    fn in_flight(&self) -> usize {
        self.in_flight + self.done.len()
    }

    #[inline]
    fn submit(&mut self, mut bio: Bio) -> Result<(), Bio> {
        if bio.op != BioOp::Read && !self.writable {
            return self.end(bio, Err(Errno::EROFS));
        }
        if let Some((device, at)) = self.place(&bio) {
            let number = self.unused;
            let Some(entry) = self.flying.get_mut(number as usize) else { return Err(bio) };
            let Some(queue) = self.queues.get_mut(device.index()) else { return Err(bio) };
            let next = entry.token;
            *entry = Flying { token: bio.end.renumber(number), at: bio.at };
            bio.at = at;
            if let Err(mut bio) = queue.submit(bio) {
                let unused = Flying { token: next, at: DevOffset(0) };
                let Flying { token, at } = std::mem::replace(entry, unused);
                bio.end.renumber(token);
                bio.at = at;
                return Err(bio);
            }
            (self.unused, self.in_flight) = (next, self.in_flight + 1);
            return Ok(());
        }
        if self.room() == 0 {
            return Err(bio);
        }
        let (at, flags, len) = (bio.at, bio.flags, bio.memory.len());
        let result = match bio.op {
            BioOp::Read => {
                let mut bufs = cut_mut(bio.memory.buffers_mut(), 0..len);
                self.read_ranges(&mut bufs, at, flags)
            }
            BioOp::Write => self.write_ranges(&cut(bio.memory.buffers(), 0..len), at, flags),
            BioOp::Flush => self.flush_now(bio.dev).map(|()| 0),
        };
        self.end(bio, result)
    }

    fn commit(&mut self) -> Result<(), Errno> {
        self.queues.iter_mut().try_for_each(DeviceQueue::commit)
    }

    /// Waits for one device after another until enough reads have completed. All devices continue to work during each wait.
    fn wait(&mut self, min: usize) -> Result<(), Errno> {
        let mut more = min.saturating_sub(self.done.len());
        if self.queues.len() > 1 {
            self.commit()?;
        }
        for queue in &mut self.queues {
            let some = more.min(queue.in_flight());
            queue.wait(some)?;
            more -= some;
        }
        Ok(())
    }

    fn drain(&mut self) -> Drained {
        self.done.clear();
        let drained = self.queues.iter_mut().map(DeviceQueue::drain);
        drained.fold(Drained::Ended, |all, one| match (all, one) {
            (Drained::Ended, other) | (other, Drained::Ended) => other,
            (Drained::Leaked { writes: one }, Drained::Leaked { writes: other }) => {
                Drained::Leaked { writes: one || other }
            }
        })
    }

    fn pop(&mut self) -> Option<Done> {
        if let Some(done) = self.done.pop_front() {
            return Some(done);
        }
        for _ in 0..self.queues.len() {
            if let Some(done) = self.queues[self.turn].pop() {
                return Some(self.landed(done));
            }
            self.turn = (self.turn + 1) % self.queues.len();
        }
        None
    }

    #[inline]
    fn pop_whole(&mut self) -> Option<Result<Whole, Done>> {
        for _ in 0..self.queues.len() {
            match self.queues[self.turn].pop_whole() {
                Some(Ok(mut whole)) => {
                    if let Some(landed) = self.land(whole.token) {
                        whole.token = landed.token;
                    }
                    return Some(Ok(whole));
                }
                Some(Err(done)) => return Some(self.landed(done).whole()),
                None => self.turn = (self.turn + 1) % self.queues.len(),
            }
        }
        self.done.pop_front().map(Done::whole)
    }

    fn take_fresh(&mut self) -> bool {
        self.queues[self.turn].take_fresh()
    }

    /// If there are several devices, the eventfd is always signalled.
    fn readiness(&mut self) -> Result<OwnedFd, Errno> {
        match self.only() {
            Some(only) => only.readiness(),
            None => crate::device::queue::always_ready(),
        }
    }

    fn register_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, Errno> {
        match self.only() {
            Some(only) => only.register_buffers(count, size),
            None => crate::device::queue::unregistered(count, size),
        }
    }

    fn register_memory(&mut self, buffer: &mut Buffer) -> Result<(), Errno> {
        match self.only() {
            Some(only) => only.register_memory(buffer),
            None if buffer.is_empty() => Err(Errno::EINVAL),
            None => Ok(()),
        }
    }

    fn register_one(&mut self, buffer: &mut Buffer) {
        if let Some(only) = self.only() {
            only.register_one(buffer);
        }
    }

    fn unregister_one(&mut self, buffer: &mut Buffer) {
        if let Some(only) = self.only() {
            only.unregister_one(buffer);
        }
    }
}
