//! File systems that the kernel has mounted, on loop devices over sparse files; all gone when their guards are dropped.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::command::{output, run};
use super::image::{scratch, words};

/// A mounted file system on a loop device.
pub(crate) struct Mounted {
    device: String,
    scratch_dir: TempDir,
    mount: PathBuf,
}

impl Mounted {
    /// Makes a file system of this many MiB with a command (`mke2fs -t ext4`), and mounts it with these options.
    pub(crate) fn new(mkfs: &str, mib: u64, options: &str) -> Self {
        let dir = scratch();
        let (image, mount) = (dir.path().join("image"), dir.path().join("mnt"));
        std::fs::File::create(&image).and_then(|file| file.set_len(mib << 20)).unwrap();
        std::fs::create_dir(&mount).unwrap();
        let args = ["--find", "--show", image.to_str().unwrap()];
        let device = String::from_utf8(run("losetup", &args)).unwrap().trim().to_owned();
        let mounted = Self { device, scratch_dir: dir, mount };
        let mut command = words(mkfs);
        let program = command.remove(0);
        command.extend(["-q", &mounted.device]);
        run(program, &command);
        mounted.mount(options);
        mounted
    }

    /// ext4 with its defaults.
    pub(crate) fn ext4() -> Self {
        Self::new("mke2fs -t ext4 -b 4096", 256, "noatime")
    }

    /// XFS whose files cannot share extents.
    pub(crate) fn xfs() -> Self {
        Self::new("mkfs.xfs -m reflink=0", 320, "noatime")
    }

    /// XFS with its defaults.
    pub(crate) fn xfs_with_reflink() -> Self {
        Self::new("mkfs.xfs -m reflink=1", 320, "noatime")
    }

    fn mount(&self, options: &str) {
        run("mount", &["-o", options, &self.device, self.mount.to_str().unwrap()]);
    }

    /// The file that the device is made of.
    pub(crate) fn image(&self) -> PathBuf {
        self.scratch_dir.path().join("image")
    }

    /// The block device.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    /// Where it is mounted.
    pub(crate) fn dir(&self) -> &Path {
        &self.mount
    }

    /// The path of a file.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.mount.join(name)
    }

    /// A file with this content.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A program that used io_uring lets its files go a moment after its end.
        for _ in 0..500 {
            if output("umount", &[&self.mount]).status.success() {
                break;
            }
        }
        output("losetup", &["--detach", &self.device]);
    }
}
