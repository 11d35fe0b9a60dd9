//! Tests each method of [`StablePages`]. The tests check which requests a method copies, and which requests use the short code path for
//! simple requests. With every method, a fault of the device is still an error.

use std::sync::atomic::Ordering;

use ironmap::bio::Buffer;
use ironmap::dio::{DioFlags, NotSimple, StablePages};
use ironmap::units::DevOffset;
use ironmap::{Errno, ErrorKind};

use crate::stable::scribble::{Bench, KINDS, Kind, Op, memory, run};

const NONE: DioFlags = DioFlags::empty();
const SIZE: usize = 64 << 10;

const REQUESTS: [(Op, Kind); 5] = [
    (Op::Read, Kind::Lent),
    (Op::Read, Kind::Owned),
    (Op::Write, Kind::Lent),
    (Op::Write, Kind::Borrowed),
    (Op::Write, Kind::Owned),
];

/// For each method of [`StablePages`]: whether it copies the data of each request of [`REQUESTS`], in the same order.
const COPIED: [(StablePages, [bool; 5]); 4] = [
    (StablePages::ZeroCopy, [false, false, false, false, false]),
    (StablePages::Bounce, [true, true, true, true, true]),
    (StablePages::Lazy, [false, false, true, true, true]),
    (StablePages::Owned, [false, false, true, false, false]),
];

#[test]
fn each_way_copies_what_it_says_and_nothing_else() {
    let bench = Bench::new(None);
    for (way, copied) in COPIED {
        for size in [512, 4096, SIZE, 1 << 20] {
            for ((op, kind), copies) in REQUESTS.into_iter().zip(copied) {
                let (file, mut queue) = (bench.open(Some(way)), bench.queue());
                let requests = vec![memory(kind, size)];
                let (results, _) = run((op, kind), &mut queue, &file, requests, NONE);
                assert!(matches!(results[..], [Ok(count)] if count == size), "{results:?}");
                let what = format!("{way:?}: {op:?} {kind:?} of {size}");
                assert_eq!(queue.stats().bounced, u64::from(copies), "{what}");
                // A queue allocates bounce buffers only for requests that are copied.
                assert_eq!(queue.bounce_bytes() > 0, copies, "{what}");
            }
        }
    }
}

/// A request whose data are not copied uses the simple path (the short code path for simple requests). A request whose data are copied
/// cannot use this path, and the queue counts the copy as the reason.
#[test]
fn requests_without_a_copy_take_the_simple_path() {
    let bench = Bench::new(None);
    for (way, copied) in COPIED {
        let (file, mut queue) = (bench.open(Some(way)), bench.queue());
        let count = |op, kind, queue: &mut _| {
            run((op, kind), queue, &file, vec![memory(kind, 4096)], NONE);
        };
        // The first requests of a file load its metadata.
        for op in [Op::Read, Op::Write, Op::Read] {
            count(op, Kind::Lent, &mut queue);
        }
        let before = *queue.stats();
        for (op, kind) in REQUESTS {
            count(op, kind, &mut queue);
        }
        let stats = queue.stats();
        let simple = stats.simple_hits - before.simple_hits + stats.overwrites - before.overwrites;
        let stable = stats.misses(NotSimple::Stable) - before.misses(NotSimple::Stable);
        let copies = copied.iter().filter(|copied| **copied).count() as u64;
        assert_eq!((simple, stable), (5 - copies, copies), "{way:?}: {stats:?}");
    }
}

#[test]
fn the_device_decides_where_the_handle_does_not() {
    let bench = Bench::new(None);
    let (file, mut queue) = (bench.open(None), bench.queue());
    let bounced = |kind, queue: &mut ironmap::Queue| {
        let before = queue.stats().bounced;
        run((Op::Write, kind), queue, &file, vec![memory(kind, 4096)], NONE);
        queue.stats().bounced - before
    };
    let kinds = [Kind::Lent, Kind::Borrowed, Kind::Owned];
    assert_eq!(kinds.map(|kind| bounced(kind, &mut queue)), [1, 0, 0]);
}

/// A corrupted sector is an error with every method. The sector is read at most twice and reported once. Other reads succeed.
#[test]
fn wrong_data_on_the_device_are_an_error_by_every_way() {
    let bench = Bench::new(None);
    let lies = bench.open(None).map(ironmap::units::FilePos(0), 1).unwrap().addr;
    let at = DevOffset(lies.0 + 8192 + 512);
    let flip = || {
        let mut sector = Buffer::aligned(512).unwrap();
        bench.below.read_exact_at(&mut sector, at).unwrap();
        sector[77] ^= 0x10;
        bench.below.write_all_at(&[std::io::IoSlice::new(&sector)], at, false).unwrap();
    };
    flip();
    for (way, _) in COPIED {
        for kind in KINDS {
            for (size, fails) in [(4096, false), (16 << 10, true), (1 << 20, true)] {
                for simple in [true, false] {
                    let (file, mut queue) = (bench.open(Some(way)), bench.queue());
                    queue.set_simple(simple);
                    let _ = bench.volume.events().take();
                    let before = bench.checks.mismatches.load(Ordering::Relaxed);
                    let requests = vec![memory(kind, size)];
                    let (results, _) = run((Op::Read, kind), &mut queue, &file, requests, NONE);
                    let what = format!("{way:?} {kind:?} of {size}, simple {simple}: {results:?}");
                    let kinds: Vec<_> = results
                        .iter()
                        .map(|it| it.as_ref().err().map(|error| error.kind()))
                        .collect();
                    let expected = fails.then_some(ErrorKind::Io(Errno::EILSEQ));
                    assert_eq!(kinds, [expected], "{what}");
                    let tries = bench.checks.mismatches.load(Ordering::Relaxed) - before;
                    let rereads = u64::from(way != StablePages::ZeroCopy);
                    assert_eq!(tries, if fails { 1 + rereads } else { 0 }, "{what}: tries");
                    assert_eq!(bench.volume.events().take().0.len(), usize::from(fails), "{what}");
                }
            }
        }
    }
    flip();
    assert_eq!(bench.checks.bad_tags(&*bench.below), 0);
}
