//! Errors after which a volume refuses writes. Other tests check which data are durable after closes and syncs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::common::skip::Need;
use crate::{for_writing, require};
use ironmap::bio::Buffer;
use ironmap::device::{
    BlockFile, Device, Faults, Layer, Layered, OpenMode, Psync, Ram, Request, Sim, Verdict,
};
use ironmap::dio::DioFlags;
use ironmap::fs::Follow;
use ironmap::{ErrorKind, File, Queue, QueueOptions, Volume, VolumeOptions};

/// A volume in memory with the file `whole`. Its device can simulate faults.
fn world() -> Option<(Arc<Sim>, Volume, File, Queue)> {
    let image = crate::filled(&["-d", "agcount=2"], 4096)?;
    let content = std::fs::read(image.path()).unwrap();
    Some(world_on(Arc::new(Ram::from_image(&content))))
}

fn world_on(device: Arc<dyn Device>) -> (Arc<Sim>, Volume, File, Queue) {
    let sim = Arc::new(Sim::new(device, Faults::default()));
    let volume = VolumeOptions::new().write(true).open_on(sim.clone()).unwrap();
    let inode = volume.fs().resolve(b"whole", Follow::All).unwrap();
    let file = volume.open_inode(inode, for_writing()).unwrap();
    let queue = volume.queue(&QueueOptions::default()).unwrap();
    (sim, volume, file, queue)
}

/// After a failed flush, all writes are refused. The device may have lost data, and ironmap cannot know which data.
#[test]
fn a_flush_that_fails_ends_all_writes() {
    require!([Need::Root, Need::Tool("mkfs.xfs")]);
    let Some((sim, volume, file, mut queue)) = world() else { return };
    let block = [5; 4096];
    file.write_all_at(&mut queue, &block, 0).unwrap();
    sim.set_faults(Faults { fail_after: Some(0), ..Faults::default() });
    assert!(matches!(file.sync(&mut queue).unwrap_err().kind(), ErrorKind::Io(_)));
    sim.set_faults(Faults::default());
    for pos in [0, 1] {
        let refused = file.write_at(&mut queue, &block, pos).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
    }
    let refused = file.write_at_with(&mut queue, &block, 0, DioFlags::DSYNC).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    assert_eq!(file.sync(&mut queue).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(volume.fs().sync().unwrap_err().kind(), ErrorKind::ReadOnly);
    // The data that were written can still be read.
    let mut read = [0; 4096];
    assert_eq!(file.read_at(&mut queue, &mut read, 0).unwrap(), 4096);
    assert_eq!(read, block);
}

#[test]
fn a_closed_volume_takes_no_write() {
    require!([Need::Root, Need::Tool("mkfs.xfs")]);
    let Some((_, volume, file, mut queue)) = world() else { return };
    let block = Buffer::aligned(4096).unwrap();
    file.submit_write(&mut queue, block, 0, DioFlags::empty(), 1).unwrap();
    // A write stays in flight until its completion is collected.
    assert_eq!(volume.close().unwrap_err().kind(), ErrorKind::Busy);
    queue.wait(1).unwrap();
    queue.pop().unwrap().result.unwrap();
    file.write_all_at(&mut queue, &[1; 4096], 4096).unwrap();
    volume.close().unwrap();
    volume.close().unwrap();
    let refused = file.write_at(&mut queue, &[1; 4096], 0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
}

/// After a failed flush, data may be lost. So every close fails.
#[test]
fn after_a_failed_flush_no_close_succeeds() {
    require!([Need::Root, Need::Tool("mkfs.xfs")]);
    for by_close in [false, true] {
        let Some((sim, volume, file, mut queue)) = world() else { return };
        file.write_all_at(&mut queue, &[5; 4096], 0).unwrap();
        sim.set_faults(Faults { fail_at: Some(0), ..Faults::default() });
        if by_close {
            assert!(matches!(volume.close().unwrap_err().kind(), ErrorKind::Io(_)));
        } else {
            assert!(matches!(file.sync(&mut queue).unwrap_err().kind(), ErrorKind::Io(_)));
        }
        for _ in 0..2 {
            assert!(matches!(volume.close().unwrap_err().kind(), ErrorKind::Io(_)));
        }
    }
}

/// If a flush during an O_DSYNC write fails, every later sync fails. The kernel reports a failed flush only once: its next flush succeeds.
#[test]
fn after_a_failed_flush_of_a_durable_write_no_sync_succeeds() {
    require!([Need::Root, Need::Tool("mkfs.xfs")]);
    for queued in [false, true] {
        let Some(image) = crate::filled(&["-d", "agcount=2"], 4096) else { return };
        let mode = OpenMode { write: true, ..OpenMode::default() };
        let below = Psync::new(Arc::new(BlockFile::open(&image.path(), &mode).unwrap()));
        let (sim, volume, file, mut queue) = world_on(Arc::new(below));
        let block = || Buffer::aligned(4096).unwrap();
        file.write_all_at(&mut queue, &block(), 4096).unwrap();
        // The second request fails: the flush after the write.
        sim.set_faults(Faults { fail_at: Some(1), ..Faults::default() });
        let written = if queued {
            file.submit_write(&mut queue, block(), 0, DioFlags::DSYNC, 1).unwrap();
            queue.wait(1).unwrap();
            queue.pop().unwrap().result
        } else {
            file.write_at_with(&mut queue, &block(), 0, DioFlags::DSYNC)
        };
        assert!(matches!(written.unwrap_err().kind(), ErrorKind::Io(_)), "queued: {queued}");
        sim.set_faults(Faults::default());
        assert!(file.sync(&mut queue).is_err(), "queued: {queued}");
        assert!(matches!(volume.close().unwrap_err().kind(), ErrorKind::Io(_)));
    }
}

#[derive(Debug, Default)]
struct Flushes {
    begun: AtomicBool,
    ended: AtomicBool,
}

/// A layer that makes flushes slow.
#[derive(Debug)]
struct Slow(Arc<Flushes>);

impl Layer for Slow {
    fn begin(&self, request: &Request<'_>) -> Verdict {
        if matches!(request, Request::Flush) {
            self.0.begun.store(true, SeqCst);
            (0..100_000).for_each(|_| std::thread::yield_now());
            self.0.ended.store(true, SeqCst);
        }
        Verdict::pass(request)
    }
}

/// If two threads close a volume at the same time, each close returns only after the data are durable.
#[test]
fn a_second_close_waits_for_the_first() {
    require!([Need::Root, Need::Tool("mkfs.xfs")]);
    let Some(image) = crate::filled(&["-d", "agcount=2"], 4096) else { return };
    let content = std::fs::read(image.path()).unwrap();
    let flushes = Arc::<Flushes>::default();
    let slow = Layered::with_layer(Arc::new(Ram::from_image(&content)), Slow(flushes.clone()));
    let (_, volume, file, mut queue) = world_on(Arc::new(slow));
    file.write_all_at(&mut queue, &[5; 4096], 0).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| volume.close());
        while !flushes.begun.load(SeqCst) {
            std::thread::yield_now();
        }
        volume.close().unwrap();
        assert!(flushes.ended.load(SeqCst), "it returned before the data were durable");
        first.join().unwrap().unwrap();
    });
}
