//! The table that converts a position in a segmented device to a device below and a position there.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::Range;
use std::sync::Arc;

use crate::bio::BioFlags;
use crate::bio::slices::{Slices, SlicesMut, cut, cut_mut};
use crate::device::Device;
use crate::error::{Errno, Result};
use crate::units::DevOffset;

/// For look-ups, a device is divided into units of equal length: at least this number for each segment, and at most twice this number. So
/// few units contain the end of a segment.
const UNITS_PER_SEGMENT: usize = 8;

/// The maximum number of units.
const MAX_UNITS: usize = 1 << 12;

/// The number of a device below. Numbers begin at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::device) struct Number(NonZeroU32);

impl Number {
    /// The number of the device with this index. There are fewer than 2^32 devices.
    pub(super) fn of(index: usize) -> Self {
        Self(NonZeroU32::MIN.saturating_add(index as u32))
    }

    #[inline(always)]
    pub(in crate::device) fn get(self) -> usize {
        self.0.get() as usize
    }

    pub(in crate::device) fn index(self) -> usize {
        self.get() - 1
    }
}

/// The first byte of a range on a device below.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnDevice {
    pub(super) device: Number,
    pub(super) start: u64,
}

/// A segment with its position.
#[derive(Debug)]
pub(super) struct Placed {
    begin: u64,
    len: u64,
    /// The first range. A look-up in a segment with one range needs no other memory.
    first: OnDevice,
    stripes: Option<Stripes>,
}

/// The stripes of a segment with several ranges.
#[derive(Debug)]
struct Stripes {
    /// The length of a stripe.
    len: NonZeroU64,
    /// The number of ranges.
    count: NonZeroU64,
    places: Box<[OnDevice]>,
}

impl Placed {
    /// A segment at the position `begin`. `None` if there is no range, or if there are several and the length of a stripe is 0.
    pub(super) fn new(begin: u64, len: u64, stripe: u64, places: Vec<OnDevice>) -> Option<Self> {
        let first = *places.first()?;
        let stripes = match places.len() {
            1 => None,
            count => Some(Stripes {
                len: NonZeroU64::new(stripe)?,
                count: NonZeroU64::new(count as u64)?,
                places: places.into(),
            }),
        };
        Some(Self { begin, len, first, stripes })
    }

    fn end(&self) -> u64 {
        self.begin.saturating_add(self.len)
    }

    /// Returns the first byte of the segment that does not exist on the devices below; in a striped segment, the first byte of its row.
    /// Returns `None` if all bytes exist.
    fn first_missing(&self, below: &[Arc<dyn Device>]) -> Option<u64> {
        let one = [self.first];
        let (stripe, places) = match &self.stripes {
            Some(stripes) => (stripes.len.get(), &stripes.places[..]),
            None => (1, &one[..]),
        };
        let exist =
            |place: &OnDevice| below[place.device.index()].stored().saturating_sub(place.start);
        let rows = places.iter().map(|place| exist(place) / stripe).min()?;
        let exist = rows.saturating_mul(stripe).saturating_mul(places.len() as u64);
        (exist < self.len).then(|| self.begin + exist)
    }

    /// Finds a range of the segment. Returns `None` if the range is not contiguous on one device below.
    #[inline(always)]
    fn place(&self, at: DevOffset, len: usize) -> Option<(Number, DevOffset)> {
        let found = self.locate(at.0)?;
        (len as u64 <= found.rest).then_some((found.device, found.at))
    }

    /// Finds a byte of the segment. `at` must not be before the start of the segment.
    #[inline(always)]
    fn locate(&self, at: u64) -> Option<Found> {
        let into = at - self.begin;
        let rest = self.len.checked_sub(into)?;
        let Some(stripes) = &self.stripes else {
            let OnDevice { device, start } = self.first;
            return Some(Found { device, at: DevOffset(start + into), rest });
        };
        let (stripe, inside) = (into / stripes.len, into % stripes.len);
        let (row, column) = (stripe / stripes.count, stripe % stripes.count);
        let OnDevice { device, start } = *stripes.places.get(column as usize)?;
        let at = DevOffset(start + row * stripes.len.get() + inside);
        Some(Found { device, at, rest: rest.min(stripes.len.get() - inside) })
    }
}

/// Ranges of devices that are read as one device. The implementation has several ways to read the same data.
pub(crate) trait Ranges: fmt::Debug + Send + Sync {
    /// Fills `buf` from a position.
    ///
    /// # Errors
    /// The errors of [`Device::read_exact_at`].
    fn read(&self, buf: &mut [u8], at: DevOffset) -> Result<()>;
}

/// The position of a byte on a device below, and the number of contiguous bytes from there on. This number is 0 at the end of a segment.
pub(in crate::device) struct Found {
    pub(in crate::device) device: Number,
    pub(in crate::device) at: DevOffset,
    pub(in crate::device) rest: u64,
}

/// A unit of the device. Most units are within one segment of one range, and then the look-up needs no other memory.
#[derive(Clone, Copy, Debug)]
struct Unit {
    /// The end of the segment that contains the unit's first byte. 0 if this segment has stripes.
    end: u64,
    /// The position of this segment on its device, minus the position of the segment. The difference wraps around.
    shift: u64,
    device: Number,
    /// The index of the segment that contains the unit's first byte, and the index of the last segment that begins within the unit.
    first: u32,
    last: u32,
}

/// The segments with their positions.
#[derive(Debug)]
pub(in crate::device) struct Map {
    /// The segments in the order of their positions. There may be gaps between them.
    segments: Vec<Placed>,
    /// The device is divided into units of `1 << shift` bytes.
    units: Box<[Unit]>,
    shift: u32,
    /// An alternative way to read the ranges, which is used after a device below has returned an error.
    pub(super) other: Option<Arc<dyn Ranges>>,
}

impl Map {
    pub(super) fn new(segments: Vec<Placed>) -> Self {
        let end = segments.last().map_or(0, Placed::end);
        let wanted = segments.len().saturating_mul(UNITS_PER_SEGMENT).next_power_of_two();
        let shift = (u64::BITS - end.leading_zeros()).saturating_sub(wanted.min(MAX_UNITS).ilog2());
        // The first segment begins at 0.
        let before = |at: u64| segments.partition_point(|segment| segment.begin <= at).max(1) - 1;
        let unit = |unit: u64| {
            let (start, size) = (unit << shift, 1_u64 << shift);
            let (first, last) = (before(start), before(start.saturating_add(size - 1)));
            let linear = segments.get(first).filter(|segment| segment.stripes.is_none());
            Unit {
                end: linear.map_or(0, Placed::end),
                shift: linear.map_or(0, |it| it.first.start.wrapping_sub(it.begin)),
                device: linear.map_or(Number::of(0), |it| it.first.device),
                first: first as u32,
                last: last as u32,
            }
        };
        let units = (0..=end >> shift).map(unit).collect();
        Self { segments, units, shift, other: None }
    }

    /// The end of the last segment.
    pub(super) fn end(&self) -> u64 {
        self.segments.last().map_or(0, Placed::end)
    }

    /// The first byte before `size` that does not exist on the devices below.
    pub(super) fn first_missing(&self, below: &[Arc<dyn Device>], size: u64) -> Option<u64> {
        let mut own = self.segments.iter().filter(|segment| segment.begin < size);
        own.find_map(|segment| segment.first_missing(below))
    }

    /// Finds a range of `len` bytes. Returns `None` if the range is not contiguous on one device below.
    #[inline(always)]
    pub(in crate::device) fn place(
        &self,
        at: DevOffset,
        len: usize,
    ) -> Option<(Number, DevOffset)> {
        let unit = self.unit(at.0)?;
        let Some(rest) = unit.end.checked_sub(at.0) else { return self.search(unit, at, len) };
        if len as u64 > rest {
            return self.search(unit, at, len);
        }
        Some((unit.device, DevOffset(at.0.wrapping_add(unit.shift))))
    }

    #[inline(always)]
    fn unit(&self, at: u64) -> Option<&Unit> {
        self.units.get((at >> self.shift) as usize)
    }

    /// Finds a range whose unit contains several segments or a segment with stripes.
    #[inline(never)]
    fn search(&self, unit: &Unit, at: DevOffset, len: usize) -> Option<(Number, DevOffset)> {
        if unit.first != unit.last {
            return self.search_several(unit, at, len);
        }
        self.segments.get(unit.first as usize)?.place(at, len)
    }

    #[inline(never)]
    fn search_several(
        &self,
        unit: &Unit,
        at: DevOffset,
        len: usize,
    ) -> Option<(Number, DevOffset)> {
        self.segment(unit, at.0)?.place(at, len)
    }

    /// Finds a byte. Returns `None` if no segment contains it.
    pub(super) fn locate(&self, at: u64) -> Option<Found> {
        self.segment(self.unit(at)?, at)?.locate(at)
    }

    /// Returns the segment that contains the byte `at` of a unit.
    fn segment(&self, unit: &Unit, at: u64) -> Option<&Placed> {
        let (first, last) = (unit.first as usize, unit.last as usize);
        let after = self.segments.get(first + 1..=last)?;
        self.segments.get(first + after.partition_point(|segment| segment.begin <= at))
    }

    /// Divides a range of `len` bytes into ranges of the devices below. Calls `each` with each of these ranges, and with its offsets in the
    /// whole range.
    pub(super) fn each<E>(
        &self,
        at: DevOffset,
        len: usize,
        past: impl Fn() -> E,
        mut each: impl FnMut(Found, Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = 0;
        while done < len {
            let found = self.locate(at.0 + done as u64).filter(|found| found.rest > 0);
            let found = found.ok_or_else(&past)?;
            let end = done + found.rest.min((len - done) as u64) as usize;
            each(found, done..end)?;
            done = end;
        }
        Ok(())
    }

    /// Reads the ranges below one after another, with `read_one`. If one of these reads is short, the result is short too.
    #[cold]
    #[inline(never)]
    pub(in crate::device) fn read(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        at: DevOffset,
        flags: BioFlags,
        mut read_one: impl FnMut(&Found, SlicesMut<'_>) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let (len, mut done) = (bufs.iter().map(|buf| buf.len()).sum(), 0);
        // A short read ends the loop with the error `None`.
        let past = || Some(Errno::EINVAL);
        let result = self.each(at, len, past, |found, range| {
            let count = range.len();
            let read = read_one(&found, cut_mut(bufs, range)).map_err(Some)?;
            done += read;
            if read == count { Ok(()) } else { Err(None) }
        });
        let Err(Some(errno)) = result else { return Ok(done) };
        match self.read_again(bufs, at, flags, errno) {
            Err(_) if done > 0 => Ok(done),
            result => result,
        }
    }

    /// Repeats a failed read in the alternative way. If there is no alternative, returns the error of the device below.
    #[cold]
    #[inline(never)]
    pub(in crate::device) fn read_again(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        at: DevOffset,
        flags: BioFlags,
        errno: Errno,
    ) -> Result<usize, Errno> {
        let other: &dyn Ranges = match &self.other {
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

    /// Writes the ranges below one after another, with `write_one`. If one of these writes is short, the result is short too.
    #[cold]
    #[inline(never)]
    pub(in crate::device) fn write(
        &self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        mut write_one: impl FnMut(&Found, Slices<'_>) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let (len, mut done) = (bufs.iter().map(|buf| buf.len()).sum(), 0);
        // A short write ends the loop with the error `None`.
        let past = || Some(Errno::EINVAL);
        let result = self.each(at, len, past, |found, range| {
            let count = range.len();
            let written = write_one(&found, cut(bufs, range)).map_err(Some)?;
            done += written;
            if written == count { Ok(()) } else { Err(None) }
        });
        match result {
            Err(Some(errno)) if done == 0 => Err(errno),
            _ => Ok(done),
        }
    }
}
