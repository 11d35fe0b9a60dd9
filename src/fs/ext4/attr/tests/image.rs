//! A volume made by mke2fs, asked by programs that know nothing of us.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use crate::device::{BlockFile, OpenMode, Psync};
use crate::fs::Timestamp;
use crate::fs::ext4::{Clock, Ext4};

/// An image file, gone when dropped.
pub(super) struct Image {
    dir: tempfile::TempDir,
}

impl Image {
    /// A volume made with these options of mke2fs, as one writes them in a shell.
    pub(super) fn new(options: &str) -> Self {
        let prefix = format!("ironmap-test-{}-", std::process::id());
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir().unwrap();
        let image = Self { dir };
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-Fq"]).args(options.split_whitespace()).arg(image.path()).arg("32M");
        let out = mke2fs.output().unwrap();
        assert!(out.status.success(), "{options}: {}", String::from_utf8_lossy(&out.stderr));
        image
    }

    pub(super) fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    pub(super) fn open(&self) -> Arc<Ext4> {
        let mode = OpenMode { write: true, ..OpenMode::default() };
        let device = Psync::new(Arc::new(BlockFile::open(&self.path(), &mode).unwrap()));
        let clock = Clock::Fixed(Timestamp { seconds: 1_700_000_000, nanoseconds: 5 });
        Ext4::open_for_writing(Arc::new(device), &Arc::default(), clock).unwrap()
    }

    /// What debugfs answers.
    pub(super) fn debugfs(&self, command: &str) -> String {
        let mut debugfs = Command::new("debugfs");
        debugfs.env("TZ", "UTC").args(["-w", "-R", command]).arg(self.path());
        String::from_utf8_lossy(&debugfs.output().unwrap().stdout).into_owned()
    }

    /// e2fsck finds nothing to repair.
    pub(super) fn fsck(&self) {
        let out = Command::new("e2fsck").arg("-fn").arg(self.path()).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    }
}
