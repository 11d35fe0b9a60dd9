//! Devices with protection information: NVMe namespaces with guards of 16 and of 64 bits, and SCSI disks. There are two oracles: the
//! kernel, and the emulated devices. Both read and verify the same sectors.

use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;

use ironmap::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Memory};
use ironmap::device::{
    BlockFile, BoundedQueue, Device, DeviceProtection, DeviceQueue, OpenMode, WrongTuple,
    open_engine,
};
use ironmap::integrity::{Field, Mismatch};
use ironmap::units::{DevOffset, FilePos, InodeNo};
use ironmap::{Engine, Errno, QueueOptions};

use crate::common::rng::Rng;
use crate::given;
use crate::reads::assert_volume_reads;

/// The first unused byte after the volume on each device.
const FREE: u64 = 52 << 20;
/// The first byte of the sectors that lab/boot.sh wrote to the backing file of the emulated disk. lab/boot.sh also wrote the tuples of
/// these sectors.
const MADE: u64 = 60 << 20;

/// The paths of the devices to which requests with tuples (protection information) can be sent on this kernel.
fn protected() -> Vec<String> {
    let commands = [given("LAB_CHAR5"), given("LAB_CHAR6")];
    let mut paths = commands.to_vec();
    if has_attributes() {
        paths.extend([given("LAB_BLOCK5"), given("LAB_BLOCK6"), given("LAB_SCSI")]);
    }
    paths
}

/// Whether requests to block devices can include tuples (protection information). Linux supports this since version 6.14.
fn has_attributes() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (6, 14)
}

fn device(path: &str, engine: Engine) -> Arc<dyn Device> {
    let mode = OpenMode { write: true, exclusive: false, ..OpenMode::default() };
    open_engine(BlockFile::open(path.as_ref(), &mode).unwrap(), engine).unwrap().device
}

/// The kernel's block device for the same sectors.
fn kernel(path: &str) -> std::fs::File {
    let block = path.replace("/dev/ng", "/dev/nvme");
    let file = std::fs::File::options().read(true).write(true).open(block).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    file
}

fn run(
    queue: &mut BoundedQueue,
    op: BioOp,
    at: u64,
    memory: Memory,
) -> (Memory, Result<usize, Errno>) {
    let end = BioEnd::Whole { token: 0, inode: InodeNo(0), pos: FilePos(0) };
    let (flags, dev, at) = (BioFlags::empty(), Dev::OWN, DevOffset(at));
    queue.submit(Bio { op, flags, dev, at, memory, end }).expect("a free slot");
    queue.wait(1).unwrap();
    let done = queue.pop().expect("the completion");
    (done.bio.memory, done.result)
}

#[test]
fn each_device_says_how_it_protects_its_sectors() {
    assert_eq!(device(&given("LAB_BLOCK1"), Engine::IoUring).protection(), None);
    let formats = [
        ("LAB_BLOCK5", "T10-DIF-TYPE1-CRC", 512, 8, has_attributes()),
        ("LAB_BLOCK6", "EXT-DIF-TYPE1-CRC64", 4096, 16, has_attributes()),
        ("LAB_CHAR5", "T10-DIF-TYPE1-CRC", 512, 8, true),
        ("LAB_CHAR6", "EXT-DIF-TYPE1-CRC64", 4096, 16, true),
        ("LAB_SCSI", "T10-DIF-TYPE1-CRC", 512, 8, has_attributes()),
    ];
    for (name, format, interval, metadata, carried) in formats {
        let device = device(&given(name), Engine::IoUring);
        let found = device.protection().expect(name);
        let DeviceProtection { generated, verified, .. } = *found;
        assert_eq!((found.format.as_str(), found.interval), (format, interval), "{name}");
        assert_eq!((found.metadata, found.carried), (metadata, carried), "{name}");
        assert!(generated && verified && device.limits().stable_writes, "{name}");
        let by_kernel = crate::protection::device(&given(name), Engine::Psync);
        assert!(!by_kernel.protection().unwrap().carried);
    }
}

/// `ironmap info` prints the format of a device with protection information, and of a device without it.
#[test]
fn info_shows_the_format() {
    let info = |path: &str, args: &[&str]| {
        let out = Command::new("ironmap").arg("info").args(args).arg(path).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let text = info(&given("LAB_CHAR5"), &[]);
    let expected = "T10-DIF-TYPE1-CRC, 8 bytes for each 512 bytes of data, computed and verified by ironmap for each request";
    assert!(text.contains(expected), "{text}");
    let text = info(&given("LAB_BLOCK6"), &[]);
    let by_whom = if has_attributes() { "by ironmap for each request" } else { "by the kernel" };
    let expected = format!(
        "EXT-DIF-TYPE1-CRC64, 16 bytes for each 4096 bytes of data, computed and verified {by_whom}"
    );
    assert!(text.contains(&expected), "{text}");
    let text = info(&given("LAB_BLOCK1"), &[]);
    assert!(text.lines().any(|line| line.split_whitespace().eq(["Protection:", "none"])), "{text}");
    let json = info(&given("LAB_BLOCK1"), &["--json"]);
    assert!(
        json.contains("\"protection\":null") || json.contains("\"protection\": null"),
        "{json}"
    );
    let json = info(&given("LAB_SCSI"), &["--json"]);
    assert!(json.contains("T10-DIF-TYPE1-CRC"), "{json}");
}

/// The kernel writes data and computes their tuples. ironmap reads the data and verifies them with these tuples.
#[test]
fn data_of_the_kernel_are_read_with_their_tuples() {
    for path in protected() {
        let engines: &[_] = match path.starts_with("/dev/sd") {
            true => &[Engine::IoUring],
            false => &[Engine::IoUring, Engine::IoUringPoll],
        };
        for engine in engines {
            assert_volume_reads(&path, *engine, 0x911);
        }
    }
}

/// ironmap writes data with tuples that it computes. The device verifies the tuples, and the kernel verifies them when it reads. The memory
/// is flat, vectored with sectors that two buffers share, registered, or borrowed.
#[test]
fn the_kernel_reads_data_written_with_tuples() {
    let rng = &mut Rng::new(0x912);
    for path in protected() {
        let mut expected = Vec::new();
        let device = device(&path, Engine::IoUring);
        let mut queue = device.queue(&QueueOptions::new().depth(8)).unwrap();
        let mut memories: Vec<Memory> =
            queue.register_buffers(2, 8192).unwrap().into_iter().map(Memory::Flat).collect();
        memories.push(Memory::Flat(Buffer::aligned(128 << 10).unwrap()));
        let parts = [4096 + 512, 1024, 2560 + 8192];
        let shared = parts.map(|len| Buffer::aligned(len).unwrap());
        memories.push(Memory::Vectored(shared.into()));
        let mut at = FREE;
        for mut memory in memories {
            for buffer in memory.buffers_mut() {
                let bytes = rng.bytes(buffer.len());
                buffer.copy_from_slice(&bytes);
                expected.extend(bytes);
            }
            let len = memory.len();
            let (memory, result) = run(&mut queue, BioOp::Write, at, memory);
            assert_eq!(result, Ok(len), "{path}: {len} bytes at {at}");
            let (_, result) = run(&mut queue, BioOp::Read, at, memory);
            assert_eq!(result, Ok(len), "{path}: read back, {len} bytes at {at}");
            at += len as u64;
        }
        let bytes = rng.bytes(8192);
        let (first, second) = bytes.split_at(3000);
        let lent = [IoSlice::new(first), IoSlice::new(second)];
        let written = queue.write_now(Dev::OWN, &lent, DevOffset(at), BioFlags::empty());
        assert_eq!(written, Ok(8192), "{path}");
        expected.extend(&bytes);
        let mut memory = Buffer::aligned(8192).unwrap();
        let read = queue.read_now(Dev::OWN, &mut memory, DevOffset(at), BioFlags::empty());
        assert!(read == Ok(8192) && *memory == bytes, "{path}: {read:?}");
        assert_eq!(run(&mut queue, BioOp::Flush, 0, Memory::Vectored(Vec::new())).1, Ok(0));
        let mut found = vec![0; expected.len()];
        kernel(&path).read_exact_at(&mut found, FREE).unwrap();
        assert!(found == expected, "{path}");
        assert_eq!(device.take_wrong_tuples().0, []);
    }
}

/// Many requests are in flight at a time. Each request has its own tuples (protection information).
#[test]
fn many_requests_carry_their_own_tuples() {
    const DEPTH: u64 = 32;
    for path in protected() {
        let device = device(&path, Engine::IoUring);
        let mut queue = device.queue(&QueueOptions::new().depth(DEPTH as u32)).unwrap();
        for op in [BioOp::Write, BioOp::Read] {
            for token in 0..DEPTH {
                let mut buffer = Buffer::aligned(4096).unwrap();
                if op == BioOp::Write {
                    buffer.fill(token as u8 ^ 0x5A);
                }
                let end = BioEnd::Whole { token, inode: InodeNo(0), pos: FilePos(0) };
                let (flags, at) = (BioFlags::empty(), DevOffset(FREE + token * 4096));
                let memory = Memory::Flat(buffer);
                queue.submit(Bio { op, flags, dev: Dev::OWN, at, memory, end }).expect("a slot");
            }
            queue.wait(DEPTH as usize).unwrap();
            for _ in 0..DEPTH {
                let done = queue.pop().expect("all of them");
                let BioEnd::Whole { token, .. } = done.bio.end else { panic!("not ours") };
                assert_eq!(done.result, Ok(4096), "{path}: {op:?} {token}");
                assert!(
                    done.bio.memory.buffers()[0].iter().all(|byte| *byte == token as u8 ^ 0x5A)
                );
            }
        }
    }
}

/// A wrong tuple is reported with its sector and its field. lab/boot.sh has written sectors of zeros to the backing file of the emulated
/// disk. Their tuples are, in this order: a correct tuple, a wrong reference tag, a wrong guard, a wrong guard that is marked as not to be
/// checked, and correct tuples.
#[test]
fn a_wrong_tuple_is_reported_by_sector_and_field() {
    for path in protected() {
        if path.starts_with("/dev/sd") {
            continue;
        }
        let device = device(&path, Engine::IoUring);
        let mut queue = device.queue(&QueueOptions::new().depth(8)).unwrap();
        let unit = u64::from(device.limits().logical_block);
        let first = MADE / unit;
        let guard = if unit == 512 { 0 } else { 0x6482_D367_EB22_B64E };
        let expected = [
            None,
            Some((Field::ReferenceTag, first + 1, 7)),
            Some((Field::Guard, guard, guard ^ 1)),
            None,
            None,
        ];
        for (sector, expected) in (first..).zip(expected) {
            let mut ways = Vec::new();
            let memory = Memory::Flat(Buffer::aligned(unit as usize).unwrap());
            ways.push(run(&mut queue, BioOp::Read, sector * unit, memory).1);
            let mut lent = Buffer::aligned(unit as usize).unwrap();
            let at = DevOffset(sector * unit);
            ways.push(queue.read_now(Dev::OWN, &mut lent, at, BioFlags::empty()));
            let result = if expected.is_none() { Ok(unit as usize) } else { Err(Errno::EILSEQ) };
            assert_eq!(ways, [result; 2], "{path}: sector {sector}");
            let wrong = expected.map(|(field, expected, found)| {
                let mismatch = Some(Mismatch { sector, field, expected, found });
                vec![WrongTuple { sector, mismatch }; 2]
            });
            assert_eq!(device.take_wrong_tuples().0, wrong.unwrap_or_default(), "{path}");
            // The kernel reports a fault for the same sectors.
            let direct = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECT;
            let block = path.replace("/dev/ng", "/dev/nvme");
            let block = rustix::fs::open(block, direct, rustix::fs::Mode::empty()).unwrap();
            let read = rustix::io::pread(&block, &mut lent[..], sector * unit);
            assert_eq!(read.is_ok(), result.is_ok(), "{path}: sector {sector}: {read:?}");
        }
        // A longer request has several wrong sectors. Its error names the first one.
        let memory = Memory::Flat(Buffer::aligned(8 * unit as usize).unwrap());
        let (_, result) = run(&mut queue, BioOp::Read, MADE, memory);
        assert_eq!(result, Err(Errno::EILSEQ), "{path}");
        assert_eq!(device.take_wrong_tuples().0[0].sector, first + 1, "{path}");
    }
}

/// If a tuple does not match the content, its sector is reported. The kernel has written new content without tuples, so the SCSI disk still
/// has the tuples of the old content.
#[test]
fn a_stale_tuple_is_reported_by_sector() {
    if !has_attributes() {
        return;
    }
    let path = given("LAB_SCSI");
    let setting = format!("/sys/block/{}/integrity/write_generate", &path["/dev/".len()..]);
    let device = device(&path, Engine::IoUring);
    let mut queue = device.queue(&QueueOptions::new().depth(8)).unwrap();
    let whole = |byte| {
        let mut buffer = Buffer::aligned(4096).unwrap();
        buffer.fill(byte);
        Memory::Flat(buffer)
    };
    assert_eq!(run(&mut queue, BioOp::Write, FREE, whole(1)).1, Ok(4096));
    std::fs::write(&setting, "0").unwrap();
    let file = kernel(&path);
    let written = file.write_all_at(&[2; 512], FREE + 1024).and_then(|()| file.sync_all());
    std::fs::write(&setting, "1").unwrap();
    written.unwrap();
    assert_eq!(run(&mut queue, BioOp::Read, FREE, whole(0)).1, Err(Errno::EILSEQ));
    let (found, _) = device.take_wrong_tuples();
    // The disk itself compares the tuples. Its error does not contain their values.
    assert_eq!(found, [WrongTuple { sector: FREE / 512 + 2, mismatch: None }]);
    // The next write makes the sector match its tuple again.
    assert_eq!(run(&mut queue, BioOp::Write, FREE, whole(3)).1, Ok(4096));
    assert_eq!(run(&mut queue, BioOp::Read, FREE, whole(0)).1, Ok(4096));
}

/// A read through a partition fails. The error names the sector number on the device, not the number in the partition.
#[test]
fn a_part_of_a_device_has_the_numbers_of_the_device() {
    for path in protected() {
        let window = Some((FREE, 1 << 20));
        let mode = OpenMode { write: true, exclusive: false, window, ..OpenMode::default() };
        let file = BlockFile::open(path.as_ref(), &mode).unwrap();
        let device = open_engine(file, Engine::IoUring).unwrap().device;
        let mut queue = device.queue(&QueueOptions::new().depth(8)).unwrap();
        let mut memory = Buffer::aligned(8192).unwrap();
        memory.fill(9);
        let (memory, result) = run(&mut queue, BioOp::Write, 4096, Memory::Flat(memory));
        assert_eq!(result, Ok(8192), "{path}");
        assert_eq!(run(&mut queue, BioOp::Read, 4096, memory).1, Ok(8192), "{path}");
        let mut bytes = vec![0; 8192];
        kernel(&path).read_exact_at(&mut bytes, FREE + 4096).unwrap();
        assert!(bytes == [9; 8192], "{path}");
    }
}
