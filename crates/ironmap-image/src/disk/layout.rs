//! Determines the positions of the partitions on the disk: one after another, at multiples of 1 MiB.

use std::ops::Range;

use ironmap::partition::{ALIGNMENT, usable};

use crate::failure::Failure;

/// The lengths of partitions are multiples of this number of bytes, the common size of file-system blocks and memory pages.
pub(super) const UNIT: u64 = 4096;

/// Returns the size of a disk that has no more space than its partitions need.
pub(super) fn smallest_disk(lengths: &[Option<u64>]) -> u64 {
    // The partition table is in the first MiB of the disk, and the backup of the table is in the last MiB.
    aligned(lengths).saturating_add(2 * ALIGNMENT)
}

/// Returns the sum of the known lengths, each rounded up to the alignment of partitions.
fn aligned(lengths: &[Option<u64>]) -> u64 {
    let lengths = lengths.iter().flatten();
    let lengths = lengths.map(|len| len.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX));
    lengths.fold(0, u64::saturating_add)
}

/// Returns the range of each partition on a disk of `size` bytes. A length of `None` stands for the rest of the disk. At most one partition
/// may have this length.
///
/// # Errors
/// Fails if the disk is too small.
pub(super) fn place(
    lengths: &[Option<u64>],
    size: u64,
    sector: u64,
) -> Result<Vec<Range<u64>>, Failure> {
    let small = || {
        let enough = smallest_disk(lengths).div_ceil(ALIGNMENT);
        Failure::no_space(format!(
            "the disk has {}M, but its partitions need at least {enough}M",
            size / ALIGNMENT
        ))
    };
    let end = usable(size, sector).ok_or_else(small)?.end / UNIT * UNIT;
    let (mut at, mut ranges) = (ALIGNMENT, Vec::new());
    for (index, len) in lengths.iter().enumerate() {
        let rest = || {
            // The partition that fills the rest of the disk must leave this space for the partitions after it.
            let after = aligned(&lengths[index + 1..]);
            let until = end / ALIGNMENT * ALIGNMENT;
            until.checked_sub(after)?.checked_sub(at).filter(|len| *len >= UNIT)
        };
        let len = len.or_else(rest);
        let range = len.and_then(|len| Some(at..at.checked_add(len)?));
        let range = range.filter(|range| range.end <= end).ok_or_else(small)?;
        at = range.end.next_multiple_of(ALIGNMENT);
        ranges.push(range);
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Partitions begin at multiples of 1 MiB. A partition that fills the rest of the disk ends before the next partition, or before the
    /// backup of the partition table.
    #[test]
    fn the_rest_fills_the_disk() {
        let lengths = [Some(5 * MIB + UNIT), None, Some(MIB)];
        let placed = place(&lengths, 64 * MIB, 512).unwrap();
        assert_eq!(placed, [MIB..6 * MIB + UNIT, 7 * MIB..62 * MIB, 62 * MIB..63 * MIB]);
        let placed = place(&[None], 64 * MIB, 512).unwrap();
        assert_eq!(placed[0], MIB..63 * MIB);
        // The smallest disk has space for the partitions, and a smaller disk does not.
        let lengths = [Some(5 * MIB), Some(UNIT)];
        let size = smallest_disk(&lengths);
        assert_eq!(size, 8 * MIB);
        assert!(place(&lengths, size, 4096).is_ok());
        for size in [0, 4096, MIB, 6 * MIB] {
            let error = place(&lengths, size, 512).unwrap_err().to_string();
            assert!(error.contains("need at least 8M"), "{error}");
        }
        assert!(place(&[Some(u64::MAX - UNIT)], 64 * MIB, 512).is_err());
    }
}
