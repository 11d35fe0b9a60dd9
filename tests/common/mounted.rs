//! File systems that the kernel has mounted, on loop devices over sparse files. When a guard is dropped, the file system is unmounted, and
//! the device and the file are removed.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::command::{failure, output, run};
use super::image::{scratch, scratch_in, words};
use super::loop_device::LoopDevice;

/// The byte of the disk at which the partition begins.
const START: u64 = 1 << 20;

/// A loop device over a file.
struct Disk {
    disk: LoopDevice,
    /// The device of the file system: the whole loop device, or its partition.
    device: String,
    dir: TempDir,
}

impl Disk {
    fn new(dir: TempDir, sector: u32, size: u64) -> Self {
        let image = dir.path().join("image");
        std::fs::File::create(&image).and_then(|file| file.set_len(size)).unwrap();
        let sector = format!("--sector-size={sector}");
        let disk = LoopDevice::with(&["--partscan", &sector], &image);
        Self { device: disk.node().to_owned(), disk, dir }
    }
}

/// A mounted file system on a loop device.
pub(crate) struct Mounted {
    disk: Disk,
    mount: PathBuf,
}

impl Mounted {
    /// Makes a file system of this many MiB with a `mkfs` command such as `mke2fs -t ext4`, and mounts it with these options.
    pub(crate) fn new(mkfs: &str, mib: u64, options: &str) -> Self {
        Self::on_sectors(512, mkfs, mib, options)
    }

    /// A mounted file system on a device with logical blocks of this many bytes.
    pub(crate) fn on_sectors(sector: u32, mkfs: &str, mib: u64, options: &str) -> Self {
        Self::try_new(sector, mkfs, mib, options).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    /// Makes and mounts the file system. If the kernel refuses, returns the message of mount(8).
    pub(crate) fn try_new(
        sector: u32,
        mkfs: &str,
        mib: u64,
        options: &str,
    ) -> Result<Self, String> {
        Self::make(Disk::new(scratch(), sector, mib << 20), mkfs, options)
    }

    /// A mounted file system on a partition in the middle of a disk. A system call adds the partition, so no partition table is needed.
    pub(crate) fn on_partition(mkfs: &str, mib: u64, options: &str) -> Self {
        let mut disk = Disk::new(scratch(), 512, START + (mib << 20));
        disk.device = disk.disk.partition(1, START >> 20, mib);
        Self::make(disk, mkfs, options).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    /// A mounted file system in a file below this directory. If the directory is in memory, no operation waits for a disk. If the directory
    /// is in another mounted file system of the test, the two file systems are nested.
    pub(crate) fn within(dir: &Path, mkfs: &str, mib: u64, options: &str) -> Self {
        let disk = Disk::new(scratch_in(dir), 512, mib << 20);
        Self::make(disk, mkfs, options).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    fn make(disk: Disk, mkfs: &str, options: &str) -> Result<Self, String> {
        let mount = disk.dir.path().join("mnt");
        std::fs::create_dir(&mount).unwrap();
        let mounted = Self { disk, mount };
        let mut command = words(mkfs);
        let program = command.remove(0);
        command.extend(["-q", mounted.device()]);
        run(program, &command);
        mounted.try_mount(options)?;
        Ok(mounted)
    }

    /// An ext4 file system with default options.
    pub(crate) fn ext4() -> Self {
        Self::new("mke2fs -t ext4 -b 4096", 256, "noatime")
    }

    /// An XFS file system whose files cannot share extents.
    pub(crate) fn xfs() -> Self {
        Self::new("mkfs.xfs -m reflink=0", 320, "noatime")
    }

    /// An XFS file system whose files can share extents.
    pub(crate) fn xfs_with_reflink() -> Self {
        Self::new("mkfs.xfs -m reflink=1", 320, "noatime")
    }

    fn try_mount(&self, options: &str) -> Result<(), String> {
        let args = ["-o", options, self.device(), self.mount.to_str().unwrap()];
        let result = output("mount", &args);
        if result.status.success() { Ok(()) } else { Err(failure("mount", &args, &result)) }
    }

    /// Unmounts the file system, calls `between` with the device, and mounts the file system again.
    pub(crate) fn remount(&self, between: impl FnOnce(&str), options: &str) {
        assert!(unmount(&self.mount), "{} stays mounted", self.mount.display());
        between(self.device());
        self.try_mount(options).unwrap_or_else(|refusal| panic!("{refusal}"));
    }

    /// Changes permissions so that every user can reach the files by their paths.
    pub(crate) fn allow_all_users(&self) {
        run("chmod", &["755".as_ref(), self.disk.dir.path().as_os_str()]);
    }

    /// The block device of the file system.
    pub(crate) fn device(&self) -> &str {
        &self.disk.device
    }

    /// The file that contains the disk of the loop device.
    pub(crate) fn image(&self) -> PathBuf {
        self.disk.dir.path().join("image")
    }

    /// The mount point.
    pub(crate) fn dir(&self) -> &Path {
        &self.mount
    }

    /// The path of a file in the file system.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.mount.join(name)
    }

    /// Creates a file with this content in the file system.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(&self.mount);
    }
}

/// Unmounts a directory, and repeats the attempt while the mount is busy. The mount can be busy for three reasons. First, the kernel closes
/// the files of a process with io_uring only after the process has ended. Second, while another thread starts a process, the new process
/// briefly has copies of our descriptors. Third, a loop device keeps its file open until the device is removed.
pub(crate) fn unmount(dir: &Path) -> bool {
    // Each attempt starts a process, which takes about a millisecond.
    (0..500).any(|_| output("umount", &[dir]).status.success())
}
