//! Determines the limits of block devices and image files: from sysfs, by system calls, or by trial requests.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::{Errno as OsErrno, ReadWriteFlags};

use super::block_file::PAGE;
use super::{Limits, ThroughFlushes, whole_pages};
use crate::sys::{Buffer, is_read_only};

/// The longest single request to an image file.
const FILE_MAX_TRANSFER: u32 = 1 << 20;

/// Returns the sysfs directory that describes the queue of a block device. For a partition, this is the queue of its disk.
pub(super) fn queue_of(rdev: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let own = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/queue"));
    if own.exists() { own } else { format!("/sys/dev/block/{major}:{minor}/../queue").into() }
}

/// Whether the disk itself supports FUA. Stacked devices (MD, device mapper, DRBD, bcache) also report FUA, but there a FUA write may flush
/// a disk further down.
fn has_own_fua(queue: &Path) -> bool {
    let disk = queue.join("..").canonicalize();
    let name = disk.ok().and_then(|disk| Some(disk.file_name()?.to_str()?.to_owned()));
    name.is_some_and(|name| {
        ["nvme", "sd", "mmcblk", "nullb"].iter().any(|own| name.starts_with(own))
    })
}

/// The limits of a block device.
pub(super) fn device_limits(file: &File, queue: &Path, direct: bool) -> Limits {
    let text = |name: &str| std::fs::read_to_string(queue.join(name)).unwrap_or_default();
    let number = |name: &str| text(name).trim().parse::<u32>().ok();
    let logical_block = number("logical_block_size").unwrap_or(512);
    let fua = direct && number("fua") == Some(1);
    let volatile_cache = !direct || text("write_cache").trim() == "write back";
    Limits {
        read_only: is_read_only(file.as_fd()) == Ok(true),
        logical_block: if direct { logical_block } else { 1 },
        physical_block: number("physical_block_size").unwrap_or(logical_block),
        // sysfs reports a mask of the address bits that must be zero, so the alignment is the mask plus one.
        dma_align: match number("dma_alignment") {
            _ if !direct => 1,
            mask => mask
                .map_or(logical_block, |mask| mask + 1)
                .max(whole_pages::least_align(&queue.join(".."))),
        },
        max_transfer: number("max_sectors_kb")
            .map_or(FILE_MAX_TRANSFER, |kib| kib.saturating_mul(1024))
            .max(PAGE),
        fua,
        through_flushes: match volatile_cache {
            // Without direct I/O, a write-through request also writes dirty pages of other programs to the device, and reports the errors
            // of these writes.
            _ if !direct => ThroughFlushes::Always,
            false => ThroughFlushes::Never,
            true if fua && has_own_fua(queue) => ThroughFlushes::OfCalls,
            true => ThroughFlushes::Always,
        },
        volatile_cache,
        stable_writes: number("stable_writes") == Some(1),
        nowait: knows_nowait(file, logical_block),
        poll: number("io_poll") == Some(1),
        direct,
        rereads: false,
        atomic_write: number("atomic_write_unit_max_bytes").filter(|_| direct).unwrap_or(0),
    }
}

/// The limits of an image file.
pub(super) fn file_limits(file: &File, direct: bool) -> Limits {
    let (mut logical_block, mut dma_align) = if direct { (taken(file), PAGE) } else { (1, 1) };
    if direct
        && let Ok(statx) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        && statx.stx_dio_offset_align != 0
    {
        logical_block = statx.stx_dio_offset_align;
        dma_align = statx.stx_dio_mem_align;
    }
    // The file system passes the caller's memory to the disk below it, so the alignment of that disk applies too.
    if direct && let Ok(stat) = rustix::fs::fstat(file) {
        dma_align = dma_align.max(whole_pages::least_align(&whole_pages::disk_of(stat.st_dev)));
    }
    Limits {
        read_only: false,
        logical_block,
        physical_block: PAGE,
        dma_align,
        max_transfer: FILE_MAX_TRANSFER,
        fua: false,
        through_flushes: ThroughFlushes::Always,
        volatile_cache: true,
        stable_writes: false,
        nowait: knows_nowait(file, logical_block),
        poll: false,
        direct,
        rereads: false,
        atomic_write: 0,
    }
}

/// Determines the smallest unit of direct reads by trial reads, because the kernel does not report it.
fn taken(file: &File) -> u32 {
    let Ok(mut probe) = Buffer::aligned(PAGE as usize) else { return PAGE };
    let mut takes = |unit: u32| {
        let read = rustix::io::pread(file, &mut probe[..unit as usize], unit.into());
        !matches!(read, Err(OsErrno::INVAL))
    };
    [512, 1024, 2048].into_iter().find(|unit| takes(*unit)).unwrap_or(PAGE)
}

/// Determines by a trial read of one block whether NOWAIT is supported. Without NOWAIT support, the read fails with EOPNOTSUPP.
fn knows_nowait(file: &File, logical_block: u32) -> bool {
    let Ok(mut probe) = Buffer::aligned(logical_block as usize) else { return false };
    let mut slices = [std::io::IoSliceMut::new(&mut probe)];
    let result = rustix::io::preadv2(file, &mut slices, 0, ReadWriteFlags::NOWAIT);
    !matches!(result, Err(OsErrno::OPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel flushes a volatile cache for write-through requests, except for queued requests to a disk that itself supports FUA.
    #[test]
    fn sysfs_tells_for_which_requests_a_disk_is_flushed() {
        let dir = tempfile::tempdir().unwrap();
        let file = tempfile::tempfile().unwrap();
        for (disk, cache, fua, direct, expected) in [
            ("vda", "write through", "0", true, ThroughFlushes::Never),
            ("vda", "write through", "0", false, ThroughFlushes::Always),
            ("loop0", "write back", "0", true, ThroughFlushes::Always),
            ("nvme0n1", "write back", "1", true, ThroughFlushes::OfCalls),
            ("nvme0n1", "write back", "1", false, ThroughFlushes::Always),
            ("sda", "write back", "0", true, ThroughFlushes::Always),
            ("sda", "write back", "1", true, ThroughFlushes::OfCalls),
            ("dm-0", "write back", "1", true, ThroughFlushes::Always),
            ("md127", "write back", "1", true, ThroughFlushes::Always),
        ] {
            let queue = dir.path().join(disk).join("queue");
            std::fs::create_dir_all(&queue).unwrap();
            std::fs::write(queue.join("write_cache"), format!("{cache}\n")).unwrap();
            std::fs::write(queue.join("fua"), format!("{fua}\n")).unwrap();
            let found = device_limits(&file, &queue, direct).through_flushes;
            assert_eq!(found, expected, "{disk}, {cache}, FUA {fua}, direct {direct}");
        }
    }
}
