//! Measures all readers in rounds. In each round, every reader carries out the same reads or searches.

use std::error::Error;
use std::path::Path;

use diskann::ANNResult;
use diskann_disk::storage::disk_index_reader::DiskIndexReader;
use diskann_disk::utils::QueryStatistics;
use diskann_disk::utils::statistics::{get_mean_stats, get_percentile_stats};
use ironmap_diskann::dataset;
use ironmap_diskann::reads::{BEAM, Reading};
use ironmap_diskann::search::{self, Parameters, Round};
use ironmap_diskann::sources::{Place, Source};

use crate::{SEED, VECTORS};

/// The searches of diskann-benchmark 0.61, each with its name in the results, its parameters, and its number of queries per round.
/// `example` is from `example/disk-index.json`, whose longest search list has 40 nodes. `perf_test` is from `perf_test_inputs`.
const SEARCHES: [(&str, Parameters, usize); 2] = [
    ("example", Parameters { l: 40, k: 10, beam: BEAM }, 48),
    ("perf_test", Parameters { l: 200, k: 100, beam: BEAM }, 16),
];
/// The number of batches in a round of reads without searches.
const BATCHES: usize = 500;
/// The numbers of threads that are measured.
const THREADS: [usize; 5] = [1, 2, 4, 8, 16];
/// The number of rounds. It is odd, so that a median is a measured value.
const ROUNDS: usize = 15;

/// The measured values of one reader in one round of searches.
struct Values {
    statistics: Vec<QueryStatistics>,
    queries_per_second: f64,
    cpu: f64,
    reads: f64,
}

/// For each source: its values in each round.
type Rounds<V> = Vec<Vec<V>>;

/// An index, with the queries and the devices for the measurement.
pub(crate) struct Measurement<'a> {
    index: DiskIndexReader,
    devices: &'a Path,
    kind: &'a str,
    times: usize,
    queries: Vec<f32>,
    base: Vec<f32>,
}

impl<'a> Measurement<'a> {
    pub(crate) fn new(
        prefix: &str,
        devices: &'a Path,
        (kind, times): (&'a str, usize),
    ) -> Result<Self, Box<dyn Error>> {
        let most = SEARCHES.iter().map(|(.., queries)| *queries).max().unwrap_or_default();
        let index = search::load(prefix)?;
        let (queries, base) = (dataset::queries(SEED, most * times), dataset::base(SEED, VECTORS));
        Ok(Self { index, devices, kind, times, queries, base })
    }

    fn place(&self) -> Place<'_> {
        Place { index: &self.index, devices: self.devices, paged: self.kind == "zram" }
    }

    /// Measures all searches. Prints a row for each source.
    pub(crate) fn searches(&self) -> Result<(), Box<dyn Error>> {
        for (name, parameters, queries) in SEARCHES {
            let queries = &self.queries[..queries * self.times * dataset::DIM];
            for threads in THREADS {
                let sources = self.place().open(threads)?;
                let (values, recall) = self.search(&sources, queries, parameters)?;
                for (source, of_source) in sources.iter().zip(&values) {
                    let own = &values[baseline(&sources, source)];
                    let mut row = self.row(name, threads, source);
                    row.extend(describe(parameters, recall));
                    row.extend(compare(of_source, own));
                    print(&row);
                }
            }
        }
        Ok(())
    }

    /// Measures batches of reads in one thread. Prints a row for each source.
    pub(crate) fn reads(&self) -> Result<(), Box<dyn Error>> {
        let sources = self.place().open(1)?;
        let values = rounds(&sources, |source| {
            let Reading { time, cpu, sum } = (source.reads)(BATCHES * self.times)?;
            Ok(((time.as_secs_f64(), cpu.as_secs_f64()), sum))
        })?
        .0;
        let reads = (BATCHES * self.times * BEAM) as f64;
        for (source, of_source) in sources.iter().zip(&values) {
            let own = &values[baseline(&sources, source)];
            let mut row = self.row("reads alone", 1, source);
            let each = |field: fn(&(f64, f64)) -> f64| of_source.iter().map(field);
            let ratios = |field: fn(&(f64, f64)) -> f64| {
                median(of_source.iter().zip(own).map(|(a, b)| field(b) / field(a)))
            };
            row.push(("reads_per_second", format!("{:.0}", reads / median(each(|v| v.0)))));
            row.push(("reads_per_second_ratio", format!("{:.3}", ratios(|v| v.0))));
            row.push(("iops_per_core", format!("{:.0}", reads / median(each(|v| v.1)))));
            row.push(("iops_per_core_ratio", format!("{:.3}", ratios(|v| v.1))));
            print(&row);
        }
        Ok(())
    }

    /// Returns the values of each source in all rounds, and the recall.
    fn search(
        &self,
        sources: &[Source],
        queries: &[f32],
        parameters: Parameters,
    ) -> Result<(Rounds<Values>, f64), Box<dyn Error>> {
        let (values, answers) = rounds(sources, |source| {
            let round = (source.search)(queries, parameters)?;
            Ok((Values::of(&round), round.answers))
        })?;
        let recall = search::recall(&self.base, queries, &answers, parameters.k as usize);
        Ok((values, recall))
    }

    /// The first fields of a result row.
    fn row(&self, name: &str, threads: usize, source: &Source) -> Vec<(&'static str, String)> {
        vec![
            ("device", quoted(self.kind)),
            ("search", quoted(name)),
            ("threads", threads.to_string()),
            ("reader", quoted(source.reader)),
            ("place", quoted(source.place)),
        ]
    }
}

/// Carries out the rounds. Each round runs all sources. Returns the values of each source, and the answers. The answers must be the same
/// for all rounds and all sources. The first round is not measured.
fn rounds<V, A: PartialEq>(
    sources: &[Source],
    carry_out: impl Fn(&Source) -> ANNResult<(V, A)>,
) -> Result<(Rounds<V>, A), Box<dyn Error>> {
    let mut values: Vec<_> = sources.iter().map(|_| Vec::new()).collect();
    let mut expected = None;
    for round in 0..=ROUNDS {
        for turn in 0..sources.len() {
            // The order rotates from round to round, so each source takes each turn.
            let at = (turn + round) % sources.len();
            let source = &sources[at];
            let (of_round, answers) = carry_out(source)?;
            if round > 0 {
                values[at].push(of_round);
            }
            if expected.as_ref().is_some_and(|expected| *expected != answers) {
                let (reader, place) = (source.reader, source.place);
                return Err(format!("{reader} on {place} gave other answers").into());
            }
            expected = Some(answers);
        }
    }
    Ok((values, expected.ok_or("there are no sources")?))
}

/// The index of the source with which a source is compared: DiskANN's reader on the same file system. A volume is compared with DiskANN's
/// reader on a mounted ext4.
fn baseline(sources: &[Source], source: &Source) -> usize {
    sources.iter().position(|own| own.is_own() && own.place == source.place).unwrap_or_default()
}

impl Values {
    fn of(round: &Round) -> Self {
        let statistics = round.statistics.clone();
        let queries = statistics.len() as f64;
        Self {
            queries_per_second: queries / round.time.as_secs_f64(),
            cpu: round.cpu.as_secs_f64() * 1e6 / queries,
            reads: get_mean_stats(&statistics, |query| query.total_io_operations),
            statistics,
        }
    }
}

/// The result fields with the parameters of a search.
fn describe(Parameters { l, k, beam }: Parameters, recall: f64) -> [(&'static str, String); 4] {
    [
        ("search_list", l.to_string()),
        ("recall_at", k.to_string()),
        ("beam_width", beam.to_string()),
        ("recall", format!("{recall:.3}")),
    ]
}

/// The medians of the values, and of their ratios to the baseline's values in the same round. The latencies are computed from the queries
/// of all rounds.
fn compare(values: &[Values], own: &[Values]) -> [(&'static str, String); 9] {
    let middle = |field: fn(&Values) -> f64| median(values.iter().map(field));
    let ratio = |field: fn(&Values) -> f64| {
        median(values.iter().zip(own).map(|(a, b)| field(a) / field(b)))
    };
    let all: Vec<_> = values.iter().flat_map(|round| round.statistics.clone()).collect();
    let p99 = get_percentile_stats(&all, 0.99, |query| query.total_execution_time_us);
    let latency = get_mean_stats(&all, |query| query.total_execution_time_us as f64);
    let io_time = get_mean_stats(&all, |query| query.io_time_us as f64);
    [
        ("queries_per_second", format!("{:.1}", middle(|v| v.queries_per_second))),
        ("queries_per_second_ratio", format!("{:.3}", ratio(|v| v.queries_per_second))),
        ("mean_latency_us", format!("{latency:.0}")),
        ("p99_latency_us", p99.to_string()),
        ("mean_io_time_us", format!("{io_time:.0}")),
        ("cpu_us_per_query", format!("{:.0}", middle(|v| v.cpu))),
        ("cpu_ratio", format!("{:.3}", ratio(|v| v.cpu))),
        ("reads_per_query", format!("{:.1}", middle(|v| v.reads))),
        ("iops_per_core", format!("{:.0}", middle(|v| v.reads / v.cpu * 1e6))),
    ]
}

fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

/// Prints a row with one field per line and a comma at the end. Also prints it as one line for the terminal.
fn print(row: &[(&str, String)]) {
    let fields: Vec<_> =
        row.iter().map(|(name, value)| format!("      \"{name}\": {value}")).collect();
    println!("    {{\n{}\n    }},", fields.join(",\n"));
    let line: Vec<_> = row.iter().map(|(_, value)| value.trim_matches('"')).collect();
    eprintln!("{}", line.join("  "));
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
