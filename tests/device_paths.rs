//! Tests the device paths of a mounted file system: their properties agree with sysfs, and a read through each device path returns the same
//! bytes.

mod common;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use common::command::{output, run};
use common::image::scratch;
use common::loop_device::LoopDevice;
use common::skip::Need;
use ironmap::ErrorKind;
use ironmap::device::path::{DevicePath, DevicePathKind, PageCache, Reason, choose, device_paths};
use ironmap::device::{Device, Psync};
use ironmap::units::DevOffset;
use tempfile::TempDir;

/// The byte position on the disk at which the partition begins.
const START: u64 = 1 << 20;
/// The size of most file systems in this file.
const SIZE: u64 = 32 << 20;

/// A disk with one partition, on which a file system is mounted. When this value is dropped, the file system is unmounted and the loop
/// device of the disk is removed.
struct Disk {
    device: LoopDevice,
    mount: PathBuf,
    _dir: TempDir,
}

impl Disk {
    /// Makes a file system of this size with a `mkfs` command, and mounts it. A system call adds the partition, so no partition table is
    /// needed.
    fn mounted(mkfs: &str, size: u64) -> Self {
        let dir = scratch();
        let (image, mount) = (dir.path().join("image"), dir.path().join("mnt"));
        std::fs::File::create(&image).and_then(|file| file.set_len(START + size)).unwrap();
        std::fs::create_dir(&mount).unwrap();
        let device = LoopDevice::with(&["--partscan"], &image);
        device.partition(1, START >> 20, size >> 20);
        let disk = Self { device, mount, _dir: dir };
        run(mkfs, &["-q".into(), disk.part()]);
        run("mount", &[disk.part().as_ref(), disk.mount.as_os_str()]);
        disk
    }

    /// The path of the partition.
    fn part(&self) -> String {
        format!("{}p1", self.device.node())
    }

    /// The device paths to the device that contains the mounted file system.
    fn device_paths(&self) -> Vec<DevicePath> {
        device_paths(device(&self.mount)).unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        output("umount", &[&self.mount]);
    }
}

/// The device that contains a file, as statx reports it.
fn device(path: &Path) -> (u32, u32) {
    let dev = path.metadata().unwrap().dev();
    (rustix::fs::major(dev), rustix::fs::minor(dev))
}

/// The content of the device that is opened through a device path.
fn content(device_path: &DevicePath) -> Vec<u8> {
    let (file, _) = device_path.open().unwrap_or_else(|error| panic!("{device_path}: {error}"));
    assert!(file.limits().direct);
    let device = Psync::new(file.into());
    let mut bytes = vec![0; usize::try_from(device.size()).unwrap()];
    device.read_exact_at(&mut bytes, DevOffset(0)).unwrap();
    bytes
}

#[test]
fn a_partition_and_its_disk_lead_to_the_same_bytes() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("addpart")]);
    let disk = Disk::mounted("mke2fs", SIZE);
    let found = disk.device_paths();
    let summary: Vec<_> = found
        .iter()
        .map(|device_path| {
            (
                device_path.path.to_str().unwrap(),
                device_path.kind,
                device_path.base,
                device_path.size,
            )
        })
        .collect();
    let (whole, part) = (disk.device.node(), disk.part());
    let expected = [
        (whole, DevicePathKind::WholeDisk, START, SIZE),
        (part.as_str(), DevicePathKind::FileSystem, 0, SIZE),
    ];
    assert_eq!(summary, expected);
    // After the file system was remounted read-only, the content does not change any more.
    run("mount", &["-o", "remount,ro", disk.mount.to_str().unwrap()]);
    let bytes = content(&found[0]);
    assert_eq!(bytes.len() as u64, SIZE);
    assert_eq!(bytes[0x438..0x43a], [0x53, 0xef], "the magic number of ext4");
    assert!(bytes == content(&found[1]), "the device paths lead to different bytes");
}

#[test]
fn the_disk_is_chosen_over_a_partition_whose_metadata_are_cached() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("addpart")]);
    let disk = Disk::mounted("mke2fs", SIZE);
    let choice = choose(disk.device_paths(), DevicePath::open);
    let chosen = choice.chosen.as_ref().unwrap_or_else(|| panic!("{choice}"));
    assert_eq!(chosen.index, 0, "{choice}");
    assert!(
        choice.to_string().starts_with(&format!("{} (whole disk), ", disk.device.node())),
        "{choice}"
    );
    let Ok(Some(own)) = choice.candidates[1].found else { return };
    assert!(own.pages > 0, "ext4 keeps its superblock in the page cache: {choice}");
    assert_eq!(chosen.reason, Reason::Empty, "{choice}");
}

/// A read of the whole disk leaves pages in the page cache until the last partition is unmounted. These pages slow down each direct read,
/// so ironmap drops them.
#[test]
fn pages_that_a_look_at_the_disk_left_are_dropped() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("addpart")]);
    let disk = Disk::mounted("mke2fs", SIZE);
    run("dd", &["of=/dev/null", "bs=64k", "count=1", &format!("if={}", disk.device.node())]);
    let (_device, cache) = disk.device_paths()[0].open().unwrap();
    assert!(cache.is_none_or(|cache| cache == PageCache { pages: 0, dirty: 0 }), "{cache:?}");
}

#[test]
fn a_mounted_xfs_leaves_its_device_clean() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("addpart"), Need::Tool("mkfs.xfs")]);
    // The size is larger here, because mkfs.xfs makes no volume that is smaller than 300 MiB.
    let disk = Disk::mounted("mkfs.xfs", 300 << 20);
    let choice = choose(disk.device_paths(), DevicePath::open);
    if let Ok(Some(own)) = choice.candidates[1].found {
        assert_eq!(own.pages, 0, "{choice}");
    }
}

#[test]
fn a_node_of_another_device_is_refused() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("addpart")]);
    let disk = Disk::mounted("mke2fs", SIZE);
    let mut wrong = disk.device_paths();
    for device_path in &mut wrong {
        device_path.path = disk.mount.join("no such node");
    }
    wrong[1].path = disk.device.node().into();
    let choice = choose(wrong, DevicePath::open);
    assert!(choice.chosen.is_none(), "{choice}");
    let kinds =
        choice.candidates.iter().map(|candidate| candidate.found.as_ref().unwrap_err().kind());
    let expected = [ErrorKind::Io(ironmap::Errno::ENOENT), ErrorKind::InvalidInput];
    assert_eq!(kinds.collect::<Vec<_>>(), expected, "{choice}");
}

#[test]
fn a_file_system_without_a_block_device_has_no_device_paths() {
    // `/proc` exists on every Linux system, and is not on a block device.
    let error = device_paths(device(Path::new("/proc"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
