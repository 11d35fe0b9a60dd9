//! The figures of `ironmap bench` agree with fio's. A test program of its own, which nothing else runs beside.

#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "support/results.rs"]
mod results;

use std::path::{Path, PathBuf};

use common::image::Image;
use common::skip::Need;
use results::{RELEASE, bench};
use serde_json::Value;

/// A request of fio takes as long as one of ours and what fio itself adds. Noise may spoil a try, hardly all of them.
#[test]
fn raw_and_kernel_do() {
    const TRIES: usize = 6;
    require!([Need::Root, Need::Tool("fio"), Need::Variable(RELEASE)]);
    let image = Image::mke2fs("256M", &["-t", "ext4", "-b", "4096"]);
    let mount = image.mount("rw");
    let file = mount.dir().join("file");
    std::fs::write(&file, vec![0xAD; 64 << 20]).unwrap();
    rustix::fs::sync();
    let device = device_of(mount.dir());
    for (kind, path) in [("raw", &device), ("kernel", &file)] {
        let target = format!("{kind}:{}", path.display());
        let mut seen = Vec::new();
        let agrees = (0..TRIES).any(|_| {
            let rows = bench(&[&target, "--size", "64m", "--runtime", "0.3", "--rounds", "3"]);
            let (ours, theirs) = (1e9 / rows[0]["iops"].as_f64().unwrap(), 1e9 / fio_iops(path));
            seen.push((ours as u64, theirs as u64));
            // Noise makes either slower.
            let ours = seen.iter().map(|(ours, _)| *ours).min().unwrap() as f64;
            let theirs = seen.iter().map(|(_, theirs)| *theirs).min().unwrap() as f64;
            (0.35 * theirs..1.1 * theirs).contains(&ours)
        });
        assert!(agrees, "ns of {target}, ours and fio's: {seen:?}");
    }
}

fn fio_iops(path: &Path) -> f64 {
    let filename = format!("--filename={}", path.display());
    let options = "--name=job --readonly --size=64m --rw=randread --bs=4k --direct=1 --ioengine=psync --time_based \
                   --runtime=1 --norandommap --gtod_reduce=1 --output-format=json";
    let args: Vec<&str> = options.split_whitespace().chain([&filename[..]]).collect();
    let output: Value = serde_json::from_slice(&common::command::run("fio", &args)).unwrap();
    output["jobs"][0]["read"]["iops"].as_f64().unwrap()
}

/// The device that is mounted there.
fn device_of(mount: &Path) -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let found = fields.into_iter().find(|fields| Path::new(fields[1]) == mount);
    found.expect("a mount")[0].into()
}
