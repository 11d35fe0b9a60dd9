//! Runs rounds of queries. In each round, all stores answer the same queries one after the other. Before each store's turn, the kernel's
//! caches are emptied.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::prelude::SessionContext;
use ironmap_datafusion::{PAGE_ROWS, Random, id, look_up, scan};
use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;

/// The number of pages of each column in the table.
pub(crate) const PAGES: usize = 3000;
const SECTOR: u64 = 512;

#[derive(Clone, Copy)]
pub(crate) enum Query {
    Scan,
    /// `count` look-ups per round. Each look-up requests `ids` ids, and `at_once` look-ups run at the same time.
    LookUps {
        ids: usize,
        count: usize,
        at_once: usize,
    },
}

impl Query {
    fn name(self) -> String {
        match self {
            Self::Scan => "scan".into(),
            Self::LookUps { ids, at_once, .. } => {
                format!("look-up of {ids} id{}, {at_once} at once", if ids == 1 { "" } else { "s" })
            }
        }
    }

    /// Chooses the ids for each look-up. No two ids of a round are in the same page. So no look-up finds pages that another look-up has put
    /// into a cache.
    fn ids(self, random: &mut Random) -> Vec<Vec<i64>> {
        let Self::LookUps { ids, count, .. } = self else { return Vec::new() };
        let mut pages: Vec<usize> = (0..PAGES).collect();
        for index in 0..count * ids {
            let other = index + random.next() as usize % (PAGES - index);
            pages.swap(index, other);
        }
        let mut row = |page: &usize| id(page * PAGE_ROWS + random.next() as usize % PAGE_ROWS);
        pages[..count * ids].chunks(ids).map(|pages| pages.iter().map(&mut row).collect()).collect()
    }
}

/// A DataFusion session over one store, and the device from which this store reads.
pub(crate) struct Contender {
    name: &'static str,
    session: SessionContext,
    device: PathBuf,
}

impl Contender {
    pub(crate) fn new(name: &'static str, session: SessionContext, device: &str) -> Self {
        let device = device.trim_start_matches("/dev/");
        Self { name, session, device: format!("/sys/block/{device}/stat").into() }
    }

    /// All reads of the device since its creation.
    fn reads(&self) -> Result<Reads, Box<dyn Error>> {
        let stat = fs::read_to_string(&self.device)?;
        let fields = stat.split_whitespace().take(4).map(str::parse::<u64>);
        match fields.collect::<Result<Vec<_>, _>>()?[..] {
            [requests, _merged, sectors, millis] => {
                Ok(Reads { requests, bytes: sectors * SECTOR, time: Duration::from_millis(millis) })
            }
            _ => Err(format!("{} has no four fields", self.device.display()).into()),
        }
    }
}

/// Reads of a device: the requests, their bytes, and the sum of their times.
#[derive(Clone, Copy, Default)]
struct Reads {
    requests: u64,
    bytes: u64,
    time: Duration,
}

/// The measurements of one store: sums over all rounds, and single values.
#[derive(Default)]
struct Figures {
    latencies: Vec<Duration>,
    rounds: Vec<Duration>,
    cpu: Duration,
    reads: Reads,
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

fn drop_caches() -> std::io::Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3")
}

/// The answers to some queries. Each answer has the number of its query and its latency.
type Answers = Vec<(usize, RecordBatch, Duration)>;

/// Runs every `step`-th query, beginning with the query number `from`, one after the other.
async fn answer(
    session: SessionContext,
    ids: Arc<Vec<Vec<i64>>>,
    from: usize,
    step: usize,
) -> datafusion::error::Result<Answers> {
    let mut answers = Vec::new();
    for (number, ids) in ids.iter().enumerate().skip(from).step_by(step) {
        let began = Instant::now();
        let rows = look_up(&session, ids).await?;
        answers.push((number, rows, began.elapsed()));
    }
    Ok(answers)
}

async fn answer_all(
    session: &SessionContext,
    query: Query,
    ids: &Arc<Vec<Vec<i64>>>,
) -> Result<Answers, Box<dyn Error>> {
    let began = Instant::now();
    let Query::LookUps { at_once, .. } = query else {
        return Ok(vec![(0, scan(session).await?, began.elapsed())]);
    };
    let mut tasks = JoinSet::new();
    for from in 0..at_once {
        tasks.spawn(answer(session.clone(), Arc::clone(ids), from, at_once));
    }
    let mut answers = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        answers.extend(ended??);
    }
    answers.sort_unstable_by_key(|(number, ..)| *number);
    Ok(answers)
}

impl Figures {
    /// Measures one store in one round. Returns the rows that each query returned.
    async fn add(
        &mut self,
        contender: &Contender,
        query: Query,
        ids: &Arc<Vec<Vec<i64>>>,
    ) -> Result<Vec<RecordBatch>, Box<dyn Error>> {
        drop_caches()?;
        let (before, cpu_before, began) = (contender.reads()?, cpu(), Instant::now());
        let answers = answer_all(&contender.session, query, ids).await?;
        self.rounds.push(began.elapsed());
        self.cpu += cpu() - cpu_before;
        let after = contender.reads()?;
        if after.bytes == before.bytes {
            return Err(format!("{} did not read its device", contender.name).into());
        }
        self.reads.requests += after.requests - before.requests;
        self.reads.bytes += after.bytes - before.bytes;
        self.reads.time += after.time - before.time;
        self.latencies.extend(answers.iter().map(|(.., latency)| *latency));
        Ok(answers.into_iter().map(|(_, rows, _)| rows).collect())
    }

    /// A row of JSON. `rate` is the number of rows (of a scan) or queries for each second, the median over the rounds. `in_flight` is the mean
    /// number of requests that the device has at a time.
    fn row(&mut self, format: &str, query: Query, contender: &Contender, ratio: f64) -> String {
        let (queries, rounds) = (self.latencies.len(), self.rounds.len());
        self.latencies.sort_unstable();
        self.rounds.sort_unstable();
        let of_round = match query {
            Query::Scan => PAGES * PAGE_ROWS,
            Query::LookUps { count, .. } => count,
        };
        let rate = of_round as f64 / self.rounds[rounds / 2].as_secs_f64();
        let unit = if matches!(query, Query::Scan) { "rows" } else { "queries" };
        let elapsed: Duration = self.rounds.iter().sum();
        let latency =
            |percent: usize| self.latencies[(queries - 1) * percent / 100].as_secs_f64() * 1e3;
        format!(
            concat!(
                r#"{{"format": "{}", "query": "{}", "store": "{}", "{}_per_second": {:.0}, "ratio": {:.2}, "#,
                r#""p50_ms": {:.2}, "p99_ms": {:.2}, "cpu_ms": {:.2}, "device_kib": {}, "#,
                r#""device_reads": {:.1}, "in_flight": {:.2}}}"#
            ),
            format,
            query.name(),
            contender.name,
            unit,
            rate,
            ratio,
            latency(50),
            latency(99),
            self.cpu.as_secs_f64() * 1e3 / queries as f64,
            self.reads.bytes / 1024 / queries as u64,
            self.reads.requests as f64 / queries as f64,
            self.reads.time.as_secs_f64() / elapsed.as_secs_f64(),
        )
    }
}

/// Divides the time of the first store by the time of the other store, for each round. Returns the median of these ratios.
fn ratio(first: &Figures, other: &Figures) -> f64 {
    let pairs = first.rounds.iter().zip(&other.rounds);
    let mut ratios: Vec<f64> =
        pairs.map(|(first, other)| first.as_secs_f64() / other.as_secs_f64()).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

/// Measures all stores in rounds, and prints a row for each store. The order of the stores changes from round to round. The first round is
/// not counted: it fills the caches of DataFusion, which then contain the metadata of the file. These caches have the same size for each
/// store.
pub(crate) async fn compare(
    format: &str,
    query: Query,
    contenders: &[Contender],
    rounds: usize,
) -> Result<(), Box<dyn Error>> {
    let mut random = Random(42);
    let mut figures: Vec<Figures> = Vec::new();
    for round in 0..=rounds {
        if round <= 1 {
            figures = contenders.iter().map(|_| Figures::default()).collect();
        }
        let ids = Arc::new(query.ids(&mut random));
        let mut expected: Option<Vec<RecordBatch>> = None;
        for turn in 0..contenders.len() {
            let index = (turn + round) % contenders.len();
            let rows = figures[index].add(&contenders[index], query, &ids).await?;
            match &expected {
                Some(expected) if *expected != rows => {
                    return Err(format!(
                        "{}: the rows differ from the rows of the previous store",
                        contenders[index].name
                    )
                    .into());
                }
                _ => expected = Some(rows),
            }
        }
        if let Query::LookUps { ids: each, .. } = query {
            let complete = |rows: &RecordBatch| rows.num_rows() == each;
            if !expected.iter().flatten().all(complete) {
                return Err("a look-up did not find all ids".into());
            }
        }
    }
    let ratios: Vec<f64> = figures.iter().map(|own| ratio(&figures[0], own)).collect();
    for ((figures, contender), ratio) in figures.iter_mut().zip(contenders).zip(ratios) {
        println!("{}", figures.row(format, query, contender, ratio));
    }
    Ok(())
}
