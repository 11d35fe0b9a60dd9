//! The queue of a segmented device. A read within one range goes to the queue below with its position there. A read of several ranges is
//! carried out during its submission, one range after the other.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Map;
use crate::bio::slices::cut_mut;
use crate::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Done};
use crate::device::{
    BlockFile, BoundedQueue, DeviceQueue, Drained, LentPart, through_queue, with_below,
};
use crate::error::Errno;
use crate::units::DevOffset;

pub(super) struct SegmentedQueue {
    pub(super) below: Box<BoundedQueue>,
    pub(super) map: Arc<Map>,
    /// The reads in the queue below, by the number that their bio has there.
    pub(super) flying: Vec<Option<Flying>>,
    /// The numbers of `flying` that are not in use.
    pub(super) unused: Vec<u32>,
    /// The reads that ended during their submission.
    pub(super) done: VecDeque<Done>,
    pub(super) depth: usize,
}

/// The fields of a bio that the queue below replaces.
pub(super) struct Flying {
    end: BioEnd,
    at: DevOffset,
}

impl SegmentedQueue {
    /// The position below of a range, if one range below contains all of it.
    #[inline]
    fn whole(&self, at: DevOffset, len: usize) -> Option<DevOffset> {
        let (below, rest) = self.map.locate(at.0);
        (len as u64 <= rest).then_some(DevOffset(below))
    }

    /// Reads the ranges below one after the other. The result is short if one of these reads is.
    fn read_ranges(&mut self, part: &mut LentPart<'_>, flags: BioFlags) -> Result<usize, Errno> {
        let (len, mut done) = (part.len(), 0);
        while done < len {
            let (below, rest) = self.map.locate(part.at.0 + done as u64);
            let count = rest.min((len - done) as u64) as usize;
            if count == 0 {
                return Err(Errno::EINVAL);
            }
            let bufs = cut_mut(&mut part.bufs, done..done + count);
            let mut one = [LentPart::new(bufs, DevOffset(below))];
            self.below.read_parts_now(Dev::OWN, &mut one, flags);
            match one[0].result {
                Ok(read) if read == count => done += count,
                Ok(read) => return Ok(done + read),
                Err(_) if done > 0 => return Ok(done),
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    fn send(&mut self, mut bio: Bio, below: DevOffset) -> Result<(), Bio> {
        let flying = Flying { end: bio.end, at: bio.at };
        let number = self.unused.pop().unwrap_or(self.flying.len() as u32);
        if number as usize == self.flying.len() {
            self.flying.push(None);
        }
        (bio.end, bio.at) = (BioEnd::Part { request: number, part: 0 }, below);
        self.below.submit(bio).map_err(|mut bio| {
            (bio.end, bio.at) = (flying.end, flying.at);
            self.unused.push(number);
            bio
        })?;
        self.flying[number as usize] = Some(flying);
        Ok(())
    }
}

impl DeviceQueue for SegmentedQueue {
    through_queue!(resources, with_below);

    fn take_fresh(&mut self) -> bool {
        self.below.take_fresh()
    }

    #[inline]
    fn read_now(
        &mut self,
        dev: Dev,
        buf: &mut [u8],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        if let Some(below) = self.whole(at, buf.len()) {
            return self.below.read_now(dev, buf, below, flags);
        }
        let bufs = SmallVec::from_iter([std::io::IoSliceMut::new(buf)]);
        self.read_ranges(&mut LentPart::new(bufs, at), flags)
    }

    fn read_parts_now(&mut self, dev: Dev, parts: &mut [LentPart<'_>], flags: BioFlags) {
        let below: Option<SmallVec<[_; 8]>> =
            parts.iter().map(|part| self.whole(part.at, part.len())).collect();
        let Some(below) = below else {
            for part in parts {
                part.result = self.read_ranges(part, flags);
            }
            return;
        };
        let above: SmallVec<[_; 8]> = parts.iter().map(|part| part.at).collect();
        parts.iter_mut().zip(below).for_each(|(part, at)| part.at = at);
        self.below.read_parts_now(dev, parts, flags);
        parts.iter_mut().zip(above).for_each(|(part, at)| part.at = at);
    }

    fn write_now(
        &mut self,
        _dev: Dev,
        _bufs: &[IoSlice<'_>],
        _at: DevOffset,
        _flags: BioFlags,
    ) -> Result<usize, Errno> {
        Err(Errno::EROFS)
    }

    fn flush_now(&mut self, _dev: Dev) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }

    fn room(&self) -> usize {
        self.depth.saturating_sub(self.in_flight()).min(self.below.room())
    }

    fn in_flight(&self) -> usize {
        self.done.len() + self.below.in_flight()
    }

    fn submit(&mut self, mut bio: Bio) -> Result<(), Bio> {
        if self.room() == 0 {
            return Err(bio);
        }
        if bio.op == BioOp::Read
            && let Some(below) = self.whole(bio.at, bio.memory.len())
        {
            return self.send(bio, below);
        }
        let (at, flags) = (bio.at, bio.flags);
        let result = if bio.op == BioOp::Read {
            let len = bio.memory.len();
            let bufs = cut_mut(bio.memory.buffers_mut(), 0..len);
            self.read_ranges(&mut LentPart::new(bufs, at), flags)
        } else {
            Err(Errno::EROFS)
        };
        self.done.push_back(Done { bio, result });
        Ok(())
    }

    #[inline]
    fn commit(&mut self) -> Result<(), Errno> {
        self.below.commit()
    }

    #[inline]
    fn wait(&mut self, min: usize) -> Result<(), Errno> {
        match min.checked_sub(self.done.len()) {
            Some(more) if more > 0 => self.below.wait(more),
            _ => self.below.commit(),
        }
    }

    fn drain(&mut self) -> Drained {
        self.done.clear();
        self.below.drain()
    }

    fn pop(&mut self) -> Option<Done> {
        if let Some(done) = self.done.pop_front() {
            return Some(done);
        }
        let mut done = self.below.pop()?;
        if let BioEnd::Part { request, .. } = done.bio.end
            && let Some(flying) = self.flying.get_mut(request as usize).and_then(Option::take)
        {
            (done.bio.end, done.bio.at) = (flying.end, flying.at);
            self.unused.push(request);
        }
        Some(done)
    }
}
