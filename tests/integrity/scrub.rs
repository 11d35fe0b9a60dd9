//! The findings of a scrub, which compares all sectors of an integrity device with their tags (checksums). The scrub finds lost writes even
//! if the tags are in memory. It reports no loss if no write was lost.

use std::sync::Arc;
use std::time::Duration;

use ironmap::device::{Device, Faults, Ram, Sim};
use ironmap::integrity::{
    FormatOptions, Half, Integrity, IntegrityOptions, Mode, Problem, ScrubFinding, check,
};
use ironmap::{Errno, Error};

use crate::stand::{Stand, all_options, as_device, change, read, write};

const SIZE: u64 = 256 << 10;

fn findings(device: &Integrity) -> Vec<ScrubFinding> {
    let mut found = Vec::new();
    device.scrub(&mut |finding| found.push(finding), &mut |_, _| {}).unwrap();
    found
}

/// A write of tags is lost, but the right tags are still in memory. The scrub finds the loss. Until the next open, readers use the tags in
/// memory.
#[test]
fn a_lost_write_of_tags_is_found_while_they_are_in_memory() {
    let stand = Stand::new(SIZE, false, &FormatOptions::default(), 1);
    let lazy = IntegrityOptions::new().clean_after(Duration::ZERO);
    let device = stand.open_with(&lazy).unwrap().device;
    let at = stand.tags_at() + 5 * 8;
    let before = read(stand.tag_ram(), at, 8).unwrap();
    write(&device, 5 * 4096, &[7; 4096], false).unwrap();
    // A tag in memory that is not yet written to the device is not a lost tag.
    assert_eq!(findings(&device), []);
    device.flush().unwrap();
    for (place, old) in (at..).zip(before) {
        change(stand.tag_ram(), place, |byte| *byte = old);
    }
    let found = findings(&device);
    assert!(
        matches!(found[..], [ScrubFinding::Mismatch(mismatch)] if mismatch.sector == 5),
        "{found:?}"
    );
    assert_eq!(device.counts().mismatches, 1);
    read(&device, 5 * 4096, 4096).unwrap();
    drop(device);
    assert_eq!(read(&stand.open().device, 5 * 4096, 4096).unwrap_err().errno(), Errno::EILSEQ);
}

/// A write marks its region as dirty and then fails. The region has a new generation number, but no sector was written. The scrub reports
/// no lost write: while the region is dirty, after a close, or after a crash.
#[test]
fn a_write_that_wrote_nothing_is_not_a_lost_one() {
    for of_tags in [false, true] {
        let options = FormatOptions::new().generations(true).region(64 << 10);
        let stand = Stand::new(SIZE, false, &options, 2);
        write(&stand.open().device, 64 << 10, &[1; 4096], false).unwrap();
        let data = Arc::new(Sim::new(as_device(&stand.data), Faults::default()));
        let tags = Arc::new(Sim::new(as_device(stand.tags.as_ref().unwrap()), Faults::default()));
        let device = Integrity::open(data.clone(), Some(tags.clone())).unwrap().device;
        // The map and the generations need one write request each. Then the tags are read.
        let (sim, fail_at) = if of_tags { (&tags, 2) } else { (&data, 0) };
        let errno = Some(Errno::EAGAIN);
        sim.set_faults(Faults { fail_at: Some(fail_at), errno, ..Faults::default() });
        let written =
            write(&device, 64 << 10, &[2; 4096], false).map_err(|error: Error| error.errno());
        assert_eq!(written, Err(Errno::EAGAIN), "tags: {of_tags}");
        sim.set_faults(Faults::default());
        assert_eq!(findings(&device), [], "dirty, tags: {of_tags}");
        let crashed = stand.snapshot();
        assert_eq!(findings(&crashed.open().device), [], "crashed, tags: {of_tags}");
        drop(crashed.open());
        assert_eq!(findings(&crashed.open().device), [], "closed after a crash, tags: {of_tags}");
        device.close().unwrap();
        drop(device);
        assert_eq!(findings(&stand.open().device), [], "closed, tags: {of_tags}");
    }
}

/// A write to a region had no effect on the device. When the device is closed, each tag (checksum) gets the new generation number only if
/// the sector matches its old tag. So a wrong sector is still detected after the close.
#[test]
fn a_close_gives_no_wrong_sector_a_tag_that_fits() {
    const FIRST: u64 = 16;
    for wrong in [1, 7, 16] {
        let options = FormatOptions::new().generations(true).region(64 << 10);
        let stand = Stand::new(SIZE, false, &options, 2);
        for sector in FIRST..FIRST + wrong {
            change(&stand.data, sector * 4096 + 9, |byte| *byte ^= 2);
        }
        let errno = Some(Errno::EAGAIN);
        let faults = Faults { fail_at: Some(0), errno, ..Faults::default() };
        let data = Arc::new(Sim::new(as_device(&stand.data), faults));
        let tags = stand.tags.as_ref().map(as_device);
        let device = Integrity::open(data.clone(), tags).unwrap().device;
        write(&device, 64 << 10, &[2; 4096], false).unwrap_err();
        let closed = device.close();
        if wrong == 16 {
            // No sector of the region matches its tag (checksum). So the region stays dirty, and the close returns an error that states
            // this.
            let error = closed.unwrap_err();
            assert!(error.to_string().contains("stays dirty"), "{error}");
            continue;
        }
        closed.unwrap();
        drop(device);
        let found = findings(&stand.open().device);
        let sectors = found.iter().map(|found| match found {
            ScrubFinding::Mismatch(mismatch) => mismatch.sector,
            other => panic!("{other:?}"),
        });
        assert_eq!(sectors.collect::<Vec<_>>(), (FIRST..FIRST + wrong).collect::<Vec<_>>());
    }
}

/// The dirty bit or the generation number of a region could not be written. In memory the region keeps its old number, even if the device
/// has stored the new one. The scrub reports no lost write: while the device is open, after a close, or after a crash.
#[test]
fn a_generation_that_could_not_be_written_is_not_missing() {
    let at = 64 << 10;
    for (fail_at, unheard) in [(0, false), (0, true), (1, false), (1, true)] {
        let what = format!("request {fail_at}, written: {unheard}");
        let options = FormatOptions::new().generations(true).region(64 << 10);
        let stand = Stand::new(SIZE, false, &options, 2);
        write(&stand.open().device, at, &[1; 4096], false).unwrap();
        let tags = Arc::new(Sim::new(as_device(stand.tags.as_ref().unwrap()), Faults::default()));
        let device = Integrity::open(as_device(&stand.data), Some(tags.clone())).unwrap().device;
        // The dirty map and the generations need one write request each.
        tags.set_faults(Faults { fail_at: Some(fail_at), unheard, ..Faults::default() });
        assert_eq!(write(&device, at, &[2; 4096], false).unwrap_err().errno(), Errno::EIO);
        assert_eq!(findings(&device), [], "open, {what}");
        // A later write to another region writes the same blocks of the map and of the generations again.
        write(&device, 2 * at, &[2; 4096], false).unwrap();
        device.flush().unwrap();
        let crashed = stand.snapshot();
        assert_eq!(findings(&crashed.open().device), [], "crashed, {what}");
        assert_eq!(findings(&crashed.open().device), [], "closed after a crash, {what}");
        device.close().unwrap();
        drop(device);
        assert_eq!(findings(&stand.open().device), [], "closed, {what}");
    }
}

/// The scrub reports sectors that cannot be read, and sectors whose tags cannot be read. It compares the other sectors with their tags and
/// finds the faults in them.
#[test]
fn sectors_that_cannot_be_read_are_listed_and_the_others_scrubbed() {
    for (number, options) in all_options().enumerate() {
        let what = format!("{options:?}");
        let stand = Stand::new(SIZE, false, &options, number as u64);
        let (interval, size) = (u64::from(options.interval), options.kind.bytes() as u64);
        let all = SIZE / interval;
        // Three unreadable sectors lie in two chunks. A sector with a flipped bit lies between them.
        let (refused, flipped) = ([0, 3, all - 1], 2);
        change(&stand.data, flipped * interval + 1, |byte| *byte ^= 4);
        let unit = interval / 512;
        let bad_sectors = refused.iter().map(|sector| sector * unit + unit / 2).collect();
        let data = Sim::new(as_device(&stand.data), Faults { bad_sectors, ..Faults::default() });
        let errno = Some(Errno::ENODATA);
        let tags = Arc::new(Sim::new(as_device(stand.tags.as_ref().unwrap()), Faults::default()));
        let opened = Integrity::open(Arc::new(data), Some(tags.clone())).unwrap();
        let mut found = Vec::new();
        let scrubbed =
            opened.device.scrub(&mut |finding| found.push(finding), &mut |_, _| {}).unwrap();
        let of_data = |sector| ScrubFinding::Unreadable {
            half: Half::Data,
            sector,
            count: 1,
            errno: Errno::EIO,
        };
        assert_eq!((scrubbed.sectors, scrubbed.unreadable), (all - 3, 3), "{what}");
        assert_eq!((scrubbed.mismatches, scrubbed.lost), (1, 0), "{what}");
        assert_eq!((found[0], found[2], found[3]), (of_data(0), of_data(3), of_data(all - 1)));
        assert!(
            matches!(found[1], ScrubFinding::Mismatch(mismatch) if mismatch.sector == flipped),
            "{what}: {found:?}"
        );
        drop(opened);

        // The first block of tags contains the tags of exactly these sectors.
        let in_block = all.min(4096 / size);
        let bad_sectors = [stand.tags_at() / 512 + 7].into();
        tags.set_faults(Faults { bad_sectors, errno, ..Faults::default() });
        let device = Integrity::open(as_device(&stand.data), Some(tags)).unwrap().device;
        let mut found = Vec::new();
        let scrubbed = device.scrub(&mut |finding| found.push(finding), &mut |_, _| {}).unwrap();
        assert_eq!((scrubbed.sectors, scrubbed.unreadable), (all - in_block, in_block), "{what}");
        let mut left = 0;
        for finding in found {
            let ScrubFinding::Unreadable { half: Half::Tags, sector, count, errno } = finding
            else {
                panic!("{what}: {finding:?}")
            };
            assert_eq!((sector, errno), (left, Errno::ENODATA), "{what}");
            left += count;
        }
        assert_eq!(left, in_block, "{what}");
    }
}

/// If the device disappears, the scrub ends. It does not read the remaining sectors.
#[test]
fn a_device_that_is_gone_ends_the_scrub() {
    let stand = Stand::new(SIZE, false, &FormatOptions::default(), 3);
    let data = Arc::new(Sim::new(as_device(&stand.data), Faults::default()));
    let device = Integrity::open(data.clone(), stand.tags.as_ref().map(as_device)).unwrap().device;
    let errno = Some(Errno::ENODEV);
    data.set_faults(Faults { fail_after: Some(0), errno, ..Faults::default() });
    let scrubbed = device.scrub(&mut |found| panic!("{found:?}"), &mut |_, _| {});
    assert_eq!(scrubbed.unwrap_err().errno(), Errno::ENODEV);
}

/// A check reports the blocks of the tag area (the checksums and other metadata) that cannot be read. It still examines the other blocks.
#[test]
fn a_check_goes_on_after_blocks_that_cannot_be_read() {
    for (number, options) in all_options().enumerate() {
        let stand = Stand::new(4 * SIZE, number % 2 == 0, &options, number as u64);
        let area = stand.info.area_start;
        let map = (stand.tags_at() - area) / 4096;
        let last = stand.tag_ram().size() - 4096;
        let journal = area + stand.info.area_len() - 4096 - stand.info.journal;
        let mut places: Vec<_> = (0..map).map(|block| area + block * 4096).collect();
        places.push(last);
        if options.mode == Mode::Journal {
            places.push(journal);
        }
        for place in places {
            let below = as_device(stand.tags.as_ref().unwrap_or(&stand.data));
            let bad_sectors = [place / 512 + 1].into();
            let tags: Arc<dyn Device> =
                Arc::new(Sim::new(below, Faults { bad_sectors, ..Faults::default() }));
            let checked = match stand.tags {
                Some(_) => check(&as_device(&stand.data), Some(&tags)),
                None => check(&tags, None),
            };
            let problems = checked.unwrap().problems;
            assert!(
                problems.len() == 1 && problems[0].to_string().contains("EIO"),
                "{options:?}, byte {place}: {problems:?}"
            );
        }
    }
}

/// If the data device is too short, the check ends, because an open of this device would fail anyway.
#[test]
fn a_check_ends_at_data_that_are_too_short() {
    for options in all_options() {
        let stand = Stand::new(SIZE, false, &options, 4);
        let short = as_device(&Arc::new(Ram::new(SIZE / 2)));
        write(stand.tag_ram(), 4096, &[0xEE; 4096], false).unwrap();
        let checked = check(&short, stand.tags.as_ref().map(as_device).as_ref()).unwrap();
        let short = Problem::ShortData { size: SIZE / 2, needed: SIZE };
        assert_eq!(checked.problems, [short]);
    }
}
