//! Faults of volumes under load. A device fails some or all requests, the volume is full, the daemon is killed, or the clock jumps.
//! Afterwards, all synced data exist, and e2fsck finds no fault.

mod device;
mod load;
mod told;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Signal, kill_process};

use self::device::Device;
use self::load::Load;
use crate::rng::Rng;
use crate::sides::{Ours, check, long, require_mounts, skip, unmount};
use crate::support::{Bench, succeed, text, tool};

const FAKE_TIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
const LOADS: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// One of several writes fails.
    Writes,
    /// One of several reads fails.
    Reads,
    /// The device fails all requests.
    Dead,
    /// The daemon is killed.
    Killed,
    /// The volume becomes full repeatedly.
    Full,
    /// The clock of the daemon jumps forwards and backwards.
    Clock,
}

struct Campaign {
    fault: Fault,
    rng: Rng,
    bench: Bench,
    /// The number of steps that all loads have made.
    steps: AtomicU64,
}

impl Campaign {
    /// The number of steps of each load.
    fn steps() -> u64 {
        if long() { 400 } else { 40 }
    }

    fn clock(&self) -> std::path::PathBuf {
        self.bench.path("clock")
    }

    fn jump(&self, to: &str) {
        // The file is replaced atomically, because the daemon may read it at any time.
        let new = self.bench.path("clock.new");
        fs::write(&new, to).unwrap();
        fs::rename(new, self.clock()).unwrap();
    }

    fn mount(&self, device: &Path, dir: &Path) -> Ours {
        if self.fault != Fault::Clock {
            return Ours::mount(device, dir, "rw");
        }
        self.jump("+0");
        let clock = self.clock();
        let environment: [(&str, &OsStr); 4] = [
            ("LD_PRELOAD", FAKE_TIME.as_ref()),
            ("FAKETIME_TIMESTAMP_FILE", clock.as_ref()),
            ("FAKETIME_NO_CACHE", "1".as_ref()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".as_ref()),
        ];
        Ours::mount_in(device, dir, "rw", &environment)
    }

    /// Runs the loads, and starts the fault after a few steps. Returns whether all loads have completed.
    fn under_load(&mut self, device: &Device, ours: &Ours, loads: &mut [Load]) -> bool {
        let begin = self.rng.below(Self::steps() * LOADS / 2);
        let (this, total) = (&*self, Self::steps());
        std::thread::scope(|scope| {
            let running =
                loads.iter_mut().map(|load| scope.spawn(move || load.run(total, &this.steps)));
            let running = running.collect::<Vec<_>>();
            while this.steps.load(Ordering::Relaxed) < begin
                && !running.iter().all(|load| load.is_finished())
            {
                std::thread::yield_now();
            }
            let ended = || running.iter().all(|load| load.is_finished());
            match this.fault {
                Fault::Writes => device.faults.writes.store(50, Ordering::Relaxed),
                Fault::Reads => device.faults.reads.store(20, Ordering::Relaxed),
                Fault::Dead => {
                    device.faults.writes.store(1, Ordering::Relaxed);
                    device.faults.reads.store(1, Ordering::Relaxed);
                }
                Fault::Killed => kill_process(ours.id(), Signal::KILL).unwrap(),
                Fault::Full => {
                    while !ended() {
                        fill(&ours.dir.join("filler"));
                    }
                }
                Fault::Clock => {
                    for jump in
                        ["-9000d", "+0", "+5000d", "-1d", "+36500d", "-20000d"].iter().cycle()
                    {
                        if ended() {
                            break;
                        }
                        let now = this.steps.load(Ordering::Relaxed);
                        this.jump(jump);
                        while this.steps.load(Ordering::Relaxed) < now + 3 && !ended() {
                            std::thread::yield_now();
                        }
                    }
                    this.jump("+0");
                }
            }
            running.into_iter().map(|load| load.join().unwrap()).all(|end| end.is_ok())
        })
    }
}

/// Fills the volume with a file, and removes this file.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    let bytes = vec![7; 1 << 16];
    loop {
        match file.write_all(&bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => break,
            Err(error) => panic!("the filler: {error}"),
        }
    }
    drop(file);
    fs::remove_file(path).unwrap();
}

fn run(fault: Fault, seed: u64, block: &str) {
    let when = format!("{fault:?}, seed {seed}, blocks of {block}");
    eprintln!("{when}");
    let bench = Bench::empty();
    let (image, dir) = (bench.image(), bench.path("mounted"));
    succeed(tool("mke2fs").args(["-qF", "-t", "ext4", "-b", block]).arg(&image).arg("48M"));
    (0..LOADS).for_each(|number| bench.debugfs(&format!("mkdir {number}")));
    let device = Device::new(&image, &bench.path("device"));
    let mut campaign = Campaign { fault, rng: Rng::new(seed), bench, steps: AtomicU64::new(0) };
    let mut loads = (0..LOADS).map(|number| Load::new(&dir, number, seed)).collect::<Vec<_>>();
    let mut ours = campaign.mount(&device.path(), &dir);
    let unhurt = campaign.under_load(&device, &ours, &mut loads);
    if matches!(fault, Fault::Full | Fault::Clock) {
        assert!(unhurt, "{when}: a load failed");
        loads.iter().for_each(|load| load.verify(&when));
        ours.unmount();
        drop(device);
        check(&image);
        return;
    }
    // The daemon may exit with an error, because it reports the failures of the device.
    if fault != Fault::Killed {
        unmount(&dir);
    }
    ours.wait();
    drop(ours);
    device.faults.writes.store(0, Ordering::Relaxed);
    device.faults.reads.store(0, Ordering::Relaxed);

    let ours = Ours::mount(&device.path(), &dir, "rw");
    loads.iter().for_each(|load| load.verify(&when));
    ours.unmount();
    drop(device);
    // The device's errors are recorded until e2fsck has run. This record is the only finding that e2fsck may report.
    let out = tool("e2fsck").args(["-fy"]).arg(&image).output().unwrap();
    let found = text(&out.stdout);
    let complaints = found.lines().filter(|line| line.contains('?') || line.contains("FIXED"));
    assert_eq!(complaints.collect::<Vec<_>>(), Vec::<&str>::new(), "{when}: {found}");
    check(&image);
}

fn each(fault: Fault) {
    let first = std::env::var("IRONMAP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let seeds = if long() { 10 } else { 1 };
    for seed in first..first + seeds {
        run(fault, seed, ["1024", "4096"][seed as usize % 2]);
    }
}

/// If writes fail, the data of each successful sync exist.
#[test]
fn a_device_whose_writes_fail() {
    require_mounts!("a_device_whose_writes_fail");
    each(Fault::Writes);
}

/// If reads fail, the volume does not change.
#[test]
fn a_device_whose_reads_fail() {
    require_mounts!("a_device_whose_reads_fail");
    each(Fault::Reads);
}

/// After the device has failed all requests, its state is as after a power cut.
#[test]
fn a_device_that_is_gone() {
    require_mounts!("a_device_that_is_gone");
    each(Fault::Dead);
}

/// If the daemon is killed under load, all synced data exist.
#[test]
fn a_daemon_that_is_killed() {
    require_mounts!("a_daemon_that_is_killed");
    each(Fault::Killed);
}

/// When the volume becomes full, no earlier data are lost. The removal of files frees space.
#[test]
fn a_volume_that_is_full() {
    require_mounts!("a_volume_that_is_full");
    each(Fault::Full);
}

/// If the clock jumps backwards, or years forwards, only timestamps are affected.
#[test]
fn a_clock_that_jumps() {
    require_mounts!("a_clock_that_jumps");
    if !Path::new(FAKE_TIME).exists() {
        return skip("a_clock_that_jumps", "needs libfaketime");
    }
    each(Fault::Clock);
}
