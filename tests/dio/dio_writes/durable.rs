//! Writes with `O_DSYNC`, writes with `O_SYNC`, and atomic writes. The tests check the requests to the device, and the data that a power
//! cut may lose.

use ironmap::ErrorKind;
use ironmap::device::{Limits, Ram, ThroughFlushes};
use ironmap::dio::DioFlags;
use ironmap::error::Errno;
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{Access, Fallocate};
use ironmap::iomap::IomapType;
use ironmap::units::FilePos;

use crate::common::image::{Image, words};
use crate::common::skip::Need;
use crate::dio_writes::bench::{BLOCK, Bench, CALLS, Call, Seen, content, kind, map, memory};
use crate::require;

const EXT4: &str = "-t ext4 -b 4096";
const DSYNC: DioFlags = DioFlags::DSYNC;

/// If the metadata are clean, a DSYNC overwrite of written extents needs no separate flush, because each bio has force unit access. Some
/// devices implement force unit access by an internal flush, and report a failed flush only to this one write. On these devices ironmap
/// sends a separate flush after the data.
#[test]
fn dsync_of_a_pure_overwrite_is_written_through() {
    require!([Need::NoJournalBeneath("all of its writes are durable")]);
    for through_flushes in [ThroughFlushes::Never, ThroughFlushes::OfCalls, ThroughFlushes::Always]
    {
        let bench = Bench::with_limits(EXT4, Limits { through_flushes, ..Ram::LIMITS });
        let (file, mut queue) = (bench.written("file", 8), bench.queue());
        let flushing = bench.volume.device().limits().through_flushes;
        for way in CALLS {
            for (pos, len) in [(0, BLOCK), (512, 512), (BLOCK, 3 * BLOCK)] {
                let seen = bench.seen(|| {
                    way.write((&file, &mut queue), memory(len, 0x22), pos, DSYNC).unwrap();
                });
                let through = Seen { writes: 1, through: 1, flushes: 0 };
                let flushed = Seen { writes: 1, through: 0, flushes: 1 };
                let expected = match (flushing, way) {
                    (ThroughFlushes::Never, _) | (ThroughFlushes::OfCalls, Call::Owned) => through,
                    _ => flushed,
                };
                assert_eq!(seen, expected, "{through_flushes:?}, {way:?}: {len} at {pos}");
            }
        }
    }
}

/// If queued writes complete together, they share one flush of the device, even if they belong to several files.
#[test]
fn queued_dsync_writes_share_a_flush() {
    require!([Need::NoJournalBeneath("all of its writes are durable")]);
    let limits = Limits { through_flushes: ThroughFlushes::Always, ..Ram::LIMITS };
    let bench = Bench::with_limits(EXT4, limits);
    let files = [bench.written("one", 8), bench.written("other", 8)];
    let mut queue = bench.queue();
    let seen = bench.seen(|| {
        for block in 0..8 {
            let (data, file) = (memory(BLOCK, 0x22), &files[block as usize % 2]);
            file.submit_write(&mut queue, data, FilePos(block * BLOCK), DSYNC, block).unwrap();
        }
        queue.wait(8).unwrap();
        while let Some(done) = queue.pop() {
            done.result.unwrap();
        }
    });
    assert_eq!((seen.writes, seen.through), (8, 0));
    assert_eq!(seen.flushes, 1, "{seen:?}");
}

/// A DSYNC write whose range contains one unwritten segment ends with a commit or a flush. Acknowledged data survive a power cut.
#[test]
fn dsync_that_needs_metadata_commits_them_and_flushes() {
    require!([Need::NoJournalBeneath("it needs no flushes")]);
    for way in CALLS {
        for (name, pos, len) in [
            ("hole", BLOCK, BLOCK),
            ("unwritten", BLOCK, BLOCK),
            ("unwritten", 512, 1024),
            ("mixed", 2 * BLOCK, 4 * BLOCK),
            ("written", 8 * BLOCK, BLOCK),
            ("written", 7 * BLOCK, 2 * BLOCK),
            ("written", 12 * BLOCK, 512),
        ] {
            let bench = Bench::new(EXT4);
            let mut queue = bench.queue();
            let file = match name {
                "hole" => bench.hole(name, 8),
                "unwritten" => bench.unwritten(name, 8),
                _ => bench.written(name, 8),
            };
            if name == "mixed" {
                bench
                    .fs()
                    .writable()
                    .unwrap()
                    .fallocate(file.inode(), Fallocate::Punch, FilePos(3 * BLOCK), BLOCK)
                    .unwrap();
                bench.fs().sync().unwrap();
            }
            let seen = bench.seen(|| {
                way.write((&file, &mut queue), memory(len, 0x22), pos, DSYNC).unwrap();
            });
            assert!(seen.flushes > 0, "{way:?}, {name}, {len} at {pos}: {seen:?}");
            let expected = content(&file, &mut queue);
            let crashed = bench.after_crash();
            let (other, mut other_queue) = (crashed.open(file.inode(), false), crashed.queue());
            let found = content(&other, &mut other_queue);
            assert!(found == expected, "{way:?}, {name}, {len} at {pos}: after a power cut");
        }
    }
}

/// A write without a sync leaves its blocks marked as unwritten on the device. A DSYNC overwrite of these blocks must mark them as written.
/// Without the mark, a power cut would lose the data.
#[test]
fn dsync_over_what_is_not_converted_converts_it() {
    for way in CALLS {
        let bench = Bench::new(EXT4);
        let (file, mut queue) = (bench.unwritten("file", 8), bench.queue());
        file.write_at(&mut queue, &memory(BLOCK, 0x22), FilePos(BLOCK)).unwrap();
        way.write((&file, &mut queue), memory(BLOCK, 0x33), BLOCK, DSYNC).unwrap();
        let crashed = bench.after_crash();
        let (other, mut other_queue) = (crashed.open(file.inode(), false), crashed.queue());
        let found = content(&other, &mut other_queue);
        assert!(found[BLOCK as usize..][..BLOCK as usize] == [0x33; BLOCK as usize], "{way:?}");
    }
}

/// A write into blocks preallocated past the old size extends the file without a transaction. A later DSYNC write below the new size must
/// also mark these blocks as written.
#[test]
fn dsync_below_a_size_that_is_not_converted_converts_it() {
    for way in CALLS {
        let bench = Bench::new(EXT4);
        let number = bench.create("file");
        let how = Fallocate::Allocate { keep_size: true };
        bench.fs().writable().unwrap().fallocate(number, how, FilePos(0), 8 * BLOCK).unwrap();
        bench.fs().sync().unwrap();
        let (file, mut queue) = (bench.open(number, false), bench.queue());
        file.write_at(&mut queue, &memory(2 * BLOCK, 0x22), FilePos(0)).unwrap();
        way.write((&file, &mut queue), memory(BLOCK, 0x33), BLOCK, DSYNC).unwrap();
        let crashed = bench.after_crash();
        let (other, mut other_queue) = (crashed.open(number, false), crashed.queue());
        let found = content(&other, &mut other_queue);
        assert_eq!(found.len() as u64, 2 * BLOCK, "{way:?}: the size");
        assert!(found[BLOCK as usize..] == [0x33; BLOCK as usize], "{way:?}");
    }
}

/// A handle is opened after the map of a new file was changed. A DSYNC write through this handle also commits the map.
#[test]
fn dsync_commits_a_map_that_someone_else_has_changed() {
    require!([Need::NoJournalBeneath("it needs no flushes")]);
    let bench = Bench::new(EXT4);
    let number = bench.create("file");
    bench.fs().writable().unwrap().write(number, FilePos(0), &[0x11; 8192]).unwrap();
    let (file, mut queue) = (bench.open(number, false), bench.queue());
    let seen = bench.seen(|| {
        file.write_at_with(&mut queue, &memory(BLOCK, 0x22), FilePos(0), DSYNC).unwrap();
    });
    assert!(seen.flushes > 0, "{seen:?}");
    let crashed = bench.after_crash();
    let (other, mut other_queue) = (crashed.open(number, false), crashed.queue());
    let found = content(&other, &mut other_queue);
    assert!(found == [[0x22; BLOCK as usize], [0x11; BLOCK as usize]].concat());
}

/// SYNC commits all metadata. DSYNC commits only the metadata that are needed to read the data.
#[test]
fn sync_commits_also_the_time_of_an_overwrite() {
    for way in CALLS {
        let bench = Bench::new(EXT4);
        let (file, mut queue) = (bench.written("file", 8), bench.queue());
        let held = bench.fs().hold(file.inode()).unwrap();
        held.stamp(Access::Write);
        let stamped = held.inode().unwrap().stat().modified;
        way.write((&file, &mut queue), memory(BLOCK, 0x22), 0, DioFlags::SYNC).unwrap();
        let modified = held.inode().unwrap().stat().modified;
        let crashed = bench.after_crash();
        let kept = crashed.fs().inode(file.inode()).unwrap().stat().modified;
        assert_eq!(kept, modified, "{way:?}");
        assert!(modified >= stamped, "{way:?}");
    }
}

/// After fsync and fdatasync, data that were written before the call survive a power cut, and their blocks are marked as written.
#[test]
fn syncs_keep_what_was_written_before_them() {
    for data_only in [false, true] {
        let bench = Bench::new(EXT4);
        let (file, mut queue) = (bench.hole("file", 8), bench.queue());
        file.write_at(&mut queue, &memory(1024, 0x22), FilePos(512)).unwrap();
        file.write_at(&mut queue, &memory(BLOCK, 0x33), FilePos(8 * BLOCK)).unwrap();
        if data_only { file.sync_data(&mut queue) } else { file.sync(&mut queue) }.unwrap();
        let expected = content(&file, &mut queue);
        assert_eq!(expected.len() as u64, 9 * BLOCK);
        use IomapType::{Hole, Mapped};
        assert_eq!(map(&file), [(Mapped, 1), (Hole, 7), (Mapped, 1)]);
        let crashed = bench.after_crash();
        let (other, mut other_queue) = (crashed.open(file.inode(), false), crashed.queue());
        assert!(content(&other, &mut other_queue) == expected, "data only: {data_only}");
    }
}

#[test]
fn atomic_writes_are_refused_where_the_device_does_not_promise_them() {
    require!([Need::NoJournalBeneath("all of its writes are atomic")]);
    let bench = Bench::new(EXT4);
    let (file, mut queue) = (bench.written("file", 8), bench.queue());
    let seen = bench.seen(|| {
        for way in CALLS {
            let result = way.write((&file, &mut queue), memory(BLOCK, 0x22), 0, DioFlags::ATOMIC);
            assert_eq!(kind(result), ErrorKind::Io(Errno::EOPNOTSUPP), "{way:?}");
        }
    });
    assert_eq!(seen.writes, 0);
}

/// The length of an atomic write is a power of two. Its position is a multiple of this length, and its range is within one written extent.
/// Any other atomic write is refused and writes nothing.
#[test]
fn atomic_writes_are_one_bio_or_refused() {
    require!([Need::NoJournalBeneath("all of its writes are atomic")]);
    let limits = Limits { atomic_write: 16 << 10, ..Ram::LIMITS };
    let bench = Bench::with_limits(EXT4, limits);
    let (file, mut queue) = (bench.written("file", 16), bench.queue());
    let number = file.inode();
    bench
        .fs()
        .writable()
        .unwrap()
        .fallocate(number, Fallocate::Punch, FilePos(9 * BLOCK), BLOCK)
        .unwrap();
    let keep = Fallocate::Allocate { keep_size: false };
    bench.fs().writable().unwrap().fallocate(number, keep, FilePos(14 * BLOCK), 4 * BLOCK).unwrap();
    bench.fs().sync().unwrap();
    let before = map(&file);
    for way in CALLS {
        for (pos, len) in [(0, 512), (BLOCK, BLOCK), (4 * BLOCK, 4 * BLOCK)] {
            let seen = bench.seen(|| {
                let buffer = memory(len, 0x22);
                let written = way.write((&file, &mut queue), buffer, pos, DioFlags::ATOMIC);
                assert_eq!(written.unwrap() as u64, len, "{way:?}");
            });
            assert_eq!(seen.writes, 1, "{way:?}: {len} at {pos}");
        }
        let content_before = content(&file, &mut queue);
        for (pos, len, expected) in [
            (0, 3 * BLOCK, Errno::EINVAL),
            (512, BLOCK, Errno::EINVAL),
            (0, 8 * BLOCK, Errno::EINVAL),
            (100, 512, Errno::EINVAL),
            (8 * BLOCK, 4 * BLOCK, Errno::EOPNOTSUPP),
            (9 * BLOCK, BLOCK, Errno::EOPNOTSUPP),
            (16 * BLOCK, BLOCK, Errno::EOPNOTSUPP),
            (32 * BLOCK, BLOCK, Errno::EOPNOTSUPP),
        ] {
            let result = way.write((&file, &mut queue), memory(len, 0x33), pos, DioFlags::ATOMIC);
            assert_eq!(result.unwrap_err().errno(), expected, "{way:?}: {len} at {pos}");
        }
        assert!(content(&file, &mut queue) == content_before, "{way:?}");
        assert_eq!(map(&file), before, "{way:?}: a refused write has taken space");
    }
}

/// The journal is full of old transactions of earlier sessions. The files of these transactions are deleted. A recovery by ironmap or by
/// the kernel replays no old transaction (lwext4 issue 86). The sessions end alternately with a close and with a power cut.
#[test]
fn transactions_of_earlier_lives_bring_nothing_back() {
    let name = |life: usize, number: usize| format!("life{life}-{number}");
    let mut image = Image::in_memory("24M", &words(EXT4));
    for life in 0..8 {
        let bench = Bench::with_image(image, Ram::LIMITS);
        // Each session is shorter than the session before, so old transactions remain at the end of the journal.
        for number in 0..16 - life {
            drop(bench.written(&name(life, number), 1));
            if life > 0 {
                bench
                    .fs()
                    .writable()
                    .unwrap()
                    .unlink(ROOT, name(life - 1, number).as_bytes())
                    .unwrap();
                bench.fs().sync().unwrap();
            }
        }
        if life > 0 {
            bench
                .fs()
                .writable()
                .unwrap()
                .unlink(ROOT, name(life - 1, 16 - life).as_bytes())
                .unwrap();
        }
        bench.fs().sync().unwrap();
        image = if life % 2 == 0 { bench.cut() } else { bench.close() };
        let (theirs, ours) = (image.copy(), image.copy());
        theirs.repair_journal();
        let recovered = Bench::with_image(ours, Ram::LIMITS);
        for recovered in [theirs, recovered.close()] {
            recovered.check();
            let listed = recovered.ask_debugfs("ls -p /\n");
            let names = listed.lines().filter_map(|line| line.split('/').nth(5));
            let mut names: Vec<_> = names.filter(|name| name.starts_with("life")).collect();
            names.sort_unstable();
            let mut expected: Vec<_> = (0..16 - life).map(|number| name(life, number)).collect();
            expected.sort_unstable();
            assert_eq!(names, expected, "life {life}");
        }
    }
}
