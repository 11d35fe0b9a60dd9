//! Lost data are never reported as durable. The tests cover every kind of device below a volume. On each kind, every flush fails once,
//! while threads write, sync, close and drop their files. After a power cut, all data that were reported as durable must exist.
//!
//! The tests try every single failure, and pairs of failures that a seed chooses. The seed also determines the operations. The order of the
//! threads is not fixed. `IRONMAP_DURABILITY=N` tests N more pairs.

#[path = "../common/mod.rs"]
mod common;
mod disk;
mod server;
mod stand;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use ironmap::fs::{Credentials, NewFile};
use ironmap::integrity::Mode;
use ironmap::prelude::*;

use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::disk::Fault;
use crate::stand::{BULK, Kind, Layout, Stand, filled};

const CELL: usize = 4096;
/// The distance between two cells, in bytes. A cell is a range of a file that one thread overwrites. An integrity device has a dirty bit
/// for each region of the device, and each cell is in a different region.
const APART: u64 = 64 << 10;
const CELLS_OF_EACH: u64 = 4;
const MIB: usize = 1 << 20;

/// A range of a file, and the contents that the range may have after a power cut.
struct Place {
    file: &'static str,
    at: u64,
    len: usize,
    /// The bytes that writes stored in the range: the byte of the newest durable write, and then the byte of each later write. The flag
    /// says whether the write succeeded.
    may_hold: Vec<(u8, bool)>,
}

impl Place {
    fn new(file: &'static str, at: u64, len: usize) -> Self {
        Self { file, at, len, may_hold: vec![(0, true)] }
    }

    /// Records that a successful flush made all writes durable.
    fn is_durable(&mut self) {
        let last = self.may_hold.iter().rposition(|(_, written)| *written).unwrap_or(0);
        self.may_hold.drain(..last);
    }
}

/// The results that a thread received.
#[derive(Default)]
struct Told {
    places: Vec<Place>,
    /// The names of the files that the thread created. The first `durable` of these names are durable.
    names: Vec<Vec<u8>>,
    durable: usize,
}

impl Told {
    fn synced(&mut self, names: bool) {
        self.places.iter_mut().for_each(Place::is_durable);
        if names {
            self.durable = self.names.len();
        }
    }
}

/// Runs random operations in one thread, on the cells of this thread.
fn cells(volume: &Volume, thread: u64, steps: u8, seed: u64) -> Told {
    let mut rng = Rng::new(seed << 8 | thread);
    let mut told = Told::default();
    let place = |cell| Place::new("/cells", (thread * CELLS_OF_EACH + cell) * APART, CELL);
    told.places.extend((0..CELLS_OF_EACH).map(place));
    let file = volume.open_with("/cells", FileOptions::new().write(true)).unwrap();
    let mut queue = volume.queue(&QueueOptions::new()).unwrap();
    for step in 1..=steps {
        // Most cells are overwritten several times. So the region of a cell is often marked dirty already before a write.
        let cells = if thread == 0 { 1 } else { CELLS_OF_EACH.min(1 + u64::from(step) / 3) };
        let cell = rng.below(cells);
        let place = &mut told.places[cell as usize];
        let mut write = |flags| {
            let written = file.write_at_with(&mut queue, &[step; CELL], place.at, flags);
            place.may_hold.push((step, written.is_ok()));
            written.is_ok()
        };
        // The first thread only overwrites and syncs one cell (its range of the file), while the other threads run all operations.
        let operation = if thread == 0 { u64::from(step % 2) * 7 } else { rng.below(8) };
        match operation {
            0..=2 => {
                write(DioFlags::empty());
            }
            3 if write(DioFlags::DSYNC) => place.is_durable(),
            3 => {}
            4 => {
                let name = format!("{thread}-{step}").into_bytes();
                let fs = volume.fs();
                let (root, by) = (fs.root(), Credentials::default());
                if fs.writable().unwrap().create(root, &name, NewFile::Regular, 0o644, &by).is_ok()
                {
                    told.names.push(name);
                }
            }
            5 if volume.fs().sync().is_ok() => told.synced(true),
            5 => {}
            _ if file.sync_data(&mut queue).is_ok() => told.synced(false),
            _ => {}
        }
    }
    told
}

/// Writes more data than the NBD client keeps for a repetition of the writes. So the client must send a flush that no caller has requested.
/// If `drops` is set, the queue is dropped before the sync.
fn bulk(volume: &Volume, drops: bool, begin: &Barrier) -> Told {
    let mut told = Told::default();
    let file = volume.open_with("/bulk", FileOptions::new().write(true)).unwrap();
    let mut queue = volume.queue(&QueueOptions::new().depth(8)).unwrap();
    for number in 0..BULK >> 20 {
        let mut place = Place::new("/bulk", number << 20, MIB);
        let mut buffer = Buffer::aligned(MIB).unwrap();
        buffer.fill(1);
        place.may_hold.push((1, false));
        told.places.push(place);
        if let Err(rejected) =
            file.submit_write(&mut queue, buffer, number << 20, DioFlags::empty(), number)
        {
            drop(rejected);
        }
        if number == 17 {
            begin.wait();
        }
        while queue.outstanding() == 8 || number + 1 == BULK >> 20 && queue.outstanding() > 0 {
            queue.wait(1).unwrap();
            while let Some(done) = queue.pop() {
                told.places[done.token as usize].may_hold[1].1 = done.result.is_ok();
            }
        }
    }
    if drops {
        drop(queue);
        queue = volume.queue(&QueueOptions::new()).unwrap();
    }
    if file.sync_data(&mut queue).is_ok() {
        told.synced(false);
    }
    told
}

/// Runs the test once with the given faults. Returns whether all of these faults occurred.
fn run(kind: Kind, threads: u64, disk: usize, faults: &[Fault], seed: u64) -> bool {
    let stand = Stand::new(kind);
    let open = stand.open().unwrap();
    stand.disks[disk].arm(faults);
    let volume = &open.volume;
    let mut told: Vec<Told> = std::thread::scope(|scope| {
        let has_bulk = matches!(kind, Kind::Nbd { .. });
        // The bulk writes make the NBD client send a flush that no caller has requested. The other threads begin only after this flush,
        // because their syncs would make it unnecessary.
        let begin = Arc::new(Barrier::new(threads as usize + usize::from(has_bulk)));
        let of_cells = |thread| {
            let begin = Arc::clone(&begin);
            scope.spawn(move || {
                begin.wait();
                cells(volume, thread, if has_bulk { 5 } else { 10 }, seed)
            })
        };
        let mut running: Vec<_> = (0..threads).map(of_cells).collect();
        if has_bulk {
            running.push(scope.spawn(move || bulk(volume, seed.is_multiple_of(2), &begin)));
        }
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    if volume.close().is_ok() {
        told.iter_mut().for_each(|told| told.synced(true));
    }
    let failed = stand.disks[disk].failed();
    let after = stand.cut();
    drop(open);
    let what = format!("{kind}, {threads} threads, disk {disk}, {faults:?}, seed {seed}");
    let open = after.open().unwrap_or_else(|error| panic!("{what}: {error}"));
    for place in told.iter().flat_map(|told| &told.places) {
        let Place { file, at, len, may_hold } = place;
        let found = filled(&open.volume, file, *at, *len);
        let fits = found.is_some_and(|found| may_hold.iter().any(|(byte, _)| *byte == found));
        assert!(fits, "{what}: an Ok for lost data: {file} at {at}: {found:?}, not {may_hold:?}");
    }
    for name in told.iter().flat_map(|told| &told.names[..told.durable]) {
        let name = String::from_utf8_lossy(name);
        assert!(
            matches!(open.volume.exists(format!("/{name}")), Ok(true)),
            "{what}: an Ok for lost data: {name}"
        );
    }
    failed == faults.len()
}

/// Lets each flush fail in each way: first flush 0, then flush 1, and so on, until a run ends before the flush with the chosen number.
/// After that, lets pairs of flushes fail.
fn each_flush_fails(kind: Kind, threads: &[u64]) {
    let more = std::env::var("IRONMAP_DURABILITY").map_or(0, |more| more.parse().unwrap());
    let (runs, began) = (AtomicU64::new(0), Instant::now());
    let late = Duration::from_millis(if matches!(kind, Kind::Nbd { .. }) { 60 } else { 15 });
    let each = [true, false].map(|lost| [late, Duration::ZERO].map(|late| (lost, late)));
    let each = each.as_flattened();
    let disks = Stand::new(kind).disks.len();
    let one = |threads, disk, faults: &[Fault], seed| {
        runs.fetch_add(1, Ordering::Relaxed);
        run(kind, threads, disk, faults, seed)
    };
    for (seed, &threads) in (0..=more).flat_map(|seed| threads.iter().map(move |of| (seed, of))) {
        for disk in 0..disks {
            for &(lost, late) in each {
                (0..).find(|number| {
                    !one(threads, disk, &[Fault { number: *number, lost, late }], seed + number)
                });
            }
            let mut rng = Rng::new(seed);
            for _ in 0..2 {
                let mut fault = || {
                    let (lost, late) = each[rng.below(4) as usize];
                    Fault { number: rng.below(8), lost, late }
                };
                one(threads, disk, &[fault(), fault()], seed);
            }
        }
    }
    println!("{kind}: {} runs in {:?}", runs.into_inner(), began.elapsed());
}

#[test]
fn of_a_block_device() {
    each_flush_fails(Kind::Block, &[1, 3]);
}

#[test]
fn of_a_qcow2_image() {
    require!([Need::Root, Need::Tool("qemu-img")]);
    each_flush_fails(Kind::Qcow2, &[3]);
}

#[test]
fn of_an_export_with_one_connection() {
    each_flush_fails(Kind::Nbd { several: false }, &[0, 1]);
}

#[test]
fn of_an_export_with_several_connections() {
    each_flush_fails(Kind::Nbd { several: true }, &[0, 1]);
}

#[test]
fn of_an_integrity_device() {
    for layout in [Layout::Tail, Layout::Parts, Layout::Disks, Layout::Exports] {
        let mode = Mode::Bitmap;
        each_flush_fails(Kind::Integrity { mode, layout, cleans: false }, &[3]);
    }
}

#[test]
fn of_an_integrity_device_with_a_journal() {
    for layout in [Layout::Tail, Layout::Parts, Layout::Disks, Layout::Exports] {
        let mode = Mode::Journal;
        each_flush_fails(Kind::Integrity { mode, layout, cleans: false }, &[2]);
    }
}

/// Lost data are never reported as durable on an integrity device that clears its dirty map at each sync.
#[test]
fn of_an_integrity_device_that_cleans_its_map() {
    let (mode, layout) = (Mode::Bitmap, Layout::Parts);
    each_flush_fails(Kind::Integrity { mode, layout, cleans: true }, &[2]);
}
