//! A single bit of the data or of the tags (checksums) changes on the device. Every read of the affected sector then fails. Reads of other
//! sectors succeed.

use ironmap::device::{BoundedQueue, DeviceQueue};
use ironmap::integrity::{Event, Field, FormatOptions, Integrity, TupleKind};
use ironmap::{Errno, ErrorKind};

use crate::rng::Rng;
use crate::stand::{Stand, all_options, change, queue, read, read_each_way};

const SIZE: u64 = 1 << 20;

/// Asserts that every way to read a sector fails, and that the adjacent sectors can be read.
fn assert_only_fails(device: &Integrity, stand: &Stand, sector: u64, what: &str) {
    let interval = u64::from(stand.info.interval);
    let mut queue = queue(device);
    for (way, result) in read_each_way(device, &mut queue, sector * interval, interval as usize)
        .into_iter()
        .enumerate()
    {
        assert_eq!(result, Err(Errno::EILSEQ), "{what}: way {way}");
    }
    for other in [sector.wrapping_sub(1), sector + 1] {
        if other < stand.info.sectors() {
            read(device, other * interval, interval as usize)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }
    // A longer read that includes the sector fails too.
    let first = sector.saturating_sub(3);
    let count = 6.min(stand.info.sectors() - first);
    let error = read(device, first * interval, (count * interval) as usize).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io(Errno::EILSEQ), "{what}");
    assert!(error.to_string().contains(&format!("sector {sector}: ")), "{what}: {error}");
    assert_eq!(queue.in_flight(), 0);
}

/// The size is small, because the test reads the device once for each bit.
const SMALL: u64 = 32 << 10;

/// Flips each bit of one sector and of its tag, one bit at a time. Every way to read the sector must fail. All other sectors must be
/// readable.
fn assert_each_bit_is_guarded(options: &FormatOptions) {
    let stand = Stand::new(SMALL, false, options, 1);
    let (interval, size) = (u64::from(options.interval), options.kind.bytes() as u64);
    let sector = stand.info.sectors() / 2 + 1;
    let at = sector * interval;
    let fails_alone = |device: &Integrity, queue: &mut BoundedQueue, bit: u64| {
        for (way, result) in read_each_way(device, queue, at, interval as usize).iter().enumerate()
        {
            assert_eq!(result, &Err(Errno::EILSEQ), "bit {bit} of {options:?}, way {way}");
        }
        for (from, to) in [(0, at), (at + interval, SMALL)] {
            let others = read(device, from, (to - from) as usize);
            others.unwrap_or_else(|error| panic!("bit {bit} of {options:?}: {error}"));
        }
    };
    let device = stand.open().device;
    let mut queue = queue(&device);
    for bit in 0..interval * 8 {
        let flip = || change(&stand.data, at + bit / 8, |byte| *byte ^= 1 << (bit % 8));
        flip();
        fails_alone(&device, &mut queue, bit);
        flip();
    }
    // After the bits are restored, each read succeeds. This shows that wrong data were not cached.
    read(&device, 0, SMALL as usize).unwrap();
    assert_eq!(device.counts().mismatches, interval * 8 * 4);
    drop((queue, device));
    let tuple = stand.tags_at() + sector * size;
    for bit in 0..size * 8 {
        let flip = || change(stand.tag_ram(), tuple + bit / 8, |byte| *byte ^= 1 << (bit % 8));
        flip();
        // An open device caches tags. A changed tag takes effect only at the next open.
        let device = stand.open().device;
        fails_alone(&device, &mut crate::stand::queue(&device), interval * 8 + bit);
        drop(device);
        flip();
    }
    read(&stand.open().device, 0, SMALL as usize).unwrap();
}

fn each_bit_of(kind: TupleKind, interval: u32) {
    for generations in [false, true] {
        let application = 0x1234;
        let options = FormatOptions::new()
            .kind(kind)
            .interval(interval)
            .generations(generations)
            .application(application);
        assert_each_bit_is_guarded(&options);
    }
}

#[test]
fn each_bit_is_guarded_by_t10_tuples_of_512_bytes() {
    each_bit_of(TupleKind::T10, 512);
}

#[test]
fn each_bit_is_guarded_by_t10_tuples_of_4096_bytes() {
    each_bit_of(TupleKind::T10, 4096);
}

#[test]
fn each_bit_is_guarded_by_nvme_tuples_of_512_bytes() {
    each_bit_of(TupleKind::Nvme64, 512);
}

#[test]
fn each_bit_is_guarded_by_nvme_tuples_of_4096_bytes() {
    each_bit_of(TupleKind::Nvme64, 4096);
}

#[test]
fn any_bit_that_flips_fails_its_sector_and_no_other() {
    for (number, options) in all_options().enumerate() {
        let mut rng = Rng::new(number as u64);
        let stand = Stand::new(SIZE, number % 2 == 0, &options, number as u64);
        for _ in 0..12 {
            let here = stand.snapshot();
            let interval = u64::from(options.interval);
            let sector = rng.below(here.info.sectors());
            let mask = 1 << rng.below(8);
            let what = if rng.below(2) == 0 {
                let at = sector * interval + rng.below(interval);
                change(&here.data, at, |byte| *byte ^= mask);
                format!("data at {at} ^ {mask:#x}, {options:?}")
            } else {
                let size = options.kind.bytes() as u64;
                let at = here.tags_at() + sector * size + rng.below(size);
                change(here.tag_ram(), at, |byte| *byte ^= mask);
                format!("tag of {sector} at {at} ^ {mask:#x}, {options:?}")
            };
            let opened = here.open();
            assert_only_fails(&opened.device, &here, sector, &what);
            let mut found = Vec::new();
            let scrubbed =
                opened.device.scrub(&mut |finding| found.push(finding), &mut |_, _| {}).unwrap();
            assert_eq!(
                (scrubbed.mismatches, scrubbed.lost, found.len()),
                (1, 0, 1),
                "{what}: {found:?}"
            );
            let counts = opened.device.counts();
            assert!(counts.mismatches >= 5 && counts.retries >= counts.mismatches, "{counts:?}");
            let (events, _) = opened.device.take_events();
            assert!(
                events
                    .iter()
                    .all(|event| matches!(event, Event::Mismatch(found) if found.sector == sector))
            );
            // After the bit is restored, the sector can be read, because ironmap never caches wrong data.
            drop(opened);
        }
    }
}

/// The data and the tags of two sectors are swapped. Each sector then matches its guard tag. Only the reference tag detects the swap.
#[test]
fn sectors_that_change_places_are_caught_by_the_reference_tag() {
    for options in all_options() {
        let stand = Stand::new(SIZE, false, &options, 5);
        let (one, two) = (3, 90);
        let (interval, size) = (u64::from(options.interval), options.kind.bytes() as u64);
        swap(&stand.data, one * interval, two * interval, interval);
        // Here only the data are swapped; the tags are not.
        let here = stand.snapshot();
        assert_only_fails(&here.open().device, &here, one, "data alone");
        let tags_at = stand.tags_at();
        swap(stand.tag_ram(), tags_at + one * size, tags_at + two * size, size);
        let device = stand.open().device;
        for sector in [one, two] {
            assert_only_fails(&device, &stand, sector, "data and tags");
        }
        let (events, _) = device.take_events();
        let by_reference = |event: &Event| matches!(event, Event::Mismatch(found) if found.field == Field::ReferenceTag);
        assert!(events.iter().all(by_reference), "{events:?}");
    }
}

fn swap(ram: &ironmap::device::Ram, one: u64, two: u64, len: u64) {
    let (first, second) =
        (read(ram, one, len as usize).unwrap(), read(ram, two, len as usize).unwrap());
    for at in 0..len {
        change(ram, one + at, |byte| *byte = second[at as usize]);
        change(ram, two + at, |byte| *byte = first[at as usize]);
    }
}

/// The data of a write did not reach the device, but its tags did. A read of these sectors fails, because they contain the old data.
#[test]
fn a_write_whose_data_were_lost_is_caught_when_it_is_read() {
    for options in all_options() {
        let stand = Stand::new(SIZE, false, &options, 6);
        let interval = options.interval as usize;
        let old = read(&*stand.data, 0, interval).unwrap();
        let device = stand.open().device;
        crate::stand::write(&device, 0, &vec![0xA5; interval], false).unwrap();
        device.close().unwrap();
        drop(device);
        crate::stand::write(&*stand.data, 0, &old, false).unwrap();
        assert_only_fails(&stand.open().device, &stand, 0, "lost data");
    }
}

/// All writes to a region were lost, both data and tags (checksums). The old data match the old tags. Only the generation number of the
/// region in the dirty map shows the loss.
#[test]
fn writes_that_left_no_trace_are_found_by_their_generation() {
    for generations in [false, true] {
        let options = FormatOptions::new().generations(generations).region(64 << 10);
        let stand = Stand::new(SIZE, false, &options, 7);
        // The test writes the region in two generations, so that tags of the first generation exist.
        let mut before = stand.snapshot();
        for fill in [1, 2] {
            before = stand.snapshot();
            let device = stand.open().device;
            crate::stand::write(&device, 128 << 10, &[fill; 4096], false).unwrap();
        }
        let clean = |stand: &Stand| {
            let mut found = Vec::new();
            stand.open().device.scrub(&mut |finding| found.push(finding), &mut |_, _| {}).unwrap();
            found
        };
        assert_eq!(clean(&stand), []);
        let sector = 128 * 1024 / 4096;
        let old = read(&*before.data, 128 << 10, 4096).unwrap();
        crate::stand::write(&*stand.data, 128 << 10, &old, false).unwrap();
        let at = stand.tags_at() + sector * 8;
        let tag = read(before.tag_ram(), at, 8).unwrap();
        for (number, value) in tag.into_iter().enumerate() {
            change(stand.tag_ram(), at + number as u64, |byte| *byte = value);
        }
        read(&stand.open().device, 128 << 10, 4096).unwrap();
        let found = clean(&stand);
        assert_eq!(found.len(), usize::from(generations), "{found:?}");
    }
}
