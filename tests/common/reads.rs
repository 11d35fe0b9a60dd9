//! The ranges of a file to read, and their expected content.

use std::fs::File;
use std::hash::Hasher;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;

use super::rng::Rng;

/// A read of a file, and the result of the oracle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) pos: u64,
    pub(crate) len: usize,
    /// The number of bytes that the oracle read. At the end of the file, it is smaller than the requested number.
    pub(crate) count: usize,
    pub(crate) hash: u64,
}

/// The number of ranges of a file that are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depth {
    /// The number of ranges at random positions, with random lengths and alignments.
    pub(crate) random: usize,
    /// The maximum number of data ranges (ranges between holes) that are read. A file can have thousands of them.
    pub(crate) stretches: usize,
}

/// The maximum size of the memory for one read.
const PIECE: u64 = 1 << 20;
/// The maximum distance in bytes between the start of a read and a border between data and a hole.
const EDGE: u64 = 5000;

/// Reads a file with the oracle: data ranges, the borders between data and holes, the end of the file, and random ranges.
pub(crate) fn plan(file: &File, size: u64, depth: Depth, seed: u64) -> Vec<Read> {
    let rng = &mut Rng::new(seed ^ size);
    let mut ranges = Vec::new();
    let mut pos = 0;
    for _ in 0..depth.stretches {
        // ENXIO means that there are no data after this position.
        let Ok(data) = rustix::fs::seek(file, SeekFrom::Data(pos)) else { break };
        let hole = rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap_or(size);
        for edge in [data, hole] {
            let start = edge.saturating_sub(rng.below(EDGE));
            ranges.push((start, edge - start + rng.below(EDGE)));
        }
        let mut piece = data;
        while piece < hole {
            ranges.push((piece, PIECE.min(hole - piece)));
            piece += PIECE;
        }
        pos = hole;
    }
    if size > 0 {
        ranges.extend([(size - 1, 10), (size, 10), (size + rng.below(1 << 20), 1)]);
    }
    for _ in 0..depth.random {
        let pos = rng.below(size);
        // The lengths are chosen so that reads within one block are as frequent as reads across many blocks.
        let bits = 1 + rng.below(16);
        ranges.push((pos, 1 + rng.below(1 << bits)));
        let aligned = pos & !4095;
        ranges.push((aligned, 4096 << rng.below(4)));
    }
    let mut buf = vec![0; PIECE as usize + EDGE as usize];
    let read = |(pos, len): (u64, u64)| {
        let buf = &mut buf[..len as usize];
        let count = read_full(file, buf, pos);
        Read { pos, len: len as usize, count, hash: hash(&buf[..count]) }
    };
    ranges.into_iter().map(read).collect()
}

/// Reads until the buffer is full or the file ends.
fn read_full(file: &File, buf: &mut [u8], pos: u64) -> usize {
    let mut done = 0;
    loop {
        match file.read_at(&mut buf[done..], pos + done as u64).expect("read by the oracle") {
            0 => return done,
            count => done += count,
        }
    }
}

pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}
