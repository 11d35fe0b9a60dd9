//! Reads a file with known content in every way that a queue supports.

use std::collections::HashMap;

use ironmap::bio::{Buffer, Memory};
use ironmap::dio::DioFlags;
use ironmap::fs::Follow;
use ironmap::units::FilePos;
use ironmap::{Engine, File, FileOptions, Queue, QueueOptions, VolumeOptions};

use crate::common::rng::Rng;
use crate::given;

/// The maximum length of a queued read. It is longer than the maximum transfer of the devices in the guest.
const LARGEST: u64 = 256 << 10;

/// Opens the volume on a device and reads its only file. The expected content is in a file that lab/test.sh has stored.
pub(crate) fn assert_volume_reads(device: &str, engine: Engine, seed: u64) {
    let content = std::fs::read(given("LAB_DATA")).expect("the content of the volume's file");
    let volume = VolumeOptions::new().engine(engine).open(device).unwrap();
    assert_eq!((volume.engine(), volume.notices()), (engine, [].as_slice()), "{device}");
    let inode = volume.fs().resolve(b"/data", Follow::All).unwrap();
    let file = volume.open_inode(inode, FileOptions::default()).unwrap();
    let queue = |depth| volume.queue(&QueueOptions::new().depth(depth)).unwrap();
    assert_reads(&file, queue, &content, seed, &format!("{device}, {engine}"));
}

/// Reads a file with this content in every way, through queues of several depths.
pub(crate) fn assert_reads(
    file: &File,
    queue: impl Fn(u32) -> Queue,
    content: &[u8],
    seed: u64,
    what: &str,
) {
    let rng = &mut Rng::new(seed);
    for depth in [1, 128] {
        for fixed in [false, true] {
            let mut queue = queue(depth);
            let what = format!("{what}, depth {depth}, fixed {fixed}, seed {seed:#x}");
            assert_read_now(file, &mut queue, content, rng, &what);
            let buffers = if fixed {
                queue.register_buffers(depth as usize, LARGEST as usize).unwrap()
            } else {
                let buffer = |_| Buffer::aligned(LARGEST as usize).unwrap();
                (0..depth).map(buffer).collect()
            };
            assert_queued(file, &mut queue, content, buffers, rng, &what);
        }
    }
}

/// Synchronous reads at any position, of any length, and into memory at any address.
fn assert_read_now(file: &File, queue: &mut Queue, content: &[u8], rng: &mut Rng, what: &str) {
    let mut memory = Buffer::aligned(2 << 20).unwrap();
    for round in 0..40 {
        let (mut pos, mut len) =
            (rng.below(content.len() as u64), 1 + rng.below(1 << (8 + round % 11)));
        if round % 2 == 0 {
            (pos, len) = (pos & !4095, len.next_multiple_of(4096));
        }
        // null_blk of Linux 7 reports that it accepts memory at every even address. At some of these addresses it stores wrong bytes.
        let takes = !what.starts_with("/dev/nullb");
        let skip = if round % 3 == 0 && takes { rng.below(64) as usize } else { 0 };
        let buf = &mut memory[skip..skip + len as usize];
        let count = file.read_at(queue, buf, FilePos(pos)).unwrap();
        let expected = &content[pos as usize..content.len().min((pos + len) as usize)];
        assert!(buf[..count] == *expected, "{what}: {len} bytes at {pos}");
    }
}

/// Tests queued reads. As many reads are in flight as there are buffers.
fn assert_queued(
    file: &File,
    queue: &mut Queue,
    content: &[u8],
    mut free: Vec<Buffer>,
    rng: &mut Rng,
    what: &str,
) {
    let mut left = 40 + 2 * free.len() as u64;
    // For each token: the position of the read, and the number of unused bytes in its buffer.
    let mut in_flight = HashMap::new();
    while left > 0 || !in_flight.is_empty() {
        while left > 0
            && let Some(mut buffer) = free.pop()
        {
            let bits = rng.below(8);
            let len = (4096 + rng.below(4096 << bits)).next_multiple_of(4096).min(LARGEST) as usize;
            let pos = rng.below(content.len() as u64) & !4095;
            let used = buffer.split_to(len);
            in_flight.insert(left, (pos as usize, buffer));
            file.submit_read(queue, used, FilePos(pos), DioFlags::empty(), left)
                .unwrap_or_else(|rejected| panic!("{what}: {}", rejected.error));
            left -= 1;
        }
        queue.wait(1).unwrap();
        while let Some(completion) = queue.pop() {
            let (pos, rest) = in_flight.remove(&completion.token).expect("a token of ours");
            let Memory::Flat(mut buffer) = completion.memory else { panic!("{what}: vectored") };
            let end = content.len().min(pos + buffer.len());
            let count =
                completion.result.unwrap_or_else(|error| panic!("{what}: at {pos}: {error}"));
            assert!(buffer[..count] == content[pos..end], "{what}: {} at {pos}", buffer.len());
            buffer.unsplit(rest).expect("two halves of one buffer");
            free.push(buffer);
        }
    }
}
