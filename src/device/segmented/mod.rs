//! A device that consists of ranges of other devices: a logical volume of LVM, an array of MD, or a volume with a journal on another device.
//!
//! If all devices below are files of one engine, one queue of this engine serves all of them (see [`FileRanges`](super::FileRanges)). Else
//! each device has its own queue, and a request within one range goes to the queue of that range's device.

mod map;
mod queue;
#[cfg(test)]
mod tests;

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use self::map::{Number, OnDevice, Placed};
use self::queue::queue_over;
use super::{AnyQueue, Device, InRange, Limits, QueueOptions, only_read};
use crate::bio::slices::cut;
use crate::error::{Errno, Error, Result};
use crate::sorting::Sorting;
use crate::units::DevOffset;

#[cfg(feature = "md")]
pub(crate) use map::Ranges;
pub(super) use map::{Found, Map};

/// A part of a segmented device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The length in bytes.
    pub len: u64,
    /// The length of a stripe in bytes. Consecutive stripes are on consecutive ranges, beginning with the first range. The stripe after the
    /// last range is on the first range again. If there is only one range, this field is ignored.
    pub stripe: u64,
    /// The first byte of each range. With several devices below, positions are counted from the first byte of the first device, as if the
    /// devices were concatenated.
    pub starts: SmallVec<[u64; 1]>,
}

impl Segment {
    /// Creates a segment with one range.
    #[must_use]
    pub fn linear(start: u64, len: u64) -> Self {
        Self { len, stripe: len, starts: SmallVec::from_buf([start]) }
    }

    /// Whether the segments `self` and `next` are adjacent on the device below. A segment with several ranges is never adjacent.
    #[cfg(feature = "lvm")]
    pub(crate) fn continues_in(&self, next: &Self) -> bool {
        match (&self.starts[..], &next.starts[..]) {
            ([one], [other]) => one.checked_add(self.len) == Some(*other),
            _ => false,
        }
    }

    /// Whether each stripe consists of whole sectors, and all ranges contain the same number of stripes.
    fn is_striped(&self, sector: u64) -> bool {
        let row = self.stripe.checked_mul(self.starts.len() as u64).filter(|row| *row > 0);
        self.stripe.is_multiple_of(sector) && row.is_some_and(|row| self.len.is_multiple_of(row))
    }

    /// Converts the segment to ranges of devices. `ends` contains the end of each device, as if the devices were concatenated.
    ///
    /// # Errors
    /// The reason why the segment is invalid.
    fn place(&self, begin: u64, ends: &[u64], sector: u64) -> Result<Placed, &'static str> {
        let Self { len, stripe, ref starts } = *self;
        if len == 0 || starts.is_empty() {
            return Err("is empty");
        }
        if !starts.iter().chain([&len]).all(|at| at.is_multiple_of(sector))
            || starts.len() > 1 && !self.is_striped(sector)
        {
            return Err("is not aligned to the sectors of the device");
        }
        let each = len / starts.len() as u64;
        let on_device = |start: &u64| {
            let device = ends.partition_point(|end| end <= start);
            let end = start.checked_add(each)?;
            let first = device.checked_sub(1).map_or(0, |before| ends[before]);
            ends.get(device).filter(|after| end <= **after)?;
            Some(OnDevice { device: Number::of(device), start: start - first })
        };
        let places = starts.iter().map(on_device).collect::<Option<Vec<_>>>();
        let places = places.ok_or("ends past the device")?;
        Placed::new(begin, len, stripe, places).ok_or("has stripes of 0 bytes")
    }
}

/// A device that consists of ranges of other devices. It can be written only after [`writable`](Self::writable).
#[derive(Debug)]
pub struct Segmented {
    below: Vec<Arc<dyn Device>>,
    map: Arc<Map>,
    limits: Limits,
    size: u64,
    writable: bool,
}

impl Segmented {
    /// The position of a volume's journal device in a [joined](Self::joined) device. It exceeds the size of any real device, but a block
    /// number of ext4 (48 bits) can express it even with the smallest block size.
    pub const JOURNAL: u64 = 1 << 57;

    /// The position of the realtime device in a [joined](Self::joined) device.
    pub const REALTIME: u64 = 1 << 58;

    /// Combines ranges of a device.
    ///
    /// # Errors
    /// `InvalidInput` for an empty segment, or for a range that ends past the device or is not aligned to its sectors.
    pub fn new(below: Arc<dyn Device>, segments: &[Segment]) -> Result<Self> {
        Self::over(vec![below], segments)
    }

    /// Combines ranges of several devices.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub(crate) fn over(below: Vec<Arc<dyn Device>>, segments: &[Segment]) -> Result<Self> {
        let limits = below.iter().map(|device| *device.limits()).reduce(Limits::joined);
        let limits = limits.ok_or_else(|| Error::invalid("there is no device"))?;
        let sector = u64::from(limits.logical_block.max(1));
        let ends = below.iter().scan(0_u64, |end, device| {
            *end = end.saturating_add(device.size());
            Some(*end)
        });
        let ends: Vec<u64> = ends.collect();
        let (mut placed, mut size) = (Vec::with_capacity(segments.len()), 0_u64);
        for segment in segments {
            placed.push(segment.place(size, &ends, sector).map_err(|refused| {
                Error::invalid(format!(
                    "the segment of {} bytes at byte {:?} {refused}: a sector has {sector} bytes, and the device has {} bytes",
                    segment.len,
                    segment.starts,
                    ends[ends.len() - 1]
                ))
            })?);
            size = size.checked_add(segment.len).ok_or_else(|| {
                Error::invalid("the total length of the segments exceeds 64 bits")
            })?;
        }
        Ok(Self::of(below, placed, size, limits))
    }

    /// Joins the device of a volume and the volume's other devices, each at its position. The size is that of the first device. A request
    /// within the limits of the joined device is valid on every device.
    #[must_use]
    pub fn joined(first: Arc<dyn Device>, mut others: Vec<(u64, Arc<dyn Device>)>) -> Self {
        others.order_by_key(|(begin, _)| *begin);
        let (size, mut limits) = (first.size(), *first.limits());
        let (mut below, mut placed) = (Vec::new(), Vec::new());
        for (begin, device) in std::iter::once((0, first)).chain(others) {
            limits = if below.is_empty() { limits } else { limits.joined(*device.limits()) };
            let len = device.size();
            let place = OnDevice { device: Number::of(below.len()), start: 0 };
            placed.extend(Placed::new(begin, len, len, vec![place]));
            below.push(device);
        }
        Self::of(below, placed, size, limits)
    }

    fn of(below: Vec<Arc<dyn Device>>, segments: Vec<Placed>, size: u64, limits: Limits) -> Self {
        let limits = Limits { read_only: true, atomic_write: 0, poll: false, ..limits };
        Self { below, map: Arc::new(Map::new(segments)), limits, size, writable: false }
    }

    /// Permits writes, if all devices below were opened for writing. A flush then flushes all of them. A device with an alternative way to
    /// read its ranges stays read-only.
    #[must_use]
    pub fn writable(mut self) -> Self {
        let below = &self.below;
        self.writable = below.iter().all(|device| device.is_writable()) && self.map.other.is_none();
        let is_refused = below.iter().any(|device| device.limits().read_only);
        self.limits.read_only = !self.writable || is_refused;
        self
    }

    /// Divides the range of `len` bytes at `at` into ranges of the devices below. Calls `run` with each of these ranges and with its
    /// offsets in the whole range.
    fn change(
        &self,
        at: DevOffset,
        len: u64,
        mut run: impl FnMut(&dyn Device, DevOffset, Range<u64>) -> Result<()>,
    ) -> Result<()> {
        if !self.writable {
            return Err(only_read());
        }
        let mut done = 0;
        while done < len {
            let found = self.map.locate(at.0 + done).filter(|found| found.rest > 0);
            let found = found.ok_or_else(|| past(len, at))?;
            let end = done + found.rest.min(len - done);
            run(&*self.below[found.device.index()], found.at, done..end)?;
            done = end;
        }
        Ok(())
    }

    /// Sets an alternative way to read the ranges, for reads that fail.
    #[cfg(feature = "md")]
    pub(crate) fn or(mut self, other: Arc<dyn Ranges>) -> Self {
        if let Some(map) = Arc::get_mut(&mut self.map) {
            map.other = Some(other);
        }
        self
    }
}

impl Device for Segmented {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn stored(&self) -> u64 {
        self.map.first_missing(&self.below, self.size).unwrap_or(self.size)
    }

    fn end(&self) -> DevOffset {
        DevOffset(self.map.end().max(self.size))
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        let len = buf.len();
        let each = |found: Found, range: Range<usize>| {
            let (above, buf) = (DevOffset(at.0 + range.start as u64), &mut buf[range]);
            match (self.below[found.device.index()].read_exact_at(buf, found.at), &self.map.other) {
                (Err(_), Some(other)) => other.read(buf, above),
                (result, _) => result,
            }
        };
        self.map.each(at, len, || past(len as u64, at), each)
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn write_within(
        &self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        fua: bool,
        _: InRange,
    ) -> Result<()> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.change(at, len, |below, at, range| {
            below.write_all_at(&cut(bufs, range.start as usize..range.end as usize), at, fua)
        })
    }

    /// Flushes all devices, even if the flush of one device fails.
    fn flush(&self) -> Result<()> {
        if !self.writable {
            return Err(only_read());
        }
        self.below.iter().map(|device| device.flush()).fold(Ok(()), Result::and)
    }

    fn discard_within(&self, at: DevOffset, len: u64, _: InRange) -> Result<()> {
        self.change(at, len, |below, at, range| below.discard(at, range.end - range.start))
    }

    fn zero_within(&self, at: DevOffset, len: u64, _: InRange) -> Result<()> {
        // A device that does not support the request changes nothing. If there are several devices, one of them could refuse the request
        // after another device has already zeroed its part.
        let in_one = usize::try_from(len).ok().and_then(|len| self.map.place(at, len));
        if self.below.len() > 1 && in_one.is_none() {
            let what = format!("write of {len} zero bytes at {at}");
            return Err(Error::io(Errno::EOPNOTSUPP, what));
        }
        self.change(at, len, |below, at, range| below.write_zeroes(at, range.end - range.start))
    }

    fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        queue_over(&self.below, &self.map, self.writable, options)
    }
}

fn past(len: u64, at: DevOffset) -> Error {
    Error::invalid(format!("{len} bytes at {at} are past the end of the device"))
}
