//! Sends the same requests to the kernel (O_DIRECT on a mounted volume) and to ironmap (the unmounted volume, with a handle that accepts
//! only the alignment of O_DIRECT). Counts, errors and bytes must be equal.

use crate::require;
use std::fs::{File as KernelFile, OpenOptions as KernelOptions};
use std::io::IoSliceMut;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::common::command::{output, run};
use crate::common::fixture::{
    EMPTY, FRAGMENTED, Fixture, HOLES, INLINE, SOLID, SPARSE, TAIL, UNWRITTEN, open,
};
use crate::common::image::scratch;
use crate::common::loop_device::LoopDevice;
use crate::common::ranges::{Room, bytes, pieces, split};
use crate::common::rng::Rng;
use crate::common::skip::Need;
use ironmap::bio::Memory;
use ironmap::dio::DioFlags;
use ironmap::units::FilePos;
use ironmap::{Engine, File, Location, Queue, QueueOptions, Volume, VolumeOptions};

const SEED: u64 = 0xd1_0d1e;
const EINVAL: i32 = 22;
const ROUNDS: usize = 400;

/// A loop device over an image, with logical blocks of a chosen size. Dropping this value detaches the device.
struct Loop {
    device: LoopDevice,
    dir: tempfile::TempDir,
}

impl Loop {
    fn new(image: &Path, logical_block: u64) -> Self {
        let block = logical_block.to_string();
        let device = LoopDevice::with(&["--direct-io=on", "--sector-size", &block], image);
        Self { device, dir: scratch() }
    }

    /// Mounts the volume, runs `work`, and unmounts the volume.
    fn mounted<T>(&self, work: impl FnOnce(&Path) -> T) -> T {
        struct Mounted<'a>(&'a Path);
        impl Drop for Mounted<'_> {
            fn drop(&mut self) {
                let dir = self.0.to_str().expect("a plain path");
                if !output("umount", &[dir]).status.success() {
                    output("umount", &["--lazy", dir]);
                }
            }
        }
        let dir = self.dir.path().to_str().expect("a plain path");
        run("mount", &["-t", "ext4", "-o", "ro,noload", self.device.node(), dir]);
        let mounted = Mounted(self.dir.path());
        work(mounted.0)
    }
}

/// A read that is sent both to the kernel and to ironmap.
#[derive(Clone, Debug)]
struct Request {
    name: &'static str,
    pos: u64,
    offset: usize,
    pieces: Vec<usize>,
}

/// The result of a read: the bytes, or an errno.
type Outcome = Result<Vec<u8>, i32>;

impl Request {
    fn with_slices<E>(
        &self,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
        errno: impl FnOnce(E) -> i32,
    ) -> Outcome {
        let len: usize = self.pieces.iter().sum();
        let mut room = Room::new(self.offset + len);
        let mut rest = room.at(self.offset, len);
        let mut slices = Vec::new();
        for piece in &self.pieces {
            let (head, tail) = rest.split_at_mut(*piece);
            slices.push(IoSliceMut::new(head));
            rest = tail;
        }
        let count = read(&mut slices).map_err(errno)?;
        Ok(room.at(self.offset, len)[..count].to_vec())
    }

    /// Whether the position, the length and every segment are whole logical blocks, and every driver accepts the addresses.
    fn is_aligned(&self, unit: u64) -> bool {
        let whole = |value: usize| (value as u64).is_multiple_of(unit);
        let address = self.offset.is_multiple_of(512);
        self.pos.is_multiple_of(unit) && address && self.pieces.iter().all(|piece| whole(*piece))
    }

    fn by_kernel(&self, file: &KernelFile) -> Outcome {
        self.with_slices(
            |slices| rustix::io::preadv(file, slices, self.pos),
            |errno| errno.raw_os_error(),
        )
    }

    fn by_us(&self, file: &File, queue: &mut Queue) -> Outcome {
        let none = DioFlags::empty();
        self.with_slices(
            |slices| match slices {
                [one] => file.read_at(queue, one, FilePos(self.pos)),
                slices => file.read_vectored_at(queue, slices, FilePos(self.pos), none),
            },
            |error| error.errno().0,
        )
    }
}

impl Request {
    fn by_us_owned(&self, file: &File, queue: &mut Queue) -> Outcome {
        let len: usize = self.pieces.iter().sum();
        let whole = Room::new(self.offset + len).into_buffer(self.offset, len);
        let memory = Memory::Vectored(split(whole, &self.pieces));
        file.submit_read(queue, memory, FilePos(self.pos), DioFlags::empty(), 0)
            .map_err(|rejected| rejected.error.errno().0)?;
        queue.wait(1).expect("wait");
        let done = queue.pop().expect("a completion");
        let count = done.result.map_err(|error| error.errno().0)?;
        Ok(bytes(&done.memory)[..count].to_vec())
    }
}

fn open_direct(dir: &Path, name: &str) -> KernelFile {
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    KernelOptions::new().read(true).custom_flags(direct).open(dir.join(name)).expect(name)
}

fn volume_on(device: &str, engine: Engine) -> Volume {
    let location: Location = device.parse().expect("a location");
    crate::common::beneath::open(&location, &VolumeOptions::new().engine(engine))
        .expect("open the volume")
}

/// Sends all requests to Linux and to ironmap. If results differ, the test fails and prints the first twenty.
///
/// One difference is permitted: Linux serves some misaligned requests that its documentation forbids, and ironmap refuses them. Linux
/// checks each part of a request separately, so it serves a misaligned part in a hole or after the last extent. Since version 6.18, Linux
/// lets the driver check memory segments. Linux then serves a part at any address if the part fits into one page. It also serves segments
/// of any length that the driver accepts. The same request fails on an older kernel or in another extent. ironmap opens the file with a
/// handle that always refuses a misaligned request.
fn compare(block: u64, logical_block: u64, requests: impl Fn(&Fixture, &mut Rng) -> Vec<Request>) {
    let fixture = Fixture::new(block, SEED);
    let device = Loop::new(&fixture.image().path(), logical_block);
    let requests = requests(&fixture, &mut Rng::new(SEED ^ block ^ logical_block << 20));
    let expected: Vec<Outcome> = device.mounted(|dir| {
        requests.iter().map(|request| request.by_kernel(&open_direct(dir, request.name))).collect()
    });
    for engine in [Engine::Psync, Engine::IoUring] {
        let volume = volume_on(device.device.node(), engine);
        assert_eq!(u64::from(volume.device().limits().logical_block), logical_block);
        let mut queue = volume.queue(&QueueOptions::default()).unwrap();
        let mut differ = Vec::new();
        for (request, expected) in requests.iter().zip(&expected) {
            let file = open(&volume, request.name, true);
            let actual = request.by_us(&file, &mut queue);
            let owned = request.by_us_owned(&file, &mut queue);
            assert_eq!(owned, actual, "{engine}, lent and owned memory: {request:?}");
            let laxer =
                expected.is_ok() && actual == Err(EINVAL) && !request.is_aligned(logical_block);
            if actual != *expected && !laxer {
                let brief = |outcome: &Outcome| outcome.as_ref().map(Vec::len).map_err(|e| *e);
                differ.push(format!(
                    "{request:?}: {:?}, the kernel {:?}",
                    brief(&actual),
                    brief(expected)
                ));
            }
        }
        assert!(
            differ.is_empty(),
            "{engine}, blocks of {block} on {logical_block}, seed {SEED:#x}: {} of {} differ:\n{}",
            differ.len(),
            requests.len(),
            differ[..differ.len().min(20)].join("\n")
        );
        let refused = expected.iter().filter(|outcome| outcome.is_err()).count();
        assert!(refused * 10 < requests.len() * 9, "{refused} of {} are refused", requests.len());
    }
}
/// Requests of whole logical blocks, on all files, including files with holes and unwritten extents.
fn aligned(fixture: &Fixture, rng: &mut Rng, unit: u64) -> Vec<Request> {
    let names = [SOLID, FRAGMENTED, HOLES, UNWRITTEN, SPARSE, TAIL, INLINE, EMPTY];
    (0..ROUNDS)
        .map(|_| {
            let name = names[rng.below(names.len() as u64) as usize];
            let size = fixture.content(name).len() as u64;
            let pos = rng.below(size / unit + 3) * unit;
            let longest = [1, 10, 100, 1000][rng.below(4) as usize];
            let len = (rng.below(longest) * unit) as usize;
            let pieces =
                if rng.below(2) == 0 { vec![len] } else { pieces(rng, len, unit as usize) };
            Request { name, pos, offset: 0, pieces }
        })
        .collect()
}

/// Requests on files without holes. Most of these requests violate an alignment rule.
fn misaligned(fixture: &Fixture, rng: &mut Rng, unit: u64) -> Vec<Request> {
    let names = [SOLID, FRAGMENTED, TAIL];
    let odd = |rng: &mut Rng| match rng.below(4) {
        0 => [1, 4, 256, 512, 1024, 2048][rng.below(6) as usize],
        _ => 0,
    };
    (0..ROUNDS)
        .map(|_| {
            let name = names[rng.below(names.len() as u64) as usize];
            let size = fixture.content(name).len() as u64;
            let pos = rng.below(size / unit + 3) * unit + odd(rng);
            let len = (rng.below(40) * unit + odd(rng)) as usize;
            let pieces = match rng.below(3) {
                0 => pieces(rng, len, unit as usize),
                1 => pieces(rng, len, 512),
                _ => vec![len],
            };
            Request { name, pos, offset: odd(rng) as usize, pieces }
        })
        .collect()
}

#[test]
fn aligned_reads_give_what_the_kernel_gives() {
    require!([Need::Root]);
    for (block, logical_block) in [(4096, 512), (4096, 4096), (1024, 512)] {
        compare(block, logical_block, |fixture, rng| aligned(fixture, rng, logical_block));
    }
}

#[test]
fn misaligned_reads_are_refused_where_the_kernel_refuses() {
    require!([Need::Root]);
    for (block, logical_block) in [(4096, 512), (4096, 4096), (1024, 512)] {
        compare(block, logical_block, |fixture, rng| misaligned(fixture, rng, logical_block));
    }
}

/// The volume's blocks are smaller than the device's logical block. Linux does not mount such a volume. ironmap reads it through the page
/// cache.
#[test]
fn blocks_below_the_logical_block_are_served() {
    require!([Need::Root]);
    let fixture = Fixture::new(1024, SEED);
    let device = Loop::new(&fixture.image().path(), 4096);
    let dir = device.dir.path().to_str().expect("a plain path");
    let mount = output("mount", &["-t", "ext4", "-o", "ro,noload", device.device.node(), dir]);
    assert!(!mount.status.success(), "the kernel mounts it");
    let location: Location = device.device.node().parse().expect("a location");
    for engine in [Engine::Psync, Engine::IoUring] {
        let volume = VolumeOptions::new().engine(engine).open(&location).expect("open the volume");
        let mut queue = volume.queue(&QueueOptions::default()).unwrap();
        for name in [SOLID, FRAGMENTED, HOLES, UNWRITTEN, SPARSE, TAIL, INLINE] {
            let expected = fixture.content(name);
            let mut read = vec![1; expected.len().min(1 << 20)];
            let file = open(&volume, name, true);
            let count = file.read_at(&mut queue, &mut read, FilePos(0)).unwrap();
            assert!(count == read.len() && expected[..count] == read[..], "{engine}: {name}");
        }
    }
}
