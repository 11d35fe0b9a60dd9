//! Devices that accept only memory of whole pages, although sysfs allows parts of pages: zram, and each device that passes its memory to
//! zram.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::block_file::PAGE;

/// The largest number of stacked devices that are searched for zram.
const LAYERS: usize = 8;

/// The alignment of memory that a disk or partition needs in addition to its limits in sysfs: a page, or 1.
pub(super) fn least_align(dir: &Path) -> u32 {
    if takes_whole_pages(dir, LAYERS) { PAGE } else { 1 }
}

/// Whether a disk or partition is zram, or uses zram. The driver of zram copies whole pages. If a request's memory is a part of a page, as
/// sysfs allows, the driver overwrites the memory after that part (seen with Linux 6.18).
fn takes_whole_pages(dir: &Path, depth: usize) -> bool {
    let Ok(mut dir) = dir.canonicalize() else { return false };
    if dir.join("partition").exists() {
        // The directory of the partition does not list the devices that the disk uses; the directory of the disk does.
        dir.pop();
    }
    if dir.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"zram")) {
        return true;
    }
    let Some(depth) = depth.checked_sub(1) else { return false };
    let below = || std::fs::read_dir(dir.join("slaves")).into_iter().flatten().flatten();
    below().any(|slave| takes_whole_pages(&slave.path(), depth)) || is_loop_over(&dir, depth)
}

/// Whether a loop device uses zram. With direct I/O a loop device passes the memory of its requests on.
fn is_loop_over(dir: &Path, depth: usize) -> bool {
    let Ok(path) = std::fs::read(dir.join("loop/backing_file")) else { return false };
    let path = Path::new(OsStr::from_bytes(path.strip_suffix(b"\n").unwrap_or(&path)));
    // If the backing file is not visible in this mount namespace, its device is unknown, so zram is assumed.
    rustix::fs::stat(path).map_or(true, |stat| match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => takes_whole_pages(&disk_of(stat.st_rdev), depth),
        _ => takes_whole_pages(&disk_of(stat.st_dev), depth),
    })
}

/// The directory in sysfs of a block device.
pub(super) fn disk_of(number: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    format!("/sys/dev/block/{major}:{minor}").into()
}
