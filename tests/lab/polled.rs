//! Block devices with poll queues.

use ironmap::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Memory};
use ironmap::device::{BlockFile, DeviceQueue, OpenMode, open_engine};
use ironmap::units::{DevOffset, FilePos, InodeNo};
use ironmap::{Engine, QueueOptions};

use crate::given;
use crate::reads::assert_volume_reads;

/// Reads return the right content, both if completions are polled for and if interrupts report them.
#[test]
fn polled_block_devices_read_the_same() {
    for device in [given("LAB_BLOCK1"), given("LAB_BLOCK2"), given("LAB_NULL")] {
        for engine in [Engine::Psync, Engine::IoUring, Engine::IoUringPoll] {
            assert_volume_reads(&device, engine, 0x901);
        }
    }
}

/// If a completion is already in the ring, the kernel polls without end. So a wait for several completions must first remove the existing
/// completions from the ring.
#[test]
fn all_that_are_in_flight_can_be_waited_for() {
    const DEPTH: u64 = 128;
    for path in [given("LAB_BLOCK1"), given("LAB_CHAR1"), given("LAB_NULL")] {
        let file = BlockFile::open(path.as_ref(), &OpenMode::default()).unwrap();
        let device = open_engine(file, Engine::IoUringPoll).unwrap().device;
        let mut queue = device.queue(&QueueOptions::new().depth(DEPTH as u32)).unwrap();
        let mut free: Vec<_> = (0..DEPTH).map(|_| Buffer::aligned(4096).unwrap()).collect();
        for round in 0..100 {
            for (at, buffer) in (0..).zip(free.drain(..)) {
                let (op, flags, dev) = (BioOp::Read, BioFlags::empty(), Dev::OWN);
                let end = BioEnd::Whole { token: at, inode: InodeNo(0), pos: FilePos(0) };
                let at = DevOffset(at * 4096);
                let bio = Bio { op, flags, dev, at, memory: Memory::Flat(buffer), end };
                queue.submit(bio).expect("a free slot");
            }
            queue.wait(DEPTH as usize).unwrap();
            for _ in 0..DEPTH {
                let done = queue.pop().expect("all of them");
                assert_eq!(done.result, Ok(4096), "{path}, round {round}");
                free.extend(done.bio.memory.into_buffers());
            }
        }
    }
}
