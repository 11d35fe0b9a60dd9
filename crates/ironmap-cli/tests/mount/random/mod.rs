//! Runs random operations on ironmap's mount and on the kernel's ext4. A seed determines the operations. After each operation, its result
//! and the visible state of its files must be the same on both sides. The complete trees are compared at intervals, and after each new
//! mount. For times that come from the clock, the test only compares whether they have changed.

mod op;
mod side;

use rustix::time::{ClockId, clock_gettime};

use self::op::Op;
use self::side::{Side, Tree};
use crate::rng::Rng;
use crate::sides::{Sides, long, require_mounts};

/// The number of operations between two mounts.
const PERIOD: u64 = 400;

/// Waits for the next tick of the clock of file systems. Later changes then get another time.
fn tick() {
    let begin = clock_gettime(ClockId::RealtimeCoarse);
    while clock_gettime(ClockId::RealtimeCoarse) == begin {
        std::thread::yield_now();
    }
}

fn compare_trees(sides: &[Side; 2], when: &str) {
    let [ours, kernels]: [Tree; 2] = [sides[0].tree(), sides[1].tree()];
    for path in ours.keys().chain(kernels.keys()) {
        let (a, b) = (ours.get(path), kernels.get(path));
        if a == b {
            continue;
        }
        // The content is too long for a message. Prints its CRC instead.
        let short = |side: Option<&(_, _, Vec<u8>, _)>| {
            side.map(|(seen, xattrs, content, data)| {
                format!("{seen:?} {xattrs:?} CRC {:x} {data:?}", crc32c::crc32c(content))
            })
        };
        panic!("{when}: {}\n  ours     {:?}\n  kernel's {:?}", path.display(), short(a), short(b));
    }
}

fn run(seed: u64, count: u64, mke2fs: &[&str], options: &str) {
    rustix::process::umask(rustix::fs::Mode::empty());
    let mut rng = Rng::new(seed);
    let mut mounted = Sides::with(mke2fs, &[], options);
    let mut sides = mounted.dirs().map(Side::new);
    for number in 0..count {
        let user = [0, 0, 0, 1000, 1001][rng.below(5) as usize];
        // The first operations make directories that every user can write to.
        let op = if number < 3 {
            Op::Mkdir(["a", "b", "c"][number as usize].into(), 0o777)
        } else {
            Op::random(&mut rng)
        };
        if std::env::var_os("IRONMAP_TRACE").is_some() {
            eprintln!("{number} {user} {op:?}");
        }
        let before = sides.each_ref().map(|side| side.watch(&op));
        tick();
        let answers = sides.each_mut().map(|side| side.apply(user, &op));
        let seen = before.map(|all| all.into_iter().map(Side::look).collect::<Vec<_>>());
        let xattrs = sides.each_ref().map(|side| side.xattrs_of(&op));
        let when = format!("seed {seed}, -o {options}, operation {number} of user {user}, {op:?}");
        assert_eq!(answers[0], answers[1], "{when}: answers (ours, the kernel's)");
        assert_eq!(seen[0], seen[1], "{when}: visible state (ours, the kernel's)");
        assert_eq!(xattrs[0], xattrs[1], "{when}: extended attributes (ours, the kernel's)");
        if number % PERIOD == PERIOD - 1 || number == count - 1 {
            compare_trees(&sides, &when);
            sides.iter_mut().for_each(Side::close_all);
            mounted = mounted.again();
            compare_trees(&sides, &format!("{when}, mounted again"));
        }
    }
    mounted.end();
}

/// The results and the visible state are the same as on the kernel's ext4. Operations of all kinds run in any order and by any user.
#[test]
fn random_operations_give_what_they_give_on_the_kernels_ext4() {
    require_mounts!("random_operations_give_what_they_give_on_the_kernels_ext4");
    let seed = std::env::var("IRONMAP_SEED").ok().and_then(|seed| seed.parse().ok());
    let (seeds, count) = if long() { (10, 5000) } else { (2, 400) };
    for seed in seed.map_or(1..=seeds, |seed| seed..=seed) {
        let blocks = ["4096", "1024"];
        // A long run uses each seed with both block sizes.
        let blocks = if long() { &blocks[..] } else { &blocks[seed as usize % 2..][..1] };
        for block in blocks {
            eprintln!("seed {seed}, blocks of {block}");
            run(seed, count, &["-t", "ext4", "-b", block, "-N", "4096"], "allow_other,noatime");
        }
    }
}
