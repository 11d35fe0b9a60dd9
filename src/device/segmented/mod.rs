//! A device that consists of ranges of other devices: a logical volume of LVM, an array of MD, or a volume with a journal on another device.
//!
//! A read within one range goes to the queue of that range's device. So such reads stay in flight, and cost a few instructions.

mod queue;

use std::fmt;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use self::queue::queue_over;
use super::{AnyQueue, Device, InRange, Limits, QueueOptions, only_read};
use crate::bio::slices::cut;
use crate::error::{Errno, Error, Result};
use crate::sorting::Sorting;
use crate::units::DevOffset;

/// For look-ups, a device is divided into units: at most this number, and at least half of this number.
const UNITS: u64 = 512;

/// A part of a segmented device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The length in bytes.
    pub len: u64,
    /// The length of a stripe in bytes. Consecutive stripes are on consecutive ranges, beginning with the first range. The stripe after the
    /// last range is on the first range again. If there is only one range, this field is ignored.
    pub stripe: u64,
    /// The first byte of each range. With several devices below, positions are counted from the first byte of the first device, as if the
    /// devices followed each other.
    pub starts: SmallVec<[u64; 1]>,
}

impl Segment {
    /// A segment in one range.
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

    /// Converts the segment to ranges of devices. `ends` contains the end of each device, as if the devices followed each other.
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
            Some(OnDevice { device, start: start - first })
        };
        let places = starts.iter().map(on_device).collect::<Option<Vec<_>>>();
        let places = places.ok_or("ends past the device")?;
        Ok(Placed::new(begin, len, stripe, places))
    }
}

/// The first byte of a range on a device below.
#[derive(Clone, Copy, Debug)]
struct OnDevice {
    device: usize,
    start: u64,
}

/// A segment with its position.
#[derive(Debug)]
struct Placed {
    begin: u64,
    len: u64,
    /// The first range. A look-up in a segment with one range needs no other memory.
    first: OnDevice,
    /// The length of a stripe, and all ranges. `None` if there is one range.
    striped: Option<Box<(u64, Vec<OnDevice>)>>,
}

impl Placed {
    fn new(begin: u64, len: u64, stripe: u64, places: Vec<OnDevice>) -> Self {
        let first = places[0];
        let striped = (places.len() > 1).then(|| Box::new((stripe, places)));
        Self { begin, len, first, striped }
    }
}

impl Placed {
    /// The first byte of the segment that does not exist on the devices below. In a segment with stripes, the first byte of its row. `None` if
    /// all bytes exist.
    fn first_missing(&self, below: &[Arc<dyn Device>]) -> Option<u64> {
        let one = [self.first];
        let (stripe, places) = match &self.striped {
            Some(striped) => (striped.0, &striped.1[..]),
            None => (1, &one[..]),
        };
        let count = places.len() as u64;
        let exist = |place: &OnDevice| below[place.device].stored().saturating_sub(place.start);
        let rows = places.iter().map(|place| exist(place) / stripe).min()?;
        let exist = rows.saturating_mul(stripe).saturating_mul(count);
        (exist < self.len).then(|| self.begin + exist)
    }

    /// Finds a byte of the segment. `at` must not be before the start of the segment.
    #[inline(always)]
    fn locate(&self, at: u64) -> Option<Found> {
        let into = at - self.begin;
        let rest = self.len.checked_sub(into)?;
        let Some(striped) = &self.striped else {
            let OnDevice { device, start } = self.first;
            return Some(Found { device, at: DevOffset(start + into), rest });
        };
        let (length, places) = &**striped;
        let count = places.len() as u64;
        let (stripe, inside) = (into / length, into % length);
        let OnDevice { device, start } = *places.get((stripe % count) as usize)?;
        let at = DevOffset(start + stripe / count * length + inside);
        Some(Found { device, at, rest: rest.min(length - inside) })
    }
}

/// Ranges of devices that are read as one device. The implementation knows several ways to read the same data.
pub(crate) trait Ranges: fmt::Debug + Send + Sync {
    /// Fills `buf` from a position.
    ///
    /// # Errors
    /// The errors of [`Device::read_exact_at`].
    fn read(&self, buf: &mut [u8], at: DevOffset) -> Result<()>;
}

/// The segments with their positions.
#[derive(Debug)]
struct Map {
    below: Vec<Arc<dyn Device>>,
    /// The segments in the order of their positions. There may be gaps between them.
    segments: Vec<Placed>,
    /// The device is divided into units of `1 << shift` bytes. For each unit: the index of the segment that contains its first byte, and
    /// the index of the last segment that begins within it. So most look-ups need no search.
    units: Box<[(u32, u32)]>,
    shift: u32,
    /// An alternative way to read the ranges, which is used after a device below has returned an error.
    other: Option<Arc<dyn Ranges>>,
}

/// The position of a byte on a device below, and the number of bytes that are contiguous from there on. This number is 0 at the end of a
/// segment.
struct Found {
    device: usize,
    at: DevOffset,
    rest: u64,
}

impl Map {
    /// Finds a byte. `None` if no segment contains it.
    #[inline(always)]
    fn locate(&self, at: u64) -> Option<Found> {
        let (first, last) = *self.units.get((at >> self.shift) as usize)?;
        let mut index = first as usize;
        if first != last {
            let after = self.segments.get(index + 1..=last as usize)?;
            index += after.partition_point(|segment| segment.begin <= at);
        }
        self.segments.get(index)?.locate(at)
    }

    fn new(below: Vec<Arc<dyn Device>>, segments: Vec<Placed>) -> Self {
        let end = segments.last().map_or(0, |last| last.begin.saturating_add(last.len));
        let shift = (u64::BITS - end.leading_zeros()).saturating_sub(UNITS.ilog2());
        // The first segment begins at 0.
        let before = |at: u64| segments.partition_point(|segment| segment.begin <= at).max(1) - 1;
        let unit = |unit: u64| {
            let (start, size) = (unit << shift, 1_u64 << shift);
            (before(start) as u32, before(start.saturating_add(size - 1)) as u32)
        };
        let units = (0..=end >> shift).map(unit).collect();
        Self { below, segments, units, shift, other: None }
    }

    /// Divides a range of `len` bytes into ranges of the devices below. Calls `read` with each of these ranges, and with its offsets in the
    /// whole range.
    fn each<E>(
        &self,
        at: DevOffset,
        len: usize,
        past: impl Fn() -> E,
        mut read: impl FnMut(Found, Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = 0;
        while done < len {
            let found = self.locate(at.0 + done as u64).filter(|found| found.rest > 0);
            let found = found.ok_or_else(&past)?;
            let end = done + found.rest.min((len - done) as u64) as usize;
            read(found, done..end)?;
            done = end;
        }
        Ok(())
    }

    fn read(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
        let len = buf.len();
        self.each(
            at,
            len,
            || past(len as u64, at),
            |found, range| {
                let (above, buf) = (DevOffset(at.0 + range.start as u64), &mut buf[range]);
                match (self.below[found.device].read_exact_at(buf, found.at), &self.other) {
                    (Err(_), Some(other)) => other.read(buf, above),
                    (result, _) => result,
                }
            },
        )
    }
}

/// A device that consists of ranges of other devices. It can be written only after [`writable`](Self::writable).
#[derive(Debug)]
pub struct Segmented {
    map: Arc<Map>,
    limits: Limits,
    size: u64,
    writable: bool,
}

impl Segmented {
    /// The position of the device of a volume's journal in a [joined](Self::joined) device. No device is that long. A block number of ext4
    /// (48 bits) can express this position, even with the smallest block size.
    pub const JOURNAL: u64 = 1 << 57;

    /// The position of the device of realtime files in a [joined](Self::joined) device.
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

    /// Joins the device of a volume and the volume's other devices, each with its position. The size is the size of the first device. A
    /// request within the limits of the joined device is valid on every device.
    #[must_use]
    pub fn joined(first: Arc<dyn Device>, mut others: Vec<(u64, Arc<dyn Device>)>) -> Self {
        others.order_by_key(|(begin, _)| *begin);
        let (size, mut limits) = (first.size(), *first.limits());
        let (mut below, mut placed) = (Vec::new(), Vec::new());
        for (begin, device) in std::iter::once((0, first)).chain(others) {
            limits = if below.is_empty() { limits } else { limits.joined(*device.limits()) };
            let len = device.size();
            let place = OnDevice { device: below.len(), start: 0 };
            placed.push(Placed::new(begin, len, len, vec![place]));
            below.push(device);
        }
        Self::of(below, placed, size, limits)
    }

    fn of(below: Vec<Arc<dyn Device>>, segments: Vec<Placed>, size: u64, limits: Limits) -> Self {
        let limits = Limits { read_only: true, atomic_write: 0, poll: false, ..limits };
        Self { map: Arc::new(Map::new(below, segments)), limits, size, writable: false }
    }

    /// Permits writes, if all devices below were opened for writing. A flush then flushes all of them. A device with an alternative way to
    /// read its ranges stays read-only.
    #[must_use]
    pub fn writable(mut self) -> Self {
        let below = &self.map.below;
        self.writable = below.iter().all(|device| device.is_writable()) && self.map.other.is_none();
        let is_refused = below.iter().any(|device| device.limits().read_only);
        self.limits.read_only = !self.writable || is_refused;
        self
    }

    /// Divides the range of `len` bytes at `at` into ranges of the devices below. Calls `run` with each of these ranges, and with its
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
            run(&*self.map.below[found.device], found.at, done..end)?;
            done = end;
        }
        Ok(())
    }

    /// Sets an alternative way to read the ranges. It is used for reads that fail.
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
        let own = self.map.segments.iter().filter(|segment| segment.begin < self.size);
        let mut cut = own.filter_map(|segment| segment.first_missing(&self.map.below));
        cut.next().unwrap_or(self.size)
    }

    fn end(&self) -> DevOffset {
        let last = self.map.segments.last();
        DevOffset(last.map_or(0, |last| last.begin.saturating_add(last.len)).max(self.size))
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        self.map.read(buf, at)
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
        self.map.below.iter().map(|device| device.flush()).fold(Ok(()), Result::and)
    }

    fn discard_within(&self, at: DevOffset, len: u64, _: InRange) -> Result<()> {
        self.change(at, len, |below, at, range| below.discard(at, range.end - range.start))
    }

    fn zero_within(&self, at: DevOffset, len: u64, _: InRange) -> Result<()> {
        // A device that does not support the request changes nothing. If there are several devices, one of them could refuse the request
        // after another device has already zeroed its part.
        let [_] = &self.map.below[..] else {
            let what = format!("write of {len} zero bytes at {at}");
            return Err(Error::io(Errno::EOPNOTSUPP, what));
        };
        self.change(at, len, |below, at, range| below.write_zeroes(at, range.end - range.start))
    }

    fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        queue_over(Arc::clone(&self.map), self.writable, options)
    }
}

fn past(len: u64, at: DevOffset) -> Error {
    Error::invalid(format!("{len} bytes at {at} are past the end of the device"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::{Bio, BioEnd, BioFlags, BioOp, Dev, Memory};
    use crate::device::{DeviceQueue, Ram};

    const MIB: u64 = 1 << 20;

    /// Returns a device with three segments: a linear segment, a segment that is striped over two ranges, and a linear segment. On the
    /// device below, the third segment is before the others.
    fn segmented() -> (Arc<Ram>, Segmented) {
        let ram = Arc::new(Ram::new(16 * MIB));
        let segment = |len, stripe, starts: &[u64]| Segment { len, stripe, starts: starts.into() };
        let segments = vec![
            segment(MIB, MIB, &[4 * MIB]),
            segment(2 * MIB, 64 << 10, &[8 * MIB, 12 * MIB]),
            segment(MIB, MIB, &[MIB]),
        ];
        let device = Segmented::new(Arc::clone(&ram) as Arc<dyn Device>, &segments).unwrap();
        (ram, device)
    }

    /// The position on the device below that contains the byte `at`. This function does not use the tested code.
    fn expected(at: u64) -> u64 {
        match at {
            at if at < MIB => 4 * MIB + at,
            at if at < 3 * MIB => {
                let (stripe, inside) = ((at - MIB) / (64 << 10), (at - MIB) % (64 << 10));
                [8 * MIB, 12 * MIB][(stripe % 2) as usize] + stripe / 2 * (64 << 10) + inside
            }
            at => MIB + at - 3 * MIB,
        }
    }

    fn block(at: u64) -> Vec<u8> {
        at.to_le_bytes().repeat(512)
    }

    /// Reads by calls and reads by a queue both return each block from its position on the device below.
    #[test]
    fn each_block_has_its_place() {
        let (ram, device) = segmented();
        assert_eq!(device.size(), 4 * MIB);
        let all: Vec<u8> = (0..4 * MIB).step_by(4096).flat_map(block).collect();
        let mut sector = crate::sys::Buffer::aligned(4096).unwrap();
        for at in (0..4 * MIB).step_by(4096) {
            sector.copy_from_slice(&block(at));
            let bufs = [IoSlice::new(&sector)];
            ram.write_all_at(&bufs, DevOffset(expected(at)), false).unwrap();
        }
        assert!(device.write_all_at(&[IoSlice::new(&sector)], DevOffset(0), false).is_err());
        let mut read = vec![0; all.len()];
        device.read_exact_at(&mut read, DevOffset(0)).unwrap();
        assert!(read == all);
        let mut queue = device.queue(&QueueOptions::new()).unwrap();
        for at in (0..all.len()).step_by(96 * 1024) {
            let end = (at + 96 * 1024).min(all.len());
            let mut buffer = crate::sys::Buffer::aligned(end - at).unwrap();
            let at_device = DevOffset(at as u64);
            let count = queue.read_now(Dev::OWN, &mut buffer, at_device, BioFlags::empty());
            assert_eq!(count, Ok(end - at));
            assert_eq!(buffer[..], all[at..end]);
        }
    }

    /// Reads of one range and reads of several ranges are in flight together. Each read completes with its own position and data.
    #[test]
    fn reads_in_flight_have_their_place() {
        let (ram, device) = segmented();
        for at in (0..4 * MIB).step_by(4096) {
            let mut sector = crate::sys::Buffer::aligned(4096).unwrap();
            sector.copy_from_slice(&block(at));
            let bufs = [IoSlice::new(&sector)];
            ram.write_all_at(&bufs, DevOffset(expected(at)), false).unwrap();
        }
        let mut queue = device.queue(&QueueOptions::new()).unwrap();
        let lens = [4096, 96 << 10, 8192, 256 << 10];
        let mut next = (0, 0_usize);
        let mut ended = 0;
        while ended < 4 * MIB {
            while queue.room() > 0 && next.0 < 4 * MIB {
                let len = lens[next.1 % 4].min((4 * MIB - next.0) as usize);
                let end = BioEnd::Part { request: len as u32, part: next.1 as u32 };
                let memory = crate::sys::Buffer::aligned(len).unwrap();
                let bio = Bio {
                    op: BioOp::Read,
                    flags: BioFlags::empty(),
                    dev: Dev::OWN,
                    at: DevOffset(next.0),
                    memory: Memory::Flat(memory),
                    end,
                };
                assert!(queue.submit(bio).is_ok());
                next = (next.0 + len as u64, next.1 + 1);
            }
            queue.wait(1).unwrap();
            while let Some(done) = queue.pop() {
                let (at, len) = (done.bio.at.0, done.bio.memory.len());
                assert_eq!(done.result, Ok(len));
                let BioEnd::Part { request, .. } = done.bio.end else { panic!("another end") };
                assert_eq!(request as usize, len);
                let data: Vec<u8> = (at..at + len as u64).step_by(4096).flat_map(block).collect();
                assert!(done.bio.memory.buffers()[0][..] == data[..], "the read at {at}");
                ended += len as u64;
            }
        }
    }

    #[test]
    fn a_segment_outside_of_its_device_is_refused() {
        let ram: Arc<dyn Device> = Arc::new(Ram::new(MIB));
        let segment = |len, stripe, starts: &[u64]| Segment { len, stripe, starts: starts.into() };
        for wrong in [
            segment(2 * MIB, 0, &[0]),
            segment(4096, 0, &[MIB]),
            segment(4096, 0, &[u64::MAX - 4095]),
            segment(0, 0, &[0]),
            segment(4096, 0, &[]),
            segment(4096, 0, &[1]),
            segment(8192, 0, &[0, 4096]),
            segment(8192, 100, &[0, 4096]),
        ] {
            assert!(
                Segmented::new(Arc::clone(&ram), std::slice::from_ref(&wrong)).is_err(),
                "{wrong:?}"
            );
        }
        assert!(Segmented::new(ram, &[segment(MIB, MIB, &[0])]).is_ok());
    }

    /// A read goes to the joined device that contains its position. A read that begins on one device and ends on another fails.
    #[test]
    fn each_joined_device_is_read_at_its_place() {
        let ram = |byte, len| -> Arc<dyn Device> { Arc::new(Ram::from_image(&vec![byte; len])) };
        let others = vec![(Segmented::REALTIME, ram(3, 4096)), (Segmented::JOURNAL, ram(2, 8192))];
        let joined = Segmented::joined(ram(1, 4096), others);
        let read = |at: u64| {
            let mut byte = [0];
            joined.read_exact_at(&mut byte, DevOffset(at)).map(|()| byte[0])
        };
        assert_eq!(read(4095).unwrap(), 1);
        assert_eq!(read(Segmented::JOURNAL).unwrap(), 2);
        assert_eq!(read(Segmented::JOURNAL + 8191).unwrap(), 2);
        assert_eq!(read(Segmented::REALTIME).unwrap(), 3);
        assert_eq!(read(Segmented::REALTIME + 4095).unwrap(), 3);
        assert!(read(4096).is_err() && read(Segmented::JOURNAL - 1).is_err());
        assert!(read(Segmented::JOURNAL + 8192).is_err() && read(Segmented::REALTIME - 1).is_err());
        assert!(read(Segmented::REALTIME + 4096).is_err());
        assert!(!joined.is_writable() && joined.size() == 4096);
        assert!(joined.write_all_at(&[IoSlice::new(&[0; 512])], DevOffset(0), true).is_err());
    }
}
