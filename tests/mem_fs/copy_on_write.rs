//! Copy-on-write in the file system that the test implements.

use std::sync::Arc;

use ironmap::device::{Device, Faults, Ram, Sim};
use ironmap::dio::NotSimple;
use ironmap::fs::{Fallocate, FileSystem, Writer};
use ironmap::units::FilePos;
use ironmap::{Errno, QueueOptions};

use crate::format::{Kind, MemFs, Second};
use crate::world::{BLOCK, LAZY, NONE, READ, World, buffer, create};

const KINDS: [Kind; 4] = [
    Kind::WHOLE,
    LAZY,
    Kind { second: Second::Memory, ..LAZY },
    Kind { second: Second::Files, ..Kind::WHOLE },
];

/// Copy-on-write: a write to shared blocks stores its data in new blocks. While the write is in flight, the map already contains the new
/// blocks, but reads still use the old blocks.
#[test]
fn a_write_to_shared_blocks_changes_one_file() {
    for kind in KINDS {
        let mut world = World::new(kind, 64);
        let old = vec![1; 8 * BLOCK];
        world.write(0, &old);
        let copy = create(&world.fs, b"copy");
        world.fs.reflink(world.number, copy).unwrap();
        let mut other = World::of(&world.fs, kind, copy);
        // The writes vary. Some use borrowed memory, and some use owned memory. Some cover a part of a block, and some lie past the end.
        // Some writes are repeated when no block is shared any more.
        world.write(BLOCK, &vec![2; BLOCK]);
        let memory = buffer(&vec![3; 2 * BLOCK]);
        world.file.submit_write(&mut world.queue, memory, 3 * BLOCK as u64, NONE, 7).unwrap();
        assert_eq!(world.completion().0, 7);
        world.write(6 * BLOCK + 100, &[4; 50]);
        world.write(8 * BLOCK, &vec![5; BLOCK]);
        world.write(BLOCK, &vec![6; BLOCK]);
        let mut model = old.clone();
        model.resize(9 * BLOCK, 5);
        model[BLOCK..2 * BLOCK].fill(6);
        model[3 * BLOCK..5 * BLOCK].fill(3);
        model[6 * BLOCK + 100..6 * BLOCK + 150].fill(4);
        assert!(world.read(0, 10 * BLOCK) == model, "{kind:?}");
        assert!(other.read(0, 10 * BLOCK) == old, "{kind:?}: the other file has changed");
        world.sync();
        assert!(world.seen_as(READ).read(0, 10 * BLOCK) == model, "{kind:?}: the metadata");
        assert!(other.seen_as(READ).read(0, 10 * BLOCK) == old);
        // Several requests are in flight at a time.
        for (token, pos) in (0..8).enumerate() {
            let memory = buffer(&vec![9; BLOCK]);
            let pos = (pos * BLOCK) as u64;
            other.file.submit_write(&mut other.queue, memory, pos, NONE, token as u64).unwrap();
        }
        (0..8).for_each(|_| drop(other.completion()));
        assert!(other.read(0, 8 * BLOCK) == vec![9; 8 * BLOCK]);
        assert!(world.read(0, 10 * BLOCK) == model);
    }
}

/// A write to a shared block allocates new blocks for the next blocks too, which are not shared. Writes to a shared block and to an
/// unwritten block are in flight together. Each keeps its data: the file system learns which data are in a new block.
#[test]
fn writes_of_both_kinds_complete_each_in_its_own_blocks() {
    for kind in KINDS {
        for order in [[0, 1, 2, 3], [3, 1, 2, 0], [1, 0, 3, 2]] {
            let mut world = World::new(kind, 64);
            world.write(0, &[1; 4 * BLOCK]);
            let copy = create(&world.fs, b"copy");
            world.fs.reflink(world.number, copy).unwrap();
            // Blocks 1 and 3 are unwritten and belong to the file alone.
            for block in [1, 3] {
                let (at, len) = (FilePos((block * BLOCK) as u64), BLOCK as u64);
                world.fs.fallocate(world.number, Fallocate::Punch, at, len).unwrap();
                let how = Fallocate::Allocate { keep_size: true };
                world.fs.fallocate(world.number, how, at, len).unwrap();
            }
            for block in order {
                let memory = buffer(&vec![2 + block as u8; BLOCK]);
                let at = (block * BLOCK) as u64;
                world.file.submit_write(&mut world.queue, memory, at, NONE, block as u64).unwrap();
            }
            order.iter().for_each(|_| drop(world.completion()));
            let model: Vec<u8> = (0..4 * BLOCK).map(|at| 2 + (at / BLOCK) as u8).collect();
            // The second write of each block is a plain overwrite.
            for synced in [false, true] {
                assert!(world.read(0, 5 * BLOCK) == model, "{kind:?}, {order:?}, {synced}");
                world.sync();
            }
            assert!(World::of(&world.fs, kind, copy).read(0, 5 * BLOCK) == [1; 4 * BLOCK]);
        }
    }
}

/// After all handles are closed, only blocks with content are in use.
#[test]
fn new_blocks_that_no_write_has_used_are_given_back() {
    let mut world = World::new(Kind::WHOLE, 64);
    world.write(0, &[1; 2 * BLOCK]);
    let copy = create(&world.fs, b"copy");
    world.fs.reflink(world.number, copy).unwrap();
    world.write(0, &[2; BLOCK]);
    assert!(world.fs.usage().free.blocks < 61, "blocks were allocated for later writes");
    let World { fs, volume, file, queue, .. } = world;
    drop((file, queue, volume));
    assert_eq!(fs.usage().free.blocks, 61);
}

/// A file shares one of its blocks. Overwrites of the other blocks take the simple path.
#[test]
fn one_shared_block_takes_no_other_block_off_the_simple_path() {
    let mut world = World::new(Kind::WHOLE, 64);
    world.write(0, &[1; 8 * BLOCK]);
    world.sync();
    let copy = create(&world.fs, b"copy");
    world.fs.reflink(world.number, copy).unwrap();
    let block = buffer(&[2; BLOCK]);
    for pos in (0..7 * BLOCK).step_by(BLOCK) {
        world.write(pos, &block);
    }
    world.sync();
    world.write(0, &block);
    let before = world.queue.stats().overwrites;
    for pos in (0..7 * BLOCK).step_by(BLOCK) {
        world.write(pos, &block);
    }
    let misses = world.queue.stats().misses(NotSimple::Shared);
    assert_eq!(world.queue.stats().overwrites, before + 7);
    world.write(7 * BLOCK, &block);
    assert_eq!(world.queue.stats().overwrites, before + 7);
    assert_eq!(world.queue.stats().misses(NotSimple::Shared), misses + 1);
    assert!(world.read(0, 8 * BLOCK) == [2; 8 * BLOCK]);
    assert!(World::of(&world.fs, Kind::WHOLE, copy).read(0, 8 * BLOCK) == [1; 8 * BLOCK]);
}

/// The ways of writing 2 blocks at the beginning of a file. Returns whether the write has succeeded.
const WAYS: [fn(&mut World) -> bool; 5] = [
    |world| world.file.write_at(&mut world.queue, &[7; 2 * BLOCK], FilePos(0)).is_ok(),
    |world| world.file.write_at(&mut world.queue, &buffer(&[7; 2 * BLOCK]), FilePos(0)).is_ok(),
    |world| {
        let memory = buffer(&[7; 2 * BLOCK]);
        world.file.submit_write(&mut world.queue, memory, FilePos(0), NONE, 0).unwrap();
        world.queue.wait(1).unwrap();
        world.queue.pop().unwrap().result.is_ok()
    },
    |world| {
        let memory = vec![buffer(&[7; BLOCK / 2]), buffer(&[7; 3 * BLOCK / 2])];
        world.file.submit_write(&mut world.queue, memory, FilePos(0), NONE, 0).unwrap();
        world.queue.wait(1).unwrap();
        world.queue.pop().unwrap().result.is_ok()
    },
    // The queue is dropped while the write is in flight.
    |world| {
        let memory = buffer(&[7; 2 * BLOCK]);
        world.file.submit_write(&mut world.queue, memory, FilePos(0), NONE, 0).unwrap();
        world.queue = world.volume.queue(&QueueOptions::default()).unwrap();
        false
    },
];

/// A write to shared blocks fails, or its queue is dropped. The file system learns this at the next sync, and frees the new blocks. The
/// content is that before the write.
#[test]
fn new_blocks_of_a_failed_write_are_given_back() {
    for (index, way) in WAYS.into_iter().enumerate() {
        for torn in [false, true] {
            let ram: Arc<dyn Device> = Arc::new(Ram::new((64 * BLOCK) as u64));
            let sim = Arc::new(Sim::new(ram, Faults::default()));
            let fs = MemFs::new(Arc::clone(&sim) as Arc<dyn Device>, Kind::WHOLE);
            let number = create(&fs, b"file");
            let mut world = World::of(&fs, Kind::WHOLE, number);
            world.write(0, &[1; 2 * BLOCK]);
            let copy = create(&fs, b"copy");
            fs.reflink(number, copy).unwrap();
            let errno = Some(Errno::EIO);
            sim.set_faults(Faults { fail_after: Some(0), torn, errno, ..Faults::default() });
            assert!(!way(&mut world), "way {index}");
            sim.set_faults(Faults::default());
            world.sync();
            // The content has 2 blocks, and 3 new blocks after the range of the write remain for later writes.
            assert_eq!(fs.usage().free.blocks, 64 - 2 - 3, "way {index}, torn {torn}");
            for number in [number, copy] {
                let mut other = World::of(&fs, Kind::WHOLE, number);
                assert!(other.read(0, 3 * BLOCK) == [1; 2 * BLOCK], "way {index}, torn {torn}");
            }
            assert!(WAYS[0](&mut world));
            assert!(world.read(0, 3 * BLOCK) == [7; 2 * BLOCK]);
            drop(world);
            assert_eq!(fs.usage().free.blocks, 64 - 4, "way {index}, torn {torn}");
        }
    }
}
