//! ironmap never returns wrong data when it reads files of mounted file systems from the device. Threads read files while other processes
//! change the files in every way, move the blocks of the files, fill the disk, and reuse freed blocks in other files.
//!
//! - `ledger`: the oracle: the values that every word of every file may have at any time.
//! - `reader`: the threads that read and check.
//! - `mutator`: processes that change files.
//! - `others`: processes that reuse blocks, move data, and freeze or grow the file system.
//!
//! `IRONMAP_TORTURE_SEED` sets the seed, to repeat a run. The order of concurrent events still varies. `IRONMAP_TORTURE_SECONDS` sets how
//! long each file system is tested.

#[path = "../common/mod.rs"]
mod common;

mod ledger;
mod mutator;
mod others;
mod reader;
#[path = "../common/sys.rs"]
mod sys;

use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::command::{output, run};
use common::image::scratch_in;
use common::mounted::Mounted;
use common::process::{self, Process};
use common::rng::Rng;
use common::skip::Need;
use ironmap::{Engine, Host, HostOptions};
use ledger::Ledger;
use reader::Seen;

/// The number of processes that change files.
const MUTATORS: usize = 2;

/// The kind of file system that is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ext4,
    Ext4Small,
    Xfs,
    XfsReflink,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Ext4, Self::Ext4Small, Self::Xfs, Self::XfsReflink];

    fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Ext4Small => "ext4 with blocks of 1 KiB",
            Self::Xfs => "XFS",
            Self::XfsReflink => "XFS with reflink",
        }
    }

    fn is_xfs(self) -> bool {
        matches!(self, Self::Xfs | Self::XfsReflink)
    }

    fn has_reflink(self) -> bool {
        self == Self::XfsReflink
    }

    fn mount(self) -> Mounted {
        match self {
            Self::Ext4 => Mounted::new("mke2fs -t ext4 -b 4096", 64, "noatime"),
            Self::Ext4Small => Mounted::new("mke2fs -t ext4 -b 1024", 64, "noatime"),
            Self::Xfs => Mounted::xfs(),
            Self::XfsReflink => Mounted::xfs_with_reflink(),
        }
    }
}

/// The settings that all processes of a run share.
struct Setting {
    kind: Kind,
    seed: u64,
    ledger: PathBuf,
    dir: PathBuf,
    image: PathBuf,
    device: String,
}

impl Setting {
    const IMMUTABLE: &str = "immutable";
    const DEDUPED: &str = "deduped";
    const VARIABLES: [&str; 6] = [
        "IRONMAP_TORTURE_KIND",
        "IRONMAP_TORTURE_SEED",
        "IRONMAP_TORTURE_LEDGER",
        "IRONMAP_TORTURE_DIR",
        "IRONMAP_TORTURE_IMAGE",
        "IRONMAP_TORTURE_DEVICE",
    ];
    const ROLE: &str = "IRONMAP_TORTURE_ROLE";

    /// Starts a process with this role and these settings.
    fn start(&self, role: &str) -> Process {
        let (kind, seed) = ((self.kind as usize).to_string(), self.seed.to_string());
        let values: [&OsStr; 6] = [
            kind.as_ref(),
            seed.as_ref(),
            self.ledger.as_ref(),
            self.dir.as_ref(),
            self.image.as_ref(),
            self.device.as_ref(),
        ];
        let mut variables = vec![(Self::ROLE, role.as_ref())];
        variables.extend(Self::VARIABLES.into_iter().zip(values));
        Process::start("process", &variables)
    }

    /// Reads the settings in the new process.
    fn given() -> Self {
        let [kind, seed, ledger, dir, image, device] =
            Self::VARIABLES.map(|name| std::env::var(name).expect("the setting"));
        let kind = Kind::ALL[kind.parse::<usize>().expect("a number")];
        let (ledger, dir, image) = (ledger.into(), dir.into(), image.into());
        Self { kind, seed: seed.parse().expect("a number"), ledger, dir, image, device }
    }

    /// The path of a file that a mutator (a process that changes files) uses. `slot` is the index of the file among the files of this
    /// mutator.
    fn slot(&self, mutator: usize, slot: usize) -> PathBuf {
        self.dir.join(format!("slot.{mutator}.{slot}"))
    }

    fn any_slot(&self, rng: &mut Rng) -> PathBuf {
        let mutator = rng.below(MUTATORS as u64) as usize;
        self.slot(mutator, rng.below(mutator::FILES as u64) as usize)
    }

    /// Creates files that no process changes.
    fn make_fixed(&self, ledger: &Ledger, name: &str) {
        let file = std::fs::File::create_new(self.dir.join(name)).unwrap();
        let id = ledger.new_file().unwrap();
        ledger::name(&file, id).unwrap();
        let change = ledger.change(id);
        let size = ledger::LARGEST;
        change.data(0..size);
        file.write_all_at(&ledger::content(id, 0..size, change.version), 0).unwrap();
        change.ended(0..size);
        change.end(size);
    }
}

/// Stops all processes if a reader fails.
struct StopOnFailure<'a>(&'a Ledger);

impl Drop for StopOnFailure<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

/// Makes a file immutable. Dropping this value clears the flag, so that the directory can be removed.
struct Immutable(PathBuf);

impl Immutable {
    fn new(path: PathBuf) -> Self {
        run("chattr", &[OsStr::new("+i"), path.as_os_str()]);
        Self(path)
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        output("chattr", &[OsStr::new("-i"), self.0.as_os_str()]);
    }
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    Some(number.unwrap_or_else(|_| panic!("{name} is a number")))
}

/// The entry point of the other processes of the test. In a normal run, this test function does nothing.
#[test]
fn process() {
    let Ok(role) = std::env::var(Setting::ROLE) else { return };
    process::end_with_parent();
    let setting = Setting::given();
    let ledger = Ledger::open(&setting.ledger);
    let _stop = StopOnFailure(&ledger);
    match role.as_str() {
        "churn" => others::churn(&setting, &ledger),
        "administer" => others::administer(&setting, &ledger),
        number => mutator::run(&setting, &ledger, number.parse().expect("a mutator's number")),
    }
}

fn torture(kind: Kind) {
    // The tests run one at a time, because each uses all processors.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let seconds = variable("IRONMAP_TORTURE_SECONDS").unwrap_or(6);
    let seed = variable("IRONMAP_TORTURE_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let memory = scratch_in(Path::new("/dev/shm"));
    let mounted = kind.mount();
    let setting = Setting {
        kind,
        seed,
        ledger: memory.path().join("ledger"),
        dir: mounted.dir().to_owned(),
        image: mounted.image(),
        device: mounted.device().to_owned(),
    };
    let ledger = Ledger::create(&setting.ledger);
    setting.make_fixed(&ledger, Setting::DEDUPED);
    setting.make_fixed(&ledger, Setting::IMMUTABLE);
    let _immutable = Immutable::new(mounted.path(Setting::IMMUTABLE));
    leave_little(&setting);

    let begin = Instant::now();
    let mut processes: Vec<_> =
        (0..MUTATORS).map(|number| setting.start(&number.to_string())).collect();
    processes.extend(["churn", "administer"].map(|role| setting.start(role)));
    let hosts = [Engine::IoUring, Engine::Psync, Engine::Auto]
        .map(|engine| Host::new(&HostOptions::new().engine(engine)).unwrap());
    let mut seen = Seen::default();
    std::thread::scope(|scope| {
        let (setting, ledger, hosts) = (&setting, &ledger, &hosts);
        let readers: Vec<_> = [0, 0, 1, 2]
            .into_iter()
            .enumerate()
            .map(|(number, host)| {
                scope.spawn(move || {
                    let _stop = StopOnFailure(ledger);
                    reader::run(setting, ledger, &hosts[host], number as u64)
                })
            })
            .collect();
        while begin.elapsed() < Duration::from_secs(seconds) && !ledger.stopped() {
            process::pause(Duration::from_millis(20));
            let running = processes.iter_mut().all(Process::runs);
            if !running {
                break;
            }
        }
        ledger.stop();
        for reader in readers {
            seen += reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    processes.into_iter().for_each(Process::finish);
    report(&setting, &ledger, seen);
}

/// Allocates most of the free space of a large file system. So blocks that are freed are reused soon.
fn leave_little(setting: &Setting) {
    let free = rustix::fs::statvfs(&setting.dir).unwrap();
    let taken = (free.f_bavail * free.f_frsize).saturating_sub(48 << 20);
    if taken > 0 {
        let ballast = std::fs::File::create_new(setting.dir.join("ballast")).unwrap();
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&ballast, flags, 0, taken).unwrap();
    }
}

/// Prints the counts of a run. If a kind of event that the test needs did not occur, fails the test.
fn report(setting: &Setting, ledger: &Ledger, seen: Seen) {
    let name = setting.kind.name();
    let (waits, shares) = ledger.waits(&[0.5, 0.99, 1.0]);
    let raw = seen.reads.saturating_sub(seen.kernel_served) as f64 / seen.reads.max(1) as f64;
    eprintln!("{name}, seed {:#x}: {seen:?}, {:.0} % raw", setting.seed, raw * 100.0);
    eprintln!(
        "{name}: {waits} writers waited for a lease: p50 {} us, p99 {} us, at most {} us",
        shares[0], shares[1], shares[2]
    );
    let operations = mutator::OPERATIONS.iter().map(|(name, _)| name).chain(&others::ACTS);
    let counts = operations
        .enumerate()
        .map(|(number, operation)| format!("{operation} {}", ledger.counted(number)));
    eprintln!("{name}: {}\n", counts.collect::<Vec<_>>().join(", "));
    assert!(raw > 0.2, "most reads were not raw: this proves nothing");
    assert!(seen.breaks > 0 && waits > 0, "nobody broke a lease: this proves nothing");
    // The length of the waits depends on the machine. But no wait may last until the kernel removes the lease.
    let force = std::fs::read_to_string("/proc/sys/fs/lease-break-time").unwrap();
    let force = force.trim().parse::<u64>().unwrap() * 1_000_000;
    assert!(shares[2] < force, "writers wait for {} us", shares[2]);
}

#[test]
fn ext4_is_never_wrong() {
    require!([Need::Root, Need::Tool("e4defrag"), Need::Tool("fsfreeze")]);
    torture(Kind::Ext4);
}

#[test]
fn ext4_with_small_blocks_is_never_wrong() {
    require!([Need::Root, Need::Tool("e4defrag"), Need::Tool("fsfreeze")]);
    torture(Kind::Ext4Small);
}

#[test]
fn xfs_is_never_wrong() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_fsr")]);
    torture(Kind::Xfs);
}

#[test]
fn xfs_with_reflink_is_never_wrong() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_fsr")]);
    torture(Kind::XfsReflink);
}
