//! A device that consists of ranges of another device, such as a logical volume of LVM.

mod queue;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use smallvec::SmallVec;

use self::queue::SegmentedQueue;
use super::{AnyQueue, Device, InRange, Limits, QueueOptions};
use crate::error::{Error, Result};
use crate::units::DevOffset;

/// A part of a segmented device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The length in bytes.
    pub len: u64,
    /// The length of a stripe in bytes. Consecutive stripes are on consecutive ranges, beginning with the first range. The stripe after the
    /// last range is on the first range again. If there is only one range, this field is ignored.
    pub stripe: u64,
    /// The first byte of each range of the device below.
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

    /// The end of the last range on the device below. `None` if it exceeds 64 bits.
    fn end(&self) -> Option<u64> {
        let each = self.len.div_ceil(self.starts.len().max(1) as u64);
        self.starts
            .iter()
            .map(|start| start.checked_add(each))
            .collect::<Option<Vec<_>>>()?
            .into_iter()
            .max()
    }

    /// Converts the byte `into` of the segment to a position on the device below. Also returns the number of bytes that are contiguous from
    /// there on.
    fn locate(&self, into: u64) -> (u64, u64) {
        if let [start] = self.starts[..] {
            return (start + into, self.len - into);
        }
        let (stripe, inside) = (into / self.stripe, into % self.stripe);
        let ranges = self.starts.len() as u64;
        let start = self.starts[(stripe % ranges) as usize];
        let rest = (self.stripe - inside).min(self.len - into);
        (start + stripe / ranges * self.stripe + inside, rest)
    }
}

/// The segments with their positions.
#[derive(Debug)]
struct Map {
    below: Arc<dyn Device>,
    /// The first byte of each segment. The segments are in ascending order, without gaps.
    starts: Vec<u64>,
    segments: Vec<Segment>,
    size: u64,
}

impl Map {
    /// Converts the byte `at` to a position on the device below. Also returns the number of bytes that are contiguous from there on. This
    /// number is 0 past the end of the device.
    #[inline]
    fn locate(&self, at: u64) -> (u64, u64) {
        let after = self.starts.partition_point(|start| *start <= at);
        match after.checked_sub(1).map(|index| (self.starts[index], &self.segments[index])) {
            Some((start, segment)) if at < self.size => segment.locate(at - start),
            _ => (0, 0),
        }
    }

    fn read(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let (below, rest) = self.locate(at.0 + done as u64);
            let count = rest.min((buf.len() - done) as u64) as usize;
            if count == 0 {
                return Err(Error::invalid(format!(
                    "{} bytes at {at} are past the end of the device",
                    buf.len()
                )));
            }
            self.below.read_exact_at(&mut buf[done..done + count], DevOffset(below))?;
            done += count;
        }
        Ok(())
    }
}

/// A device that consists of ranges of another device.
#[derive(Debug)]
pub struct Segmented {
    map: Arc<Map>,
    limits: Limits,
}

impl Segmented {
    /// Combines ranges of a device.
    ///
    /// # Errors
    /// `InvalidInput` for an empty segment, or for a range that ends past the device or is not aligned to its sectors.
    pub fn new(below: Arc<dyn Device>, segments: Vec<Segment>) -> Result<Self> {
        let (mut starts, mut size) = (Vec::with_capacity(segments.len()), 0_u64);
        let sector = u64::from(below.limits().logical_block.max(1));
        for segment in &segments {
            let is_aligned =
                segment.starts.iter().chain([&segment.len]).all(|at| at.is_multiple_of(sector));
            let stripes = segment.starts.len() == 1 || segment.is_striped(sector);
            let refused = match () {
                () if segment.len == 0 || segment.starts.is_empty() => "is empty",
                () if !is_aligned || !stripes => "is not aligned to the sectors of the device",
                () if segment.end().is_none_or(|end| end > below.size()) => "ends past the device",
                () => "",
            };
            if !refused.is_empty() {
                return Err(Error::invalid(format!(
                    "the segment of {} bytes at byte {:?} {refused}: a sector has {sector} bytes, and the device has {} bytes",
                    segment.len,
                    segment.starts,
                    below.size()
                )));
            }
            starts.push(size);
            size = size.checked_add(segment.len).ok_or_else(|| {
                Error::invalid("the total length of the segments exceeds 64 bits")
            })?;
        }
        // An atomic write would have to be divided at the end of a range, so the device does not support atomic writes.
        let limits = Limits { read_only: true, atomic_write: 0, poll: false, ..*below.limits() };
        Ok(Self { map: Arc::new(Map { below, starts, segments, size }), limits })
    }
}

impl Device for Segmented {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn size(&self) -> u64 {
        self.map.size
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        self.map.read(buf, at)
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn write_within(&self, _: &[IoSlice<'_>], _: DevOffset, _: bool, _: InRange) -> Result<()> {
        Err(only_read())
    }

    fn flush(&self) -> Result<()> {
        Err(only_read())
    }

    fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        Ok(AnyQueue::other(SegmentedQueue {
            below: Box::new(self.map.below.queue(options)?),
            map: Arc::clone(&self.map),
            flying: Vec::new(),
            unused: Vec::new(),
            done: VecDeque::new(),
            depth: options.slots(),
        }))
    }
}

fn only_read() -> Error {
    Error::read_only("a device that consists of ranges of another device can only be read")
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
        let device = Segmented::new(Arc::clone(&ram) as Arc<dyn Device>, segments).unwrap();
        (ram, device)
    }

    /// The position on the device below of the byte `at`. It is computed without the tested code.
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

    /// Calls and a queue read each block from its position on the device below.
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

    /// Reads in flight, of one range and of several ranges, complete with their own position and data.
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
            assert!(Segmented::new(Arc::clone(&ram), vec![wrong.clone()]).is_err(), "{wrong:?}");
        }
        assert!(Segmented::new(ram, vec![segment(MIB, MIB, &[0])]).is_ok());
    }
}
