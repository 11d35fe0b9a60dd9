//! Runs a model under many schedules.

use std::env;
use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};

/// The seed, unless `SHUTTLE_RANDOM_SEED`, which the checker reads, contains another one.
const SEED: u64 = 0x5EED;
/// The number of schedules of each kind for the smallest models, unless `IRONMAP_SHUTTLE` contains another number.
const SCHEDULES: usize = 20_000;
/// The number of switches between threads at moments that the scheduler chooses; most races need two or three.
const DEPTH: usize = 3;
/// The size of a stack: an operation on a volume has deeper calls than the checker's default permits.
const STACK: usize = 1 << 20;

/// Runs a model. A thread that panics, or a deadlock, fails the test, which then prints a seed for that schedule alone. A schedule takes
/// `cost` times as long as one of the smallest models.
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

/// Runs threads on a model until they have ended. A deadlock fails the test, so no thread stays asleep.
pub(crate) fn run<M: Send + Sync + 'static>(model: &Arc<M>, work: &[fn(&M)]) {
    let spawn = |work: &fn(&M)| {
        let (model, work) = (Arc::clone(model), *work);
        thread::spawn(move || work(&model))
    };
    let threads: Vec<_> = work.iter().map(spawn).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
