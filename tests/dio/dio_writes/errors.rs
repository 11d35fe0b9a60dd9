//! Writes that fail after the device has written a part of them, and volumes that run out of space.

use ironmap::device::Faults;
use ironmap::dio::DioFlags;
use ironmap::error::Errno;
use ironmap::events::Direction;
use ironmap::units::FilePos;
use ironmap::{ErrorKind, File};

use crate::common::skip::Need;
use crate::dio_writes::bench::{BLOCK, Bench, CALLS, NONE, content, kind, memory};
use crate::require;

const EXT4: &str = "-t ext4 -b 4096";
const MIB: u64 = 1 << 20;

fn fail_sector(bench: &Bench, file: &File, pos: u64) {
    let sector = file.map(FilePos(pos), 1).unwrap().addr_of(FilePos(pos)).0 / 512;
    let faults = Faults { bad_sectors: [sector].into(), ..Faults::default() };
    bench.faults.set_faults(faults);
}

/// If the device fails for a part of a write, the write returns the error instead of a short count. One event reports the error. Other data
/// are unchanged.
#[test]
fn an_error_in_the_middle_is_the_error_and_no_short_count() {
    for way in CALLS {
        for unwritten in [false, true] {
            let bench = Bench::new(EXT4);
            bench.soil();
            let mut queue = bench.queue();
            let file =
                if unwritten { bench.unwritten("file", 1024) } else { bench.written("file", 1024) };
            fail_sector(&bench, &file, 700 * BLOCK);
            // The request is longer than one bio, so the device may have written the data before the bad sector.
            let result = way.write((&file, &mut queue), memory(3 * MIB, 0x22), BLOCK, NONE);
            assert_eq!(kind(result), ErrorKind::Io(Errno::EIO), "{way:?}");
            let (events, _) = bench.volume.events().take();
            assert_eq!(events.len(), 1, "{way:?}: {events:?}");
            assert_eq!(
                (events[0].direction, events[0].errno),
                (Direction::DirectWrite, Errno::EIO)
            );
            assert_eq!((events[0].pos.0, events[0].len), (BLOCK, 3 * MIB), "{way:?}");
            bench.faults.set_faults(Faults::default());
            let before = if unwritten { 0 } else { 0x11 };
            let bytes = content(&file, &mut queue);
            assert!(bytes.iter().all(|byte| [before, 0x22].contains(byte)), "{way:?}");
            let (from, to) = (BLOCK as usize, (BLOCK + 3 * MIB) as usize);
            assert!(bytes[..from].iter().chain(&bytes[to..]).all(|byte| *byte == before));
            drop((file, queue));
            bench.close();
        }
    }
}

/// After a failed write past the end or into a hole, the size is unchanged. The newly allocated blocks show no old content. Blocks past the
/// end are freed when the file is closed.
#[test]
fn an_error_while_a_file_grows_leaves_size_and_space_as_they_were() {
    for way in CALLS {
        let bench = Bench::new(EXT4);
        let sectors = bench.soil();
        let (file, mut queue) = (bench.hole("file", 64), bench.queue());
        let free = bench.volume.ext4().unwrap().free_space();
        for (pos, len) in [(64 * BLOCK, MIB), (60 * BLOCK, MIB), (100 * BLOCK + 512, BLOCK)] {
            let faults = Faults { bad_sectors: sectors.clone(), ..Faults::default() };
            bench.faults.set_faults(faults);
            let result = way.write((&file, &mut queue), memory(len, 0x22), pos, NONE);
            assert_eq!(kind(result), ErrorKind::Io(Errno::EIO), "{way:?}: {len} at {pos}");
            bench.faults.set_faults(Faults::default());
            assert_eq!(file.size(), 64 * BLOCK, "{way:?}: {len} at {pos}");
            let bytes = content(&file, &mut queue);
            assert!(bytes.iter().all(|byte| *byte == 0), "{way:?}: {len} at {pos}");
        }
        // Blocks that the failed write allocated below the end of the file remain allocated and unwritten.
        drop((file, queue));
        let left = bench.volume.ext4().unwrap().free_space();
        assert_eq!(free.blocks - left.blocks, 4, "{way:?}");
        let image = bench.close();
        assert!(image.dump("/file") == vec![0; 64 * BLOCK as usize]);
    }
}

/// If a sync fails, the writer that requested the sync gets the error.
#[test]
fn an_error_of_the_sync_is_an_error_of_the_write() {
    for way in CALLS {
        let bench = Bench::new(EXT4);
        let (file, mut queue) = (bench.hole("file", 64), bench.queue());
        file.write_at(&mut queue, &memory(BLOCK, 1), FilePos(0)).unwrap();
        // The first request to the device writes the data. The requests of the journal follow.
        bench.faults.set_faults(Faults { fail_after: Some(1), ..Faults::default() });
        let result = way.write((&file, &mut queue), memory(BLOCK, 2), 0, DioFlags::SYNC);
        assert!(result.is_err(), "{way:?}");
        bench.faults.set_faults(Faults::default());
    }
}

/// Every way to write continues after a short transfer, and writes no data to a wrong position.
#[test]
fn short_transfers_are_continued() {
    require!([Need::Bare("it continues them itself")]);
    for way in CALLS {
        let bench = Bench::new(EXT4);
        let (file, mut queue) = (bench.hole("file", 4), bench.queue());
        bench.faults.set_faults(Faults { short_one_in: Some(2), seed: 5, ..Faults::default() });
        let mut expected = vec![0; 300 * BLOCK as usize];
        for step in 0..60 {
            let (pos, len) = (step * 37 % 200 * 1536, (step % 9 + 1) * 512 * (step % 4 * 8 + 1));
            let buffer = memory(len, step as u8 + 1);
            let count = way.write((&file, &mut queue), buffer, pos, NONE).unwrap();
            assert_eq!(count as u64, len, "{way:?}, step {step}");
            expected[pos as usize..(pos + len) as usize].fill(step as u8 + 1);
        }
        assert!(queue.stats().short > 0);
        bench.faults.set_faults(Faults::default());
        expected.truncate(file.size() as usize);
        drop((file, queue));
        assert!(bench.close().dump("/file") == expected, "{way:?}");
    }
}

/// If space remains for a part of a write, this part is written and its length is returned. The next write is refused. Existing blocks can
/// still be overwritten.
#[test]
fn without_space_for_all_a_part_is_written_and_counted() {
    for way in CALLS {
        let bench = Bench::new(EXT4);
        let (file, mut queue) = (bench.written("file", 4), bench.queue());
        let count =
            way.write((&file, &mut queue), memory(64 * MIB, 0x22), 2 * BLOCK, NONE).unwrap();
        assert!(count as u64 > 4 * MIB && (count as u64) < 24 * MIB, "{way:?}: {count}");
        assert_eq!(file.size(), 2 * BLOCK + count as u64, "{way:?}");
        let end = file.size().next_multiple_of(BLOCK);
        let result = way.write((&file, &mut queue), memory(BLOCK, 0x33), end, NONE);
        assert_eq!(kind(result), ErrorKind::NoSpace, "{way:?}");
        assert_eq!(kind(file.append(&mut queue, &memory(BLOCK, 0x33), NONE)), ErrorKind::NoSpace);
        way.write((&file, &mut queue), memory(BLOCK, 0x44), 0, NONE).unwrap();
        file.sync(&mut queue).unwrap();
        let expected = content(&file, &mut queue);
        assert!(expected[..4096] == [0x44; 4096] && expected[4096..8192] == [0x11; 4096]);
        assert!(
            expected[8192..].iter().all(|byte| *byte == 0x22) && expected.len() == 2 * 4096 + count
        );
        drop((file, queue));
        assert!(bench.close().dump("/file") == expected, "{way:?}");
    }
}

/// If space remains for a part of an append, this part is written and its length is returned. The next append begins after this part.
#[test]
fn an_append_that_is_cut_short_leaves_no_gap() {
    let bench = Bench::new(EXT4);
    let (file, mut queue) = (bench.written("file", 4), bench.queue());
    assert_eq!(kind(file.append(&mut queue, &memory(64 * MIB, 0x22), NONE)), ErrorKind::NoSpace);
    let end = file.size();
    assert!(end > 4 * MIB);
    let room = bench.open(bench.create("other"), false);
    drop(room);
    bench.fs().writable().unwrap().truncate(file.inode(), end - MIB).unwrap();
    let at = file.append(&mut queue, &memory(BLOCK, 0x33), NONE).unwrap();
    assert_eq!(at.0, end - MIB);
    drop((file, queue));
    bench.close();
}

/// The code of the file system writes some data itself, without the direct-I/O core. If the device returns an error for these data, only
/// this write fails. The blocks that were allocated for the write are freed.
#[test]
fn data_that_cannot_be_written_does_not_end_the_volume() {
    for mkfs in ["-t ext3 -b 4096", "-t ext4 -b 4096"] {
        let bench = Bench::new(mkfs);
        let sectors = bench.soil();
        let number = bench.create("file");
        bench.fs().sync().unwrap();
        bench.faults.set_faults(Faults { bad_sectors: sectors, ..Faults::default() });
        let failed =
            bench.fs().writable().unwrap().write(number, FilePos(0), &[7; 3 * BLOCK as usize]);
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Io(Errno::EIO), "{mkfs}");
        bench.faults.set_faults(Faults::default());
        bench.fs().writable().unwrap().write(number, FilePos(0), &[8; 3 * BLOCK as usize]).unwrap();
        bench.fs().sync().unwrap();
        bench.close();
    }
}
