//! Quota is exact: after any sequence of operations e2fsck, which counts for itself, agrees with the quota files. The kernel at hand may
//! be built without quota, so it is not asked.

#[path = "../common/mod.rs"]
mod common;

mod limits;
mod random;
mod volume;

use crate::common::rng::Rng;
use crate::volume::Quota;

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

/// Batches of random operations: usage is right when the volume is closed and when it is left in the middle.
#[test]
fn usage_is_exact_after_any_operations() {
    let seed = 0x0051_07A5;
    for (number, options) in (0..).zip(SETS) {
        println!("seed {seed:#x}: {options}");
        let mut rng = Rng::new(seed + number);
        let mut quota = Quota::new(options);
        for _ in 0..4 {
            for _ in 0..400 {
                random::step(quota.fs(), &mut rng, 12);
            }
            if rng.below(2) == 0 {
                quota.crash();
            }
            quota.reopen();
        }
    }
}
