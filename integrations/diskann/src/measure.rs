//! Paired rounds of searches by all readers.

use std::error::Error;
use std::path::Path;

use diskann_disk::storage::disk_index_reader::DiskIndexReader;
use diskann_disk::utils::statistics::{get_mean_stats, get_percentile_stats};
use ironmap_diskann::dataset;
use ironmap_diskann::search::{self, Answer, Parameters, Round};
use ironmap_diskann::sources::{self, Source};

use crate::{SEED, VECTORS};

/// The searches of diskann-benchmark 0.61, with their names in the results: `example/disk-index.json`, whose longest search list has 40
/// nodes, and the files in `perf_test_inputs`.
const SEARCHES: [(&str, Parameters); 2] = [
    ("example", Parameters { l: 40, k: 10, beam: 4 }),
    ("perf_test", Parameters { l: 200, k: 100, beam: 4 }),
];
/// The numbers of threads, with the number of queries of a round.
const THREADS: [(usize, usize); 5] = [(1, 400), (2, 800), (4, 800), (8, 800), (16, 800)];
/// The number of rounds. It is odd, so that a median is a measured value.
const ROUNDS: usize = 11;
/// The number of queries whose recall is computed.
const RECALLED: usize = 100;

/// The values of a round.
#[derive(Clone, Copy)]
struct Values {
    queries_per_second: f64,
    mean_latency: f64,
    p99_latency: f64,
    io_time: f64,
    cpu: f64,
    reads: f64,
    iops_per_core: f64,
}

/// An index with its queries and devices.
pub(crate) struct Measurement<'a> {
    index: DiskIndexReader,
    devices: &'a Path,
    queries: Vec<f32>,
    base: Vec<f32>,
}

impl<'a> Measurement<'a> {
    pub(crate) fn new(prefix: &str, devices: &'a Path) -> Result<Self, Box<dyn Error>> {
        let most = THREADS.iter().map(|(_, queries)| *queries).max().unwrap_or_default();
        let index = search::load(prefix)?;
        let (queries, base) = (dataset::queries(SEED, most), dataset::base(SEED, VECTORS));
        Ok(Self { index, devices, queries, base })
    }

    /// Measures everything, and prints the fields of the results.
    pub(crate) fn run(&self) -> Result<(), Box<dyn Error>> {
        println!("  \"vectors\": {VECTORS},");
        println!("  \"dimensions\": {},", dataset::DIM);
        println!("  \"rounds\": {ROUNDS},");
        println!("  \"rows\": [");
        let mut first = true;
        for (name, parameters) in SEARCHES {
            for (threads, queries) in THREADS {
                let queries = &self.queries[..queries * dataset::DIM];
                let sources = sources::open(&self.index, self.devices, threads)?;
                let (values, recall) = self.rounds(&sources, queries, parameters)?;
                for (at, source) in sources.iter().enumerate() {
                    if !std::mem::take(&mut first) {
                        println!("    }},");
                    }
                    let what = Row { name, parameters, threads, recall, source };
                    what.print(&values[at], &values[baseline(&sources, source)]);
                }
            }
        }
        println!("    }}");
        println!("  ]");
        Ok(())
    }

    /// The values of each source in all rounds, and the recall. The first round of each source is not measured.
    fn rounds(
        &self,
        sources: &[Source],
        queries: &[f32],
        parameters: Parameters,
    ) -> Result<(Vec<Vec<Values>>, f64), Box<dyn Error>> {
        let mut values = vec![Vec::new(); sources.len()];
        let mut expected = None;
        for round in 0..=ROUNDS {
            for turn in 0..sources.len() {
                // Each source is in each place of the order.
                let at = if round == 0 { turn } else { (turn + round) % sources.len() };
                let source = &sources[at];
                let found = (source.search)(queries, parameters)?;
                if round > 0 {
                    values[at].push(Values::of(&found));
                }
                let expected: &Vec<Answer> = expected.get_or_insert_with(|| found.answers.clone());
                if *expected != found.answers {
                    let text = format!("{} on {} found others", source.reader, source.place);
                    return Err(text.into());
                }
            }
        }
        let answers = expected.unwrap_or_default();
        let queries = &queries[..RECALLED * dataset::DIM];
        let recall = search::recall(&self.base, queries, &answers, parameters.k as usize);
        Ok((values, recall))
    }
}

/// DiskANN's reader on the same file system; for a volume, on a mounted ext4.
fn baseline(sources: &[Source], source: &Source) -> usize {
    sources.iter().position(|own| own.is_own() && own.place == source.place).unwrap_or_default()
}

impl Values {
    fn of(round: &Round) -> Self {
        let queries = round.statistics.len() as f64;
        let statistics = &round.statistics;
        let mean_reads = get_mean_stats(statistics, |query| query.total_io_operations);
        Self {
            queries_per_second: queries / round.time.as_secs_f64(),
            mean_latency: get_mean_stats(statistics, |query| query.total_execution_time_us as f64),
            p99_latency: get_percentile_stats(statistics, 0.99, |query| {
                query.total_execution_time_us
            }) as f64,
            io_time: get_mean_stats(statistics, |query| query.io_time_us as f64),
            cpu: round.cpu.as_secs_f64() * 1e6 / queries,
            reads: mean_reads,
            iops_per_core: mean_reads * queries / round.cpu.as_secs_f64(),
        }
    }
}

/// A row of the results.
struct Row<'a> {
    name: &'a str,
    parameters: Parameters,
    threads: usize,
    recall: f64,
    source: &'a Source,
}

impl Row<'_> {
    /// Prints the medians of the values and of the ratios to the baseline in the same round, one field in each line.
    fn print(&self, values: &[Values], baseline: &[Values]) {
        let Parameters { l, k, beam } = self.parameters;
        let middle = |field: fn(&Values) -> f64| median(values.iter().map(field).collect());
        let ratio = |field: fn(&Values) -> f64| {
            median(values.iter().zip(baseline).map(|(a, b)| field(a) / field(b)).collect())
        };
        println!("    {{");
        println!("      \"search\": \"{}\",", self.name);
        println!("      \"search_list\": {l},");
        println!("      \"recall_at\": {k},");
        println!("      \"beam_width\": {beam},");
        println!("      \"recall\": {:.3},", self.recall);
        println!("      \"threads\": {},", self.threads);
        println!("      \"reader\": \"{}\",", self.source.reader);
        println!("      \"place\": \"{}\",", self.source.place);
        println!("      \"queries_per_second\": {:.1},", middle(|v| v.queries_per_second));
        println!("      \"queries_per_second_ratio\": {:.3},", ratio(|v| v.queries_per_second));
        println!("      \"mean_latency_us\": {:.0},", middle(|v| v.mean_latency));
        println!("      \"p99_latency_us\": {:.0},", middle(|v| v.p99_latency));
        println!("      \"p99_latency_ratio\": {:.3},", ratio(|v| v.p99_latency));
        println!("      \"io_time_us\": {:.0},", middle(|v| v.io_time));
        println!("      \"cpu_us_per_query\": {:.0},", middle(|v| v.cpu));
        println!("      \"cpu_ratio\": {:.3},", ratio(|v| v.cpu));
        println!("      \"reads_per_query\": {:.1},", middle(|v| v.reads));
        println!("      \"iops_per_core\": {:.0}", middle(|v| v.iops_per_core));
        eprintln!(
            "{:9} {:2} threads  {:16} {:6}  {:8.1} queries/s ({:.3})  p99 {:6.0} us  cpu {:5.0} us ({:.3})  recall {:.3}",
            self.name,
            self.threads,
            self.source.reader,
            self.source.place,
            middle(|v| v.queries_per_second),
            ratio(|v| v.queries_per_second),
            middle(|v| v.p99_latency),
            middle(|v| v.cpu),
            ratio(|v| v.cpu),
            self.recall,
        );
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
