//! Tests a pool whose queue is lost while requests are in flight. The cause is a seccomp filter that was installed late, or a closed
//! descriptor.
//!
//! A frozen file system below a loop device keeps the requests in flight. A child process makes the requests. It never frees the device and
//! the memory; they disappear when the process ends.

#[path = "../../../tests/common/command.rs"]
mod command;
#[allow(dead_code, reason = "this program uses only a part of the module")]
#[path = "../../../tests/common/loop_device.rs"]
mod loop_device;
#[allow(dead_code, reason = "this program uses only a part of the module")]
#[path = "../../../tests/common/process.rs"]
mod process;
#[path = "../../../tests/common/sys.rs"]
mod sys;

use std::ffi::OsStr;
use std::fs::File as StdFile;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;

use command::{output, run};
use ironmap::{
    Buffer, DioFlags, Engine, Errno, Error, ErrorKind, FileOptions, QueueOptions, Volume,
    VolumeOptions,
};
use ironmap_async::{AsyncFile, Failed, Pool, PoolOptions};
use loop_device::LoopDevice;
use process::{Process, end_with_parent, until};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

const LEN: usize = 64 << 10;
/// A position of the device that no file uses.
const UNUSED: u64 = 60 << 20;
const OLD: u8 = 0x11;
const NEW: u8 = 0x5A;
const FOREIGN: u8 = 0xEE;

/// The environment variables of the child process: the name of the case, the mount point of the file system that is frozen, and the device.
const CASE: &str = "IRONMAP_LOST_CASE";
const GROUND: &str = "IRONMAP_LOST_GROUND";
const PLACE: &str = "IRONMAP_LOST_PLACE";

/// A mounted file system that can be frozen.
struct Ground {
    _dir: TempDir,
    mount: PathBuf,
}

impl Ground {
    /// `None` if this machine cannot mount a file system.
    fn new() -> Option<Self> {
        let dir = tempfile::Builder::new().prefix("ironmap-test-").tempdir().unwrap();
        let (image, mount) = (dir.path().join("image"), dir.path().join("mounted"));
        StdFile::create(&image).unwrap().set_len(128 << 20).unwrap();
        std::fs::create_dir(&mount).unwrap();
        run("mke2fs", &["-q".as_ref(), "-t".as_ref(), "ext4".as_ref(), image.as_os_str()]);
        let how = ["-o".as_ref(), "loop".as_ref(), image.as_os_str(), mount.as_os_str()];
        let mounted = output("mount", &how);
        let refusal = String::from_utf8_lossy(&mounted.stderr).into_owned();
        mounted.status.success().then_some(Self { _dir: dir, mount }).or_else(|| {
            eprintln!("SKIP a pool whose queue is lost: {}", refusal.trim());
            None
        })
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // The unmount is repeated, because the kernel closes the rings of a process only some time after the process has ended.
        until("the file system is unmounted", || output("umount", &[&self.mount]).status.success());
    }
}

/// Thaws the file system on drop, also after a panic.
struct Thaw<'a>(&'a Path);

impl Drop for Thaw<'_> {
    fn drop(&mut self) {
        output("fsfreeze", &["--unfreeze".as_ref(), self.0.as_os_str()]);
    }
}

/// If the queue of a pool is lost, no task waits forever. The requests in flight end with an error. Their memory is not freed, and the
/// report counts them. Later requests use a new queue. If the kernel refuses the new queue, they fail.
#[test]
fn a_lost_queue_ends_its_requests() {
    for case in ["filter", "descriptor", "write"] {
        let Some(ground) = Ground::new() else { return };
        let image = ground.mount.join("image");
        StdFile::create(&image).and_then(|file| file.set_len(64 << 20)).unwrap();
        let device = LoopDevice::new(&image);
        run("mke2fs", &["-q", "-t", "ext4", "-b", "4096", device.node()]);
        let variables: [(&str, &OsStr); 3] = [
            (CASE, case.as_ref()),
            (GROUND, ground.mount.as_os_str()),
            (PLACE, device.node().as_ref()),
        ];
        let mut process = Process::start("run_in_a_process", &variables);
        // The file system is thawed before the process is killed, because a process with requests in flight does not end.
        let thaw = Thaw(&ground.mount);
        until(case, || !process.runs());
        process.finish();
        drop(thaw);
    }
}

/// The child process. It runs the case that the parent test names in an environment variable.
#[test]
fn run_in_a_process() {
    let Ok(case) = std::env::var(CASE) else { return };
    end_with_parent();
    let path = |name| PathBuf::from(std::env::var_os(name).expect(name));
    let world = World::new(path(GROUND), path(PLACE));
    match case.as_str() {
        "filter" => world.reads(sys::forbid_io_uring, Some(Errno::EPERM)),
        "descriptor" => world.reads(close_the_ring, None),
        "write" => world.writes(),
        other => panic!("there is no case {other}"),
    }
}

/// Replaces the descriptor of the only ring of this process.
fn close_the_ring() {
    let rings = std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter(|entry| {
        let link = std::fs::read_link(entry.path());
        link.is_ok_and(|link| link.as_os_str() == "anon_inode:[io_uring]")
    });
    let rings: Vec<_> = rings.map(|entry| entry.file_name()).collect();
    let [ring] = &rings[..] else { panic!("{rings:?}") };
    let number = ring.to_str().unwrap().parse().unwrap();
    sys::put_in_place(&StdFile::open("/dev/null").unwrap(), number);
}

fn memory(fill: u8) -> Buffer {
    let mut buffer = Buffer::aligned(LEN).unwrap();
    buffer.fill(fill);
    buffer
}

fn is_full_of(buffer: &[u8], fill: u8) -> bool {
    buffer.iter().all(|byte| *byte == fill)
}

/// A pool with one thread, and a file of old data on a device that can be frozen.
struct World {
    ground: PathBuf,
    place: PathBuf,
    runtime: Runtime,
    volume: Volume,
    pool: Pool,
    file: AsyncFile,
}

impl World {
    fn new(ground: PathBuf, place: PathBuf) -> Self {
        let options = VolumeOptions::new().engine(Engine::IoUring).write(true);
        let volume = options.open(&*place).unwrap();
        let pool = Pool::new(volume.clone(), PoolOptions::new().threads(1)).unwrap();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let file = runtime.block_on(async {
            let options = FileOptions::new().write(true).create(true);
            let file = pool.open_with("/held", options).await.unwrap();
            file.write_at(memory(OLD), 0, DioFlags::empty()).await.unwrap();
            file.sync().await.unwrap();
            file
        });
        Self { ground, place, runtime, volume, pool, file }
    }

    fn freeze(&self) {
        run("fsfreeze", &["--freeze".as_ref(), self.ground.as_os_str()]);
    }

    fn thaw(&self) {
        run("fsfreeze", &["--unfreeze".as_ref(), self.ground.as_os_str()]);
    }

    /// Waits until the device has at least `count` reads (kind 0) or writes (kind 1) in flight.
    fn until_in_flight(&self, kind: usize, count: u32) {
        let name = self.place.file_name().unwrap().to_str().unwrap();
        until("requests are in flight", || {
            let counts = std::fs::read_to_string(format!("/sys/block/{name}/inflight")).unwrap();
            counts.split_whitespace().nth(kind).unwrap().parse::<u32>().unwrap() >= count
        });
    }

    /// Runs `loss` on the thread of the pool. The thread thereby loses its queue.
    fn lose(&self, loss: fn()) {
        let lost = self.pool.run(move |_| {
            loss();
            Ok::<_, Error>(())
        });
        self.runtime.block_on(lost).unwrap();
    }

    fn read(&self) -> Result<(usize, Buffer), Failed> {
        self.runtime.block_on(self.file.read_at(memory(0), 0))
    }

    /// The queue is lost while two reads are in flight. Later reads succeed, unless the kernel refuses a new queue.
    fn reads(&self, loss: fn(), refused: Option<Errno>) {
        self.freeze();
        // The device carries out one request at a time. A write that waits for the file system also delays the reads after it.
        let blocker = thread::spawn({
            let device = StdFile::options().write(true).open(&self.place).unwrap();
            move || {
                device.write_all_at(&memory(NEW), UNUSED).unwrap();
                device.sync_data().unwrap();
            }
        });
        self.until_in_flight(1, 1);
        let reads = [(); 2].map(|()| self.file.read_at(memory(0), 0));
        self.until_in_flight(0, 2);
        self.lose(loss);
        for read in reads {
            let failed = self.runtime.block_on(read).unwrap_err();
            assert!(matches!(failed.error.kind(), ErrorKind::Io(_)), "{failed}");
            assert!(failed.buffer.is_none(), "the kernel may still write this memory");
        }
        let report = self.pool.report();
        assert_eq!(report.abandoned, 2, "{report}");
        let foreign: Vec<_> = (0..64).map(|_| memory(FOREIGN)).collect();
        if let Some(errno) = refused {
            let failed = self.read().unwrap_err();
            assert_eq!(failed.error.errno(), errno, "{failed}");
            assert!(failed.buffer.is_some(), "the request was not begun");
        }
        self.thaw();
        blocker.join().unwrap();
        if refused.is_none() {
            assert!(is_full_of(&self.read().unwrap().1, OLD));
        }
        // A thread outside the pool can still read the file through its own queue.
        let mut read = memory(0);
        let mut queue = self.volume.queue(&QueueOptions::new().depth(1)).unwrap();
        self.file.file().read_at(&mut queue, &mut read, 0).unwrap();
        assert!(is_full_of(&read, OLD));
        assert!(foreign.iter().all(|buffer| is_full_of(buffer, FOREIGN)));
        assert_eq!(self.pool.report().abandoned, 2);
        self.volume.close().unwrap();
    }

    /// The queue is lost while a write is in flight. The write reaches the device after the thaw, so the volume becomes read-only before
    /// the task gets the error.
    fn writes(&self) {
        self.freeze();
        let write = self.file.write_at(memory(NEW), 0, DioFlags::empty());
        self.until_in_flight(1, 1);
        self.lose(close_the_ring);
        let failed = self.runtime.block_on(write).unwrap_err();
        assert!(failed.buffer.is_none(), "the kernel may still read this memory");
        assert_eq!(self.pool.report().abandoned, 1);
        let error = self.volume.close().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
        assert!(error.to_string().contains("writes in flight"), "{error}");
        self.thaw();
        until("the write is done", || is_full_of(&self.read().unwrap().1, NEW));
        let later = self.file.write_at(memory(OLD), 0, DioFlags::empty());
        let failed = self.runtime.block_on(later).unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::ReadOnly, "{failed}");
        assert!(failed.buffer.is_some(), "the request was not begun");
    }
}
