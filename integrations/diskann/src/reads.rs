//! Measures a reader with batches of reads, without a search.

use std::time::{Duration, Instant};

use diskann::{ANNError, ANNResult};
use diskann_disk::search::provider::aligned_file_reader::AlignedRead;
use diskann_disk::search::provider::aligned_file_reader::traits::{
    AlignedFileReader, AlignedReaderFactory,
};
use ironmap::Buffer;

use crate::dataset::Random;
use crate::search::cpu_time;

/// The number of reads in a batch. It equals the beam width in diskann-benchmark.
pub const BEAM: usize = 4;

/// The length of a read in bytes: one block of an index.
const BLOCK: usize = 4096;
const SEED: u64 = 11;

/// The measurement of some batches.
#[derive(Debug)]
pub struct Reading {
    /// The elapsed time.
    pub time: Duration,
    /// The CPU time of all threads of this process.
    pub cpu: Duration,
    /// A hash over a part of each block. All readers of the same file must return the same hash.
    pub sum: u64,
}

/// A function that carries out this number of batches.
pub type Reads = Box<dyn Fn(usize) -> ANNResult<Reading>>;

/// Returns a function that reads random blocks of a file of `size` bytes in one thread. Each call reads the same positions.
pub fn reads_by<F: AlignedReaderFactory + 'static>(factory: F, size: u64) -> Reads {
    let blocks = size / BLOCK as u64;
    Box::new(move |batches| {
        let mut reader = factory.build()?;
        let mut memory = Buffer::aligned(BEAM * BLOCK).map_err(ANNError::new)?;
        let mut random = Random::new(SEED);
        let mut batch = |memory: &mut [u8]| -> ANNResult<()> {
            let reads = memory.chunks_mut(BLOCK);
            let reads =
                reads.map(|block| AlignedRead::new(random.next() % blocks * BLOCK as u64, block));
            reader.read(&mut reads.collect::<ANNResult<Vec<_>>>()?)
        };
        // The first batch may create a ring, so it is not measured.
        batch(&mut memory)?;
        let (start, cpu, mut sum) = (Instant::now(), cpu_time()?, 0_u64);
        for _ in 0..batches {
            batch(&mut memory)?;
            sum = memory
                .chunks(BLOCK)
                .fold(sum, |sum, block| sum.rotate_left(5) ^ u64::from(block[0]));
        }
        Ok(Reading { time: start.elapsed(), cpu: cpu_time()? - cpu, sum })
    })
}
