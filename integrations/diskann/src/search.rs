//! Searches an index as diskann-benchmark does. Any reader can be used.

use std::time::{Duration, Instant};

use diskann::{ANNError, ANNResult};
use diskann_disk::data_model::{AdHoc, CachingStrategy};
use diskann_disk::search::provider::aligned_file_reader::traits::AlignedReaderFactory;
use diskann_disk::search::provider::disk_provider::DiskIndexSearcher;
use diskann_disk::search::provider::disk_vertex_provider_factory::DiskVertexProviderFactory;
use diskann_disk::search::search_mode::SearchMode;
use diskann_disk::storage::disk_index_reader::DiskIndexReader;
use diskann_disk::utils::QueryStatistics;
use diskann_providers::storage::{FileStorageProvider, get_compressed_pq_file, get_pq_pivot_file};
use diskann_providers::utils::create_thread_pool;
use diskann_vector::distance::Metric;
use rayon::prelude::*;
use rustix::time::{ClockId, clock_gettime};

use crate::dataset::DIM;

/// The parameters of a search.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// The length of the search list.
    pub l: u32,
    /// The number of neighbours that a query returns.
    pub k: u32,
    /// The number of nodes that are read in one batch.
    pub beam: usize,
}

/// The answer to a query: for each neighbour, its identifier and the bits of its distance.
pub type Answer = Vec<(u32, u32)>;

/// The results of one round, in which each query is carried out once.
#[derive(Debug)]
pub struct Round {
    /// The answer to each query.
    pub answers: Vec<Answer>,
    /// The statistics that DiskANN returns for each query.
    pub statistics: Vec<QueryStatistics>,
    /// The elapsed time of the round.
    pub time: Duration,
    /// The CPU time of all threads of this process.
    pub cpu: Duration,
}

/// A function that carries out queries. The slice contains the query vectors one after the other.
pub type Search = Box<dyn Fn(&[f32], Parameters) -> ANNResult<Round>>;

/// Loads the part of an index that DiskANN keeps in memory during searches.
///
/// # Errors
/// The errors of DiskANN.
pub fn load(prefix: &str) -> ANNResult<DiskIndexReader> {
    let (pivots, compressed) = (get_pq_pivot_file(prefix), get_compressed_pq_file(prefix));
    DiskIndexReader::new(pivots, compressed, &FileStorageProvider)
}

/// Opens an index for searches with `threads` threads. No nodes are cached.
///
/// # Errors
/// The errors of DiskANN and of the reader.
pub fn search_by<F: AlignedReaderFactory + 'static>(
    index: &DiskIndexReader,
    factory: F,
    threads: usize,
) -> ANNResult<Search> {
    let vertices = DiskVertexProviderFactory::new(factory, CachingStrategy::None)?;
    let searcher = DiskIndexSearcher::<AdHoc<f32>, _>::new(
        threads,
        usize::MAX,
        index,
        vertices,
        Metric::L2,
        None,
    )?;
    let pool = create_thread_pool(threads)?;
    Ok(Box::new(move |queries, Parameters { l, k, beam }| {
        let (start, cpu) = (Instant::now(), cpu_time()?);
        let search = |query| searcher.search(query, k, l, Some(beam), SearchMode::graph());
        let found =
            pool.install(|| queries.par_chunks(DIM).map(search).collect::<ANNResult<Vec<_>>>())?;
        let (time, cpu) = (start.elapsed(), cpu_time()? - cpu);
        let statistics = found.iter().map(|result| result.stats.query_statistics.clone()).collect();
        let answers = found.iter().map(|result| {
            let items = result.results.iter();
            items.map(|item| (item.vertex_id, item.distance.to_bits())).collect()
        });
        Ok(Round { answers: answers.collect(), statistics, time, cpu })
    }))
}

/// The CPU time of all threads of this process, in user mode and in the kernel.
pub(crate) fn cpu_time() -> ANNResult<Duration> {
    clock_gettime(ClockId::ProcessCPUTime).try_into().map_err(ANNError::new)
}

/// The mean recall, between 0 and 1: for each query, the share of the `k` nearest vectors of `base` that its answer contains.
#[must_use]
pub fn recall(base: &[f32], queries: &[f32], answers: &[Answer], k: usize) -> f64 {
    let found: usize = queries
        .par_chunks(DIM)
        .zip(answers)
        .map(|(query, answer)| {
            let nearest = nearest(base, query, k);
            answer.iter().filter(|(id, _)| nearest.contains(id)).count()
        })
        .sum();
    found as f64 / (queries.len() / DIM * k) as f64
}

/// Finds the `k` nearest vectors of a query. Compares the query with all vectors.
fn nearest(base: &[f32], query: &[f32], k: usize) -> Vec<u32> {
    let distance =
        |vector: &[f32]| vector.iter().zip(query).map(|(a, b)| (a - b) * (a - b)).sum::<f32>();
    let mut all: Vec<_> = (0..).zip(base.chunks(DIM).map(distance)).collect();
    all.select_nth_unstable_by(k - 1, |(_, a), (_, b)| a.total_cmp(b));
    all[..k].iter().map(|(id, _): &(u32, f32)| *id).collect()
}
