//! A large set of bits, and its comparison with a bitmap on the device.

use std::ops::Range;

const WORD: u64 = u64::BITS as u64;

/// A set of numbered bits, all initially 0.
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn new(count: u64) -> Self {
        // One more word than the bits need. A 64-bit read is thus possible at any bit position.
        Self(vec![0; count.div_ceil(WORD) as usize + 1])
    }

    /// Sets a bit. Returns its previous value.
    pub(super) fn set(&mut self, at: u64) -> bool {
        let (word, mask) = (&mut self.0[(at / WORD) as usize], 1 << (at % WORD));
        let before = *word & mask != 0;
        *word |= mask;
        before
    }

    pub(super) fn get(&self, at: u64) -> bool {
        self.0[(at / WORD) as usize] >> (at % WORD) & 1 == 1
    }

    /// Sets all bits of a range. Returns the first run of bits that were already set.
    pub(super) fn set_range(&mut self, range: Range<u64>) -> Option<Range<u64>> {
        let mut clash: Option<Range<u64>> = None;
        let mut at = range.start;
        while at < range.end {
            let (index, shift) = ((at / WORD) as usize, at % WORD);
            let count = (WORD - shift).min(range.end - at);
            let before = self.0[index] >> shift & mask(count);
            self.0[index] |= mask(count) << shift;
            if clash.is_none() && before != 0 {
                let first = at + u64::from(before.trailing_zeros());
                clash = Some(first..first);
            }
            // The run of bits that were already set may continue in this word. If so, it is extended by the bits of this word that were set
            // before the call.
            if let Some(run) = clash.as_mut().filter(|run| run.end >= at) {
                let ones = (!(before >> (run.end - at))).trailing_zeros();
                run.end = (run.end + u64::from(ones)).min(at + count);
            }
            at += count;
        }
        clash
    }

    /// The 64 bits from `at` on.
    fn word(&self, at: u64) -> u64 {
        let (index, shift) = ((at / WORD) as usize, at % WORD);
        match shift {
            0 => self.0[index],
            _ => self.0[index] >> shift | self.0[index + 1] << (WORD - shift),
        }
    }

    /// The number of set bits in a range.
    pub(super) fn count(&self, range: Range<u64>) -> u64 {
        let words = range.clone().step_by(WORD as usize);
        words.map(|at| u64::from((self.word(at) & mask(range.end - at)).count_ones())).sum()
    }

    /// The runs of differences between a bitmap on disk and `count` bits of the set from `at` on. For each run, returns its range in the
    /// bitmap, and whether the bits are set in the bitmap.
    pub(super) fn differences(
        &self,
        at: u64,
        count: u64,
        bitmap: &[u8],
    ) -> Vec<(Range<u64>, bool)> {
        let mut runs: Vec<(Range<u64>, bool)> = Vec::new();
        for (index, start) in (0..count).step_by(WORD as usize).enumerate() {
            let stored = word_of(bitmap, index);
            let mut different = (self.word(at + start) ^ stored) & mask(count - start);
            while different != 0 {
                let bit = u64::from(different.trailing_zeros());
                different &= different - 1;
                let (place, set) = (start + bit, stored >> bit & 1 == 1);
                match runs.last_mut() {
                    Some((run, same)) if run.end == place && *same == set => run.end += 1,
                    _ => runs.push((place..place + 1, set)),
                }
            }
        }
        runs
    }
}

/// A mask of the lowest `count` bits, at most 64.
fn mask(count: u64) -> u64 {
    if count >= WORD { !0 } else { (1 << count) - 1 }
}

/// The 64 bits at an index of a bitmap on disk. Bits past the bitmap's end are ones.
fn word_of(bitmap: &[u8], index: usize) -> u64 {
    let mut bytes = [0xFF; 8];
    let rest = bitmap.get(index * 8..).unwrap_or_default();
    let len = rest.len().min(8);
    bytes[..len].copy_from_slice(&rest[..len]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operations on ranges give the same result as operations on single bits, at each offset in a word.
    #[test]
    fn ranges_are_as_single_bits() {
        for start in [0, 1, 63, 64, 65, 100] {
            for len in [0, 1, 63, 64, 65, 200] {
                let (mut whole, mut single) = (Bits::new(400), Bits::new(400));
                assert_eq!(whole.set_range(start..start + len), None);
                for at in start..start + len {
                    assert!(!single.set(at));
                }
                assert_eq!(whole.0, single.0, "{start}+{len}");
                assert_eq!(whole.count(0..400), len);
                assert_eq!(whole.count(start..start + len / 2), len / 2);
                let clash = (len > 2).then(|| start + 1..start + len - 1);
                let within = start + 1..(start + len).max(start + 2) - 1;
                assert_eq!(whole.set_range(within), clash);
            }
        }
    }

    /// Each run of differences states whether its bits are set on disk, even in a group whose bits do not begin at a word boundary.
    #[test]
    fn differences_are_runs() {
        let mut bits = Bits::new(300);
        bits.set_range(37..57);
        let mut bitmap = vec![0; 16];
        bitmap[0] = 0b1111_1000;
        bitmap[9] = 1;
        let expected = vec![(0..3, false), (8..20, false), (72..73, true)];
        assert_eq!(bits.differences(37, 100, &bitmap), expected);
    }
}
