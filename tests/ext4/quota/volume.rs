//! A volume with quota, in memory, and the programs that check it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ironmap::Volume;
use ironmap::device::Ram;
use ironmap::fs::{Clock, FileSystem, Timestamp};
use tempfile::TempDir;

use crate::common::beneath::over;
use crate::common::command::{output, run};
use crate::common::image::{scratch_in, words};

/// The time of the volume's clock, in seconds.
pub(crate) const NOW: i64 = 1_700_000_000;

pub(crate) struct Quota {
    ram: Arc<Ram>,
    volume: Volume,
    dir: TempDir,
    options: String,
}

/// The usage of an id, as debugfs prints it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

fn open(ram: &Arc<Ram>, now: i64) -> Volume {
    let clock = Clock::Fixed(Timestamp { seconds: now, nanoseconds: 1 });
    let device = over(Arc::clone(ram) as _);
    Volume::writable_on(device, clock).unwrap_or_else(|error| panic!("{error}"))
}

impl Quota {
    /// Makes a volume with the given size (in mke2fs's syntax) and the given options.
    pub(crate) fn new(size: &str, options: &str) -> Self {
        let dir = scratch_in(Path::new("/dev/shm"));
        let image = dir.path().join("image");
        let path = image.to_str().expect("a plain path");
        run("mke2fs", &[&["-Fq"], &words(options)[..], &[path, size]].concat());
        let ram = Arc::new(Ram::from_image(&std::fs::read(&image).expect("the image")));
        Self { volume: open(&ram, NOW), ram, dir, options: options.to_owned() }
    }

    pub(crate) fn fs(&self) -> &Arc<dyn FileSystem> {
        self.volume.fs()
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// Closes the volume, asserts that e2fsck and ironmap's check find nothing, and opens the volume again.
    pub(crate) fn reopen(&mut self) {
        self.change(NOW, |_| {});
    }

    /// Closes the volume, changes its bytes, and opens the volume again at another time.
    pub(crate) fn change(&mut self, now: i64, change: impl FnOnce(&mut Vec<u8>)) {
        self.volume.close().unwrap_or_else(|error| panic!("{}: {error}", self.options));
        self.judge();
        let mut bytes = std::fs::read(self.image()).expect("the image");
        change(&mut bytes);
        self.ram = Arc::new(Ram::from_image(&bytes));
        self.volume = open(&self.ram, now);
    }

    /// Simulates a crash after a sync. Later changes are lost.
    pub(crate) fn crash(&mut self) {
        self.fs().sync().unwrap_or_else(|error| panic!("{error}"));
        let left = Arc::new(self.ram.snapshot());
        self.volume = open(&left, NOW);
        self.ram = left;
    }

    fn judge(&self) {
        self.ram.store(&File::create(self.image()).expect("a file")).expect("store the image");
        let out = output("e2fsck", &["-fn".as_ref(), self.image().as_os_str()]);
        let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
        // The exit code of e2fsck does not show wrong quota, so its output is searched.
        let complains = text.contains("? no") || text.contains("QUOTA WARNING");
        assert!(out.status.success() && !complains, "{}: {text}", self.options);
        let device = over(Arc::clone(&self.ram) as _);
        let volume = Volume::on(device).unwrap_or_else(|error| panic!("{error}"));
        let report =
            volume.ext4().unwrap().check(&mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
        let findings: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
        assert!(report.is_clean(), "{}: {}", self.options, findings.join("\n"));
    }

    /// The entry of an id in the quota file of `user`, `group` or `project`, as debugfs prints it. The file contains the usage at the last
    /// close.
    pub(crate) fn said(&self, kind: &str, id: u32) -> Said {
        let request = format!("lq {kind}");
        let out = run("debugfs", &["-R".as_ref(), request.as_ref(), self.image().as_os_str()]);
        let text = String::from_utf8_lossy(&out);
        let line = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let line = line.into_iter().find(|line| line.first() == Some(&&*id.to_string()));
        let line = line.unwrap_or_else(|| panic!("{kind} {id}: {text}"));
        let number = |at: usize| line[at].parse().expect("a number");
        Said { bytes: number(1), inodes: number(4) }
    }
}
