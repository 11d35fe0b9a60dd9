//! Runs a model under many schedules.

use std::env;
use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};

/// Without another one in `SHUTTLE_RANDOM_SEED`, which the checker reads.
const SEED: u64 = 0x5EED;
/// Schedules of each kind for the smallest models, without another number in `IRONMAP_SHUTTLE`.
const SCHEDULES: usize = 20_000;
/// Switches between threads at moments of the scheduler's choice; most races need two or three.
const DEPTH: usize = 3;
/// An operation on a volume has deeper calls than the checker allows for.
const STACK: usize = 1 << 20;

/// Runs a model: threads that panic, or all wait, fail the test, which then prints a seed for that schedule alone.
/// `cost`: a schedule takes so many times as long as one of the smallest models.
pub(crate) fn explore(cost: usize, model: impl Fn() + Send + Sync + Copy + 'static) {
    let wanted = env::var("IRONMAP_SHUTTLE").ok().and_then(|text| text.parse::<usize>().ok());
    let schedules = (wanted.unwrap_or(SCHEDULES) / cost).max(1);
    let mut config = Config::new();
    (config.stack_size, config.silence_warnings) = (STACK, true);
    let random = RandomScheduler::new_from_seed(SEED, schedules);
    Runner::new(random, config.clone()).run(model);
    let pct = PctScheduler::new_from_seed(SEED, DEPTH, schedules);
    Runner::new(pct, config).run(model);
}

/// Runs threads on a model until they have ended. That all of them wait fails the test: nobody is left asleep.
pub(crate) fn run<M: Send + Sync + 'static>(model: &Arc<M>, work: &[fn(&M)]) {
    let spawn = |work: &fn(&M)| {
        let (model, work) = (Arc::clone(model), *work);
        thread::spawn(move || work(&model))
    };
    let threads: Vec<_> = work.iter().map(spawn).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
