//! Small reads and overwrites allocate no memory. The tests are a separate program, because the program's allocator counts allocations.

mod common;

use std::sync::Arc;

use common::fixture::{Fixture, SOLID, Stack, open};
use common::image::Image;
use common::mounted::Mounted;
use common::rng::Rng;
use common::skip::Need;
use ironmap::bio::{Buffer, Memory};
use ironmap::device::{BlockFile, Device, Engine, OpenMode, Ram, open_engine};
use ironmap::dio::{DioFlags, StablePages};
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{Clock, Credentials, Fallocate, NewFile};
use ironmap::integrity::{FormatOptions, Integrity, format};
use ironmap::units::FilePos;
use ironmap::{
    File, FileOptions, Host, HostOptions, Queue, QueueOptions, ReadAt, Volume, VolumeOptions,
};

const SEED: u64 = 0xa_110c;
const READS: u64 = 1000;
const BLOCK: usize = 4096;

fn allocations(work: impl FnOnce()) -> u64 {
    allocation_counter::measure(work).count_total
}

fn read_now(queue: &mut Queue, file: &File, buffer: &mut Buffer, count: u64) {
    for index in 0..count {
        let pos = FilePos(index * 7919 % 256 * BLOCK as u64);
        assert!(matches!(file.read_at(queue, buffer, pos), Ok(BLOCK)));
    }
}

/// Submits a request with this memory, position and token.
type Submit = fn(&File, &mut Queue, Memory, FilePos, u64) -> bool;

fn read(file: &File, queue: &mut Queue, memory: Memory, pos: FilePos, token: u64) -> bool {
    file.submit_read(queue, memory, pos, DioFlags::empty(), token).is_ok()
}

fn write(file: &File, queue: &mut Queue, memory: Memory, pos: FilePos, token: u64) -> bool {
    file.submit_write(queue, memory, pos, DioFlags::empty(), token).is_ok()
}

/// Runs `count` requests in batches. Each batch uses each buffer in `spare` for one request.
fn run_owned(queue: &mut Queue, file: &File, spare: &mut Vec<Memory>, count: u64, submit: Submit) {
    let mut sent = 0;
    while sent < count {
        while let Some(memory) = spare.pop() {
            let pos = FilePos(sent * 7919 % 256 * BLOCK as u64);
            assert!(submit(file, queue, memory, pos, sent));
            sent += 1;
        }
        assert!(queue.wait(8).is_ok());
        while let Some(done) = queue.pop() {
            assert!(matches!(done.result, Ok(BLOCK)));
            spare.push(done.memory);
        }
    }
}

/// Checks that the allocator counts an allocation.
#[test]
fn an_allocation_is_counted() {
    assert!(allocations(|| drop(std::hint::black_box(vec![1_u8; 100]))) > 0);
}

#[test]
fn a_synchronous_read_allocates_nothing() {
    require!([Need::Bare("tags come into memory")]);
    let fixture = Fixture::new(BLOCK as u64, SEED);
    for stack in [Stack::Psync, Stack::Uring, Stack::Null, Stack::Dax, Stack::DaxInMemory] {
        let volume = fixture.volume(stack);
        let mut queue = volume.queue(&QueueOptions::default()).unwrap();
        let (file, mut buffer) = (open(&volume, SOLID, true), Buffer::aligned(BLOCK).unwrap());
        read_now(&mut queue, &file, &mut buffer, 8);
        let hits = queue.stats().simple_hits;
        let count = allocations(|| read_now(&mut queue, &file, &mut buffer, READS));
        assert_eq!(count, 0, "{stack}: allocations in {READS} reads");
        assert_eq!(queue.stats().simple_hits - hits, READS, "{stack}");
    }
}

/// A request that does not use the short code path for simple requests still allocates nothing, if it has one extent and borrowed memory.
#[test]
fn a_generic_read_of_one_extent_allocates_nothing() {
    require!([Need::Bare("tags come into memory")]);
    let fixture = Fixture::new(BLOCK as u64, SEED);
    for stack in [Stack::Psync, Stack::Uring, Stack::Null, Stack::Dax] {
        let volume = fixture.volume(stack);
        let mut queue = volume.queue(&QueueOptions::default()).unwrap();
        let (file, mut buffer) = (open(&volume, SOLID, true), Buffer::aligned(BLOCK).unwrap());
        queue.set_simple(false);
        read_now(&mut queue, &file, &mut buffer, 8);
        let count = allocations(|| read_now(&mut queue, &file, &mut buffer, READS));
        assert_eq!(count, 0, "{stack}: allocations in {READS} reads");
        assert_eq!(queue.stats().simple_hits, 0, "{stack}");
    }
}

#[test]
fn a_read_into_owned_memory_allocates_nothing() {
    let fixture = Fixture::new(BLOCK as u64, SEED);
    for stack in [Stack::Null, Stack::Uring, Stack::Psync, Stack::Dax] {
        let volume = fixture.volume(stack);
        let mut queue = volume.queue(&QueueOptions::new().depth(32)).unwrap();
        let file = open(&volume, SOLID, true);
        let registered = queue.register_buffers(16, BLOCK).unwrap();
        let plain = (0..16).map(|_| Buffer::aligned(BLOCK).unwrap());
        let mut spare: Vec<Memory> =
            registered.into_iter().chain(plain).map(Memory::Flat).collect();
        run_owned(&mut queue, &file, &mut spare, 100, read);
        let hits = queue.stats().simple_hits;
        let count = allocations(|| run_owned(&mut queue, &file, &mut spare, READS, read));
        assert_eq!(count, 0, "{stack}: allocations in {READS} reads");
        assert!(queue.stats().simple_hits - hits >= READS, "{stack}");
    }
}

fn write_now(queue: &mut Queue, file: &File, buffer: &Buffer, count: u64) {
    for index in 0..count {
        let pos = FilePos(index * 7919 % 256 * BLOCK as u64);
        assert!(matches!(file.write_at(queue, buffer, pos), Ok(BLOCK)));
    }
}

fn write_borrowed(queue: &mut Queue, file: &File, buffer: &Buffer, count: u64) {
    for index in 0..count {
        let pos = FilePos(index * 7919 % 256 * BLOCK as u64);
        let written = file.write_buffer_at(queue, buffer, pos, DioFlags::empty());
        assert!(matches!(written, Ok(BLOCK)));
    }
}

/// Overwrites and reads of a writable file allocate nothing. Some of the blocks are written, and others are unwritten and are marked as
/// written later.
#[test]
fn an_overwrite_allocates_nothing() {
    require!([Need::Bare("lent memory is copied, and not by the simple path")]);
    for engine in [Engine::Psync, Engine::IoUring, Engine::Dax] {
        let image = Image::in_memory("32M", &["-t", "ext4"]);
        let options = VolumeOptions::new().engine(engine).write(true);
        let volume = common::beneath::open(&image.location(), &options).unwrap();
        let fs = volume.fs();
        let number = fs
            .writable()
            .unwrap()
            .create(ROOT, b"file", NewFile::Regular, 0o644, &Credentials::default())
            .unwrap();
        let all = Fallocate::Allocate { keep_size: false };
        fs.writable().unwrap().fallocate(number, all, FilePos(0), 256 * BLOCK as u64).unwrap();
        let options = FileOptions::new().direct(true);
        let file = volume.open_inode(fs.inode(number).unwrap(), options.write(true)).unwrap();
        let mut queue = volume.queue(&QueueOptions::new().depth(32)).unwrap();
        let mut buffer = Buffer::aligned(BLOCK).unwrap();
        let buffers = (0..32).map(|_| Memory::Flat(Buffer::aligned(BLOCK).unwrap()));
        let mut spare = buffers.collect();
        for state in ["unwritten", "written"] {
            let what = format!("{engine}, {state}");
            // After these writes all blocks are marked as written, and the queues' tables have reached their maximum size.
            write_now(&mut queue, &file, &buffer, 256);
            run_owned(&mut queue, &file, &mut spare, 256, write);
            let (hits, handles) =
                (queue.stats().overwrites, fs.writable().unwrap().write_counts().handles);
            let count = allocations(|| {
                write_now(&mut queue, &file, &buffer, READS);
                read_now(&mut queue, &file, &mut buffer, READS);
            });
            assert_eq!(count, 0, "{what}: allocations in {READS} writes and reads");
            let count = allocations(|| {
                run_owned(&mut queue, &file, &mut spare, READS, write);
                run_owned(&mut queue, &file, &mut spare, READS, read);
            });
            assert_eq!(count, 0, "{what}: allocations with owned memory");
            assert!(queue.stats().overwrites - hits >= 2 * READS, "{what}: simple path");
            assert_eq!(
                fs.writable().unwrap().write_counts().handles,
                handles,
                "{what}: journal handles"
            );
            file.sync(&mut queue).unwrap();
        }
    }
}

/// An integrity device computes tags (checksums) of the data of requests. The copies of the data, the tags and the verification allocate
/// nothing. This holds for each method that protects memory from changes.
#[test]
fn requests_over_an_integrity_device_allocate_nothing() {
    for engine in [Engine::Psync, Engine::IoUring] {
        let image = Image::in_memory("32M", &["-t", "ext4", "-b", "4096"]);
        let mode = OpenMode { write: true, ..OpenMode::default() };
        let data = BlockFile::open(image.location().data().path().unwrap(), &mode).unwrap();
        let data = open_engine(data, engine).unwrap().device;
        let tags: Arc<dyn Device> = Arc::new(Ram::new(1 << 20));
        format(&data, Some(&tags), &FormatOptions::default(), &mut |_, _| {}).unwrap();
        let device = Integrity::open(data, Some(tags)).unwrap().device;
        let volume = Volume::writable_on(Arc::new(device), Clock::default()).unwrap();
        let fs = volume.fs();
        let number = fs
            .writable()
            .unwrap()
            .create(ROOT, b"file", NewFile::Regular, 0o644, &Credentials::default())
            .unwrap();
        let all = Fallocate::Allocate { keep_size: false };
        fs.writable().unwrap().fallocate(number, all, FilePos(0), 256 * BLOCK as u64).unwrap();
        for stable in StablePages::ALL {
            let stable_pages = Some(stable);
            let options = FileOptions::new().direct(true).stable_pages(stable_pages);
            let file = volume.open_inode(fs.inode(number).unwrap(), options.write(true)).unwrap();
            let mut queue = volume.queue(&QueueOptions::new().depth(32)).unwrap();
            let mut buffer = Buffer::aligned(BLOCK).unwrap();
            let buffers = (0..32).map(|_| Memory::Flat(Buffer::aligned(BLOCK).unwrap()));
            let mut spare = buffers.collect();
            let mut work = |count| {
                write_now(&mut queue, &file, &buffer, count);
                write_borrowed(&mut queue, &file, &buffer, count);
                read_now(&mut queue, &file, &mut buffer, count);
                run_owned(&mut queue, &file, &mut spare, count, write);
                run_owned(&mut queue, &file, &mut spare, count, read);
            };
            work(256);
            let count = allocations(|| work(READS));
            assert_eq!(count, 0, "{engine}, {}: allocations in {READS} of each", stable.name());
        }
        volume.close().unwrap();
    }
}

/// Before a read from the device returns data of a mounted file system, the lease of the file is checked. This check allocates nothing, for
/// synchronous and for asynchronous reads.
#[test]
fn a_raw_read_of_a_host_file_allocates_nothing() {
    require!([Need::Root, Need::Tool("losetup")]);
    let mounted = Mounted::ext4();
    let path = mounted.write("file", &Rng::new(SEED).bytes(256 * BLOCK));
    for engine in [Engine::Psync, Engine::IoUring] {
        let host = Host::new(&HostOptions::new().engine(engine)).unwrap();
        let mut queue = host.queue(&QueueOptions::new().depth(32)).unwrap();
        let file = host.open_with(&path, FileOptions::new().direct(true)).unwrap();
        let mut buffer = Buffer::aligned(BLOCK).unwrap();
        read_now(&mut queue, &file, &mut buffer, 8);
        let count = allocations(|| read_now(&mut queue, &file, &mut buffer, READS));
        assert_eq!(count, 0, "{engine}: allocations in {READS} reads");
        let buffers = (0..32).map(|_| Memory::Flat(Buffer::aligned(BLOCK).unwrap()));
        let mut spare = buffers.collect();
        run_owned(&mut queue, &file, &mut spare, 100, read);
        let count = allocations(|| run_owned(&mut queue, &file, &mut spare, READS, read));
        assert_eq!(count, 0, "{engine}: allocations in {READS} reads into owned memory");
        assert_eq!(queue.stats().kernel_served, 0, "{engine}: not raw");
    }
}

/// A batch of reads into borrowed memory allocates nothing. The files belong to unmounted volumes and to mounted file systems.
#[test]
fn a_batch_of_reads_allocates_nothing() {
    require!([Need::Bare("tags come into memory")]);
    let fixture = Fixture::new(BLOCK as u64, SEED);
    let batch = |queue: &mut Queue, file: &File, memory: &mut Buffer| {
        let mut pages = memory.chunks_mut(BLOCK);
        let mut reads: [_; 64] = std::array::from_fn(|at| {
            ReadAt::new(file, pages.next().unwrap(), FilePos((at * 7919 % 256 * BLOCK) as u64))
        });
        let count = allocations(|| (0..20).for_each(|_| queue.read_many(&mut reads)));
        assert!(reads.iter().all(|read| matches!(read.result, Ok(BLOCK))));
        count
    };
    let mut memory = Buffer::aligned(64 * BLOCK).unwrap();
    for stack in [Stack::Psync, Stack::Uring, Stack::Null, Stack::Dax] {
        let volume = fixture.volume(stack);
        let mut queue = volume.queue(&QueueOptions::new().depth(32)).unwrap();
        let file = open(&volume, SOLID, true);
        read_now(&mut queue, &file, &mut memory, 0);
        batch(&mut queue, &file, &mut memory);
        assert_eq!(batch(&mut queue, &file, &mut memory), 0, "{stack}");
        assert!(queue.stats().simple_hits >= 64 * 39, "{stack}: {:?}", queue.stats());
    }
}
