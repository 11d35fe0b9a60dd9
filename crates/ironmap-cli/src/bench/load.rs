//! One launch: all targets interleaved chunk by chunk on the same work, in one process, each thread pinned.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ironmap::bio::Buffer;
use ironmap::{Engine, Error, Result};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::lane::{Batch, Target};
use super::source::{Opener, Source};
use super::target::TargetSpec;

/// The length of a chunk: short enough that a disturbance hits all targets alike.
const CHUNK: Duration = Duration::from_millis(2);
/// Requests of the pass that measures latency, which costs time itself and so is a pass of its own.
const LATENCY_REQUESTS: u64 = 2000;

/// What one launch does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub targets: Vec<TargetSpec>,
    pub engine: String,
    pub random: bool,
    pub block: usize,
    pub depth: u32,
    pub jobs: usize,
    pub batch_submit: usize,
    pub batch_complete: usize,
    pub fixed_buffers: bool,
    pub touch: bool,
    pub assume_no_dedupe: bool,
    /// Limit of the range in bytes.
    pub size: Option<u64>,
    pub runtime_ms: u64,
    pub cpus: Vec<usize>,
    /// Requests of each target, instead of a time: for counting instructions.
    pub requests: Option<u64>,
}

/// What one launch measured of one target.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Measured {
    /// Nanoseconds a request, median over the chunks.
    pub ns: f64,
    /// The same of the best chunk.
    pub ns_best: f64,
    /// Speed relative to the first target, median over the rounds of chunks.
    pub ratio: f64,
    pub cpu_ns: f64,
    pub p50: u64,
    pub p99: u64,
    pub p99_9: u64,
    pub engine: String,
    pub notices: Vec<String>,
    pub counters: Vec<(String, u64)>,
}

/// A thread's share of a launch.
struct Job {
    targets: Vec<Driven>,
    /// The memory of all targets that have none of their own, so that they meet the same pages.
    shared: Vec<Buffer>,
    touch: bool,
    batch: Batch,
}

struct Driven {
    target: Target,
    /// Registered with the target's own queue.
    registered: Option<Vec<Buffer>>,
    immediate: bool,
    /// The device is a mapping, whose pages fault when they are met for the first time.
    mapped: bool,
    positions: Positions,
    chunks: Vec<Chunk>,
    latency: Option<Histogram<u64>>,
}

/// What one thread saw of one target.
struct Tally {
    chunks: Vec<Chunk>,
    latency: Option<Histogram<u64>>,
    counters: Vec<(&'static str, u64)>,
}

/// Nanoseconds a request, by the clock and of the thread's CPU time.
struct Chunk {
    ns: f64,
    cpu_ns: f64,
}

/// Where requests go: random (xorshift) or one after the other.
#[derive(Clone, Copy)]
struct Positions {
    state: u64,
    blocks: u64,
    block: u64,
    random: bool,
}

impl Positions {
    #[inline(always)]
    fn next(&mut self) -> u64 {
        if self.random {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            ((u128::from(self.state) * u128::from(self.blocks)) >> 64) as u64 * self.block
        } else {
            self.state = (self.state + 1) % self.blocks;
            self.state * self.block
        }
    }
}

/// What the threads of a launch share.
struct Launch<'a> {
    plan: &'a Plan,
    sources: &'a [Source],
    barrier: Barrier,
    failed: AtomicBool,
}

/// Runs a plan in this process.
pub(super) fn run(plan: &Plan) -> Result<Vec<Measured>> {
    let opener = Opener::new(plan.engine.parse()?, plan.assume_no_dedupe);
    let sources = opener.open_all(&plan.targets)?;
    let (barrier, failed) = (Barrier::new(plan.jobs), AtomicBool::new(false));
    let launch = Launch { plan, sources: &sources, barrier, failed };
    let jobs: Vec<Result<Vec<Tally>>> = std::thread::scope(|scope| {
        let launch = &launch;
        let threads: Vec<_> =
            (0..plan.jobs).map(|number| scope.spawn(move || launch.job(number))).collect();
        let lost = || Err(Error::invalid("a job's thread panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| lost())).collect()
    });
    let jobs: Vec<Vec<Tally>> = jobs.into_iter().collect::<Result<_>>()?;
    Ok(sources.iter().enumerate().map(|(index, source)| measured(&jobs, source, index)).collect())
}

impl Launch<'_> {
    /// One thread's work. A thread that failed goes on to every barrier, so that the others are not left waiting there.
    fn job(&self, number: usize) -> Result<Vec<Tally>> {
        let plan = self.plan;
        pin(plan, number);
        let mut result = self.open(number);
        let mut per_chunk = 0;
        if plan.requests.is_none() {
            self.attempt(&mut result, |job| {
                per_chunk = job.calibrate()?;
                Ok(())
            });
        }
        let rounds = if plan.requests.is_some() {
            1
        } else {
            (plan.runtime_ms / CHUNK.as_millis() as u64).max(5)
        };
        for round in 0..rounds as usize {
            for turn in 0..plan.targets.len() {
                // Each target begins a round as often as the others: what one leaves in the caches is shared out fairly.
                let index = (round + turn) % plan.targets.len();
                self.barrier.wait();
                self.attempt(&mut result, |job| {
                    let Job { targets, shared, batch, touch } = job;
                    match plan.requests {
                        // Nothing but the requests is to be counted.
                        Some(requests) => targets[index].chunk(requests, shared, *batch, *touch),
                        None => targets[index].timed_chunk(per_chunk, shared, *batch, *touch),
                    }
                });
            }
        }
        if number == 0 && plan.requests.is_none() {
            self.attempt(&mut result, |job| {
                let Job { targets, shared, .. } = job;
                targets.iter_mut().try_for_each(|driven| driven.measure_latency(shared))
            });
        }
        // The queues belong to this thread; what they counted does not.
        result.map(|job| job.targets.into_iter().map(Driven::tally).collect())
    }

    fn attempt(&self, result: &mut Result<Job>, work: impl FnOnce(&mut Job) -> Result<()>) {
        if self.failed.load(Ordering::Relaxed) {
            return;
        }
        if let Ok(job) = result
            && let Err(error) = work(job)
        {
            *result = Err(error);
        }
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    fn open(&self, number: usize) -> Result<Job> {
        let plan = self.plan;
        let limit = plan.size.unwrap_or(u64::MAX);
        let len = self.sources.iter().map(|source| source.len).min().unwrap_or(0).min(limit);
        let blocks = len / plan.block as u64;
        if blocks == 0 {
            return Err(Error::invalid(format!(
                "the range of {len} bytes is shorter than one request"
            )));
        }
        let mut targets = Vec::new();
        for (index, source) in self.sources.iter().enumerate() {
            let mut target = Target::attach(source, plan.depth)?;
            let immediate = source.engine.is_immediate() && plan.depth == 1;
            let registered = (plan.fixed_buffers && !source.engine.is_immediate())
                .then(|| target.register_buffers(plan.depth as usize, plan.block))
                .transpose()?;
            // Each thread and target goes its own way: the same positions again would find the data in the processor's caches.
            let place = (number * plan.targets.len() + index) as u64;
            let places = (plan.jobs * plan.targets.len()) as u64;
            let state = if plan.random {
                0x9E37_79B9_7F4A_7C15 ^ (place << 32)
            } else {
                blocks / places * place
            };
            let positions =
                Positions { state, blocks, block: plan.block as u64, random: plan.random };
            targets.push(Driven {
                target,
                registered,
                immediate,
                mapped: source.engine == Engine::Dax,
                positions,
                chunks: Vec::new(),
                latency: None,
            });
        }
        let batch = Batch { submit: plan.batch_submit, complete: plan.batch_complete };
        let shared = (0..plan.depth).map(|_| Buffer::aligned(plan.block)).collect::<Result<_>>()?;
        Ok(Job { targets, shared, touch: plan.touch, batch })
    }
}

fn pin(plan: &Plan, number: usize) {
    if let Some(cpu) = plan.cpus.get(number % plan.cpus.len().max(1)) {
        let mut set = CpuSet::new();
        set.set(*cpu);
        // A refused pin costs only repeatability.
        let _ = sched_setaffinity(None, &set);
    }
}

/// One target's figures over all threads.
fn measured(jobs: &[Vec<Tally>], source: &Source, index: usize) -> Measured {
    // Requests a nanosecond of all threads together, for each round.
    let speeds = |index: usize| -> Vec<f64> {
        let rounds = jobs.iter().map(|job| job[index].chunks.len()).min().unwrap_or(0);
        let speed = |round: usize| jobs.iter().map(|job| 1.0 / job[index].chunks[round].ns).sum();
        (0..rounds).map(speed).collect()
    };
    let (first, own) = (speeds(0), speeds(index));
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
            tallies.iter().flat_map(|tally| tally.chunks.iter().map(|chunk| chunk.cpu_ns)),
        ),
        p50: quantile(0.5),
        p99: quantile(0.99),
        p99_9: quantile(0.999),
        engine: source.engine.to_string(),
        notices,
        counters,
    }
}

impl Job {
    /// Warms every target up, and gives the number of requests of a chunk: what takes the first target a chunk's time.
    fn calibrate(&mut self) -> Result<u64> {
        let mut per_chunk = 0;
        let Self { targets, shared, batch, touch } = self;
        for driven in targets {
            if driven.mapped {
                let positions = Positions { state: 0, random: false, ..driven.positions };
                let own = std::mem::replace(&mut driven.positions, positions);
                driven.chunk(own.blocks, shared, *batch, false)?;
                driven.positions = own;
            }
            let start = Instant::now();
            let mut requests = 0;
            while start.elapsed() < 5 * CHUNK {
                driven.chunk(64, shared, *batch, *touch)?;
                requests += 64;
            }
            if per_chunk == 0 {
                per_chunk = (requests * CHUNK.as_nanos() as u64
                    / start.elapsed().as_nanos() as u64)
                    .max(16);
            }
        }
        Ok(per_chunk)
    }
}

impl Driven {
    fn tally(self) -> Tally {
        Tally { counters: self.target.counters(), chunks: self.chunks, latency: self.latency }
    }

    /// Inlined, since a return that was called for before a system call is slow on some machines, and would count as latency.
    #[inline(always)]
    fn chunk(
        &mut self,
        requests: u64,
        shared: &mut Vec<Buffer>,
        batch: Batch,
        touch: bool,
    ) -> Result<()> {
        let buffers = self.registered.as_mut().unwrap_or(shared);
        let positions = &mut self.positions;
        let mut next = || positions.next();
        let mut seen = |bytes: &[u8]| {
            if touch {
                std::hint::black_box(bytes.iter().step_by(64).fold(0_u8, |sum, byte| sum ^ byte));
            }
        };
        if self.immediate {
            self.target.run_sync(requests, &mut buffers[0], &mut next, &mut seen)
        } else {
            self.target.run_async(requests, buffers, batch, &mut next, &mut seen)
        }
    }

    fn timed_chunk(
        &mut self,
        requests: u64,
        shared: &mut Vec<Buffer>,
        batch: Batch,
        touch: bool,
    ) -> Result<()> {
        let (start, cpu) = (Instant::now(), cpu_ns());
        self.chunk(requests, shared, batch, touch)?;
        let per = |ns: u64| ns as f64 / requests as f64;
        self.chunks.push(Chunk {
            ns: per(start.elapsed().as_nanos() as u64),
            cpu_ns: per(cpu_ns() - cpu),
        });
        Ok(())
    }

    /// Measures the time of single requests, one in flight.
    fn measure_latency(&mut self, shared: &mut Vec<Buffer>) -> Result<()> {
        let mut histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3)
            .map_err(|error| Error::invalid(error.to_string()))?;
        for _ in 0..LATENCY_REQUESTS {
            let start = Instant::now();
            self.chunk(1, shared, Batch { submit: 1, complete: 1 }, false)?;
            histogram.saturating_record(start.elapsed().as_nanos() as u64);
        }
        self.latency = Some(histogram);
        Ok(())
    }
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The median of values; 0 of none.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
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

    #[test]
    fn positions_stay_in_the_range_and_sequences_reach_all_of_it() {
        for random in [false, true] {
            let mut positions = Positions { state: 7, blocks: 10, block: 512, random };
            let mut seen: Vec<u64> = (0..200).map(|_| positions.next()).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen, (0..10).map(|block| block * 512).collect::<Vec<_>>());
        }
    }

    /// Two threads drive all targets of a plan, each with its own queue.
    #[test]
    fn jobs_are_measured_together() {
        let target = TargetSpec::Null { size: 1 << 20 };
        let plan = Plan {
            targets: vec![target.clone(), target],
            engine: "null".into(),
            random: true,
            block: 4096,
            depth: 4,
            jobs: 2,
            batch_submit: 2,
            batch_complete: 2,
            fixed_buffers: true,
            touch: true,
            assume_no_dedupe: false,
            size: None,
            runtime_ms: 10,
            cpus: Vec::new(),
            requests: None,
        };
        let measured = run(&plan).unwrap();
        assert_eq!(measured.len(), 2);
        assert!(measured.iter().all(|target| target.ns > 0.0 && target.ratio > 0.0));
        let too_short = run(&Plan { size: Some(100), ..plan }).unwrap_err();
        assert!(too_short.to_string().contains("shorter than one request"), "{too_short}");
    }
}
