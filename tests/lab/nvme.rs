//! NVMe namespaces. ironmap accesses their character devices. The results are compared with the kernel's block devices for the same
//! namespaces.

use std::io::{IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::Arc;

use ironmap::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Memory};
use ironmap::device::{
    BlockFile, BoundedQueue, Device, DeviceQueue, LentPart, OpenMode, OpenedEngine, open_engine,
};
use ironmap::units::{DevOffset, FilePos, InodeNo};
use ironmap::{Engine, Errno, ErrorKind, QueueOptions, Volume};
use smallvec::smallvec;

use crate::common::rng::Rng;
use crate::given;
use crate::reads::assert_volume_reads;

#[test]
fn a_volume_on_a_namespace_reads_the_same() {
    for device in [given("LAB_CHAR1"), given("LAB_CHAR2")] {
        for engine in [Engine::Psync, Engine::IoUring, Engine::IoUringPoll] {
            assert_volume_reads(&device, engine, 0x902);
        }
    }
}

fn device(path: &str, engine: Engine, write: bool) -> Arc<dyn Device> {
    let mode = OpenMode { write, ..OpenMode::default() };
    let OpenedEngine { device, engine: opened, notices, .. } =
        open_engine(BlockFile::open(path.as_ref(), &mode).unwrap(), engine).unwrap();
    assert_eq!((opened, notices), (engine, Vec::<String>::new()));
    device
}

fn queue(device: &dyn Device) -> BoundedQueue {
    let queue = device.queue(&QueueOptions::new().depth(8)).unwrap();
    assert!(matches!(queue.kind(), ironmap::device::AnyQueue::Nvme(_)));
    queue
}

fn run(
    queue: &mut BoundedQueue,
    op: BioOp,
    dev: Dev,
    at: u64,
    memory: Memory,
) -> (Memory, Result<usize, Errno>) {
    run_with(queue, op, BioFlags::empty(), dev, at, memory)
}

fn run_with(
    queue: &mut BoundedQueue,
    op: BioOp,
    flags: BioFlags,
    dev: Dev,
    at: u64,
    memory: Memory,
) -> (Memory, Result<usize, Errno>) {
    let end = BioEnd::Whole { token: 0, inode: InodeNo(0), pos: FilePos(0) };
    queue.submit(Bio { op, flags, dev, at: DevOffset(at), memory, end }).expect("a free slot");
    queue.wait(1).unwrap();
    let done = queue.pop().expect("the completion");
    (done.bio.memory, done.result)
}

fn buffer(len: usize) -> Memory {
    Memory::Flat(Buffer::aligned(len).unwrap())
}

/// The device in ironmap has the limits of the drive: the block size of the namespace (512 or 4096 bytes), and the maximum transfer length
/// of the controller.
#[test]
fn limits_are_those_of_the_namespace() {
    for (path, block) in [(given("LAB_CHAR1"), 512), (given("LAB_CHAR2"), 4096)] {
        let device = device(&path, Engine::IoUring, false);
        let limits = device.limits();
        assert_eq!((limits.logical_block, limits.max_transfer), (block, 128 << 10), "{path}");
        assert!(
            limits.fua && limits.volatile_cache && limits.nowait && limits.poll && limits.direct
        );
        assert_eq!(device.size(), 256 << 20);
    }
}

#[test]
fn a_namespace_with_metadata_is_refused_by_name() {
    let error = BlockFile::open(given("LAB_CHAR3").as_ref(), &OpenMode::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("8 bytes of metadata"), "{error}");
}

#[test]
fn a_namespace_is_opened_once_and_not_while_its_block_device_is_in_use() {
    let (character, block) = (given("LAB_CHAR1"), given("LAB_BLOCK1"));
    let open = |path: &str| Volume::open(path);
    for (first, second) in [(&character, &block), (&block, &character), (&character, &character)] {
        let volume = open(first).unwrap();
        assert_eq!(open(second).err().map(|error| error.kind()), Some(ErrorKind::Busy), "{second}");
        drop(volume);
    }
}

/// Each of these impossible commands returns an errno:
///
/// - a command for a range past the end, which ironmap refuses without sending it to the drive;
/// - a command for a part of a block;
/// - a command that is too long.
#[test]
fn a_failed_command_is_an_errno() {
    for engine in [Engine::IoUring, Engine::IoUringPoll] {
        let device = device(&given("LAB_CHAR2"), engine, false);
        let mut queue = queue(&*device);
        let cases = [
            (device.size(), 4096),
            (device.size() - 4096, 8192),
            (!4095, 4096),
            (0, 512),
            (512, 4096),
            (0, 8 << 20),
        ];
        for (at, len) in cases {
            let what = format!("{engine}: {len} bytes at {at}");
            let (memory, result) = run(&mut queue, BioOp::Read, Dev::OWN, at, buffer(len));
            assert_eq!((memory.len(), result), (len, Err(Errno::EINVAL)), "{what}, queued");
            let mut bytes = Buffer::aligned(len).unwrap();
            let result = queue.read_now(Dev::OWN, &mut bytes, DevOffset(at), BioFlags::empty());
            assert_eq!(result, Err(Errno::EINVAL), "{what}, at once");
        }
        let (_, result) = run(&mut queue, BioOp::Read, Dev::OWN, 0, buffer(4096));
        assert_eq!(result, Ok(4096), "the queue goes on");
    }
}

/// ironmap writes data with NVMe commands, and the kernel reads them back. The memory is flat, vectored or registered. With the drive's
/// cache on, ironmap also sends a flush.
#[test]
fn the_kernel_reads_written_data() {
    let path = given("LAB_CHAR2");
    let rng = &mut Rng::new(0x903);
    for engine in [Engine::IoUring, Engine::IoUringPoll] {
        let mut expected = Vec::new();
        // The volume on the namespace ends before this offset.
        let base = (200 << 20) as u64;
        {
            let device = device(&path, engine, true);
            let mut queue = queue(&*device);
            let mut at = base;
            let mut pieces = queue.register_buffers(2, 8192).unwrap();
            pieces.push(Buffer::aligned(128 << 10).unwrap());
            let mut memories: Vec<Memory> = pieces.into_iter().map(Memory::Flat).collect();
            memories.push(Memory::Vectored(vec![
                Buffer::aligned(4096).unwrap(),
                Buffer::aligned(12288).unwrap(),
            ]));
            for (mut memory, flags) in
                memories.into_iter().zip([BioFlags::empty(), BioFlags::DSYNC].into_iter().cycle())
            {
                for buffer in memory.buffers_mut() {
                    let bytes = rng.bytes(buffer.len());
                    buffer.copy_from_slice(&bytes);
                    expected.extend(bytes);
                }
                let len = memory.len();
                let (_, result) = run_with(&mut queue, BioOp::Write, flags, Dev::OWN, at, memory);
                assert_eq!(result, Ok(len), "{engine}: {len} bytes");
                at += len as u64;
            }
            let bytes = Buffer::from(rng.bytes(4096));
            let mut aligned = Buffer::aligned(4096).unwrap();
            aligned.copy_from_slice(&bytes);
            let written = queue.write_now(
                Dev::OWN,
                &[IoSlice::new(&aligned)],
                DevOffset(at),
                BioFlags::DSYNC,
            );
            assert_eq!(written, Ok(4096));
            expected.extend(&*bytes);
            let flushed = run(&mut queue, BioOp::Flush, Dev::OWN, 0, buffer(0));
            assert_eq!((flushed.1, queue.flush_now(Dev::OWN)), (Ok(0), Ok(())));
        }
        let file = std::fs::File::open(given("LAB_BLOCK2")).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let mut bytes = vec![0; expected.len()];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, base).unwrap();
        assert!(bytes == expected, "{engine}");
    }
}

#[test]
fn a_namespace_opened_for_reading_is_not_written() {
    let device = device(&given("LAB_CHAR2"), Engine::IoUring, false);
    let mut queue = queue(&*device);
    let (_, result) = run(&mut queue, BioOp::Write, Dev::OWN, 200 << 20, buffer(4096));
    assert_eq!(result, Err(Errno::EBADF));
}

/// A read can have more memory ranges than fit into one NVMe command. The read still succeeds.
#[test]
fn many_small_buffers_are_no_error() {
    let mut expected = vec![0; 600 * 512];
    let kernel = std::fs::File::open(given("LAB_BLOCK1")).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&kernel, &mut expected, 512).unwrap();
    let device = device(&given("LAB_CHAR1"), Engine::IoUring, false);
    let mut queue = queue(&*device);
    for count in [2, 60, 120, 200] {
        let mut buffers: Vec<_> = (0..count).map(|_| Buffer::aligned(512).unwrap()).collect();
        let expected = &expected[..count * 512];
        let mut read_halves = |buffers: &mut [Buffer]| {
            let halves = buffers.chunks_mut(count / 2);
            let mut parts: Vec<_> = (0..)
                .zip(halves)
                .map(|(half, buffers)| {
                    let bufs = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
                    LentPart::new(bufs, DevOffset(512 + half * (count as u64 / 2) * 512))
                })
                .collect();
            queue.read_parts_now(Dev::OWN, &mut parts, BioFlags::empty());
            assert!(parts.iter().all(|part| part.result == Ok(count / 2 * 512)), "{count}");
        };
        read_halves(&mut buffers);
        let together = |buffers: &[Buffer]| {
            buffers.iter().flat_map(|buffer| buffer.to_vec()).collect::<Vec<u8>>()
        };
        assert!(together(&buffers) == expected, "{count} buffers in two parts");
        let memory = Memory::Vectored((0..count).map(|_| Buffer::aligned(512).unwrap()).collect());
        let (memory, result) = run(&mut queue, BioOp::Read, Dev::OWN, 512, memory);
        assert_eq!(result, Ok(count * 512), "{count} buffers");
        assert!(together(memory.buffers()) == expected, "{count} buffers");
    }
}

/// A partition of a namespace contains the same bytes as the same range of the block device.
#[test]
fn a_part_of_a_namespace_begins_at_its_offset() {
    let window = Some((1 << 20, 64 << 20));
    let mode = OpenMode { window, ..OpenMode::default() };
    let file = BlockFile::open(given("LAB_CHAR2").as_ref(), &mode).unwrap();
    let device = open_engine(file, Engine::IoUring).unwrap().device;
    let mut queue = queue(&*device);
    let mut expected = vec![0; 8192];
    let kernel = std::fs::File::open(given("LAB_BLOCK2")).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&kernel, &mut expected, (1 << 20) + 4096).unwrap();
    let (memory, result) = run(&mut queue, BioOp::Read, Dev::OWN, 4096, buffer(8192));
    assert_eq!((device.size(), result), (64 << 20, Ok(8192)));
    assert!(*memory.buffers()[0] == *expected);
    let mut bytes = Buffer::aligned(8192).unwrap();
    let result = queue.read_now(Dev::OWN, &mut bytes, DevOffset(4096), BioFlags::empty());
    assert!(result == Ok(8192) && *bytes == *expected);
}

/// A queue of an NVMe namespace can also be used for other devices and for files. A polled queue does not hang, even if such a device or
/// file has no poll queue.
#[test]
fn other_files_are_read_through_the_same_queue() {
    let shared = OpenMode { exclusive: false, ..OpenMode::default() };
    let open = |path: &str| Arc::new(BlockFile::open(Path::new(path), &shared).unwrap());
    let image = "/tmp/image";
    std::fs::write(image, Rng::new(0x904).bytes(64 << 10)).unwrap();
    let buffered = OpenMode { direct: false, exclusive: false, ..OpenMode::default() };
    let files = [
        (given("LAB_BLOCK2"), open(&given("LAB_BLOCK2"))),
        (given("LAB_BLOCK1"), open(&given("LAB_CHAR1"))),
        (image.to_owned(), Arc::new(BlockFile::open(image.as_ref(), &buffered).unwrap())),
    ];
    for engine in [Engine::IoUring, Engine::IoUringPoll] {
        let device = device(&given("LAB_CHAR2"), engine, false);
        let mut queue = queue(&*device);
        for (oracle, file) in &files {
            let dev = queue.attach(file, true).unwrap();
            let mut expected = vec![0; 16384];
            let kernel = std::fs::File::open(oracle).unwrap();
            std::os::unix::fs::FileExt::read_exact_at(&kernel, &mut expected, 8192).unwrap();
            let (memory, result) = run(&mut queue, BioOp::Read, dev, 8192, buffer(16384));
            assert_eq!(result, Ok(16384), "{engine}, {oracle}");
            assert!(*memory.buffers()[0] == *expected, "{engine}, {oracle}");
            let (mut first, mut second) =
                (Buffer::aligned(4096).unwrap(), Buffer::aligned(12288).unwrap());
            let mut parts = [
                LentPart::new(smallvec![IoSliceMut::new(&mut second)], DevOffset(12288)),
                LentPart::new(smallvec![IoSliceMut::new(&mut first)], DevOffset(8192)),
            ];
            queue.read_parts_now(dev, &mut parts, BioFlags::empty());
            let results = parts.each_ref().map(|part| part.result);
            drop(parts);
            assert_eq!(results, [Ok(12288), Ok(4096)], "{engine}, {oracle}");
            assert!([&*first, &*second].concat() == expected, "{engine}, {oracle}");
            queue.detach(dev);
        }
    }
}
