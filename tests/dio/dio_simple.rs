//! The simple path of a read: a short code path for reads that need only one request to the device. The tests check which reads use this
//! path, and why other reads cannot use it. The simple path and the general path return the same bytes.

use std::io::IoSliceMut;

use crate::common::fixture::{
    EMPTY, FILES, FRAGMENTED, Fixture, HOLES, INLINE, SOLID, Stack, TAIL, UNWRITTEN, open,
};
use crate::common::ranges::{Room, fault, part};
use crate::common::rng::Rng;
use ironmap::bio::{Buffer, Memory};
use ironmap::device::Faults;
use ironmap::dio::{DioFlags, NotSimple, Stats};
use ironmap::iomap::IomapType;
use ironmap::units::FilePos;
use ironmap::{File, Queue, QueueOptions};

const SEED: u64 = 0x51_3b1e;
const BLOCK: usize = 4096;

/// Runs a read. Returns the reason why the read could not use the simple path (the short code path for simple reads), or `None` if it used
/// this path. The queue has a counter for each reason, and the function compares the counters.
fn gate(queue: &mut Queue, read: impl FnOnce(&mut Queue)) -> Option<NotSimple> {
    let before = *queue.stats();
    read(queue);
    let after = *queue.stats();
    let hits = after.simple_hits - before.simple_hits;
    let missed = |reason: &NotSimple| after.misses(*reason) - before.misses(*reason);
    let total: u64 = NotSimple::ALL.iter().map(missed).sum();
    assert_eq!(hits + total, 1, "one read counts once");
    NotSimple::ALL.into_iter().find(|reason| missed(reason) == 1)
}

/// Runs a read twice: with borrowed memory and with owned memory. Both runs must give the same result of [`gate`]. Returns this result.
fn flat(
    queue: &mut Queue,
    file: &File,
    pos: u64,
    len: usize,
    offset: usize,
    flags: DioFlags,
) -> Option<NotSimple> {
    let lent = gate(queue, |queue| {
        let mut room = Room::new(len + offset);
        file.read_at_with(queue, room.at(offset, len), FilePos(pos), flags).expect("a read");
    });
    let owned = gate(queue, |queue| {
        let buffer = Room::new(len + offset).into_buffer(offset, len);
        file.submit_read(queue, buffer, FilePos(pos), flags, 0).expect("a read");
        queue.wait(1).expect("wait");
        queue.pop().expect("a completion").result.expect("a read");
    });
    assert_eq!(lent, owned, "lent and owned memory");
    lent
}

/// Opens a file, and loads its map into memory.
fn resident(volume: &ironmap::Volume, queue: &mut Queue, name: &str) -> File {
    let file = open(volume, name, false);
    let mut room = Room::new(512);
    file.read_at(queue, room.at(0, 512), FilePos(0)).expect("a first read");
    file
}

/// The position of the file's first mapping of the given kind.
fn first(file: &File, kind: IomapType) -> u64 {
    let found = file.mappings().map(Result::unwrap).find(|iomap| iomap.kind == kind);
    found.unwrap_or_else(|| panic!("no {kind:?}")).pos.0
}

/// For each condition of the simple path (the short code path for simple reads), the test sends a request that violates only this
/// condition. The queue counts the request under the name of the condition.
#[test]
fn every_gate_is_counted_by_its_name() {
    let fixture = Fixture::new(BLOCK as u64, SEED);
    for stack in [Stack::Psync, Stack::Uring, Stack::Null, Stack::Sim] {
        let volume = fixture.volume(stack);
        let mut queue = volume.queue(&QueueOptions::default()).unwrap();
        let q = &mut queue;
        let none = DioFlags::empty();

        let solid = open(&volume, SOLID, false);
        let mut room = Room::new(BLOCK);
        let cold = gate(q, |q| {
            solid.read_at(q, room.at(0, BLOCK), FilePos(0)).expect("a read");
        });
        assert_eq!(cold, Some(NotSimple::NotResident), "{stack}");

        for (pos, len) in [(0, BLOCK), (0, 512), (512, BLOCK - 512), (1 << 19, BLOCK), (512, BLOCK)]
        {
            assert_eq!(flat(q, &solid, pos, len, 0, none), None, "{stack}: {len} bytes at {pos}");
        }
        assert_eq!(flat(q, &solid, 0, BLOCK, 0, DioFlags::NOWAIT), None, "{stack}");
        assert_eq!(flat(q, &solid, 0, BLOCK, 0, DioFlags::HIPRI), None, "{stack}");

        for flag in [DioFlags::FORCE_WAIT, DioFlags::BOUNCE] {
            assert_eq!(flat(q, &solid, 0, BLOCK, 0, flag), Some(NotSimple::Flags), "{stack}");
        }
        for len in [0, BLOCK + 512, 64 * BLOCK] {
            let reason = flat(q, &solid, 0, len, 0, none);
            assert_eq!(reason, Some(NotSimple::Length), "{stack}: {len} bytes");
        }
        for (pos, len, offset) in [(1, 512, 0), (0, 511, 0), (0, 512, 1)] {
            let reason = flat(q, &solid, pos, len, offset, none);
            assert_eq!(reason, Some(NotSimple::Misaligned), "{stack}: {len} at {pos} + {offset}");
        }
        let tail = resident(&volume, q, TAIL);
        for (pos, len) in [(4096, BLOCK), (4608, 512), (8192, 512), (!511, 512)] {
            let reason = flat(q, &tail, pos, len, 0, none);
            assert_eq!(reason, Some(NotSimple::PastSize), "{stack}: {len} bytes at {pos}");
        }
        assert_eq!(flat(q, &tail, 4096, 512, 0, none), None, "{stack}: inside the size");
        let empty = open(&volume, EMPTY, false);
        assert_eq!(flat(q, &empty, 0, BLOCK, 0, none), Some(NotSimple::PastSize), "{stack}");

        for (name, kind) in [(HOLES, IomapType::Hole), (UNWRITTEN, IomapType::Unwritten)] {
            let file = resident(&volume, q, name);
            let pos = first(&file, kind);
            let reason = flat(q, &file, pos, BLOCK, 0, none);
            assert_eq!(reason, Some(NotSimple::NotMapped), "{stack}, {name}");
            let pos = first(&file, IomapType::Mapped);
            assert_eq!(flat(q, &file, pos, BLOCK, 0, none), None, "{stack}, {name}");
        }
        let fragmented = resident(&volume, q, FRAGMENTED);
        let end = fragmented.map(FilePos(0), 1).unwrap().end().0;
        let reason = flat(q, &fragmented, end - 512, BLOCK, 0, none);
        assert_eq!(reason, Some(NotSimple::SeveralExtents), "{stack}");
        assert_eq!(flat(q, &fragmented, end - 512, 512, 0, none), None, "{stack}: up to the end");
    }
}

/// A vectored read cannot use the simple path (the short code path for simple reads), even if it has few buffers. If the simple path is
/// switched off, every read is counted under the reason `Disabled`, and no other counter changes.
#[test]
fn vectored_reads_and_the_switch_miss() {
    let fixture = Fixture::new(BLOCK as u64, SEED);
    let volume = fixture.volume(Stack::Psync);
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let file = resident(&volume, &mut queue, SOLID);
    let none = DioFlags::empty();
    let lent = gate(&mut queue, |queue| {
        let mut room = Room::new(BLOCK);
        let mut slices = [IoSliceMut::new(room.at(0, BLOCK))];
        file.read_vectored_at(queue, &mut slices, FilePos(0), none).expect("a read");
    });
    assert_eq!(lent, Some(NotSimple::Vectored));
    let owned = gate(&mut queue, |queue| {
        let memory = Memory::Vectored(vec![Buffer::aligned(BLOCK).unwrap()]);
        file.submit_read(queue, memory, FilePos(0), none, 0).expect("a read");
        queue.wait(1).expect("wait");
        queue.pop().expect("a completion").result.expect("a read");
    });
    assert_eq!(owned, Some(NotSimple::Vectored));

    queue.set_simple(false);
    assert_eq!(flat(&mut queue, &file, 0, BLOCK, 0, none), Some(NotSimple::Disabled));
    assert_eq!(flat(&mut queue, &file, 1, 5000, 3, none), Some(NotSimple::Disabled));
    queue.set_simple(true);
    assert_eq!(flat(&mut queue, &file, 0, BLOCK, 0, none), None);
}

/// Inline data have no position on the device, so a read of inline data cannot use the simple path (the short code path for simple reads).
#[test]
fn inline_data_misses() {
    let fixture = Fixture::new(BLOCK as u64, SEED);
    let volume = fixture.volume(Stack::Dax);
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let file = resident(&volume, &mut queue, INLINE);
    assert_eq!(first(&file, IomapType::Inline), 0);
    let reason = flat(&mut queue, &file, 0, 32, 0, DioFlags::empty());
    assert_eq!(reason, Some(NotSimple::NotMapped));
}

/// A read on the simple path (the short code path for simple reads) sends exactly one request to the device.
#[test]
fn a_hit_is_one_request() {
    let fixture = Fixture::new(BLOCK as u64, SEED);
    let (sim, volume) = fixture.sim(Faults::default());
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let file = resident(&volume, &mut queue, SOLID);
    sim.set_faults(Faults::default());
    assert_eq!(flat(&mut queue, &file, 8192, BLOCK, 0, DioFlags::empty()), None);
    assert_eq!(sim.requests(), 2, "one lent, one owned");
}

/// The same random requests run with the simple path (the short code path for simple reads) on and off. In both cases, they return the same
/// counts, and the bytes of the file.
#[test]
fn the_switch_changes_no_byte() {
    for block in [4096, 1024] {
        let fixture = Fixture::new(block, SEED);
        for stack in Stack::REAL {
            let volume = fixture.volume(stack);
            let unit = volume.device().limits().logical_block as usize;
            let mut on = volume.queue(&QueueOptions::default()).unwrap();
            let mut off = volume.queue(&QueueOptions::default()).unwrap();
            off.set_simple(false);
            let mut rng = Rng::new(SEED ^ block);
            for name in FILES {
                let file = open(&volume, name, false);
                let content = fixture.content(name);
                for _ in 0..120 {
                    // Most of these requests meet the conditions of the simple path. Some violate a condition by one sector or one byte.
                    let pos = rng.below(content.len() as u64 / 512 + 2) * 512 + rng.below(8) / 7;
                    let len = (1 + rng.below(block / 512 + 1)) as usize * 512;
                    let read = |queue: &mut Queue| {
                        let mut room = Room::new(len);
                        let count = file.read_at(queue, room.at(0, len), FilePos(pos)).unwrap();
                        (count, room.at(0, len).to_vec())
                    };
                    let (with, without) = (read(&mut on), read(&mut off));
                    let shown = format!("{stack}, {name}, {len} at {pos}, seed {SEED:#x}");
                    let expected = part(content, pos, len);
                    for (count, memory) in [&with, &without] {
                        let fault = fault(memory, *count, expected, unit);
                        assert_eq!(fault, None, "{shown}");
                    }
                    assert_eq!(with, without, "{shown}");
                }
            }
            assert!(on.stats().simple_hits > 100, "{stack}: {:?}", on.stats());
            let Stats { simple_hits, .. } = *off.stats();
            assert_eq!(simple_hits, 0, "{stack}");
        }
    }
}
