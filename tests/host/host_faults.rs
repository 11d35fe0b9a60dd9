//! Reads of files of mounted file systems, on devices that fail. If a read directly from the device fails, an event reports the failure.
//! The kernel then repeats the read before the caller gets an error.

use crate::require;
use std::fs::OpenOptions as OsOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::common::calls::{Both, CALLS, read};
use crate::common::full_disk::{Tmpfs, fill};
use crate::common::mounted::Mounted;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use ironmap::bio::Buffer;
use ironmap::device::{BlockFile, Device, Faults, OpenMode, Psync, Sim, Uring, UringOptions};
use ironmap::dio::DioFlags;
use ironmap::events::Direction;
use ironmap::iomap::IomapType;
use ironmap::units::FilePos;
use ironmap::{Errno, ErrorKind, Host, HostOptions, Queue, QueueOptions};

const SEED: u64 = 0x4_fa017;
const ROUNDS: usize = 200;
const SIZE: usize = 700_001;

/// A reader for files of mounted file systems. Its reads directly from the device go through a layer that injects faults.
fn sim(mounted: &Mounted, ring: bool) -> (Arc<Sim>, Host, Queue) {
    let mode = OpenMode { exclusive: false, ..OpenMode::default() };
    let file = Arc::new(BlockFile::open(Path::new(mounted.device()), &mode).unwrap());
    let below: Arc<dyn Device> = if ring {
        Arc::new(Uring::new(file, UringOptions::default()))
    } else {
        Arc::new(Psync::new(file))
    };
    let sim = Arc::new(Sim::new(below, Faults::default()));
    let host = Host::on(sim.clone()).unwrap();
    let queue = host.queue(&QueueOptions::default()).unwrap();
    (sim, host, queue)
}

/// If some or all reads directly from the device fail, immediately or late, the caller gets no error, and the data are correct.
#[test]
fn a_read_that_fails_raw_goes_through_the_kernel() {
    require!([Need::Root, Need::Tool("losetup")]);
    let mounted = Mounted::ext4();
    let content = Rng::new(SEED).bytes(SIZE);
    let path = mounted.write("file", &content);
    for ring in [false, true] {
        let (sim, host, mut queue) = sim(&mounted, ring);
        let both = Both::open(&host, &path);
        let mapped = both.any.mappings().map(Result::unwrap);
        let mapped = mapped.filter(|iomap| iomap.kind == IomapType::Mapped);
        let bad =
            mapped.flat_map(|iomap| (iomap.addr.0 / 512..iomap.addr.0 / 512 + 300).step_by(40));
        let faults = [
            Faults { fail_after: Some(0), ..Faults::default() },
            Faults { fail_after: Some(0), latency: 5, ..Faults::default() },
            Faults { bad_sectors: bad.collect(), latency: 3, ..Faults::default() },
            Faults { fail_after: Some(0), errno: Some(Errno::ENODATA), ..Faults::default() },
        ];
        for faults in faults {
            let errno = faults.errno.unwrap_or(Errno::EIO);
            sim.set_faults(faults);
            let before = queue.stats().kernel_served;
            both.check(&mut queue, &content, SEED, ROUNDS);
            assert_eq!(both.served(), "raw");
            let served = queue.stats().kernel_served - before;
            let (events, dropped) = host.events().take();
            assert!(served > 0 && events.len() as u64 + dropped >= served, "{served}: {events:?}");
            for event in events {
                let expected = (Direction::DirectRead, both.any.inode(), errno);
                assert_eq!((event.direction, event.inode, event.errno), expected);
            }
        }
        sim.set_faults(Faults::default());
        let before = queue.stats().kernel_served;
        both.check(&mut queue, &content, SEED, ROUNDS);
        assert_eq!(queue.stats().kernel_served, before, "good again");
    }
}

/// After a short transfer or a late completion, ironmap continues the read on the device, and does not read through the kernel's file
/// system instead.
#[test]
fn short_and_late_reads_need_no_kernel() {
    require!([Need::Root, Need::Tool("losetup")]);
    let mounted = Mounted::ext4();
    let content = Rng::new(SEED).bytes(SIZE);
    let path = mounted.write("file", &content);
    for ring in [false, true] {
        let (sim, host, mut queue) = sim(&mounted, ring);
        let both = Both::open(&host, &path);
        for (short_one_in, latency) in [(Some(2), 0), (None, 7), (Some(3), 7)] {
            sim.set_faults(Faults { seed: SEED, short_one_in, latency, ..Faults::default() });
            both.check(&mut queue, &content, SEED, ROUNDS);
        }
        assert!(queue.stats().short > 0);
        assert_eq!(queue.stats().kernel_served, 0);
        assert!(host.events().take().0.is_empty());
    }
}

/// A direct read by the kernel can fail with the error of an earlier write to the file. A read by ironmap does not return such an error.
#[test]
fn a_read_does_not_fail_with_the_error_of_an_earlier_write() {
    require!([Need::Root, Need::Tool("losetup")]);
    for mkfs in ["mke2fs -t ext4 -b 4096 -E lazy_itable_init=0", "mkfs.xfs"] {
        let tmpfs = Tmpfs::new(200);
        let mounted = Mounted::within(tmpfs.path(), mkfs, 320, "noatime");
        let old = Rng::new(SEED).bytes(SIZE);
        let path = mounted.write("file", &old);
        let writer = OsOptions::new().write(true).open(&path).unwrap();
        writer.sync_all().unwrap();
        let host = Host::new(&HostOptions::default()).unwrap();
        let mut queue = host.queue(&QueueOptions::default()).unwrap();
        let both = Both::open(&host, &path);
        assert_ne!(both.served(), "raw");
        fill(tmpfs.path());
        let new = Rng::new(SEED + 1).bytes(16 << 20);
        for way in CALLS {
            // The file system has not yet allocated blocks for these data. When it tries, it will find no free space.
            writer.write_all_at(&new, 1 << 20).unwrap();
            let (at, len) = (2 << 20, 16384);
            let range = (at, 0, len);
            let (result, bytes) =
                read(way, &mut queue, &both.strict, range, &[len], DioFlags::empty());
            assert_eq!(result.unwrap(), len, "{mkfs} {way:?}");
            let offset = at as usize - (1 << 20);
            assert!(bytes == new[offset..offset + len], "{mkfs} {way:?}");
        }
    }
}

/// The read directly from the device fails, and then the read by the kernel fails too, because the disk is too short. Each request gets
/// exactly one error, with the kernel's errno.
#[test]
fn a_read_that_fails_both_ways_is_one_error() {
    require!([Need::Root, Need::Tool("losetup")]);
    let mounted = Mounted::new("mke2fs -t ext4 -b 4096", 64, "noatime");
    let path = mounted.write("file", &Rng::new(SEED).bytes(1 << 20));
    let host = Host::new(&HostOptions::default()).unwrap();
    let mut queue = host.queue(&QueueOptions::new().depth(16)).unwrap();
    let both = Both::open(&host, &path);
    assert_eq!(both.served(), "raw");
    let image = OsOptions::new().write(true).open(mounted.image()).unwrap();
    image.set_len(4096).unwrap();
    let len = 16384;
    for way in CALLS {
        let cuts = [4096, 8192, 4096];
        let (result, _) =
            read(way, &mut queue, &both.strict, (8192, 0, len), &cuts, DioFlags::empty());
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Io(Errno::EIO), "{way:?}");
        // One event reports the failure of the device, and another event reports the failure of the kernel's read.
        let (events, dropped) = host.events().take();
        assert_eq!((events.len(), dropped), (2, 0), "{way:?}");
        for event in events {
            let kind = (event.direction, event.errno);
            assert_eq!(kind, (Direction::DirectRead, Errno::EIO), "{way:?}");
            let place = (event.inode, event.pos, event.len);
            assert_eq!(place, (both.any.inode(), FilePos(8192), len as u64), "{way:?}");
        }
    }
    // Many requests are in flight at the same time.
    for token in 0..16 {
        let buffer = Buffer::aligned(4096).unwrap();
        let pos = FilePos(token * 4096);
        assert!(both.strict.submit_read(&mut queue, buffer, pos, DioFlags::empty(), token).is_ok());
    }
    let mut tokens = Vec::new();
    while queue.outstanding() > 0 {
        queue.wait(1).unwrap();
        while let Some(done) = queue.pop() {
            assert_eq!(done.result.unwrap_err().kind(), ErrorKind::Io(Errno::EIO));
            tokens.push(done.token);
        }
    }
    tokens.sort_unstable();
    assert!(tokens.into_iter().eq(0..16));
}
