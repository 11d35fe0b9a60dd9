//! Power cuts: a recorded device is cut between any two of its writes, with any part of what was not flushed, and what is left is
//! consistent, holds everything that was promised, and nothing that was not.
//!
//! `IRONMAP_CRASH_STATES` asks for so many states of each kind of workload, all of them shown to e2fsck: `./x crash`.
//! `IRONMAP_CRASH_SEED` begins with the workload of that seed: a failure is repeated by it.

#[path = "../common/mod.rs"]
mod common;

mod campaign;
mod faults;
mod fsck;
mod generator;
mod history;
mod kernel;
mod ours;
mod seen;
mod volume;
mod watched;

use std::sync::atomic::Ordering;
use std::time::Instant;

use campaign::{Case, Counts, Plan};
use common::skip::Need;
use ironmap::device::Entry;

/// What of a workload's states is looked at, and how many states in all.
fn plan() -> (Plan, usize) {
    let root = Need::Root.missing().is_none();
    match std::env::var("IRONMAP_CRASH_STATES") {
        Ok(states) => {
            let states = states.parse().expect("IRONMAP_CRASH_STATES: a number");
            (
                Plan {
                    random: 6,
                    limit: 1500,
                    fsck_one_in: 1,
                    interrupt_one_in: 10,
                    mount_one_in: root.then_some(20),
                },
                states,
            )
        }
        Err(_) => (
            Plan {
                random: 2,
                limit: 200,
                fsck_one_in: 20,
                interrupt_one_in: 50,
                mount_one_in: root.then_some(50),
            },
            1000,
        ),
    }
}

/// How many operations: few, or enough to go around the log.
fn length(seed: u64) -> usize {
    if seed % 3 == 2 { 500 } else { 60 }
}

/// Seeds, each with its layout.
fn workloads<T: Clone>(layouts: [T; 8]) -> impl Iterator<Item = (u64, T)> {
    let first = std::env::var("IRONMAP_CRASH_SEED").map_or(0, |seed| seed.parse().expect("a seed"));
    (0..).zip(layouts.into_iter().cycle()).skip(first)
}

/// `mke2fs` and mount options. Without delayed allocation more reaches the device between two promises.
const KERNEL: [(&str, &str); 8] = [
    ("-t ext4 -b 1024 -J size=1", "nodelalloc"),
    ("-t ext4 -b 1024 -J size=1", "defaults"),
    ("-t ext4 -b 4096 -J size=4", "nodelalloc"),
    ("-t ext4 -b 1024 -J size=1", "data=journal"),
    ("-t ext4 -b 1024 -J size=1 -O ^metadata_csum,^64bit,orphan_file", "nodelalloc"),
    (
        "-t ext4 -b 1024 -J size=1 -O ^metadata_csum,inline_data",
        "data=journal,journal_async_commit",
    ),
    ("-t ext3 -b 1024 -J size=1", "nodelalloc"),
    ("-t ext4 -b 2048 -J size=2 -O bigalloc -C 8192", "nodelalloc"),
];

/// A workload that the kernel ran.
fn by_kernel(seed: u64, (format, options): (&str, &str)) -> Case {
    let base = volume::stale("12M", format);
    let history = generator::workload(seed, length(seed), !format.contains("ext3"));
    let log = kernel::record(&base, &history, options);
    Case { name: format!("kernel, {format}, {options}, seed {seed}"), base, log, history }
}

/// `mke2fs` options.
const OURS: [&str; 8] = [
    "-t ext4 -b 1024 -J size=1",
    "-t ext4 -b 4096 -J size=4",
    "-t ext4 -b 1024 -J size=1 -O ^metadata_csum,^64bit",
    "-t ext4 -b 1024 -J size=1 -O orphan_file",
    "-t ext4 -b 1024 -J size=1 -O inline_data",
    "-t ext3 -b 1024 -J size=2",
    "-t ext4 -b 2048 -J size=2 -O bigalloc -C 8192",
    "-t ext4 -b 1024 -J size=1 -N 128 -I 128",
];

/// A workload that ironmap ran.
fn by_ironmap(seed: u64, format: &str) -> Case {
    let base = volume::stale("12M", format);
    let history = generator::workload(seed, length(seed), !format.contains("ext3"));
    let log = ours::record(&base, &history);
    Case { name: format!("ironmap, {format}, seed {seed}"), base, log, history }
}

/// What ironmap leaves is recovered by itself, by e2fsck and by the kernel.
#[test]
fn what_ironmap_leaves_is_recovered() {
    let (plan, states) = plan();
    let (counts, start) = (Counts::default(), Instant::now());
    for (seed, format) in workloads(OURS) {
        by_ironmap(seed, format).assert_holds(seed, plan, &counts);
        if counts.states.load(Ordering::Relaxed) >= states {
            break;
        }
    }
    eprintln!("ironmap's crashes: {counts:?} in {:.1?}", start.elapsed());
}

/// Quota is as right after a crash as all else. The kernel at hand may be built without it, and is not asked.
#[test]
fn quota_is_recovered() {
    let (plan, _) = plan();
    let plan = Plan { fsck_one_in: 2, mount_one_in: None, ..plan };
    let formats = [
        "-t ext4 -b 1024 -J size=1 -I 256 -O quota,project",
        "-t ext4 -b 4096 -J size=4 -I 256 -O quota,project,inline_data",
    ];
    let counts = Counts::default();
    for (seed, format) in (0..).zip(formats) {
        by_ironmap(seed, format).assert_holds(seed, plan, &counts);
    }
    eprintln!("crashes with quota: {counts:?}");
}

/// Linux keeps the rules that ironmap is held to, and ironmap recovers, without writing, what Linux left.
#[test]
fn what_the_kernel_leaves_is_recovered() {
    require!([Need::Root, Need::Tool("losetup")]);
    let (plan, states) = plan();
    let (counts, start) = (Counts::default(), Instant::now());
    for (seed, layout) in workloads(KERNEL) {
        by_kernel(seed, layout).assert_holds(seed, plan, &counts);
        if counts.states.load(Ordering::Relaxed) >= states {
            break;
        }
    }
    eprintln!("the kernel's crashes: {counts:?} in {:.1?}", start.elapsed());
}

/// The rules find what they are for: data of others, where Linux does not order data before metadata; and a device that forgets
/// what it was told to make durable.
#[test]
fn broken_promises_are_found() {
    require!([Need::Root, Need::Tool("losetup")]);
    let (plan, _) = plan();
    let layout = ("-t ext4 -b 1024 -J size=1", "nodelalloc,data=writeback,dioread_lock");
    let check = |case: Case, seed| Some(case.check(seed, plan, &Counts::default()).err()?.1);
    let stale = (0..50).find_map(|seed| check(by_kernel(seed, layout), seed));
    assert!(
        stale.as_ref().is_some_and(|fault| fault.contains("what free space held")),
        "{stale:?}"
    );

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
