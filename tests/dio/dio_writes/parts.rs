//! Requests that are carried out in part: the device transfers too few bytes, space runs out in the middle of a write, or bad sectors
//! prevent that written blocks are marked as written.

use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};

use ironmap::ErrorKind;
use ironmap::device::{Faults, Limits, Ram};
use ironmap::dio::DioFlags;
use ironmap::error::Errno;
use ironmap::fs::Fallocate;
use ironmap::units::FilePos;

use crate::common::skip::Need;
use crate::dio_writes::bench::{BLOCK, Bench, CALLS, Call, NONE, content, kind, memory};
use crate::require;

const EXT4: &str = "-t ext4 -b 4096";
const KEEP: Fallocate = Fallocate::Allocate { keep_size: true };

/// ironmap continues after a short transfer, even for a NOWAIT request. EAGAIN would be wrong here, because a part of the data is already
/// written.
#[test]
fn nowait_is_not_refused_after_a_short_transfer() {
    require!([Need::Bare("it counts requests of the device below")]);
    for (way, flags) in CALLS.into_iter().flat_map(|way| [(way, NONE), (way, DioFlags::BOUNCE)]) {
        let bench = Bench::new(EXT4);
        let (file, mut queue) = (bench.written("file", 64), bench.queue());
        way.write((&file, &mut queue), memory(BLOCK, 0x12), 0, NONE).unwrap();
        bench.faults.set_faults(Faults {
            short_one_in: Some(1),
            fail_at: Some(1),
            errno: Some(Errno::EAGAIN),
            ..Faults::default()
        });
        let flags = flags | DioFlags::NOWAIT;
        let count = way.write((&file, &mut queue), memory(64 << 10, 0x22), 0, flags);
        assert_eq!(count.unwrap(), 64 << 10, "{way:?} {flags:?}");
        bench.faults.set_faults(Faults::default());
        assert!(content(&file, &mut queue)[..64 << 10].iter().all(|byte| *byte == 0x22), "{way:?}");
    }
}

/// A request is split at the borders of its extents. The border can fall on any memory address. If the device does not accept this address,
/// ironmap copies the data.
#[test]
fn memory_that_extents_cut_at_an_address_the_device_refuses_is_copied() {
    for stable_writes in [false, true] {
        let limits = Limits { stable_writes, dma_align: 4096, logical_block: 512, ..Ram::LIMITS };
        let bench = Bench::with_limits("-t ext4 -b 1024", limits);
        let stable_writes = bench.volume.device().limits().stable_writes;
        for way in CALLS {
            let number = bench.create(&format!("{way:?}"));
            let allocate = Fallocate::Allocate { keep_size: false };
            bench
                .fs()
                .writable()
                .unwrap()
                .fallocate(number, allocate, FilePos(0), 64 << 10)
                .unwrap();
            for block in (0..64).step_by(2) {
                bench
                    .fs()
                    .writable()
                    .unwrap()
                    .write(number, FilePos(block << 10), &[0x11; 1024])
                    .unwrap();
            }
            bench.fs().sync().unwrap();
            let (file, mut queue) = (bench.open(number, true), bench.queue());
            let bytes = content(&file, &mut queue);
            let expected = [[0x11; 1024], [0; 1024]].concat().repeat(32);
            assert!(bytes == expected, "{way:?}, stable writes {stable_writes}: read");
            let mut owned = memory(64 << 10, 0xEE);
            file.submit_read(&mut queue, owned, FilePos(0), NONE, 7).unwrap();
            queue.wait(1).unwrap();
            (_, owned) = queue.pop().unwrap().into_buffer().unwrap();
            assert!(owned[..] == expected, "{way:?}, stable writes {stable_writes}: queued read");
            let before = queue.stats().bounced;
            way.write((&file, &mut queue), memory(64 << 10, 0x22), 0, NONE).unwrap();
            assert_eq!(queue.stats().bounced, before + 1, "{way:?}");
            // All blocks are written and contiguous, so ironmap does not split the request.
            file.sync(&mut queue).unwrap();
            way.write((&file, &mut queue), memory(64 << 10, 0x33), 0, NONE).unwrap();
            let copied = u64::from(stable_writes && way == Call::Lent);
            assert_eq!(queue.stats().bounced, before + 1 + copied, "{way:?}");
            assert!(content(&file, &mut queue).iter().all(|byte| *byte == 0x33), "{way:?}");
        }
        bench.close();
    }
}

/// A request is also split at the maximum transfer length. If the second part begins at a memory address that the device does not accept,
/// ironmap copies the data.
#[test]
fn buffers_that_the_longest_transfer_cuts_at_such_an_address_are_copied() {
    let limits = Limits { dma_align: 4096, logical_block: 512, ..Ram::LIMITS };
    let bench = Bench::with_limits(EXT4, limits);
    let most = u64::from(bench.volume.device().limits().max_transfer);
    let len = 512 + most;
    let (file, mut queue) = (bench.written("file", len.div_ceil(BLOCK)), bench.queue());
    assert_eq!(file.mappings().count(), 1, "one extent");
    let bufs = [memory(512, 0x22), memory(most, 0x33)];
    let slices = [IoSlice::new(&bufs[0]), IoSlice::new(&bufs[1])];
    let count = file.write_vectored_at(&mut queue, &slices, FilePos(0), NONE).unwrap();
    assert_eq!(count as u64, len);
    let [mut head, mut tail] = [memory(512, 0), memory(most, 0)];
    let mut into = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)];
    let count = file.read_vectored_at(&mut queue, &mut into, FilePos(0), NONE).unwrap();
    assert_eq!(count as u64, len);
    assert!(head[..] == bufs[0][..] && tail[..] == bufs[1][..]);
    drop((file, queue));
    bench.close();
}

/// If space runs out in the middle of a write, the write returns the length that was written. The number of buffers does not matter.
#[test]
fn several_buffers_are_cut_where_space_ends() {
    for (mkfs, odd) in [("-t ext3 -b 1024", 0), ("-t ext3 -b 1024", 100), (EXT4, 0), (EXT4, 100)] {
        let bench = Bench::new(mkfs);
        let (file, mut queue) = (bench.open(bench.create("file"), false), bench.queue());
        let part = vec![0x22; (8 << 20) + odd];
        let bufs = [IoSlice::new(&part), IoSlice::new(&part), IoSlice::new(&part)];
        let count = file.write_vectored_at(&mut queue, &bufs, FilePos(0), NONE).unwrap();
        assert!(count > part.len() && count < 3 * part.len(), "{mkfs}: {count}");
        assert_eq!(file.size(), count as u64, "{mkfs}");
        assert!(content(&file, &mut queue).iter().all(|byte| *byte == 0x22), "{mkfs}");
        drop((file, queue));
        bench.close();
    }
}

/// If the rest of a partially written block cannot be zeroed because of a bad sector, this block cannot be marked as written. All other
/// acknowledged data remain.
#[test]
fn a_sector_that_fails_takes_only_its_block_along() {
    require!([Need::Bare("a bad sector of the device below")]);
    for mended in [true, false] {
        let bench = Bench::new("-t ext4 -b 1024");
        let (file, mut queue) = (bench.open(bench.create("file"), true), bench.queue());
        for _ in 0..100 {
            file.append(&mut queue, &memory(4096, 0x22), NONE).unwrap();
        }
        let end = file.append(&mut queue, &memory(512, 0x33), NONE).unwrap();
        let block = file.mappings().map(Result::unwrap).find(|iomap| iomap.end() > end).unwrap();
        let pad = block.addr.0 + (end.0 - block.pos.0) + 512;
        let bad_sectors = BTreeSet::from([pad / 512]);
        bench.faults.set_faults(Faults { bad_sectors, ..Faults::default() });
        assert_eq!(kind(file.sync(&mut queue)), ErrorKind::Io(Errno::EIO));
        if mended {
            bench.faults.set_faults(Faults::default());
            file.sync(&mut queue).unwrap();
        }
        let number = file.inode();
        drop((file, queue));
        bench.faults.set_faults(Faults::default());
        // The result of the sync is ignored, because the test checks only the result of the close.
        let _ = bench.fs().sync();
        let (file, mut queue) = (bench.open(number, true), bench.queue());
        let bytes = content(&file, &mut queue);
        assert_eq!(bytes.len() as u64, end.0 + 512, "mended {mended}");
        assert!(bytes[..end.0 as usize].iter().all(|byte| *byte == 0x22), "mended {mended}");
        let last = if mended { 0x33 } else { 0 };
        assert!(bytes[end.0 as usize..].iter().all(|byte| *byte == last), "mended {mended}");
        drop((file, queue));
        bench.close();
    }
}

/// After a failed write past the end, the blocks of this write are freed. Blocks that the caller preallocated past the end remain.
#[test]
fn a_failed_append_takes_nothing_along_that_comes_later() {
    let bench = Bench::new(EXT4);
    let sectors = bench.soil();
    let (file, mut queue) = (bench.written("file", 1), bench.queue());
    bench.faults.set_faults(Faults { bad_sectors: sectors, ..Faults::default() });
    let failed = file.append(&mut queue, &memory(8 * BLOCK, 0x22), NONE);
    assert_eq!(kind(failed), ErrorKind::Io(Errno::EIO));
    bench.faults.set_faults(Faults::default());
    let number = file.inode();
    bench.fs().writable().unwrap().fallocate(number, KEEP, FilePos(BLOCK), 500 * BLOCK).unwrap();
    file.sync(&mut queue).unwrap();
    let blocks = |bench: &Bench| bench.fs().inode(number).unwrap().stat().blocks;
    assert_eq!(blocks(&bench.after_crash()), 501 * BLOCK / 512);
    drop((file, queue));
    assert_eq!(blocks(&bench), 501 * BLOCK / 512);
    bench.close();
}

/// A failed write past the end left data in its blocks. Later the code of the file system extends the file over these blocks, without the
/// direct-I/O core. The range then reads as zeros.
#[test]
fn a_gap_shows_nothing_that_was_lost() {
    require!([Need::Bare("the request whose end is lost is that of the device below")]);
    let bench = Bench::new(EXT4);
    let number = bench.create("file");
    bench.fs().writable().unwrap().write(number, FilePos(0), &[0x11; 512]).unwrap();
    let (file, mut queue) = (bench.open(number, true), bench.queue());
    bench.faults.set_faults(Faults { fail_after: Some(0), unheard: true, ..Faults::default() });
    file.append(&mut queue, &memory(1024, 0x22), NONE).unwrap_err();
    bench.faults.set_faults(Faults::default());
    bench.fs().writable().unwrap().write(number, FilePos(2 * BLOCK), &[0x33; 512]).unwrap();
    let bytes = content(&file, &mut queue);
    assert!(bytes[..512] == [0x11; 512] && bytes[2 * BLOCK as usize..] == [0x33; 512]);
    assert!(bytes[512..2 * BLOCK as usize].iter().all(|byte| *byte == 0));
    drop((file, queue));
    bench.close();
}
