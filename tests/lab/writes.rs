//! Writes that need special devices: polled writes, and atomic writes.

use ironmap::bio::Buffer;
use ironmap::dio::DioFlags;
use ironmap::fs::Follow;
use ironmap::units::FilePos;
use ironmap::{Engine, Errno, File, FileOptions, Queue, QueueOptions, Volume, VolumeOptions};

use crate::common::rng::Rng;
use crate::given;

fn open(path: &str, engine: Engine) -> (Volume, File) {
    let options = VolumeOptions::new().engine(engine).write(true);
    let volume = options.open(path).unwrap();
    assert_eq!((volume.engine(), volume.notices()), (engine, [].as_slice()), "{path}");
    let inode = volume.fs().resolve(b"/written", Follow::All).unwrap();
    let file = volume.open_inode(inode, FileOptions::new().write(true)).unwrap();
    (volume, file)
}

fn buffer(rng: &mut Rng, len: usize) -> Buffer {
    let mut buffer = Buffer::aligned(len).unwrap();
    buffer.copy_from_slice(&rng.bytes(len));
    buffer
}

fn content(file: &File, queue: &mut Queue) -> Vec<u8> {
    let mut bytes = Buffer::aligned(file.size() as usize).unwrap();
    assert_eq!(file.read_at(queue, &mut bytes, FilePos(0)).unwrap(), bytes.len());
    bytes.to_vec()
}

/// Overwrites run with polled completions: by the engine of the volume, or by the flag HIPRI of the request. Reads then return the written
/// data, both immediately and after the volume is opened with another engine.
#[test]
fn polled_overwrites_are_what_is_read() {
    let rng = &mut Rng::new(0x921);
    for path in [given("LAB_BLOCK1"), given("LAB_CHAR1"), given("LAB_NULL")] {
        for engine in [Engine::IoUringPoll, Engine::IoUring, Engine::Psync] {
            let (volume, file) = open(&path, engine);
            assert!(volume.device().limits().poll, "{path}");
            let mut queue = volume.queue(&QueueOptions::new().depth(16)).unwrap();
            let mut expected = content(&file, &mut queue);
            let flags = [DioFlags::empty(), DioFlags::HIPRI, DioFlags::HIPRI | DioFlags::DSYNC];
            for (round, flags) in flags.into_iter().cycle().take(30).enumerate() {
                let len = 512 << rng.below(9);
                let pos = rng.below(expected.len() as u64 - len) & !511;
                let bytes = buffer(rng, len as usize);
                expected[pos as usize..(pos + len) as usize].copy_from_slice(&bytes);
                let what = format!("{path}, {engine}: {len} at {pos}, {flags:?}");
                if round % 2 == 0 {
                    let written = file.write_at_with(&mut queue, &bytes, FilePos(pos), flags);
                    assert_eq!(written.expect(&what) as u64, len, "{what}");
                    continue;
                }
                file.submit_write(&mut queue, bytes, FilePos(pos), flags, 7)
                    .unwrap_or_else(|rejected| panic!("{what}: {}", rejected.error));
                queue.wait(1).unwrap();
                let done = queue.pop().expect("the completion");
                assert_eq!(done.result.expect(&what) as u64, len, "{what}");
            }
            assert!(content(&file, &mut queue) == expected, "{path}, {engine}");
            drop((queue, file));
            volume.close().unwrap();
            drop(volume);
            let (volume, file) = open(&path, Engine::Psync);
            let mut queue = volume.queue(&QueueOptions::default()).unwrap();
            assert!(content(&file, &mut queue) == expected, "{path}, {engine}: read by psync");
        }
    }
}

/// An atomic write is accepted only under two conditions: its length is a power of two that the device supports, and its position is a
/// multiple of its length. One device is a SCSI disk that supports atomic writes from 1 KiB to at least 64 KiB. The other device is an NVMe
/// namespace that supports atomic writes of its blocks.
#[test]
fn atomic_writes_go_where_the_device_promises_them() {
    let rng = &mut Rng::new(0x922);
    for path in [given("LAB_SCSI"), given("LAB_BLOCK2"), given("LAB_CHAR2")] {
        let block = path.replace("/dev/ng", "/dev/nvme").replace("/dev/", "/sys/block/");
        let most = std::fs::read_to_string(block + "/queue/atomic_write_unit_max_bytes").unwrap();
        let most: usize = most.trim().parse().unwrap();
        for engine in [Engine::Psync, Engine::IoUring] {
            let what = |len: usize, pos: u64| format!("{path}, {engine}: {len} at {pos}");
            let (volume, file) = open(&path, engine);
            assert_eq!(volume.device().limits().atomic_write as usize, most, "{path}, {engine}");
            let mut queue = volume.queue(&QueueOptions::new().depth(16)).unwrap();
            let mut expected = content(&file, &mut queue);
            let atomic = DioFlags::ATOMIC;
            let extents = [(0, 4096), (4096, 4096), (16 << 10, 16 << 10), (0, 16 << 10)];
            let fitting = extents.into_iter().filter(|(_, len)| *len <= most);
            assert!(fitting.clone().count() > 1, "{path}: {most}");
            for (pos, len) in fitting {
                let bytes = buffer(rng, len);
                let written = file.write_at_with(&mut queue, &bytes, FilePos(pos), atomic);
                assert!(matches!(written, Ok(n) if n == len), "{}: {written:?}", what(len, pos));
                let bytes = buffer(rng, len);
                expected[pos as usize..][..len].copy_from_slice(&bytes);
                file.submit_write(&mut queue, bytes, FilePos(pos), atomic, 1)
                    .unwrap_or_else(|rejected| panic!("{}: {}", what(len, pos), rejected.error));
                queue.wait(1).unwrap();
                let written = queue.pop().unwrap().result;
                assert!(matches!(written, Ok(n) if n == len), "{}: {written:?}", what(len, pos));
            }
            for (pos, len) in [(4096, 8192), (0, 12288), (512, 4096), (0, 2 * most)] {
                let bytes = buffer(rng, len);
                let refused = file.write_at_with(&mut queue, &bytes, FilePos(pos), atomic);
                assert_eq!(refused.unwrap_err().errno(), Errno::EINVAL, "{}", what(len, pos));
            }
            assert!(content(&file, &mut queue) == expected, "{path}, {engine}");
            volume.close().unwrap();
        }
    }
}
