//! Reads that cross holes, unwritten extents and many extents. The tests check the result, and the requests to the device.

use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;

use crate::common::fixture::{
    FRAGMENTED, Fixture, HOLES, INLINE, SOLID, SPARSE, Stack, UNWRITTEN, open,
};
use crate::common::ranges::{Room, bytes, part, pieces, shape, split};
use crate::common::rng::Rng;
use ironmap::bio::{Buffer, Memory};
use ironmap::device::Faults;
use ironmap::dio::DioFlags;
use ironmap::iomap::{Iomap, IomapType};
use ironmap::units::FilePos;
use ironmap::{File, Queue, QueueOptions};

const SEED: u64 = 0x6e_e1c;

fn mappings(file: &File) -> Vec<Iomap> {
    file.mappings().map(Result::unwrap).collect()
}

/// Reads into owned or borrowed memory, and returns the memory. The read must succeed.
fn read(queue: &mut Queue, file: &File, pos: u64, len: usize, owned: bool) -> Vec<u8> {
    if owned {
        let buffer = Room::new(len).into_buffer(0, len);
        file.submit_read(queue, buffer, FilePos(pos), DioFlags::empty(), 1).expect("a read");
        queue.wait(1).expect("wait");
        let done = queue.pop().expect("one completion");
        assert!(queue.pop().is_none(), "one request, one completion");
        done.result.expect("a read");
        return bytes(&done.memory);
    }
    let mut room = Room::new(len);
    file.read_at(queue, room.at(0, len), FilePos(pos)).expect("a read");
    room.at(0, len).to_vec()
}

/// A read of holes and unwritten extents returns zeros and sends no request to the device. The old content of unwritten blocks is never
/// returned.
#[test]
fn holes_and_unwritten_extents_are_zeros_without_the_device() {
    for block in [4096, 1024] {
        let fixture = Fixture::new(block, SEED);
        let (sim, volume) = fixture.sim(Faults::default());
        let mut queue = volume.queue(&QueueOptions::default()).unwrap();
        let image = std::fs::File::open(fixture.image().path()).unwrap();
        for (name, kind) in
            [(HOLES, IomapType::Hole), (UNWRITTEN, IomapType::Unwritten), (SPARSE, IomapType::Hole)]
        {
            let file = open(&volume, name, true);
            let found: Vec<_> =
                mappings(&file).into_iter().filter(|iomap| iomap.kind == kind).collect();
            assert!(found.len() > 5, "{name}: {kind:?} in several places");
            sim.set_faults(Faults::default());
            let mut hidden = false;
            for iomap in found {
                if kind == IomapType::Unwritten {
                    let mut held = vec![0; iomap.len as usize];
                    image.read_exact_at(&mut held, iomap.addr.0).unwrap();
                    hidden |= held.iter().any(|byte| *byte != 0);
                }
                for owned in [false, true] {
                    let memory = read(&mut queue, &file, iomap.pos.0, iomap.len as usize, owned);
                    assert!(memory.iter().all(|byte| *byte == 0), "{name} at {}", iomap.pos);
                }
            }
            assert_eq!(sim.requests(), 0, "{name}, blocks of {block}");
            assert!(hidden || kind == IomapType::Hole, "old data to hide");
        }
    }
}

/// A read of a whole file sends one request for each extent with data. The read completes once and returns the bytes of the file.
#[test]
fn many_extents_are_one_completion() {
    for block in [4096, 1024] {
        let fixture = Fixture::new(block, SEED);
        let (sim, volume) = fixture.sim(Faults::default());
        let mut queue = volume.queue(&QueueOptions::new().depth(16)).unwrap();
        for name in [FRAGMENTED, HOLES, UNWRITTEN] {
            let file = open(&volume, name, false);
            // A range that is longer than the device's maximum transfer needs several requests.
            let most = u64::from(volume.device().limits().max_transfer);
            let mappings = mappings(&file);
            let mapped = mappings.iter().filter(|iomap| iomap.kind == IomapType::Mapped);
            let requests: u64 = mapped.map(|iomap| iomap.len.div_ceil(most)).sum();
            assert!(requests > 64, "{name}: more than are in flight together, not {requests}");
            let len = (file.size().next_multiple_of(4096)) as usize;
            for owned in [false, true] {
                sim.set_faults(Faults::default());
                let memory = read(&mut queue, &file, 0, len, owned);
                assert_eq!(&memory[..file.size() as usize], fixture.content(name), "{name}");
                assert_eq!(sim.requests(), requests, "{name}, owned {owned}");
            }
        }
    }
}

/// The bytes fill the segments in order. A read returns all its owned segments in their original order. ironmap does not join two adjacent
/// segments of one allocation.
#[test]
fn segments_come_back_as_they_went_down() {
    let fixture = Fixture::new(4096, SEED);
    for stack in Stack::REAL {
        let volume = fixture.volume(stack);
        let unit = (volume.device().limits().logical_block as usize).max(512);
        let mut queue = volume.queue(&QueueOptions::new().depth(8)).unwrap();
        let mut rng = Rng::new(SEED);
        for round in 0..150 {
            let name = [SOLID, FRAGMENTED, HOLES, UNWRITTEN][rng.below(4) as usize];
            let file = open(&volume, name, true);
            let pos = rng.below(file.size() / unit as u64) * unit as u64;
            let len = rng.below(300) as usize * unit;
            let cuts = pieces(&mut rng, len, unit);
            let expected = part(fixture.content(name), pos, len);
            let shown =
                format!("{stack}, {name}, seed {SEED:#x}, round {round}: {cuts:?} at {pos}");

            let mut room = Room::new(len);
            let mut rest = room.at(0, len);
            let mut slices = Vec::new();
            for cut in &cuts {
                let (head, tail) = rest.split_at_mut(*cut);
                slices.push(IoSliceMut::new(head));
                rest = tail;
            }
            let count =
                file.read_vectored_at(&mut queue, &mut slices, FilePos(pos), DioFlags::empty());
            assert_eq!(count.unwrap(), expected.len(), "{shown}");
            assert_eq!(&room.at(0, len)[..expected.len()], expected, "{shown}");

            // The buffers are parts of one allocation, separate allocations, or a mixture of both.
            let mut buffers = split(Buffer::aligned(len).unwrap(), &cuts);
            for buffer in &mut buffers {
                if round % 3 > 0 && rng.below(round % 3 + 1) == 0 {
                    *buffer = Buffer::aligned(buffer.len()).unwrap();
                }
            }
            let memory = Memory::Vectored(buffers);
            let before = shape(&memory);
            file.submit_read(&mut queue, memory, FilePos(pos), DioFlags::empty(), round).unwrap();
            queue.wait(1).unwrap();
            let done = queue.pop().expect("a completion");
            assert_eq!(done.result.unwrap(), expected.len(), "{shown}");
            assert_eq!(shape(&done.memory), before, "{shown}");
            assert_eq!(&bytes(&done.memory)[..expected.len()], expected, "{shown}");
        }
    }
}

/// Inline data are read together with the inode, without a request to the device.
#[test]
fn inline_data_is_read_without_the_device() {
    let fixture = Fixture::new(4096, SEED);
    let (sim, volume) = fixture.sim(Faults::default());
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let file = open(&volume, INLINE, true);
    sim.set_faults(Faults::default());
    for owned in [false, true] {
        let memory = read(&mut queue, &file, 0, 512, owned);
        assert_eq!(&memory[..50], fixture.content(INLINE));
        assert!(memory[50..].iter().all(|byte| *byte == 0), "the rest of the sector");
    }
    assert_eq!(sim.requests(), 0);
}
