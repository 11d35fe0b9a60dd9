//! The maps of GNU tar's sparse files (the GNU tar manual, "Storing Sparse Files").

use super::pax::Wrong;

/// The maximum number of ranges of a file. The map of a file is read into memory, so the length of the map must be limited.
pub(super) const MOST: usize = 1 << 20;
/// The block size of an archive, in bytes.
const BLOCK: usize = 512;

/// Checks a map, and returns its non-empty ranges. The ranges must be in order and within the file, and their total length must be that of
/// the content.
pub(super) fn checked(
    map: &[(u64, u64)],
    size: u64,
    content: u64,
) -> Result<Vec<(u64, u64)>, Wrong> {
    let (mut ranges, mut behind, mut sum) = (Vec::new(), 0_u64, 0_u64);
    for (offset, len) in map.iter().copied() {
        if len == 0 {
            continue;
        }
        let end = offset.checked_add(len).filter(|end| offset >= behind && *end <= size);
        behind = end.ok_or("the ranges of a sparse file overlap or exceed its size")?;
        sum += len;
        ranges.push((offset, len));
    }
    if sum != content {
        return Err("the ranges of a sparse file do not add up to the length of its content");
    }
    Ok(ranges)
}

/// Reads the map that is stored before the content. The map fills blocks of 512 bytes with decimal numbers, one per line. The first number
/// is the number of ranges. `block` returns the next block.
pub(super) fn in_front<E: From<Wrong>>(
    mut block: impl FnMut() -> Result<[u8; 512], E>,
) -> Result<Vec<(u64, u64)>, E> {
    const WRONG: Wrong = "the map of a sparse file is wrong";
    let (mut bytes, mut at) = ([0; 512], 512);
    let mut number = || -> Result<u64, E> {
        let mut value: Option<u64> = None;
        loop {
            if at == bytes.len() {
                (bytes, at) = (block()?, 0);
            }
            let byte = bytes[at];
            at += 1;
            match (byte, value) {
                (b'\n', Some(value)) => return Ok(value),
                (b'0'..=b'9', _) => {
                    let next = value.unwrap_or(0).checked_mul(10);
                    value = next.and_then(|next| next.checked_add(u64::from(byte - b'0')));
                    if value.is_none() {
                        return Err(WRONG.into());
                    }
                }
                _ => return Err(WRONG.into()),
            }
        }
    };
    let count = number()?;
    if count > MOST as u64 {
        return Err("a sparse file has too many ranges".into());
    }
    (0..count).map(|_| Ok((number()?, number()?))).collect()
}

/// The ranges of a file that are written to an archive. The rest of the file is holes.
#[derive(Default)]
pub(crate) struct Written {
    ranges: Vec<(u64, u64)>,
    /// Holes of at most this length are written as zeros.
    gap: u64,
}

impl Written {
    /// Appends a range. If there are more ranges than a reader accepts, the smallest holes are written as zeros.
    pub(crate) fn push(&mut self, start: u64, len: u64) {
        self.push_one(start, len);
        while self.ranges.len() >= MOST {
            self.gap = self.gap.saturating_mul(2).max(BLOCK as u64);
            let ranges = std::mem::take(&mut self.ranges);
            ranges.into_iter().for_each(|(start, len)| self.push_one(start, len));
        }
    }

    fn push_one(&mut self, start: u64, len: u64) {
        match self.ranges.last_mut() {
            Some((begin, last)) if start.saturating_sub(*begin + *last) <= self.gap => {
                *last = start + len - *begin;
            }
            _ => self.ranges.push((start, len)),
        }
    }

    pub(crate) fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    /// Returns the map that is written before the content, padded to blocks. Returns `None` if omitting the holes would save no space.
    pub(crate) fn map(&self, size: u64) -> Option<Vec<u8>> {
        let end = self.ranges.last().map_or(0, |(start, len)| start + len);
        // If the file ends with a hole, the last entry is the size of the file. GNU tar truncates the file to this size.
        let last = (end < size).then_some((size, 0));
        let mut map = format!("{}\n", self.ranges.len() + usize::from(last.is_some()));
        for (start, len) in self.ranges.iter().chain(&last) {
            map.push_str(&format!("{start}\n{len}\n"));
        }
        let mut map = map.into_bytes();
        map.resize(map.len().next_multiple_of(BLOCK), 0);
        let sum: u64 = self.ranges.iter().map(|(_, len)| len).sum();
        (map.len() as u64 + sum < size).then_some(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(map: &[u8]) -> Vec<(u64, u64)> {
        let (blocks, _) = map.as_chunks::<BLOCK>();
        let mut blocks = blocks.iter();
        in_front(|| blocks.next().copied().ok_or("the input has no more blocks")).unwrap()
    }

    #[test]
    fn a_map_is_read_as_it_is_written() {
        for count in [0, 1, 2, 30, 1000] {
            let mut written = Written::default();
            (0..count).for_each(|at| written.push(at << 50, 1000 + at));
            let size = (count << 50) + (1 << 20);
            let map = written.map(size).unwrap();
            let sum = (0..count).map(|at| 1000 + at).sum();
            assert_eq!(checked(&read(&map), size, sum).unwrap(), written.ranges(), "{count}");
        }
        let mut whole = Written::default();
        (0..10).for_each(|at| whole.push(at * 4096, 4096));
        assert_eq!(whole.ranges(), [(0, 40960)]);
        assert!(whole.map(40960).is_none() && whole.map(41000).is_none());
    }

    /// A file never has more ranges than a reader accepts, and the ranges contain all its data.
    #[test]
    fn the_smallest_holes_of_a_file_of_many_are_given_up() {
        let mut written = Written::default();
        let starts = || (0..MOST as u64 + 9).map(|at| at * 2048 + at / 1000 * (1 << 20));
        starts().for_each(|start| written.push(start, 1024));
        let ranges = written.ranges();
        assert!(ranges.len() < MOST && ranges.len() > MOST / 1000);
        let mut within = ranges.iter();
        let mut range = within.next();
        for start in starts() {
            while range.is_some_and(|(begin, len)| begin + len <= start) {
                range = within.next();
            }
            assert!(
                range
                    .is_some_and(|(begin, len)| { *begin <= start && start + 1024 <= begin + len })
            );
        }
    }
}
