//! Stores written data that no flush covers yet. A server that restarts may have lost these data, so the link sends them again after a
//! reconnection.

use std::collections::BTreeMap;

use crate::bio::Memory;

/// The newest data of each range that was written since the last flush, as pieces that do not overlap.
#[derive(Debug, Default)]
pub(super) struct Retained {
    pieces: BTreeMap<u64, Piece>,
    bytes: usize,
    /// The number of flushes that were sent.
    flushes: u64,
}

#[derive(Debug)]
struct Piece {
    data: Vec<u8>,
    /// The number of flushes that had been sent when the write was answered. A flush covers the write only if the flush's number is larger.
    after: u64,
}

impl Retained {
    /// Returns the number of bytes of stored data.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Stores the data of an answered write.
    pub(super) fn keep(&mut self, at: u64, memory: &Memory) {
        let mut data = Vec::with_capacity(memory.len());
        memory.buffers().iter().for_each(|buffer| data.extend_from_slice(buffer));
        self.forget(at, data.len() as u64);
        self.insert(at, data, self.flushes);
    }

    /// Removes the data of a range, because durable data have replaced them or the range was discarded.
    pub(super) fn forget(&mut self, at: u64, len: u64) {
        let end = at.saturating_add(len);
        // A stored piece that begins before the end of the range may overlap the range. The loop examines these pieces from the last to the
        // first.
        while let Some((&start, piece)) = self.pieces.range(..end).next_back() {
            let stop = start + piece.data.len() as u64;
            if stop <= at {
                return;
            }
            let after = piece.after;
            let Some(Piece { mut data, .. }) = self.pieces.remove(&start) else { return };
            self.bytes -= data.len();
            if stop > end {
                self.insert(end, data[(end - start) as usize..].to_vec(), after);
            }
            if start < at {
                data.truncate((at - start) as usize);
                // This call reduces the vector's capacity to its length, because `bytes` counts only the length.
                data.shrink_to_fit();
                self.insert(start, data, after);
            }
        }
    }

    fn insert(&mut self, at: u64, data: Vec<u8>, after: u64) {
        self.bytes += data.len();
        self.pieces.insert(at, Piece { data, after });
    }

    /// The number of the flush that was sent last.
    pub(super) fn begun(&self) -> u64 {
        self.flushes
    }

    /// Records that a flush is sent. Returns the number of the flush.
    pub(super) fn begin_flush(&mut self) -> u64 {
        self.flushes += 1;
        self.flushes
    }

    /// Records that the flush with this number has succeeded.
    pub(super) fn end_flush(&mut self, number: u64) {
        self.pieces.retain(|_, piece| piece.after >= number);
        self.bytes = self.pieces.values().map(|piece| piece.data.len()).sum();
    }

    /// Returns all stored data, divided into parts of at most `max` bytes.
    pub(super) fn parts(&self, max: usize) -> impl Iterator<Item = (u64, &[u8])> {
        self.pieces.iter().flat_map(move |(at, piece)| {
            piece.data.chunks(max).scan(*at, |at, part| {
                let start = *at;
                *at += part.len() as u64;
                Some((start, part))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::Buffer;

    /// The store contains the newest data of each range, except data that a flush covers. The test compares the store with a model that
    /// contains a byte and a flush number for each position.
    #[test]
    fn the_newest_data_of_each_range_are_kept() {
        let mut seed = 0x2545_F491_4F6C_DD1D_u64;
        let mut random = |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        for _ in 0..200 {
            let mut kept = Retained::default();
            let mut model: BTreeMap<u64, (u8, u64)> = BTreeMap::new();
            let mut flushes = 0;
            for step in 0..40u8 {
                let (at, len) = (random(64), 1 + random(16));
                match random(6) {
                    0 => {
                        kept.forget(at, len);
                        model.retain(|byte, _| !(at..at + len).contains(byte));
                    }
                    1 => {
                        flushes = kept.begin_flush();
                    }
                    2 => {
                        kept.end_flush(flushes);
                        model.retain(|_, (_, after)| *after >= flushes);
                    }
                    _ => {
                        let data = vec![step; len as usize];
                        kept.keep(at, &Memory::Flat(Buffer::from(data)));
                        model.extend((at..at + len).map(|byte| (byte, (step, flushes))));
                    }
                }
                let found: Vec<_> =
                    kept.parts(5).flat_map(|(at, part)| (at..).zip(part.iter().copied())).collect();
                let expected: Vec<_> = model.iter().map(|(at, (byte, _))| (*at, *byte)).collect();
                assert_eq!(found, expected);
                assert_eq!(kept.bytes(), model.len());
            }
        }
    }

    /// When newer data replace stored data, the memory of the older data is freed.
    #[test]
    fn kept_writes_take_no_more_memory_than_is_counted() {
        let mut kept = Retained::default();
        for number in 0..200 {
            kept.keep(number * 4096, &Memory::Flat(Buffer::from(vec![1; 1 << 20])));
        }
        let taken: usize = kept.pieces.values().map(|piece| piece.data.capacity()).sum();
        assert!(
            taken <= kept.bytes() + (1 << 20),
            "{taken} bytes of memory for {} bytes of data",
            kept.bytes()
        );
    }
}
