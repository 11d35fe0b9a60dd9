//! Random writes, reads and changes of one file. The model of the file is a vector of bytes.

use std::path::Path;

use ironmap::bio::Buffer;
use ironmap::device::Engine;
use ironmap::dio::DioFlags;
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{Credentials, Fallocate, NewFile};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{File, FileOptions, Queue, QueueOptions, Volume, VolumeOptions};

use crate::common::image::{Image, words};
use crate::common::rng::Rng;

const SEED: u64 = 0x2026_1121;
const OPERATIONS: usize = 1200;
/// The maximum size of the file.
const LARGEST: u64 = 3 << 20;

const LAYOUTS: [&str; 8] = [
    "-t ext4",
    "-t ext4 -b 1024",
    "-t ext4 -b 2048 -O ^metadata_csum,^64bit",
    "-t ext4 -O bigalloc -C 16384",
    "-t ext4 -O inline_data",
    "-t ext4 -O ^has_journal",
    "-t ext2 -b 1024",
    "-t ext3",
];
const ENGINES: [Engine; 3] = [Engine::Psync, Engine::IoUring, Engine::Dax];

struct Model {
    rng: Rng,
    bytes: Vec<u8>,
    /// The byte with which the next write fills its range.
    stamp: u8,
}

struct Bench<'a> {
    volume: &'a Volume,
    number: InodeNo,
    file: File,
    queue: Queue,
    model: Model,
    extents: bool,
}

pub(crate) fn open(image: &Path, engine: Engine) -> Volume {
    let options = VolumeOptions::new().write(true).engine(engine);
    let location = image.to_str().unwrap().parse().unwrap();
    crate::common::beneath::open(&location, &options).unwrap()
}

/// The seed from the environment, or the default of the test.
pub(crate) fn seed(own: u64) -> u64 {
    let chosen = std::env::var("IRONMAP_SEED").ok().and_then(|seed| seed.parse().ok());
    chosen.unwrap_or(own)
}

impl Model {
    fn fill(&mut self, buf: &mut [u8]) {
        for byte in buf {
            self.stamp = self.stamp.wrapping_mul(5).wrapping_add(13);
            *byte = self.stamp;
        }
    }

    fn put(&mut self, pos: u64, bytes: &[u8]) {
        let end = pos as usize + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[pos as usize..end].copy_from_slice(bytes);
    }

    fn zero(&mut self, range: std::ops::Range<u64>) {
        let len = self.bytes.len() as u64;
        self.bytes[range.start.min(len) as usize..range.end.min(len) as usize].fill(0);
    }

    /// Chooses a position and a length. Most positions are within the file or at its end.
    fn range(&mut self, unit: u64) -> (u64, u64) {
        let size = self.bytes.len() as u64;
        let pos = match self.rng.below(6) {
            0 => size,
            1 => size + self.rng.below(100_000),
            _ => self.rng.below(size + 1),
        };
        let len = 1 + match self.rng.below(4) {
            0 => self.rng.below(300_000),
            1 => self.rng.below(20_000),
            _ => self.rng.below(9_000),
        };
        let (pos, len) = (pos / unit * unit, len.next_multiple_of(unit));
        (pos.min(LARGEST - LARGEST % unit), len)
    }
}

impl Bench<'_> {
    fn step(&mut self, what: &str) {
        let unit = [1, 512, 512, 4096][self.model.rng.below(4) as usize];
        match self.model.rng.below(100) {
            0..30 => self.write(unit, what),
            30..50 => self.write_many(unit, what),
            50..58 => self.append(unit),
            58..80 => self.read(what),
            80..84 => self.file.sync(&mut self.queue).unwrap(),
            84..86 => self.volume.fs().sync().unwrap(),
            86..89 => self.truncate(),
            89..98 => self.fallocate(),
            _ => self.reopen(),
        }
        assert_eq!(self.file.size(), self.model.bytes.len() as u64, "{what}: size");
    }

    fn flags(&mut self) -> DioFlags {
        match self.model.rng.below(20) {
            0 => DioFlags::DSYNC,
            1 => DioFlags::SYNC,
            2 | 3 => DioFlags::BOUNCE,
            _ => DioFlags::empty(),
        }
    }

    fn write(&mut self, unit: u64, what: &str) {
        let (pos, len) = self.model.range(unit);
        let mut buf = Buffer::aligned(len as usize).unwrap();
        self.model.fill(&mut buf);
        let flags = self.flags();
        let nowait = self.model.rng.below(5) == 0;
        let borrowed = self.model.rng.below(2) == 0;
        let mut write = |flags| {
            let (file, queue) = (&self.file, &mut self.queue);
            if borrowed {
                file.write_buffer_at(queue, &buf, FilePos(pos), flags)
            } else {
                file.write_at_with(queue, &buf, FilePos(pos), flags)
            }
        };
        if nowait {
            match write(flags | DioFlags::NOWAIT) {
                Ok(count) => assert_eq!(count as u64, len, "{what}"),
                Err(error) => {
                    assert_eq!(error.kind(), ironmap::ErrorKind::WouldBlock, "{what}: {error}");
                    return;
                }
            }
        } else {
            assert_eq!(write(flags).unwrap() as u64, len, "{what}");
        }
        self.model.put(pos, &buf);
    }

    /// Submits writes to several disjoint ranges. Waits until all of them have completed, and then reads.
    fn write_many(&mut self, unit: u64, what: &str) {
        let count = 1 + self.model.rng.below(12);
        let (mut at, _) = self.model.range(unit);
        let mut expected = Vec::new();
        for token in 0..count {
            let (_, len) = self.model.range(unit);
            let len = len.min(40_000 / unit * unit);
            let mut buf = Buffer::aligned(len as usize).unwrap();
            self.model.fill(&mut buf);
            expected.push((at, buf.to_vec()));
            let flags = self.flags();
            let pos = FilePos(at);
            self.file.submit_write(&mut self.queue, buf, pos, flags, token).unwrap_or_else(
                |rejected| {
                    panic!("{what}: {}", rejected.error);
                },
            );
            at += len + self.model.rng.below(3) * unit;
        }
        let mut seen = vec![false; count as usize];
        while seen.contains(&false) {
            self.queue.wait(1).unwrap();
            while let Some(done) = self.queue.pop() {
                let index = done.token as usize;
                assert_eq!(done.result.unwrap(), expected[index].1.len(), "{what}");
                assert!(done.memory.buffers()[0][..] == expected[index].1[..], "{what}: memory");
                assert!(!std::mem::replace(&mut seen[index], true), "{what}: twice");
            }
        }
        for (pos, bytes) in expected {
            self.model.put(pos, &bytes);
        }
    }

    fn append(&mut self, unit: u64) {
        let (_, len) = self.model.range(unit);
        let mut buf = Buffer::aligned(len as usize).unwrap();
        self.model.fill(&mut buf);
        let flags = self.flags();
        let at = self.file.append(&mut self.queue, &buf, flags).unwrap();
        assert_eq!(at.0, self.model.bytes.len() as u64);
        self.model.put(at.0, &buf);
    }

    fn read(&mut self, what: &str) {
        let (pos, len) = self.model.range(1);
        let mut buf = Buffer::aligned(len as usize).unwrap();
        buf.fill(0xEE);
        let count = self.file.read_at(&mut self.queue, &mut buf, FilePos(pos)).unwrap();
        let size = self.model.bytes.len() as u64;
        let expected = &self.model.bytes[pos.min(size) as usize..(pos + len).min(size) as usize];
        assert_eq!(count, expected.len(), "{what}: count");
        let wrong = buf[..count].iter().zip(expected).position(|(read, byte)| read != byte);
        assert_eq!(wrong, None, "{what}: read of {len} at {pos}");
    }

    fn truncate(&mut self) {
        let size = self.model.rng.below(self.model.bytes.len() as u64 + 50_000);
        self.volume.fs().writable().unwrap().truncate(self.number, size).unwrap();
        self.model.bytes.resize(size as usize, 0);
    }

    fn fallocate(&mut self) {
        let (pos, len) = self.model.range(1);
        let size = self.model.bytes.len() as u64;
        let unit = 64 << 10;
        let (how, range) = match self.model.rng.below(7) {
            0 | 1 if self.extents => (Fallocate::Allocate { keep_size: false }, pos..pos + len),
            2 if self.extents => (Fallocate::Allocate { keep_size: true }, pos..pos + len),
            3 if self.extents => (Fallocate::Zero { keep_size: true }, pos..pos + len),
            4 if self.extents && size > 3 * unit => (Fallocate::Collapse, unit..2 * unit),
            5 if self.extents && size > 3 * unit => (Fallocate::Insert, unit..2 * unit),
            _ => (Fallocate::Punch, pos..pos + len),
        };
        let (start, len) = (range.start, range.end - range.start);
        self.volume
            .fs()
            .writable()
            .unwrap()
            .fallocate(self.number, how, FilePos(start), len)
            .unwrap();
        match how {
            Fallocate::Allocate { keep_size: false } if size < range.end => {
                self.model.bytes.resize(range.end as usize, 0);
            }
            Fallocate::Punch | Fallocate::Zero { .. } => self.model.zero(range),
            Fallocate::Collapse => {
                self.model.bytes.drain(range.start as usize..range.end as usize);
            }
            Fallocate::Insert => {
                let at = range.start as usize;
                self.model.bytes.splice(at..at, vec![0; len as usize]);
            }
            // The remaining modes of fallocate do not change the content.
            _ => {}
        }
    }

    fn reopen(&mut self) {
        let inode = self.volume.fs().inode(self.number).unwrap();
        assert_eq!(inode.size(), self.model.bytes.len() as u64);
        self.file = self.volume.open_inode(inode, FileOptions::new().write(true)).unwrap();
    }
}

fn run(layout: &str, engine: Engine, seed: u64) {
    let what = format!("{layout}, {engine:?}, seed {seed:#x}");
    let image = Image::in_memory("48M", &words(layout));
    let volume = open(&image.path(), engine);
    let fs = volume.fs();
    let number = fs
        .writable()
        .unwrap()
        .create(ROOT, b"file", NewFile::Regular, 0o644, &Credentials::default())
        .unwrap();
    let file =
        volume.open_inode(fs.inode(number).unwrap(), FileOptions::new().write(true)).unwrap();
    let queue = volume.queue(&QueueOptions::default()).unwrap();
    let model = Model { rng: Rng::new(seed), bytes: Vec::new(), stamp: 0 };
    let extents = layout.contains("ext4");
    let mut bench = Bench { volume: &volume, number, file, queue, model, extents };
    for step in 0..OPERATIONS {
        bench.step(&format!("{what}, step {step}"));
        if bench.model.bytes.len() as u64 > LARGEST {
            fs.writable().unwrap().truncate(number, 1000).unwrap();
            bench.model.bytes.truncate(1000);
        }
    }
    let expected = std::mem::take(&mut bench.model.bytes);
    drop(bench);
    volume.close().unwrap();
    drop(volume);
    image.check();
    let dump = image.dump("/file");
    assert_eq!(dump.len(), expected.len(), "{what}: size at the end");
    let wrong = dump.iter().zip(&expected).position(|(read, byte)| read != byte);
    assert_eq!(wrong, None, "{what}: content at the end");
}

#[test]
fn reads_return_written_data() {
    let seed = seed(SEED);
    for (at, layout) in LAYOUTS.iter().enumerate() {
        for engine in ENGINES {
            run(layout, engine, seed ^ (at as u64) << 32 ^ (engine as u64) << 40);
        }
    }
}
