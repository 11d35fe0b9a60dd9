//! Tests of segmented devices over each kind of device below.

use std::io::IoSliceMut;

use tempfile::TempDir;

use super::map::Ranges;
use super::*;
use crate::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Memory};
use crate::device::{BlockFile, DeviceQueue, LentPart, OpenMode, Psync, Ram, Uring, UringOptions};

const MIB: u64 = 1 << 20;

/// The kind of the two devices below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ram,
    Psync,
    Uring,
    /// The first device is a file, and the second is memory.
    Mixed,
}

const KINDS: [Kind; 4] = [Kind::Ram, Kind::Psync, Kind::Uring, Kind::Mixed];

/// A segmented device, and the devices of 8 MiB below it.
struct Bench {
    below: Vec<Arc<dyn Device>>,
    dir: TempDir,
}

impl Bench {
    fn new(kind: Kind) -> Self {
        let mut bench = Self { below: Vec::new(), dir: tempfile::tempdir().unwrap() };
        bench.below = vec![
            bench.device("first", if kind == Kind::Mixed { Kind::Psync } else { kind }),
            bench.device("second", if kind == Kind::Mixed { Kind::Ram } else { kind }),
        ];
        bench
    }

    fn device(&self, name: &str, kind: Kind) -> Arc<dyn Device> {
        match kind {
            Kind::Psync => Arc::new(Psync::new(self.file(name))),
            Kind::Uring => Arc::new(Uring::new(self.file(name), UringOptions::default())),
            Kind::Ram | Kind::Mixed => Arc::new(Ram::new(8 * MIB)),
        }
    }

    /// Makes a file of 8 MiB.
    fn file(&self, name: &str) -> Arc<BlockFile> {
        let path = self.dir.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(8 * MIB).unwrap();
        let mode = OpenMode { direct: false, write: true, ..OpenMode::default() };
        Arc::new(BlockFile::open(&path, &mode).unwrap())
    }

    /// Returns a device with three segments: a linear segment, a segment that is striped over both devices below, and a linear segment. On
    /// the first device below, the third segment is before the others.
    fn segmented(&self) -> Segmented {
        let segment = |len, stripe, starts: &[u64]| Segment { len, stripe, starts: starts.into() };
        let segments = [
            segment(MIB, MIB, &[4 * MIB]),
            segment(2 * MIB, 64 << 10, &[6 * MIB, 12 * MIB]),
            segment(MIB, MIB, &[MIB]),
        ];
        Segmented::over(self.below.clone(), &segments).unwrap()
    }

    /// Writes a block to the position `at` of the devices below, counted as if the devices followed each other.
    fn write_below(&self, at: u64, block: &[u8]) {
        let mut sector = Buffer::aligned(block.len()).unwrap();
        sector.copy_from_slice(block);
        let device = &self.below[(at / (8 * MIB)) as usize];
        device.write_all_at(&[IoSlice::new(&sector)], DevOffset(at % (8 * MIB)), false).unwrap();
    }

    /// Writes to each block of the segmented device its own content, and returns the content of the device.
    fn filled(&self) -> Vec<u8> {
        for at in (0..4 * MIB).step_by(4096) {
            self.write_below(expected(at), &block(at));
        }
        (0..4 * MIB).step_by(4096).flat_map(block).collect()
    }
}

/// The position below that contains the byte `at`. This function does not use the tested code.
fn expected(at: u64) -> u64 {
    match at {
        at if at < MIB => 4 * MIB + at,
        at if at < 3 * MIB => {
            let (stripe, inside) = ((at - MIB) / (64 << 10), (at - MIB) % (64 << 10));
            [6 * MIB, 12 * MIB][(stripe % 2) as usize] + stripe / 2 * (64 << 10) + inside
        }
        at => MIB + at - 3 * MIB,
    }
}

fn block(at: u64) -> Vec<u8> {
    at.to_le_bytes().repeat(512)
}

fn buffer(len: usize) -> Buffer {
    Buffer::aligned(len).unwrap()
}

fn bio(op: BioOp, at: u64, memory: Memory, token: u32) -> Bio {
    let end = BioEnd::Part { request: token, part: 7 };
    Bio { op, flags: BioFlags::empty(), dev: Dev::OWN, at: DevOffset(at), memory, end }
}

fn token(bio: &Bio) -> u32 {
    match bio.end {
        BioEnd::Part { request, part: 7 } => request,
        other => panic!("the bio has another end: {other:?}"),
    }
}

/// Reads by calls and reads by a queue both return each block from its position on the devices below. A device that was not made writable
/// refuses writes.
#[test]
fn each_block_has_its_place() {
    for kind in KINDS {
        let bench = Bench::new(kind);
        let (all, device) = (bench.filled(), bench.segmented());
        assert_eq!(device.size(), 4 * MIB);
        let sector = buffer(4096);
        assert!(device.write_all_at(&[IoSlice::new(&sector)], DevOffset(0), false).is_err());
        let mut read = vec![0; all.len()];
        device.read_exact_at(&mut read, DevOffset(0)).unwrap();
        assert!(read == all, "{kind:?}");
        let mut queue = device.queue(&QueueOptions::new()).unwrap();
        let flags = BioFlags::empty();
        let written = queue.write_now(Dev::OWN, &[IoSlice::new(&sector)], DevOffset(0), flags);
        assert_eq!((written, queue.flush_now(Dev::OWN)), (Err(Errno::EROFS), Err(Errno::EROFS)));
        for at in (0..all.len()).step_by(96 * 1024) {
            let end = (at + 96 * 1024).min(all.len());
            let mut buffer = buffer(end - at);
            let count = queue.read_now(Dev::OWN, &mut buffer, DevOffset(at as u64), flags);
            assert_eq!((count, &buffer[..]), (Ok(end - at), &all[at..end]), "{kind:?} {at}");
        }
    }
}

/// A range of a request, and whether the request is a write.
struct Ranged {
    at: usize,
    len: usize,
    writes: bool,
}

/// Returns numbers below a limit, from a seed.
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

/// Four random requests. Each has its own quarter of the device, so they do not overlap.
fn round_of(random: &mut impl FnMut(u64) -> u64) -> Vec<Ranged> {
    let mut next = |quarter: u64| {
        let len = [4096, (1 + random(64)) * 4096][random(2) as usize];
        let at = quarter * MIB + random((MIB - len) / 4096 + 1) * 4096;
        Ranged { at: at as usize, len: len as usize, writes: random(3) == 0 }
    };
    (0..4).map(&mut next).collect()
}

/// Memory that contains `data`, in one buffer or in two.
fn memory_with(data: &[u8], random: &mut impl FnMut(u64) -> u64) -> Memory {
    let filled = |data: &[u8]| {
        let mut one = buffer(data.len());
        one.copy_from_slice(data);
        one
    };
    let (first, second) = data.split_at(random(data.len() as u64 / 512) as usize * 512);
    match first.is_empty() || random(2) == 0 {
        true => Memory::Flat(filled(data)),
        false => Memory::Vectored(vec![filled(first), filled(second)]),
    }
}

fn bytes(memory: &Memory) -> Vec<u8> {
    memory.buffers().iter().flat_map(|one| one.to_vec()).collect()
}

/// Random requests to a writable device have the same results as the same requests to a vector: queued, with one and several buffers, and by
/// calls for several parts. Some requests are within one range and others span several.
#[test]
fn random_requests_match_a_model() {
    const SEED: u64 = 0x5E6_3E27;
    for kind in KINDS {
        let bench = Bench::new(kind);
        let mut model = bench.filled();
        let device = bench.segmented().writable();
        let mut queue = device.queue(&QueueOptions::new().depth(16)).unwrap();
        let mut random = numbers(SEED);
        for round in 0..400_u32 {
            let why = format!("{kind:?}, round {round}, seed {SEED:#x}");
            let requests = round_of(&mut random);
            for (index, Ranged { at, len, writes }) in requests.iter().enumerate() {
                let (range, mut data) = (*at..at + len, vec![0; *len]);
                if *writes {
                    let byte = |byte: usize| (at / 4096 + byte / 64) as u8 ^ round as u8;
                    data = (0..*len).map(byte).collect();
                    model[range].copy_from_slice(&data);
                }
                let op = if *writes { BioOp::Write } else { BioOp::Read };
                let memory = memory_with(&data, &mut random);
                assert!(queue.submit(bio(op, *at as u64, memory, index as u32)).is_ok());
            }
            if round % 16 == 0 {
                assert!(queue.submit(bio(BioOp::Flush, 0, Memory::Flat(buffer(512)), 9)).is_ok());
            }
            queue.wait(queue.in_flight()).unwrap();
            while let Some(done) = queue.pop() {
                if done.bio.op == BioOp::Flush {
                    assert_eq!((done.result, token(&done.bio)), (Ok(0), 9));
                    continue;
                }
                let Ranged { at, len, .. } = requests[token(&done.bio) as usize];
                assert_eq!((done.bio.at.0 as usize, done.result), (at, Ok(len)), "{why}");
                assert!(bytes(&done.bio.memory) == model[at..at + len], "{why}");
            }
            check_parts(&mut queue, &requests, &model, &why);
        }
        let mut read = vec![0; model.len()];
        device.read_exact_at(&mut read, DevOffset(0)).unwrap();
        assert!(read == model, "{kind:?}");
    }
}

/// Reads the ranges of all requests by one call.
fn check_parts(queue: &mut impl DeviceQueue, requests: &[Ranged], model: &[u8], why: &str) {
    let mut memory: Vec<Vec<u8>> = requests.iter().map(|one| vec![0; one.len]).collect();
    let part = |(one, request): (_, &Ranged)| {
        let one: &mut Vec<u8> = one;
        let bufs = smallvec::smallvec![IoSliceMut::new(one)];
        LentPart::new(bufs, DevOffset(request.at as u64))
    };
    let mut parts: Vec<LentPart<'_>> = memory.iter_mut().zip(requests).map(part).collect();
    queue.read_parts_now(Dev::OWN, &mut parts, BioFlags::empty());
    assert!(parts.iter().all(|part| part.result == Ok(part.len())), "{why}");
    drop(parts);
    for (one, Ranged { at, len, .. }) in memory.iter().zip(requests) {
        assert!(one[..] == model[*at..at + len], "{why}");
    }
}

/// An alternative way to read ranges that returns the same byte everywhere.
#[derive(Debug)]
struct Sevens;

impl Ranges for Sevens {
    fn read(&self, buf: &mut [u8], _: DevOffset) -> Result<()> {
        buf.fill(7);
        Ok(())
    }
}

/// A failed read is repeated in the alternative way, whether it is a call, a part of a call or queued. Without an alternative, and with
/// NOWAIT, it fails. The first segment is at a position that no device contains.
#[test]
fn a_failed_read_is_repeated() {
    for (kind, has_other) in KINDS.into_iter().flat_map(|kind| [(kind, true), (kind, false)]) {
        let bench = Bench::new(kind);
        let place = |device, start| vec![OnDevice { device: Number::of(device), start }];
        let placed = [
            Placed::new(0, MIB, MIB, place(0, u64::MAX - MIB)),
            Placed::new(MIB, MIB, MIB, place(1, 0)),
        ];
        let placed = placed.into_iter().flatten().collect();
        let limits = *bench.below[0].limits();
        let mut device = Segmented::of(bench.below.clone(), placed, 2 * MIB, limits);
        if has_other {
            Arc::get_mut(&mut device.map).unwrap().other = Some(Arc::new(Sevens));
        }
        let mut queue = device.queue(&QueueOptions::new()).unwrap();
        for (at, len) in [(0, 4096), (MIB - 4096, 8192), (MIB, 4096)] {
            let fails = at < MIB;
            let expected = if fails && !has_other { None } else { Some(if fails { 7 } else { 0 }) };
            let check = |result: Result<usize, Errno>, bytes: &[u8]| {
                let read = result.ok().map(|count| bytes[..count].to_vec());
                let expected = expected.map(|byte| vec![byte; len]);
                assert!(read == expected, "{kind:?}, other {has_other}, {at}: {result:?}");
            };
            let mut one = buffer(len);
            let flags = BioFlags::empty();
            let result = queue.read_now(Dev::OWN, &mut one, DevOffset(at), flags);
            check(result, &one);
            let mut two = [buffer(len), buffer(len)];
            let part =
                |one| LentPart::new(smallvec::smallvec![IoSliceMut::new(one)], DevOffset(at));
            let mut parts: Vec<LentPart<'_>> = two.iter_mut().map(|one| part(one)).collect();
            queue.read_parts_now(Dev::OWN, &mut parts, flags);
            let results: Vec<_> = parts.iter().map(|part| part.result).collect();
            drop(parts);
            results.into_iter().zip(&two).for_each(|(result, one)| check(result, one));
            assert!(queue.submit(bio(BioOp::Read, at, Memory::Flat(buffer(len)), 3)).is_ok());
            queue.wait(1).unwrap();
            let done = queue.pop().unwrap();
            assert_eq!((token(&done.bio), done.bio.at), (3, DevOffset(at)));
            check(done.result, &done.bio.memory.buffers()[0]);
            if kind != Kind::Ram && fails {
                let result = queue.read_now(Dev::OWN, &mut one, DevOffset(at), BioFlags::NOWAIT);
                assert!(result.is_err(), "{kind:?}: {result:?}");
            }
        }
    }
}

/// The queue over several files also serves a file that is attached to it. Other numbers name no device.
#[test]
fn a_file_can_be_attached_beside_ranges() {
    for kind in [Kind::Psync, Kind::Uring] {
        let bench = Bench::new(kind);
        let all = bench.filled();
        let device = bench.segmented();
        let mut queue = device.queue(&QueueOptions::new()).unwrap();
        let file = bench.file("attached");
        let mut sector = buffer(4096);
        sector.fill(9);
        file.write_all_at(&[IoSlice::new(&sector)], DevOffset(8192), false).unwrap();
        let dev = queue.attach(&file, true).unwrap();
        let flags = BioFlags::empty();
        assert_eq!(queue.read_now(dev, &mut sector, DevOffset(8192), flags), Ok(4096));
        assert!(sector.iter().all(|byte| *byte == 9), "{kind:?}");
        assert_eq!(queue.read_now(Dev::OWN, &mut sector, DevOffset(MIB), flags), Ok(4096));
        assert_eq!(sector[..], all[MIB as usize..][..4096], "{kind:?}");
        let mut queue = queue.unbounded();
        queue.detach(dev);
        let result = queue.read_now(dev, &mut sector, DevOffset(8192), flags);
        assert_eq!(result, Err(Errno::EBADF), "{kind:?}");
    }
}

#[test]
fn a_segment_outside_of_its_device_is_refused() {
    let ram: Arc<dyn Device> = Arc::new(Ram::new(MIB));
    let segment = |len, stripe, starts: &[u64]| Segment { len, stripe, starts: starts.into() };
    for wrong in [
        segment(2 * MIB, 0, &[0]),
        segment(4096, 0, &[MIB]),
        segment(4096, 0, &[u64::MAX - 4095]),
        segment(0, 0, &[0]),
        segment(4096, 0, &[]),
        segment(4096, 0, &[1]),
        segment(8192, 0, &[0, 4096]),
        segment(8192, 100, &[0, 4096]),
    ] {
        assert!(
            Segmented::new(Arc::clone(&ram), std::slice::from_ref(&wrong)).is_err(),
            "{wrong:?}"
        );
    }
    assert!(Segmented::new(ram, &[segment(MIB, MIB, &[0])]).is_ok());
}

/// A read goes to the joined device that contains its position. A read that begins on one device and ends on another fails.
#[test]
fn each_joined_device_is_read_at_its_place() {
    let ram = |byte, len| -> Arc<dyn Device> { Arc::new(Ram::from_image(&vec![byte; len])) };
    let others = vec![(Segmented::REALTIME, ram(3, 4096)), (Segmented::JOURNAL, ram(2, 8192))];
    let joined = Segmented::joined(ram(1, 4096), others);
    let read = |at: u64| {
        let mut byte = [0];
        joined.read_exact_at(&mut byte, DevOffset(at)).map(|()| byte[0])
    };
    assert_eq!(read(4095).unwrap(), 1);
    assert_eq!(read(Segmented::JOURNAL).unwrap(), 2);
    assert_eq!(read(Segmented::JOURNAL + 8191).unwrap(), 2);
    assert_eq!(read(Segmented::REALTIME).unwrap(), 3);
    assert_eq!(read(Segmented::REALTIME + 4095).unwrap(), 3);
    assert!(read(4096).is_err() && read(Segmented::JOURNAL - 1).is_err());
    assert!(read(Segmented::JOURNAL + 8192).is_err() && read(Segmented::REALTIME - 1).is_err());
    assert!(read(Segmented::REALTIME + 4096).is_err());
    assert!(!joined.is_writable() && joined.size() == 4096);
    assert!(joined.write_all_at(&[IoSlice::new(&[0; 512])], DevOffset(0), true).is_err());
}
