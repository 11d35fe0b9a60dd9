//! Images of ext4 volumes, made by mke2fs, and their kernel mounts; all gone when their guards are dropped.

use std::path::{Path, PathBuf};

use ironmap::Location;
use tempfile::TempDir;

use super::command::{failure, output, run};

/// The name by which `./x clean-up` knows what an interrupted test left.
const PREFIX: &str = "ironmap-test-";

/// How often to try what the kernel refuses while someone else looks at the device (udev, blkid): each try starts a
/// process, which takes a millisecond or more.
const TRIES: usize = 500;

/// A directory of the test's own, removed at the end.
pub(crate) fn scratch() -> TempDir {
    tempfile::Builder::new().prefix(PREFIX).tempdir().expect("a scratch directory")
}

/// An image file that holds a volume.
pub(crate) struct Image {
    dir: TempDir,
}

impl Image {
    /// A volume of this size (as mke2fs writes it: `64M`) made with these options, empty.
    pub(crate) fn mke2fs(size: &str, options: &[&str]) -> Self {
        Self::make(size, options, None)
    }

    /// The same, filled with a copy of a directory by mke2fs itself: needs no root.
    pub(crate) fn populated(size: &str, options: &[&str], from: &Path) -> Self {
        Self::make(size, options, Some(from))
    }

    fn make(size: &str, options: &[&str], from: Option<&Path>) -> Self {
        let image = Self { dir: scratch() };
        // The same volume each time: nothing is left to chance, and no thread of the kernel writes behind our back.
        let fixed = ["-q", "-F", "-U", "1f0e3dad-9990-4a3a-8f8e-3a6d0b7c5e21"];
        let mut args: Vec<_> = fixed.iter().chain(options).map(Into::into).collect();
        if let Some(from) = from {
            args.extend(["-d".into(), from.as_os_str().to_owned()]);
        }
        args.extend([image.path().into(), size.into()]);
        run("mke2fs", &args);
        image
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    pub(crate) fn location(&self) -> Location {
        self.path().to_str().expect("a plain path").parse().expect("a location")
    }

    /// Fails the test unless e2fsck finds nothing to repair: a broken fixture proves nothing.
    pub(crate) fn check(&self) {
        run("e2fsck", &["-fn".as_ref(), self.path().as_os_str()]);
    }

    /// Lets e2fsck complete what mke2fs or debugfs left half done.
    pub(crate) fn repair(&self) {
        self.e2fsck("-fy");
    }

    /// Lets e2fsck sort and hash every directory anew.
    pub(crate) fn rebuild_directories(&self) {
        self.e2fsck("-fyD");
    }

    fn e2fsck(&self, how: &str) {
        let path = self.path();
        let args = [how.as_ref(), path.as_os_str()];
        let result = output("e2fsck", &args);
        // 1: errors were corrected.
        assert!(
            matches!(result.status.code(), Some(0 | 1)),
            "{}",
            failure("e2fsck", &args, &result)
        );
    }

    /// What debugfs prints for these commands, one a line, each answer headed by `debugfs: COMMAND`.
    pub(crate) fn debugfs(&self, write: bool, commands: &str) -> Vec<u8> {
        let script = self.dir.path().join("debugfs-commands");
        std::fs::write(&script, commands).expect("the commands");
        let mut args = vec!["-f".into(), script.into_os_string()];
        if write {
            args.push("-w".into());
        }
        args.push(self.path().into_os_string());
        run("debugfs", &args)
    }

    /// Mounts it with the kernel's ext4 by a loop device. Needs root.
    pub(crate) fn mount(&self, options: &str) -> LoopMount {
        LoopMount::new(self, options)
    }
}

/// A kernel mount of an image: unmounted and detached on drop.
pub(crate) struct LoopMount {
    device: String,
    dir: PathBuf,
}

impl LoopMount {
    fn new(image: &Image, options: &str) -> Self {
        let device =
            run("losetup", &["--find".as_ref(), "--show".as_ref(), image.path().as_os_str()]);
        let device = String::from_utf8(device).expect("a device's name").trim().to_owned();
        // From here on the guard detaches, whatever happens.
        let mount = Self { device, dir: image.dir.path().join("mnt") };
        std::fs::create_dir_all(&mount.dir).expect("a mount point");
        let args =
            ["-t", "ext4", "-o", options, &mount.device, mount.dir.to_str().expect("a plain path")];
        run("mount", &args);
        mount
    }

    /// The loop device.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    /// Where it is mounted.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    fn is_mounted(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        mounts.lines().any(|line| line.starts_with(&format!("{} ", self.device)))
    }

    /// A loop device lets go of its file only when the last opener, which may be udev, closes it.
    fn is_attached(&self) -> bool {
        let name = self.device.trim_start_matches("/dev/");
        Path::new("/sys/block").join(name).join("loop/backing_file").exists()
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        let dir = self.dir.to_str().unwrap_or_default();
        for _ in 0..TRIES {
            if !self.is_mounted() || output("umount", &[dir]).status.success() {
                break;
            }
        }
        if self.is_mounted() {
            output("umount", &["--lazy", dir]);
        }
        let mut last = None;
        for _ in 0..TRIES {
            if !self.is_attached() {
                return;
            }
            last = Some(output("losetup", &["--detach", &self.device]));
        }
        if let (Some(last), false) = (last, std::thread::panicking()) {
            panic!("{}", failure("losetup", &["--detach", &self.device], &last));
        }
    }
}
