//! Overwrites the memory of requests while they are in flight.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use ironmap::bio::{Buffer, Memory};
use ironmap::device::{BlockFile, Device, OpenMode, Ram, open_engine};
use ironmap::dio::{DioFlags, StablePages, Stats};
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{Clock, Credentials, Fallocate, NewFile};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{Engine, File, FileOptions, Queue, QueueOptions, Result, Volume};

use crate::common::image::Image;
use crate::stable::checking::{Checks, checking};
use crate::stable::scribbler::Range;

const SIZES: [usize; 6] = [512, 4096, 20 << 10, 64 << 10, (300 << 10) - 512, 1 << 20];
/// The number of queued requests in flight at a time.
const DEPTH: usize = 3;
const NONE: DioFlags = DioFlags::empty();

/// The kinds of requests. They differ in who owns the memory of the request, and in the number of its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Lent,
    LentVectored,
    /// A write from a [`Buffer`] that the call borrows.
    Borrowed,
    Owned,
    OwnedVectored,
}

impl Kind {
    /// Whether the type system prevents safe code from changing the memory while the request is in flight.
    fn is_out_of_reach(self) -> bool {
        matches!(self, Self::Borrowed | Self::Owned | Self::OwnedVectored)
    }
}

pub(crate) const KINDS: [Kind; 5] =
    [Kind::Lent, Kind::LentVectored, Kind::Borrowed, Kind::Owned, Kind::OwnedVectored];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Read,
    Write,
}

/// A volume on a device that compares the memory of requests with tags (checksums).
pub(crate) struct Bench {
    _image: Image,
    pub(crate) below: Arc<dyn Device>,
    pub(crate) checks: Arc<Checks>,
    pub(crate) volume: Volume,
    pub(crate) number: InodeNo,
}

impl Bench {
    /// Makes a volume with a file of 4 MiB. If no engine is given, the device is in memory.
    pub(crate) fn new(engine: Option<Engine>) -> Self {
        let options = ["-t", "ext4", "-b", "4096"];
        let image = match engine {
            // The io_uring engine needs an image on a file system with NOWAIT. tmpfs does not support NOWAIT.
            Some(Engine::IoUring) => Image::mke2fs("32M", &options),
            _ => Image::in_memory("32M", &options),
        };
        let below: Arc<dyn Device> = match engine {
            None => Arc::new(Ram::from_image(&std::fs::read(image.path()).unwrap())),
            Some(engine) => {
                let mode = OpenMode { write: true, ..OpenMode::default() };
                let opened =
                    open_engine(BlockFile::open(&image.path(), &mode).unwrap(), engine).unwrap();
                assert_eq!(opened.engine, engine, "{:?}", opened.notices);
                opened.device
            }
        };
        let (device, checks) = checking(Arc::clone(&below));
        let volume = Volume::writable_on(device, Clock::default()).unwrap();
        let fs = volume.fs();
        let who = Credentials::default();
        let number =
            fs.writable().unwrap().create(ROOT, b"file", NewFile::Regular, 0o644, &who).unwrap();
        let all = Fallocate::Allocate { keep_size: false };
        fs.writable().unwrap().fallocate(number, all, FilePos(0), 4 << 20).unwrap();
        fs.writable().unwrap().write(number, FilePos(0), &vec![0x5A; 4 << 20]).unwrap();
        fs.sync().unwrap();
        Self { _image: image, below, checks, volume, number }
    }

    pub(crate) fn open(&self, stable_pages: Option<StablePages>) -> File {
        let options = FileOptions::new().direct(true).stable_pages(stable_pages);
        self.volume
            .open_inode(self.volume.fs().inode(self.number).unwrap(), options.write(true))
            .unwrap()
    }

    pub(crate) fn queue(&self) -> Queue {
        self.volume.queue(&QueueOptions::new().depth(16)).unwrap()
    }
}

/// The buffers for one request.
pub(crate) fn memory(kind: Kind, size: usize) -> Vec<Buffer> {
    let lens = match kind {
        Kind::LentVectored | Kind::OwnedVectored if size > 512 => {
            let head = size / 1024 * 512;
            vec![head, size - head]
        }
        _ => vec![size],
    };
    let filled = |len| {
        let mut buffer = Buffer::aligned(len).unwrap();
        buffer.fill(0xA5);
        buffer
    };
    lens.into_iter().map(filled).collect()
}

/// Runs requests, and returns their results.
pub(crate) fn run(
    (op, kind): (Op, Kind),
    queue: &mut Queue,
    file: &File,
    requests: Vec<Vec<Buffer>>,
    flags: DioFlags,
) -> (Vec<Result<usize>>, Vec<Vec<Buffer>>) {
    let (mut results, mut memories) = (Vec::new(), Vec::new());
    let mut pos = FilePos(0);
    for mut buffers in requests {
        let at = pos;
        pos.0 += buffers.iter().map(|buf| buf.len() as u64).sum::<u64>();
        match kind {
            Kind::Owned | Kind::OwnedVectored => {
                let memory = match kind {
                    Kind::Owned => Memory::Flat(buffers.remove(0)),
                    _ => Memory::Vectored(buffers),
                };
                let submitted = match op {
                    Op::Read => file.submit_read(queue, memory, at, flags, 0),
                    Op::Write => file.submit_write(queue, memory, at, flags, 0),
                };
                if let Err(rejected) = submitted {
                    results.push(Err(rejected.error));
                    memories.push(rejected.memory.into_buffers());
                }
                continue;
            }
            Kind::Borrowed if op == Op::Write => {
                results.push(file.write_buffer_at(queue, &buffers[0], at, flags));
            }
            Kind::Lent | Kind::Borrowed => results.push(match op {
                Op::Read => file.read_at_with(queue, &mut buffers[0], at, flags),
                Op::Write => file.write_at_with(queue, &buffers[0], at, flags),
            }),
            Kind::LentVectored => results.push(match op {
                Op::Read => {
                    let mut bufs: Vec<_> =
                        buffers.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
                    file.read_vectored_at(queue, &mut bufs, at, flags)
                }
                Op::Write => {
                    let bufs: Vec<_> = buffers.iter().map(|buf| IoSlice::new(buf)).collect();
                    file.write_vectored_at(queue, &bufs, at, flags)
                }
            }),
        }
        memories.push(buffers);
    }
    while queue.outstanding() > 0 {
        queue.wait(1).unwrap();
        while let Some(done) = queue.pop() {
            results.push(done.result);
            memories.push(done.memory.into_buffers());
        }
    }
    (results, memories)
}

/// The results of requests whose memory was overwritten in flight.
#[derive(Debug)]
struct Seen {
    errors: usize,
    bad_tags: usize,
    stats: Stats,
    bounce_bytes: usize,
}

fn scribbled(bench: &Bench, way: StablePages, what: (Op, Kind), size: usize, simple: bool) -> Seen {
    let (file, mut queue) = (bench.open(Some(way)), bench.queue());
    queue.set_simple(simple);
    let mut requests: Vec<_> = (0..DEPTH).map(|_| memory(what.1, size)).collect();
    let ranges: Vec<_> = requests.iter_mut().flatten().map(Range::of).collect();
    let rounds = &bench.checks.rounds;
    let (results, kept) = rounds.during(&ranges, || run(what, &mut queue, &file, requests, NONE));
    drop(kept);
    assert_eq!(results.len(), DEPTH);
    let short = |result: &Result<usize>| matches!(result, Ok(count) if *count != size);
    assert!(!results.iter().any(short), "{results:?}");
    let errors = results.iter().filter(|result| result.is_err()).count();
    let bad_tags = bench.checks.bad_tags(&*bench.below);
    if errors + bad_tags > 0 {
        // This write of the whole file makes the tags (checksums) of all sectors valid again for the next round.
        let (file, mut queue) = (bench.open(None), bench.queue());
        file.write_at(&mut queue, &Buffer::aligned(4 << 20).unwrap(), FilePos(0)).unwrap();
        assert_eq!(bench.checks.bad_tags(&*bench.below), 0);
    }
    Seen { errors, bad_tags, stats: *queue.stats(), bounce_bytes: queue.bounce_bytes() }
}

fn all(mut test: impl FnMut(&Bench, &str, (Op, Kind), usize, bool)) {
    for engine in [None, Some(Engine::Psync), Some(Engine::IoUring), Some(Engine::Dax)] {
        let bench = Bench::new(engine);
        for op in [Op::Read, Op::Write] {
            for kind in KINDS {
                for size in SIZES {
                    for simple in [true, false] {
                        let what =
                            format!("{engine:?}: {op:?} {kind:?} of {size}, simple {simple}");
                        test(&bench, &what, (op, kind), size, simple);
                    }
                }
            }
        }
    }
}

#[test]
fn bounce_and_lazy_give_no_false_error_and_no_bad_tag() {
    all(|bench, what, kind, size, simple| {
        for way in [StablePages::Bounce, StablePages::Lazy] {
            let seen = scribbled(bench, way, kind, size, simple);
            assert_eq!((seen.errors, seen.bad_tags), (0, 0), "{what}, {way:?}: {seen:?}");
            let copies = way == StablePages::Bounce || kind.0 == Op::Write;
            assert_eq!(seen.stats.bounced > 0, copies, "{what}, {way:?}: {seen:?}");
            assert_eq!(seen.stats.reread > 0, !copies, "{what}, {way:?}: {seen:?}");
        }
    });
}

/// If no setting protects the memory of requests, reads fail and tags (checksums of sectors) are wrong. This shows that the other tests
/// would detect these faults.
#[test]
fn zero_copy_gives_false_errors_and_bad_tags() {
    all(|bench, what, kind, size, simple| {
        let seen = scribbled(bench, StablePages::ZeroCopy, kind, size, simple);
        match kind.0 {
            Op::Read => assert_eq!((seen.errors, seen.bad_tags), (DEPTH, 0), "{what}: {seen:?}"),
            Op::Write => assert!(seen.errors == 0 && seen.bad_tags > 0, "{what}: {seen:?}"),
        }
        assert_eq!((seen.stats.bounced, seen.stats.reread, seen.bounce_bytes), (0, 0, 0), "{what}");
    });
}

/// This test omits writes that own their memory, because safe code cannot access this memory. A `compile_fail` example in the documentation
/// of `StablePages` shows that such code does not compile.
#[test]
fn with_owned_lent_memory_is_protected() {
    all(|bench, what, kind, size, simple| {
        if kind.0 == Op::Write && kind.1.is_out_of_reach() {
            return;
        }
        let seen = scribbled(bench, StablePages::Owned, kind, size, simple);
        assert_eq!((seen.errors, seen.bad_tags), (0, 0), "{what}: {seen:?}");
    });
}
