//! Forces rare events around leases:
//!
//! - A process is stopped while the kernel removes its lease.
//! - A lease is broken while requests are in flight.
//! - Files are closed before their requests complete.
//! - A thousand leases are broken at the same time.

mod common;
#[path = "common/sys.rs"]
mod sys;

use std::ffi::OsStr;
use std::fs::{File as OsFile, OpenOptions as OsOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::command::{output, run};
use common::image::scratch_in;
use common::mounted::Mounted;
use common::process::{self, Process, pause, until};
use common::ranges::bytes;
use common::setting::Setting;
use common::skip::{Need, note_part};
use ironmap::bio::{Buffer, Memory};
use ironmap::dio::DioFlags;
use ironmap::units::FilePos;
use ironmap::{Engine, File, FileOptions, Host, HostOptions, Queue, QueueOptions};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, Signal};
use sys::{Shared, ends_well_forked, truncate};

const NONE: DioFlags = DioFlags::empty();
const LEN: usize = 1 << 20;
/// The length of the hole that ends at the end of the file.
const HOLE: usize = 4096;
/// The version number in data of other files. These files get blocks of the tested file.
const FOREIGN: u64 = 0xf0;

/// A lock that lets the tests of this file run one at a time. They change system-wide settings and use all processors.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Data in which each word of eight bytes contains its position and a version.
fn content(len: usize, version: u64) -> Vec<u8> {
    (0..len as u64 / 8).flat_map(|word| (word | version << 48).to_le_bytes()).collect()
}

/// The lowest and the highest version in data that were read at a position. `None` if a word does not belong to the file.
fn versions(read: &[u8], pos: u64) -> Option<(u64, u64)> {
    let mut found: Option<(u64, u64)> = None;
    for (index, word) in (pos / 8..).zip(read.chunks_exact(8)) {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        let version = word >> 48;
        if word & 0xffff_ffff_ffff != index || version == FOREIGN {
            return None;
        }
        let (low, high) = found.unwrap_or((version, version));
        found = Some((low.min(version), high.max(version)));
    }
    found
}

fn host(engine: Engine) -> (Host, Queue) {
    let host = Host::new(&HostOptions::new().engine(engine)).unwrap();
    let queue = host.queue(&QueueOptions::default()).unwrap();
    (host, queue)
}

fn open(host: &Host, path: &Path) -> File {
    let file = host.open_with(path, FileOptions::default()).unwrap();
    let report = file.host().unwrap();
    assert!(report.is_raw(), "{report:?}");
    file
}

/// A full file system with one file that the test reads. New files get the blocks that were just freed.
struct Full {
    mounted: Mounted,
    path: PathBuf,
}

impl Full {
    fn new() -> Self {
        let mounted = Mounted::new("mke2fs -t ext4 -b 4096", 32, "noatime");
        let path = mounted.write("file", &content(LEN, 1));
        OsOptions::new().write(true).open(&path).unwrap().set_len((LEN + HOLE) as u64).unwrap();
        mounted.write("room", &content(2 * LEN, FOREIGN));
        let full = Self { mounted, path };
        full.fill("rest");
        full
    }

    fn sync(&self) {
        run("sync", &["--file-system", self.mounted.dir().to_str().unwrap()]);
    }

    /// Creates a file that allocates all free space.
    fn fill(&self, name: &str) {
        self.sync();
        let file = OsFile::create_new(self.mounted.path(name)).unwrap();
        let foreign = content(4096, FOREIGN);
        for block in 0.. {
            if file.write_all_at(&foreign, block * 4096).is_err() {
                break;
            }
        }
        self.sync();
    }

    /// Moves the file's blocks to another file. A late read of these blocks then returns data that were never in the tested file. Then
    /// writes new content to the tested file, in other blocks and without a hole.
    fn rewrite(&self) {
        let writer = OsOptions::new().write(true).open(&self.path).unwrap();
        writer.set_len(0).unwrap();
        self.fill("others");
        std::fs::remove_file(self.mounted.path("room")).unwrap();
        self.sync();
        writer.write_all_at(&content(LEN + HOLE, 2), 0).unwrap();
    }
}

/// A system-wide setting, in seconds. After this time, the kernel removes a broken lease that was not released.
const BREAK_TIME: &str = "/proc/sys/fs/lease-break-time";

/// The environment variable with the path of a file. The stopped process and the test map this file to share memory.
const MEMORY: &str = "IRONMAP_LEASE_MEMORY";
const PATH: &str = "IRONMAP_LEASE_PATH";
// The words in the shared memory: the number of reads, the number of reads from the device, the lowest allowed version of the data, a flag
// that ends the process, and a flag that makes a thread keep the processor busy.
const READS: usize = 0;
const RAW: usize = 1;
const LOWEST: usize = 2;
const ENDED: usize = 3;
const BUSY: usize = 4;

/// The test stops this process, which runs a test function. In a normal test run, the function does nothing. In the process, several
/// threads read and check until the end flag is set. The thread that handles broken leases gets the lowest priority, so that a busy thread
/// can delay it.
#[test]
fn reading_process() {
    let (Some(memory), Some(path)) = (std::env::var_os(MEMORY), std::env::var_os(PATH)) else {
        return;
    };
    process::end_with_parent();
    let memory = Shared::open(Path::new(&memory));
    let host = Host::new(&HostOptions::new().engine(Engine::Psync)).unwrap();
    let file = open(&host, Path::new(&path));
    use_one_processor();
    let watching = thread_named("ironmap-lease");
    run("chrt", &["--idle", "--pid", "0", &watching]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // While this thread keeps the processor busy, the thread that handles leases does not run.
            while memory[ENDED].load(SeqCst) == 0 {
                if memory[BUSY].load(SeqCst) == 0 {
                    pause(Duration::from_millis(1));
                }
            }
        });
        for thread in 0..4 {
            let (memory, host, file) = (&memory, &host, &file);
            scope.spawn(move || judge_reads(memory, host, file, thread));
        }
    });
}

fn use_one_processor() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"));
    let first = allowed.and_then(|list| list.split([',', '-']).next()).unwrap();
    run("taskset", &["--all-tasks", "--cpu-list", "--pid", first, &std::process::id().to_string()]);
}

fn thread_named(name: &str) -> String {
    let mut threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let named = threads.find(|thread| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    });
    let thread = named.unwrap_or_else(|| panic!("no thread is named {name}"));
    thread.file_name().into_string().unwrap()
}

fn judge_reads(memory: &[AtomicU64], host: &Host, file: &File, thread: u64) {
    let mut queue = host.queue(&QueueOptions::default()).unwrap();
    let mut block = Buffer::aligned(4096).unwrap();
    for round in thread.. {
        if memory[ENDED].load(SeqCst) != 0 {
            return;
        }
        let pos = round * 4096 % LEN as u64;
        let lowest = memory[LOWEST].load(SeqCst);
        let served = queue.stats().kernel_served;
        let count = file.read_at(&mut queue, &mut block, FilePos(pos)).unwrap();
        memory[READS].fetch_add(1, SeqCst);
        if queue.stats().kernel_served == served {
            memory[RAW].fetch_add(1, SeqCst);
        }
        let fits = versions(&block[..count], pos).is_some_and(|(low, _)| low >= lowest);
        if !fits {
            // If the check of this thread fails, the thread sets the flag that ends all threads before it panics.
            memory[ENDED].store(1, SeqCst);
        }
        assert!(fits, "at {pos}: {:?}, not {lowest} or more", versions(&block[..count], pos));
        block = judge_hole(memory, file, &mut queue, block);
    }
}

/// Checks a queued read of a hole of the file. The device gets no request for a hole. So only the lease decides whether the result is
/// valid.
fn judge_hole(memory: &[AtomicU64], file: &File, queue: &mut Queue, block: Buffer) -> Buffer {
    let lowest = memory[LOWEST].load(SeqCst);
    file.submit_read(queue, block, FilePos(LEN as u64), NONE, 0).map_err(|r| r.error).unwrap();
    queue.wait(1).unwrap();
    let done = queue.pop().unwrap();
    assert_eq!(done.result.unwrap(), HOLE);
    let Memory::Flat(block) = done.memory else { panic!("it was one buffer") };
    let zeros = block.iter().all(|byte| *byte == 0);
    let fits = versions(&block, LEN as u64) == Some((2, 2)) || zeros && lowest < 2;
    if !fits {
        memory[ENDED].store(1, SeqCst);
    }
    assert!(fits, "the hole of version 1, not {lowest} or more: {zeros}");
    block
}

/// If a process is stopped for long enough, the kernel removes its lease. The process then discards the result of every read from the
/// device that ends later, even before it is notified of the removal.
#[test]
fn a_stopped_process_accepts_no_read() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("taskset"), Need::Tool("chrt")]);
    let _alone = alone();
    let _time = Setting::change(BREAK_TIME, "1");
    for _ in 0..2 {
        let full = Full::new();
        let scratch = scratch_in(Path::new("/dev/shm"));
        let name = scratch.path().join("memory");
        let memory = Shared::create(&name, 8);
        memory[LOWEST].store(1, SeqCst);
        let variables: [(&str, &OsStr); 2] = [(MEMORY, name.as_ref()), (PATH, full.path.as_ref())];
        let mut reader = Process::start("reading_process", &variables);
        until("it reads raw", || memory[RAW].load(SeqCst) > 100 || !reader.runs());
        memory[BUSY].store(1, SeqCst);
        reader.signal(Signal::STOP);
        reader.wait_stopped();

        let begin = Instant::now();
        full.rewrite();
        assert!(begin.elapsed() >= Duration::from_millis(500), "the lease was let go");
        memory[LOWEST].store(2, SeqCst);
        let reads = memory[READS].load(SeqCst);
        reader.signal(Signal::CONT);
        until("it reads on", || memory[READS].load(SeqCst) > reads + 100 || !reader.runs());
        memory[BUSY].store(0, SeqCst);
        let raw = memory[RAW].load(SeqCst);
        until("it reads raw again", || memory[RAW].load(SeqCst) > raw + 100 || !reader.runs());
        memory[ENDED].store(1, SeqCst);
        reader.finish();
    }
}

/// Requests are in flight when the lease is broken. They never return later content of the blocks, even if their thread collects the
/// completions late. The device may complete a request before or after the break.
#[test]
fn requests_in_flight_are_cut() {
    require!([Need::Root, Need::Tool("losetup")]);
    let _alone = alone();
    for (engine, done_before) in
        [(Engine::IoUring, true), (Engine::IoUring, false), (Engine::Psync, true)]
    {
        let full = Full::new();
        let (host, mut queue) = host(engine);
        let file = open(&host, &full.path);
        submit_all(&file, &mut queue);
        if done_before {
            queue.wait(REQUESTS).unwrap();
        }
        full.rewrite();
        let popped = pop_all(&mut queue);
        for (pos, read) in &popped {
            assert_eq!(versions(read, *pos), Some((2, 2)), "{engine}, {pos}");
        }
        assert_eq!(queue.stats().cut, REQUESTS as u64, "{engine}");
        assert_eq!(file.host().unwrap().breaks, 1);
    }
}

const REQUESTS: usize = 32;

/// Submits reads that cover the file. The token of each read is the read's position in the file.
fn submit_all(file: &File, queue: &mut Queue) {
    let len = LEN / REQUESTS;
    for pos in (0..LEN as u64).step_by(len) {
        let memory = Buffer::aligned(len).unwrap();
        file.submit_read(queue, memory, FilePos(pos), NONE, pos).map_err(|r| r.error).unwrap();
    }
}

fn pop_all(queue: &mut Queue) -> Vec<(u64, Vec<u8>)> {
    let mut popped = Vec::new();
    while queue.outstanding() > 0 {
        queue.wait(queue.outstanding()).unwrap();
        while let Some(done) = queue.pop() {
            let count = done.result.unwrap();
            popped.push((done.token, bytes(&done.memory)[..count].to_vec()));
        }
    }
    assert_eq!(popped.len(), REQUESTS);
    popped
}

/// A handle and its queue can be dropped while requests are in flight. The requests complete correctly, and after that the lease is
/// released.
#[test]
fn a_file_is_closed_with_requests_in_flight() {
    require!([Need::Root, Need::Tool("losetup")]);
    let _alone = alone();
    for engine in [Engine::IoUring, Engine::Psync] {
        let full = Full::new();
        let (host, mut queue) = host(engine);
        let file = open(&host, &full.path);
        submit_all(&file, &mut queue);
        drop(file);
        full.rewrite();
        for (pos, read) in pop_all(&mut queue) {
            assert_eq!(versions(&read, pos), Some((2, 2)), "{engine}, {pos}");
        }
        assert_eq!(leases_on(&full.path), 0);

        let file = open(&host, &full.path);
        submit_all(&file, &mut queue);
        drop(file);
        for (pos, read) in pop_all(&mut queue) {
            assert_eq!(versions(&read, pos), Some((2, 2)), "{engine}, {pos}");
        }
        assert_eq!(leases_on(&full.path), 0, "the last request holds the file");

        let file = open(&host, &full.path);
        submit_all(&file, &mut queue);
        drop(file);
        drop(queue);
        assert_eq!(leases_on(&full.path), 0, "the queue waited for its requests");
    }
}

/// A forked process shares the open files, their leases and their inotify watches with its parent. If the child closes them, the parent is
/// not affected.
#[test]
fn a_forked_process_closes_what_is_open() {
    require!([Need::Root, Need::Tool("losetup")]);
    let _alone = alone();
    let full = Full::new();
    let host = Host::new(&HostOptions::new().engine(Engine::Psync)).unwrap();
    let mut opened = Some((open(&host, &full.path), host));
    assert!(ends_well_forked(|| drop(opened.take())));
    let (file, host) = opened.unwrap();
    let mut queue = host.queue(&QueueOptions::default()).unwrap();
    assert_eq!((leases_on(&full.path), file.host().unwrap().breaks), (1, 0));
    let flags = OFlags::RDONLY | OFlags::TRUNC;
    rustix::fs::open(&full.path, flags, Mode::empty()).unwrap();
    until("it is met", || file.host().unwrap().breaks == 1);
    assert_eq!(file.read_at(&mut queue, &mut [0; 512], FilePos(0)).unwrap(), 0);
}

/// If a program opens a file read-only with O_TRUNC, Linux breaks no lease. ironmap still detects this truncation.
#[test]
fn a_truncation_that_breaks_no_lease_is_met() {
    require!([Need::Root, Need::Tool("losetup")]);
    let _alone = alone();
    let full = Full::new();
    let (host, mut queue) = host(Engine::Psync);
    let files = [open(&host, &full.path), open(&host, &full.path)];
    let truncate = || {
        let flags = OFlags::RDONLY | OFlags::TRUNC;
        rustix::fs::open(&full.path, flags, Mode::empty()).unwrap();
    };
    truncate();
    full.fill("others");
    let mut memory = vec![0; LEN];
    for file in &files {
        assert_eq!(file.read_at(&mut queue, &mut memory, FilePos(0)).unwrap(), 0);
        assert_eq!(file.host().unwrap().breaks, 1);
    }
    // After the truncation, ironmap acquires the lease of the file again. Then it detects further truncations too.
    std::fs::remove_file(full.mounted.path("room")).unwrap();
    std::fs::write(&full.path, content(LEN, 2)).unwrap();
    until("all are raw again", || {
        files.iter().all(|file| {
            assert_eq!(file.read_at(&mut queue, &mut memory, FilePos(0)).unwrap(), LEN);
            file.host().unwrap().is_raw()
        })
    });
    truncate();
    full.fill("more");
    for file in &files {
        assert_eq!(file.read_at(&mut queue, &mut memory, FilePos(0)).unwrap(), 0);
    }
}

/// A truncation through an overlay file system does not break a lease on the lower file. ironmap still detects it.
#[test]
fn a_truncation_through_an_overlay_is_met() {
    require!([Need::Root, Need::Tool("losetup")]);
    let _alone = alone();
    let mounted = Mounted::ext4();
    let dirs = ["lower", "upper", "work", "merged"].map(|name| mounted.path(name));
    dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    let path = mounted.write("upper/file", &content(LEN, 1));
    let [lower, upper, work, merged] = dirs.each_ref().map(|dir| dir.to_str().unwrap());
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let overlay = output("mount", &["-t", "overlay", "-o", &options, "overlay", merged]);
    if !overlay.status.success() {
        let said = String::from_utf8_lossy(&overlay.stderr);
        return note_part("host_lease", "a truncation through an overlay", &said);
    }
    let _overlay = Unmount(merged);
    let (host, mut queue) = host(Engine::Psync);
    let file = open(&host, &path);
    truncate(&Path::new(merged).join("file"), 8).unwrap();
    until("the kernel serves it", || !file.host().unwrap().is_raw());
    let mut memory = vec![0; LEN];
    assert_eq!(file.read_at(&mut queue, &mut memory, FilePos(0)).unwrap(), 8);
}

struct Unmount<'a>(&'a str);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        output("umount", &[self.0]);
    }
}

/// The number of leases on a file, from the kernel's list of leases.
fn leases_on(path: &Path) -> usize {
    let stat = path.metadata().unwrap();
    let (major, minor) = (rustix::fs::major(stat.dev()), rustix::fs::minor(stat.dev()));
    let name = format!(" {major:02x}:{minor:02x}:{} ", stat.ino());
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    locks.lines().filter(|line| line.contains("LEASE") && line.contains(&name)).count()
}

/// A changed limit of this process. Dropping the value restores the limit.
struct Limit(Resource, Rlimit);

impl Limit {
    fn set(resource: Resource, current: Option<u64>) -> Self {
        let before = rustix::process::getrlimit(resource);
        rustix::process::setrlimit(resource, Rlimit { current, ..before }).unwrap();
        Self(resource, before)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let _ = rustix::process::setrlimit(self.0, self.1);
    }
}

/// A thousand leases are broken at the same time. ironmap releases them before the kernel removes them, and acquires them again after the
/// writers have closed the files.
#[test]
fn a_thousand_leases_are_broken_at_once() {
    require!([Need::Root, Need::Tool("losetup")]);
    let _alone = alone();
    break_a_thousand();
}

/// The kernel reports each broken lease by a signal. Even if only a few signals can be pending, ironmap releases all leases before the
/// kernel removes them.
#[test]
fn a_thousand_leases_are_broken_with_room_for_ten_signals() {
    require!([Need::Root, Need::Tool("losetup")]);
    let _alone = alone();
    let _limit = Limit::set(Resource::Sigpending, Some(10));
    break_a_thousand();
}

/// A `Host` value can be dropped without a wait, even if no signal can be queued to its thread.
#[test]
fn a_host_ends_without_room_for_signals() {
    let _alone = alone();
    let (host, queue) = host(Engine::Psync);
    let thread = format!("/proc/self/task/{}/stat", thread_named("ironmap-lease"));
    until("it waits", || std::fs::read_to_string(&thread).unwrap().contains(") S "));
    let _limit = Limit::set(Resource::Sigpending, Some(0));
    let begin = Instant::now();
    drop((queue, host));
    // Without signals, the thread checks its leases once a minute. A drop that waits for the thread would take that long.
    assert!(begin.elapsed() < Duration::from_secs(45), "{:?}", begin.elapsed());
}

fn break_a_thousand() {
    const FILES: usize = 1000;
    let most = rustix::process::getrlimit(Resource::Nofile).maximum;
    let _limit = Limit::set(Resource::Nofile, most);
    let mounted = Mounted::ext4();
    let paths: Vec<_> =
        (0..FILES).map(|number| mounted.write(&number.to_string(), &content(8192, 1))).collect();
    let (host, mut queue) = host(Engine::Auto);
    let files: Vec<_> = paths.iter().map(|path| open(&host, path)).collect();
    let mut read = |file: &File, versions_wanted| {
        let mut memory = vec![0; 8192];
        assert_eq!(file.read_at(&mut queue, &mut memory, FilePos(0)).unwrap(), 8192);
        assert_eq!(versions(&memory, 0), Some(versions_wanted));
        queue.stats().kernel_served
    };
    for file in &files {
        assert_eq!(read(file, (1, 1)), 0);
    }
    const BREAK_SECONDS: u64 = 300;
    let _time = Setting::change(BREAK_TIME, &BREAK_SECONDS.to_string());
    // A non-blocking open starts to break the lease, and returns at once.
    let nonblock = OFlags::NONBLOCK.bits() as i32;
    let begin = Instant::now();
    for path in &paths {
        let _ = OsOptions::new().write(true).custom_flags(nonblock).open(path);
    }
    let writers: Vec<_> =
        paths.iter().map(|path| OsOptions::new().write(true).open(path).unwrap()).collect();
    let took = begin.elapsed();
    eprintln!("{FILES} leases broken in {took:?}");
    // If the release of the leases took longer than this, the kernel would have removed the leases itself.
    assert!(took < Duration::from_secs(BREAK_SECONDS), "{took:?}");
    for (writer, file) in writers.iter().zip(&files) {
        assert_eq!(file.host().unwrap().breaks, 1);
        writer.write_all_at(&content(8192, 2), 0).unwrap();
        read(file, (2, 2));
    }
    drop(writers);
    until("all are raw again", || {
        files.iter().for_each(|file| {
            read(file, (2, 2));
        });
        files.iter().all(|file| file.host().unwrap().is_raw())
    });
    let served = read(&files[0], (2, 2));
    for file in &files {
        assert_eq!(read(file, (2, 2)), served);
    }
}
