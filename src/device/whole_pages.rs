//! Finds devices whose requests need memory in whole pages, although sysfs permits parts of pages. These devices are zram, and all devices
//! that pass the memory of their requests to zram.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::block_file::PAGE;

/// The deepest stack of devices in which this module searches for zram.
const LAYERS: usize = 8;

/// Returns the alignment of memory buffers, in bytes, that a disk or partition needs in addition to its limits in sysfs: the page size, or
/// 1 if sysfs states all limits.
pub(super) fn least_align(dir: &Path) -> u32 {
    if takes_whole_pages(dir, LAYERS) { PAGE } else { 1 }
}

/// Whether a disk or partition is zram or uses zram. The zram driver copies whole pages. sysfs allows memory that is a part of a page, but
/// the driver then overwrites the memory after this part (seen with Linux 6.18).
fn takes_whole_pages(dir: &Path, depth: usize) -> bool {
    let Ok(mut dir) = dir.canonicalize() else { return false };
    if dir.join("partition").exists() {
        // The directory of a disk lists the devices that the disk uses. The directory of a partition does not list them.
        dir.pop();
    }
    if dir.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"zram")) {
        return true;
    }
    let Some(depth) = depth.checked_sub(1) else { return false };
    let below = || std::fs::read_dir(dir.join("slaves")).into_iter().flatten().flatten();
    below().any(|slave| takes_whole_pages(&slave.path(), depth)) || is_loop_over(&dir, depth)
}

/// Whether a loop device uses zram. With direct I/O, a loop device passes the memory of its requests to the device below.
fn is_loop_over(dir: &Path, depth: usize) -> bool {
    let Ok(path) = std::fs::read(dir.join("loop/backing_file")) else { return false };
    let path = Path::new(OsStr::from_bytes(path.strip_suffix(b"\n").unwrap_or(&path)));
    // The loop device's file may not be visible in this mount namespace. The device of the file is then unknown, and may be zram.
    rustix::fs::stat(path).map_or(true, |stat| match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => takes_whole_pages(&disk_of(stat.st_rdev), depth),
        _ => takes_whole_pages(&disk_of(stat.st_dev), depth),
    })
}

/// The sysfs directory of a block device.
pub(super) fn disk_of(number: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    format!("/sys/dev/block/{major}:{minor}").into()
}
