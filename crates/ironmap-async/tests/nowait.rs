//! Tests a pool of a host with io_uring. The files are on a device that does not support NOWAIT.

#[path = "../../../tests/common/command.rs"]
mod command;

use std::path::{Path, PathBuf};

use command::{output, run};
use ironmap::{Buffer, Engine, Host, HostOptions};
use ironmap_async::{Pool, PoolOptions, PoolReport};
use tempfile::TempDir;

/// The directory with a mark file for each device. The file contains the process ID of the test, so that `./x clean-up` can remove the
/// devices of killed tests.
const MARKS: &str = "/run/ironmap-bench-zram";
const SIZE: usize = 64 << 20;

/// An ext4 that is mounted on a zram device, which does not support NOWAIT.
struct OnZram {
    number: String,
    dir: TempDir,
}

impl OnZram {
    /// Returns `None` if this machine has no zram, or permits no mount.
    fn new() -> Option<Self> {
        let number = std::fs::read_to_string("/sys/class/zram-control/hot_add").ok()?;
        let dir = tempfile::Builder::new().prefix("ironmap-test-").tempdir().unwrap();
        let zram = Self { number: number.trim().to_owned(), dir };
        std::fs::create_dir_all(MARKS).unwrap();
        std::fs::write(zram.mark(), std::process::id().to_string()).unwrap();
        let size = format!("/sys/block/zram{}/disksize", zram.number);
        std::fs::write(size, SIZE.to_string()).unwrap();
        run("mke2fs", &["-q", "-t", "ext4", "-b", "4096", &zram.node()]);
        let mounted = output("mount", &[zram.node().as_ref(), zram.dir.path().as_os_str()]);
        mounted.status.success().then_some(zram)
    }

    fn node(&self) -> String {
        format!("/dev/zram{}", self.number)
    }

    fn mark(&self) -> PathBuf {
        Path::new(MARKS).join(format!("zram{}", self.number))
    }
}

impl Drop for OnZram {
    fn drop(&mut self) {
        output("umount", &[self.dir.path()]);
        let _ = std::fs::write(format!("/sys/block/zram{}/reset", self.number), "1");
        if std::fs::write("/sys/class/zram-control/hot_remove", &self.number).is_ok() {
            let _ = std::fs::remove_file(self.mark());
        }
    }
}

async fn read(pool: &Pool, path: &Path) -> PoolReport {
    let file = pool.open(path).await.unwrap();
    let reads: Vec<_> = (0..64_u64)
        .map(|at| file.read_at(Buffer::aligned(4096).unwrap(), at % 16 * 4096))
        .collect();
    for (read, at) in reads.into_iter().zip(0..) {
        let (count, buffer) = read.await.unwrap();
        assert!(count == 4096 && buffer.iter().all(|byte| *byte == at % 16), "read {at}");
    }
    pool.report()
}

/// A read of a device without NOWAIT keeps its thread busy. Therefore, the pool of a host starts more threads when it opens the first such
/// file, unless the options set the number of threads.
#[tokio::test]
async fn a_device_without_nowait_gets_more_threads() {
    let Some(zram) = OnZram::new() else {
        eprintln!("SKIP a device without NOWAIT: needs root and zram");
        return;
    };
    let path = zram.dir.path().join("file");
    let content: Vec<u8> = (0..16_u8).flat_map(|block| vec![block; 4096]).collect();
    std::fs::write(&path, content).unwrap();
    run("sync", &[&path]);
    let pool = |options| Pool::new(Host::new(&HostOptions::new()).unwrap(), options).unwrap();
    let found = pool(PoolOptions::new());
    if found.report().engine != Engine::IoUring {
        eprintln!("SKIP a device without NOWAIT: {}", found.report());
        return;
    }
    assert_eq!(found.report().threads, 2);
    let file = found.open(&path).await.unwrap();
    let device = file.file().host().unwrap().device.unwrap();
    assert_eq!(device.nowait, Some(false), "zram has NOWAIT: this test needs another device");
    let report = read(&found, &path).await;
    assert_eq!(report.threads, 16, "{report}");
    assert!(report.reason.contains("without NOWAIT"), "{report}");
    assert_eq!(read(&pool(PoolOptions::new().threads(3)), &path).await.threads, 3);
    assert_eq!(read(&pool(PoolOptions::new().depth(4)), &path).await.threads, 4);
}
