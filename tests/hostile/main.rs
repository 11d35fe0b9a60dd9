//! Hostile images: volumes whose structures are damaged and have valid checksums. No operation may panic, hang or allocate unbounded
//! memory.
//!
//! The tests and the fuzzer in `fuzz/` use the same changes. Here a seed chooses the changes. A failure names the seed and the number of
//! the case. `IRONMAP_HOSTILE=SEED:NUMBER` repeats one case. `IRONMAP_HOSTILE=SEED` runs the cases of another seed than the default.
//! `IRONMAP_HOSTILE_CASES` sets the number of cases.

#![allow(unreachable_pub, reason = "fuzz/ gives two of these types out")]

mod limits;
mod mutate;
mod repair;
mod scratch;
mod spots;
mod visit;
mod volume;
mod watch;

use arbitrary::{Arbitrary, Unstructured};

use self::mutate::Change;
use self::scratch::Scratch;
use self::spots::Target;
use self::visit::{seen, visit};
use self::volume::Base;
use self::watch::Watch;

const SEED: u64 = 0x1202_2024;
/// The default number of damaged volumes for each kind of damage and each base volume.
const CASES: u64 = 500;

/// Random bytes (splitmix64). They determine how one volume is changed.
fn random(seed: u64, number: u64) -> Vec<u8> {
    let mut state = seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = state;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    };
    let words = 3 + next() % 8;
    (0..words).flat_map(|_| next().to_le_bytes()).collect()
}

fn changes(bytes: &[u8]) -> Vec<Change> {
    let mut source = Unstructured::new(bytes);
    let mut changes = Vec::new();
    while !source.is_empty() && changes.len() < 6 {
        changes.extend(Change::arbitrary(&mut source));
    }
    changes
}

fn survive(target: Option<Target>) {
    let chosen = std::env::var("IRONMAP_HOSTILE").unwrap_or_default();
    let (seed, number) = match chosen.split_once(':') {
        Some((seed, number)) => (seed.parse().unwrap(), Some(number.parse::<u64>().unwrap())),
        None => (chosen.parse().unwrap_or(SEED), None),
    };
    println!("seed {seed}");
    let cases = std::env::var("IRONMAP_HOSTILE_CASES")
        .map_or(CASES, |cases| cases.parse().expect("IRONMAP_HOSTILE_CASES: a number"));
    let watch = Watch::start(&format!("{target:?}"));
    for base in Base::all() {
        let mut scratch = Scratch::new(base);
        let numbers = number.map_or(0..cases, |number| number..number + 1);
        for number in numbers {
            let changes = changes(&random(seed, number));
            watch.begin(format!("{} {seed}:{number} {changes:?}", scratch.base().name));
            if let Some(volume) = seen(scratch.damaged(&changes, target)) {
                visit(&volume);
            }
        }
    }
}

/// The undamaged volumes can be read without an error. Without this check, the tests below could pass for a wrong reason.
#[test]
fn the_bases_are_sound() {
    for base in Base::all() {
        let mut scratch = Scratch::new(base);
        let volume = scratch.damaged(&[], None).unwrap();
        let recovery = format!("{:?}", volume.ext4().unwrap().journal());
        assert!(recovery.contains("transactions: 3"), "{}: {recovery}", scratch.base().name);
        let root = volume.fs().inode(ironmap::fs::ext4::ROOT).unwrap();
        for entry in root.read_dir().unwrap() {
            let inode = volume.fs().inode(entry.unwrap().inode).unwrap();
            inode.xattrs().unwrap();
            if let Ok(entries) = inode.read_dir() {
                assert!(entries.into_iter().all(|entry| entry.is_ok()));
            }
        }
        visit(&volume);
    }
}

macro_rules! survives {
    ($($name:ident: $target:expr;)*) => {
        $(#[test] fn $name() { survive($target); })*
    };
}

survives! {
    superblock_and_groups: Some(Target::Superblock);
    inodes: Some(Target::Inode);
    maps: Some(Target::Map);
    directories: Some(Target::Directory);
    attributes: Some(Target::Xattr);
    inline_data: Some(Target::Inline);
    journals: Some(Target::Journal);
    mount_protection_and_orphans: Some(Target::Orphan);
    anything: None;
}
