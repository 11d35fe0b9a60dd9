//! Direct I/O on files of a file system that the test implements.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::thread;

use ironmap::bio::Buffer;
use ironmap::device::Ram;
use ironmap::dio::DioFlags;
use ironmap::fs::{Fallocate, FileSystem, SetAttributes, Writer};
use ironmap::iomap::IomapType;
use ironmap::units::FilePos;
use ironmap::{ErrorKind, QueueOptions};

use crate::format::{Kind, MemFs, Second};
use crate::rng::Rng;
use crate::world::{BLOCK, LAZY, NONE, READ, World, buffer, create, open};

const SECTOR: usize = 512;
const SEED: u64 = 0x3e3f5;
const KINDS: [Kind; 5] = [
    Kind::WHOLE,
    LAZY,
    Kind { unwritten: false, ..Kind::WHOLE },
    Kind { second: Second::Memory, ..Kind::WHOLE },
    Kind { second: Second::Files, log: true, ..LAZY },
];

/// The bytes that a read at a position returns, if the file has this content.
fn part(model: &[u8], pos: usize, len: usize) -> &[u8] {
    let from = pos.min(model.len());
    &model[from..(from + len).min(model.len())]
}

/// Reads use the same code paths as on ext4. The file has data, a hole, an unwritten range, and an end in the middle of a sector.
#[test]
fn reads_go_the_same_ways_as_ext4s() {
    for kind in [READ, Kind { resident: false, ..READ }, Kind::WHOLE, LAZY] {
        let mut made = World::new(Kind::WHOLE, 64);
        let mut model = Rng::new(SEED).bytes(10 * BLOCK + 100);
        made.write(0, &model);
        made.sync();
        let (hole, empty) = (2 * BLOCK, 4 * BLOCK);
        made.fs
            .fallocate(made.number, Fallocate::Punch, FilePos(hole as u64), empty as u64)
            .unwrap();
        let how = Fallocate::Allocate { keep_size: false };
        made.fs.fallocate(made.number, how, FilePos(empty as u64), hole as u64).unwrap();
        model[hole..hole + empty].fill(0);

        let mut world = made.seen_as(kind);
        let kinds: Vec<_> = world.mappings().iter().map(|(kind, _)| *kind).collect();
        use IomapType::{Hole, Mapped, Unwritten};
        assert_eq!(kinds, [Mapped, Hole, Unwritten, Mapped]);
        let mut aligned = Buffer::aligned(BLOCK).unwrap();
        for pos in [0, BLOCK, 7 * BLOCK] {
            world.file.read_at(&mut world.queue, &mut aligned, FilePos(pos as u64)).unwrap();
            assert_eq!(aligned[..], model[pos..pos + BLOCK]);
        }
        let simple = world.queue.stats().simple_hits;
        assert_eq!(simple > 0, kind.resident, "{kind:?}");
        // Some of the reads cover several extents. Some are unaligned. Some are at the end of the file or past it.
        for (pos, len) in [
            (0, 11 * BLOCK),
            (3, 5),
            (hole - 7, 3 * BLOCK),
            (10 * BLOCK, BLOCK),
            (10 * BLOCK + 99, 9),
            (11 * BLOCK, 1),
        ] {
            assert_eq!(world.read(pos, len), part(&model, pos, len), "{kind:?}: {len} at {pos}");
            let memory = Buffer::aligned(len).unwrap();
            world.file.submit_read(&mut world.queue, memory, FilePos(pos as u64), NONE, 7).unwrap();
            assert_eq!(world.completion(), (7, part(&model, pos, len).to_vec()));
        }
    }
}

#[test]
fn a_volume_that_is_only_read_is_not_written() {
    let mut world = World::new(Kind::WHOLE, 8).seen_as(READ);
    let refused = world.file.write_at(&mut world.queue, &[0; SECTOR], FilePos(0)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    let writer = world.volume.fs().writable().map(drop);
    assert_eq!(writer.unwrap_err().kind(), ErrorKind::ReadOnly, "it gives no way to change it");
}

/// Writes into holes change the state of the extents and the size. A sync writes these metadata.
#[test]
fn a_sync_converts_writes_to_holes() {
    for kind in [Kind::WHOLE, LAZY] {
        let mut world = World::new(kind, 16);
        world.fs.truncate(world.number, 3 * BLOCK as u64).unwrap();
        world.write(BLOCK + SECTOR, &[7; SECTOR]);
        world.write(4 * BLOCK, &[8; BLOCK]);
        use IomapType::{Hole, Mapped, Unwritten};
        let (block, sector) = (BLOCK as u64, SECTOR as u64);
        let written = [
            (Hole, block),
            (Unwritten, sector),
            (Mapped, sector),
            (Unwritten, block - 2 * sector),
            (Hole, 2 * block),
            (Mapped, block),
        ];
        assert_eq!(world.mappings(), written, "{kind:?}");
        let metadata = [(Hole, block), (Unwritten, block), (Hole, block)];
        assert_eq!(world.seen_as(READ).mappings(), metadata, "{kind:?}");
        world.sync();
        let converted = [(Hole, block), (Mapped, block), (Hole, 2 * block), (Mapped, block)];
        for kind in [kind, READ] {
            let mut world = world.seen_as(kind);
            assert_eq!(world.mappings(), converted);
            let mut model = vec![0; 5 * BLOCK];
            model[BLOCK + SECTOR..BLOCK + 2 * SECTOR].fill(7);
            model[4 * BLOCK..].fill(8);
            assert_eq!(world.read(0, 5 * BLOCK), model);
        }
    }
}

/// A write covers only a part of a new block. The rest of the block does not show its old content.
#[test]
fn a_block_that_is_written_in_part_shows_nothing_else() {
    for kind in KINDS {
        let mut world = World::new(kind, 4);
        world.write(0, &[0xee; 4 * BLOCK]);
        world.sync();
        world.fs.truncate(world.number, 0).unwrap();
        world.write(BLOCK + 5, b"some bytes");
        for synced in [false, true] {
            let mut model = vec![0; BLOCK + 5];
            model.extend(b"some bytes");
            assert_eq!(world.read(0, 4 * BLOCK), model, "{kind:?}, {synced}");
            world.sync();
        }
        world.fs.truncate(world.number, 2 * BLOCK as u64).unwrap();
        assert_eq!(world.read(BLOCK + 15, BLOCK), vec![0; BLOCK - 15], "{kind:?}");
    }
}

#[test]
fn overwrites_take_the_simple_path() {
    let mut world = World::new(Kind::WHOLE, 16);
    world.write(0, &[1; 8 * BLOCK]);
    world.sync();
    let mapped = world.mappings();
    let block = buffer(&[2; BLOCK]);
    world.write(0, &block);
    let before = world.queue.stats().overwrites;
    for pos in (0..8 * BLOCK).step_by(BLOCK) {
        world.write(pos, &block);
    }
    assert_eq!(world.queue.stats().overwrites, before + 8);
    assert_eq!(world.mappings(), mapped);
    assert_eq!(world.read(0, 8 * BLOCK), [2; 8 * BLOCK]);
}

/// An append gets its range when it is submitted. When all appends are complete, the file ends after the last of these ranges.
#[test]
fn appends_in_flight_lie_one_after_the_other() {
    for kind in KINDS {
        let mut world = World::new(kind, 64);
        let mut model = Vec::new();
        for token in 0..20_u8 {
            let bytes = vec![token + 1; SECTOR * (1 + usize::from(token) % 5)];
            let memory = buffer(&bytes);
            let at = world.file.submit_append(&mut world.queue, memory, NONE, token.into());
            assert_eq!(at.unwrap(), FilePos(model.len() as u64), "{kind:?}");
            model.extend(bytes);
        }
        for _ in 0..20 {
            world.completion();
        }
        assert_eq!(world.file.size(), model.len() as u64);
        let at = world.file.append(&mut world.queue, b"the end", NONE).unwrap();
        assert_eq!(at, FilePos(model.len() as u64));
        model.extend(b"the end");
        for _ in 0..2 {
            assert_eq!(world.read(0, 64 * BLOCK), model, "{kind:?}");
            world.sync();
        }
    }
}

#[test]
fn a_nowait_write_changes_no_metadata() {
    let mut world = World::new(Kind::WHOLE, 16);
    world.fs.truncate(world.number, 2 * BLOCK as u64).unwrap();
    world.write(0, &[1; BLOCK]);
    world.sync();
    let block = buffer(&[2; BLOCK]);
    let (file, nowait) = (world.file.clone(), DioFlags::NOWAIT);
    let mut write =
        |pos: usize| file.write_at_with(&mut world.queue, &block, FilePos(pos as u64), nowait);
    assert_eq!(write(0).unwrap(), BLOCK);
    for pos in [BLOCK, 2 * BLOCK] {
        assert_eq!(write(pos).unwrap_err().kind(), ErrorKind::WouldBlock, "at {pos}");
    }
    let refused = file.append(&mut world.queue, &block, nowait).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    assert_eq!(world.fs.usage().free.blocks, 15);
}

#[test]
fn a_write_that_finds_no_space_is_short_or_none() {
    for kind in KINDS {
        let mut world = World::new(kind, 4);
        let bytes = buffer(&[3; 6 * BLOCK]);
        let whole = world.file.write_at_with(&mut world.queue, &bytes, FilePos(0), DioFlags::WHOLE);
        assert_eq!(whole.unwrap_err().kind(), ErrorKind::NoSpace, "{kind:?}");
        assert_eq!(world.file.size(), 0);
        let count = world.file.write_at(&mut world.queue, &bytes, FilePos(0)).unwrap();
        assert_eq!((count, world.file.size()), (4 * BLOCK, 4 * BLOCK as u64));
        let none = world.file.write_at(&mut world.queue, &bytes, FilePos(8 * BLOCK as u64));
        assert_eq!(none.unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(world.read(0, 9 * BLOCK), [3; 4 * BLOCK]);
    }
}

/// A truncation waits for requests in flight of other threads. If the truncating thread itself has requests in flight, the truncation
/// returns an error instead.
#[test]
fn a_file_is_truncated_while_no_request_uses_it() {
    let mut world = World::new(Kind::WHOLE, 16);
    world.write(0, &[1; 4 * BLOCK]);
    world.sync();
    world.file.submit_write(&mut world.queue, buffer(&[2; BLOCK]), FilePos(0), NONE, 0).unwrap();
    let busy = world.fs.truncate(world.number, 0).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    let (fs, number) = (world.fs.clone(), world.number);
    let cutter = thread::spawn(move || fs.truncate(number, 100));
    world.completion();
    cutter.join().unwrap().unwrap();
    assert_eq!(world.read(0, BLOCK), [2; 100]);
    assert_eq!(world.fs.usage().free.blocks, 15);
}

#[test]
fn a_write_takes_set_id_bits_away() {
    let world = World::new(Kind::WHOLE, 16);
    let set = SetAttributes::new().permissions(0o6755);
    world.fs.set_attributes(world.number, &set).unwrap();
    let mut world = world.seen_as(Kind::WHOLE);
    world.write(0, &[1; BLOCK]);
    assert_eq!(world.fs.inode(world.number).unwrap().stat().mode & 0o7777, 0o755);
}

#[test]
fn a_volume_that_was_closed_refuses_writes() {
    let mut world = World::new(Kind::WHOLE, 16);
    world.write(0, &[1; BLOCK]);
    world.volume.close().unwrap();
    let refused = world.file.write_at(&mut world.queue, &[2; BLOCK], FilePos(0)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    assert_eq!(world.seen_as(READ).read(0, BLOCK), [1; BLOCK], "a close brings the metadata up");
    world.fs.opened_again().fs().writable().unwrap().truncate(world.number, 1).unwrap();
}

/// One queue sends random requests, several of them in flight at a time. The results agree with a vector of bytes.
#[test]
fn random_requests_agree_with_a_vector_of_bytes() {
    for kind in KINDS {
        for seed in SEED..SEED + 8 {
            println!("seed {seed:#x}, {kind:?}");
            random(kind, seed);
        }
    }
}

/// The maximum size of a file in a random test.
const MOST: usize = 40 * BLOCK;

fn random(kind: Kind, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut world = World::new(kind, 200);
    let mut model: Vec<u8> = Vec::new();
    for step in 0..400 {
        let unit = [1, SECTOR, BLOCK][rng.below(3) as usize];
        let pos = rng.below(((model.len() + 2 * BLOCK).min(MOST) / unit) as u64) as usize * unit;
        let most = if rng.below(8) == 0 { 10 * BLOCK } else { 2 * BLOCK };
        let len = (1 + rng.below((most / unit) as u64) as usize) * unit;
        let (at, range) = (FilePos(pos as u64), pos..pos + len);
        match rng.below(16) {
            0..4 => {
                assert_eq!(world.read(pos, len), part(&model, pos, len), "step {step}");
            }
            4..8 => {
                let bytes = rng.bytes(len);
                world.write(pos, &bytes);
                put(&mut model, pos, &bytes);
            }
            8..11 => several(&mut world, &mut model, &mut rng),
            11 => {
                let bytes = rng.bytes(len);
                let at = world.file.append(&mut world.queue, &bytes, NONE).unwrap();
                assert_eq!(at.0, model.len() as u64, "step {step}");
                model.extend(bytes);
            }
            12 => {
                world.fs.truncate(world.number, pos as u64).unwrap();
                model.resize(pos, 0);
            }
            13 => {
                world.fs.fallocate(world.number, Fallocate::Punch, at, len as u64).unwrap();
                let end = range.end.min(model.len());
                model[pos.min(end)..end].fill(0);
            }
            14 if kind.unwritten => {
                let keep_size = rng.below(2) == 0;
                let how = Fallocate::Allocate { keep_size };
                world.fs.fallocate(world.number, how, at, len as u64).unwrap();
                if !keep_size {
                    model.resize(model.len().max(range.end), 0);
                }
            }
            14 => world.queue = world.volume.queue(&QueueOptions::default()).unwrap(),
            _ => match rng.below(3) {
                0 => world.sync(),
                1 => world.file = open(&world.volume, world.number),
                _ => shift(&world, &mut model, kind, &mut rng),
            },
        }
        assert_eq!(world.file.size(), model.len() as u64, "step {step}");
    }
    assert_eq!(world.read(0, MOST * 2), model);
    world.sync();
    assert_eq!(world.seen_as(READ).read(0, MOST * 2), model, "by the metadata alone");
    assert!(world.volume.events().take().0.is_empty());
    world.fs.unlink(world.fs.root(), b"file").unwrap();
    let World { fs, file, .. } = world;
    assert!(fs.usage().free.blocks < 200 || model.is_empty(), "the file is open");
    drop(file);
    assert_eq!(fs.usage().free.blocks, 200);
}

fn put(model: &mut Vec<u8>, pos: usize, bytes: &[u8]) {
    model.resize(model.len().max(pos + bytes.len()), 0);
    model[pos..pos + bytes.len()].copy_from_slice(bytes);
}

/// Submits writes and reads. They are in flight at the same time, and each has a separate range.
fn several(world: &mut World, model: &mut Vec<u8>, rng: &mut Rng) {
    let before = model.clone();
    let (mut pos, mut reads) = (0, Vec::new());
    for token in 0..1 + rng.below(12) {
        pos += rng.below(3) as usize * SECTOR;
        let len = (1 + rng.below(12) as usize) * SECTOR;
        let at = FilePos(pos as u64);
        if rng.below(3) == 0 && pos + len < before.len() {
            let memory = Buffer::aligned(len).unwrap();
            world.file.submit_read(&mut world.queue, memory, at, NONE, token).unwrap();
            reads.push((token, before[pos..pos + len].to_vec()));
        } else {
            let bytes = rng.bytes(len);
            world.file.submit_write(&mut world.queue, buffer(&bytes), at, NONE, token).unwrap();
            put(model, pos, &bytes);
        }
        pos += len;
    }
    while world.queue.outstanding() > 0 {
        let (token, bytes) = world.completion();
        if let Some((_, expected)) = reads.iter().find(|(read, _)| *read == token) {
            assert_eq!(&bytes, expected);
        }
    }
}

/// Removes blocks from the file, or inserts blocks.
fn shift(world: &World, model: &mut Vec<u8>, kind: Kind, rng: &mut Rng) {
    let blocks = model.len() / BLOCK;
    if blocks < 3 || !kind.unwritten {
        return;
    }
    let pos = rng.below(blocks as u64 - 1) as usize * BLOCK;
    let (at, len) = (FilePos(pos as u64), BLOCK as u64);
    if model.len() < MOST && rng.below(2) == 0 {
        world.fs.fallocate(world.number, Fallocate::Insert, at, len).unwrap();
        model.splice(pos..pos, [0; BLOCK]);
    } else {
        world.fs.fallocate(world.number, Fallocate::Collapse, at, len).unwrap();
        model.drain(pos..pos + BLOCK);
    }
}

/// Several threads write one file, each to its own blocks. Sometimes a thread syncs the file.
#[test]
fn threads_write_one_file() {
    const THREADS: usize = 3;
    for kind in KINDS {
        let mut world = World::new(kind, 200);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (volume, file) = (world.volume.clone(), world.file.clone());
                scope.spawn(move || {
                    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
                    for round in 0..30 {
                        let pos = ((round * THREADS + thread) * BLOCK) as u64;
                        let block = buffer(&[1 + thread as u8; BLOCK]);
                        file.submit_write(&mut queue, block, FilePos(pos), NONE, 0).unwrap();
                        if round % 7 == 0 {
                            file.sync(&mut queue).unwrap();
                        }
                    }
                    while queue.outstanding() > 0 {
                        queue.wait(1).unwrap();
                        while let Some(completion) = queue.pop() {
                            completion.result.unwrap();
                        }
                    }
                });
            }
        });
        let content = world.read(0, 200 * BLOCK);
        assert_eq!(content.len(), 90 * BLOCK);
        for (block, bytes) in content.chunks(BLOCK).enumerate() {
            assert!(bytes.iter().all(|byte| *byte == 1 + (block % THREADS) as u8), "block {block}");
        }
    }
}

/// Whether a thread of this process sleeps in the kernel.
fn sleeps(thread: i32) -> bool {
    let stat =
        std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // In the `stat` line, the name of the thread is in parentheses and can contain any character.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

/// An append may have to wait until its position is known. If set-id bits are set during this wait, the append still removes them.
#[test]
fn an_append_that_waited_meets_attributes_that_changed() {
    let fs = MemFs::new(Arc::new(Ram::new(16 * BLOCK as u64)), Kind::WHOLE);
    let number = create(&fs, b"file");
    let append = || {
        let mut world = World::of(&fs, Kind::WHOLE, number);
        world.file.append(&mut world.queue, &[1; BLOCK], NONE).unwrap()
    };
    fs.gate.closed.store(true, SeqCst);
    let waiter = AtomicI32::new(0);
    let ends = thread::scope(|scope| {
        let first = scope.spawn(append);
        while !fs.gate.reached.load(SeqCst) {
            thread::yield_now();
        }
        // The first append waits while it allocates blocks. The position of the second append depends on the length of the first, so the
        // second append sleeps.
        let second = scope.spawn(|| {
            waiter.store(rustix::thread::gettid().as_raw_nonzero().get(), SeqCst);
            append()
        });
        while !sleeps(waiter.load(SeqCst)) {
            thread::yield_now();
        }
        fs.set_attributes(number, &SetAttributes::new().permissions(0o4755)).unwrap();
        fs.gate.closed.store(false, SeqCst);
        [first, second].map(|append| append.join().unwrap().0)
    });
    assert_eq!(ends, [0, BLOCK as u64]);
    assert_eq!(fs.inode(number).unwrap().stat().mode & 0o7777, 0o755);
}

/// The blocks of a file are on two devices, in turn, and the log is on a third. Each read of one block is one bio and takes the simple path,
/// also with NOWAIT, and a sync writes a record to the log.
#[test]
fn blocks_on_two_devices_take_the_simple_path() {
    for second in [Second::Memory, Second::Files] {
        let kind = Kind { second, log: true, ..Kind::WHOLE };
        let mut world = World::new(kind, 64);
        let model = Rng::new(SEED).bytes(16 * BLOCK);
        world.write(0, &model);
        world.sync();
        assert_eq!(world.mappings().len(), 16, "{second:?}: neighbours are on one device");
        assert_eq!(world.fs.last_record(), 1);
        let mut block = Buffer::aligned(BLOCK).unwrap();
        // The first read after a change loads the map.
        world.file.read_at(&mut world.queue, &mut block, FilePos(0)).unwrap();
        let before = world.queue.stats().simple_hits;
        for (index, expected) in model.chunks(BLOCK).enumerate() {
            let pos = FilePos((index * BLOCK) as u64);
            world.file.read_at(&mut world.queue, &mut block, pos).unwrap();
            assert_eq!(block[..], *expected, "{second:?}, block {index}");
            match world.file.read_at_with(&mut world.queue, &mut block, pos, DioFlags::NOWAIT) {
                Ok(count) => assert_eq!((count, &block[..]), (BLOCK, expected)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{second:?}"),
            }
        }
        assert_eq!(world.queue.stats().simple_hits, before + 32, "{second:?}");
        for (token, expected) in (0..16_u64).zip(model.chunks(BLOCK)) {
            let memory = buffer(&expected.iter().map(|byte| !byte).collect::<Vec<_>>());
            let pos = token * BLOCK as u64;
            world.file.submit_write(&mut world.queue, memory, pos, NONE, token).unwrap();
        }
        (0..16).for_each(|_| drop(world.completion()));
        world.sync();
        assert_eq!(world.fs.last_record(), 2);
        let inverted: Vec<u8> = model.iter().map(|byte| !byte).collect();
        assert!(world.seen_as(READ).read(0, 17 * BLOCK) == inverted, "{second:?}");
    }
}
