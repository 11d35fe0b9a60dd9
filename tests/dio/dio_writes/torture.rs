//! Many threads write to one file at the same time. The writes overlap and may be unaligned. Their targets are written blocks, unwritten
//! blocks, a hole, and the range past the end. In some tests other threads truncate the file and punch holes. Afterwards each sector
//! contains the data of exactly one write. xfstests generic/538 tests overlaps of unaligned and aligned writes.
//!
//! The environment variable `IRONMAP_TORTURE_SECONDS` sets how many seconds each test runs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ironmap::bio::Buffer;
use ironmap::dio::DioFlags;
use ironmap::fs::Fallocate;
use ironmap::units::{FilePos, InodeNo};
use ironmap::{Engine, ErrorKind, File, Queue, QueueOptions, Volume};

use crate::common::image::{Image, words};
use crate::common::rng::Rng;
use crate::dio_writes::bench::{NONE, content, memory};
use crate::dio_writes::model::{open, seed};

const SEED: u64 = 0x0538;
const SECTOR: u64 = 512;
const THREADS: u64 = 6;
/// The number of sectors at the beginning of the file that all threads write. After these sectors, each thread has its own small ranges
/// (stripes).
const SECTORS: u64 = 1024;
const STRIPES: u64 = 40;
const STRIPE: u64 = 37;
/// After this time without progress, the test reports a deadlock.
const SILENCE: Duration = Duration::from_secs(60);

/// Ends the process with a message if the threads make no progress.
struct Watchdog {
    steps: AtomicU64,
    done: AtomicBool,
}

/// Stops the watchdog when the threads have ended, also after a panic.
struct Leash<'a>(&'a Watchdog);

impl Drop for Leash<'_> {
    fn drop(&mut self) {
        self.0.done.store(true, Relaxed);
    }
}

impl Watchdog {
    fn new() -> Self {
        Self { steps: AtomicU64::new(0), done: AtomicBool::new(false) }
    }

    fn watch(&self, what: &str) {
        let (mut last, mut since) = (0, Instant::now());
        while !self.done.load(Relaxed) {
            std::thread::park_timeout(Duration::from_millis(20));
            let steps = self.steps.load(Relaxed);
            if steps != last {
                (last, since) = (steps, Instant::now());
            }
            if since.elapsed() > SILENCE {
                eprintln!("{what}: no thread has made a step for {SILENCE:?}: a deadlock");
                std::process::abort();
            }
        }
    }
}

/// How long each test in this file runs.
fn time() -> Duration {
    let seconds =
        std::env::var("IRONMAP_TORTURE_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    seconds.map_or(Duration::from_millis(1200), Duration::from_secs)
}

/// Fills a sector with the number of its writer, the number of the write, and the index of the sector in the file.
fn sign(sector: &mut [u8], writer: u64, write: u64, place: u64) {
    let words = [writer, write, place];
    for (at, word) in sector.chunks_mut(8).enumerate() {
        word.copy_from_slice(&(words[at % 3] ^ (at as u64) << 48).to_le_bytes());
    }
}

/// Returns the writer of a sector and the number of the write. Returns `None` if the sector contains zeros.
fn signed(sector: &[u8], place: u64, what: &str) -> Option<(u64, u64)> {
    if sector.iter().all(|byte| *byte == 0) {
        return None;
    }
    let word = |at: usize| {
        let bytes = sector[at * 8..at * 8 + 8].try_into().unwrap();
        u64::from_le_bytes(bytes) ^ (at as u64) << 48
    };
    let (writer, write, found) = (word(0), word(1), word(2));
    let mut expected = vec![0; sector.len()];
    sign(&mut expected, writer, write, found);
    assert!(sector == expected, "{what}: sector {place} is of several writes");
    assert_eq!(found, place, "{what}: sector {place} is another's");
    Some((writer, write))
}

/// The sectors that a write of a thread has changed. At the end they are compared with the content of the file.
#[derive(Clone, Copy, Debug)]
struct Made {
    first: u64,
    count: u64,
}

struct Writer<'a> {
    number: u64,
    file: &'a File,
    queue: Queue,
    rng: Rng,
    made: Vec<Made>,
    stripes: [u8; STRIPES as usize],
    dog: &'a Watchdog,
    what: &'a str,
}

/// The position of one of the small ranges that only one thread writes. The ranges of different threads are adjacent.
fn stripe_at(writer: u64, stripe: u64) -> u64 {
    SECTORS * SECTOR + (stripe * THREADS + writer - 1) * STRIPE
}

impl Writer<'_> {
    fn buffer(&mut self, made: Made) -> Buffer {
        let mut buffer = memory(made.count * SECTOR, 0);
        let write = self.made.len() as u64;
        for (sector, place) in buffer.chunks_mut(SECTOR as usize).zip(made.first..) {
            sign(sector, self.number, write, place);
        }
        self.made.push(made);
        buffer
    }

    fn place(&mut self) -> Made {
        let block = self.rng.below(3) == 0;
        let most = [3, 12, 40][self.rng.below(3) as usize];
        let (count, first) = (1 + self.rng.below(most), self.rng.below(SECTORS - 64));
        if block {
            return Made { first: first / 8 * 8, count: count.next_multiple_of(8) };
        }
        Made { first, count }
    }

    fn flags(&mut self) -> DioFlags {
        match self.rng.below(24) {
            0 => DioFlags::DSYNC,
            1 | 2 => DioFlags::BOUNCE,
            3 | 4 => DioFlags::NOWAIT,
            5 => DioFlags::HIPRI,
            _ => NONE,
        }
    }

    fn step(&mut self) {
        let flags = self.flags();
        match self.rng.below(20) {
            0..7 => {
                let made = self.place();
                let buffer = self.buffer(made);
                let at = FilePos(made.first * SECTOR);
                match self.file.write_at_with(&mut self.queue, &buffer, at, flags) {
                    Ok(count) => assert_eq!(count, buffer.len(), "{}", self.what),
                    Err(error) => self.allow(&error, flags),
                }
            }
            7..14 => self.submit_some(flags),
            14 => self.write_stripe(),
            15 => self.file.sync(&mut self.queue).unwrap(),
            _ => self.read(),
        }
        self.dog.steps.fetch_add(1, Relaxed);
    }

    /// Writes a few bytes into a sector that other threads also write. At the end each thread must find its bytes unchanged.
    fn write_stripe(&mut self) {
        let stripe = self.rng.below(STRIPES);
        let fill = self.rng.below(255) as u8 + 1;
        self.stripes[stripe as usize] = fill;
        let at = FilePos(stripe_at(self.number, stripe));
        let count = self.file.write_at(&mut self.queue, &[fill; STRIPE as usize], at).unwrap();
        assert_eq!(count as u64, STRIPE, "{}", self.what);
    }

    fn allow(&self, error: &ironmap::Error, flags: DioFlags) {
        let blocked = error.kind() == ErrorKind::WouldBlock && flags.contains(DioFlags::NOWAIT);
        assert!(blocked, "{}: {error}", self.what);
    }

    fn submit_some(&mut self, flags: DioFlags) {
        for token in 0..1 + self.rng.below(8) {
            let made = self.place();
            let buffer = self.buffer(made);
            let at = FilePos(made.first * SECTOR);
            if let Err(rejected) = self.file.submit_write(&mut self.queue, buffer, at, flags, token)
            {
                self.allow(&rejected.error, flags);
            }
        }
        while self.queue.outstanding() > 0 {
            self.queue.wait(1).unwrap();
            while let Some(done) = self.queue.pop() {
                match done.result {
                    Ok(count) => assert_eq!(count, done.memory.len(), "{}", self.what),
                    Err(error) => self.allow(&error, flags),
                }
            }
        }
    }

    /// This read does not check atomicity. A device in memory copies without a lock, so a concurrent read may return parts of several
    /// writes.
    fn read(&mut self) {
        let made = self.place();
        let mut buffer = memory(made.count * SECTOR, 0xEE);
        let at = FilePos(made.first * SECTOR);
        let count = self.file.read_at(&mut self.queue, &mut buffer, at).unwrap();
        assert!(count <= buffer.len(), "{}: {count}", self.what);
    }
}

/// The changes that other threads make to the file during the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutator {
    None,
    /// Truncates the file and punches holes.
    Cuts,
}

fn mutate(volume: &Volume, number: InodeNo, extents: bool, rng: &mut Rng) {
    let fs = volume.fs();
    let pos = rng.below(SECTORS * SECTOR);
    let len = 1 + rng.below(60_000);
    let result = match rng.below(6) {
        0 => fs.writable().unwrap().truncate(number, pos / SECTOR * SECTOR),
        1 => fs.writable().unwrap().truncate(number, SECTORS * SECTOR),
        2 if extents => {
            let how = Fallocate::Allocate { keep_size: false };
            fs.writable().unwrap().fallocate(number, how, FilePos(pos), len)
        }
        3 => fs.sync(),
        _ => {
            let (pos, len) = (pos / SECTOR * SECTOR, len.next_multiple_of(SECTOR));
            fs.writable().unwrap().fallocate(number, Fallocate::Punch, FilePos(pos), len)
        }
    };
    result.unwrap();
}

fn prepare(volume: &Volume, extents: bool) -> InodeNo {
    let (fs, who) = (volume.fs(), ironmap::fs::Credentials::default());
    let root = ironmap::fs::ext4::ROOT;
    // The file `junk` is removed. Its old content must never be visible.
    let junk = fs
        .writable()
        .unwrap()
        .create(root, b"junk", ironmap::fs::NewFile::Regular, 0o644, &who)
        .unwrap();
    fs.writable().unwrap().write(junk, FilePos(0), &vec![0xDB; 20 << 20]).unwrap();
    fs.writable().unwrap().unlink(root, b"junk").unwrap();
    fs.sync().unwrap();
    let file = ironmap::fs::NewFile::Regular;
    let number = fs.writable().unwrap().create(root, b"file", file, 0o644, &who).unwrap();
    // A third of the file is written, a third is unwritten, and a third is a hole.
    let third = SECTORS * SECTOR / 3 / 4096 * 4096;
    fs.writable().unwrap().write(number, FilePos(0), &vec![0; third as usize]).unwrap();
    if extents {
        let how = Fallocate::Allocate { keep_size: false };
        fs.writable().unwrap().fallocate(number, how, FilePos(third), third).unwrap();
    }
    fs.writable().unwrap().truncate(number, SECTORS * SECTOR).unwrap();
    number
}

fn torture(mkfs: &str, engine: Engine, mutator: Mutator, seed: u64) {
    let what = &format!("{mkfs}, {engine:?}, {mutator:?}, seed {seed:#x}");
    let image = Image::in_memory("48M", &words(mkfs));
    let volume = &open(&image.path(), engine);
    let number = prepare(volume, mkfs.contains("ext4"));
    let open_file = || {
        let inode = volume.fs().inode(number).unwrap();
        volume.open_inode(inode, ironmap::FileOptions::new().write(true)).unwrap()
    };
    let (dog, until) = (&Watchdog::new(), Instant::now() + time());
    // In some runs all threads share one handle. In other runs each thread has its own handle.
    let shared = &open_file();
    let done: Vec<(Vec<Made>, [u8; STRIPES as usize])> = std::thread::scope(|scope| {
        let _leash = Leash(dog);
        scope.spawn(move || dog.watch(what));
        let writers: Vec<_> = (1..=THREADS)
            .map(|writer| {
                let own = open_file();
                scope.spawn(move || {
                    let file = if writer % 2 == 0 { shared } else { &own };
                    let queue = volume.queue(&QueueOptions::new().depth(16)).unwrap();
                    let rng = Rng::new(seed ^ writer << 32);
                    let (number, made, stripes) = (writer, Vec::new(), [0; STRIPES as usize]);
                    let mut writer = Writer { number, file, queue, rng, made, stripes, dog, what };
                    while Instant::now() < until {
                        writer.step();
                    }
                    (writer.made, writer.stripes)
                })
            })
            .collect();
        let mutating = (mutator != Mutator::None).then(|| {
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                while Instant::now() < until {
                    mutate(volume, number, mkfs.contains("ext4"), &mut rng);
                    dog.steps.fetch_add(1, Relaxed);
                }
            })
        });
        let done = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        mutating.into_iter().for_each(|thread| thread.join().unwrap());
        done
    });
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let bytes = content(shared, &mut queue);
    for (sector, place) in bytes.chunks_exact(SECTOR as usize).zip(0..SECTORS) {
        let Some((writer, write)) = signed(sector, place, what) else { continue };
        let of = done.get(writer as usize - 1).and_then(|(made, _)| made.get(write as usize));
        let touched = of.is_some_and(|made| (made.first..made.first + made.count).contains(&place));
        assert!(touched, "{what}: sector {place} is of write {write} of {writer}, {of:?}");
    }
    for ((_, stripes), writer) in done.iter().zip(1..).filter(|_| mutator == Mutator::None) {
        for (fill, stripe) in stripes.iter().zip(0..).filter(|(fill, _)| **fill != 0) {
            let at = stripe_at(writer, stripe) as usize;
            let found = bytes.get(at..at + STRIPE as usize);
            assert_eq!(found, Some(&[*fill; STRIPE as usize][..]), "{what}: bytes of {writer}");
        }
    }
    let steps = dog.steps.load(Relaxed);
    assert!(steps > 50, "{what}: {steps} steps");
    drop(queue);
    volume.close().unwrap();
    let dump = {
        image.check();
        image.dump("/file")
    };
    assert!(dump == bytes, "{what}: as debugfs reads it");
}

fn all(mutator: Mutator) {
    let layouts = ["-t ext4 -b 4096", "-t ext4 -b 1024", "-t ext3 -b 4096"];
    for (layout, at) in layouts.into_iter().zip(0..) {
        for engine in [Engine::Psync, Engine::IoUring] {
            torture(layout, engine, mutator, seed(SEED) ^ at << 16);
        }
    }
}

#[test]
fn each_sector_is_one_of_the_writes_that_touched_it() {
    all(Mutator::None);
}

#[test]
fn each_sector_is_one_of_the_writes_while_the_file_is_cut() {
    all(Mutator::Cuts);
}
