//! The figures of a launch, which is one run of the benchmark in one process: the measurements of each thread, and their results.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::source::Source;

/// The results for one target, such as a file or a device, in one run of the benchmark.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// Nanoseconds per request: the median over the chunks. A chunk is a fixed number of requests.
    pub ns: f64,
    /// Nanoseconds per request in the fastest chunk.
    pub ns_best: f64,
    /// The speed relative to the first target: the median over the rounds. In a round, each target runs one chunk of requests.
    pub ratio: f64,
    /// The CPU time of the thread per request, in nanoseconds.
    pub cpu_ns: f64,
    /// The median latency in nanoseconds, measured in a separate pass. 0 if there was no such pass.
    pub p50: u64,
    /// The 99th percentile of the latency.
    pub p99: u64,
    /// The 99.9th percentile of the latency.
    pub p99_9: u64,
    /// The engine that served the requests.
    pub engine: String,
    /// Facts that explain the figures.
    pub notices: Vec<String>,
    /// Counters of the library, by name.
    pub counters: Vec<(String, u64)>,
}

/// The measurements of one thread for one target, such as a file or a device.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) chunks: Vec<Chunk>,
    /// The time of the final sync of all files, in nanoseconds.
    pub(crate) sync_ns: u64,
    pub(crate) latency: Option<Histogram<u64>>,
    pub(crate) counters: Vec<(&'static str, u64)>,
}

/// A thread's requests to one target in one round: their number, their start and end in nanoseconds since the benchmark began, and their
/// CPU time.
#[derive(Clone, Copy)]
pub(crate) struct Chunk {
    pub(crate) requests: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) cpu_ns: u64,
}

/// The figures of one target over all threads.
pub(crate) fn measured(
    plan: &Plan,
    jobs: &[Vec<Tally>],
    source: &Source,
    index: usize,
) -> Measured {
    let (first, own) = (speeds(plan, jobs, 0), speeds(plan, jobs, index));
    let tallies: Vec<&Tally> = jobs.iter().map(|job| &job[index]).collect();
    let quantile =
        |q| tallies[0].latency.as_ref().map_or(0, |latency| latency.value_at_quantile(q));
    let mut counters: Vec<(String, u64)> = Vec::new();
    for (name, count) in tallies.iter().flat_map(|tally| tally.counters.iter().copied()) {
        match counters.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += count,
            None => counters.push((name.to_owned(), count)),
        }
    }
    let mut notices = source.notices.clone();
    let served = counters.iter().find(|(name, _)| name == "kernel_served");
    notices.extend(served.map(|(_, count)| format!("the kernel served {count} reads")));
    Measured {
        ns: 1.0 / median(own.iter().copied()),
        ns_best: 1.0 / own.iter().copied().fold(f64::MIN_POSITIVE, f64::max),
        ratio: median(own.iter().zip(&first).map(|(own, first)| own / first)),
        cpu_ns: median(
            tallies
                .iter()
                .flat_map(|tally| tally.chunks.iter())
                .map(|chunk| chunk.cpu_ns as f64 / chunk.requests as f64),
        ),
        p50: quantile(0.5),
        p99: quantile(0.99),
        p99_9: quantile(0.999),
        engine: source.engine.to_string(),
        notices,
        counters,
    }
}

/// The speed of one target in each round, in requests of all threads per nanosecond. If each block is written only once, there is a single
/// speed for all rounds and the final sync, so that it includes deferred work.
fn speeds(plan: &Plan, jobs: &[Vec<Tally>], index: usize) -> Vec<f64> {
    let rounds = jobs.iter().map(|job| job[index].chunks.len()).min().unwrap_or(0);
    let round = |round: usize| {
        let chunks = || jobs.iter().map(|job| job[index].chunks[round]);
        let start = chunks().map(|chunk| chunk.start).min().unwrap_or(0);
        let end = chunks().map(|chunk| chunk.end).max().unwrap_or(0);
        (chunks().map(|chunk| chunk.requests).sum::<u64>(), end - start)
    };
    if plan.is_once() {
        let sync_ns: u64 = jobs.iter().map(|job| job[index].sync_ns).sum();
        let all = (0..rounds).map(round);
        let (requests, ns) = all.fold((0, sync_ns), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        return vec![requests as f64 / ns as f64];
    }
    (0..rounds).map(round).map(|(requests, ns)| requests as f64 / ns as f64).collect()
}

/// The median of the values, or 0 without values.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let of = |values: &[f64]| median(values.iter().copied());
        assert_eq!((of(&[]), of(&[3.0]), of(&[9.0, 1.0, 2.0])), (0.0, 3.0, 2.0));
    }
}
