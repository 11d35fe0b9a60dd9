//! Runs a benchmark in one process. The targets (files or devices) take turns: each target runs a chunk of the same number of requests.
//! Each thread is pinned to a CPU.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ironmap::bio::Buffer;
use ironmap::{Engine, Error, Result, Volume};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::figures::{Chunk, Measured, Tally, measured};
use crate::lane::{Batch, Target, Writing};
use crate::plan::Plan;
use crate::positions::{Course, Mix, Positions, Uniform};
use crate::prepare;
use crate::source::{Opener, Source};

/// The duration of a chunk of requests: short enough that a disturbance affects all targets equally. Threads that share a CPU get longer
/// chunks.
const CHUNK: Duration = Duration::from_millis(2);
/// The number of chunks if each block is written once.
const ONCE_CHUNKS: u64 = 64;
/// The number of requests in the latency pass. The measurement of a latency takes time itself, so latencies are measured in a separate
/// pass.
const LATENCY_REQUESTS: u64 = 2000;

/// The data of one thread in a run of the benchmark.
struct Job {
    targets: Vec<Driven>,
    /// Memory for all targets without registered buffers, so that all these targets use the same pages.
    shared: Vec<Buffer>,
    touch: bool,
    batch: Batch,
}

struct Driven {
    target: Target,
    /// The buffers that are registered with the target's own queue.
    registered: Option<Vec<Buffer>>,
    immediate: bool,
    /// Whether the device is a memory mapping. The first access to each of its pages causes a page fault.
    mapped: bool,
    positions: Positions,
    /// The percentage of reads.
    reads: u8,
    tally: Tally,
}

/// The state that the threads of a run share.
struct Launch<'a> {
    plan: &'a Plan,
    sources: &'a [Source],
    begun: Instant,
    /// The number of requests in a chunk, summed over the threads.
    per_chunk: AtomicU64,
    barrier: Barrier,
    failed: AtomicBool,
}

/// Runs a plan in this process.
pub fn run(plan: &Plan) -> Result<Vec<Measured>> {
    run_on(plan, Vec::new())
}

/// Runs a plan with opened volumes of any format. Each volume serves the `vol:` targets that have its name, and is closed at the end.
pub fn run_on(plan: &Plan, volumes: Vec<(String, Volume)>) -> Result<Vec<Measured>> {
    let sources = Opener::new(plan, volumes)?.open_all()?;
    let before: Vec<_> = sources.iter().map(Source::write_counts).collect();
    let (barrier, failed) = (Barrier::new(plan.jobs), AtomicBool::new(false));
    let (begun, per_chunk) = (Instant::now(), AtomicU64::new(0));
    let launch = Launch { plan, sources: &sources, begun, per_chunk, barrier, failed };
    let jobs: Vec<Result<Vec<Tally>>> = std::thread::scope(|scope| {
        let launch = &launch;
        let threads: Vec<_> =
            (0..plan.jobs).map(|number| scope.spawn(move || launch.job(number))).collect();
        let lost = || Err(Error::invalid("a job's thread panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| lost())).collect()
    });
    let jobs: Vec<Vec<Tally>> = jobs.into_iter().collect::<Result<_>>()?;
    let mut measured: Vec<_> = sources
        .iter()
        .enumerate()
        .map(|(index, source)| measured(plan, &jobs, source, index))
        .collect();
    // All counters are read before the first close, because a close changes some of the counters.
    for ((source, before), measured) in sources.iter().zip(before).zip(&mut measured) {
        let verified = source.verified();
        measured.counters.extend(verified.into_iter().map(|(name, count)| (name.into(), count)));
        if let (Some(before), Some(after), true) = (before, source.write_counts(), plan.rw.writes())
        {
            measured.counters.extend([
                ("handles".into(), after.handles - before.handles),
                ("conversions".into(), after.conversions - before.conversions),
                ("zeroed".into(), after.zeroed - before.zeroed),
                ("exclusive".into(), after.exclusive - before.exclusive),
                ("upgrades".into(), after.upgrades - before.upgrades),
                ("waits".into(), after.waits - before.waits),
                ("drains".into(), after.drains - before.drains),
            ]);
        }
    }
    sources.iter().try_for_each(Source::close)?;
    Ok(measured)
}

impl Launch<'_> {
    /// Does the work of one thread. A thread that has failed still waits at every barrier. If it did not, the other threads would wait
    /// forever.
    fn job(&self, number: usize) -> Result<Vec<Tally>> {
        let plan = self.plan;
        pin(plan, number);
        let mut result = self.open(number);
        if let Some((index, requests)) = plan.only {
            self.attempt(&mut result, |job| {
                let Job { targets, shared, batch, touch } = job;
                targets[index].chunk(requests, shared, *batch, Watch::data(*touch))
            });
            return result.map(|job| job.targets.into_iter().map(Driven::tally).collect());
        }
        let (per_chunk, rounds);
        if plan.is_once() {
            let own = self.blocks() * plan.files as u64 / plan.jobs as u64;
            per_chunk = own.div_ceil(ONCE_CHUNKS).max(1);
            rounds = own / per_chunk;
        } else {
            // All threads determine the length of a chunk of requests at the same time, because they are also measured at the same time.
            self.barrier.wait();
            self.attempt(&mut result, |job| {
                let requests = job.calibrate(self.chunk())?;
                self.per_chunk.fetch_add(requests, Ordering::Relaxed);
                Ok(())
            });
            self.barrier.wait();
            per_chunk = (self.per_chunk.load(Ordering::Relaxed) / plan.jobs as u64).max(16);
            rounds = (plan.runtime_ms / self.chunk().as_millis() as u64).max(5);
        }
        for round in 0..rounds as usize {
            for turn in 0..plan.targets.len() {
                // Each target is the first of a round equally often. So the cache effects of one target affect all other targets equally.
                let index = (round + turn) % plan.targets.len();
                self.barrier.wait();
                self.attempt(&mut result, |job| {
                    let Job { targets, shared, batch, touch } = job;
                    targets[index].timed_chunk(per_chunk, self.begun, shared, *batch, *touch)
                });
            }
        }
        self.barrier.wait();
        if number == 0 {
            self.attempt(&mut result, |job| {
                let Job { targets, shared, .. } = job;
                for driven in targets {
                    if plan.rw.writes() {
                        let start = Instant::now();
                        driven.target.sync()?;
                        driven.tally.sync_ns = start.elapsed().as_nanos() as u64;
                    }
                    if !plan.is_once() {
                        driven.measure_latency(shared)?;
                    }
                }
                Ok(())
            });
        }
        // The queues must be dropped in this thread, so only the results are returned.
        result.map(|job| job.targets.into_iter().map(Driven::tally).collect())
    }

    /// The number of requests that fit into the range of each file.
    fn blocks(&self) -> u64 {
        let limit = self.plan.size.map_or(u64::MAX, |size| size / self.plan.files as u64);
        let len = self.sources.iter().map(|source| source.len).min().unwrap_or(0).min(limit);
        len / self.plan.block as u64
    }

    fn chunk(&self) -> Duration {
        let cpus = self.plan.cpus.len().clamp(1, self.plan.jobs);
        CHUNK * self.plan.jobs.div_ceil(cpus) as u32
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
        let blocks = self.blocks();
        if blocks == 0 {
            let asked = plan.block;
            return Err(Error::invalid(format!(
                "the range of a target is shorter than one request of {asked} bytes"
            )));
        }
        let mut targets = Vec::new();
        for (index, source) in self.sources.iter().enumerate() {
            let writing = Writing::new(plan.dsync, plan.fsync);
            let mut target = Target::attach(source, plan.depth, writing)?;
            let immediate = source.engine.is_immediate() && plan.depth == 1;
            let mut registered = (plan.fixed_buffers && !source.engine.is_immediate())
                .then(|| target.register_buffers(plan.depth as usize, plan.block))
                .transpose()?;
            registered.iter_mut().flatten().for_each(|buffer| prepare::fill(buffer));
            // Each thread and target has its own sequence of positions. With equal positions, the data of an earlier read would be in the
            // processor's caches.
            let place = (number * plan.targets.len() + index) as u64;
            let places = (plan.jobs * plan.targets.len()) as u64;
            let all = blocks * plan.files as u64;
            let random = 0x9E37_79B9_7F4A_7C15 ^ (place << 32);
            let state = if plan.rw.is_random() {
                random
            } else if plan.is_once() {
                // Each thread writes its own part of all blocks, and the parts are in the order of the threads. The initial state is the
                // position before the first request of the thread.
                (all / plan.jobs as u64 * number as u64 + all - 1) % all
            } else {
                all / places * place
            };
            let positions = Positions {
                state,
                dice: random,
                blocks,
                block: plan.block as u64,
                random: plan.rw.is_random(),
                base: source.bases[0],
                bases: source.bases.clone().into(),
            };
            targets.push(Driven {
                target,
                registered,
                immediate,
                mapped: source.engine == Engine::Dax,
                positions,
                reads: plan.rw.reads(plan.reads),
                tally: Tally::default(),
            });
        }
        let batch = Batch { submit: plan.batch_submit, complete: plan.batch_complete };
        let mut shared: Vec<_> =
            (0..plan.depth).map(|_| Buffer::aligned(plan.block)).collect::<Result<_>>()?;
        shared.iter_mut().for_each(|buffer| prepare::fill(buffer));
        Ok(Job { targets, shared, touch: plan.touch, batch })
    }
}

fn pin(plan: &Plan, number: usize) {
    if let Some(cpu) = plan.cpus.get(number % plan.cpus.len().max(1)) {
        let mut set = CpuSet::new();
        set.set(*cpu);
        // If the kernel refuses to pin the thread, the figures vary more, but are still valid.
        let _ = sched_setaffinity(None, &set);
    }
}

impl Job {
    /// Warms up every target. Returns the length of a chunk in requests, which is the number of requests that the first target completes in
    /// the time `chunk`.
    fn calibrate(&mut self, chunk: Duration) -> Result<u64> {
        let mut per_chunk = 0;
        let Self { targets, shared, batch, touch } = self;
        for driven in targets {
            if driven.mapped {
                let own = driven.positions.clone();
                (driven.positions.state, driven.positions.random) = (0, false);
                driven.chunk(own.total(), shared, *batch, Watch::Nothing)?;
                driven.positions = own;
            }
            // The next 64 requests are not measured, because the first requests of a target have extra costs.
            driven.chunk(64, shared, *batch, Watch::data(*touch))?;
            let start = Instant::now();
            let mut requests = 0;
            while start.elapsed() < 5 * chunk {
                driven.chunk(64, shared, *batch, Watch::data(*touch))?;
                requests += 64;
            }
            if per_chunk == 0 {
                per_chunk = requests * chunk.as_nanos() as u64 / start.elapsed().as_nanos() as u64;
            }
        }
        Ok(per_chunk)
    }
}

impl Driven {
    fn tally(self) -> Tally {
        Tally { counters: self.target.counters(), ..self.tally }
    }

    /// This function is not inlined, so that all passes share one copy of the code for all kinds of requests.
    #[inline(never)]
    fn chunk(
        &mut self,
        requests: u64,
        shared: &mut Vec<Buffer>,
        batch: Batch,
        watch: Watch<'_>,
    ) -> Result<()> {
        let Self { target, registered, immediate, positions, reads, .. } = self;
        let buffers = registered.as_mut().unwrap_or(shared);
        let how = (*immediate, batch, watch);
        match (*reads, positions.bases.len()) {
            (100, 1) => drive(target, requests, buffers, how, Uniform::<false>(positions)),
            (0, 1) => drive(target, requests, buffers, how, Uniform::<true>(positions)),
            (reads, _) => drive(target, requests, buffers, how, Mix(positions, reads)),
        }
    }

    fn timed_chunk(
        &mut self,
        requests: u64,
        begun: Instant,
        shared: &mut Vec<Buffer>,
        batch: Batch,
        touch: bool,
    ) -> Result<()> {
        let (start, cpu) = (begun.elapsed(), cpu_ns());
        self.chunk(requests, shared, batch, Watch::data(touch))?;
        let (start, end) = (start.as_nanos() as u64, begun.elapsed().as_nanos() as u64);
        self.tally.chunks.push(Chunk { requests, start, end, cpu_ns: cpu_ns() - cpu });
        Ok(())
    }

    /// Measures the latency of single requests, with one request in flight.
    fn measure_latency(&mut self, shared: &mut Vec<Buffer>) -> Result<()> {
        let histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3)
            .map_err(|error| Error::invalid(error.to_string()))?;
        let others = self.registered.as_mut().unwrap_or(shared).split_off(1);
        let batch = Batch { submit: 1, complete: 1 };
        let mut latency = Latency { histogram, since: Instant::now() };
        let done = self.chunk(LATENCY_REQUESTS, shared, batch, Watch::Latency(&mut latency));
        self.registered.as_mut().unwrap_or(shared).extend(others);
        done?;
        self.tally.latency = Some(latency.histogram);
        Ok(())
    }
}

/// The action after each completed request.
enum Watch<'a> {
    Nothing,
    /// Reads the data of the request.
    Data,
    /// Records the latency of the request. Only one request is in flight.
    Latency(&'a mut Latency),
}

impl Watch<'_> {
    fn data(touch: bool) -> Self {
        if touch { Self::Data } else { Self::Nothing }
    }

    /// This function is not inlined, so that a loop with `Watch::Nothing` only tests one flag per request.
    #[inline(never)]
    fn look(&mut self, bytes: &[u8]) {
        match self {
            Self::Nothing => {}
            Self::Data => {
                std::hint::black_box(bytes.iter().step_by(64).fold(0_u8, |sum, byte| sum ^ byte));
            }
            Self::Latency(latency) => latency.record(),
        }
    }
}

struct Latency {
    histogram: Histogram<u64>,
    /// The time at which the next request starts.
    since: Instant,
}

impl Latency {
    fn record(&mut self) {
        self.histogram.saturating_record(self.since.elapsed().as_nanos() as u64);
        self.since = Instant::now();
    }
}

/// This function is inlined. On some machines, a function returns slowly to its caller after a system call. This time would count as
/// latency.
#[inline(always)]
fn drive(
    target: &mut Target,
    requests: u64,
    buffers: &mut Vec<Buffer>,
    (immediate, batch, mut watch): (bool, Batch, Watch<'_>),
    course: impl Course,
) -> Result<()> {
    let looks = !matches!(watch, Watch::Nothing);
    let mut after = |bytes: &[u8]| {
        if looks {
            watch.look(bytes);
        }
    };
    if immediate {
        target.run_sync(requests, buffers, course, &mut after)
    } else {
        target.run_async(requests, buffers, batch, course, &mut after)
    }
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::positions::Rw;
    use crate::target::TargetSpec;

    /// Two threads run all targets of a plan, and each thread has its own queue.
    #[test]
    fn jobs_are_measured_together() {
        let target = TargetSpec::Null { size: 1 << 20 };
        let plan = Plan {
            targets: vec![target.clone(), target],
            engine: "null".into(),
            rw: Rw::RandMixed,
            reads: 70,
            block: 4096,
            files: 2,
            content: None,
            dsync: true,
            fsync: 3,
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
            only: None,
        };
        let measured = run(&plan).unwrap();
        assert_eq!(measured.len(), 2);
        assert!(measured.iter().all(|target| target.ns > 0.0 && target.ratio > 0.0));
        let too_short = run(&Plan { size: Some(100), ..plan }).unwrap_err();
        assert!(too_short.to_string().contains("shorter than one request"), "{too_short}");
    }
}
