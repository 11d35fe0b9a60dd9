//! Random changes of directories of every form, compared with a model.

use super::volume::{Rng, Volume};
use crate::fs::ext4::for_tests::Image;

/// Eight numbers whose names have the same legacy hash. The name of a number consists of 240 times `x` and the number. The numbers were
/// found by a search through all numbers of nine digits.
const COLLIDING: [u32; 8] = [
    22_772_571,
    55_298_533,
    65_788_888,
    107_343_881,
    125_201_876,
    127_235_444,
    167_628_780,
    184_688_867,
];

fn name(rng: &mut Rng, longest: usize) -> Vec<u8> {
    // Most names are either short or long. A long name often does not fit into the gap of a removed name.
    let length = match rng.below(4) {
        0 => 1 + rng.below(12),
        1 => longest - rng.below(12),
        2 => 1 + rng.below(longest),
        _ => 8,
    };
    (0..length).map(|_| b'a' + rng.below(26) as u8).collect()
}

/// Adds, removes and changes names at random. In the first two thirds of the changes, additions are more frequent than removals. In the
/// last third, some directories become empty.
fn churn(volume: &mut Volume, seed: u64, changes: usize, longest: usize) {
    let mut rng = Rng(seed);
    for change in 0..changes {
        let removes = if change > changes * 2 / 3 { 5 } else { 2 };
        let any = volume.names.len();
        let existing = |rng: &mut Rng| volume.names.keys().nth(rng.below(any)).cloned();
        match rng.below(10) {
            roll if roll < removes && any > 0 => {
                let name = existing(&mut rng).unwrap();
                volume.remove(&name);
            }
            9 if any > 0 => {
                let name = existing(&mut rng).unwrap();
                volume.set(&name, rng.below(2));
            }
            _ => {
                let name = name(&mut rng, longest);
                if !volume.names.contains_key(&name) {
                    volume.add(&name, rng.below(2));
                }
            }
        }
        if change % 500 == 0 {
            volume.assert_names();
        }
    }
}

#[test]
fn random_changes_on_every_kind_of_volume() {
    for (seed, options) in [
        "-t ext4 -b 1024",
        "-t ext4 -b 4096",
        "-t ext4 -b 65536",
        "-t ext4 -b 65536 -O ^metadata_csum",
        "-t ext4 -b 1024 -O ^metadata_csum,^64bit",
        "-t ext4 -b 1024 -O ^filetype",
        "-t ext4 -b 1024 -O ^dir_index",
        "-t ext4 -b 1024 -O inline_data -I 512",
        "-t ext4 -b 4096 -O inline_data",
        "-t ext4 -b 1024 -O large_dir",
        "-t ext4 -b 4096 -O bigalloc -C 16384",
        "-t ext3 -b 1024",
        "-t ext2 -b 1024 -I 128",
    ]
    .into_iter()
    .enumerate()
    {
        println!("seed {seed}: {options}");
        let mut volume = Volume::new("64M", options);
        let changes = if options.contains("65536") { 5_000 } else { 1_500 };
        churn(&mut volume, seed as u64, changes, 255);
        let image = volume.finish();
        let hashed = image.script("stat dir\n").contains("Flags: 0x81000");
        assert_eq!(
            hashed,
            !options.contains("^dir_index") && options.contains("ext4"),
            "{options}"
        );
    }
}

/// e2fsck accepts the tree with every hash function, with signed and with unsigned bytes, even if names are not ASCII.
#[test]
fn every_hash_function() {
    for (algorithm, sign) in
        [("legacy", 1), ("half_md4", 1), ("tea", 1), ("legacy", 2), ("half_md4", 2), ("tea", 2)]
    {
        println!("{algorithm}, sign {sign}");
        let image = Image::with_dir("16M", "-t ext4 -b 1024");
        image.script(&format!(
            "set_super_value def_hash_version {algorithm}\nset_super_value flags {sign}\n"
        ));
        let mut volume = Volume::of(image, Default::default());
        for number in 0..600 {
            volume.add(format!("{number}-größer-世界").as_bytes(), number % 2);
        }
        volume.finish();
    }
}

/// The names with one hash can fill several leaves. The tree then marks each leaf that begins with the last hash of the previous leaf.
#[test]
fn names_of_one_hash_fill_several_leaves() {
    for seed in 0..4 {
        let image = Image::with_dir("16M", "-t ext4 -b 1024");
        image.script("set_super_value def_hash_version legacy\n");
        let mut volume = Volume::of(image, Default::default());
        let mut rng = Rng(seed);
        println!("seed {seed}");
        let mut numbers: Vec<_> = COLLIDING.into_iter().chain(0..60).collect();
        for at in (1..numbers.len()).rev() {
            numbers.swap(at, rng.below(at + 1));
        }
        let name = |number: u32| format!("{}{number:09}", "x".repeat(240)).into_bytes();
        for number in &numbers {
            volume.add(&name(*number), 0);
        }
        volume.assert_names();
        for number in numbers.iter().filter(|_| rng.below(3) == 0) {
            volume.remove(&name(*number));
        }
        for number in &numbers {
            if !volume.names.contains_key(&name(*number)) {
                volume.add(&name(*number), 1);
            }
        }
        let image = volume.finish();
        let dump = image.script("htree_dump dir\n");
        assert!(
            dump.contains("0xc045064d"),
            "seed {seed}: the hash continues in another leaf: {dump}"
        );
    }
}

/// A tree grows to its maximum number of levels and then refuses further names. All names that were added remain.
#[test]
fn trees_grow_until_they_are_full() {
    for (options, levels, full) in
        [("-t ext4 -b 1024 -N 64", 1, true), ("-t ext4 -b 1024 -N 64 -O large_dir", 2, false)]
    {
        let mut volume = Volume::new("64M", options);
        let mut rng = Rng(7);
        let mut error = None;
        for number in 0..36_000 {
            let mut name = format!("{number}-").into_bytes();
            name.resize(255, b'a' + rng.below(26) as u8);
            if let Err(found) = volume.try_add(&name, number % 2) {
                error = Some(found.kind());
                break;
            }
        }
        let expected = full.then_some(crate::ErrorKind::NoSpace);
        assert_eq!(error, expected, "{} names", volume.names.len());
        println!("{options}: {} names", volume.names.len());
        let names: Vec<_> = volume.names.keys().step_by(3).cloned().collect();
        for name in names {
            volume.remove(&name);
        }
        let image = volume.finish();
        let dump = image.script("htree_dump dir\n");
        assert!(dump.contains(&format!("Indirect levels: {levels}")), "{}", &dump[..1000]);
    }
}
