//! Failing devices below an integrity device. After a failed write, the content is undefined, but each sector still matches its tag.
//! Readers get the errors of the devices unchanged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ironmap::bio::{BioFlags, BioOp, Buffer, Dev};
use ironmap::device::{
    Device, DeviceProtection, DeviceQueue, Faults, Layer, Layered, Null, Ram, Record, Request, Sim,
    Verdict, WrongTuple,
};
use ironmap::integrity::{
    Event, FormatOptions, Integrity, IntegrityOptions, Mode, ScrubFinding, format,
};
use ironmap::units::DevOffset;
use ironmap::{Errno, ErrorKind};

use crate::rng::Rng;
use crate::stand::{Stand, as_device, bio, change, queue, read, write};

const SIZE: u64 = 1 << 20;

fn options(mode: Mode) -> FormatOptions {
    FormatOptions::new().mode(mode).interval(512).region(64 << 10).journal(256 << 10)
}

/// A request to the data device fails and is torn. Reads of the resulting content succeed.
#[test]
fn sectors_of_a_write_that_failed_can_be_read() {
    for mode in [Mode::Bitmap, Mode::Journal] {
        for seed in 0..30 {
            let stand = Stand::new(SIZE, false, &options(mode), seed);
            let sim = Arc::new(Sim::new(as_device(&stand.data), Faults::default()));
            let tags = stand.tags.as_ref().map(as_device);
            let device = Integrity::open(sim.clone(), tags).unwrap().device;
            let mut rng = Rng::new(seed);
            let at = rng.below(100) * 512;
            sim.set_faults(Faults {
                seed,
                fail_at: Some(0),
                torn: seed % 2 == 0,
                ..Faults::default()
            });
            let len = 512 * (1 + rng.below(16) as usize);
            if seed % 3 == 0 {
                assert_eq!(
                    write(&device, at, &vec![7; len], false).unwrap_err().errno(),
                    Errno::EIO
                );
            } else {
                let mut queue = queue(&device);
                let mut buffer = Buffer::aligned(len).unwrap();
                buffer.fill(7);
                queue.submit(bio(BioOp::Write, at, buffer, 0)).unwrap();
                queue.wait(1).unwrap();
                assert_eq!(queue.pop().unwrap().result, Err(Errno::EIO));
            }
            read(&device, 0, 128 << 10).unwrap();
            assert_eq!(device.counts().retagged, len as u64 / 512);
            let (events, _) = device.take_events();
            let expected =
                Event::Retagged { sector: at / 512, count: len as u64 / 512, errno: Errno::EIO };
            assert_eq!(events, [expected]);
            device.close().unwrap();
            drop(device);
            stand
                .open()
                .device
                .scrub(&mut |found| panic!("{found:?}, seed {seed}"), &mut |_, _| {})
                .unwrap();
        }
    }
}

/// The data device and the tag device fail at each request in turn. The caller gets the device's error unchanged, and later reads return no
/// wrong data.
#[test]
fn an_error_at_any_request_is_reported_and_harms_nothing_else() {
    for mode in [Mode::Bitmap, Mode::Journal] {
        for of_tags in [false, true] {
            for number in 0..40 {
                let stand = Stand::new(SIZE, false, &options(mode), number);
                let data = Arc::new(Sim::new(as_device(&stand.data), Faults::default()));
                let tags =
                    Arc::new(Sim::new(as_device(stand.tags.as_ref().unwrap()), Faults::default()));
                let sim = if of_tags { &tags } else { &data };
                sim.set_faults(Faults { fail_at: Some(number), ..Faults::default() });
                let lazy = IntegrityOptions::new().clean_after(Duration::ZERO);
                let opened = Integrity::open_with(data.clone(), Some(tags.clone()), &lazy);
                let device = match opened {
                    Ok(opened) => opened.device,
                    Err(error) => {
                        assert_eq!(error.errno(), Errno::EIO);
                        continue;
                    }
                };
                let mut queue = queue(&device);
                for step in 0..12 {
                    let at = step * 37 % 64 * 4096;
                    let mut buffer = Buffer::aligned(4096).unwrap();
                    buffer.fill(step as u8);
                    let bufs = [std::io::IoSlice::new(&buffer)];
                    let result = queue.write_now(Dev::OWN, &bufs, DevOffset(at), BioFlags::empty());
                    assert!(matches!(result, Ok(4096) | Err(Errno::EIO)), "{result:?}");
                    let result = read(&device, at, 4096);
                    assert!(result.is_ok() || result.unwrap_err().errno() == Errno::EIO);
                    if step % 5 == 4 {
                        let _ = device.flush();
                    }
                }
                drop(queue);
                sim.set_faults(Faults::default());
                let closed = device.close().map_err(|error| error.to_string());
                let behind = |error: &String| {
                    error.contains("until the integrity device is opened again and recovered")
                };
                assert!(closed.as_ref().err().is_none_or(behind), "{closed:?}");
                device
                    .scrub(&mut |found| panic!("{found:?}, request {number}"), &mut |_, _| {})
                    .unwrap();
                drop(device);
                stand
                    .open()
                    .device
                    .scrub(&mut |found| panic!("{found:?}"), &mut |_, _| {})
                    .unwrap();
            }
        }
    }
}

/// The write of a journal record returned an error, but the record may be on the device. Later writes to the same sectors are acknowledged.
/// The recovery does not replay the record over these later writes.
#[test]
fn a_record_that_failed_comes_not_back_over_later_writes() {
    for seed in 0..60 {
        let stand = Stand::new(SIZE, false, &options(Mode::Journal), seed);
        let tags = Arc::new(Sim::new(as_device(stand.tags.as_ref().unwrap()), Faults::default()));
        let device = Integrity::open(as_device(&stand.data), Some(tags.clone())).unwrap().device;
        let mut rng = Rng::new(seed);
        // The allowed contents of each sector: the last acknowledged write, and each failed write after it.
        let mut may_hold = vec![vec![0]; 256];
        for number in 1..=60_u8 {
            if number == 1 {
                write(&device, 0, &[0; 256 * 512], false).unwrap();
                let fail_at = Some(rng.below(50));
                tags.set_faults(Faults { fail_at, unheard: true, ..Faults::default() });
            }
            let count = (1 + rng.below(96)) as usize;
            let first = rng.below((256 - count) as u64) as usize;
            let written =
                write(&device, first as u64 * 512, &vec![number; count * 512], false).is_ok();
            for held in &mut may_hold[first..first + count] {
                if written {
                    held.clear();
                }
                held.push(number);
            }
        }
        let crashed = stand.snapshot().open().device;
        for (sector, held) in (0..).zip(may_hold) {
            let content = read(&crashed, sector * 512, 512).unwrap();
            let fits = held.iter().any(|number| content == [*number; 512]);
            assert!(fits, "seed {seed}: sector {sector} holds {}, not {held:?}", content[0]);
        }
        crashed.scrub(&mut |found| panic!("{found:?}"), &mut |_, _| {}).unwrap();
    }
}

/// A failed write left dirty bits in the map on the device. A close clears them. If the bits remained, the next open would compute new tags
/// for these regions, and any data there would count as valid.
#[test]
fn a_closed_device_has_no_dirty_regions() {
    const MAP: u64 = 4096;
    for setting in [false, true] {
        let stand = Stand::new(SIZE, false, &options(Mode::Bitmap), 8);
        let tags = Arc::new(Sim::new(as_device(stand.tags.as_ref().unwrap()), Faults::default()));
        let device = Integrity::open(as_device(&stand.data), Some(tags.clone())).unwrap().device;
        let failed = if setting {
            tags.set_faults(Faults { fail_at: Some(0), unheard: true, ..Faults::default() });
            write(&device, 64 << 10, &[1; 4096], false)
        } else {
            write(&device, 64 << 10, &[1; 4096], false).unwrap();
            let bad_sectors = [MAP / 512].into();
            tags.set_faults(Faults { bad_sectors, ..Faults::default() });
            device.close()
        };
        assert_eq!(failed.unwrap_err().errno(), Errno::EIO);
        assert_ne!(read(stand.tag_ram(), MAP, 4092).unwrap(), [0; 4092]);
        tags.set_faults(Faults::default());
        device.close().unwrap();
        drop(device);
        assert_eq!(read(stand.tag_ram(), MAP, 4092).unwrap(), [0; 4092]);

        let mut map = [0xFF; 4096];
        let sum = crc32c::crc32c_append(crc32c::crc32c(&(MAP / 4096).to_le_bytes()), &map[..4092]);
        map[4092..].copy_from_slice(&sum.to_le_bytes());
        write(stand.tag_ram(), MAP, &map, false).unwrap();
        change(&stand.data, 64 << 10, |byte| *byte ^= 1);
        let opened = stand.open();
        assert_eq!(opened.recovered.regions, 0);
        assert_eq!(read(&opened.device, 64 << 10, 512).unwrap_err().errno(), Errno::EILSEQ);
    }
}

/// A layer whose flushes fail while the flag is set.
#[derive(Debug)]
struct FailingFlush(Arc<AtomicBool>);

impl Layer for FailingFlush {
    fn begin(&self, request: &Request<'_>) -> Verdict {
        let fails = matches!(request, Request::Flush) && self.0.load(Ordering::Relaxed);
        Verdict { error: fails.then_some(Errno::EIO), ..Verdict::pass(request) }
    }
}

/// The kernel reports a failed flush only once. The next flush succeeds, even if data were lost. A later flush cannot repair the loss. The
/// next open recovers the device.
#[test]
fn a_flush_that_failed_leaves_the_device_to_be_recovered() {
    for (mode, of_tags, first) in [
        (Mode::Bitmap, false, "flush"),
        (Mode::Bitmap, false, "queue"),
        (Mode::Bitmap, false, "close"),
        (Mode::Bitmap, true, "close"),
        (Mode::Journal, false, "close"),
        (Mode::Journal, true, "close"),
    ] {
        let what = format!("{mode:?}, tags: {of_tags}, {first}");
        let stand = Stand::new(SIZE, false, &options(mode), 4);
        let fails = Arc::new(AtomicBool::new(false));
        let over = |ram: &Arc<Ram>, faulty: bool| {
            let flag = if faulty { Arc::clone(&fails) } else { Arc::default() };
            Arc::new(Layered::with_layer(as_device(ram), FailingFlush(flag))) as Arc<dyn Device>
        };
        let (data, tags) =
            (over(&stand.data, !of_tags), over(stand.tags.as_ref().unwrap(), of_tags));
        let device = Integrity::open(data, Some(tags)).unwrap().device;
        write(&device, 64 << 10, &[1; 8192], false).unwrap();
        fails.store(true, Ordering::Relaxed);
        let errno = match first {
            "flush" => device.flush().unwrap_err().errno(),
            "queue" => queue(&device).flush_now(Dev::OWN).unwrap_err(),
            _ => device.close().unwrap_err().errno(),
        };
        assert_eq!(errno, Errno::EIO, "{what}");
        fails.store(false, Ordering::Relaxed);
        // After this failure, each later flush fails. A close does not mark the device as clean.
        write(&device, 128 << 10, &[2; 8192], false).unwrap();
        device.flush().unwrap_err();
        queue(&device).flush_now(Dev::OWN).unwrap_err();
        let error = device.close().unwrap_err().to_string();
        assert!(
            error.contains("until the integrity device is opened again and recovered"),
            "{what}: {error}"
        );
        drop(device);
        let opened = stand.open();
        assert!(opened.recovered.crashed, "{what}");
        for (at, fill) in [(64 << 10, 1), (128 << 10, 2)] {
            assert_eq!(read(&opened.device, at, 8192).unwrap(), [fill; 8192], "{what}");
        }
        opened.device.scrub(&mut |found| panic!("{found:?}"), &mut |_, _| {}).unwrap();
    }
}

/// A block that cannot be read does not make the integrity device unusable. If no region needs recovery, a bad block of the dirty map is
/// accepted. After a crash, a bad block is accepted only with `force`. If the verification of a sector needs a bad block, the sector is
/// never returned as valid.
#[test]
fn one_refused_block_does_not_stop_the_others() {
    let open = |stand: &Stand, data: Faults, tags: Faults, force: bool| {
        let data = Arc::new(Sim::new(as_device(&stand.data), data));
        let tags = Arc::new(Sim::new(as_device(stand.tags.as_ref().unwrap()), tags));
        let how = IntegrityOptions::new().force(force);
        Integrity::open_with(data, Some(tags), &how)
    };
    let bad = |at: u64| Faults { bad_sectors: [at / 512].into(), ..Faults::default() };
    let stand = Stand::new(SIZE, false, &options(Mode::Bitmap), 5);
    let device = stand.open().device;
    for at in [0, 768 << 10] {
        write(&device, at, &[1; 4096], false).unwrap();
    }
    let crashed = stand.snapshot();
    drop(device);
    // The first block contains the tags of 512 sectors. A region has 128 sectors.
    let refused = open(&crashed, Faults::default(), bad(stand.tags_at()), false).unwrap_err();
    assert!(refused.to_string().contains("--force"), "{refused}");
    let opened = open(&crashed, Faults::default(), bad(stand.tags_at()), true).unwrap();
    assert_eq!((opened.recovered.unreadable, opened.recovered.regions), (128, 2));
    assert_eq!(read(&opened.device, 768 << 10, 4096).unwrap(), [1; 4096]);
    assert_eq!(read(&opened.device, 0, 4096).unwrap_err().errno(), Errno::EIO);
    drop(opened);

    let opened = open(&stand, Faults::default(), bad(4096), false).unwrap();
    assert_eq!(read(&opened.device, 0, 4096).unwrap(), [1; 4096]);
    drop(opened);

    let stand = Stand::new(SIZE, false, &options(Mode::Journal), 6);
    let device = stand.open().device;
    write(&device, 0, &[1; 4096], false).unwrap();
    write(&device, 8192, &[2; 4096], false).unwrap();
    let crashed = stand.snapshot();
    write(&*crashed.data, 1024, &[9; 512], false).unwrap();
    let refused = open(&crashed, bad(1024), Faults::default(), false).unwrap_err().to_string();
    assert!(refused.contains("--force"), "{refused}");
    let opened = open(&crashed, bad(1024), Faults::default(), true).unwrap();
    assert_eq!(opened.recovered.lost, 1);
    drop(opened);
    let device = crashed.open().device;
    assert_eq!(read(&device, 8192, 4096).unwrap(), [2; 4096]);
    assert_eq!(read(&device, 0, 1024).unwrap(), [1; 1024]);
    assert_eq!(read(&device, 1024, 512).unwrap_err().errno(), Errno::EILSEQ);
}

/// Several writes share a journal record. If one of them fails, the others succeed. Reads succeed after a failed write.
#[test]
fn a_refused_block_of_tags_fails_no_other_write() {
    let stand = Stand::new(SIZE, false, &options(Mode::Journal), 7);
    let faults = Faults { bad_sectors: [stand.tags_at() / 512].into(), ..Faults::default() };
    let tags = Arc::new(Sim::new(as_device(stand.tags.as_ref().unwrap()), faults));
    let device = Integrity::open(as_device(&stand.data), Some(tags)).unwrap().device;
    let mut queue = queue(&device);
    for (token, at) in [(0, 0), (1, 512 << 10)] {
        queue.submit(bio(BioOp::Write, at, Buffer::aligned(4096).unwrap(), token)).unwrap();
    }
    queue.wait(2).unwrap();
    let mut results: Vec<_> =
        std::iter::from_fn(|| queue.pop()).map(|done| (done.bio.at.0, done.result)).collect();
    results.sort_unstable_by_key(|(at, _)| *at);
    assert_eq!(results, [(0, Err(Errno::EIO)), (512 << 10, Ok(4096))]);
    drop((queue, device));

    // There are 256 blocks of tags. If the numbers of two blocks differ by 64, the blocks share a slot of the cache.
    let stand = Stand::new(64 << 20, false, &options(Mode::Bitmap), 8);
    let tags = Arc::new(Sim::new(as_device(stand.tags.as_ref().unwrap()), Faults::default()));
    let small = IntegrityOptions::new().cache(0);
    let opened = Integrity::open_with(as_device(&stand.data), Some(tags.clone()), &small).unwrap();
    let device = opened.device;
    write(&device, 0, &[1; 4096], false).unwrap();
    let bad_sectors = [stand.tags_at() / 512].into();
    tags.set_faults(Faults { bad_sectors, ..Faults::default() });
    for step in 0..20 {
        read(&device, (1 + step % 3) * (64 << 18), 4096).unwrap();
    }
    tags.set_faults(Faults::default());
    device.close().unwrap();
    assert_eq!(read(&device, 0, 4096).unwrap(), [1; 4096]);
}

/// A recovery fails. The error is reported, the regions still need recovery, and the next recovery succeeds.
#[test]
fn a_recovery_that_fails_is_done_again() {
    for mode in [Mode::Bitmap, Mode::Journal] {
        let stand = Stand::new(SIZE, false, &options(mode), 8);
        let device = stand.open().device;
        for number in 0..8 {
            write(&device, number * 3 * 32768, &[number as u8; 8192], false).unwrap();
        }
        let crashed = stand.snapshot();
        let mut failed = 0;
        for of_tags in [false, true] {
            for number in 0..60 {
                let here = crashed.snapshot();
                let device = |ram: &Arc<Ram>, faulty: bool| {
                    let fail_at = faulty.then_some(number);
                    let faults = Faults { fail_at, ..Faults::default() };
                    Arc::new(Sim::new(as_device(ram), faults)) as Arc<dyn Device>
                };
                let tags = device(here.tags.as_ref().unwrap(), of_tags);
                match Integrity::open(device(&here.data, !of_tags), Some(tags)) {
                    Ok(opened) => drop(opened),
                    Err(error) => {
                        assert_eq!(error.errno(), Errno::EIO);
                        failed += 1;
                    }
                }
                let device = here.open().device;
                for number in 0..8 {
                    let content = read(&device, number * 3 * 32768, 8192).unwrap();
                    assert_eq!(content, [number as u8; 8192]);
                }
                device.scrub(&mut |found| panic!("{found:?}"), &mut |_, _| {}).unwrap();
            }
        }
        assert!(failed > 5, "{failed}");
    }
}

/// After a device is closed, reads succeed and writes fail.
#[test]
fn a_closed_device_is_read_only() {
    for mode in [Mode::Bitmap, Mode::Journal] {
        let stand = Stand::new(SIZE, false, &options(mode), 8);
        let device = stand.open().device;
        write(&device, 0, &[1; 4096], false).unwrap();
        device.close().unwrap();
        let mut queue = queue(&device);
        assert_eq!(write(&device, 0, &[2; 4096], false).unwrap_err().kind(), ErrorKind::ReadOnly);
        queue.submit(bio(BioOp::Write, 0, Buffer::aligned(4096).unwrap(), 0)).unwrap();
        queue.wait(1).unwrap();
        assert_eq!(queue.pop().unwrap().result, Err(Errno::EROFS));
        assert_eq!(read(&device, 0, 4096).unwrap(), [1; 4096]);
        assert!(!stand.open().recovered.crashed);
    }
}

/// If the device below transfers too few bytes, the integrity device continues the transfer, because it cannot verify a part of a sector.
#[test]
fn short_transfers_are_finished() {
    for mode in [Mode::Bitmap, Mode::Journal] {
        let options = options(mode).interval(4096);
        let stand = Stand::new(SIZE, false, &options, 3);
        let faults = Faults { seed: 5, short_one_in: Some(2), latency: 2, ..Faults::default() };
        let short = Arc::new(Sim::new(as_device(&stand.data), faults));
        let device = Integrity::open(short, stand.tags.as_ref().map(as_device)).unwrap().device;
        let mut queue = queue(&device);
        let mut rng = Rng::new(4);
        for _ in 0..200 {
            let at = rng.below(100) * 4096;
            let len = 4096 * (1 + rng.below(4) as usize);
            let bytes = rng.bytes(len);
            let mut buffer = Buffer::aligned(len).unwrap();
            buffer.copy_from_slice(&bytes);
            queue.submit(bio(BioOp::Write, at, buffer, 0)).unwrap();
            queue.wait(1).unwrap();
            let done = queue.pop().unwrap();
            assert_eq!(done.result, Ok(len));
            let mut again = Buffer::aligned(len).unwrap();
            assert_eq!(
                queue.read_now(Dev::OWN, &mut again, DevOffset(at), BioFlags::empty()),
                Ok(len)
            );
            assert!(*again == *bytes);
        }
    }
}

/// An integrity device is opened read-only after a crash. The regions that were being written are counted, and their sectors are not
/// verified.
#[test]
fn read_only_after_a_crash() {
    for mode in [Mode::Bitmap, Mode::Journal] {
        let stand = Stand::new(SIZE, false, &options(mode), 9);
        let device = stand.open().device;
        write(&device, 0, &[1; 4096], false).unwrap();
        let crashed = stand.snapshot();
        let read_only = |ram: &Arc<Ram>| {
            Arc::new(ReadOnly { ram: ram.clone(), protection: None }) as Arc<dyn Device>
        };
        let opened =
            Integrity::open(read_only(&crashed.data), crashed.tags.as_ref().map(read_only));
        if mode == Mode::Journal {
            let error = opened.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("replay"), "{error}");
            continue;
        }
        let opened = opened.unwrap();
        assert_eq!((opened.recovered.regions, opened.recovered.retagged), (1, 0));
        // A check finds a wrong sector in a clean region. It skips the sectors of a dirty region, because their tags did not reach the
        // device.
        change(&crashed.data, 100 << 10, |byte| *byte ^= 1);
        let mut found = Vec::new();
        let scrubbed =
            opened.device.scrub(&mut |finding| found.push(finding), &mut |_, _| {}).unwrap();
        assert!(
            matches!(found[..], [ScrubFinding::Mismatch(mismatch)] if mismatch.sector == 200),
            "{found:?}"
        );
        let (dirty, all) = ((64 << 10) / 512, SIZE / 512);
        assert_eq!((scrubbed.skipped, scrubbed.sectors), (dirty, all - dirty));
        change(&crashed.data, 100 << 10, |byte| *byte ^= 1);
        read(&opened.device, 0, 128 << 10).unwrap();
        assert_eq!(opened.device.counts().unverified, 128);
        assert_eq!(
            write(&opened.device, 0, &[0; 512], false).unwrap_err().kind(),
            ErrorKind::ReadOnly
        );
        opened.device.close().unwrap();
        // After the close, all sectors can be read.
        device.close().unwrap();
        let opened =
            Integrity::open(read_only(&stand.data), stand.tags.as_ref().map(read_only)).unwrap();
        read(&opened.device, 0, 128 << 10).unwrap();
        assert_eq!(opened.device.counts().unverified, 0);
    }
}

/// Layers above an integrity device report the properties of this device and its list of wrong sectors unchanged. The test covers four
/// layers: fault injection, a recorder, a device without data, and another integrity device.
#[test]
fn wrong_tuples_are_reported_through_every_device_above() {
    type Above = fn(Arc<dyn Device>) -> Arc<dyn Device>;
    let above: [Above; 4] = [
        |below| Arc::new(Sim::new(below, Faults::default())),
        |below| Arc::new(Record::new(below)),
        |below| Arc::new(Null::over(below)),
        |below| {
            let tags = as_device(&Arc::new(Ram::new(8 << 20)));
            format(&below, Some(&tags), &options(Mode::Bitmap), &mut |_, _| {}).unwrap();
            Arc::new(Integrity::open(below, Some(tags)).unwrap().device)
        },
    ];
    for (number, above) in above.into_iter().enumerate() {
        let stand = Stand::new(SIZE, false, &options(Mode::Bitmap), 5);
        let device = Arc::new(Sim::new(above(Arc::new(stand.open().device)), Faults::default()));
        change(&stand.data, 9 * 512, |byte| *byte ^= 1);
        assert_eq!(read(&*device, 9 * 512, 512).unwrap_err().errno(), Errno::EILSEQ);
        let sectors =
            |wrong: (Vec<WrongTuple>, u64)| wrong.0.iter().map(|it| it.sector).collect::<Vec<_>>();
        assert_eq!(sectors(device.take_wrong_tuples()), [9], "{number}");
        assert_eq!(sectors(device.take_wrong_tuples()), [], "{number}: they are told once");
    }

    let protection = DeviceProtection {
        format: "T10-DIF-TYPE1-CRC".to_owned(),
        interval: 512,
        metadata: 8,
        generated: true,
        verified: true,
        tuples: None,
        carried: false,
    };
    let below = ReadOnly { ram: Arc::new(Ram::new(SIZE)), protection: Some(protection.clone()) };
    let recorded = Record::new(Arc::new(Sim::new(Arc::new(below), Faults::default())));
    assert_eq!(recorded.protection(), Some(&protection));
}

/// A device that refuses all writes.
#[derive(Debug)]
struct ReadOnly {
    ram: Arc<Ram>,
    protection: Option<DeviceProtection>,
}

impl Device for ReadOnly {
    fn limits(&self) -> &ironmap::device::Limits {
        self.ram.limits()
    }

    fn size(&self) -> u64 {
        self.ram.size()
    }

    fn protection(&self) -> Option<&DeviceProtection> {
        self.protection.as_ref()
    }

    fn read_within(
        &self,
        buf: &mut [u8],
        at: DevOffset,
        _: ironmap::device::InRange,
    ) -> ironmap::Result<()> {
        self.ram.read_exact_at(buf, at)
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn write_within(
        &self,
        _: &[std::io::IoSlice<'_>],
        at: DevOffset,
        _: bool,
        _: ironmap::device::InRange,
    ) -> ironmap::Result<()> {
        panic!("written at {at}");
    }

    fn flush(&self) -> ironmap::Result<()> {
        panic!("flushed");
    }

    fn queue_within(
        &self,
        options: &ironmap::QueueOptions,
        checked: ironmap::device::InRange,
    ) -> ironmap::Result<ironmap::device::AnyQueue> {
        self.ram.queue_within(options, checked)
    }
}
