//! Many concurrent writes of several threads extend a file. Each append gets a separate range. The size includes only completed writes.
//! Synced data are durable.

use ironmap::dio::DioFlags;
use ironmap::units::{FilePos, InodeNo};
use ironmap::{File, Queue};

use crate::common::rng::Rng;
use crate::dio_writes::bench::{BLOCK, Bench, NONE, content, memory};
use crate::dio_writes::model::seed;

const SEED: u64 = 0xa99e;
const EXT4: &str = "-t ext4 -b 4096";
const THREADS: u64 = 5;
/// The number of requests that each thread has in flight at a time.
const IN_FLIGHT: u64 = 16;
const REQUESTS: u64 = 160;

/// An acknowledged write.
#[derive(Clone, Copy, Debug)]
struct Piece {
    at: u64,
    len: u64,
    fill: u8,
}

fn take(queue: &mut Queue) {
    while queue.outstanding() > 0 {
        queue.wait(1).unwrap();
        while let Some(done) = queue.pop() {
            assert_eq!(done.result.unwrap(), done.memory.len());
        }
    }
}

/// Runs a thread for each queue. Returns the writes of all threads, sorted.
fn by_threads(
    bench: &Bench,
    number: InodeNo,
    work: impl Fn(u64, &File, &mut Queue) -> Vec<Piece> + Sync,
) -> Vec<Piece> {
    let run = |thread| {
        let (file, mut queue) = (bench.open(number, false), bench.queue());
        let pieces = work(thread, &file, &mut queue);
        take(&mut queue);
        pieces
    };
    let run = &run;
    let mut pieces: Vec<Piece> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || run(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    pieces.sort_by_key(|piece| piece.at);
    pieces
}

/// Checks the content and size of a file in three states: after a sync, after a power cut, and after a close. After the close, debugfs
/// reads the file.
fn check(bench: Bench, number: InodeNo, expected: &[u8], what: &str) {
    let (file, mut queue) = (bench.open(number, false), bench.queue());
    assert_eq!(file.size(), expected.len() as u64, "{what}: size");
    file.sync(&mut queue).unwrap();
    assert!(content(&file, &mut queue) == expected, "{what}: content");
    let crashed = bench.after_crash();
    let (other, mut other_queue) = (crashed.open(number, false), crashed.queue());
    assert!(content(&other, &mut other_queue) == expected, "{what}: after a power cut");
    drop((file, queue));
    assert!(bench.close().dump("/file") == expected, "{what}: on the device");
}

/// Appends of several threads get adjacent ranges. The lengths are whole sectors in one case, and arbitrary in the other case. An append of
/// arbitrary length may have to wait for earlier appends.
#[test]
fn appends_of_many_threads_lie_one_after_the_other() {
    for unit in [512, 4096, 1] {
        let what = format!("units of {unit}, seed {:#x}", seed(SEED));
        let bench = Bench::new(EXT4);
        bench.soil();
        let number = bench.written("file", 1).inode();
        let pieces = by_threads(&bench, number, |thread, file, queue| {
            let mut rng = Rng::new(seed(SEED) ^ thread);
            let mut pieces = Vec::new();
            for request in 0..REQUESTS {
                let len = (1 + rng.below(8)) * unit + if unit == 1 { 300 } else { 0 };
                let fill = (1 + (thread * REQUESTS + request) % 255) as u8;
                let flags = if rng.below(40) == 0 { DioFlags::DSYNC } else { NONE };
                let at = match rng.below(4) {
                    0 => file.append(queue, &memory(len, fill), flags).unwrap(),
                    _ => file.submit_append(queue, memory(len, fill), flags, request).unwrap(),
                };
                pieces.push(Piece { at: at.0, len, fill });
                if queue.outstanding() as u64 >= IN_FLIGHT {
                    take(queue);
                }
            }
            pieces
        });
        assert_eq!(pieces.len() as u64, THREADS * REQUESTS);
        let mut expected = vec![0x11; BLOCK as usize];
        for piece in &pieces {
            assert_eq!(
                piece.at,
                expected.len() as u64,
                "{what}: {piece:?} overlaps, or leaves a gap"
            );
            expected.resize(expected.len() + piece.len as usize, piece.fill);
        }
        check(bench, number, &expected, &what);
    }
}

/// The threads write pieces past the end of the file. Later pieces are written before earlier ones. Until all pieces are written, the gaps
/// read as zeros, never as the old content of the blocks.
#[test]
fn extending_writes_in_flight_of_many_threads_leave_all_their_data() {
    for len in [1536, BLOCK, 3 * BLOCK] {
        let what = format!("pieces of {len}, seed {:#x}", seed(SEED));
        let bench = Bench::new(EXT4);
        bench.soil();
        let number = bench.create("file");
        let pieces = by_threads(&bench, number, |thread, file, queue| {
            let mut rng = Rng::new(seed(SEED) ^ thread);
            let mut pieces = Vec::new();
            for round in 0..20 {
                let mut order: Vec<u64> = (0..IN_FLIGHT).collect();
                for at in (1..order.len()).rev() {
                    order.swap(at, rng.below(at as u64 + 1) as usize);
                }
                // Ranges without a write remain holes.
                order.truncate(12);
                for piece in order {
                    let at = ((round * IN_FLIGHT + piece) * THREADS + thread) * len;
                    let fill = (1 + at / len % 200) as u8;
                    let buffer = memory(len, fill);
                    file.submit_write(queue, buffer, FilePos(at), NONE, piece).unwrap();
                    pieces.push(Piece { at, len, fill });
                }
                let bytes = content(file, queue);
                assert!(!bytes.contains(&0xDB), "{what}: old content of blocks shows");
                take(queue);
            }
            pieces
        });
        let last = pieces.last().unwrap();
        let mut expected = vec![0; (last.at + last.len) as usize];
        for Piece { at, len, fill } in pieces {
            expected[at as usize..(at + len) as usize].fill(fill);
        }
        check(bench, number, &expected, &what);
    }
}

/// An extending write changes the size when it completes, not when it is submitted. A refused write leaves no gap.
#[test]
fn the_size_follows_when_a_write_is_complete() {
    let bench = Bench::new(EXT4);
    let (file, mut queue) = (bench.written("file", 1), bench.queue());
    let first = file.submit_append(&mut queue, memory(BLOCK, 0x22), NONE, 1).unwrap();
    let second = file.submit_append(&mut queue, memory(512, 0x33), NONE, 2).unwrap();
    assert_eq!((first.0, second.0, file.size()), (BLOCK, 2 * BLOCK, BLOCK));
    take(&mut queue);
    assert_eq!(file.size(), 2 * BLOCK + 512);
    let rejected = file.submit_append(&mut queue, memory(512, 0x44), DioFlags::NOWAIT, 3);
    assert!(rejected.is_err());
    let third = file.submit_append(&mut queue, memory(512, 0x44), NONE, 4).unwrap();
    assert_eq!(third.0, 2 * BLOCK + 512);
    take(&mut queue);
    let number = file.inode();
    drop((file, queue));
    let mut expected = [[0x11; BLOCK as usize], [0x22; BLOCK as usize]].concat();
    expected.extend([0x33; 512].iter().chain(&[0x44; 512]));
    check(bench, number, &expected, "appends");
}
