//! Cuts ranges of bytes out of the buffers of a request. A position counts the bytes of all buffers together.

use std::io::{IoSlice, IoSliceMut};
use std::ops::{Deref, DerefMut, Range};

use smallvec::SmallVec;

/// Buffers for a vectored transfer.
pub(crate) type Slices<'a> = SmallVec<[IoSlice<'a>; 4]>;

/// Buffers to be filled by a vectored transfer.
pub(crate) type SlicesMut<'a> = SmallVec<[IoSliceMut<'a>; 2]>;

/// The parts of buffers that contain the bytes of a range.
pub(crate) fn within(
    bufs: &[impl Deref<Target = [u8]>],
    range: Range<usize>,
) -> impl Iterator<Item = &[u8]> {
    let mut cutter = Cutter::new(range);
    bufs.iter().filter_map(move |buf| {
        let part = cutter.next(buf.len());
        (!part.is_empty()).then(|| &buf[part])
    })
}

/// The writable parts of buffers that contain the bytes of a range.
pub(crate) fn within_mut(
    bufs: &mut [impl DerefMut<Target = [u8]>],
    range: Range<usize>,
) -> impl Iterator<Item = &mut [u8]> {
    let mut cutter = Cutter::new(range);
    bufs.iter_mut().filter_map(move |buf| {
        let part = cutter.next(buf.len());
        (!part.is_empty()).then(|| &mut buf[part])
    })
}

/// The bytes of a range, as buffers from which a transfer reads.
pub(crate) fn cut<'b>(bufs: &'b [impl Deref<Target = [u8]>], range: Range<usize>) -> Slices<'b> {
    within(bufs, range).map(IoSlice::new).collect()
}

/// The bytes of a range, as buffers that a transfer fills.
pub(crate) fn cut_mut<'b>(
    bufs: &'b mut [impl DerefMut<Target = [u8]>],
    range: Range<usize>,
) -> SlicesMut<'b> {
    within_mut(bufs, range).map(IoSliceMut::new).collect()
}

/// Computes for each buffer in turn which of its bytes belong to a range.
struct Cutter {
    range: Range<usize>,
    /// The position of the next buffer's first byte.
    start: usize,
}

impl Cutter {
    fn new(range: Range<usize>) -> Self {
        Self { range, start: 0 }
    }

    #[inline]
    fn next(&mut self, len: usize) -> Range<usize> {
        let (start, end) = (self.start, self.start + len);
        self.start = end;
        self.range.start.clamp(start, end) - start..self.range.end.clamp(start, end) - start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same range contains the same bytes for every division of the memory into buffers. The test divides ten bytes into three buffers
    /// in every possible way.
    #[test]
    fn a_range_is_the_same_however_the_memory_is_divided() {
        let whole: Vec<u8> = (0..10).collect();
        for (first, second) in (0..=10).flat_map(|a| (a..=10).map(move |b| (a, b))) {
            let bufs = [&whole[..first], &whole[first..second], &whole[second..]];
            for (start, end) in (0..=10).flat_map(|a| (a..=12).map(move |b| (a, b))) {
                let found: Vec<u8> =
                    cut(&bufs, start..end).iter().flat_map(|b| b.to_vec()).collect();
                assert_eq!(found, whole[start..end.min(10)], "{first} {second} {start}..{end}");
                let mut copies = bufs.map(<[u8]>::to_vec);
                cut_mut(&mut copies, start..end).iter_mut().for_each(|buf| buf.fill(99));
                let expected: Vec<u8> = (0..10)
                    .map(|at| if (start..end).contains(&at) { 99 } else { at as u8 })
                    .collect();
                assert_eq!(copies.concat(), expected, "{first} {second} {start}..{end}");
            }
        }
    }
}
