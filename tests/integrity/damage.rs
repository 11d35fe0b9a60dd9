//! Changes to the tag area (the checksums and other metadata) of an integrity device, with or without repaired checksums of the area. The
//! fuzzer chooses the changes by code coverage. The seeded tests choose them at random.

use arbitrary::Arbitrary;
use ironmap::ErrorKind;
use ironmap::device::Device;
use ironmap::integrity::{FormatOptions, IntegrityOptions, Mode};
use ironmap::protection::guard::nvme64;

use crate::rng::Rng;
use crate::stand::{Stand, all_options, read, write};

pub(crate) const SIZE: u64 = 1 << 20;

const BLOCK: u64 = 4096;

/// A structure of the tag area, which contains the checksums and other metadata of an integrity device.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Structure {
    Superblock,
    /// The map of dirty regions, and the generations of the regions.
    Map,
    Tags,
    JournalHead,
    JournalRecord,
}

/// A change of some bytes in a structure.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) struct Change {
    structure: Structure,
    block: u8,
    at: u16,
    value: u64,
    len: u8,
    /// Whether the checksum of the structure is repaired after the change.
    sealed: bool,
}

/// A device and the changes that damage it.
#[derive(Arbitrary, Debug)]
pub struct Damage {
    device: u8,
    changes: Vec<Change>,
}

/// Devices of every kind after a power cut. Some have dirty regions, and some have records in the journal.
pub(crate) fn crashed() -> Vec<Stand> {
    let crash = |(number, options): (usize, FormatOptions)| {
        let stand = Stand::new(SIZE, number % 3 == 0, &options, number as u64);
        let device = stand.open().device;
        for at in [8192, 16384, SIZE / 2] {
            write(&device, at, &[3; 8192], false).unwrap();
        }
        stand.snapshot()
    };
    all_options().enumerate().map(crash).collect()
}

impl Damage {
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let structures = [
            Structure::Superblock,
            Structure::Map,
            Structure::Tags,
            Structure::JournalHead,
            Structure::JournalRecord,
        ];
        let mut change = || Change {
            structure: structures[rng.below(5) as usize],
            block: rng.next() as u8,
            // Most blocks have their fields at the beginning. So the first bytes are changed more often.
            at: (if rng.below(4) == 0 { rng.below(BLOCK) } else { rng.below(130) }) as u16,
            value: match rng.below(4) {
                0 => u64::MAX,
                1 => 1 << rng.below(64),
                2 => rng.next(),
                _ => rng.below(300),
            },
            len: rng.next() as u8,
            sealed: rng.below(8) != 0,
        };
        let changes = [change(), change(), change()];
        let changes = changes[..1 + rng.below(3) as usize].to_vec();
        Self { device: rng.next() as u8, changes }
    }

    /// Damages a copy of one of the devices and uses the copy. An error must name the fault. Nothing may panic.
    pub(crate) fn survive(&self, devices: &[Stand]) {
        let stand = devices[usize::from(self.device) % devices.len()].snapshot();
        self.changes.iter().take(8).for_each(|change| change.apply(&stand));
        use_it(&stand, &format!("{self:?}"));
    }
}

impl Change {
    fn apply(&self, stand: &Stand) {
        let info = &stand.info;
        let (start, end) = (info.area_start, info.area_start + info.area_len());
        let journal = end - BLOCK - info.journal;
        let (from, until) = match self.structure {
            Structure::Superblock => (start, start + BLOCK),
            Structure::Map => (start + BLOCK, stand.tags_at()),
            Structure::Tags => (stand.tags_at(), journal),
            Structure::JournalHead => (journal, journal + 2 * BLOCK),
            Structure::JournalRecord => (journal + 2 * BLOCK, journal + 10 * BLOCK),
        };
        let until = until.min(end);
        if from >= until {
            // A device without a journal does not have the block that this change damages.
            return;
        }
        let block = from + u64::from(self.block) % ((until - from) / BLOCK) * BLOCK;
        let mut bytes = read(stand.tag_ram(), block, BLOCK as usize).unwrap();
        let (at, len) =
            (usize::from(self.at) % (BLOCK as usize - 12), usize::from(self.len) % 8 + 1);
        bytes[at..at + len].copy_from_slice(&self.value.to_le_bytes()[..len]);
        if !self.sealed {
            return write(stand.tag_ram(), block, &bytes, false).unwrap();
        }
        match self.structure {
            Structure::Tags => {}
            Structure::JournalRecord => return seal_record(stand, block, &bytes),
            Structure::Superblock => seal(&mut bytes, 0),
            // The checksum also covers the number of the block.
            Structure::Map | Structure::JournalHead => {
                seal(&mut bytes, crc32c::crc32c(&(block / BLOCK).to_le_bytes()));
            }
        }
        write(stand.tag_ram(), block, &bytes, false).unwrap();
        if matches!(self.structure, Structure::Superblock) {
            // The second copy of the superblock is changed in the same way.
            let last = stand.tag_ram().size() / BLOCK * BLOCK - BLOCK;
            write(stand.tag_ram(), last, &bytes, false).unwrap();
        }
    }
}

fn seal(bytes: &mut [u8], before: u32) {
    let end = bytes.len() - 4;
    let sum = crc32c::crc32c_append(before, &bytes[..end]);
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
}

/// If a journal record begins in this block, repairs the checksum of the record.
fn seal_record(stand: &Stand, at: u64, first: &[u8]) {
    const LEN: usize = 32;
    const CHECKSUM: usize = 44;
    const BODY: usize = 48;
    write(stand.tag_ram(), at, first, false).unwrap();
    let len = u64::from_le_bytes(first[LEN..LEN + 8].try_into().unwrap());
    let fits = (BLOCK..=2 << 20).contains(&len) && at + len <= stand.tag_ram().size();
    if !fits || !len.is_multiple_of(BLOCK) {
        return;
    }
    let mut record = read(stand.tag_ram(), at, len as usize).unwrap();
    let body = nvme64(&record[BODY + 8..], 0);
    record[BODY..BODY + 8].copy_from_slice(&body.to_le_bytes());
    record[CHECKSUM..CHECKSUM + 4].fill(0);
    let sum = crc32c::crc32c(&record);
    record[CHECKSUM..CHECKSUM + 4].copy_from_slice(&sum.to_le_bytes());
    write(stand.tag_ram(), at, &record, false).unwrap();
}

/// Runs all operations that a damaged device still permits.
pub(crate) fn use_it(stand: &Stand, what: &str) {
    let options = IntegrityOptions::new().cache(0);
    let device = match stand.open_with(&options) {
        Ok(opened) => opened.device,
        Err(error) => {
            let text = error.to_string();
            let known = matches!(
                error.kind(),
                ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::UnknownFormat
            );
            assert!(known && !text.is_empty(), "{what}: {error:?}");
            if error.kind() == ErrorKind::Corrupt {
                assert!(
                    text.contains("integrity") || text.contains("data device"),
                    "{what}: {text}"
                );
            }
            return;
        }
    };
    for at in [0, SIZE / 2, device.size().saturating_sub(4096)] {
        let _ = read(&device, at / 4096 * 4096, 4096);
        let _ = write(&device, at / 4096 * 4096, &[1; 4096], false);
    }
    let _ = device.scrub(&mut |_| {}, &mut |_, _| {});
    if device.close().is_ok() && stand.info.mode == Mode::Journal {
        drop(device);
        // A device that was closed has no records to replay.
        let again = stand.open_with(&options).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(again.recovered.records, 0, "{what}");
    }
}
