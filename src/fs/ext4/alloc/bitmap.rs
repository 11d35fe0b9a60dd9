//! Searches and changes block and inode bitmaps.

use std::ops::Range;

/// A bitmap for searches: the bitmap on disk, combined with an optional bitmap of kept-back clusters (free clusters that may not be
/// allocated yet). A bit of the combined bitmap is set if it is set in at least one of the two.
#[derive(Clone, Copy)]
pub(in crate::fs::ext4) struct Bits<'a> {
    bytes: &'a [u8],
    kept_back: Option<&'a [u8]>,
}

impl<'a> Bits<'a> {
    /// Combines the bitmap on disk with the bitmap of clusters that may not be allocated yet. Both must have the same length, a multiple of
    /// 8 bytes.
    pub(in crate::fs::ext4) fn new(bytes: &'a [u8], kept_back: Option<&'a [u8]>) -> Self {
        Self { bytes, kept_back }
    }

    fn word(&self, index: usize) -> u64 {
        let word = |bytes: &[u8]| {
            bytes
                .get(index * 8..)
                .and_then(<[u8]>::first_chunk)
                .copied()
                .map_or(!0, u64::from_le_bytes)
        };
        word(self.bytes) | self.kept_back.map_or(0, word)
    }

    /// If `flip` is 0, returns the first set bit in `from..end`. If `flip` is all ones, returns the first clear bit. Returns `end` if there
    /// is no such bit.
    fn next(&self, from: u32, end: u32, flip: u64) -> u32 {
        let mut at = from;
        while at < end {
            let word = (self.word(at as usize / 64) ^ flip) >> (at % 64);
            if word != 0 {
                return end.min(at + word.trailing_zeros());
            }
            at = (at | 63) + 1;
        }
        end
    }

    /// The first clear bit from `from` on; `end` if there is none.
    pub(in crate::fs::ext4) fn next_clear(&self, from: u32, end: u32) -> u32 {
        self.next(from, end, !0)
    }

    /// The first set bit from `from` on; `end` if there is none.
    pub(in crate::fs::ext4) fn next_set(&self, from: u32, end: u32) -> u32 {
        self.next(from, end, 0)
    }

    /// The runs of clear bits within a range, in order.
    pub(in crate::fs::ext4) fn runs(self, range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let start = self.next_clear(at, range.end);
            at = self.next_set(start, range.end);
            (start < at).then_some(start..at)
        })
    }

    /// The number of clear bits in a range.
    pub(in crate::fs::ext4) fn clear_bits(&self, range: Range<u32>) -> u32 {
        self.runs(range).map(|run| run.end - run.start).sum()
    }

    /// Whether all bits of a range are set.
    pub(in crate::fs::ext4) fn is_set(&self, range: Range<u32>) -> bool {
        self.next_clear(range.start, range.end) == range.end
    }
}

/// The bytes that contain a range of bits: for each byte, its index, and a mask of the bits that belong to the range.
fn masks(range: Range<u32>) -> impl Iterator<Item = (usize, u8)> {
    let bytes = range.start / 8..range.end.div_ceil(8);
    bytes.map(move |byte| {
        let low = range.start.saturating_sub(byte * 8);
        let high = (range.end - byte * 8).min(8);
        (byte as usize, (0xFF_u16 << low) as u8 & (0xFF_u16 >> (8 - high)) as u8)
    })
}

/// Sets a range of bits. Bits outside the bitmap are ignored.
pub(in crate::fs::ext4) fn set(bytes: &mut [u8], range: Range<u32>) {
    for (byte, mask) in masks(range) {
        if let Some(byte) = bytes.get_mut(byte) {
            *byte |= mask;
        }
    }
}

/// Clears a range of bits.
pub(in crate::fs::ext4) fn clear(bytes: &mut [u8], range: Range<u32>) {
    for (byte, mask) in masks(range) {
        if let Some(byte) = bytes.get_mut(byte) {
            *byte &= !mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_set_found_and_cleared_bit_by_bit() {
        for (start, end) in
            [(0, 1), (0, 8), (3, 5), (7, 9), (8, 16), (1, 127), (63, 65), (64, 128), (0, 128)]
        {
            let mut bytes = [0; 16];
            set(&mut bytes, start..end);
            let one = |bit: u32| bytes[bit as usize / 8] >> (bit % 8) & 1 == 1;
            assert!((0..128).all(|bit| one(bit) == (start..end).contains(&bit)), "{start}..{end}");
            let bits = Bits::new(&bytes, None);
            assert_eq!(bits.next_set(0, 128), start);
            assert_eq!(bits.next_clear(start, 128), end);
            assert!(bits.is_set(start..end));
            assert_eq!(bits.clear_bits(0..128), 128 - (end - start));
            let runs: Vec<_> = bits.runs(0..128).collect();
            let expected: Vec<_> =
                [0..start, end..128].into_iter().filter(|run| !run.is_empty()).collect();
            assert_eq!(runs, expected);
            clear(&mut bytes, start..end);
            assert_eq!(bytes, [0; 16]);
        }
    }

    #[test]
    fn a_reserved_bit_counts_as_set() {
        let mut kept = [0; 16];
        set(&mut kept, 10..20);
        let bits = Bits::new(&[0; 16], Some(&kept));
        assert_eq!(bits.runs(0..128).collect::<Vec<_>>(), [0..10, 20..128]);
        assert_eq!(bits.next_clear(12, 18), 18);
    }
}
