//! The zram driver copies whole pages, even if a request is for a part of a page. So it overwrites memory outside the request (Linux 6.18).
//! ironmap therefore sends only requests of whole pages to zram.

mod common;

use std::path::Path;

use common::command::{output, run};
use common::loop_device::LoopDevice;
use common::skip::Need;
use ironmap::bio::Buffer;
use ironmap::device::{BlockFile, Device, OpenMode, Psync};
use ironmap::units::DevOffset;

const SIZE: usize = 1 << 20;
const PAGE: usize = 4096;
const CANARY: u8 = 0xA5;

/// The directory with one file for each zram device. Each file contains the process number of its test. `./x clean-up` uses the files to
/// remove the devices of killed tests.
const MARKS: &str = "/run/ironmap-bench-zram";

/// A zram device with some content. Dropping this value removes the device.
struct Zram(String);

impl Zram {
    fn new() -> Option<Self> {
        Self::of(SIZE)
    }

    fn of(size: usize) -> Option<Self> {
        let number = std::fs::read_to_string("/sys/class/zram-control/hot_add").ok()?;
        let zram = Self(number.trim().to_owned());
        std::fs::create_dir_all(MARKS).unwrap();
        std::fs::write(zram.mark(), std::process::id().to_string()).unwrap();
        std::fs::write(format!("/sys/block/zram{}/disksize", zram.0), size.to_string()).ok()?;
        let content: Vec<u8> = (0..SIZE).map(|at| (at / 16 % 251) as u8).collect();
        std::fs::write(zram.path(), content).ok()?;
        Some(zram)
    }

    fn mark(&self) -> String {
        format!("{MARKS}/zram{}", self.0)
    }

    fn path(&self) -> String {
        format!("/dev/zram{}", self.0)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        output("blockdev", &["--flushbufs", &self.path()]);
        let _ = std::fs::write(format!("/sys/block/zram{}/reset", self.0), "1");
        if std::fs::write("/sys/class/zram-control/hot_remove", &self.0).is_ok() {
            let _ = std::fs::remove_file(self.mark());
        }
    }
}

/// A read changes only its own memory. The test uses addresses at each multiple of 512 bytes, because sysfs reports this alignment.
#[test]
fn a_read_stays_within_its_memory() {
    require!([Need::Root, Need::Tool("blockdev")]);
    let Some(zram) = Zram::new() else {
        return common::skip::note("zram", "the kernel has no zram");
    };
    let mode = OpenMode { direct: true, exclusive: false, ..OpenMode::default() };
    let file = BlockFile::open(zram.path().as_ref(), &mode).unwrap();
    assert_eq!(file.limits().dma_align as usize, PAGE, "memory of whole pages is asked for");
    let device = Psync::new(file.into());
    for (from, len) in (0..PAGE).step_by(512).flat_map(|from| [(from, PAGE), (from, 5 * PAGE)]) {
        let mut memory = Buffer::aligned(8 * PAGE).unwrap();
        memory.fill(CANARY);
        device.read_exact_at(&mut memory[from..from + len], DevOffset(PAGE as u64)).unwrap();
        for (at, byte) in memory.iter().enumerate() {
            let read = (from..from + len).contains(&at);
            let expected = if read { ((PAGE + at - from) / 16 % 251) as u8 } else { CANARY };
            assert_eq!(*byte, expected, "byte {at} of {len} from {from} on");
        }
    }
}

/// A device above zram passes the memory of a request to zram. So ironmap also sends only requests of whole pages to such a device. The
/// test uses an image in a file system on zram, and loop devices over this image and over zram.
#[test]
fn a_device_over_it_takes_whole_pages_too() {
    require!([Need::Root, Need::Tool("blockdev"), Need::Tool("mkfs.ext4"), Need::Tool("losetup")]);
    let Some(zram) = Zram::of(64 << 20) else {
        return common::skip::note("zram", "the kernel has no zram");
    };
    let takes_pages = |path: &Path| {
        let mode = OpenMode { direct: true, exclusive: false, ..OpenMode::default() };
        let file = BlockFile::open(path, &mode).unwrap();
        let limits = file.limits();
        assert!(limits.dma_align as usize >= PAGE, "{}: {limits:?}", path.display());
    };
    let over = LoopDevice::with(&["--direct-io=on", "--partscan"], zram.path());
    takes_pages(over.node().as_ref());
    drop(over);
    run("mkfs.ext4", &["-q", "-F", &zram.path()]);
    let dir = common::image::scratch();
    run("mount", &[zram.path().as_ref(), dir.path().as_os_str()]);
    let _mounted = Unmount(dir.path());
    let image = dir.path().join("image");
    std::fs::write(&image, vec![7; 8 << 20]).unwrap();
    takes_pages(&image);
    let over = LoopDevice::with(&["--direct-io=on", "--partscan"], &image);
    takes_pages(over.node().as_ref());
    let number = over.partition(1, 1, 1);
    takes_pages(number.as_ref());
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        output("umount", &[self.0]);
    }
}
