//! Integrity devices whose tag area (the checksums and other metadata) contains random bytes. An open returns an error that names the
//! fault, and never panics.

use std::sync::Arc;

use ironmap::ErrorKind;
use ironmap::device::{Device, Faults, Ram, Sim};
use ironmap::integrity::{FormatOptions, Integrity, IntegrityOptions, Mode};

use crate::damage::{Damage, SIZE, crashed, use_it};
use crate::rng::Rng;
use crate::stand::{Stand, all_options, as_device, change, read, write};

/// Random bytes are written to each part of the tag area, and single bits are flipped. After each change, the open returns an error, or the
/// tags detect the change during a read.
#[test]
fn garbage_in_the_area_is_an_error_or_caught() {
    for (number, options) in all_options().enumerate() {
        let tail = number % 2 == 0;
        let stand = Stand::new(SIZE, tail, &options, number as u64);
        // After this write, one region needs recovery.
        let device = stand.open().device;
        write(&device, 8192, &[3; 8192], false).unwrap();
        let crashed = stand.snapshot();
        let area = crashed.info.area_start;
        let end = area + crashed.info.area_len();
        let last = crashed.tag_ram().size() - 4096;
        let mut rng = Rng::new(number as u64);
        for step in 0..60 {
            let here = crashed.snapshot();
            let journal = end - 4096 - crashed.info.journal;
            let start = match step % 5 {
                0 => area,
                1 => last,
                2 => area + 4096,
                3 if crashed.info.mode == Mode::Journal => journal + rng.below(8) * 4096,
                _ => area + rng.below((end - area) / 4096) * 4096,
            };
            if rng.below(2) == 0 {
                write(here.tag_ram(), start, &rng.bytes(4096), false).unwrap();
            } else {
                change(here.tag_ram(), start + rng.below(150), |byte| *byte ^= 1 << rng.below(8));
            }
            use_it(&here, &format!("{number}, step {step}, {options:?}"));
        }
    }
}

/// One field of a superblock gets a random number, and the checksum is made valid. Either ironmap refuses the superblock, or the device
/// works.
#[test]
fn superblocks_of_any_values_are_refused_or_work() {
    let options = FormatOptions::new().region(64 << 10);
    for mode in [Mode::Bitmap, Mode::Journal] {
        let options = options.mode(mode).journal(128 << 10);
        let stand = Stand::new(SIZE, false, &options, 3);
        let mut rng = Rng::new(17);
        let mut named = 0;
        for step in 0..400 {
            let here = stand.snapshot();
            let mut bytes = read(here.tag_ram(), 0, 4096).unwrap();
            let field = 8 + rng.below(100) as usize;
            let value = match rng.below(4) {
                0 => u64::MAX,
                1 => 1 << rng.below(64),
                2 => rng.next(),
                _ => 0,
            };
            let len = 1 + rng.below(8) as usize;
            bytes[field..field + len].copy_from_slice(&value.to_le_bytes()[..len]);
            let sum = crc32c(&bytes[..4092]);
            bytes[4092..].copy_from_slice(&sum.to_le_bytes());
            let last = here.tag_ram().size() - 4096;
            for at in [0, last] {
                write(here.tag_ram(), at, &bytes, false).unwrap();
            }
            let opened = Integrity::probe(
                &*here.data,
                here.tags.as_ref().map(|tags| &**tags as &dyn Device),
            );
            if let Err(error) = opened
                && error.kind() == ErrorKind::Corrupt
            {
                named += 1;
                let place = error.place().expect("a place");
                assert!(!place.field.is_empty() && place.block.is_some(), "{error}");
            }
            use_it(&here, &format!("field at {field}: {value:#x}, step {step}"));
        }
        assert!(named > 20);
    }
}

/// ironmap refuses a superblock with a valid checksum if the sum of its numbers overflows, or if its maps need more memory than exists.
#[test]
fn numbers_without_bounds_are_refused() {
    let stand = Stand::new(SIZE, false, &FormatOptions::default(), 3);
    let large = [(48, 1 << 40), (64, 8 << 30), (80, 4096)];
    let cases = [
        ("sequence", &[(72, u64::MAX)][..]),
        ("sequence", &[(72, 1 << 63)]),
        // With this region size, the device has 2^28 regions.
        ("region", &large),
    ];
    for (name, fields) in cases {
        let here = stand.snapshot();
        let mut bytes = read(here.tag_ram(), 0, 4096).unwrap();
        for (at, value) in fields {
            bytes[*at..at + 8].copy_from_slice(&u64::to_le_bytes(*value));
        }
        let sum = crc32c(&bytes[..4092]);
        bytes[4092..].copy_from_slice(&sum.to_le_bytes());
        for at in [0, here.tag_ram().size() - 4096] {
            write(here.tag_ram(), at, &bytes, false).unwrap();
        }
        let error = here.open_with(&IntegrityOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(error.place().unwrap().field, name, "{error}");
    }
}

/// Applies the changes that the fuzzer also uses, chosen by a seed. Each change can affect any structure of the tag area, and the checksum
/// of the structure stays valid. ironmap refuses the device, or the device works.
#[test]
fn structures_of_any_values_are_refused_or_work() {
    let devices = crashed();
    let mut rng = Rng::new(23);
    for _ in 0..4000 {
        Damage::random(&mut rng).survive(&devices);
    }
}

/// Computes CRC32C bit by bit. It shares no code with the library.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 }
        })
    })
}

/// One valid copy of the superblock is sufficient. The other copy may belong to another device, be torn, or be unreadable.
#[test]
fn one_copy_of_the_superblock_is_enough() {
    // With tags at the end of the device, the test also uses a journal that is longer than the map and the tags.
    let journal = FormatOptions::new().mode(Mode::Journal).journal(12 << 20);
    let kinds = [(false, SIZE, FormatOptions::default()), (true, SIZE, FormatOptions::default())];
    for (tail, size, options) in kinds.into_iter().chain([(true, 16 << 20, journal)]) {
        let stand = Stand::new(size, tail, &options, 4);
        let last = stand.tag_ram().size() - 4096;
        for at in [stand.info.area_start, last] {
            for damage in [&[0xEE; 4096][..], &[0xEE; 3584]] {
                let here = stand.snapshot();
                write(here.tag_ram(), at + 4096 - damage.len() as u64, damage, false).unwrap();
                let device = here.open().device;
                read(&device, 0, 4096).unwrap();
                drop(device);
                // The open has repaired the damaged copy. So the test can damage the other copy.
                let other = last - at + stand.info.area_start;
                write(here.tag_ram(), other, &[0xEE; 4096], false).unwrap();
                here.open();
            }
            let below = as_device(stand.tags.as_ref().unwrap_or(&stand.data));
            let bad_sectors = [at / 512].into();
            let faulty = Arc::new(Sim::new(below, Faults { bad_sectors, ..Faults::default() }));
            let probed = match tail {
                true => Integrity::probe(&*faulty, None),
                false => Integrity::probe(&*stand.data, Some(&*faulty)),
            };
            assert_eq!(probed.unwrap(), stand.info);
        }
    }
    let nothing = Arc::new(Ram::new(SIZE));
    let error = Integrity::open(as_device(&nothing), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownFormat);
}
