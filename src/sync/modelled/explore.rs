//! Runs a model under many schedules. A schedule is an order in which the threads run.

use std::env;
use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};

/// The seed of the schedules. The variable `SHUTTLE_RANDOM_SEED` replaces it.
const SEED: u64 = 0x5EED;
/// The number of schedules of each kind for the smallest models. The variable `IRONMAP_SHUTTLE` replaces this number.
const SCHEDULES: usize = 20_000;
/// The maximum number of thread switches that the checker inserts into a schedule. Most races need two or three switches.
const DEPTH: usize = 3;
/// The stack size of a thread. An operation on a volume needs a larger stack than the checker's default.
const STACK: usize = 1 << 20;

/// Runs a model under many schedules. After a panic or a deadlock, the test fails and prints a seed that reproduces the schedule. `cost` is
/// the run time of one schedule of this model, in units of the run time of the smallest models.
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

/// Runs threads on a model until all threads have ended. After a deadlock, the test fails.
pub(crate) fn run<M: Send + Sync + 'static>(model: &Arc<M>, work: &[fn(&M)]) {
    let spawn = |work: &fn(&M)| {
        let (model, work) = (Arc::clone(model), *work);
        thread::spawn(move || work(&model))
    };
    let threads: Vec<_> = work.iter().map(spawn).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
