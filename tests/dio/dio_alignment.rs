//! Tests which positions, lengths and addresses a read accepts, and what a read returns at the end of the file.

use std::io::IoSliceMut;

use crate::common::fixture::{EMPTY, FILES, FRAGMENTED, Fixture, SOLID, Stack, TAIL, open};
use crate::common::ranges::{Room, UNTOUCHED, bytes, fault, part, pieces, shape, split};
use crate::common::rng::Rng;
use ironmap::bio::Memory;
use ironmap::device::Faults;
use ironmap::dio::DioFlags;
use ironmap::units::FilePos;
use ironmap::{ErrorKind, File, Queue, QueueOptions, Volume};

const SEED: u64 = 0xa119;

fn limits(volume: &Volume) -> (usize, usize) {
    let limits = volume.device().limits();
    (limits.logical_block as usize, limits.dma_align as usize)
}

/// A request, which the tests send through each call that reads a file.
struct Request {
    pos: u64,
    /// The distance from an aligned address to the first byte of the request's memory.
    offset: usize,
    pieces: Vec<usize>,
}

impl Request {
    fn len(&self) -> usize {
        self.pieces.iter().sum()
    }

    /// Sends the request through each call that reads a file. Returns a list with the name of the call, the outcome, and the memory after
    /// the request.
    fn send(&self, file: &File, queue: &mut Queue) -> Vec<(&'static str, Outcome, Vec<u8>)> {
        let (pos, len, none) = (FilePos(self.pos), self.len(), DioFlags::empty());
        let mut outcomes = Vec::new();
        let mut room = Room::new(self.offset + len);
        let memory = room.at(self.offset, len);
        let result = file.read_at(queue, memory, pos).map_err(|error| error.kind());
        outcomes.push(("flat", result, memory.to_vec()));

        let mut room = Room::new(self.offset + len);
        let mut rest = room.at(self.offset, len);
        let mut slices = Vec::new();
        for piece in &self.pieces {
            let (head, tail) = rest.split_at_mut(*piece);
            slices.push(IoSliceMut::new(head));
            rest = tail;
        }
        let result = file.read_vectored_at(queue, &mut slices, pos, none);
        let memory = room.at(self.offset, len).to_vec();
        outcomes.push(("vectored", result.map_err(|error| error.kind()), memory));

        let flat = Room::new(self.offset + len).into_buffer(self.offset, len);
        outcomes.push(submit("async flat", file, queue, Memory::Flat(flat), pos));
        let whole = Room::new(self.offset + len).into_buffer(self.offset, len);
        let vectored = Memory::Vectored(split(whole, &self.pieces));
        outcomes.push(submit("async vectored", file, queue, vectored, pos));
        outcomes
    }
}

type Outcome = Result<usize, ErrorKind>;

/// Submits the request. The completion must return the memory of the request. If the request is refused, the error must return the memory.
fn submit(
    way: &'static str,
    file: &File,
    queue: &mut Queue,
    memory: Memory,
    pos: FilePos,
) -> (&'static str, Outcome, Vec<u8>) {
    let before = shape(&memory);
    let (memory, result) = match file.submit_read(queue, memory, pos, DioFlags::empty(), 7) {
        Ok(()) => {
            queue.wait(1).expect("wait");
            let done = queue.pop().expect("a completion");
            assert_eq!(done.token, 7);
            (done.memory, done.result)
        }
        Err(rejected) => (rejected.memory, Err(rejected.error)),
    };
    assert_eq!(shape(&memory), before, "{way}: the memory came back changed");
    assert_eq!(queue.outstanding(), 0);
    (way, result.map_err(|error| error.kind()), bytes(&memory))
}

/// A strict handle (which accepts only the alignment of `O_DIRECT`) refuses every request that `O_DIRECT` refuses. A misaligned position,
/// length or address is each a sufficient reason. A refused request changes no memory.
#[test]
fn a_strict_handle_refuses_what_the_device_cannot_take() {
    let fixture = Fixture::new(4096, SEED);
    for stack in Stack::ALIGNED {
        let volume = fixture.volume(stack);
        let (unit, dma) = limits(&volume);
        assert!(unit >= 512, "{stack}: a device with alignment to break");
        let mut queue = volume.queue(&QueueOptions::default()).unwrap();
        let (u, block) = (unit, 4096);
        let mut bad = vec![
            ("position", Request { pos: 1, offset: 0, pieces: vec![u] }),
            ("position", Request { pos: u as u64 / 2, offset: 0, pieces: vec![40 * block] }),
            ("length", Request { pos: 0, offset: 0, pieces: vec![u + 1] }),
            ("length", Request { pos: 0, offset: 0, pieces: vec![40 * block, u - 1] }),
            ("length, past a block", Request { pos: 0, offset: 0, pieces: vec![block, 1] }),
        ];
        if dma > 1 {
            bad.push(("address", Request { pos: 0, offset: 1, pieces: vec![u] }));
            bad.push(("address", Request { pos: 0, offset: dma / 2, pieces: vec![40 * block] }));
        }
        for name in [SOLID, FRAGMENTED] {
            let file = open(&volume, name, true);
            for (what, request) in &bad {
                for (way, outcome, memory) in request.send(&file, &mut queue) {
                    let shown = format!("{stack}, {name}, {what}, {way}");
                    assert_eq!(outcome, Err(ErrorKind::InvalidInput), "{shown}");
                    assert!(memory.iter().all(|byte| *byte == UNTOUCHED), "{shown}: touched");
                }
            }
            let good = Request { pos: u as u64, offset: 0, pieces: vec![u, 3 * u] };
            for (way, outcome, _) in good.send(&file, &mut queue) {
                assert_eq!(outcome, Ok(4 * u), "{stack}, {name}, {way}");
            }
        }
    }
}

/// A strict handle (which accepts only the alignment of `O_DIRECT`) refuses a request with one misaligned segment, even if the total length
/// is aligned. The segment can be at any place in the list of segments.
#[test]
fn a_strict_handle_looks_at_every_segment() {
    let fixture = Fixture::new(4096, SEED);
    for stack in Stack::ALIGNED {
        let volume = fixture.volume(stack);
        let (unit, _) = limits(&volume);
        let file = open(&volume, SOLID, true);
        let mut queue = volume.queue(&QueueOptions::default()).unwrap();
        for odd in 0..6 {
            let mut pieces = vec![2 * unit; 8];
            pieces[odd] -= 1;
            pieces[odd + 1] += 1;
            let request = Request { pos: 0, offset: 0, pieces };
            for (way, outcome, memory) in request.send(&file, &mut queue) {
                if way.ends_with("vectored") {
                    assert_eq!(outcome, Err(ErrorKind::InvalidInput), "{stack}, {odd}, {way}");
                    assert!(memory.iter().all(|byte| *byte == UNTOUCHED), "{stack}, {odd}, {way}");
                }
            }
        }
    }
}

/// A handle with bounce buffers returns the right bytes for any position, length, address and segmentation. It changes no other bytes.
#[test]
fn any_range_can_be_read_without_strict() {
    for block in [4096, 1024] {
        let fixture = Fixture::new(block, SEED);
        for stack in Stack::REAL {
            let volume = fixture.volume(stack);
            let (unit, _) = limits(&volume);
            let mut queue = volume.queue(&QueueOptions::new().depth(32)).unwrap();
            let mut rng = Rng::new(SEED ^ block);
            for name in FILES {
                let file = open(&volume, name, false);
                let content = fixture.content(name);
                assert_eq!(file.size(), content.len() as u64, "{name}");
                for round in 0..40 {
                    let request = any_request(&mut rng, content.len() as u64, unit as u64);
                    let expected = part(content, request.pos, request.len());
                    for (way, outcome, memory) in request.send(&file, &mut queue) {
                        let count = outcome
                            .unwrap_or_else(|kind| panic!("{stack}, {name}, {way}: {kind:?}"));
                        if let Some(fault) = fault(&memory, count, expected, unit) {
                            panic!(
                                "{stack}, blocks of {block}, {name}, {way}, seed {SEED:#x}, round {round}: {} bytes at \
                                 {} in {:?}: {fault}",
                                request.len(),
                                request.pos,
                                request.pieces
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Makes a random request. About half of the positions, lengths and addresses are aligned. Some requests lie past the end of the file, and
/// a few are longer than a bounce buffer.
fn any_request(rng: &mut Rng, size: u64, unit: u64) -> Request {
    let align = |rng: &mut Rng, value: u64| {
        if rng.below(2) == 0 { value } else { value / unit.max(512) * unit.max(512) }
    };
    let longest = [700, 5000, 70_000, 600_000][rng.below(4) as usize];
    let pos = rng.below(size + 3000);
    let pos = align(rng, pos);
    let len = rng.below(longest);
    let len = align(rng, len) as usize;
    let offset = [0, 0, 512, 3, 1777][rng.below(5) as usize];
    let unit = [1, 512, 4096][rng.below(3) as usize];
    Request { pos, offset, pieces: pieces(rng, len, unit) }
}

/// A read that begins at or past the end of the file returns no bytes and sends no request to the device. This rule applies to every form
/// of request.
#[test]
fn no_data_are_past_the_end() {
    let fixture = Fixture::new(4096, SEED);
    let (sim, volume) = fixture.sim(Faults::default());
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    for strict in [false, true] {
        for name in FILES {
            let file = open(&volume, name, strict);
            let size = file.size();
            sim.set_faults(Faults::default());
            let far = [size.next_multiple_of(4096), size + 1, 1 << 40, i64::MAX as u64, u64::MAX];
            for pos in far.into_iter().chain([size]) {
                for len in [4096, 5] {
                    let request = Request { pos, offset: 0, pieces: vec![len] };
                    for (way, outcome, memory) in request.send(&file, &mut queue) {
                        assert_eq!(outcome, Ok(0), "{name}, strict {strict}, {way} at {pos}");
                        assert!(memory.iter().all(|byte| *byte == UNTOUCHED), "{name}, {way}");
                    }
                }
            }
            assert_eq!(sim.requests(), 0, "{name}");
        }
    }
}

/// A request for zero bytes returns zero bytes and changes no memory, at any position.
#[test]
fn no_bytes_are_read_without_the_device() {
    let fixture = Fixture::new(4096, SEED);
    let (sim, volume) = fixture.sim(Faults::default());
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    for (name, strict) in FILES.into_iter().flat_map(|name| [(name, true), (name, false)]) {
        let file = open(&volume, name, strict);
        sim.set_faults(Faults::default());
        for (pos, offset) in [(0, 0), (512, 0), (1, 0), (0, 1), (4097, 3)] {
            for pieces in [vec![0], vec![0, 0, 0]] {
                let request = Request { pos, offset, pieces };
                for (way, outcome, _) in request.send(&file, &mut queue) {
                    assert_eq!(outcome, Ok(0), "{name}, strict {strict}, {way} at {pos}");
                }
            }
        }
        assert_eq!(sim.requests(), 0, "{name}");
    }
}

/// A segment of zero bytes may have any address.
#[test]
fn a_segment_of_no_bytes_may_lie_anywhere() {
    let fixture = Fixture::new(4096, SEED);
    let volume = fixture.volume(Stack::Psync);
    let file = open(&volume, SOLID, true);
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let (mut room, mut empty) = (Room::new(4096), Room::new(0));
    let mut slices = [IoSliceMut::new(empty.at(1, 0)), IoSliceMut::new(room.at(0, 4096))];
    let result = file.read_vectored_at(&mut queue, &mut slices, FilePos(0), DioFlags::empty());
    assert_eq!(result.unwrap(), 4096);
    assert_eq!(room.at(0, 4096), part(fixture.content(SOLID), 0, 4096));
}

/// A read stops at the end of the file. On the device, the rest of the file's last sector contains other bytes. The read returns zeros
/// instead of these bytes, and changes no memory after the sector.
#[test]
fn the_last_sector_shows_nothing_of_the_device() {
    let fixtures = [4096, 1024].map(|block| Fixture::new(block, SEED));
    for (fixture, stack) in
        fixtures.iter().flat_map(|fixture| Stack::REAL.map(|stack| (fixture, stack)))
    {
        let block = fixture.block;
        let volume = fixture.volume(stack);
        let (unit, _) = limits(&volume);
        let mut queue = volume.queue(&QueueOptions::default()).unwrap();
        let content = fixture.content(TAIL);
        for strict in [true, false] {
            let file = open(&volume, TAIL, strict);
            for (pos, pieces) in
                [(0, vec![8192]), (4096, vec![4096]), (4096, vec![1024]), (4608, vec![512, 512])]
            {
                let request = Request { pos, offset: 0, pieces };
                let expected = part(content, pos, request.len());
                let zeroed = expected.len().next_multiple_of(unit);
                for (way, outcome, memory) in request.send(&file, &mut queue) {
                    let shown = format!("{stack}, blocks of {block}, {way} at {pos}");
                    assert_eq!(outcome, Ok(expected.len()), "{shown}");
                    assert_eq!(&memory[..expected.len()], expected, "{shown}");
                    assert!(
                        memory[expected.len()..zeroed].iter().all(|byte| *byte == 0),
                        "{shown}"
                    );
                    assert!(memory[zeroed..].iter().all(|byte| *byte == UNTOUCHED), "{shown}");
                }
            }
        }
        assert_eq!(open(&volume, EMPTY, true).size(), 0);
    }
}

/// Linux accepts at most 1024 segments (`IOV_MAX`). A strict handle, which accepts only the alignment of `O_DIRECT`, has the same limit. A
/// normal handle accepts more segments.
#[test]
fn more_segments_than_the_kernel_takes() {
    let fixture = Fixture::new(4096, SEED);
    let content = fixture.content(SOLID);
    for stack in Stack::REAL {
        let volume = fixture.volume(stack);
        let mut queue = volume.queue(&QueueOptions::default()).unwrap();
        let (strict, other) = (open(&volume, SOLID, true), open(&volume, SOLID, false));
        for count in [1024, 1025, 1500] {
            let request = Request { pos: 4096, offset: 0, pieces: vec![512; count] };
            let expected = part(content, 4096, 512 * count);
            for (way, outcome, memory) in request.send(&other, &mut queue) {
                let shown = format!("{stack}, {count} segments, {way}");
                assert_eq!(outcome, Ok(512 * count), "{shown}");
                assert_eq!(memory, expected, "{shown}");
            }
            for (way, outcome, _) in request.send(&strict, &mut queue) {
                let refused = count > 1024 && way.ends_with("vectored");
                let expected = if refused { Err(ErrorKind::InvalidInput) } else { Ok(512 * count) };
                assert_eq!(outcome, expected, "{stack}, {count} segments, {way}");
            }
        }
        assert!(volume.events().take().0.is_empty(), "{stack}: the device was not at fault");
    }
}
