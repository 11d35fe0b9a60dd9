//! Logs whose last records are torn or damaged. ironmap and the kernel must agree on the records that are complete.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use ironmap::ErrorKind;

use crate::common::compare::{assert_contents, assert_same};
use crate::common::image::Image;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::common::view::Subject;
use crate::require;
use crate::state::{End, Mount, Variant, Work, copy, load, make, theirs};

const SEED: u64 = 0x7042;
const BLOCK: u64 = 512;
/// The value of `h_magicno`.
const MAGIC: u32 = 0xfeed_babe;
/// The maximum number of changes (steps) of a volume before a shutdown. After so few changes, the metadata of the last log records are not
/// yet written to their own positions.
const STEPS: u64 = 250;
/// After this number of steps, a small log is full, so its newest records have overwritten older ones. Records that are lost at the end of
/// the log may have overwritten a part of its tail.
const STEPS_AROUND: u64 = 6000;
/// How many different damages are tried for each volume.
const DAMAGES: u64 = 12;

/// The log of an image, as a ring of blocks.
pub(crate) struct Log {
    file: File,
    start: u64,
    count: u64,
}

impl Log {
    pub(crate) fn of(image: &Image) -> Self {
        let file = File::options().read(true).write(true).open(image.path()).expect("the image");
        let mut sector = [0; 512];
        file.read_exact_at(&mut sector, 0).expect("the superblock");
        let u32_at =
            |at: usize| u64::from(u32::from_be_bytes(sector[at..at + 4].try_into().unwrap()));
        let (block, group_blocks) = (u32_at(4), u32_at(84));
        let place = u64::from_be_bytes(sector[48..56].try_into().unwrap());
        let (group, within) = (place >> sector[124], place & ((1 << sector[124]) - 1));
        let start = (group * group_blocks + within) * block;
        Self { file, start, count: u32_at(96) * block / BLOCK }
    }

    /// The range of the log on the device, in bytes.
    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.start + self.count * BLOCK
    }

    /// The content of the log.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; (self.count * BLOCK) as usize];
        self.file.read_exact_at(&mut bytes, self.start).expect("read the log");
        bytes
    }

    fn at(&self, block: u64) -> u64 {
        self.start + block % self.count * BLOCK
    }

    fn read(&self, block: u64) -> [u8; BLOCK as usize] {
        let mut bytes = [0; BLOCK as usize];
        self.file.read_exact_at(&mut bytes, self.at(block)).expect("read the log");
        bytes
    }

    pub(crate) fn write(&self, block: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, self.at(block)).expect("write the log");
    }

    /// The first blocks of the last log records before a head (the end of the log). The last record comes first.
    fn records(&self, head: u64, most: usize) -> Vec<u64> {
        let before = (1..self.count).map(|back| (head + self.count - back) % self.count);
        before.filter(|block| word(&self.read(*block), 0) == MAGIC).take(most).collect()
    }

    /// The number of blocks from one block to another.
    fn between(&self, from: u64, to: u64) -> u64 {
        (to + self.count - from) % self.count
    }

    /// Replaces a block of the log by old content. The block could have such content if it was not written in this cycle of the log.
    pub(crate) fn make_old(&self, block: u64, rng: &mut Rng) {
        let bytes = self.read(block);
        let is_header = word(&bytes, 0) == MAGIC;
        let cycle = word(&bytes, if is_header { 4 } else { 0 }).saturating_sub(1);
        let mut bytes = rng.bytes(BLOCK as usize);
        bytes[..4].copy_from_slice(&cycle.to_be_bytes());
        self.write(block, &bytes);
    }

    fn flip(&self, block: u64, byte: u64) {
        let mut bytes = self.read(block);
        bytes[byte as usize] ^= 0x55;
        self.write(block, &bytes);
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Damages the log before its head. Returns a description.
fn damage(log: &Log, head: u64, rng: &mut Rng) -> String {
    let records = log.records(head, 14);
    let which = rng.below(records.len() as u64) as usize;
    let record = records[which];
    let end = if which == 0 { head } else { records[which - 1] };
    let len = log.between(record, end);
    match rng.below(9) {
        0 => {
            let blocks = 1 + rng.below(60);
            (1..=blocks).for_each(|back| log.write(head + log.count - back, &[0; 512]));
            format!("zeroed: {blocks} blocks before the head")
        }
        1 => {
            let blocks = 1 + rng.below(60);
            (1..=blocks).for_each(|back| log.make_old(head + log.count - back, rng));
            format!("not written: {blocks} blocks before the head")
        }
        2 => {
            let block = record + rng.below(len);
            log.make_old(block, rng);
            format!("not written: a block of record {which} from the end")
        }
        3 => {
            (0..len).for_each(|block| log.make_old(record + block, rng));
            format!("not written: record {which} from the end")
        }
        4 => {
            log.make_old(record, rng);
            format!("not written: the header of record {which} from the end")
        }
        5 => {
            log.flip(record + rng.below(len), 4 + rng.below(508));
            format!("flipped: a byte of record {which} from the end")
        }
        6 => {
            log.flip(record, rng.below(328));
            format!("flipped: a byte of the header of record {which} from the end")
        }
        7 => {
            (0..log.between(record, head)).for_each(|block| log.write(record + block, &[0; 512]));
            format!("zeroed: all from record {which} from the end on")
        }
        _ => {
            log.write(record + len / 2, &[0; 512]);
            format!("zeroed: a block of record {which} from the end")
        }
    }
}

/// Counts how the kernel and ironmap treat the damaged logs.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    pub(crate) alike: u64,
    pub(crate) refused_by_both: u64,
    /// The kernel mounts the volume and then finds damage. Metadata were written, and the log records with these changes are lost.
    /// ironmap's check also finds this damage.
    contradictory: u64,
    /// Volumes that the kernel refuses and ironmap opens. ironmap's check finds the damage.
    pub(crate) only_found_damaged: Vec<String>,
    /// Volumes that the kernel refuses and ironmap opens. ironmap's check finds no damage.
    pub(crate) only_opened: Vec<String>,
}

fn compare(dirty: &Image, variant: &Variant, seed: u64, outcomes: &mut Outcomes) {
    let rng = &mut Rng::new(seed);
    let (image, undamaged) = (copy(dirty), dirty.open().expect("a dirty volume"));
    let head = undamaged.xfs().expect("an XFS volume").log().head.1;
    let how = damage(&Log::of(&image), head.into(), rng);
    judge(&image, &format!("{variant:?}, seed {seed:#x}, {how}"), seed, outcomes);
}

/// Opens an image with the kernel and with ironmap. Compares the results.
pub(crate) fn judge(image: &Image, what: &str, seed: u64, outcomes: &mut Outcomes) {
    let ours = copy(image);
    let opened = ours.open();
    let mount = match (Mount::new(image, "ro"), &opened) {
        (Ok(mount), Ok(_)) => mount,
        (Ok(_), Err(error)) => panic!("{what}: the kernel mounts it, but {error}"),
        (Err(_), Err(error)) => {
            println!("{what}: {error}");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
            outcomes.refused_by_both += 1;
            return;
        }
        (Err(_), Ok(opened)) => {
            // Linux verifies each recovered block when it writes the block. ironmap writes no block, and verifies a block when it is read.
            // So ironmap can open a volume with a damaged recovered block, but its check must find the damage.
            let report = opened.fs().check(&mut |_| {}).unwrap();
            match report.is_clean() {
                true => outcomes.only_opened.push(what.to_owned()),
                false => outcomes.only_found_damaged.push(what.to_owned()),
            }
            return;
        }
    };
    let opened = opened.unwrap_or_else(|error| panic!("{error}"));
    let log = opened.xfs().unwrap().log().clone();
    let seen = std::panic::catch_unwind(|| theirs(&mount, seed));
    let Ok((expected, _)) = seen else {
        let report = opened.fs().check(&mut |_| {});
        assert!(!report.is_ok_and(|report| report.is_clean()), "{what}: the kernel finds damage");
        outcomes.contradictory += 1;
        return;
    };
    let mut subject = Subject::open(&ours);
    let actual = subject.view();
    assert_same(&expected, &actual, &format!("{what}, {log:?}"));
    assert_contents(&expected, &mut subject, &actual, what);
    outcomes.alike += 1;
}

#[test]
fn torn_heads() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    let layouts = [
        ("512M", "", "rw", STEPS),
        ("512M", "-l su=32k", "rw", STEPS),
        ("512M", "", "rw,logbsize=256k", STEPS),
        ("32M", "", "rw", STEPS_AROUND),
    ];
    let rng = &mut Rng::new(SEED);
    let mut outcomes = Outcomes::default();
    for _ in 0..crate::states().div_ceil(crate::STATES) {
        for (size, mkfs, mount, steps) in layouts {
            let variant = Variant { name: "torn_heads", size, mkfs, mount, newer: false };
            let image = make(&variant);
            load(&image, &variant, rng.next(), (Work::All, steps), End::ShutDown);
            for _ in 0..DAMAGES {
                compare(&image, &variant, rng.next(), &mut outcomes);
            }
        }
    }
    println!("{outcomes:#?}");
    assert!(outcomes.only_opened.is_empty(), "the kernel refuses them: {outcomes:#?}");
    assert!(outcomes.only_found_damaged.is_empty(), "the kernel refuses them: {outcomes:#?}");
    assert!(outcomes.alike > 0, "{outcomes:?}");
}
