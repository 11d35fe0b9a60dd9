//! Quota is exact: after any sequence of operations, the quota files agree with the count of e2fsck. The kernel is not an oracle here,
//! because it may be built without quota.

mod limits;
mod random;
mod volume;

use ironmap::ErrorKind;

use crate::common::rng::Rng;
use crate::quota::random::Scope;
use crate::quota::volume::Quota;

const SETS: [&str; 8] = [
    "-t ext4 -b 4096 -I 256 -O quota,project",
    "-t ext4 -b 1024 -I 256 -O quota,project",
    "-t ext4 -b 1024 -I 256 -O quota,project,ea_inode -J size=16",
    "-t ext4 -b 4096 -I 256 -O quota,project,inline_data,ea_inode -J size=16",
    "-t ext4 -b 1024 -I 256 -O quota,project,bigalloc,ea_inode -C 8192 -J size=16",
    "-t ext4 -b 4096 -I 256 -O quota,project,bigalloc,inline_data -C 16384",
    "-t ext3 -b 1024 -I 128 -O quota",
    "-t ext4 -b 1024 -I 256 -O project",
];

const ANY: Scope = Scope { id: None, names: 12 };

/// After random operations, the usage is correct, both after a close and after a crash.
#[test]
fn usage_is_exact_after_any_operations() {
    let seed = 0x0051_07A5;
    for (number, options) in (0..).zip(SETS) {
        println!("seed {seed:#x}: {options}");
        let mut rng = Rng::new(seed + number);
        let mut quota = Quota::new("64M", options);
        for _ in 0..4 {
            for _ in 0..400 {
                random::step(quota.fs(), &mut rng, ANY);
            }
            if rng.below(2) == 0 {
                quota.crash();
            }
            quota.reopen();
        }
    }
}

/// If space for files or for the quota files runs out, the usage includes only allocated space.
#[test]
fn usage_is_exact_on_a_full_volume() {
    let seed = 0x00F0_1157;
    println!("seed {seed:#x}");
    let mut rng = Rng::new(seed);
    let mut quota = Quota::new("3M", "-t ext4 -b 1024 -I 256 -O quota,project");
    let mut full = 0;
    for _ in 0..4 {
        for _ in 0..400 {
            let answer = random::step(quota.fs(), &mut rng, Scope { id: None, names: 60 });
            full += u32::from(answer == Some(ErrorKind::NoSpace));
        }
        quota.reopen();
    }
    assert!(full > 10, "{full} times");
}

/// Several threads change the usage of the same owners at the same time, and add new owners. Afterwards the usage is exact.
#[test]
fn usage_is_exact_with_many_threads() {
    let seed = 0x07_4EAD;
    println!("seed {seed:#x}");
    let mut quota = Quota::new("64M", "-t ext4 -b 1024 -I 256 -O quota,project");
    for round in 0..3 {
        let fs = quota.fs();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    let mut rng = Rng::new(seed + round * 4 + thread);
                    for _ in 0..300 {
                        random::step(fs, &mut rng, ANY);
                    }
                });
            }
        });
        quota.reopen();
    }
}
