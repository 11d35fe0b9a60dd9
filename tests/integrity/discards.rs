//! Discards on an integrity device. A read of discarded sectors succeeds, whatever the device below returns for them. All other sectors are
//! still verified.

use std::sync::Arc;

use ironmap::device::{Device, Faults, Sim};
use ironmap::integrity::{FormatOptions, Integrity, IntegrityOptions, Mode};
use ironmap::units::DevOffset;
use ironmap::{Errno, ErrorKind};

use crate::rng::Rng;
use crate::stand::{Stand, all_options, as_device, change, queue, read, read_each_way, write};

const SIZE: u64 = 1 << 20;

/// Overwrites a range below the integrity device. This is permitted for discarded sectors: a device may return any bytes for them.
fn scramble(stand: &Stand, at: u64, len: u64, rng: &mut Rng) {
    write(&*stand.data, at, &rng.bytes(len as usize), false).unwrap();
}

fn scrub(device: &Integrity) -> (u64, u64) {
    let mut wrong = Vec::new();
    let scrubbed = device.scrub(&mut |finding| wrong.push(finding), &mut |_, _| {}).unwrap();
    assert_eq!(wrong, []);
    assert_eq!(scrubbed.sectors + scrubbed.discarded, device.info().sectors());
    (scrubbed.sectors, scrubbed.discarded)
}

/// Every way to read returns the device's content of discarded sectors, even after a close or a crash. After a write, the sectors are
/// verified again.
#[test]
fn discarded_sectors_have_any_content() {
    for (number, options) in all_options().enumerate() {
        let what = format!("{options:?}");
        let mut rng = Rng::new(number as u64);
        let stand = Stand::new(SIZE, number % 2 == 0, &options, number as u64);
        let interval = u64::from(options.interval);
        // The discarded range has several blocks of tags and lies in two regions.
        let (at, len) = (60 << 10, 100 << 10);
        let device = stand.open().device;
        device.discard(DevOffset(at), len).unwrap();
        let mut queue = queue(&device);
        let count = len / interval;
        for _ in 0..3 {
            scramble(&stand, at, len, &mut rng);
            for place in [at, at + 8192, at + len - 8192] {
                let there = read(&*stand.data, place, 8192).unwrap();
                for read in read_each_way(&device, &mut queue, place, 8192) {
                    assert_eq!(read.as_ref(), Ok(&there), "{what}");
                }
            }
            assert_eq!(scrub(&device).1, count, "{what}");
        }
        // The sectors before and after the range must still be verified.
        for neighbour in [at - interval, at + len] {
            change(&stand.data, neighbour, |byte| *byte ^= 1);
            let wrong = read(&device, neighbour, 512).map_err(|error| error.errno());
            assert_eq!(wrong, Err(Errno::EILSEQ), "{what}");
            change(&stand.data, neighbour, |byte| *byte ^= 1);
        }
        // A write after the discard makes the sector verified again.
        write(&device, at, &[5; 4096], false).unwrap();
        change(&stand.data, at + 1, |byte| *byte ^= 1);
        assert!(read(&device, at, 512).is_err(), "{what}");
        change(&stand.data, at + 1, |byte| *byte ^= 1);
        assert_eq!(scrub(&device).1, count - 4096 / interval, "{what}");

        let crashed = stand.snapshot();
        drop(queue);
        device.close().unwrap();
        drop(device);
        scramble(&stand, at + 4096, len - 4096, &mut rng);
        let device = stand.open().device;
        assert_eq!(scrub(&device).1, count - 4096 / interval, "{what}: closed");

        // In bitmap mode, the recovery does not know which sectors of a dirty region were written. So it computes tags for all sectors of
        // the region, and reads verify all of them.
        let left = if options.mode == Mode::Journal { count - 4096 / interval } else { 0 };
        let device = crashed.open().device;
        assert_eq!(scrub(&device).1, left, "{what}: crashed");
        assert_eq!(read(&device, at, 4096).unwrap(), [5; 4096], "{what}");
    }
}

/// A tag also records whether the content of its sector is undefined. This record is protected too: if any bit of the tag flips, a read of
/// the sector fails.
#[test]
fn a_flipped_bit_of_a_discarded_sectors_tag_is_seen() {
    for (number, options) in all_options().enumerate() {
        let stand = Stand::new(SIZE, false, &options, number as u64);
        let device = stand.open().device;
        device.discard(DevOffset(0), 16 << 10).unwrap();
        drop(device);
        let (size, interval) = (options.kind.bytes() as u64, u64::from(options.interval));
        for bit in 0..size * 8 {
            let here = stand.snapshot();
            change(here.tag_ram(), here.tags_at() + size + bit / 8, |byte| *byte ^= 1 << (bit % 8));
            let device = here.open().device;
            for sector in 0..4 {
                let read = read(&device, sector * interval, interval as usize);
                assert_eq!(read.is_err(), sector == 1, "{options:?}, bit {bit}");
            }
        }
    }
}

/// On a device without discards, a discard changes no data and no tags, even after a crash. If a discard fails on a device, each sector can
/// still be read.
#[test]
fn a_discard_that_fails_is_reported_and_harms_nothing() {
    for (number, options) in all_options().enumerate() {
        let stand = Stand::new(SIZE, false, &options, number as u64);
        let interval = u64::from(options.interval);
        for errno in [Errno::EOPNOTSUPP, Errno::EIO] {
            let faults = Faults { fail_at: Some(0), errno: Some(errno), ..Faults::default() };
            let data = Arc::new(Sim::new(as_device(&stand.data), Faults::default()));
            let tags = stand.tags.as_ref().map(as_device);
            let device = Integrity::open(data.clone(), tags).unwrap().device;
            // The scrub loads the tags into memory before the test injects the fault.
            scrub(&device);
            data.set_faults(faults);
            let told = device.discard(DevOffset(0), 64 << 10).unwrap_err().errno();
            data.set_faults(Faults::default());
            assert_eq!(told, errno, "{options:?}");
            let gone = if errno == Errno::EIO { (64 << 10) / interval } else { 0 };
            assert_eq!(scrub(&device).1, gone, "{options:?}, {errno:?}");
            if errno == Errno::EOPNOTSUPP {
                let crashed = stand.snapshot().open().device;
                assert_eq!(scrub(&crashed).1, 0, "{options:?}: crashed");
            }
        }
    }
}

/// If a range does not begin and end at sector borders, only the whole sectors in it are discarded. In a long range, all sectors are
/// discarded, and only a few tags are in memory at a time.
#[test]
fn ranges_of_any_place_and_length_are_discarded() {
    for mode in [Mode::Bitmap, Mode::Journal] {
        let journal = Some(256 << 10);
        let options = FormatOptions::new().mode(mode).interval(512).journal(journal);
        let stand = Stand::new(40 << 20, false, &options, 3);
        let small = IntegrityOptions::new().cache(0);
        let device = stand.open_with(&small).unwrap().device;
        for (at, len, sectors) in
            [(1, 1023, 1), (1, 1022, 0), (513, 511, 0), (4096, 0, 0), (8192, 1024, 2)]
        {
            let before = scrub(&device).1;
            device.discard(DevOffset(at), len).unwrap();
            assert_eq!(scrub(&device).1, before + sectors, "{mode:?}: {len} bytes at {at}");
        }
        device.discard(DevOffset(100), (40 << 20) - 100).unwrap();
        assert_eq!(scrub(&device), (1, (40 << 20) / 512 - 1), "{mode:?}");
        let behind = device.discard(DevOffset((40 << 20) - 512), 1024).unwrap_err();
        assert_eq!(behind.kind(), ErrorKind::InvalidInput);
        device.close().unwrap();
        let closed = device.discard(DevOffset(0), 4096).unwrap_err();
        assert_eq!(closed.kind(), ErrorKind::ReadOnly, "{mode:?}");
    }
}
