//! Writes that cannot proceed at once. Normal writes wait, and NOWAIT writes fail. Other tests change a file while writes are in flight.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use ironmap::device::{QueueOptions, Ram};
use ironmap::dio::DioFlags;
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{Fallocate, SetAttributes, Timestamp, WriteCounts};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{ErrorKind, File, Result};

use crate::common::beneath;
use crate::common::image::{Image, words};
use crate::common::skip::Need;
use crate::dio_writes::bench::{BLOCK, Bench, CALLS, NONE, content, kind, memory};
use crate::require;

const EXT4: &str = "-t ext4 -b 4096";
const NOWAIT: DioFlags = DioFlags::NOWAIT;

/// A NOWAIT write returns EAGAIN and has no effect in four cases: it would allocate blocks, extend the file, zero a range up to the size,
/// or write a partial sector.
#[test]
fn nowait_is_refused_where_metadata_would_change() {
    let bench = Bench::new(EXT4);
    let mut queue = bench.queue();
    let hole = bench.hole("hole", 8);
    let written = bench.written("written", 8);
    let fs = bench.fs();
    fs.writable().unwrap().truncate(written.inode(), 8 * BLOCK - 100).unwrap();
    fs.writable()
        .unwrap()
        .fallocate(written.inode(), Fallocate::Punch, FilePos(2 * BLOCK), BLOCK)
        .unwrap();
    fs.sync().unwrap();
    for (file, pos, len) in [
        (&hole, 0, BLOCK),
        (&hole, 512, 512),
        (&hole, 8 * BLOCK, BLOCK),
        (&written, 2 * BLOCK, BLOCK),
        (&written, BLOCK, 2 * BLOCK),
        (&written, 7 * BLOCK, BLOCK),
        (&written, 9 * BLOCK, 512),
        (&written, 100, 100),
    ] {
        let before = (content(file, &mut queue), file.size());
        for way in CALLS {
            let cost = bench.cost(|| {
                let seen = bench.seen(|| {
                    let buffer = memory(len, 0x22);
                    let result = way.write((file, &mut queue), buffer, pos, NOWAIT);
                    assert_eq!(kind(result), ErrorKind::WouldBlock, "{way:?}: {len} at {pos}");
                });
                assert_eq!(seen.writes, 0, "{way:?}: {len} at {pos}");
            });
            assert_eq!(cost, WriteCounts::default(), "{way:?}: {len} at {pos}");
        }
        assert!((content(file, &mut queue), file.size()) == before, "{len} at {pos}");
    }
    assert_eq!(kind(hole.append(&mut queue, &memory(512, 1), NOWAIT)), ErrorKind::WouldBlock);
    // The refused append has released the range that it had reserved.
    let at = hole.append(&mut queue, &memory(512, 1), NONE).unwrap();
    assert_eq!(at.0, 8 * BLOCK);
    assert!(bench.volume.events().take().0.is_empty(), "EAGAIN is no error");
}

/// A write that is refused because no slot is free does not change the file's times.
#[test]
fn nowait_that_is_refused_leaves_no_time() {
    let bench = Bench::new(EXT4);
    let (file, mut queue) =
        (bench.written("file", 8), bench.volume.queue(&QueueOptions::new().depth(1)).unwrap());
    let past = Timestamp { seconds: 1_000_000_000, nanoseconds: 5 };
    let set = SetAttributes::new().modified(past);
    bench.fs().writable().unwrap().set_attributes(file.inode(), &set).unwrap();
    let modified = || bench.fs().inspect(file.inode(), |inode| Ok(inode.stat().modified)).unwrap();
    file.submit_read(&mut queue, memory(BLOCK, 0), FilePos(0), NONE, 1).unwrap();
    let refused = file.submit_write(&mut queue, memory(BLOCK, 0x22), FilePos(0), NOWAIT, 2);
    assert_eq!(refused.unwrap_err().error.kind(), ErrorKind::WouldBlock);
    assert_eq!(modified(), past);
    queue.wait(1).unwrap();
    queue.pop().unwrap().result.unwrap();
    file.submit_write(&mut queue, memory(BLOCK, 0x22), FilePos(0), NOWAIT, 3).unwrap();
    assert_ne!(modified(), past);
    queue.wait(1).unwrap();
    queue.pop().unwrap().result.unwrap();
    drop((file, queue));
    bench.close();
}

/// An extending write changes the metadata when it completes. If the close of the volume did not refuse to run while such a write is in
/// flight, the new size would be lost.
#[test]
fn a_volume_is_not_closed_over_its_writes_in_flight() {
    let bench = Bench::new(EXT4);
    let (file, mut queue) = (bench.hole("file", 0), bench.queue());
    file.submit_write(&mut queue, memory(BLOCK, 0x22), FilePos(0), NONE, 1).unwrap();
    assert_eq!(bench.volume.close().unwrap_err().kind(), ErrorKind::Busy);
    queue.wait(1).unwrap();
    assert_eq!(queue.pop().unwrap().result.unwrap() as u64, BLOCK);
    drop((file, queue));
    let image = bench.close();
    assert!(image.ask_debugfs("stat file\n").contains("Size: 4096"));
}

/// A write into an unwritten block starts no journal handle, so NOWAIT does not refuse it.
#[test]
fn nowait_writes_into_unwritten_blocks() {
    require!([Need::Bare("the first write to a region waits for its mark")]);
    let bench = Bench::new(EXT4);
    let (file, mut queue) = (bench.unwritten("file", 8), bench.queue());
    for (way, block) in CALLS.into_iter().zip(0..) {
        way.write((&file, &mut queue), memory(512, 0x22), block * BLOCK + 512, NOWAIT).unwrap();
    }
    assert!(content(&file, &mut queue)[512..1024] == [0x22; 512]);
}

/// Each written or unwritten extent in the range of the request needs a slot of the queue. If the queue has too few slots, a NOWAIT request
/// is refused before any part is written.
#[test]
fn nowait_counts_the_slots_for_unwritten_blocks_too() {
    let bench = Bench::new(EXT4);
    let file = bench.unwritten("file", 8);
    let mut queue = bench.volume.queue(&QueueOptions::new().depth(2)).unwrap();
    file.write_at(&mut queue, &memory(4 * BLOCK, 0x22), FilePos(0)).unwrap();
    file.sync(&mut queue).unwrap();
    file.submit_write(&mut queue, memory(BLOCK, 0x33), FilePos(0), NONE, 1).unwrap();
    let refused = file.submit_write(&mut queue, memory(8 * BLOCK, 0x44), FilePos(0), NOWAIT, 2);
    assert_eq!(refused.unwrap_err().error.kind(), ErrorKind::WouldBlock);
    queue.wait(1).unwrap();
    assert!(queue.pop().unwrap().result.is_ok());
    let found = content(&file, &mut queue);
    assert!(!found.contains(&0x44), "a part of it was written");
}

/// Waits until a NOWAIT write is refused. The refusal shows that another thread waits for the file.
pub(crate) fn until_contended(bench: &Bench, file: &File, ended: impl Fn() -> bool) {
    let mut queue = bench.queue();
    loop {
        match file.write_at_with(&mut queue, &memory(512, 0x44), FilePos(BLOCK), NOWAIT) {
            Ok(_) => assert!(!ended(), "it did not wait for the write in flight"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                return;
            }
        }
        std::thread::yield_now();
    }
}

/// Truncate, punch, collapse, insert, and a write that the code of the file system carries out, wait until all requests in flight on the
/// file have completed. During this wait, NOWAIT requests are refused.
#[test]
fn changes_of_the_map_wait_for_writes_in_flight() {
    type Change = fn(&Bench, &File) -> Result<()>;
    let changes: [(&str, Change); 6] = [
        ("truncate", |bench, file| bench.fs().writable().unwrap().truncate(file.inode(), 0)),
        ("longer", |bench, file| {
            bench.fs().writable().unwrap().truncate(file.inode(), 100 * BLOCK)
        }),
        ("punch", |bench, file| {
            bench.fs().writable().unwrap().fallocate(
                file.inode(),
                Fallocate::Punch,
                FilePos(0),
                8 * BLOCK,
            )
        }),
        ("collapse", |bench, file| {
            bench.fs().writable().unwrap().fallocate(
                file.inode(),
                Fallocate::Collapse,
                FilePos(0),
                2 * BLOCK,
            )
        }),
        ("insert", |bench, file| {
            bench.fs().writable().unwrap().fallocate(
                file.inode(),
                Fallocate::Insert,
                FilePos(0),
                2 * BLOCK,
            )
        }),
        ("write", |bench, file| {
            bench.fs().writable().unwrap().write(file.inode(), FilePos(0), &[0x55; 100]).map(drop)
        }),
    ];
    for (name, change) in changes {
        let bench = Bench::new(EXT4);
        let (file, mut queue) = (bench.written(name, 8), bench.queue());
        // The first request is a single bio. The second request covers several mappings.
        file.submit_write(&mut queue, memory(BLOCK, 0x22), FilePos(0), NONE, 1).unwrap();
        file.submit_write(&mut queue, memory(BLOCK, 0x33), FilePos(20 * BLOCK), NONE, 2).unwrap();
        let completed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let changer = scope.spawn(|| {
                change(&bench, &file).unwrap();
                assert!(completed.load(SeqCst), "{name} did not wait");
            });
            until_contended(&bench, &file, || changer.is_finished());
            // After `wait` has collected the completions, the thread that changes the file continues, and checks `completed`. So
            // `completed` must be set before the call of `wait`.
            completed.store(true, SeqCst);
            queue.wait(2).unwrap();
            for _ in 0..2 {
                assert_eq!(queue.pop().unwrap().result.unwrap() as u64, BLOCK, "{name}");
            }
        });
        drop((file, queue));
        bench.close();
    }
}

/// A change of a file returns an error if it would wait for requests of the same thread. The file is not changed.
#[test]
fn a_thread_with_requests_in_flight_gets_busy_for_the_file() {
    let bench = Bench::new(EXT4);
    let (file, mut queue) = (bench.written("file", 8), bench.queue());
    file.submit_write(&mut queue, memory(BLOCK, 0x22), FilePos(0), NONE, 1).unwrap();
    let fs = bench.fs();
    assert_eq!(kind(fs.writable().unwrap().truncate(file.inode(), 0)), ErrorKind::Busy);
    let punch = fs.writable().unwrap().fallocate(file.inode(), Fallocate::Punch, FilePos(0), BLOCK);
    assert_eq!(kind(punch), ErrorKind::Busy);
    assert_eq!(kind(fs.writable().unwrap().write(file.inode(), FilePos(0), &[1])), ErrorKind::Busy);
    assert_eq!(file.size(), 8 * BLOCK);
    queue.wait(1).unwrap();
    assert!(queue.pop().unwrap().result.is_ok());
    fs.writable().unwrap().truncate(file.inode(), 0).unwrap();
    assert_eq!(file.size(), 0);
}

/// A write may have to wait for earlier writes of the same queue. The queue then collects the completions of these writes itself. The test
/// covers sub-sector writes, appends and syncs.
#[test]
fn a_queue_does_not_wait_for_itself() {
    let bench = Bench::new(EXT4);
    let (file, mut queue) = (bench.written("file", 8), bench.queue());
    for token in 0..4 {
        let pos = FilePos(token * 512);
        file.submit_write(&mut queue, memory(512, 0x22), pos, NONE, token).unwrap();
    }
    file.write_at(&mut queue, &[0x33; 100], FilePos(1000)).unwrap();
    file.submit_append(&mut queue, memory(BLOCK, 0x44), NONE, 4).unwrap();
    file.sync(&mut queue).unwrap();
    file.submit_append(&mut queue, memory(100, 0x55), NONE, 5).unwrap();
    file.append(&mut queue, &[0x66; 1000], NONE).unwrap();
    queue.wait(6).unwrap();
    let mut tokens: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|done| done.token).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [0, 1, 2, 3, 4, 5]);
    let bytes = content(&file, &mut queue);
    assert!(bytes[..1000] == [0x22; 1000] && bytes[1000..1100] == [0x33; 100]);
    assert!(bytes[1100..2048] == [0x22; 948]);
    let end = 9 * BLOCK as usize;
    assert!(bytes[8 * BLOCK as usize..end] == [0x44; BLOCK as usize]);
    assert!(bytes[end..end + 100] == [0x55; 100] && bytes[end + 100..] == [0x66; 1000]);
    drop((file, queue));
    bench.close();
}

/// A request owns its buffer while it is in flight. The queue, the file and the volume handle may be dropped at any time. The buffer of a
/// write stays allocated (foyer issue 1286). Submitted data are written.
#[test]
fn handles_may_go_while_writes_are_in_flight() {
    let bench = Bench::new(EXT4);
    for (name, depth) in [("file", 1), ("many", 40)] {
        let file = bench.written(name, 64);
        let mut queue = bench.queue();
        for token in 0..depth {
            let pos = FilePos(token * BLOCK);
            file.submit_write(&mut queue, memory(BLOCK, 0x22), pos, NONE, token).unwrap();
        }
        drop(file);
        drop(queue);
    }
    let image = bench.close();
    assert!(image.dump("/many")[..40 * BLOCK as usize].iter().all(|byte| *byte == 0x22));
}

/// Two files can be written at the same time, because a write locks only its file and not the volume (lwext4 issue 83).
#[test]
fn a_file_that_waits_keeps_no_other_waiting() {
    let bench = Bench::new(EXT4);
    let (one, two) = (bench.written("one", 8), bench.written("two", 8));
    let mut queue = bench.queue();
    one.submit_write(&mut queue, memory(BLOCK, 0x22), FilePos(0), NONE, 1).unwrap();
    std::thread::scope(|scope| {
        let changer =
            scope.spawn(|| bench.fs().writable().unwrap().truncate(one.inode(), 0).unwrap());
        until_contended(&bench, &one, || changer.is_finished());
        let mut other = bench.queue();
        two.write_at_with(&mut other, &memory(BLOCK, 0x33), FilePos(0), NOWAIT).unwrap();
        two.write_at(&mut other, &[0x44; 100], FilePos(9 * BLOCK)).unwrap();
        two.sync(&mut other).unwrap();
        queue.wait(1).unwrap();
        queue.pop().unwrap().result.unwrap();
    });
    assert_eq!(one.size(), 0);
}

/// If an inode is not in memory, a NOWAIT write is refused and sends no request to the device.
#[test]
fn an_inode_that_is_not_in_memory_is_not_read() {
    const FILES: usize = 64;
    // The volume has more metadata blocks than fit into the cache.
    let mkfs = "-t ext4 -b 4096 -I 1024 -N 100000 -O ^metadata_csum,^uninit_bg";
    let bench = Bench::with_image(Image::in_memory("256M", &words(mkfs)), Ram::LIMITS);
    let name = |number| format!("file{number}");
    (0..FILES).for_each(|number| drop(bench.written(&name(number), 1)));
    let bench = Bench::with_image(bench.close(), Ram::LIMITS);
    let found = |number| bench.fs().lookup(ROOT, name(number).as_bytes()).unwrap().number();
    let files: Vec<_> = (0..FILES).map(|number| bench.open(found(number), false)).collect();
    // The test reads each block several times. The cache keeps used blocks and evicts blocks that were read only once.
    for number in 1000..100_000 {
        assert_eq!(kind(bench.fs().inode(InodeNo(number)).map(drop)), ErrorKind::NotFound);
    }
    let mut refused = 0;
    for file in &files {
        let mut queue = bench.queue();
        let before = bench.faults.requests();
        let written = file.write_at_with(&mut queue, &memory(BLOCK, 0x22), FilePos(0), NOWAIT);
        let requests = bench.faults.requests() - before;
        if written.is_err() {
            assert_eq!((kind(written), requests), (ErrorKind::WouldBlock, 0));
            refused += 1;
            file.write_at(&mut queue, &memory(BLOCK, 0x22), FilePos(0)).unwrap();
            file.write_at_with(&mut queue, &memory(BLOCK, 0x22), FilePos(0), NOWAIT).unwrap();
        } else if beneath::chosen().is_none() {
            assert_eq!(requests, 1, "written blocks");
        }
    }
    assert!(refused > 0, "nothing has to be read: the test says nothing");
    drop(files);
    bench.close();
}
