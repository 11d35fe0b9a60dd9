//! Batches of reads by a reader, without a search.

use std::time::{Duration, Instant};

use diskann::{ANNError, ANNResult};
use diskann_disk::search::provider::aligned_file_reader::AlignedRead;
use diskann_disk::search::provider::aligned_file_reader::traits::{
    AlignedFileReader, AlignedReaderFactory,
};
use ironmap::Buffer;

use crate::dataset::Random;
use crate::search::cpu_time;

/// The number of reads in a batch: the width of the beam in diskann-benchmark.
pub const BEAM: usize = 4;

/// The bytes of a read: a block of an index.
const BLOCK: usize = 4096;
const SEED: u64 = 11;

/// Batches that were carried out.
#[derive(Debug)]
pub struct Reading {
    /// The duration.
    pub time: Duration,
    /// The time on processors of all threads of this process.
    pub cpu: Duration,
    /// A sum over a part of each block. Readers of the same file must agree.
    pub sum: u64,
}

/// Carries out a number of batches.
pub type Reads = Box<dyn Fn(usize) -> ANNResult<Reading>>;

/// Reads random blocks of a file of `size` bytes, by one thread. The positions are the same in each call.
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
        // The first batch may open a ring, so it is not measured.
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
