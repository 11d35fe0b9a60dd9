//! Power cuts. The log of a recorded device is cut between any two writes. Each write since the last flush may be lost. After a cut, the
//! volume must be consistent, all data that were reported as durable must exist, and no file may show data of another file.
//!
//! `IRONMAP_CRASH_STATES` sets the number of states for each kind of workload, and enables tests with an error at every request. `./x
//! crash` sets this variable. `IRONMAP_CRASH_SEED` sets the seed of the first workload, so that a failure can be repeated.

pub(crate) mod campaign;
mod faults;
pub(crate) mod fsck;
mod generator;
mod history;
mod kernel;
mod layouts;
mod op;
pub(crate) mod ours;
mod pairs;
pub(crate) mod rules;
pub(crate) mod seen;
mod state;
pub(crate) mod volume;

use crate::require;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::common::beneath::tail;
use crate::common::skip::Need;
use campaign::{Counts, Plan};
use generator::Style;
use ironmap::device::{Device, Entry};
use layouts::{KERNEL, OURS, QUOTA, UNJOURNALED};
use pairs::Start;
use rules::Histories;

type Case = campaign::Case<Histories>;

/// How the states of a workload are checked, and how many states each kind of workload gets.
struct Effort {
    plan: Plan,
    states: usize,
    /// Whether the environment requests a long run.
    long: bool,
}

impl Effort {
    fn new() -> Self {
        let root = Need::Root.missing().is_none();
        match std::env::var("IRONMAP_CRASH_STATES") {
            Ok(states) => {
                let plan = Plan {
                    random: 4,
                    limit: 2000,
                    fsck_one_in: 100,
                    interrupt_one_in: 400,
                    mount_one_in: root.then_some(500),
                };
                let states = states.parse().expect("IRONMAP_CRASH_STATES: a number");
                Self { plan, states, long: true }
            }
            Err(_) => {
                let plan = Plan {
                    random: 2,
                    limit: 100,
                    fsck_one_in: 20,
                    interrupt_one_in: 50,
                    mount_one_in: root.then_some(50),
                };
                Self { plan, states: 1000, long: false }
            }
        }
    }

    /// Checks workloads until enough states have been checked.
    fn look(&self, what: &str, cases: impl Iterator<Item = (u64, Case)>) {
        let (counts, start) = (Counts::default(), Instant::now());
        for (seed, case) in cases {
            case.assert_holds(seed, self.plan, &counts);
            if counts.states.load(Ordering::Relaxed) >= self.states {
                break;
            }
        }
        eprintln!("{what}: seeds from {}, {counts:?} in {:.1?}", first_seed(), start.elapsed());
    }
}

fn first_seed() -> u64 {
    std::env::var("IRONMAP_CRASH_SEED").map_or(0, |seed| seed.parse().expect("a seed"))
}

/// Seeds, each with its layout.
fn workloads<T: Copy>(layouts: &[T]) -> impl Iterator<Item = (u64, T)> {
    (0..).zip(layouts.iter().copied().cycle()).skip(first_seed() as usize)
}

/// The number of operations of a workload. The larger number fills the journal, so that the log continues at the journal's beginning.
fn length(seed: u64) -> usize {
    if seed % 3 == 2 { 500 } else { 60 }
}

/// A workload that the kernel ran.
fn by_kernel(seed: u64, (format, options): (&str, &str)) -> Case {
    let base = volume::stale("12M", format);
    let history = generator::workload(seed, length(seed), Style::of(format));
    let log = kernel::record(&base, &history, options);
    let mut case =
        Case::new(format!("kernel, {format}, {options}, seed {seed}"), base, log, history);
    case.rules.fast_commits = format.contains("fast_commit");
    case
}

/// A workload that ironmap ran.
fn by_ironmap(seed: u64, format: &str) -> Case {
    let stale = volume::stale("12M", format);
    let base = tail::tagged(&stale);
    let style = Style::of(format);
    let style = if seed % 16 == 5 { style.growing() } else { style };
    let history = generator::workload(seed, length(seed), style);
    let log = ours::record(&base, &history, 0..history.ops.len());
    let mut case = Case::new(format!("ironmap, {format}, seed {seed}"), base, log, history);
    case.rules.journal = !UNJOURNALED.contains(&format);
    Case { volume: Some(stale.size()), ..case }
}

/// A workload of several threads in ironmap, partly in the same directory. The order of the threads varies, so the same seed can lead to
/// another log. The record of a failing state contains the log.
fn by_threads(seed: u64, format: &str) -> Case {
    const PREFIXES: [&str; 3] = ["a-", "b-", "c-"];
    let stale = volume::stale("12M", format);
    let (base, volume) = (tail::tagged(&stale), Some(stale.size()));
    let history = |(index, prefix)| {
        let style = Style::of(format).with_prefix(prefix);
        generator::workload(seed * 4 + index, 60, style)
    };
    let of_threads: Vec<_> = (0..).zip(PREFIXES).map(history).collect();
    let log = ours::record_threads(&base, &of_threads);
    let name = format!("threads of ironmap, {format}, seed {seed}");
    let rules = Histories { of_threads, prefixes: &PREFIXES, journal: true, fast_commits: false };
    Case { name, base, volume, log, rules }
}

/// ironmap writes to a volume. ironmap, e2fsck and the kernel each recover the crash states.
#[test]
fn crash_states_of_ironmap_are_recovered() {
    let cases = workloads(&OURS).map(|(seed, format)| (seed, by_ironmap(seed, format)));
    Effort::new().look("ironmap's crashes", cases);
}

/// Each pair of operations runs in one transaction or with a sync between them. Crash states around each pair are recovered.
#[test]
fn crash_states_of_two_operations_are_recovered() {
    let Effort { plan, states, long } = Effort::new();
    // There are about a thousand pairs. So the test checks only a few states of each pair.
    let plan = if long {
        Plan { limit: 60, ..plan }
    } else {
        Plan { limit: 2, fsck_one_in: 2000, interrupt_one_in: 2000, mount_one_in: None, ..plan }
    };
    let (counts, start) = (Counts::default(), Instant::now());
    let (pairs, mut cases, mut impossible) = (pairs::all(), 0, 0);
    for round in first_seed().. {
        // In each round, a layout is tested with other pairs of operations than in the rounds before.
        let starts = (0..)
            .zip(OURS)
            .map(|(index, format)| (index, Start::new(round * OURS.len() as u64 + index, format)));
        for (index, start) in starts {
            let here =
                pairs.iter().zip(index + round..).filter(|(_, turn)| turn % OURS.len() as u64 == 0);
            for (pair, turn) in here {
                let seed = (round * OURS.len() as u64 + index) << 16 | turn;
                match start.case(seed, *pair) {
                    Some(case) => {
                        case.assert_holds(seed, plan, &counts);
                        cases += 1;
                    }
                    None => impossible += 1,
                }
            }
        }
        if counts.states.load(Ordering::Relaxed) >= states {
            break;
        }
    }
    let took = start.elapsed();
    eprintln!(
        "crashes of pairs: rounds from {}, {cases} pairs, {impossible} not possible on their layout, {counts:?} in {took:.1?}",
        first_seed()
    );
    assert!(impossible * 10 < cases, "{impossible} pairs were not possible");
}

/// Several threads run operations at the same time. The crash states are recovered.
#[test]
fn crash_states_of_threads_are_recovered() {
    let cases = workloads(&OURS).map(|(seed, format)| (seed, by_threads(seed, format)));
    Effort::new().look("crashes of threads", cases);
}

/// Without a journal, synced data exist after a crash, and e2fsck can repair the volume.
#[test]
fn crash_states_without_a_journal_can_be_repaired() {
    let cases = workloads(&UNJOURNALED).map(|(seed, format)| (seed, by_ironmap(seed, format)));
    Effort::new().look("crashes without a journal", cases);
}

/// After a crash, the quota usage is recovered like other metadata.
#[test]
fn quota_is_recovered() {
    let Effort { plan, states, long } = Effort::new();
    // Only e2fsck verifies the quota usage. So e2fsck checks a larger share of the states than in other campaigns.
    let fsck_one_in = if long { 40 } else { 5 };
    let plan = Plan { fsck_one_in, mount_one_in: None, ..plan };
    let states = if long { states } else { 300 };
    let cases = workloads(&QUOTA).map(|(seed, format)| (seed, by_ironmap(seed, format)));
    Effort { plan, states, long }.look("crashes with quota", cases);
}

/// Linux satisfies the same rules as ironmap. ironmap reads the crash states of Linux without writing to the device.
#[test]
fn crash_states_of_the_kernel_are_recovered() {
    require!([Need::Root, Need::Tool("losetup")]);
    let effort = Effort::new();
    // With data=journal, in a few of several thousand states, a recovery by Linux shows a block of another file. ironmap recovers the same
    // content. So a long run omits data=journal.
    let kept = |(_, options): &(&str, &str)| !effort.long || !options.contains("data=journal");
    let layouts: Vec<_> = KERNEL.into_iter().filter(kept).collect();
    let cases = workloads(&layouts).map(|(seed, layout)| (seed, by_kernel(seed, layout)));
    effort.look("the kernel's crashes", cases);
}

/// Two tests show that the rules detect a violation. In the first test, Linux writes metadata before data, so a file shows data of another
/// file. In the second test, the device loses flushed writes.
#[test]
fn broken_promises_are_found() {
    require!([Need::Root, Need::Tool("losetup")]);
    let Effort { plan, .. } = Effort::new();
    let layout = ("-t ext4 -b 1024 -J size=1", "nodelalloc,data=writeback,dioread_lock");
    let check = |case: Case, seed| Some(case.check(seed, plan, &Counts::default()).err()?.1);
    let stale = (0..50).find_map(|seed| check(by_kernel(seed, layout), seed));
    assert!(stale.as_ref().is_some_and(|fault| fault.contains("data of free space")), "{stale:?}");

    let without_flushes = |seed| {
        let case = by_kernel(seed, KERNEL[0]);
        let entries = case.log.entries();
        let flushes =
            |entry: &Entry| matches!(entry, Entry::End { of, .. } if entries[*of] == Entry::Flush);
        let log =
            entries.iter().map(|entry| if flushes(entry) { Entry::Mark(0) } else { entry.clone() });
        Case { log: log.collect(), ..case }
    };
    assert!((0..50).any(|seed| check(without_flushes(seed), seed).is_some()));
}
