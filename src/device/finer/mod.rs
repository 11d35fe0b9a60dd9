//! A device that accepts shorter requests than the device below it. ironmap uses this device if a volume's blocks are smaller than the
//! smallest request to the volume's device. Examples of such devices are an NBD export with a minimum block size, an integrity device with
//! larger sectors, and a namespace with sectors of 4096 bytes.
//!
//! A unit is the smallest request of the device below. Requests of whole units are passed on unchanged. A read of a part of a unit reads
//! the whole unit. A write of a part of a unit is a read-modify-write of the unit. The other bytes of the unit are rewritten with their old
//! values, so they keep these values even if a power cut tears the unit. No other write to the unit may run at the same time; the module
//! `units` ensures this for all threads and queues of the device. A unit that cannot be read is not written.

mod queue;
#[cfg(test)]
mod tests;
mod units;

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use self::queue::FinerQueue;
use self::units::Units;
use super::{
    AnyQueue, Device, DeviceProtection, Fence, InRange, Limits, QueueOptions, ThroughFlushes,
    WrongTuple,
};
use crate::bio::Buffer;
use crate::error::{Errno, Error, Result};
use crate::units::DevOffset;

/// The size of the smallest request that the device accepts. No volume has smaller blocks or sectors.
const SECTOR: u32 = 512;
/// The largest number of bytes that the device copies in one step.
const MOST: u64 = 1 << 20;

/// A device over another device that accepts only longer requests.
#[derive(Debug)]
pub struct Finer {
    inner: Arc<Inner>,
    limits: Limits,
}

/// The state that a device and its queues share.
#[derive(Debug)]
struct Inner {
    below: Arc<dyn Device>,
    /// The size of the smallest request to the device below.
    unit: u64,
    /// The largest number of bytes that the device copies in one step: a multiple of the unit.
    most: u64,
    units: Units,
}

impl Finer {
    /// Returns the device for a volume with blocks of `block` bytes: the given device, or a new device over it together with a notice for
    /// the user. `block` is called only if the given device does not accept requests of 512 bytes.
    #[must_use]
    pub fn for_blocks(
        device: Arc<dyn Device>,
        block: impl FnOnce(&dyn Device) -> Option<usize>,
    ) -> (Arc<dyn Device>, Option<String>) {
        let unit = device.limits().logical_block;
        if unit <= SECTOR {
            return (device, None);
        }
        let Some(block) = block(&*device).filter(|block| *block < unit as usize) else {
            return (device, None);
        };
        let notice = Self::notice(block, unit);
        (Arc::new(Self::over(device)), Some(notice))
    }

    /// Returns the notice for the user about blocks or sectors that are smaller than the smallest request of the device. `block` and `unit`
    /// are these two sizes.
    pub(crate) fn notice(block: usize, unit: u32) -> String {
        format!(
            "blocks have {block} bytes, but the device accepts only requests of {unit} bytes or more: before a shorter write, ironmap reads the rest of the {unit} bytes"
        )
    }

    /// Creates a device over another device, for requests of 512 bytes and more.
    #[must_use]
    pub fn over(below: Arc<dyn Device>) -> Self {
        let limits = *below.limits();
        let unit = u64::from(limits.logical_block.max(1));
        let most = u64::from(limits.max_transfer).min(MOST) / unit * unit;
        let limits = Limits {
            logical_block: limits.logical_block.min(SECTOR),
            // An atomic write is impossible, because a write of a part of a unit needs several requests to the device below.
            atomic_write: 0,
            through_flushes: match limits.through_flushes {
                // A queued write of a part of a unit is carried out by a system call, for which the kernel may flush. Therefore, queued
                // writes may cause a flush too.
                ThroughFlushes::OfCalls => ThroughFlushes::Always,
                other => other,
            },
            ..limits
        };
        let units = Units::default();
        Self { inner: Arc::new(Inner { below, unit, most: most.max(unit), units }), limits }
    }
}

impl Inner {
    /// Whether the device below accepts a request with this position and this length.
    fn fits(&self, at: u64, len: usize) -> bool {
        at.is_multiple_of(self.unit) && (len as u64).is_multiple_of(self.unit)
    }

    fn floor(&self, at: u64) -> u64 {
        at / self.unit * self.unit
    }

    /// The units that a range touches.
    fn around(&self, at: u64, len: u64) -> Range<u64> {
        at / self.unit..at.saturating_add(len).div_ceil(self.unit)
    }

    /// The whole units within a range, in bytes.
    fn within(&self, at: u64, len: u64) -> Range<u64> {
        let start = at.checked_next_multiple_of(self.unit).unwrap_or(u64::MAX);
        start..self.floor(at.saturating_add(len)).max(start)
    }

    /// Writes all of `bufs`.
    fn write(&self, bufs: &[IoSlice<'_>], at: DevOffset, fua: bool) -> Result<()> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        if len == 0 {
            return Ok(());
        }
        let locked = self.units.lock(self.around(at.0, len));
        if bufs.iter().all(|buf| self.fits(at.0, buf.len())) {
            return self.below.write_all_at(bufs, at, fua);
        }
        let end = at.0.saturating_add(len);
        let whole = end.div_ceil(self.unit).saturating_mul(self.unit) - self.floor(at.0);
        let mut copy = Buffer::aligned(whole.min(self.most) as usize)?;
        let (mut rest, mut part) = (bufs.iter(), &[][..]);
        let mut pos = at.0;
        while pos < end {
            let start = self.floor(pos);
            let stop = (start + copy.len() as u64).min(self.around(pos, end - pos).end * self.unit);
            let piece = &mut copy[..(stop - start) as usize];
            let until = stop.min(end);
            self.read_edges(piece, start, pos..until)?;
            let mut left = &mut piece[(pos - start) as usize..(until - start) as usize];
            while !left.is_empty() {
                if part.is_empty() {
                    part = rest.next().map_or(&[][..], |buf| &**buf);
                    continue;
                }
                let (now, later) = part.split_at(part.len().min(left.len()));
                left[..now.len()].copy_from_slice(now);
                (part, left) = (later, &mut left[now.len()..]);
            }
            self.below.write_all_at(&[IoSlice::new(piece)], DevOffset(start), fua)?;
            pos = until;
        }
        drop(locked);
        Ok(())
    }

    /// Reads the first and the last unit of a piece that begins at `start`. Skips a unit that the range `written` covers completely.
    fn read_edges(&self, piece: &mut [u8], start: u64, written: Range<u64>) -> Result<()> {
        let unit = self.unit as usize;
        let stop = start + piece.len() as u64;
        let last = stop - self.unit;
        let is_first = written.start > start || written.end < start + self.unit;
        if is_first {
            self.below.read_exact_at(&mut piece[..unit], DevOffset(start))?;
        }
        if written.end < stop && !(is_first && last == start) {
            let from = piece.len() - unit;
            self.below.read_exact_at(&mut piece[from..], DevOffset(last))?;
        }
        Ok(())
    }
}

impl Device for Finer {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn size(&self) -> u64 {
        self.inner.below.size()
    }

    fn end(&self) -> DevOffset {
        self.inner.below.end()
    }

    fn protection(&self) -> Option<&DeviceProtection> {
        self.inner.below.protection()
    }

    fn take_wrong_tuples(&self) -> (Vec<WrongTuple>, u64) {
        self.inner.below.take_wrong_tuples()
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        self.inner.below.read_exact_at(buf, at)
    }

    fn is_writable(&self) -> bool {
        self.inner.below.is_writable()
    }

    fn write_within(
        &self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        fua: bool,
        _: InRange,
    ) -> Result<()> {
        self.inner.write(bufs, at, fua)
    }

    fn flush(&self) -> Result<()> {
        self.inner.below.flush()
    }

    /// Only whole units are discarded. Parts of units keep their content.
    fn discard_within(&self, at: DevOffset, len: u64, _: InRange) -> Result<()> {
        let Range { start, end } = self.inner.within(at.0, len);
        if start == end {
            return Ok(());
        }
        let _locked = self.inner.units.lock(self.inner.around(start, end - start));
        self.inner.below.discard(DevOffset(start), end - start)
    }

    fn zero_within(&self, at: DevOffset, len: u64, _: InRange) -> Result<()> {
        let Range { start, end } = self.inner.within(at.0, len);
        if start == end {
            return Err(Error::io(Errno::EOPNOTSUPP, format!("write of {len} zero bytes at {at}")));
        }
        {
            let _locked = self.inner.units.lock(self.inner.around(start, end - start));
            self.inner.below.write_zeroes(DevOffset(start), end - start)?;
        }
        // The rest of the range consists of a partial unit before the whole units, and a partial unit after them.
        let zeros = vec![0; self.inner.unit as usize];
        let zero = |from: u64, to: u64| {
            self.inner.write(
                &[IoSlice::new(&zeros[..(to - from) as usize])],
                DevOffset(from),
                false,
            )
        };
        zero(at.0, start)?;
        zero(end, at.0 + len)
    }

    fn data_within(&self, at: DevOffset, _: InRange) -> Result<Range<DevOffset>> {
        self.inner.below.data_from(at)
    }

    fn set_fence(&self, fence: Option<Arc<dyn Fence>>) {
        let unit = self.inner.unit;
        self.inner.below.set_fence(fence.map(|fence| Arc::new(Wider { fence, unit }) as _));
    }

    fn queue_within(&self, options: &QueueOptions, checked: InRange) -> Result<AnyQueue> {
        let below = self.inner.below.queue_within(options, checked)?;
        let queue = FinerQueue::new(below, Arc::clone(&self.inner), options.slots());
        Ok(AnyQueue::other(queue))
    }
}

/// A [`Fence`] (the block that records which node uses the device) on a device whose units may be larger than this block. It reads and
/// writes the units that contain the block.
#[derive(Debug)]
struct Wider {
    fence: Arc<dyn Fence>,
    unit: u64,
}

impl Fence for Wider {
    fn place(&self) -> (DevOffset, usize) {
        let (at, len) = self.fence.place();
        let start = at.0 / self.unit * self.unit;
        let end = (at.0 + len as u64).next_multiple_of(self.unit);
        (DevOffset(start), (end - start) as usize)
    }

    fn confirm(&self, block: &mut [u8]) -> Result<()> {
        let (at, len) = self.fence.place();
        let skip = (at.0 % self.unit) as usize;
        match block.get_mut(skip..skip + len) {
            Some(own) => self.fence.confirm(own),
            None => Err(Error::io(
                Errno::EIO,
                "the sectors that were read do not contain the complete MMP block",
            )),
        }
    }
}
