//! Effects that writes have after they complete or fail: unused ranges, blocks past the end, conversions of unwritten extents during
//! commits, dropped queues, and aborted journals.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::Duration;

use ironmap::ErrorKind;
use ironmap::device::{Faults, Ram};
use ironmap::dio::DioFlags;
use ironmap::error::Errno;
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{Fallocate, Follow, InodeFlags, SetAttributes};
use ironmap::iomap::IomapType;
use ironmap::units::FilePos;

use crate::common::image::{Image, words};
use crate::common::skip::Need;
use crate::dio_writes::bench::{BLOCK, Bench, CALLS, NONE, content, kind, memory};
use crate::dio_writes::waits::until_contended;
use crate::require;

const EXT4: &str = "-t ext4 -b 4096";
const KEEP: Fallocate = Fallocate::Allocate { keep_size: true };

/// A thread that waits for requests of a queue wakes up when the queue is dropped.
#[test]
fn a_queue_that_ends_with_writes_in_flight_blocks_no_thread() {
    // The queue may be dropped just before the other thread begins to wait. After many repetitions, some drops have happened during the
    // wait.
    assert!((0..20).any(|_| has_waited_for_a_queue_that_goes()), "nobody has waited");
}

fn has_waited_for_a_queue_that_goes() -> bool {
    let bench = Bench::new(EXT4);
    let file = bench.written("file", 8);
    let mut queue = bench.queue();
    file.write_at(&mut queue, &memory(BLOCK, 0x12), FilePos(0)).unwrap();
    file.submit_write(&mut queue, memory(BLOCK, 0x22), FilePos(0), NONE, 1).unwrap();
    let (tell, told) = mpsc::channel();
    let (fs, number) = (bench.fs().clone(), file.inode());
    // The thread is not scoped. The end of a scope would wait for a thread that hangs.
    let changer = std::thread::spawn(move || {
        let result = fs.writable().unwrap().truncate(number, BLOCK);
        tell.send(()).unwrap();
        result
    });
    until_contended(&bench, &file, || changer.is_finished());
    drop(queue);
    told.recv_timeout(Duration::from_secs(120)).expect("it is told that the queue is gone");
    changer.join().unwrap().unwrap();
    assert!(content(&file, &mut bench.queue()) == [0x22; BLOCK as usize]);
    bench.fs().writable().unwrap().write_counts().drains == 1
}

/// When a commit converts unwritten extents, it writes the new file size to the journal before it marks the blocks as written. So after a
/// crash between any two commits, no written block lies past the recovered size.
#[test]
fn no_written_data_lie_past_the_end_after_a_crash() {
    require!([Need::Bare("its crash states are those of the device below")]);
    let bench = Bench::new(EXT4);
    let other = bench.written("other", 1);
    let ended = AtomicBool::new(false);
    let mut states = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..6 {
                let number = bench.create(&format!("file{round}"));
                bench
                    .fs()
                    .writable()
                    .unwrap()
                    .fallocate(number, KEEP, FilePos(0), 400 * BLOCK)
                    .unwrap();
                let (file, mut queue) = (bench.open(number, true), bench.queue());
                for block in (0..400).step_by(2) {
                    let pos = FilePos(block * BLOCK);
                    file.write_at(&mut queue, &memory(BLOCK, 0x22), pos).unwrap();
                }
                file.sync(&mut queue).unwrap();
            }
            ended.store(true, SeqCst);
        });
        scope.spawn(|| {
            let mut queue = bench.queue();
            while !ended.load(SeqCst) {
                let set = SetAttributes::new().permissions(0o600);
                bench.fs().writable().unwrap().set_attributes(other.inode(), &set).unwrap();
                other.sync(&mut queue).unwrap();
            }
        });
        while !ended.load(SeqCst) {
            let crashed = bench.after_crash();
            states += 1;
            for round in 0..6 {
                let name = format!("/file{round}");
                let Ok(inode) = crashed.fs().resolve(name.as_bytes(), Follow::All) else {
                    continue;
                };
                let file = crashed.open(inode.number(), true);
                let behind = file
                    .mappings()
                    .map(Result::unwrap)
                    .find(|iomap| iomap.kind == IomapType::Mapped && iomap.end().0 > file.size());
                assert_eq!(behind, None, "{name} of {} bytes, state {states}", file.size());
            }
        }
    });
    assert!(states > 0);
    drop(other);
    bench.close();
}

/// Overwrites need no transaction. Still, a volume refuses them after its close and after an abort.
#[test]
fn nothing_is_overwritten_after_the_close_or_an_abort() {
    for closed in [true, false] {
        let bench = Bench::new(EXT4);
        let (file, unwritten) = (bench.written("file", 8), bench.unwritten("unwritten", 8));
        let mut queue = bench.queue();
        for file in [&file, &unwritten] {
            file.write_at(&mut queue, &memory(BLOCK, 0x12), FilePos(0)).unwrap();
        }
        if closed {
            bench.volume.close().unwrap();
        } else {
            bench.fs().writable().unwrap().truncate(file.inode(), 7 * BLOCK).unwrap();
            bench.faults.set_faults(Faults { fail_after: Some(0), ..Faults::default() });
            bench.fs().sync().unwrap_err();
            bench.faults.set_faults(Faults::default());
        }
        for file in [&file, &unwritten] {
            for (way, flags) in
                CALLS.into_iter().flat_map(|way| [(way, NONE), (way, DioFlags::DSYNC)])
            {
                let result = way.write((file, &mut queue), memory(BLOCK, 0x33), BLOCK, flags);
                assert_eq!(kind(result), ErrorKind::ReadOnly, "closed {closed}, {way:?} {flags:?}");
            }
        }
    }
}

/// A write into a hole locks its inode exclusively once, to allocate blocks. The test checks a separate counter for each reason to lock or
/// wait.
#[test]
fn locks_of_writes_are_counted() {
    let bench = Bench::new(EXT4);
    let (file, mut queue) = (bench.hole("file", 8), bench.queue());
    let mut cost = |pos, len| {
        bench.cost(|| {
            file.write_at(&mut queue, &memory(len, 0x22), FilePos(pos)).unwrap();
        })
    };
    let first = cost(0, BLOCK);
    assert_eq!((first.upgrades, first.waits, first.drains), (1, 0, 0));
    let again = cost(0, BLOCK);
    assert_eq!((again.upgrades, again.waits, again.drains), (0, 0, 0));
    let gap = cost(8 * BLOCK, 512).upgrades + cost(9 * BLOCK, 512).upgrades;
    assert_eq!(gap, 3, "two allocations, and the rest of the block is zeroed");
}

/// A write of inline data also removes set-id bits and capabilities.
#[test]
fn set_id_bits_go_with_a_write_to_inline_data() {
    for way in CALLS {
        let options = words("-t ext4 -b 4096 -I 256 -O inline_data");
        let image = Image::in_memory("24M", &options);
        std::fs::write(image.beside("small"), "small").unwrap();
        image.debugfs(&format!("write {} file", image.beside("small").display()));
        let bench = Bench::with_image(image, Ram::LIMITS);
        let inode = bench.fs().resolve(b"/file", Follow::All).unwrap();
        assert!(inode.flags().contains(InodeFlags::INLINE_DATA));
        let number = inode.number();
        let set = SetAttributes::new().permissions(0o6755);
        bench.fs().writable().unwrap().set_attributes(number, &set).unwrap();
        let (file, mut queue) = (bench.open(number, false), bench.queue());
        way.write((&file, &mut queue), memory(512, 0x22), 0, NONE).unwrap();
        assert_eq!(bench.fs().inode(number).unwrap().stat().mode & 0o7777, 0o755, "{way:?}");
        drop((file, queue));
        bench.close();
    }
}

/// If a commit cannot convert the unwritten extents of one file, it reports the failure. Other files still become durable.
#[test]
fn a_failed_conversion_blocks_no_other_commit() {
    require!([Need::Bare("the bad sector is one of the device below")]);
    let bench = Bench::new(EXT4);
    let (file, mut queue) = (bench.unwritten("file", 8), bench.queue());
    file.write_at(&mut queue, &memory(512, 0x22), FilePos(BLOCK)).unwrap();
    let pad = file.map(FilePos(BLOCK), 1).unwrap().addr_of(FilePos(BLOCK)).0 / 512 + 3;
    bench.faults.set_faults(Faults { bad_sectors: [pad].into(), ..Faults::default() });
    bench.create("beside");
    bench.fs().sync().unwrap_err();
    let crashed = bench.after_crash();
    crashed.fs().resolve(b"/beside", Follow::All).unwrap();
    bench.faults.set_faults(Faults::default());
    file.sync(&mut queue).unwrap();
    drop((file, queue));
    bench.close();
}

/// If an append in flight fails or runs out of space, it releases the unwritten part of its reserved range.
#[test]
fn an_append_in_flight_that_fails_leaves_no_gap() {
    let bench = Bench::new(EXT4);
    let (file, mut queue) = (bench.written("file", 1), bench.queue());
    let append = |queue: &mut ironmap::Queue, len, fill| {
        let at = file.submit_append(queue, memory(len, fill), NONE, 7).unwrap();
        queue.wait(1).unwrap();
        (at.0, queue.pop().unwrap().result)
    };
    bench.faults.set_faults(Faults { fail_after: Some(0), ..Faults::default() });
    let (at, result) = append(&mut queue, BLOCK, 0x22);
    assert_eq!((at, kind(result)), (BLOCK, ErrorKind::Io(Errno::EIO)));
    bench.faults.set_faults(Faults::default());
    assert_eq!(append(&mut queue, BLOCK, 0x33).0, BLOCK);
    let (at, result) = append(&mut queue, 64 << 20, 0x44);
    let count = result.unwrap() as u64;
    assert!(at == 2 * BLOCK && count < 64 << 20);
    bench.fs().writable().unwrap().truncate(file.inode(), at + count - BLOCK).unwrap();
    assert_eq!(append(&mut queue, 512, 0x55).0, at + count - BLOCK);
    drop((file, queue));
    bench.close();
}

/// An append-only file accepts many appends in flight, like any other file.
#[test]
fn append_only_files_take_many_appends_at_a_time() {
    let bench = Bench::new(EXT4);
    let (file, mut queue) = (bench.written("file", 1), bench.queue());
    let flags = bench.fs().inode(file.inode()).unwrap().flags();
    bench.fs().writable().unwrap().set_flags(file.inode(), flags | InodeFlags::APPEND).unwrap();
    for token in 0..5 {
        let at = file.submit_append(&mut queue, memory(BLOCK, 0x22), NONE, token).unwrap();
        assert_eq!(at.0, (1 + token) * BLOCK);
    }
    queue.wait(5).unwrap();
    while let Some(done) = queue.pop() {
        done.result.unwrap();
    }
    let refused = file.write_at(&mut queue, &memory(BLOCK, 0x33), FilePos(BLOCK));
    assert_eq!(kind(refused), ErrorKind::NotPermitted);
    drop(queue);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut queue = bench.queue();
                for _ in 0..100 {
                    file.append(&mut queue, &[0x44; 512], NONE).unwrap();
                }
            });
        }
    });
    assert_eq!(file.size(), 6 * BLOCK + 300 * 512);
    drop(file);
    bench.close();
}

/// An append can begin while an extending write is in flight. The append's position is then the end of this write.
#[test]
fn an_append_comes_after_an_extending_write_in_flight() {
    let bench = Bench::new(EXT4);
    let (file, mut queue) = (bench.written("file", 1), bench.queue());
    file.submit_write(&mut queue, memory(BLOCK, 0x22), FilePos(BLOCK), NONE, 1).unwrap();
    let at = file.submit_append(&mut queue, memory(BLOCK, 0x33), NONE, 2).unwrap();
    assert_eq!(at.0, 2 * BLOCK);
    queue.wait(2).unwrap();
    while let Some(done) = queue.pop() {
        done.result.unwrap();
    }
    let bytes = content(&file, &mut queue);
    assert!(bytes[4096..8192] == [0x22; 4096] && bytes[8192..] == [0x33; 4096]);
    drop((file, queue));
    bench.close();
}

/// The close of a file keeps blocks that were preallocated past the end, even if the file has grown into some of them.
#[test]
fn blocks_preallocated_past_the_end_are_kept() {
    let bench = Bench::new(EXT4);
    let number = bench.create("file");
    bench.fs().writable().unwrap().fallocate(number, KEEP, FilePos(BLOCK), 64 * BLOCK).unwrap();
    let (file, mut queue) = (bench.open(number, true), bench.queue());
    file.write_at(&mut queue, &memory(2 * BLOCK, 0x22), FilePos(0)).unwrap();
    file.sync(&mut queue).unwrap();
    drop((file, queue));
    let blocks = bench.fs().inode(number).unwrap().stat().blocks;
    assert_eq!(blocks, 65 * BLOCK / 512);
    bench.close();
}

/// A failed write may have allocated blocks far past the end, after a range of holes. The close of the file frees these blocks.
#[test]
fn a_failed_write_past_a_hole_keeps_no_blocks() {
    let bench = Bench::new(EXT4);
    let sectors = bench.soil();
    let (file, mut queue) = (bench.written("file", 1), bench.queue());
    let before = bench.fs().inode(file.inode()).unwrap().stat().blocks;
    bench.faults.set_faults(Faults { bad_sectors: sectors, ..Faults::default() });
    let failed = file.write_at(&mut queue, &memory(64 * BLOCK, 0x22), FilePos(1000 * BLOCK));
    assert_eq!(kind(failed), ErrorKind::Io(Errno::EIO));
    bench.faults.set_faults(Faults::default());
    file.write_at(&mut queue, &memory(BLOCK, 0x33), FilePos(BLOCK)).unwrap();
    file.sync(&mut queue).unwrap();
    let number = file.inode();
    drop((file, queue));
    let after = bench.fs().inode(number).unwrap().stat().blocks;
    assert_eq!(after - before, BLOCK / 512);
    bench.close();
}

/// So many ranges are written that their unwritten extents must be converted, but the conversion would have to wait for a request in
/// flight. The write that completes at this moment still succeeds.
#[test]
fn a_write_does_not_fail_for_a_conversion_that_must_wait() {
    require!([Need::Bare("the first write to a region waits for its mark")]);
    let bench = Bench::new(EXT4);
    let (file, mut queue, mut other) =
        (bench.unwritten("file", 2100), bench.queue(), bench.queue());
    file.submit_read(&mut other, memory(512, 0), FilePos(0), NONE, 1).unwrap();
    for range in 0..1040 {
        let pos = FilePos(range * 2 * BLOCK);
        file.write_at(&mut queue, &memory(512, 0x22), pos).unwrap();
    }
    other.wait(1).unwrap();
    assert!(other.pop().unwrap().result.is_ok());
    // A NOWAIT write leaves its blocks marked as unwritten, and converts them later.
    for range in 0..1040 {
        let cost = bench.cost(|| {
            let pos = FilePos((range * 2 + 1) * BLOCK);
            file.write_at_with(&mut queue, &memory(512, 0x33), pos, DioFlags::NOWAIT).unwrap();
        });
        assert_eq!(cost.handles, 0, "range {range}");
    }
    file.sync(&mut queue).unwrap();
    drop((file, queue, other));
    bench.close();
}

/// A NOWAIT write of several bios is refused, or it is written in full.
#[test]
fn nowait_is_not_refused_in_the_middle() {
    require!([Need::Bare("it counts requests of the device below")]);
    for way in CALLS {
        let bench = Bench::new(EXT4);
        let (file, mut queue) = (bench.written("file", 1024), bench.queue());
        way.write((&file, &mut queue), memory(BLOCK, 0x12), 0, NONE).unwrap();
        let errno = Some(Errno::EAGAIN);
        bench.faults.set_faults(Faults { fail_at: Some(1), errno, ..Faults::default() });
        let count = way.write((&file, &mut queue), memory(3 << 20, 0x22), 0, DioFlags::NOWAIT);
        assert_eq!(count.unwrap(), 3 << 20, "{way:?}");
        bench.faults.set_faults(Faults::default());
        assert!(content(&file, &mut queue)[..3 << 20].iter().all(|byte| *byte == 0x22), "{way:?}");
        bench.fs().writable().unwrap().unlink(ROOT, b"file").unwrap();
    }
}
