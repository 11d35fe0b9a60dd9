//! Tests `check` on XFS volumes. It finds a fault if `xfs_repair -n` finds one, and it finds nothing in undamaged volumes.
//!
//! `IRONMAP_XFS_DAMAGE` is the number of damaged volumes for each kind of damage and each base; set it for long runs. `IRONMAP_XFS_SEED`
//! sets another seed, and `IRONMAP_XFS_SEED=SEED:NUMBER` repeats one case. A failure names the base, the seed and the number.

#[path = "../common/mod.rs"]
mod common;

mod base;
mod differences;
mod fields;
mod fuzz;
mod newer;
mod quota;
mod realtime;
mod rest;
mod stripes;
#[path = "../hostile_xfs/structures.rs"]
mod structures;
mod sweep;
mod sweep_cases;
mod sweep_exceptions;
mod sweep_lab;
mod trash;
mod verdict;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use base::{BASES, Base};
use common::rng::Rng;
use verdict::Tally;

const SEED: u64 = 0x000C_4EC5;
/// The default number of damaged volumes for each kind of damage and each undamaged volume (base).
const DAMAGES: u64 = 6;

/// The undamaged volumes (bases). Tests that run at the same time share them, and the last of these tests drops them. If a static variable
/// owned the bases, they would never be dropped, and their files would remain.
fn bases() -> Arc<Vec<Base>> {
    static MADE: Mutex<Weak<Vec<Base>>> = Mutex::new(Weak::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    made.upgrade().unwrap_or_else(|| {
        let bases = Arc::new(BASES.iter().filter_map(Base::new).collect());
        *made = Arc::downgrade(&bases);
        bases
    })
}

/// Repeatedly damages copies of each undamaged volume. xfs_repair and ironmap check each copy.
fn damage(kind: &str, mut once: impl FnMut(&Base, &std::path::Path, &mut Rng) -> Option<String>) {
    let chosen = std::env::var("IRONMAP_XFS_SEED").unwrap_or_default();
    let (seed, number) = match chosen.split_once(':') {
        Some((seed, number)) => (seed.parse().unwrap(), Some(number.parse::<u64>().unwrap())),
        None => (chosen.parse().unwrap_or(SEED), None),
    };
    let count = std::env::var("IRONMAP_XFS_DAMAGE")
        .map_or(DAMAGES, |count| count.parse().expect("a number"));
    let mut tally = Tally::default();
    for base in bases().iter() {
        let copy = base.copy();
        for number in number.map_or(0..count, |number| number..number + 1) {
            let salt = common::reads::hash(format!("{kind} {}", base.name).as_bytes());
            let rng = &mut Rng::new(seed ^ salt ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            base.copy_to(&copy.path());
            let Some(what) = once(base, &copy.path(), rng) else { continue };
            let what = format!("{kind}, {}, {seed}:{number}: {what}", base.name);
            tally.compare(&what, &copy.path(), base.tools);
        }
    }
    tally.end(kind, number.is_none());
}

/// Records that the running test, or a part of it, is skipped.
fn note(reason: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("xfs_check");
    common::skip::note(name, &reason.trim_end().replace('\n', " "));
}
