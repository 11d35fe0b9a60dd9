//! Devices that fail. The caller gets every error, and no failure leads to wrong data.

use std::sync::Arc;

use crate::common::calls::{CALLS, Call, read};
use crate::common::fixture::{FRAGMENTED, Fixture, HOLES, SOLID, TAIL, UNWRITTEN, open};
use crate::common::ranges::{bytes, fault, part, pieces};
use crate::common::rng::Rng;
use ironmap::bio::Buffer;
use ironmap::device::{Faults, Sim};
use ironmap::dio::DioFlags;
use ironmap::events::{Direction, ErrorEvent};
use ironmap::iomap::IomapType;
use ironmap::units::FilePos;
use ironmap::{Errno, ErrorKind, Queue, QueueOptions, Volume};

const SEED: u64 = 0xfa_0175;
const NONE: DioFlags = DioFlags::empty();
/// The length of a read that covers many extents of the fragmented file.
const LEN: usize = 100 * 4096;

fn setup(fixture: &Fixture, depth: u32) -> (Arc<Sim>, Volume, Queue) {
    let (sim, volume) = fixture.sim(Faults::default());
    let queue = volume.queue(&QueueOptions::new().depth(depth)).unwrap();
    (sim, volume, queue)
}

fn bad_sectors(sectors: impl IntoIterator<Item = u64>, errno: Errno) -> Faults {
    let bad_sectors = sectors.into_iter().collect();
    Faults { bad_sectors, errno: Some(errno), ..Faults::default() }
}

/// If any part of a request touches bad sectors, the whole request returns an error instead of a short count. The error is returned once,
/// and one event names the request.
#[test]
fn an_error_in_any_part_is_the_requests_error() {
    let fixture = Fixture::new(4096, SEED);
    let (sim, volume, mut queue) = setup(&fixture, 16);
    for name in [FRAGMENTED, HOLES, UNWRITTEN] {
        let file = open(&volume, name, true);
        let mapped: Vec<_> = file
            .mappings()
            .map(Result::unwrap)
            .filter(|iomap| iomap.kind == IomapType::Mapped && iomap.pos.0 < LEN as u64)
            .collect();
        let last = mapped.len() - 1;
        let chosen: [&[usize]; 6] = [&[0], &[1], &[last / 2], &[last], &[2, 3, last], &[0, last]];
        for (parts, errno) in
            chosen.into_iter().zip([Errno::EIO, Errno::ENODATA].into_iter().cycle())
        {
            let sectors = parts.iter().map(|part| mapped[*part].addr.0 / 512 + 5);
            let faults = bad_sectors(sectors, errno);
            for way in CALLS {
                for latency in [0, 5] {
                    sim.set_faults(Faults { latency, ..faults.clone() });
                    let cuts = [4096, 8192, LEN - 12288];
                    let (result, _) = read(way, &mut queue, &file, (0, 0, LEN), &cuts, NONE);
                    let shown = format!("{name}, parts {parts:?}, {way:?}, latency {latency}");
                    let error = result.expect_err(&shown);
                    assert_eq!(error.kind(), ErrorKind::Io(errno), "{shown}");
                    let (events, dropped) = volume.events().take();
                    let [event] = events[..] else { panic!("{shown}: {events:?}") };
                    assert_eq!(dropped, 0, "{shown}");
                    assert_eq!((event.direction, event.errno), (Direction::DirectRead, errno));
                    let place = (event.inode, event.pos, event.len);
                    assert_eq!(place, (file.inode(), FilePos(0), LEN as u64), "{shown}");
                }
            }
        }
        // After the faults are removed, the file can be read.
        sim.set_faults(Faults::default());
        let (result, memory) = read(Call::Owned, &mut queue, &file, (0, 0, LEN), &[], NONE);
        assert_eq!(result.unwrap(), LEN);
        assert_eq!(memory, part(fixture.content(name), 0, LEN));
    }
}

/// A read of a bad sector is reported once. The test reads on the short code path for simple requests, at the end of the file, and through
/// a bounce buffer. The event names the range of the request to the device. This range contains the range of the read.
#[test]
fn a_small_read_reports_its_error_once() {
    let fixture = Fixture::new(4096, SEED);
    let (sim, volume, mut queue) = setup(&fixture, 16);
    for strict in [true, false] {
        let file = open(&volume, TAIL, strict);
        let at = file.map(FilePos(0), 1).unwrap().addr_of(FilePos(4608));
        // Each case: the position of the read, its length, and the range that the event names.
        let mut requests = vec![((4096, 0, 1024), (4096, 904_u64)), ((4608, 0, 512), (4608, 392))];
        requests.push(((0, 0, 16384), (0, 5000)));
        if !strict {
            requests.push(((4700, 3, 100), (4700, 100)));
            requests.push(((4095, 0, 5000), (4095, 905)));
        }
        for ((pos, offset, len), (from, count)) in requests {
            for way in CALLS {
                sim.set_faults(bad_sectors([at.0 / 512], Errno::EIO));
                let (result, _) = read(way, &mut queue, &file, (pos, offset, len), &[len], NONE);
                let shown = format!("{way:?}, strict {strict}: {len} bytes at {pos}");
                assert_eq!(result.expect_err(&shown).kind(), ErrorKind::Io(Errno::EIO), "{shown}");
                let (events, _) = volume.events().take();
                let [event] = events[..] else { panic!("{shown}: {events:?}") };
                assert_eq!((event.inode, event.errno), (file.inode(), Errno::EIO));
                let (first, end) = (from / 512 * 512, (from + count).next_multiple_of(512));
                assert_eq!((event.pos.0, event.len), (first, end - first), "{shown}");
            }
        }
        let (sim_len, pos) = (512, 0);
        let (result, memory) = read(Call::Flat, &mut queue, &file, (pos, 0, sim_len), &[], NONE);
        assert_eq!(result.unwrap(), sim_len, "a bad sector beside the request does no harm");
        assert_eq!(memory, part(fixture.content(TAIL), 0, sim_len));
    }
}

/// If a device transfers fewer bytes than requested, ironmap requests the remaining bytes until the read is complete. This rule applies to
/// every way to read.
#[test]
fn short_transfers_are_continued() {
    let fixture = Fixture::new(4096, SEED);
    let (sim, volume, mut queue) = setup(&fixture, 12);
    for seed in 0..60 {
        let mut rng = Rng::new(SEED ^ seed);
        let faults = Faults {
            seed,
            short_one_in: Some(1 + (seed % 3) as u32),
            latency: (seed % 4) as u32,
            ..Faults::default()
        };
        for name in [SOLID, FRAGMENTED, HOLES, UNWRITTEN, TAIL] {
            let (file, content) = (open(&volume, name, false), fixture.content(name));
            file.map(FilePos(0), 1).expect("the map");
            sim.set_faults(faults.clone());
            let way = CALLS[rng.below(4) as usize];
            let (pos, len) = (rng.below(content.len() as u64), rng.below(LEN as u64) as usize);
            let (pos, offset, len) = match rng.below(3) {
                0 => (pos, 3, len),
                1 => (pos / 4096 * 4096, 0, 4096),
                _ => (pos / 512 * 512, 0, len / 512 * 512),
            };
            let cuts = pieces(&mut rng, len, 512);
            let (result, memory) = read(way, &mut queue, &file, (pos, offset, len), &cuts, NONE);
            let expected = part(content, pos, len);
            let fault = fault(&memory, result.expect("a read"), expected, 512);
            assert_eq!(fault, None, "{name}, seed {seed}, {way:?}: {len} bytes at {pos}");
        }
    }
    // An integrity device verifies whole sectors. So this device itself requests the rest of a short transfer, and the counter of the queue
    // stays 0.
    let tagged = crate::common::beneath::chosen().is_some();
    assert!(queue.stats().short > 100 || tagged, "{:?}", queue.stats());
    assert!(volume.events().take().0.is_empty(), "a short transfer is no error");
}

/// A device fails permanently after some number of requests. Then a read returns the right bytes or an error. An open of the volume
/// succeeds, or returns an error with the reason. Nothing panics.
#[test]
fn a_device_may_die_at_any_request() {
    let fixture = Fixture::new(4096, SEED);
    let (mut opened, mut complete) = (0, 0);
    for limit in 0..160 {
        let (sim, volume) = fixture.sim(Faults::default());
        let files = [SOLID, FRAGMENTED, HOLES].map(|name| (open(&volume, name, false), name));
        let mut queue = volume.queue(&QueueOptions::new().depth(8)).unwrap();
        sim.set_faults(Faults { fail_after: Some(limit), latency: 2, ..Faults::default() });
        match Volume::on(sim.clone()) {
            Ok(_) => opened += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io(Errno::EIO), "limit {limit}"),
        }
        for (file, name) in &files {
            for way in CALLS {
                sim.set_faults(Faults { fail_after: Some(limit), latency: 2, ..Faults::default() });
                let cuts = [512, LEN - 1024, 512];
                let (result, memory) = read(way, &mut queue, file, (0, 0, LEN), &cuts, NONE);
                match result {
                    Ok(count) => {
                        complete += 1;
                        let expected = part(fixture.content(name), 0, LEN);
                        let fault = fault(&memory, count, expected, 512);
                        assert_eq!(fault, None, "{name}, limit {limit}, {way:?}");
                    }
                    Err(error) => {
                        let kind = error.kind();
                        assert_eq!(kind, ErrorKind::Io(Errno::EIO), "{name}, limit {limit}");
                    }
                }
            }
        }
    }
    assert!(opened > 100 && complete > 300, "{opened} opened, {complete} read");
}

/// If the map of a file cannot be read, a read of the file fails: the memory is returned, with an I/O error that has the device's errno. A
/// later attempt succeeds.
#[test]
fn metadata_that_cannot_be_read_is_an_io_error() {
    let fixture = Fixture::new(4096, SEED);
    let (sim, volume, mut queue) = setup(&fixture, 8);
    for name in [FRAGMENTED, UNWRITTEN] {
        for way in CALLS {
            let file = open(&volume, name, true);
            sim.set_faults(Faults { fail_after: Some(0), ..Faults::default() });
            let (result, _) = read(way, &mut queue, &file, (0, 0, LEN), &[LEN], NONE);
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Io(Errno::EIO), "{name}, {way:?}");
            assert_eq!(queue.outstanding(), 0);
            sim.set_faults(Faults::default());
            let (result, memory) = read(way, &mut queue, &file, (0, 0, LEN), &[LEN], NONE);
            assert_eq!(result.unwrap(), LEN, "{name}, {way:?}");
            assert_eq!(memory, part(fixture.content(name), 0, LEN), "{name}, {way:?}");
        }
    }
}

/// If one request fails, other requests are not affected.
#[test]
fn a_failing_request_does_not_touch_its_neighbours() {
    let fixture = Fixture::new(4096, SEED);
    let (sim, volume, mut queue) = setup(&fixture, 8);
    let (file, content) = (open(&volume, SOLID, true), fixture.content(SOLID));
    let at = file.map(FilePos(0), 1).unwrap().addr_of(FilePos(8 * 4096));
    for seed in 0..30 {
        sim.set_faults(Faults { seed, latency: 6, ..bad_sectors([at.0 / 512], Errno::EIO) });
        for token in 0..16 {
            let memory = Buffer::aligned(4096 << (token % 2)).unwrap();
            let pos = FilePos(token / 2 * 2 * 4096);
            file.submit_read(&mut queue, memory, pos, NONE, token).expect("a read");
        }
        let mut failed = Vec::new();
        while queue.outstanding() > 0 {
            queue.wait(1).unwrap();
            while let Some(done) = queue.pop() {
                let pos = done.token / 2 * 2 * 4096;
                match done.result {
                    Ok(count) => assert_eq!(bytes(&done.memory), part(content, pos, count)),
                    Err(_) => failed.push(done.token),
                }
            }
        }
        failed.sort_unstable();
        assert_eq!(failed, [8, 9], "seed {seed}");
        assert_eq!(volume.events().take().0.len(), 2, "seed {seed}");
    }
}

/// If a device stays busy, a request fails after some time, even if the request may wait. The error returns the memory of the request. One
/// event reports the error.
#[test]
fn a_device_that_stays_busy_is_given_up() {
    let fixture = Fixture::new(4096, SEED);
    let (sim, volume, mut queue) = setup(&fixture, 4);
    for (name, len) in [(SOLID, 4096), (SOLID, LEN), (FRAGMENTED, LEN)] {
        sim.set_faults(Faults::default());
        let file = open(&volume, name, true);
        file.map(FilePos(0), 1).expect("the map");
        let busy = Faults { fail_after: Some(0), errno: Some(Errno::EAGAIN), ..Faults::default() };
        sim.set_faults(busy);
        for way in CALLS {
            let (result, _) = read(way, &mut queue, &file, (0, 0, len), &[len], NONE);
            let kind = result.expect_err("it is busy").kind();
            assert_eq!(kind, ErrorKind::Io(Errno::EIO), "{name}, {way:?}");
            let (events, _) = volume.events().take();
            assert!(
                matches!(events[..], [ErrorEvent { errno: Errno::EIO, .. }]),
                "{name}, {way:?}"
            );
        }
    }
}

/// If a metadata block cannot be read, each read that needs this block returns the error. An event names the block's position on the
/// device. When the block can be read again, reads succeed.
#[test]
fn metadata_errors_are_events_too() {
    let fixture = Fixture::new(4096, SEED);
    let (sim, volume, _) = setup(&fixture, 4);
    let file = open(&volume, FRAGMENTED, false);
    sim.set_faults(Faults { fail_after: Some(0), ..Faults::default() });
    // The map has more extents than fit into the inode.
    let error = file.map(FilePos(0), 1).expect_err("the map");
    assert_eq!(error.kind(), ErrorKind::Io(Errno::EIO), "{error}");
    let (events, _) = volume.events().take();
    let [event] = events[..] else { panic!("{events:?}") };
    assert_eq!((event.direction, event.inode.0), (Direction::Metadata, 0));
    assert_eq!((event.pos.0 % 4096, event.len, event.errno), (0, 4096, Errno::EIO));
    assert!(
        error.to_string().contains(&format!("metadata block {}", event.pos.0 / 4096)),
        "{error}"
    );
    sim.set_faults(Faults::default());
    file.map(FilePos(0), 1).expect("the map");
    assert!(volume.events().take().0.is_empty());
}
