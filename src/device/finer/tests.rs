use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::bio::{Bio, BioEnd, BioFlags, BioOp, Dev, Memory};
use crate::device::{
    Crashes, DeviceQueue, Entry, Faults, Layer, Layered, LentPart, Ram, Record, Request, Sim,
    Verdict,
};
use crate::units::{FilePos, InodeNo};

const UNIT: usize = 4096;

/// A layer that accepts only requests of whole units, like a server with a minimum block size.
#[derive(Default)]
struct Strict {
    /// Whether the layer has refused a request because it did not consist of whole units.
    met: AtomicBool,
}

impl Layer for Strict {
    fn limits(&self, below: &Limits) -> Limits {
        Limits { logical_block: UNIT as u32, max_transfer: 4 * UNIT as u32, ..*below }
    }

    fn begin(&self, request: &Request<'_>) -> Verdict {
        let fits = |value: u64| value.is_multiple_of(UNIT as u64);
        // The layer accepts reads of any alignment, because a call of the device may read at any alignment.
        let fits =
            matches!(request, Request::Read { .. }) || fits(request.at().0) && fits(request.len());
        if !fits {
            self.met.store(true, Ordering::Relaxed);
            return Verdict { ticket: 0, len: 0, error: Some(Errno::EINVAL) };
        }
        Verdict::pass(request)
    }
}

fn over(below: Arc<dyn Device>) -> Finer {
    let finer = Finer::over(Arc::new(Layered::with_layer(below, Strict::default())));
    assert_eq!(finer.limits().logical_block, 512);
    finer
}

fn buffer(fills: &[u8]) -> Buffer {
    let mut buffer = Buffer::aligned(fills.len() * 512).unwrap();
    for (sector, fill) in buffer.chunks_mut(512).zip(fills) {
        sector.fill(*fill);
    }
    buffer
}

fn bio(op: BioOp, at: u64, fills: &[u8]) -> Bio {
    let end = BioEnd::Whole { token: at, inode: InodeNo(1), pos: FilePos(at) };
    let (at, memory) = (DevOffset(at), Memory::Flat(buffer(fills)));
    Bio { op, flags: BioFlags::empty(), dev: Dev::OWN, at, memory, end }
}

/// Returns the first byte of each sector. All bytes of a sector must be equal.
fn sectors(bytes: &[u8]) -> Vec<u8> {
    let each = bytes.chunks(512).map(|sector| {
        assert!(sector.iter().all(|byte| *byte == sector[0]), "a torn sector");
        sector[0]
    });
    each.collect()
}

fn content(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; device.size() as usize];
    device.read_exact_at(&mut bytes, DevOffset(0)).unwrap();
    sectors(&bytes)
}

/// Calls each write method at each position and length within three units. After each write, every read method returns the same data.
#[test]
fn all_positions_are_written_and_read() {
    let ram = Arc::new(Ram::new(8 * UNIT as u64));
    let finer = over(ram.clone());
    let mut queue = finer.queue(&QueueOptions::new().depth(4)).unwrap();
    let mut expected = content(&*ram);
    let mut fill = 0_u8;
    for start in 0..24_usize {
        for len in 1..=24 {
            fill = fill % 250 + 1;
            let data = buffer(&vec![fill; len]);
            let (one, other) = data.split_at(len / 2 * 512);
            let bufs = [IoSlice::new(one), IoSlice::new(other)];
            let at = DevOffset(start as u64 * 512);
            match fill % 3 {
                0 => finer.write_all_at(&bufs, at, fill.is_multiple_of(2)).unwrap(),
                1 => {
                    let written = queue.write_now(Dev::OWN, &bufs, at, BioFlags::empty());
                    assert_eq!(written, Ok(len * 512));
                }
                _ => {
                    queue.submit(bio(BioOp::Write, at.0, &vec![fill; len])).unwrap();
                    queue.wait(1).unwrap();
                    let done = queue.pop().unwrap();
                    assert_eq!(done.result, Ok(len * 512));
                    assert!(matches!(done.bio.end, BioEnd::Whole { token, .. } if token == at.0));
                }
            }
            expected[start..start + len].fill(fill);
            assert_eq!(content(&*ram), expected, "{start} {len}");
            queue.submit(bio(BioOp::Read, at.0, &vec![0; len])).unwrap();
            queue.wait(1).unwrap();
            let done = queue.pop().unwrap();
            assert_eq!(done.result, Ok(len * 512));
            assert_eq!(sectors(&done.bio.memory.buffers()[0]), expected[start..start + len]);
            let mut now = vec![0; len * 512];
            let read = queue.read_now(Dev::OWN, &mut now, at, BioFlags::empty());
            assert_eq!(read, Ok(len * 512));
            assert_eq!(sectors(&now), expected[start..start + len]);
            let (one, other) = now.split_at_mut(len / 2 * 512);
            let bufs = [one, other].into_iter().map(std::io::IoSliceMut::new).collect();
            let mut part = [LentPart::new(bufs, at)];
            queue.read_parts_now(Dev::OWN, &mut part, BioFlags::empty());
            assert_eq!(part[0].result, Ok(len * 512));
        }
    }
    assert_eq!((queue.in_flight(), queue.room()), (0, 4));
}

/// A device may end within a unit. Reads up to the end of the device succeed, and every request past the end fails.
#[test]
fn the_last_unit_may_be_shorter() {
    let ram = Arc::new(Ram::new(UNIT as u64 + 1536));
    ram.write_all_at(&[IoSlice::new(&buffer(&[7; 11]))], DevOffset(0), false).unwrap();
    let finer = over(ram);
    let mut queue = finer.queue(&QueueOptions::new()).unwrap();
    for (sectors, result) in [(10, Ok(10 * 512)), (11, Err(Errno::EINVAL))] {
        queue.submit(bio(BioOp::Read, 512, &vec![0; sectors])).unwrap();
        queue.wait(1).unwrap();
        assert_eq!(queue.pop().unwrap().result, result);
    }
    let data = buffer(&[1]);
    finer.write_all_at(&[IoSlice::new(&data)], DevOffset(UNIT as u64), false).unwrap_err();
    assert_eq!(content(&finer), [7; 11]);
}

/// Several threads write different sectors of the same units: by calls of the device, by synchronous requests and by queued requests. No
/// write is lost.
#[test]
fn neighbours_are_not_lost() {
    let finer = over(Arc::new(Ram::new(4 * UNIT as u64)));
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let finer = &finer;
            scope.spawn(move || {
                let mut queue = finer.queue(&QueueOptions::new()).unwrap();
                for round in 1..=200_u8 {
                    for sector in (thread..32).step_by(4) {
                        let data = buffer(&[round]);
                        let (bufs, at) = ([IoSlice::new(&data)], DevOffset(sector as u64 * 512));
                        match (round as usize + sector) % 3 {
                            0 => finer.write_all_at(&bufs, at, false).unwrap(),
                            1 => {
                                queue.write_now(Dev::OWN, &bufs, at, BioFlags::empty()).unwrap();
                            }
                            _ => queue.submit(bio(BioOp::Write, at.0, &[round])).unwrap(),
                        }
                        let mut now = vec![0; 512];
                        finer.read_exact_at(&mut now, at).unwrap();
                        assert_eq!(now, [round; 512], "thread {thread}, sector {sector}");
                        while queue.pop().is_some() {}
                    }
                }
            });
        }
    });
    assert_eq!(content(&finer), [200; 32]);
}

/// A call and a queued write may change the same unit at the same time. The call may then overwrite the bytes of the queued write with
/// older bytes. After the completion of the queued write, its bytes are on the device nevertheless. The call does not wait for the queue,
/// because the queue's thread may never pop completions.
#[test]
fn a_queued_write_is_not_lost_to_a_call() {
    let ram = Arc::new(Ram::new(4 * UNIT as u64));
    let finer = over(ram.clone());
    let mut queue = finer.queue(&QueueOptions::new()).unwrap();
    queue.submit(bio(BioOp::Write, 0, &[5; 16])).unwrap();
    finer.write_all_at(&[IoSlice::new(&buffer(&[6]))], DevOffset(512), false).unwrap();
    // This code simulates a call that read the unit before the queued write, and wrote the old bytes back after the queued write.
    ram.write_all_at(&[IoSlice::new(&buffer(&[0; 3]))], DevOffset(1024), false).unwrap();
    queue.wait(1).unwrap();
    assert_eq!(queue.pop().unwrap().result, Ok(2 * UNIT));
    assert_eq!(content(&finer)[..16], [5; 16]);
    // If no call writes these units at the same time, a queued write writes its data only once.
    queue.submit(bio(BioOp::Write, 0, &[8; 8])).unwrap();
    ram.write_all_at(&[IoSlice::new(&buffer(&[9]))], DevOffset(0), false).unwrap();
    queue.wait(1).unwrap();
    assert_eq!(queue.pop().unwrap().result, Ok(UNIT));
    assert_eq!(content(&finer)[..9], [9, 8, 8, 8, 8, 8, 8, 8, 5]);
    // After a queue is dropped, none of its requests is in flight.
    queue.submit(bio(BioOp::Write, 0, &[1; 8])).unwrap();
    drop(queue);
    assert!(!finer.inner.units.end(2));
}

/// A unit that cannot be read is not written, because the other bytes in the unit would be lost.
#[test]
fn an_unreadable_unit_is_not_written() {
    let ram = Arc::new(Ram::new(4 * UNIT as u64));
    ram.write_all_at(&[IoSlice::new(&buffer(&[3; 32]))], DevOffset(0), false).unwrap();
    let faults = Faults { fail_after: Some(0), ..Faults::default() };
    let finer = over(Arc::new(Sim::new(ram.clone(), faults)));
    let data = buffer(&[1]);
    let error = finer.write_all_at(&[IoSlice::new(&data)], DevOffset(512), false).unwrap_err();
    assert_eq!(error.errno(), Errno::EIO);
    let mut queue = finer.queue(&QueueOptions::new()).unwrap();
    queue.submit(bio(BioOp::Write, 512, &[1])).unwrap();
    assert_eq!(queue.pop().unwrap().result, Err(Errno::EIO));
    assert_eq!(content(&*ram), [3; 32]);
}

/// Zeroing or discarding a part of a unit does not change the other bytes of the unit.
#[test]
fn zeros_and_discards_keep_their_neighbours() {
    let ram = Arc::new(Ram::new(4 * UNIT as u64));
    let finer = over(ram.clone());
    for (start, len) in [(0, 32), (1, 6), (1, 30), (3, 13), (8, 8), (5, 20)] {
        let all = buffer(&[9; 32]);
        ram.write_all_at(&[IoSlice::new(&all)], DevOffset(0), false).unwrap();
        let (at, bytes) = (DevOffset(start as u64 * 512), len as u64 * 512);
        let mut expected = vec![9; 32];
        match finer.write_zeroes(at, bytes) {
            Ok(()) => expected[start..start + len].fill(0),
            Err(error) => assert_eq!(error.errno(), Errno::EOPNOTSUPP),
        }
        assert_eq!(content(&*ram), expected, "zeros {start} {len}");
        finer.discard(at, bytes).unwrap();
        let found = content(&*ram);
        assert_eq!(found[..start], expected[..start], "discard {start} {len}");
        assert_eq!(found[start + len..], expected[start + len..], "discard {start} {len}");
    }
}

/// After a power cut at any sector of any write, each sector contains its data as of the last flush, or newer data that were written to
/// this sector. So a write of a part of a unit neither tears nor loses the other bytes of the unit.
#[test]
fn a_cut_never_tears_a_neighbour() {
    for seed in 0..8_u64 {
        let base = Ram::new(3 * UNIT as u64);
        let record = Arc::new(Record::new(Arc::new(base.snapshot())));
        let finer = over(record.clone());
        let mut queues: Vec<_> =
            (0..2).map(|_| finer.queue(&QueueOptions::new().depth(8)).unwrap()).collect();
        // The contents of each sector, in order. Each content is stored with the length that the log had when the content's write was
        // issued.
        let mut written: Vec<Vec<(usize, u8)>> = vec![vec![(0, 0)]; 24];
        let mut state = seed * 77 + 1;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for fill in 1..=60_u8 {
            let start = random(24) as usize;
            let len = 1 + random((24 - start) as u64) as usize;
            // The write begins at a random sector.
            let at = DevOffset(start as u64 * 512);
            let issued = record.log().len();
            let queue = &mut queues[random(2) as usize];
            match random(3) {
                0 => {
                    let data = buffer(&vec![fill; len]);
                    finer.write_all_at(&[IoSlice::new(&data)], at, random(4) == 0).unwrap();
                }
                _ => {
                    queue.submit(bio(BioOp::Write, at.0, &vec![fill; len])).unwrap();
                    queue.wait(1).unwrap();
                    queue.pop().unwrap().result.unwrap();
                }
            }
            written[start..start + len].iter_mut().for_each(|sector| sector.push((issued, fill)));
            if random(5) == 0 {
                finer.flush().unwrap();
                record.mark(u64::from(fill));
            }
        }
        drop(queues);
        let log = record.log();
        assert!(log.entries().iter().any(|entry| matches!(entry, Entry::Mark(_))));
        let mut crashes = Crashes::new(&base, log.clone());
        for name in crashes.names(seed, 12) {
            let durable = log.marks(name.cut).last().unwrap_or(0) as u8;
            let image = crashes.state(name);
            let found = content(&image);
            for (sector, (found, written)) in found.iter().zip(&written).enumerate() {
                // The newest content that the last flush covers, and all contents that were written after it.
                let known = written.iter().rposition(|(_, fill)| *fill <= durable).unwrap();
                let allowed = written[known..].iter().filter(|(issued, _)| *issued < name.cut);
                let first = written[known].1;
                let allowed: Vec<u8> = allowed.map(|(_, fill)| *fill).chain([first]).collect();
                assert!(allowed.contains(found), "{name}: sector {sector}: {found} of {allowed:?}");
            }
        }
    }
}

/// The device below reads and writes whole units. The volume's [`Fence`], which checks one block on the device, still receives exactly this
/// block.
#[test]
fn a_fence_gets_its_own_block() {
    #[derive(Debug)]
    struct Own;

    impl Fence for Own {
        fn place(&self) -> (DevOffset, usize) {
            (DevOffset(9 * 1024), 1024)
        }

        fn confirm(&self, block: &mut [u8]) -> Result<()> {
            assert_eq!((block.len(), block[0]), (1024, 1));
            block.fill(2);
            Ok(())
        }
    }

    let wider = Wider { fence: Arc::new(Own), unit: UNIT as u64 };
    assert_eq!(wider.place(), (DevOffset(2 * UNIT as u64), UNIT));
    let mut block = vec![0; UNIT];
    block[1024..2048].fill(1);
    wider.confirm(&mut block).unwrap();
    let fills: Vec<u8> = block.chunks(1024).map(|part| part[0]).collect();
    assert_eq!(fills, [0, 2, 0, 0]);
}
