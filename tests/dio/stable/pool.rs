//! The memory for bounce buffers has a limit, and is allocated only once.

use std::sync::atomic::{AtomicU64, Ordering};

use ironmap::bio::{Buffer, Memory};
use ironmap::dio::{DioFlags, StablePages};
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{Credentials, NewFile};
use ironmap::units::FilePos;
use ironmap::{Engine, ErrorKind, File, FileOptions, Queue, QueueOptions, VolumeOptions};

use crate::common::image::Image;
use crate::stable::scribble::{Bench, KINDS, Kind, Op, memory, run};

const NONE: DioFlags = DioFlags::empty();
const MIB: usize = 1 << 20;

fn with_limit(bench: &Bench, limit: usize) -> (File, Queue) {
    let mut queue = bench.queue();
    queue.set_bounce_limit(limit);
    (bench.open(Some(StablePages::Bounce)), queue)
}

fn is_whole(results: &[ironmap::Result<usize>], len: usize) -> bool {
    results.iter().all(|result| matches!(result, Ok(count) if *count == len))
}

/// A large request succeeds even if the pool is small, and reads return the written data.
#[test]
fn a_large_request_needs_no_large_pool() {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    for engine in [None, Some(Engine::Psync), Some(Engine::IoUring), Some(Engine::Dax)] {
        let bench = Bench::new(engine);
        for limit in [64 << 10, 100 << 10, 256 << 10, 8 << 20] {
            for kind in KINDS {
                let what = format!("{engine:?}, {limit} bytes, {kind:?}");
                let (file, mut queue) = with_limit(&bench, limit);
                let mut requests: Vec<_> = (0..3).map(|_| memory(kind, MIB)).collect();
                for buffer in requests.iter_mut().flatten() {
                    for word in buffer.chunks_exact_mut(8) {
                        let value = NEXT.fetch_add(1, Ordering::Relaxed);
                        word.copy_from_slice(&value.to_le_bytes());
                    }
                }
                let bytes: Vec<u8> =
                    requests.iter().flatten().flat_map(|buf| buf.to_vec()).collect();
                let (results, mut memories) =
                    run((Op::Write, kind), &mut queue, &file, requests, NONE);
                assert!(is_whole(&results, MIB), "{what}: {results:?}");
                memories.iter_mut().flatten().for_each(|buf| buf.fill(0));
                for index in 0..memories.len() {
                    let mut read = Buffer::aligned(MIB).unwrap();
                    let at = FilePos((index * MIB) as u64);
                    assert_eq!(file.read_at(&mut queue, &mut read, at).unwrap(), MIB);
                    assert!(read[..] == bytes[index * MIB..][..MIB], "{what}: the written data");
                }
                let first = vec![memory(kind, MIB)];
                let (results, memories) = run((Op::Read, kind), &mut queue, &file, first, NONE);
                assert!(is_whole(&results, MIB), "{what}: {results:?}");
                let read: Vec<u8> =
                    memories.iter().flatten().flat_map(|buf| buf.to_vec()).collect();
                assert!(read == bytes[..MIB], "{what}: the data that were read");
                let taken = queue.bounce_bytes();
                assert!(taken > 0 && taken <= limit, "{what}: {taken} bytes of bounce buffers");
            }
        }
    }
}

/// If the pool of bounce buffers has enough pieces for the requests in flight, it allocates no memory for further requests, whatever their
/// size.
#[test]
fn a_warm_pool_allocates_nothing() {
    let mut spare: Vec<Memory> = Vec::with_capacity(8);
    for engine in [Engine::Psync, Engine::IoUring, Engine::Dax] {
        // The test uses a device that does not check tags, because the checking device itself allocates memory.
        let image = Image::mke2fs("32M", &["-t", "ext4"]);
        let options = VolumeOptions::new().engine(engine).write(true);
        let volume = options.open(image.location()).unwrap();
        let fs = volume.fs();
        let who = Credentials::default();
        let number =
            fs.writable().unwrap().create(ROOT, b"file", NewFile::Regular, 0o644, &who).unwrap();
        fs.writable().unwrap().write(number, FilePos(0), &vec![1; 4 * MIB]).unwrap();
        let options = FileOptions::new().direct(true).stable_pages(Some(StablePages::Bounce));
        let file = volume.open_inode(fs.inode(number).unwrap(), options.write(true)).unwrap();
        for (limit, size) in [(64 << 10, MIB), (2 * MIB, MIB), (2 * MIB, 64 << 10), (2 * MIB, 512)]
        {
            let mut queue = volume.queue(&QueueOptions::new().depth(32)).unwrap();
            queue.set_bounce_limit(limit);
            let mut buffer = Buffer::aligned(size).unwrap();
            spare.clear();
            spare.extend((0..4).map(|_| Memory::Flat(Buffer::aligned(size).unwrap())));
            let mut work = |queue: &mut Queue| {
                for _ in 0..4 {
                    assert_eq!(file.write_at(queue, &buffer, FilePos(0)).unwrap(), size);
                    assert_eq!(file.read_at(queue, &mut buffer, FilePos(0)).unwrap(), size);
                    for op in [Op::Write, Op::Read] {
                        while let Some(memory) = spare.pop() {
                            let submitted = match op {
                                Op::Write => file.submit_write(queue, memory, FilePos(0), NONE, 0),
                                Op::Read => file.submit_read(queue, memory, FilePos(0), NONE, 0),
                            };
                            assert!(submitted.is_ok());
                        }
                        queue.wait(4).unwrap();
                        while let Some(done) = queue.pop() {
                            assert_eq!(done.result.unwrap(), size);
                            spare.push(done.memory);
                        }
                    }
                }
            };
            work(&mut queue);
            let count = allocation_counter::measure(|| work(&mut queue)).count_total;
            assert_eq!(count, 0, "{engine}: allocations with {size} bytes and a pool of {limit}");
        }
    }
}

/// If the pool of bounce buffers has too few free pieces, a NOWAIT request fails with EAGAIN and has no effect. A request without NOWAIT
/// waits for completions of its queue.
#[test]
fn a_pool_that_is_in_use_is_waited_for_or_is_eagain() {
    let bench = Bench::new(None);
    let (file, mut queue) = with_limit(&bench, 64 << 10);
    let submit = |queue: &mut Queue, len, flags| {
        let memory = memory(Kind::Owned, len).remove(0);
        let submitted = file.submit_write(queue, memory, FilePos(0), flags, 0);
        submitted.map_err(|rejected| (rejected.error.kind(), rejected.memory.len()))
    };
    submit(&mut queue, 4096, NONE).unwrap();
    run((Op::Write, Kind::Lent), &mut queue, &bench.open(None), vec![], NONE);
    assert_eq!(queue.outstanding(), 0);

    let would_block = |len| Err((ErrorKind::WouldBlock, len));
    assert_eq!(submit(&mut queue, MIB, DioFlags::NOWAIT), would_block(MIB));
    submit(&mut queue, 64 << 10, DioFlags::NOWAIT).unwrap();
    assert_eq!(submit(&mut queue, 512, DioFlags::NOWAIT), would_block(512));
    let mut buffer = Buffer::aligned(4096).unwrap();
    let read = file.read_at_with(&mut queue, &mut buffer, FilePos(0), DioFlags::NOWAIT);
    assert_eq!(read.unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(queue.outstanding(), 1);
    submit(&mut queue, MIB, NONE).unwrap();
    assert_eq!(queue.outstanding(), 2);
    queue.wait(2).unwrap();
    let done: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|it| it.result.unwrap()).collect();
    assert_eq!(done.iter().sum::<usize>(), MIB + (64 << 10));
}
