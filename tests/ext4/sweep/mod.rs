//! Stores extreme and invalid values in each field of the superblock. ironmap must open the same volumes for reading as the kernel, and the
//! same volumes for writing. If `e2fsck -fn` finds a fault, ironmap's check must find one too. [`exceptions`] names the intended
//! differences.
//!
//! Fields that probably no program checks are changed together. If all programs accept the changed volume, each of the values counts as
//! accepted. If a program refuses the volume, the fields are divided into halves repeatedly, down to a single field. By default, the test
//! tries two random values of each field, and all values of [`NAMED`]. `IRONMAP_FIELDS=N` tries N values of each field, and
//! `IRONMAP_FIELDS=all` tries all values.

mod exceptions;
mod fields;
mod inodes;
mod programs;

use std::cell::Cell;
use std::fs;

use self::exceptions::{Difference, Side, reason};
use self::fields::{Field, fields};
use self::programs::Bench;
use crate::check::repair::crc;
use crate::common::image::{Image, words};
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::require;

const SEED: u64 = 0x4649_454C_4453;
const SUPERBLOCK: usize = 1024;
/// The default number of values for each field.
const SAMPLE: usize = 2;

/// Three volumes: one with three groups, one with clusters, and one without checksums and extents.
const VOLUMES: [(&str, &str); 3] = [
    ("6M", "-t ext4 -b 1024 -g 2048 -N 256 -J size=1 -O orphan_file,metadata_csum_seed -I 256"),
    ("12M", "-t ext4 -b 1024 -O bigalloc,^has_journal,^metadata_csum -C 4096 -N 64"),
    ("6M", "-t ext2 -b 1024 -g 2048 -N 128"),
];

/// How many values of a field are tried: all, or a random sample.
fn drawn<T>(mut values: Vec<T>, rng: &mut Rng) -> Vec<T> {
    let count = match std::env::var("IRONMAP_FIELDS").as_deref() {
        Ok("all") => values.len(),
        Ok(count) => count.parse().expect("IRONMAP_FIELDS: a number, or all"),
        Err(_) => SAMPLE,
    };
    while values.len() > count {
        values.swap_remove(rng.below(values.len() as u64) as usize);
    }
    values
}

/// A test case: a field, and the value that is stored in it.
type Case = (Field, u64);

/// A volume, and the programs that check it.
struct Sweep {
    number: usize,
    bytes: Vec<u8>,
    /// Whether the kernel can mount the unchanged volume for writing.
    written: bool,
    bench: Bench,
    /// How many times the programs have run.
    asked: Cell<u32>,
}

impl Sweep {
    fn new(number: usize) -> Self {
        let (size, options) = VOLUMES[number];
        let bytes = fs::read(Image::mke2fs(size, &words(options)).path()).unwrap();
        let bench = Bench::new(bytes.len());
        let theirs = bench.linux(&bytes);
        assert!(!theirs.reading && !theirs.check, "{theirs:?}");
        Self { number, bytes, written: !theirs.writing, bench, asked: Cell::new(0) }
    }

    /// Applies several test cases (fields with new values) to one volume. Returns the unintended differences between the programs.
    fn differences(&self, cases: &[Case]) -> Vec<String> {
        let Some(((field, value), others)) = cases.split_first() else { return Vec::new() };
        let mut bytes = self.bytes.clone();
        cases.iter().for_each(|(field, value)| field.set(&mut bytes[SUPERBLOCK..], *value));
        let sum = crc(!0, &bytes[SUPERBLOCK..][..0x3FC]).to_le_bytes();
        bytes[SUPERBLOCK + 0x3FC..][..4].copy_from_slice(&sum);
        self.asked.set(self.asked.get() + 1);
        let (theirs, ours) = (self.bench.linux(&bytes), self.bench.ironmap(&bytes));
        if !others.is_empty() {
            if theirs.is_sound() && ours.is_sound() {
                return Vec::new();
            }
            let (one, other) = cases.split_at(cases.len() / 2);
            return [self.differences(one), self.differences(other)].concat();
        }
        let rows = [
            (Difference::Reading, theirs.reading, ours.reading, true),
            (Difference::Writing, theirs.writing, ours.writing, self.written),
            (Difference::Check, theirs.check, ours.check, true),
        ];
        let differ = rows.into_iter().filter(|row| row.1 != row.2 && row.3);
        let sides = differ.map(|row| (row.0, if row.2 { Side::Ironmap } else { Side::Linux }));
        // If ironmap reads a volume that Linux refuses to read, ironmap must refuse to write it, and its check must find a fault.
        let is_kept = ours.writing && ours.check;
        let meant = |row: &(Difference, Side)| {
            let texts = [theirs.text.as_str(), ours.text.as_str()];
            (is_kept || *row != (Difference::Reading, Side::Linux))
                && reason(*row, (field.name, *value), texts).is_some()
        };
        let wrong = sides.filter(|row| !meant(row));
        let said = [&theirs.text, &ours.text].map(|text| indented(text)).concat();
        let case = format!("volume {}, {} {value}", self.number, field.name);
        let told = |(what, side)| format!("{case}: {what:?}, {side:?} alone{said}");
        wrong.map(told).inspect(|wrong| println!("{wrong}")).collect()
    }

    /// The batches of test cases. The cases of a batch are applied together to one volume. If a program checks a field, each case of this
    /// field is a separate batch. The other fields share batches, with one value of each field per batch.
    fn batches(&self) -> Vec<Vec<Case>> {
        let mut rng = Rng::new(SEED + self.number as u64);
        let mut values = |field: Field| {
            let values = field.hostile(&self.bytes[SUPERBLOCK..]).into_iter();
            let is_named =
                |value: &u64| NAMED.iter().any(|row| row.0 == field.name && row.1.contains(value));
            let (mut values, others): (Vec<_>, Vec<_>) = values.partition(is_named);
            values.extend(drawn(others, &mut rng));
            values.into_iter()
        };
        let (quiet, asked): (Vec<_>, Vec<_>) = fields().partition(|field| field.is_quiet());
        let single = |field| values(field).map(move |value| vec![(field, value)]);
        let single: Vec<_> = asked.into_iter().flat_map(single).collect();
        let mut columns: Vec<_> = quiet.iter().map(|field| (*field, values(*field))).collect();
        let next = || {
            let row = columns.iter_mut().filter_map(|(field, left)| Some((*field, left.next()?)));
            Some(row.collect::<Vec<_>>()).filter(|row| !row.is_empty())
        };
        single.into_iter().chain(std::iter::from_fn(next)).collect()
    }
}

/// The first eight findings of a program, indented.
fn indented(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("Pass ") && !line.is_empty());
    lines.take(8).map(|line| format!("\n    {line}")).collect()
}

/// Values that ironmap once accepted by mistake.
const NAMED: [(&str, &[u64]); 9] = [
    ("s_log_groups_per_flex", &[32, 255]),
    ("s_log_cluster_size", &[3]),
    ("s_min_extra_isize", &[999]),
    ("s_want_extra_isize", &[999]),
    ("s_journal_dev", &[7]),
    ("s_journal_inum", &[0]),
    ("s_prj_quota_inum", &[7]),
    ("s_orphan_file_inum", &[0, 7]),
    ("s_def_hash_version", &[7]),
];

/// Stores values in the fields of a volume, and compares the verdicts of the programs. Returns the differences, and how many values were
/// tried.
fn sweep(number: usize) -> (Vec<String>, usize) {
    let sweep = Sweep::new(number);
    let batches = sweep.batches();
    if number == 0 {
        let has = |(name, value): (&str, u64)| {
            batches.iter().flatten().any(|case| case.0.name == name && case.1 == value)
        };
        let named =
            NAMED.iter().flat_map(|(name, values)| values.iter().map(|value| (*name, *value)));
        named.for_each(|case| assert!(has(case), "{case:?} is tried"));
    }
    let wrong = batches.iter().flat_map(|cases| sweep.differences(cases)).collect();
    let values = batches.iter().map(Vec::len).sum();
    println!(
        "volume {number}: {values} values, the programs were asked {} times",
        sweep.asked.get()
    );
    (wrong, values)
}

#[test]
fn each_field_of_the_superblock() {
    require!(
        [Need::Root],
        [Need::Tool("mke2fs")],
        [Need::Bare("the kernel mounts the image itself")]
    );
    let found: Vec<_> = std::thread::scope(|scope| {
        // A mount spends most of its time waiting. So the volumes are tested at the same time, each by its own thread.
        let threads = [0, 1, 2].map(|number| scope.spawn(move || sweep(number)));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let values: usize = found.iter().map(|(_, values)| values).sum();
    let wrong: Vec<_> = found.into_iter().flat_map(|(wrong, _)| wrong).collect();
    assert!(wrong.is_empty(), "{} of {values} values:\n{}", wrong.len(), wrong.join("\n"));
}
