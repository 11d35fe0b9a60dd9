//! Power cuts during direct writes. Data that were acknowledged as durable exist, and data appear only at the positions to which they were
//! written.
//!
//! `IRONMAP_CRASH_STATES` sets the number of states. `./x crash` sets this variable. e2fsck checks one of every ten states.
//! `IRONMAP_CRASH_SEED` sets the seed of the first workload, so that a failure can be repeated.

mod faults;
mod flushes;
mod history;
mod requests;
mod rules;
mod workload;

use crate::crash::volume;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::common::beneath::{self, Beneath};
use crate::crash::campaign::{self, Counts, Plan};
use ironmap::device::{Entry, Log};
use rules::Writes;
use workload::Kind;

type Case = campaign::Case<Writes>;

/// A plan without interrupted recoveries and without kernel mounts.
fn plan_of(random: u32, limit: usize, fsck_one_in: u64) -> Plan {
    Plan { random, limit, fsck_one_in, interrupt_one_in: u64::MAX, mount_one_in: None }
}

/// How a workload is checked, and the total number of states to check.
fn plan() -> (Plan, usize) {
    match std::env::var("IRONMAP_CRASH_STATES") {
        Ok(states) => {
            let states = states.parse().expect("IRONMAP_CRASH_STATES: a number");
            (plan_of(4, 1500, 10), states)
        }
        Err(_) => (plan_of(2, 150, 15), 1500),
    }
}

/// Sizes and `mke2fs` options. The volumes are small, so that freed blocks are soon allocated to another file.
const LAYOUTS: [(&str, &str, Kind); 7] = [
    ("12M", "-t ext4 -b 4096 -J size=4", Kind::Everything),
    ("6M", "-t ext4 -b 1024 -J size=1", Kind::Everything),
    ("12M", "-t ext4 -b 1024 -J size=1 -O bigalloc -C 16384", Kind::Everything),
    ("6M", "-t ext4 -b 1024 -J size=1 -O orphan_file", Kind::Everything),
    ("12M", "-t ext4 -b 2048 -J size=2 -O ^metadata_csum,^64bit", Kind::Everything),
    ("6M", "-t ext4 -b 4096 -O ^has_journal", Kind::Overwrites),
    ("6M", "-t ext4 -b 1024 -O ^has_journal", Kind::Overwrites),
];

/// The number of operations.
const LENGTH: usize = 70;

fn case(seed: u64) -> Case {
    let (size, format, kind) = LAYOUTS[seed as usize % LAYOUTS.len()];
    let name = format!("{format}, {kind:?}, seed {seed}");
    Case::new(name, kind, &volume::stale(size, format), seed, LENGTH)
}

fn first_seed() -> u64 {
    std::env::var("IRONMAP_CRASH_SEED").map_or(0, |seed| seed.parse().expect("a seed"))
}

#[test]
fn durable_data_are_there_and_unwritten_data_never_show() {
    let (plan, states) = plan();
    let (counts, start) = (Counts::default(), Instant::now());
    for seed in first_seed().. {
        case(seed).assert_holds(seed, plan, &counts);
        if counts.states.load(Relaxed) >= states {
            break;
        }
    }
    eprintln!("crashes of direct writes: {counts:?} in {:.1?}", start.elapsed());
}

/// A test shows that the rules detect a device that loses flushed data.
#[test]
fn broken_promises_are_found() {
    let plan = plan_of(2, 400, u64::MAX);
    let is_broken = |without: fn(&Log, &Entry) -> Option<Entry>| {
        (0..20).any(|seed| {
            let case = case(seed);
            let changed = |entry| without(&case.log, entry).unwrap_or(Entry::Mark(0));
            let log = case.log.entries().iter().map(changed).collect();
            Case { log, ..case }.check(seed, plan, &Counts::default()).is_err()
        })
    };
    let without_flushes = |log: &Log, entry: &Entry| {
        let flush = matches!(entry, Entry::End { of, .. } if log.entries()[*of] == Entry::Flush);
        (!flush).then(|| entry.clone())
    };
    assert!(is_broken(without_flushes), "flushes do nothing");
    let without_fua = |_: &Log, entry: &Entry| match entry {
        Entry::Write { at, data, .. } => {
            Some(Entry::Write { at: *at, data: data.clone(), fua: false })
        }
        other => Some(other.clone()),
    };
    // The server of an NBD export flushes after each write with FUA.
    let has_fua = !matches!(beneath::chosen(), Some(Beneath::Nbd(_)));
    assert!(!has_fua || is_broken(without_fua), "FUA does nothing");
}
