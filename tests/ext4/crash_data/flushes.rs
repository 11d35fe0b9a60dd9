//! Devices that lose their cache when a flush fails. Such a device reports the failure once, and its next flush succeeds.

use std::io::IoSlice;
use std::sync::{Arc, Mutex};

use ironmap::bio::Buffer;
use ironmap::device::{Device, Layer, Layered, Limits, Ram, Request, ThroughFlushes, Verdict};
use ironmap::dio::DioFlags;
use ironmap::fs::ext4::ROOT;
use ironmap::units::{DevOffset, FilePos};
use ironmap::{Errno, FileOptions, QueueOptions, Volume};

use crate::common::beneath::{self, Beneath, tail};
use crate::crash::fsck::Fsck;
use crate::crash::ours::CLOCK;
use crate::crash::rules::look;
use crate::crash::volume;
use crate::crash_data::LAYOUTS;
use crate::crash_data::history::name;
use crate::crash_data::workload::{Kind, run};

const LENGTH: usize = 40;

/// The effect that a write-through request to the device has in addition to the write itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Through {
    /// No additional effect: the device supports FUA.
    Alone,
    /// The whole device is flushed, as the kernel does for a device without FUA and for a file.
    Flushes,
}

/// A volatile cache over a device. The test chooses a flush by its number. This flush fails, and the data that it should have made durable
/// are lost.
#[derive(Debug)]
struct Forgetful {
    disk: Arc<Ram>,
    through: Through,
    cache: Arc<Mutex<Cache>>,
}

#[derive(Debug)]
struct Cache {
    durable: Ram,
    /// The position and length of each write since the last flush.
    since: Vec<(DevOffset, u64)>,
    flushes: u64,
    fail_at: Option<u64>,
}

impl Forgetful {
    fn new(disk: Arc<Ram>, through: Through, fail_at: Option<u64>) -> Self {
        let durable = disk.snapshot();
        let cache = Cache { durable, since: Vec::new(), flushes: 0, fail_at };
        Self { disk, through, cache: Arc::new(Mutex::new(cache)) }
    }

    /// Carries out a flush, and returns whether it succeeds.
    fn flush(&self, cache: &mut Cache) -> bool {
        let number = cache.flushes;
        cache.flushes += 1;
        let written = std::mem::take(&mut cache.since);
        if cache.fail_at != Some(number) {
            cache.durable = self.disk.snapshot();
            return true;
        }
        for (at, len) in written {
            let mut before = vec![0; len as usize];
            cache.durable.read_exact_at(&mut before, at).unwrap();
            put(&self.disk, &before, at);
        }
        false
    }
}

impl Layer for Forgetful {
    fn limits(&self, below: &Limits) -> Limits {
        let through_flushes = match self.through {
            Through::Alone => ThroughFlushes::Never,
            Through::Flushes => ThroughFlushes::Always,
        };
        Limits { through_flushes, ..*below }
    }

    fn begin(&self, request: &Request<'_>) -> Verdict {
        let mut cache = self.cache.lock().unwrap();
        let failed = Verdict { ticket: 0, len: 0, error: Some(Errno::EIO) };
        match *request {
            Request::Read { .. } => {}
            Request::Flush if !self.flush(&mut cache) => return failed,
            Request::Flush => {}
            Request::Write { at, bufs, fua } => {
                cache.since.push((at, request.len()));
                if fua {
                    let data: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
                    // With an NBD server, another connection can flush before this request continues. So the data are written to the disk
                    // here.
                    put(&self.disk, &data, at);
                    match self.through {
                        Through::Alone => put(&cache.durable, &data, at),
                        Through::Flushes if !self.flush(&mut cache) => return failed,
                        Through::Flushes => {}
                    }
                }
            }
            Request::Discard { at, len } => cache.since.push((at, len)),
        }
        Verdict::pass(request)
    }
}

fn put(ram: &Ram, bytes: &[u8], at: DevOffset) {
    let mut buffer = Buffer::aligned(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    ram.write_all_at(&[IoSlice::new(&buffer)], at, false).unwrap();
}

/// After a flush fails, each kind of sync fails, even if another caller had sent the flush. Data that were acknowledged before the failure
/// exist.
#[test]
fn no_sync_succeeds_after_a_flush_that_failed() {
    let fsck = Fsck::new();
    let mut tried = 0;
    for (seed, (size, format, kind)) in (0..).zip(LAYOUTS) {
        let plain = volume::stale(size, format);
        let base = tail::tagged(&plain);
        for through in [Through::Alone, Through::Flushes] {
            let attempt = |fail_at: Option<u64>| {
                let disk = Arc::new(base.snapshot());
                let layer = Forgetful::new(disk.clone(), through, fail_at);
                let cache = Arc::clone(&layer.cache);
                let device = Arc::new(Layered::with_layer(disk.clone(), layer));
                (disk, cache, Volume::writable_on(tail::open(device), CLOCK))
            };
            // Flushes during the open are skipped, because no volume exists yet that could report the failure.
            let (_, cache, opened) = attempt(None);
            let opening = cache.lock().unwrap().flushes;
            let opened = opened.unwrap();
            let outcome = run(&opened, kind, seed, LENGTH, &|_| ());
            outcome.result.unwrap_or_else(|error| panic!("{format}, seed {seed}: {error}"));
            let flushes = cache.lock().unwrap().flushes;
            drop(opened);
            let step = stride(flushes - opening);
            for fail_at in (opening..flushes).step_by(step) {
                let what = format!("{format}, {through:?}, seed {seed}, flush {fail_at}");
                let (disk, cache, opened) = attempt(Some(fail_at));
                let opened = opened.unwrap();
                let outcome = run(&opened, kind, seed, LENGTH, &|_| ());
                let now = outcome.history.events();
                // With an NBD server, the number of flushes depends on the order of the server's answers. So the number differs between
                // runs.
                if cache.lock().unwrap().flushes <= fail_at {
                    let is_server = matches!(beneath::chosen(), Some(Beneath::Nbd(_)));
                    assert!(is_server, "{what}: it did not come to that");
                    continue;
                }
                assert!(outcome.result.is_err(), "{what}: the error was not reported");
                assert_syncs_fail(&opened, &what);
                drop(opened);
                tried += 1;
                // Without a journal, ironmap promises nothing for a file until the file has been created.
                if kind == Kind::Overwrites && now <= outcome.since {
                    continue;
                }
                let durable = cache.lock().unwrap().durable.snapshot();
                for (left, device) in [("durable", durable), ("cached", disk.snapshot())] {
                    let what = format!("{what}, {left}: {:?}", outcome.result);
                    let device =
                        tail::recovered(device, plain.size(), &tail::Recoveries::default())
                            .unwrap_or_else(|fault| panic!("{what}: {fault}"));
                    let found =
                        look(&device).and_then(|(tree, _)| outcome.history.check(&tree, now));
                    found.unwrap_or_else(|fault| panic!("{what}: {fault}"));
                    if kind == Kind::Everything && tried % 8 == 0 {
                        let repaired = fsck.repaired(&device).and_then(|repaired| look(&repaired));
                        repaired
                            .and_then(|(tree, _)| outcome.history.check(&tree, now))
                            .unwrap_or_else(|fault| panic!("{what}, by e2fsck: {fault}"));
                    }
                }
            }
        }
    }
    eprintln!("flushes that failed: {tried}");
}

/// Asserts that a sync of each existing file and a sync of the volume fail.
fn assert_syncs_fail(volume: &Volume, what: &str) {
    let synced = volume.fs().sync();
    assert!(synced.is_err(), "{what}: the volume's sync");
    let mut queue = match volume.queue(&QueueOptions::new().depth(4)) {
        Ok(queue) => queue,
        // After the failure, the NBD client refuses to make a new queue.
        Err(error) => {
            assert!(matches!(beneath::chosen(), Some(Beneath::Nbd(_))), "{what}: {error}");
            return;
        }
    };
    for id in 0..16 {
        let Ok(inode) = volume.fs().lookup(ROOT, name(id).as_bytes()) else { continue };
        let Ok(file) =
            volume.open_inode(inode, FileOptions::new().write(volume.fs().is_writable()))
        else {
            continue;
        };
        let data = [7; 1024];
        let written = file.write_at_with(&mut queue, &data, FilePos(0), DioFlags::DSYNC);
        assert!(written.is_err(), "{what}: O_DSYNC to {}", name(id));
        let written = file.write_at_with(&mut queue, &data, FilePos(0), DioFlags::SYNC);
        assert!(written.is_err(), "{what}: O_SYNC to {}", name(id));
        assert!(file.sync_data(&mut queue).is_err(), "{what}: fdatasync of {}", name(id));
        assert!(file.sync(&mut queue).is_err(), "{what}: fsync of {}", name(id));
    }
    assert!(volume.close().is_err(), "{what}: close");
    assert!(volume.close().is_err(), "{what}: close once more");
}

/// The step between the tested flush numbers. Each run of the test makes one flush fail. A long run tests every flush.
fn stride(flushes: u64) -> usize {
    match std::env::var("IRONMAP_CRASH_STATES") {
        Ok(_) => 1,
        Err(_) => (flushes as usize / 10).max(1),
    }
}
