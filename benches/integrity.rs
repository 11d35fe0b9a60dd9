//! Measures the cost of an integrity device. The device below it does nothing. The results are nanoseconds per request, compared with the
//! time to compute only the guard tags.
//!
//! `cargo bench --bench integrity`

use std::hint::black_box;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use ironmap::QueueOptions;
use ironmap::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Memory};
use ironmap::device::{BoundedQueue, Device, DeviceQueue, Null, Ram};
use ironmap::integrity::{FormatOptions, Integrity, TupleKind, format};
use ironmap::protection::guard;
use ironmap::units::{DevOffset, FilePos, InodeNo};

const SIZE: u64 = 256 << 20;
const ROUNDS: usize = 9;

fn main() {
    println!("ns a request (best of {ROUNDS})");
    for (kind, interval) in
        [(TupleKind::T10, 4096), (TupleKind::T10, 512), (TupleKind::Nvme64, 4096)]
    {
        let data = Arc::new(Null::over(Arc::new(Ram::new(SIZE)))) as Arc<dyn Device>;
        let tags = Arc::new(Ram::new(8 << 20)) as Arc<dyn Device>;
        let options = FormatOptions::new().kind(kind).interval(interval);
        format(&data, Some(&tags), &options, &mut |_, _| {}).expect("format");
        let device = Integrity::open(data.clone(), Some(tags)).expect("open").device;
        for len in [4096, 65536, 1 << 20] {
            let mut buffer = Buffer::aligned(len).expect("memory");
            let alone = measure(len, |_| {
                for sector in buffer.chunks_exact(interval as usize) {
                    match kind {
                        TupleKind::T10 => drop(black_box(guard::t10_dif(black_box(sector), 0))),
                        TupleKind::Nvme64 => drop(black_box(guard::nvme64(black_box(sector), 0))),
                    }
                }
            });
            println!("{kind:?}/{interval} {len:>7} bytes: guard alone {alone:.0}");
            for (name, device) in
                [("below", &data), ("integrity", &(Arc::new(device.clone()) as _))]
            {
                let mut queue = device.queue(&QueueOptions::new().depth(32)).expect("a queue");
                let flags = BioFlags::empty();
                let read = measure(len, |at| {
                    queue.read_now(Dev::OWN, &mut buffer, at, flags).map(drop).expect("a read");
                });
                let write = measure(len, |at| {
                    let bufs = [IoSlice::new(&buffer)];
                    queue.write_now(Dev::OWN, &bufs, at, flags).map(drop).expect("a write");
                });
                let mut own = Some(Buffer::aligned(len).expect("memory"));
                let mut owned = |op| {
                    measure(len, |at| {
                        let buffer = own.take().expect("it came back");
                        own = Some(one(&mut queue, op, at, buffer));
                    })
                };
                let (owned_read, owned_write) = (owned(BioOp::Read), owned(BioOp::Write));
                println!(
                    "  {name:<10} read {read:.0}, write {write:.0}, owned read {owned_read:.0}, owned write {owned_write:.0}"
                );
            }
        }
    }
}

fn one(queue: &mut BoundedQueue, op: BioOp, at: DevOffset, buffer: Buffer) -> Buffer {
    let end = BioEnd::Whole { token: 0, inode: InodeNo(0), pos: FilePos(0) };
    let memory = Memory::Flat(buffer);
    let bio = Bio { op, flags: BioFlags::empty(), dev: Dev::OWN, at, memory, end };
    queue.submit(bio).expect("room");
    queue.wait(1).expect("it completes");
    let done = queue.pop().expect("it has completed");
    done.result.expect("no error");
    match done.bio.memory {
        Memory::Flat(buffer) => buffer,
        Memory::Vectored(_) => unreachable!("one buffer went down"),
    }
}

/// Measures nanoseconds per call. Each call gets an offset. The offsets cover the device in random order.
fn measure(len: usize, mut work: impl FnMut(DevOffset)) -> f64 {
    let calls = (64 << 20) / len.max(16 << 10);
    let places = SIZE / len as u64;
    let round = |work: &mut dyn FnMut(DevOffset)| {
        let start = Instant::now();
        for call in 0..calls as u64 {
            work(DevOffset(call * 7919 % places * len as u64));
        }
        start.elapsed().as_nanos() as f64 / calls as f64
    };
    (0..ROUNDS).map(|_| round(&mut work)).fold(f64::INFINITY, f64::min)
}
