//! Opens ten thousand files of a mounted file system at the same time, with one device, one queue and one thread. The test is a separate
//! program, because it counts descriptors and threads.

mod common;

use std::path::{Path, PathBuf};
use std::time::Instant;

use common::mounted::Mounted;
use common::rng::Rng;
use common::skip::{Need, note_part};
use ironmap::bio::{Buffer, Memory};
use ironmap::dio::DioFlags;
use ironmap::units::FilePos;
use ironmap::{File, FileOptions, Host, HostOptions, Queue, QueueOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const SEED: u64 = 0x10_000;
const FILES: usize = 10_000;
/// The maximum number of descriptors: one for each file, and some more.
const DESCRIPTORS: u64 = FILES as u64 + 1000;
const DIRS: usize = 100;
const READS: usize = 20_000;
const DEPTH: usize = 32;
const LONGEST: usize = 9000;

/// Raises the limit of descriptors. If permitted, raises the hard limit too.
fn allow_descriptors() -> rustix::io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum.map(|maximum| maximum.max(DESCRIPTORS));
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), maximum })
}

/// The content of the file with this number.
fn content(number: usize) -> Vec<u8> {
    let mut rng = Rng::new(SEED ^ (number as u64) << 32);
    let len = 1 + rng.below(LONGEST as u64) as usize;
    rng.bytes(len)
}

fn path(mounted: &Mounted, number: usize) -> PathBuf {
    mounted.path(&format!("{}/{number}", number % DIRS))
}

/// How many descriptors of this process refer to this path, or to a path below it.
fn descriptors(at: &Path) -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    fds.filter_map(|fd| std::fs::read_link(fd.path()).ok()).filter(|to| to.starts_with(at)).count()
}

/// How many threads of this process have this name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|comm| comm.trim() == name).count()
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim_end_matches("kB").trim().parse().unwrap()
}

fn open(
    host: &Host,
    mounted: &Mounted,
    numbers: impl Iterator<Item = usize>,
) -> Vec<(usize, File)> {
    let open = |number| {
        let file = host.open_with(path(mounted, number), FileOptions::default()).unwrap();
        (number, file)
    };
    numbers.map(open).collect()
}

/// Reads random ranges of random files. Some are single reads, and many are queued reads.
fn read(files: &[(usize, File)], queue: &mut Queue, rng: &mut Rng) {
    let served = queue.stats().kernel_served;
    let mut bytes = vec![0; LONGEST];
    for _ in 0..READS {
        let (number, file) = &files[rng.below(files.len() as u64) as usize];
        let expected = content(*number);
        let pos = rng.below(expected.len() as u64);
        let count = file.read_at(queue, &mut bytes, FilePos(pos)).unwrap();
        assert!(
            bytes[..count] == expected[pos as usize..],
            "seed {SEED:#x}: file {number} at {pos}"
        );
    }
    let buffers = (0..DEPTH).map(|_| Memory::Flat(Buffer::aligned(LONGEST).unwrap()));
    let mut spare: Vec<_> = buffers.collect();
    let mut left = READS;
    while left > 0 || queue.outstanding() > 0 {
        while left > 0
            && let Some(memory) = spare.pop()
        {
            let index = rng.below(files.len() as u64);
            let start = FilePos(0);
            let sent =
                files[index as usize].1.submit_read(queue, memory, start, DioFlags::empty(), index);
            assert!(sent.is_ok());
            left -= 1;
        }
        queue.wait(1).unwrap();
        while let Some(done) = queue.pop() {
            let number = files[done.token as usize].0;
            let count = done.result.unwrap();
            assert!(done.memory.buffers()[0][..count] == content(number), "file {number}");
            spare.push(done.memory);
        }
    }
    assert_eq!(queue.stats().kernel_served, served, "all of it raw");
}

#[test]
fn ten_thousand_files_share_a_device_a_queue_and_a_thread() {
    require!([Need::Root, Need::Tool("losetup")]);
    if let Err(errno) = allow_descriptors() {
        return note_part("host_many", "all", &format!("{DESCRIPTORS} descriptors: {errno}"));
    }
    // The file system is in memory, because each open syncs the file. In memory a sync is cheap.
    let memory = Path::new("/dev/shm");
    let mounted = Mounted::within(memory, "mke2fs -t ext4 -b 4096 -N 20000", 256, "noatime");
    (0..DIRS).for_each(|dir| std::fs::create_dir(mounted.path(&dir.to_string())).unwrap());
    (0..FILES).for_each(|number| std::fs::write(path(&mounted, number), content(number)).unwrap());

    let rng = &mut Rng::new(SEED);
    let device = Path::new(mounted.device());
    let host = Host::new(&HostOptions::default()).unwrap();
    let mut queue = host.queue(&QueueOptions::new().depth(DEPTH as u32)).unwrap();
    let (begun, before) = (Instant::now(), resident_kib());
    let files = open(&host, &mounted, 0..FILES);
    let (took, memory) = (begun.elapsed(), resident_kib() - before);
    println!("{FILES} files opened in {took:?}, {memory} KiB");
    assert!(files.iter().all(|(_, file)| file.host().unwrap().is_raw()));
    assert_eq!(descriptors(mounted.dir()), FILES);
    let begun = Instant::now();
    read(&files, &mut queue, rng);
    println!("{} reads in {:?}", 2 * READS, begun.elapsed());
    let counts = (descriptors(device), threads("ironmap-lease"), threads("ironmap-retake"));
    assert_eq!(counts, (1, 1, 0), "devices opened, threads, and there was nothing to retake");

    drop(files);
    assert_eq!(descriptors(mounted.dir()), 0);
    // A file system can be unmounted while a queue is idle, because an idle queue does not keep it busy.
    mounted.remount(|_| {}, "noatime");
    let others = open(&host, &mounted, (0..FILES).rev().step_by(7));
    read(&others, &mut queue, rng);
    assert_eq!((descriptors(device), threads("ironmap-lease")), (1, 1));
    drop((others, host, queue));
    assert_eq!((descriptors(device), descriptors(mounted.dir())), (0, 0));
    assert_eq!(threads("ironmap-lease"), 0);
}
