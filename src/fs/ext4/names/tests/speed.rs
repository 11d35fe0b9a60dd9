//! What adding, finding and removing a name costs, and that it does not grow with the directory.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::super::{ADD_CREDITS, CHANGE_CREDITS};
use super::volume::Volume;
use crate::fs::FileType;

/// What this thread has used of a processor: others may use it too.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

/// The time that each of `parts` equal parts takes, for each name.
fn per_name(what: &str, parts: usize, count: usize, mut each: impl FnMut(usize)) -> Vec<Duration> {
    let part = count / parts;
    let times: Vec<_> = (0..parts)
        .map(|n| {
            let begin = cpu_time();
            (n * part..(n + 1) * part).for_each(&mut each);
            (cpu_time() - begin) / part as u32
        })
        .collect();
    println!("{what}: {times:?} a name");
    times
}

/// Run it with `cargo test --release --lib names::tests::speed -- --ignored --nocapture`, and `TMPDIR` in memory.
#[test]
#[ignore = "measures"]
fn a_hundred_thousand_names() {
    for options in
        ["-t ext4 -b 4096", "-t ext4 -b 1024 -O large_dir", "-t ext4 -b 4096 -O ^metadata_csum"]
    {
        println!("{options}");
        let volume = Volume::new("256M", options);
        let (fs, count) = (&volume.fs, 100_000);
        let name = |number: usize| format!("file-name-{number:07}");
        let parts = 5;
        let times = per_name("add   ", parts, count, |number| {
            let (dir, target) = (volume.dir(), volume.file(0));
            fs.transact(ADD_CREDITS, |h| {
                fs.add_entry(h, &dir, name(number).as_bytes(), target, FileType::Regular)
            })
            .unwrap();
        });
        assert!(times[parts - 1] < 5 * times[0], "the cost grows with the directory");
        per_name("lookup", parts, count, |number| {
            volume.dir().lookup(name(number).as_bytes()).unwrap();
        });
        per_name("remove", parts, count, |number| {
            let dir = volume.dir();
            fs.transact(CHANGE_CREDITS, |h| fs.remove_entry(h, &dir, name(number).as_bytes()))
                .unwrap();
        });
        volume.finish();
    }
}
