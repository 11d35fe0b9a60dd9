//! File systems that the kernel has mounted, on loop devices over sparse files; all gone when their guards are dropped.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::command::{failure, output, run};
use super::image::{scratch, scratch_in, words};

/// A mounted file system on a loop device.
pub(crate) struct Mounted {
    device: String,
    dir: TempDir,
    mount: PathBuf,
}

impl Mounted {
    /// Makes a file system of this many MiB with a command (`mke2fs -t ext4`), and mounts it with these options.
    pub(crate) fn new(mkfs: &str, mib: u64, options: &str) -> Self {
        Self::on_sectors(512, mkfs, mib, options)
    }

    /// The same on a device with logical blocks of this many bytes.
    pub(crate) fn on_sectors(sector: u32, mkfs: &str, mib: u64, options: &str) -> Self {
        Self::try_new(sector, mkfs, mib, options).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    /// The same where the kernel may refuse it; what mount(8) says then.
    pub(crate) fn try_new(
        sector: u32,
        mkfs: &str,
        mib: u64,
        options: &str,
    ) -> Result<Self, String> {
        Self::make(scratch(), sector, mkfs, mib, options)
    }

    /// The same over a file in memory, so that nothing is waited for where much is synced.
    pub(crate) fn in_memory(mkfs: &str, mib: u64, options: &str) -> Self {
        let dir = scratch_in(Path::new("/dev/shm"));
        Self::make(dir, 512, mkfs, mib, options).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    fn make(
        dir: TempDir,
        sector: u32,
        mkfs: &str,
        mib: u64,
        options: &str,
    ) -> Result<Self, String> {
        let (image, mount) = (dir.path().join("image"), dir.path().join("mnt"));
        std::fs::File::create(&image).and_then(|file| file.set_len(mib << 20)).unwrap();
        std::fs::create_dir(&mount).unwrap();
        let sector = format!("--sector-size={sector}");
        let args = ["--find", "--show", &sector, image.to_str().unwrap()];
        let device = String::from_utf8(run("losetup", &args)).unwrap().trim().to_owned();
        let mounted = Self { device, dir, mount };
        let mut command = words(mkfs);
        let program = command.remove(0);
        command.extend(["-q", &mounted.device]);
        run(program, &command);
        mounted.try_mount(options)?;
        Ok(mounted)
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

    fn try_mount(&self, options: &str) -> Result<(), String> {
        let args = ["-o", options, &self.device, self.mount.to_str().unwrap()];
        let result = output("mount", &args);
        if result.status.success() { Ok(()) } else { Err(failure("mount", &args, &result)) }
    }

    /// Unmounts it, lets something be done to the device, and mounts it again.
    pub(crate) fn remount(&self, between: impl FnOnce(&str), options: &str) {
        run("umount", &[&self.mount]);
        between(&self.device);
        self.try_mount(options).unwrap_or_else(|refusal| panic!("{refusal}"));
    }

    /// Lets every user come to the files by their paths.
    pub(crate) fn let_everyone_in(&self) {
        run("chmod", &["755".as_ref(), self.dir.path().as_os_str()]);
    }

    /// The block device.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    /// The file beneath the block device.
    pub(crate) fn image(&self) -> PathBuf {
        self.dir.path().join("image")
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
