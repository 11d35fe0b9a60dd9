//! The queue of a segmented device. A request within one range goes to the queue of the device that contains the range. A request of
//! several ranges, or a flush of several devices, is carried out during its submission: one range or device after the other.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Found, Map, Ranges};
use crate::bio::slices::{cut, cut_mut};
use crate::bio::{Bio, BioFlags, BioOp, Buffer, Dev, Done, Whole};
use crate::device::{AnyQueue, DeviceQueue, Drained, LentPart, OtherQueue, QueueOptions};
use crate::error::{Errno, Result as Checked};
use crate::units::DevOffset;

/// Opens a queue of each device, and combines the queues to one queue. The queues below need not check positions, because the table of
/// segments (`map`) contains only ranges that are on their devices. A separate copy of the code is compiled for each usual kind of queue,
/// so that a read needs no match and few moves.
pub(super) fn queue_over(
    map: Arc<Map>,
    writable: bool,
    options: &QueueOptions,
) -> Checked<AnyQueue> {
    let queues = map.below.iter().map(|device| Ok(device.queue(options)?.unbounded()));
    let mut queues = queues.collect::<Checked<Vec<_>>>()?;
    macro_rules! of_kind {
        ($($kind:ident)*) => {$(
            if queues.iter().all(|queue| matches!(queue, AnyQueue::$kind(_))) {
                let own = queues.drain(..).filter_map(|queue| match queue {
                    AnyQueue::$kind(queue) => Some(queue),
                    _ => None,
                });
                return Ok(AnyQueue::other(SegmentedQueue::new(map, writable, own.collect(), options)));
            }
        )*};
    }
    of_kind!(Psync Uring Null);
    let queues = queues.into_iter().map(OtherQueue::over).collect();
    Ok(AnyQueue::other(SegmentedQueue::new(map, writable, queues, options)))
}

struct SegmentedQueue<Q> {
    map: Arc<Map>,
    writable: bool,
    /// The queue of each device.
    queues: Box<[Q]>,
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

impl<Q: DeviceQueue> SegmentedQueue<Q> {
    fn new(map: Arc<Map>, writable: bool, queues: Box<[Q]>, options: &QueueOptions) -> Self {
        let unused = |index: usize| Flying { token: index as u64 + 1, at: DevOffset(0) };
        Self {
            map,
            writable,
            queues,
            turn: 0,
            flying: (0..options.slots()).map(unused).collect(),
            unused: 0,
            in_flight: 0,
            done: VecDeque::new(),
        }
    }

    /// The position of a range on a device below. `None` if the range is not contiguous there.
    #[inline(always)]
    fn whole(&self, at: DevOffset, len: usize) -> Option<Found> {
        self.map.locate(at.0).filter(|found| len as u64 <= found.rest)
    }

    /// The queue of the only device, if there is one device.
    fn only(&mut self) -> Option<&mut Q> {
        match &mut *self.queues {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Reads the ranges below one after the other. If one of these reads is short, the result is short too.
    #[cold]
    #[inline(never)]
    fn read_ranges(
        &mut self,
        bufs: &mut [IoSliceMut<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let (len, mut done) = (bufs.iter().map(|buf| buf.len()).sum(), 0);
        let Self { map, queues, .. } = self;
        // A short read ends the loop with the error `None`.
        let past = || Some(Errno::EINVAL);
        let result = map.each(at, len, past, |found, range| {
            let count = range.len();
            let mut one = [LentPart::new(cut_mut(bufs, range), found.at)];
            queues[found.device].read_parts_now(Dev::OWN, &mut one, flags);
            let read = one[0].result.map_err(Some)?;
            done += read;
            if read == count { Ok(()) } else { Err(None) }
        });
        let Err(Some(errno)) = result else { return Ok(done) };
        match retried(&self.map, bufs, at, flags, errno) {
            Err(_) if done > 0 => Ok(done),
            result => result,
        }
    }

    /// Reads a range that consists of several ranges below, or a range whose first read has failed.
    #[cold]
    #[inline(never)]
    fn read_one(
        &mut self,
        buf: &mut [u8],
        at: DevOffset,
        flags: BioFlags,
        failed: Option<Errno>,
    ) -> Result<usize, Errno> {
        let bufs = &mut [IoSliceMut::new(buf)];
        match failed {
            Some(errno) => retried(&self.map, bufs, at, flags, errno),
            None => self.read_ranges(bufs, at, flags),
        }
    }

    /// Writes the ranges below one after the other. If one of these writes is short, the result is short too.
    #[cold]
    #[inline(never)]
    fn write_ranges(
        &mut self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let (len, mut done) = (bufs.iter().map(|buf| buf.len()).sum(), 0);
        let Self { map, queues, .. } = self;
        // A short write ends the loop with the error `None`.
        let past = || Some(Errno::EINVAL);
        let result = map.each(at, len, past, |found, range| {
            let (count, bufs) = (range.len(), cut(bufs, range));
            let written = queues[found.device].write_now(Dev::OWN, &bufs, found.at, flags);
            done += written.map_err(Some)?;
            if written == Ok(count) { Ok(()) } else { Err(None) }
        });
        match result {
            Err(Some(errno)) if done == 0 => Err(errno),
            _ => Ok(done),
        }
    }

    /// The device whose queue can carry out a bio, and the bio's position on this device. `None` if the bio needs several ranges or
    /// devices.
    #[inline(always)]
    fn place(&self, bio: &Bio) -> Option<(usize, DevOffset)> {
        match bio.op {
            BioOp::Flush => (self.queues.len() == 1).then_some((0, bio.at)),
            _ => self.whole(bio.at, bio.memory.len()).map(|found| (found.device, found.at)),
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
            done.result = retried(&self.map, &mut bufs, *at, *flags, errno);
        }
        done
    }
}

/// Repeats a failed read in the alternative way. If there is no alternative, returns the error of the device below.
#[cold]
#[inline(never)]
fn retried(
    map: &Map,
    bufs: &mut [IoSliceMut<'_>],
    at: DevOffset,
    flags: BioFlags,
    errno: Errno,
) -> Result<usize, Errno> {
    let other: &dyn Ranges = match &map.other {
        Some(other) if !flags.contains(BioFlags::NOWAIT) => &**other,
        _ => return Err(errno),
    };
    let mut done = 0;
    for buf in bufs {
        let at = DevOffset(at.0 + done as u64);
        other.read(buf, at).map_err(|_| errno)?;
        done += buf.len();
    }
    Ok(done)
}

/// Files cannot be attached, because this queue interprets every position as a position in the segmented device.
impl<Q: DeviceQueue> DeviceQueue for SegmentedQueue<Q> {
    #[inline]
    fn read_now(
        &mut self,
        _dev: Dev,
        buf: &mut [u8],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let Some(found) = self.whole(at, buf.len()) else {
            return self.read_one(buf, at, flags, None);
        };
        let Some(queue) = self.queues.get_mut(found.device) else { return Err(Errno::EINVAL) };
        match queue.read_now(Dev::OWN, buf, found.at, flags) {
            Err(errno) => self.read_one(buf, at, flags, Some(errno)),
            result => result,
        }
    }

    fn read_parts_now(&mut self, dev: Dev, parts: &mut [LentPart<'_>], flags: BioFlags) {
        let whole: Option<SmallVec<[_; 8]>> =
            parts.iter().map(|part| self.whole(part.at, part.len())).collect();
        let is_plain = self.map.other.is_none();
        let (Some(whole), Some(only)) = (whole, self.only().filter(|_| is_plain)) else {
            for part in parts {
                part.result = self.read_ranges(&mut part.bufs, part.at, flags);
            }
            return;
        };
        let above: SmallVec<[_; 8]> = parts.iter().map(|part| part.at).collect();
        parts.iter_mut().zip(whole).for_each(|(part, found)| part.at = found.at);
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
        match self.whole(at, len) {
            Some(found) => match self.queues.get_mut(found.device) {
                Some(queue) => queue.write_now(Dev::OWN, bufs, found.at, flags),
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
            let Some(queue) = self.queues.get_mut(device) else { return Err(bio) };
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

    /// Waits for one device after the other, until enough reads have completed. All devices continue to work during each wait.
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
