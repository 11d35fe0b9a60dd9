//! Volumes for unit tests. mke2fs makes each volume in an image file, and programs that are independent of ironmap check the volume. A
//! helper that only one module needs is in that module.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use tempfile::TempDir;

use super::Ext4;

use super::jbd2::Handle;
use super::operation::MayChange;
use crate::device::{BlockFile, OpenMode, Psync};
use crate::error::Result;
use crate::fs::Clock;
use crate::fs::Timestamp;
use crate::units::InodeNo;

/// An image file, which is deleted when this value is dropped.
pub(super) struct Image {
    dir: TempDir,
}

/// Runs a program and returns its output, even if the program fails.
pub(super) fn output(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).envs([("LC_ALL", "C"), ("TZ", "UTC")]).output().unwrap()
}

/// Runs a program that must succeed.
pub(super) fn run(program: &str, args: &[&str]) -> String {
    let out = output(program, args);
    let (text, errors) =
        (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{program} {}: {text}{errors}", args.join(" "));
    text.into_owned()
}

impl Image {
    fn empty() -> Self {
        // The directory's name contains the id of this process. The clean-up of old test directories uses this id to find out whether the
        // process still runs.
        let prefix = format!("ironmap-test-{}-", std::process::id());
        Self { dir: tempfile::Builder::new().prefix(&prefix).tempdir().unwrap() }
    }

    /// Makes a volume of this size. `options` are options of mke2fs, separated by spaces.
    pub(super) fn new(options: &str, size: &str) -> Self {
        let image = Self::empty();
        // The file is filled with a pattern. Blocks that mke2fs skips therefore do not contain zeros.
        if options.contains("nodiscard") {
            std::fs::write(image.path(), vec![0xA5; 32 << 20]).unwrap();
        }
        image.mke2fs(options, size, &[]);
        image
    }

    /// Makes a volume with a tree of files that `fill` creates in a directory.
    pub(super) fn with_tree(options: &str, size: &str, fill: impl FnOnce(&Path)) -> Self {
        let image = Self::empty();
        let tree = image.beside("tree");
        std::fs::create_dir(&tree).unwrap();
        fill(&tree);
        image.mke2fs(options, size, &["-d", tree.to_str().unwrap()]);
        image
    }

    fn mke2fs(&self, options: &str, size: &str, more: &[&str]) {
        let mut args = vec!["-Fq"];
        args.extend(more);
        args.extend(options.split_whitespace());
        let path = self.path();
        args.extend([path.to_str().unwrap(), size]);
        run("mke2fs", &args);
    }

    pub(super) fn path(&self) -> PathBuf {
        self.beside("image")
    }

    /// The path of a file in the image's directory.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn device(&self, write: bool) -> Arc<Psync> {
        let mode = OpenMode { write, direct: false, ..OpenMode::default() };
        Arc::new(Psync::new(Arc::new(BlockFile::open(&self.path(), &mode).unwrap())))
    }

    /// Opens the image for writing, with a fixed clock.
    pub(super) fn open(&self) -> Arc<Ext4> {
        let clock = Clock::Fixed(Timestamp { seconds: 1_700_000_000, nanoseconds: 5 });
        Ext4::open_for_writing(self.device(true), &Arc::default(), clock).unwrap()
    }

    pub(super) fn open_to_read(&self) -> Arc<Ext4> {
        Ext4::open(self.device(false), &Arc::default()).unwrap()
    }

    /// A copy of the device in its current state, as after a crash.
    pub(super) fn copy(&self) -> Self {
        let copy = Self::empty();
        std::fs::copy(self.path(), copy.path()).unwrap();
        copy
    }

    /// Runs a debugfs command and returns its output.
    pub(super) fn debugfs(&self, command: &str) -> String {
        let out = output("debugfs", &["-w", "-R", command, self.path().to_str().unwrap()]);
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Runs `e2fsck -fn`. Returns whether e2fsck found nothing to repair, and its output.
    pub(super) fn e2fsck(&self) -> (bool, String) {
        let out = output("e2fsck", &["-fn", self.path().to_str().unwrap()]);
        (out.status.success(), String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// Asserts that e2fsck finds nothing to repair. e2fsck may offer to compact a hash tree.
    pub(super) fn fsck(&self) {
        let (clean, text) = self.e2fsck();
        let mut questions = text.lines().filter(|line| line.contains("? "));
        assert!(clean && questions.all(|line| line.contains("Optimize? no")), "{text}");
    }

    /// Runs e2fsck to recover the journal. e2fsck must find nothing else to repair.
    pub(super) fn recover(&self) {
        let out = output("e2fsck", &["-fy", self.path().to_str().unwrap()]);
        let text = String::from_utf8_lossy(&out.stdout);
        let recovered = out.status.code() == Some(1) && !text.contains("Fix");
        assert!(out.status.success() || recovered, "{text}");
        self.fsck();
    }

    /// Mounts the image with the kernel. Returns `None` if the test does not run as root.
    pub(super) fn mount(&self) -> Option<Mount> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let at = self.beside("mount");
        std::fs::create_dir_all(&at).unwrap();
        let image = self.path();
        run("mount", &["-o", "loop", image.to_str().unwrap(), at.to_str().unwrap()]);
        Some(Mount { at, image })
    }
}

impl Ext4 {
    /// Runs a transaction that changes only one structure.
    pub(super) fn transact<R>(
        self: &Arc<Self>,
        credits: u32,
        work: impl FnOnce(&mut Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        self.operate(|op| op.transact(credits, work))
    }
}

/// A proof that the test may change an inode without a lock. The test is the only user of its volume.
pub(super) struct Alone(pub(super) InodeNo);

impl MayChange for Alone {
    fn number(&self) -> InodeNo {
        self.0
    }
}

/// A mounted image.
pub(super) struct Mount {
    at: PathBuf,
    image: PathBuf,
}

impl Mount {
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // The first attempts to unmount can fail, because other programs may inspect the mount. The loop device remains until its last user
        // has closed it. Each attempt starts a process. The loop therefore needs no sleep.
        let gone = |program: &str, args: &[&str]| {
            (0..500).any(|_| {
                let out = output(program, args);
                out.status.success() && out.stdout.is_empty()
            })
        };
        if let (Some(at), Some(image)) = (self.at.to_str(), self.image.to_str()) {
            gone("umount", &[at]);
            gone("losetup", &["-j", image]);
        }
    }
}
