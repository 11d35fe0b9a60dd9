//! A queue is lost while requests are in flight. Either a seccomp filter forbids further calls, or the descriptor of the ring was replaced.
//! The library never frees the memory of requests that the kernel has accepted, and no thread waits for these requests. All other requests
//! fail with an error.
//!
//! The device is a loop device over a file. To keep requests in flight, the test freezes the file system below the loop device. A separate
//! process sends the requests. When this process ends, the device and the memory that was never freed disappear.

mod common;
#[path = "common/sys.rs"]
mod sys;

use std::ffi::OsStr;
use std::fs::File as StdFile;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use common::again::name_of;
use common::command::{output, run};
use common::loop_device::LoopDevice;
use common::mounted::Mounted;
use common::process::{Process, end_with_parent, until};
use common::skip::Need;
use ironmap::bio::Buffer;
use ironmap::device::{Device, Engine, Faults, Ram, Sim};
use ironmap::dio::DioFlags;
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{Clock, Credentials, Fallocate, NewFile};
use ironmap::integrity::{FormatOptions, Integrity, format};
use ironmap::units::FilePos;
use ironmap::{
    Errno, ErrorKind, File, FileOptions, Host, HostOptions, Location, Queue, QueueOptions, Volume,
    VolumeOptions, location,
};

const LEN: usize = 64 << 10;
const START: FilePos = FilePos(0);
const OLD: u8 = 0x11;
const NEW: u8 = 0x5A;
const FOREIGN: u8 = 0xEE;

/// The environment variables of the child process. They contain the name of the case, the mount point of the file system that is frozen,
/// and the device or mount point to use.
const CASE: &str = "IRONMAP_LOST_CASE";
const GROUND: &str = "IRONMAP_LOST_GROUND";
const PLACE: &str = "IRONMAP_LOST_PLACE";

/// A loop device. Its file is on a file system that can be frozen.
struct Disk {
    // This field is dropped first, so that the device is detached before the file system below it is unmounted.
    device: LoopDevice,
    ground: Mounted,
}

impl Disk {
    fn new() -> Self {
        let ground = Mounted::ext4();
        let image = ground.path("image");
        StdFile::create(&image).and_then(|file| file.set_len(64 << 20)).unwrap();
        let device = LoopDevice::new(&image);
        run("mke2fs", &["-q", "-t", "ext4", "-b", "4096", device.node()]);
        Self { device, ground }
    }

    /// Whether the superblock records an error. Asserts that e2fsck finds no fault except this record.
    fn check(&self) -> bool {
        let header = String::from_utf8(run("dumpe2fs", &["-h", self.device.node()])).unwrap();
        let recorded = header.contains("FS Error count");
        // The kernel closes the rings of a process only some time after the process has ended.
        let mut recovered = output("e2fsck", &["-fy", self.device.node()]);
        until("the device is let go", || {
            let is_in_use = String::from_utf8_lossy(&recovered.stdout).contains("is in use");
            if is_in_use {
                recovered = output("e2fsck", &["-fy", self.device.node()]);
            }
            !is_in_use
        });
        assert!(recovered.status.code().is_some_and(|code| code <= 1), "{recovered:?}");
        run("e2fsck", &["-fn", self.device.node()]);
        recorded
    }
}

/// Dropping this value thaws the file system, even after a panic.
struct Thaw<'a>(&'a Path);

impl Drop for Thaw<'_> {
    fn drop(&mut self) {
        output("fsfreeze", &["--unfreeze".as_ref(), self.0.as_os_str()]);
    }
}

fn run_case(case: &str, ground: &Mounted, place: &OsStr) {
    let variables = [(CASE, OsStr::new(case)), (GROUND, ground.dir().as_os_str()), (PLACE, place)];
    let mut process = Process::start(&name_of(module_path!(), "run_in_a_process"), &variables);
    // The file system is thawed first, because a killed process with requests in flight does not end.
    let _thaw = Thaw(ground.dir());
    until(case, || !process.runs());
    process.finish();
}

/// Runs a case on a new disk. Returns whether the superblock records an error.
fn run_on_disk(case: &str) -> bool {
    let disk = Disk::new();
    run_case(case, &disk.ground, disk.device.node().as_ref());
    disk.check()
}

#[test]
fn writes_in_flight_end_the_volume_and_block_no_thread() {
    require!([Need::Root, Need::Tool("fsfreeze"), Need::Tool("losetup")]);
    for case in ["filter", "descriptor", "bounced", "layered", "integrity"] {
        assert!(run_on_disk(case), "{case}: the volume does not say what happened");
    }
}

#[test]
fn reads_in_flight_keep_their_memory_and_nothing_else() {
    require!([Need::Root, Need::Tool("fsfreeze"), Need::Tool("losetup")]);
    assert!(!run_on_disk("reads"), "nothing was wrong with the volume");
}

#[test]
fn requests_that_the_kernel_did_not_take_come_back() {
    require!([Need::Root, Need::Tool("losetup")]);
    for case in ["untaken", "untaken integrity"] {
        assert!(!run_on_disk(case), "{case}: nothing was wrong with the volume");
    }
}

#[test]
fn reads_of_a_host_file_keep_their_memory() {
    require!([Need::Root, Need::Tool("fsfreeze"), Need::Tool("losetup")]);
    let ground = Mounted::ext4();
    let within = Mounted::within(ground.dir(), "mke2fs -t ext4 -b 4096", 64, "noatime");
    run_case("host", &ground, within.dir().as_os_str());
}

/// The test function that runs in the child process of the other tests. In a normal test run, it does nothing.
#[test]
fn run_in_a_process() {
    let Ok(case) = std::env::var(CASE) else { return };
    end_with_parent();
    let path = |name| PathBuf::from(std::env::var_os(name).expect(name));
    let world = World { ground: path(GROUND), place: path(PLACE) };
    match case.as_str() {
        "filter" => {
            world.writes(&world.plain(), Loss::Filter, DioFlags::empty());
            let again = World::options().open(world.location());
            assert_eq!(again.err().map(|error| error.kind()), Some(ErrorKind::Busy));
        }
        "descriptor" => world.writes(&world.plain(), Loss::Descriptor, DioFlags::empty()),
        "bounced" => world.writes(&world.plain(), Loss::Filter, DioFlags::BOUNCE),
        "layered" => {
            let layered = Arc::new(Sim::new(world.device(), Faults::default()));
            world.writes(&over(layered), Loss::Filter, DioFlags::empty());
        }
        "integrity" => world.writes(&world.tagged(), Loss::Filter, DioFlags::empty()),
        "untaken" => untaken(&world.plain()),
        "untaken integrity" => untaken(&world.tagged()),
        "reads" => world.reads(&world.plain()),
        "host" => world.host(),
        other => panic!("there is no case {other}"),
    }
}

/// The reason why a queue is lost.
#[derive(Clone, Copy)]
enum Loss {
    Filter,
    Descriptor,
}

impl Loss {
    /// Makes the only queue of this process fail. The thread that uses the queue must call this function.
    fn come(self) {
        match self {
            Self::Filter => sys::forbid_io_uring(),
            Self::Descriptor => {
                let rings = std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter(|entry| {
                    let link = std::fs::read_link(entry.path());
                    link.is_ok_and(|link| link.as_os_str() == "anon_inode:[io_uring]")
                });
                let rings: Vec<_> = rings.map(|entry| entry.file_name()).collect();
                let [ring] = &rings[..] else { panic!("{rings:?}") };
                let number = ring.to_str().unwrap().parse().unwrap();
                sys::put_in_place(&StdFile::open("/dev/null").unwrap(), number);
            }
        }
    }
}

struct World {
    ground: PathBuf,
    /// The path of the device. If the test case reads files of a mounted file system, this is the path of the mount point.
    place: PathBuf,
}

fn memory(fill: u8) -> Buffer {
    let mut buffer = Buffer::aligned(LEN).unwrap();
    buffer.fill(fill);
    buffer
}

/// Memory that stands for other parts of the program. If ironmap freed the memory of a request too early, these buffers would reuse that
/// memory, and would show the bytes that the kernel writes to it.
fn foreign() -> Vec<Buffer> {
    (0..64).map(|_| memory(FOREIGN)).collect()
}

fn is_full_of(buffer: &[u8], fill: u8) -> bool {
    buffer.iter().all(|byte| *byte == fill)
}

fn over(device: Arc<dyn Device>) -> Volume {
    Volume::writable_on(device, Clock::System).unwrap()
}

fn queue(volume: &Volume) -> Queue {
    volume.queue(&QueueOptions::new().depth(8)).unwrap()
}

/// A file with old data. Near its blocks, other blocks have been allocated and freed. So an allocation finds its metadata in memory and
/// does not read the device.
fn file(volume: &Volume, name: &str) -> File {
    let fs = volume.fs();
    let number = fs
        .writable()
        .unwrap()
        .create(ROOT, name.as_bytes(), NewFile::Regular, 0o644, &Credentials::default())
        .unwrap();
    let inode = fs.lookup(ROOT, name.as_bytes()).unwrap();
    let (file, mut queue) =
        (volume.open_inode(inode, FileOptions::new().write(true)).unwrap(), queue(volume));
    file.write_at(&mut queue, &memory(OLD), START).unwrap();
    file.write_at(&mut queue, &memory(OLD), FilePos(LEN as u64)).unwrap();
    fs.writable()
        .unwrap()
        .fallocate(number, Fallocate::Punch, FilePos(LEN as u64), LEN as u64)
        .unwrap();
    fs.sync().unwrap();
    file
}

fn punch(volume: &Volume, file: &File) -> ironmap::Result<()> {
    volume.fs().writable().unwrap().fallocate(file.inode(), Fallocate::Punch, START, LEN as u64)
}

impl World {
    fn options() -> VolumeOptions {
        let (engine, commit) = (Engine::IoUring, Duration::ZERO);
        VolumeOptions::new().engine(engine).write(true).commit(commit)
    }

    fn location(&self) -> Location {
        self.place.to_str().unwrap().parse().unwrap()
    }

    fn plain(&self) -> Volume {
        Self::options().open(self.location()).unwrap()
    }

    fn device(&self) -> Arc<dyn Device> {
        let engine = Engine::IoUring;
        let options = location::LocationOptions::new().engine(engine).write(true);
        self.location().open(&options).unwrap().device
    }

    fn tagged(&self) -> Volume {
        let device = self.device();
        let tags: Arc<dyn Device> = Arc::new(Ram::new(device.size() / 16 + (16 << 20)));
        format(&device, Some(&tags), &FormatOptions::default(), &mut |_, _| {}).unwrap();
        over(Arc::new(Integrity::open(device, Some(tags)).unwrap().device))
    }

    fn freeze(&self) {
        run("fsfreeze", &["--freeze".as_ref(), self.ground.as_os_str()]);
    }

    fn thaw(&self) {
        run("fsfreeze", &["--unfreeze".as_ref(), self.ground.as_os_str()]);
    }

    /// The number of errors that the superblock records.
    fn errors(&self) -> u32 {
        let mut count = [0; 4];
        StdFile::open(&self.place).unwrap().read_exact_at(&mut count, 1024 + 0x194).unwrap();
        u32::from_le_bytes(count)
    }

    /// Waits until the device has at least this number of reads or writes in flight.
    fn until_in_flight(&self, device: &Path, kind: usize, count: u32) {
        let name = device.file_name().unwrap().to_str().unwrap();
        until("requests are in flight", || {
            let counts = std::fs::read_to_string(format!("/sys/block/{name}/inflight")).unwrap();
            let found: u32 = counts.split_whitespace().nth(kind).unwrap().parse().unwrap();
            found >= count
        });
    }

    /// A write is in flight when the queue is lost. After the thaw, the device still carries out the write.
    fn writes(&self, volume: &Volume, loss: Loss, flags: DioFlags) {
        let held = file(volume, "held");
        self.freeze();
        let ((tell, told), (go, gone)) = (channel(), channel());
        let owner = thread::spawn({
            let (volume, held) = (volume.clone(), held.clone());
            move || {
                let mut queue = queue(&volume);
                held.submit_write(&mut queue, memory(NEW), START, flags, 1).unwrap();
                queue.poll().unwrap();
                tell.send(()).unwrap();
                gone.recv().unwrap();
                loss.come();
                assert!(queue.wait(1).is_err() && queue.pop().is_none());
                drop(queue);
            }
        });
        told.recv().unwrap();
        self.until_in_flight(&self.place, 1, 1);
        let waiter = thread::spawn({
            let (volume, held) = (volume.clone(), held.clone());
            move || punch(&volume, &held)
        });
        go.send(()).unwrap();
        for refused in [waiter.join().unwrap(), punch(volume, &held)] {
            let kind = refused.expect_err("blocks are freed that are written").kind();
            assert!(matches!(kind, ErrorKind::Io(Errno::EIO) | ErrorKind::ReadOnly), "{kind:?}");
        }
        for error in [volume.fs().sync(), volume.close()] {
            let error = error.expect_err("the volume goes on");
            assert_eq!(error.kind(), ErrorKind::ReadOnly);
            assert!(error.to_string().contains("writes in flight"), "{error}");
        }
        let foreign = foreign();
        // At this point, the superblock on the device does not record the error yet.
        until("the queue is dropped", || owner.is_finished());
        self.thaw();
        owner.join().unwrap();
        until("the device has a note of the error", || self.errors() > 0);
        let (mut queue, mut read) = (queue(volume), memory(OLD));
        until("the write is done", || {
            held.read_at(&mut queue, &mut read, START).unwrap();
            is_full_of(&read, NEW)
        });
        assert!(foreign.iter().all(|buffer| is_full_of(buffer, FOREIGN)));
        let written = held.write_at(&mut queue, &memory(OLD), START);
        assert_eq!(written.unwrap_err().kind(), ErrorKind::ReadOnly);
    }

    /// Reads are in flight when the queue is lost. A write was submitted too, but the kernel has not yet accepted it.
    fn reads(&self, volume: &Volume) {
        let (held, other) = (file(volume, "held"), file(volume, "other"));
        self.freeze();
        // The device carries out one request at a time. If a write waits for the frozen file system, the reads after it wait too.
        let blocker = thread::spawn({
            let volume = volume.clone();
            move || other.write_at(&mut queue(&volume), &memory(NEW), START).unwrap()
        });
        self.until_in_flight(&self.place, 1, 1);
        let ((tell, told), (go, gone)) = (channel(), channel());
        let owner = thread::spawn({
            let (volume, held) = (volume.clone(), held.clone());
            move || {
                let (mut queue, none) = (queue(&volume), DioFlags::empty());
                for (token, flags) in [(1, none), (2, DioFlags::BOUNCE)] {
                    held.submit_read(&mut queue, memory(0), START, flags, token).unwrap();
                }
                queue.poll().unwrap();
                tell.send(()).unwrap();
                gone.recv().unwrap();
                held.submit_write(&mut queue, memory(NEW), START, none, 3).unwrap();
                Loss::Filter.come();
                assert!(queue.wait(3).is_err());
                let popped = queue.pop().expect("the request that was not taken");
                assert_eq!((popped.token, popped.memory.len()), (3, LEN));
                assert_eq!(popped.result.unwrap_err().errno(), Errno::EPERM);
                assert!(queue.pop().is_none());
            }
        });
        told.recv().unwrap();
        self.until_in_flight(&self.place, 0, 2);
        go.send(()).unwrap();
        owner.join().unwrap();
        let foreign = foreign();
        self.thaw();
        blocker.join().unwrap();
        let mut read = memory(0);
        held.read_at(&mut queue(volume), &mut read, START).unwrap();
        assert!(is_full_of(&read, OLD));
        assert!(foreign.iter().all(|buffer| is_full_of(buffer, FOREIGN)));
        punch(volume, &held).unwrap();
        volume.close().unwrap();
    }

    /// A queue reads a file of a mounted file system. The queue is lost while the read is in flight.
    fn host(&self) {
        let path = |name: &str| self.place.join(name);
        std::fs::write(path("held"), &memory(OLD)[..]).unwrap();
        StdFile::open(path("held")).unwrap().sync_all().unwrap();
        let device = run("findmnt", &["-nro".as_ref(), "SOURCE".as_ref(), self.place.as_os_str()]);
        let device = PathBuf::from(String::from_utf8(device).unwrap().trim());
        let host = Host::new(&HostOptions::new().engine(Engine::IoUring)).unwrap();
        let held = host.open_with(path("held"), FileOptions::default()).unwrap();
        let other = StdFile::create(path("other")).unwrap();
        self.freeze();
        let blocker = thread::spawn(move || {
            other.write_all_at(&memory(NEW), 0).unwrap();
            other.sync_data().unwrap();
        });
        self.until_in_flight(&device, 1, 1);
        let ((tell, told), (go, gone)) = (channel(), channel());
        let owner = thread::spawn({
            let (host, held) = (host.clone(), held.clone());
            move || {
                let mut queue = host.queue(&QueueOptions::new().depth(8)).unwrap();
                held.submit_read(&mut queue, memory(0), START, DioFlags::empty(), 1).unwrap();
                queue.poll().unwrap();
                tell.send(()).unwrap();
                gone.recv().unwrap();
                Loss::Filter.come();
                assert!(queue.wait(1).is_err() && queue.pop().is_none());
            }
        });
        told.recv().unwrap();
        self.until_in_flight(&device, 0, 1);
        go.send(()).unwrap();
        owner.join().unwrap();
        let foreign = foreign();
        self.thaw();
        blocker.join().unwrap();
        let (mut queue, mut read) = (host.queue(&QueueOptions::default()).unwrap(), memory(0));
        held.read_at(&mut queue, &mut read, START).unwrap();
        assert!(is_full_of(&read, OLD) && held.host().unwrap().is_raw());
        assert!(foreign.iter().all(|buffer| is_full_of(buffer, FOREIGN)));
    }
}

/// The queue is lost before the kernel has accepted any request. Each request fails with the error, whether it is popped or not. The volume
/// remains usable.
fn untaken(volume: &Volume) {
    let held = file(volume, "held");
    let owner = thread::spawn({
        let (volume, held) = (volume.clone(), held.clone());
        move || {
            let (mut queue, none) = (queue(&volume), DioFlags::empty());
            held.submit_write(&mut queue, memory(NEW), START, none, 1).unwrap();
            held.submit_read(&mut queue, memory(0), START, DioFlags::BOUNCE, 2).unwrap();
            Loss::Filter.come();
            assert!(queue.wait(2).is_err());
            for _ in 0..2 {
                let popped = queue.pop().expect("the request that was not taken");
                assert_eq!(popped.memory.len(), LEN);
                assert_eq!(popped.result.unwrap_err().errno(), Errno::EPERM);
            }
            assert_eq!(queue.outstanding(), 0);
            held.submit_write(&mut queue, memory(NEW), START, none, 3).unwrap();
        }
    });
    owner.join().unwrap();
    let (mut queue, mut read) = (queue(volume), memory(0));
    held.read_at(&mut queue, &mut read, START).unwrap();
    assert!(is_full_of(&read, OLD));
    held.write_at(&mut queue, &memory(NEW), START).unwrap();
    punch(volume, &held).unwrap();
    drop(queue);
    volume.close().unwrap();
}
