//! Independent writers write the same sectors. Afterwards every sector contains the data of one of the writes, and matches its tag.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ironmap::bio::{BioFlags, BioOp, Buffer, Dev};
use ironmap::device::{Device, DeviceQueue, Faults, Layer, Layered, Request, Sim, Verdict};
use ironmap::integrity::{FormatOptions, Integrity, Mode};
use ironmap::units::DevOffset;

use crate::rng::Rng;
use crate::stand::{Stand, as_device, bio, queue, read};

const SIZE: u64 = 1 << 20;
/// The number of sectors. All writers write the same sectors.
const ARENA: u64 = 16;

fn options(mode: Mode) -> FormatOptions {
    FormatOptions::new().mode(mode).interval(512).region(4096).journal(128 << 10)
}

/// Fills sectors with bytes that contain the number of the writer and the number of the write.
fn fill(buffer: &mut [u8], writer: u64, number: u64) {
    for chunk in buffer.chunks_exact_mut(8) {
        chunk.copy_from_slice(&(writer << 32 | number).to_le_bytes());
    }
}

fn assert_one_write(sector: &[u8], writers: u64) {
    let first = &sector[..8];
    assert!(sector.chunks_exact(8).all(|chunk| chunk == first), "a sector is of two writes");
    let writer = u64::from_le_bytes(first.try_into().unwrap()) >> 32;
    assert!(writer < writers, "nobody wrote that");
}

/// Delays some writes. The data of two writes can then reach their device in one order, and their tags in the other order.
#[derive(Debug)]
struct Jitter(AtomicU64);

impl Layer for Jitter {
    fn begin(&self, request: &Request<'_>) -> Verdict {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        for _ in 0..Rng::new(number).below(4) {
            std::thread::yield_now();
        }
        Verdict::pass(request)
    }
}

#[test]
fn overlapping_writers_leave_sectors_of_one_write_that_verify() {
    const WRITERS: u64 = 4;
    for mode in [Mode::Bitmap, Mode::Journal] {
        let stand = Stand::new(SIZE, false, &options(mode), 11);
        let data = Arc::new(Layered::with_layer(as_device(&stand.data), Jitter(AtomicU64::new(0))));
        let device = Integrity::open(data, stand.tags.as_ref().map(as_device)).unwrap().device;
        // The first write fills every sector with known data.
        let mut first = vec![0; ARENA as usize * 512];
        fill(&mut first, 0, 0);
        crate::stand::write(&device, 0, &first, false).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut queue = queue(&device);
                let mut buffer = Buffer::aligned(512).unwrap();
                let mut rng = Rng::new(99);
                while !stop.load(Ordering::Relaxed) {
                    let at = DevOffset(rng.below(ARENA) * 512);
                    queue
                        .read_now(Dev::OWN, &mut buffer, at, BioFlags::empty())
                        .expect("it verifies");
                    assert_one_write(&buffer, WRITERS);
                }
            });
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let device = &device;
                    scope.spawn(move || write_much(device, writer))
                })
                .collect();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            stop.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        device.close().unwrap();
        assert_eq!(device.counts().mismatches, 0);
        drop(device);
        let device = stand.open().device;
        for sector in 0..ARENA {
            assert_one_write(&read(&device, sector * 512, 512).unwrap(), WRITERS);
        }
        device.scrub(&mut |found| panic!("{found:?}"), &mut |_, _| {}).unwrap();
    }
}

fn write_much(device: &Integrity, writer: u64) {
    let (mut rng, mut queue) = (Rng::new(writer), queue(device));
    for number in 0..600 {
        let at = rng.below(ARENA);
        let len = (1 + rng.below(ARENA - at)) as usize * 512;
        let mut buffer = Buffer::aligned(len).unwrap();
        fill(&mut buffer, writer, number);
        if rng.below(3) == 0 {
            let bufs = [std::io::IoSlice::new(&buffer)];
            let flags = BioFlags::empty();
            assert_eq!(queue.write_now(Dev::OWN, &bufs, DevOffset(at * 512), flags), Ok(len));
        } else {
            queue.submit(bio(BioOp::Write, at * 512, buffer, number)).unwrap();
            if rng.below(2) == 0 {
                queue.commit().unwrap();
            }
        }
        if queue.room() < 8 || rng.below(8) == 0 {
            queue.wait(usize::MAX).unwrap();
            while let Some(done) = queue.pop() {
                assert!(done.result.is_ok());
            }
        }
        if rng.below(64) == 0 {
            device.flush().unwrap();
        }
    }
    queue.wait(usize::MAX).unwrap();
    while let Some(done) = queue.pop() {
        assert!(done.result.is_ok());
    }
}

/// A thread has two queues and does not collect the completions of the first queue. Requests of the second queue still make progress, and
/// so do synchronous requests.
#[test]
fn no_thread_waits_for_a_queue_without_a_reader() {
    for mode in [Mode::Bitmap, Mode::Journal] {
        let stand = Stand::new(SIZE, false, &options(mode), 12);
        let faults = Faults { seed: 3, latency: 5, ..Faults::default() };
        let late = Arc::new(Sim::new(as_device(&stand.data), faults));
        let device = Integrity::open(late, stand.tags.as_ref().map(as_device)).unwrap().device;
        let (mut one, mut two) = (queue(&device), queue(&device));
        for number in 0..4 {
            for queue in [&mut one, &mut two] {
                let mut buffer = Buffer::aligned(2048).unwrap();
                fill(&mut buffer, number, 0);
                queue.submit(bio(BioOp::Write, number * 512, buffer, 0)).unwrap();
                queue.commit().unwrap();
            }
        }
        crate::stand::write(&device, 1024, &[0x77; 512], false).unwrap();
        read(&device, 0, 8192).unwrap();
        let mut lent = Buffer::aligned(512).unwrap();
        fill(&mut lent, 9, 0);
        let bufs = [std::io::IoSlice::new(&lent)];
        two.write_now(Dev::OWN, &bufs, DevOffset(512), BioFlags::empty()).unwrap();
        read(&device, 0, 8192).unwrap();
        for queue in [&mut two, &mut one] {
            queue.wait(4).unwrap();
            let mut popped = 0;
            while let Some(done) = queue.pop() {
                assert_eq!(done.result, Ok(2048));
                popped += 1;
            }
            assert_eq!((popped, queue.in_flight()), (4, 0));
            read(&device, 0, 8192).unwrap();
        }
        if mode == Mode::Bitmap {
            assert!(device.counts().contested > 0);
        }
        drop((one, two));
        device.close().unwrap();
        device.scrub(&mut |found| panic!("{found:?}"), &mut |_, _| {}).unwrap();
    }
}

/// A queue is dropped while its requests are in flight. These requests complete, and other writers can then write the same sectors.
#[test]
fn a_queue_that_is_dropped_takes_nothing_along() {
    let stand = Stand::new(SIZE, false, &options(Mode::Bitmap), 13);
    let device = stand.open().device;
    let mut dropped = queue(&device);
    dropped.submit(bio(BioOp::Write, 0, Buffer::aligned(4096).unwrap(), 0)).unwrap();
    drop(dropped);
    device.close().unwrap();
    assert_eq!(read(&device, 0, 4096).unwrap(), [0; 4096]);
}
