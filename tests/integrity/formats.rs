//! A device of every kind returns the data that were written last, also after a close and an open.

use std::sync::Arc;

use ironmap::ErrorKind;
use ironmap::bio::{BioFlags, BioOp, Buffer, Dev};
use ironmap::device::{Device, DeviceQueue, Faults, Ram, Sim};
use ironmap::integrity::{FormatOptions, Integrity, IntegrityOptions, Mode, format};
use ironmap::units::DevOffset;

use crate::rng::Rng;
use crate::stand::{Stand, all_options, as_device, bio, queue, read, read_each_way, write};

const SIZE: u64 = 4 << 20;

/// Writes in every way, and compares the device with a vector of bytes. The cache has no space, so tags are always read from the device.
#[test]
fn every_kind_of_device_holds_what_was_written() {
    for (number, options) in all_options().enumerate() {
        for tail in [false, true] {
            let seed = number as u64 * 2 + u64::from(tail);
            let mut rng = Rng::new(seed);
            let stand = Stand::new(SIZE, tail, &options, seed);
            let size = stand.info.data_size;
            let mut model = Rng::new(seed).bytes(SIZE as usize);
            for session in 0..2 {
                let cache = [0, 64 << 20][session];
                let opened = stand.open_with(&IntegrityOptions::new().cache(cache)).unwrap();
                assert_eq!((opened.recovered.crashed, opened.recovered.regions), (false, 0));
                let device = opened.device;
                let mut queue = queue(&device);
                let most = u64::from(device.limits().max_transfer.min(64 << 10));
                for step in 0..120 {
                    let unit = u64::from(options.interval);
                    let at = rng.below(size / unit) * unit;
                    let len = ((1 + rng.below(most / unit)) * unit).min(size - at);
                    let range = at as usize..(at + len) as usize;
                    if step % 4 == 0 {
                        let seen = read_each_way(&device, &mut queue, at, len as usize);
                        for (way, seen) in seen.iter().enumerate() {
                            assert!(
                                seen.as_deref() == Ok(&model[range.clone()]),
                                "way {way}, seed {seed}"
                            );
                        }
                        continue;
                    }
                    let bytes = rng.bytes(len as usize);
                    let mut buffer = Buffer::aligned(len as usize).unwrap();
                    buffer.copy_from_slice(&bytes);
                    match step % 4 {
                        1 => write(&device, at, &bytes, step % 8 == 1).unwrap(),
                        2 => {
                            let bufs = [std::io::IoSlice::new(&buffer)];
                            let count =
                                queue.write_now(Dev::OWN, &bufs, DevOffset(at), BioFlags::empty());
                            assert_eq!(count, Ok(len as usize));
                        }
                        _ => {
                            queue.submit(bio(BioOp::Write, at, buffer, 1)).unwrap();
                            queue.wait(1).unwrap();
                            assert_eq!(queue.pop().unwrap().result, Ok(len as usize));
                        }
                    }
                    model[range].copy_from_slice(&bytes);
                }
                // The read begins and ends at any byte.
                let (at, len) = (rng.below(size - 5000), 1 + rng.below(5000) as usize);
                assert!(read(&device, at, len).unwrap() == model[at as usize..at as usize + len]);
                assert!(
                    read(&device, 0, size as usize).unwrap() == model[..size as usize],
                    "seed {seed}"
                );
                let scrubbed = device
                    .scrub(&mut |found| panic!("{found:?}, seed {seed}"), &mut |_, _| {})
                    .unwrap();
                assert_eq!(scrubbed.sectors, stand.info.sectors());
                assert_eq!(device.counts().mismatches, 0);
            }
        }
    }
}

#[test]
fn requested_options_must_fit() {
    let data = Arc::new(Ram::new(SIZE));
    let small = Arc::new(Ram::new(16 << 10));
    let make = |tags: Option<&Arc<Ram>>, options: &FormatOptions| {
        format(&as_device(&data), tags.map(as_device).as_ref(), options, &mut |_, _| {})
            .map_err(|error| error.kind())
    };
    let options = FormatOptions::default();
    assert_eq!(make(Some(&small), &options).unwrap_err(), ErrorKind::InvalidInput);
    for interval in [0, 1, 1024, 8192] {
        let options = options.interval(interval);
        assert_eq!(make(None, &options).unwrap_err(), ErrorKind::InvalidInput);
    }
    for region in [0, 1, 5000, u64::MAX] {
        let options = options.region(region);
        assert_eq!(make(None, &options).unwrap_err(), ErrorKind::InvalidInput);
    }
    let journal = options.mode(Mode::Journal).journal(4096);
    assert_eq!(make(None, &journal).unwrap_err(), ErrorKind::InvalidInput);
    let both = options.mode(Mode::Journal).generations(true);
    assert_eq!(make(None, &both).unwrap_err(), ErrorKind::InvalidInput);
    let mut seen = Vec::new();
    format(&as_device(&data), None, &options, &mut |done, all| seen.push((done, all))).unwrap();
    assert_eq!(seen.last().map(|(done, all)| done == all), Some(true));
    assert_eq!(make(None, &options).unwrap_err(), ErrorKind::Exists);
    make(None, &options.force(true)).unwrap();
    let nothing = Integrity::open(small, None).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::UnknownFormat);
}

/// With tags on a separate device, every whole sector is protected, even the last one. So a file system with shorter blocks can use the
/// last sector.
#[test]
fn the_last_whole_sector_is_protected() {
    for (interval, expected) in [(512, 20001 << 10), (4096, 20000 << 10)] {
        let data = as_device(&Arc::new(Ram::new((20001 << 10) + 100)));
        let tags = as_device(&Arc::new(Ram::new(8 << 20)));
        let options = FormatOptions::new().interval(interval);
        let info = format(&data, Some(&tags), &options, &mut |_, _| {}).unwrap();
        assert_eq!(info.data_size, expected);
        let device = Integrity::open(data, Some(tags)).unwrap().device;
        let last = expected - u64::from(interval);
        write(&device, last, &vec![7; interval as usize], false).unwrap();
        assert_eq!(read(&device, last, interval as usize).unwrap(), vec![7; interval as usize]);
        device.scrub(&mut |found| panic!("{found:?}"), &mut |_, _| {}).unwrap();
    }
}

/// A device is formatted a second time, and one request of the second formatting fails. The device then has the new format, or is invalid.
/// It never has the old format with partly overwritten tags (checksums). After a successful formatting, the new format is found even if the
/// last block of the device is overwritten.
#[test]
fn a_device_that_was_formatted_anew_is_gone() {
    let larger = FormatOptions::new().mode(Mode::Journal).journal(1 << 20).force(true);
    for fail_after in 0..40 {
        let stand = Stand::new(SIZE, true, &FormatOptions::default(), fail_after);
        let faults = Faults { fail_after: Some(fail_after), ..Faults::default() };
        let sim: Arc<dyn Device> = Arc::new(Sim::new(as_device(&stand.data), faults));
        let formatted = format(&sim, None, &larger, &mut |_, _| {});
        if let Ok(opened) = stand.open_with(&IntegrityOptions::default()) {
            let nothing = &mut |found| panic!("after {fail_after} requests: {found:?}");
            opened.device.scrub(nothing, &mut |_, _| {}).unwrap();
        }
        let Ok(info) = formatted else { continue };
        let last = stand.data.size() - 4096;
        write(&*stand.data, last, &[0xEE; 4096], false).unwrap();
        assert_eq!(Integrity::probe(&*stand.data, None).unwrap().uuid, info.uuid);
        return;
    }
    panic!("it never came to its end");
}
