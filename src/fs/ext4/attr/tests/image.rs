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
        Self::with_files(options, &[])
    }

    /// The same with these files in its root, each with its name as content, and a directory and a link besides.
    pub(super) fn with_files(options: &str, files: &[&str]) -> Self {
        let prefix = format!("ironmap-test-{}-", std::process::id());
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir().unwrap();
        let source = dir.path().join("source");
        std::fs::create_dir_all(source.join("dir")).unwrap();
        std::os::unix::fs::symlink("nowhere", source.join("link")).unwrap();
        for file in files {
            std::fs::write(source.join(file), file).unwrap();
        }
        let image = Self { dir };
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-Fq", "-d"]).arg(source).args(options.split_whitespace());
        let out = mke2fs.arg(image.path()).arg("32M").output().unwrap();
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

    /// As it stands now.
    pub(super) fn copy(&self) -> Self {
        let copy = Self { dir: tempfile::tempdir().unwrap() };
        std::fs::copy(self.path(), copy.path()).unwrap();
        copy
    }

    /// Lets e2fsck replay the journal.
    pub(super) fn recover(&self) {
        let out = Command::new("e2fsck").arg("-fy").arg(self.path()).output().unwrap();
        assert!(
            matches!(out.status.code(), Some(0 | 1)),
            "{}",
            String::from_utf8_lossy(&out.stdout)
        );
    }

    /// The kernel mounts it; `None` for who may not.
    pub(super) fn mount(&self) -> Option<Mount> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let at = self.dir.path().join("mount");
        std::fs::create_dir_all(&at).unwrap();
        let mut mount = Command::new("mount");
        let out = mount.args(["-o", "loop"]).arg(self.path()).arg(&at).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        Some(Mount { at })
    }
}

/// A mounted image.
pub(super) struct Mount {
    at: PathBuf,
}

impl Mount {
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Others look at a new mount for a moment: each try takes a process's time.
        for _ in 0..100 {
            if Command::new("umount").arg(&self.at).output().is_ok_and(|out| out.status.success()) {
                return;
            }
        }
    }
}

/// Numbers that are the same for the same seed.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    /// A number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((word ^ word >> 31) % end as u64) as usize
    }

    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}
