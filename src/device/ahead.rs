//! Reads ranges of a device before a check needs them, so that the check does not wait for each block. The requests of all ranges are in
//! flight together, and adjacent ranges share a request.

use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{BoundedQueue, Device, DeviceQueue, LentPart, QueueOptions};
use crate::bio::{BioFlags, Dev};
use crate::sorting::Sorting;
use crate::sys::Buffer;
use crate::units::DevOffset;

/// The maximum number of bytes that one call reads. Callers split their work into batches of this size.
pub(crate) const BATCH: u64 = 4 << 20;
/// The maximum length of one request in bytes.
const LONGEST: u64 = 1 << 20;
/// Two ranges share a request if the gap between them is at most this number of bytes.
const GAP: u64 = 16 << 10;

/// The ranges that the last call of [`read`](Self::read) read.
#[derive(Default)]
pub(crate) struct Ahead {
    /// The ranges in memory, sorted by position and without overlaps.
    runs: Vec<Run>,
    /// Unused buffers of `LONGEST` bytes. Without this pool, the kernel would map and zero new memory for each request.
    free: Vec<Buffer>,
}

/// A device and a queue of this device. The first read creates the queue. Only one thread uses it.
pub(crate) struct AheadQueue<'d> {
    device: &'d dyn Device,
    queue: Option<BoundedQueue>,
}

impl<'d> AheadQueue<'d> {
    pub(crate) fn new(device: &'d dyn Device) -> Self {
        Self { device, queue: None }
    }
}

struct Run {
    start: u64,
    buffer: Arc<Buffer>,
}

impl Ahead {
    /// Reads ranges of bytes, given in any order, and forgets the ranges of the previous call. If the ranges together exceed `BATCH` bytes,
    /// the excess ranges are not read. A failed read is ignored: a caller that needs the data repeats the read and gets the error.
    pub(crate) fn read(&mut self, to: &mut AheadQueue<'_>, mut ranges: Vec<Range<u64>>) {
        self.clear();
        ranges.order_by_key(|range| range.start);
        let requests = requests(&ranges, to.device.size());
        if requests.is_empty() {
            return;
        }
        if to.queue.is_none() {
            to.queue = to.device.queue(&QueueOptions::new()).ok();
        }
        let Some(queue) = &mut to.queue else { return };
        let free = &mut self.free;
        let mut runs: Vec<_> = requests
            .into_iter()
            .filter_map(|range| {
                let len = range.end - range.start;
                let kept = if len == LONGEST { free.pop() } else { None };
                Some((range.start, kept.or_else(|| Buffer::aligned(len as usize).ok())?))
            })
            .collect();
        let mut parts: Vec<_> = runs
            .iter_mut()
            .map(|(start, buffer)| {
                let bufs = SmallVec::from_iter([IoSliceMut::new(buffer)]);
                LentPart::new(bufs, DevOffset(*start))
            })
            .collect();
        queue.read_parts_now(Dev::OWN, &mut parts, BioFlags::empty());
        let is_whole: Vec<_> = parts.iter().map(|part| part.result == Ok(part.len())).collect();
        drop(parts);
        let whole = runs.into_iter().zip(is_whole).filter(|(_, is_whole)| *is_whole);
        self.runs =
            whole.map(|((start, buffer), _)| Run { start, buffer: Arc::new(buffer) }).collect();
    }

    /// Forgets all ranges. Memory that a caller still uses stays valid.
    pub(crate) fn clear(&mut self) {
        let unused = self.runs.drain(..).filter_map(|run| Arc::try_unwrap(run.buffer).ok());
        self.free.extend(unused.filter(|buffer| buffer.len() as u64 == LONGEST));
    }

    /// Returns the memory that contains a range of the device, and the offset of the range in this memory. Returns `None` if the range was
    /// not read.
    pub(crate) fn get(&self, at: u64, len: usize) -> Option<(&Arc<Buffer>, usize)> {
        let index = self.runs.partition_point(|run| run.start <= at).checked_sub(1)?;
        let Run { start, buffer } = &self.runs[index];
        let offset = usize::try_from(at - start).ok()?;
        (offset.checked_add(len)? <= buffer.len()).then_some((buffer, offset))
    }
}

/// Combines sorted ranges into requests within a device of `size` bytes.
fn requests(ranges: &[Range<u64>], size: u64) -> Vec<Range<u64>> {
    let mut requests: Vec<Range<u64>> = Vec::new();
    let mut left = BATCH;
    for range in ranges {
        let (mut start, end) = (range.start, range.end.min(size));
        if let Some(last) = requests.last_mut() {
            let begin = last.start;
            start = start.max(last.end);
            if start < end && start - last.end <= GAP && last.end - begin < LONGEST {
                let until = end.min(begin + LONGEST);
                left = left.saturating_sub(until - last.end);
                last.end = until;
                start = until;
            }
        }
        while start < end && left > 0 {
            let len = (end - start).min(LONGEST);
            left = left.saturating_sub(len);
            requests.push(start..start + len);
            start += len;
        }
        if left == 0 {
            break;
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Ram;

    /// Each requested byte within the device is covered by a request, up to the batch limit. Requests are sorted, do not overlap, and do
    /// not exceed the length limit.
    #[test]
    fn requests_cover_the_ranges() {
        let size = 8 << 20;
        let ranges = [0..4096, 4096..8192, 20_480..24_576, 24_000..25_000, 1 << 20..3 << 20];
        let found = requests(&ranges, size);
        assert_eq!(found, [0..25_000, 1 << 20..2 << 20, 2 << 20..3 << 20]);
        let past = size - 4096..size + 4096;
        assert_eq!(requests(std::slice::from_ref(&past), size), vec![size - 4096..size; 1]);
        let all = requests(std::slice::from_ref(&(0..u64::MAX)), size);
        assert_eq!(all.iter().map(|range| range.end - range.start).sum::<u64>(), BATCH);
        assert!(all.iter().all(|range| range.end - range.start <= LONGEST));
    }

    /// A range returns the bytes of the device, even if it was read into a buffer that held an earlier range.
    #[test]
    fn ranges_contain_the_bytes_of_the_device() {
        let size = 6 << 20;
        let device = Ram::new(size);
        let mut content = Buffer::aligned(size as usize).unwrap();
        for (index, word) in content.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(index as u64).to_le_bytes());
        }
        device.write_all_at(&[std::io::IoSlice::new(&content)], DevOffset(0), false).unwrap();
        let (mut ahead, mut queue) = (Ahead::default(), AheadQueue::new(&device));
        for base in [0, 1 << 20, 2 << 20] {
            ahead.read(&mut queue, vec![base + 8192..base + 12_288, base..base + (2 << 20)]);
            for at in [base, base + 4096, base + (1 << 20) - 512, base + (2 << 20) - 512] {
                let within =
                    |(buffer, offset): (&Arc<Buffer>, usize)| buffer[offset..][..512].to_vec();
                let found = ahead.get(at, 512).map(within);
                assert_eq!(found.as_deref(), Some(&content[at as usize..][..512]), "at {at}");
            }
            assert!(ahead.get(base + (2 << 20), 512).is_none());
        }
    }
}
