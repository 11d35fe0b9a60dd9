//! Dirty logs of XFS. ironmap recovers them in memory, and the kernel recovers them on the device. The results must be the same.
//!
//! `IRONMAP_XFS_STATES` is the number of states for each layout; set it for long runs. If `IRONMAP_XFS_KEEP` is set, it names a directory.
//! A state that the kernel refuses is copied to this directory. A failure names the layout and the seed. The seed does not fully determine
//! a state, because the progress of the threads before the shutdown varies.

#[path = "../common/mod.rs"]
mod common;

mod attributes;
mod changes;
mod created;
mod features;
mod forged;
mod neighbours;
mod older;
mod recorded;
mod state;
mod torn;

use std::fs::File;

use common::command::run;
use common::rng::Rng;
use common::skip::{Need, note_part};
use common::xfsprogs;
use state::{End, Mount, Tally, Variant, Work, compare, load, make};

const SEED: u64 = 0x0d14_7106;
/// The default number of states for each layout.
const STATES: u64 = 5;
/// The maximum number of changes (steps) of a volume before it is shut down.
const STEPS: u64 = 700;
/// The maximum number of steps before a shutdown, if the threads copy files.
const STEPS_OF_COPIES: u64 = 60;
/// The maximum number of steps before a shutdown, if the threads exchange the maps of files.
const STEPS_OF_FRAGMENTS: u64 = 6;
/// The number of files that are created. Their inodes need several blocks, even with the largest block size.
const FILES: u64 = 300;
/// After about this number of steps, the smallest log has been filled once.
const STEPS_AROUND: u64 = 6000;

fn states() -> u64 {
    std::env::var("IRONMAP_XFS_STATES").map_or(STATES, |number| number.parse().expect("a number"))
}

/// While threads change a volume, shuts it down. After the shutdown, ironmap and the kernel must see the same tree. This is repeated
/// several times, on the volume that the kernel has recovered. At the end the volume is unmounted.
fn rounds(variant: &Variant, work: (Work, u64), states: u64) -> Tally {
    let rng = &mut Rng::new(SEED ^ common::reads::hash(variant.name.as_bytes()));
    let image = make(variant);
    let mut tally = Tally::default();
    let what = |round: u64, seed: u64| format!("{variant:?}, round {round}, seed {seed:#x}");
    let log = compare(&image, &what(0, SEED), SEED, &mut tally).expect("a new volume");
    assert!(!log.recovered, "{variant:?}: a new volume needs no recovery: {log:?}");
    for round in 1..=states {
        let seed = rng.next();
        load(&image, variant, seed, work, End::ShutDown);
        if compare(&image, &what(round, seed), seed, &mut tally).is_err() {
            return tally;
        }
    }
    assert!(states == 0 || tally.dirty > 0, "{variant:?}: no log was dirty");
    let seed = rng.next();
    load(&image, variant, seed, work, End::Unmount);
    let log = compare(&image, &what(states, seed), seed, &mut tally).expect("an unmounted volume");
    assert!(!log.recovered, "{variant:?}: an unmounted volume needs no recovery: {log:?}");
    println!("{}: {tally:?}", variant.name);
    tally
}

macro_rules! layouts {
    ($($name:ident: $size:literal, $mkfs:literal, $mount:literal;)+) => {
        $(#[test]
        fn $name() {
            require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
            let (name, size, mkfs, mount) = (stringify!($name), $size, $mkfs, $mount);
            let variant = Variant { name, size, mkfs, mount, newer: false };
            rounds(&variant, (Work::All, STEPS), states());
        })+
    };
}

layouts! {
    defaults: "512M", "", "rw";
    blocks_of_1024: "96M", "-b size=1024", "rw";
    reverse_mappings: "96M", "-m rmapbt=1", "rw";
    large_counters: "96M", "-i nrext64=1 -m reflink=0", "rw";
    large_directory_blocks: "96M", "-n size=16384", "rw";
    large_blocks_small_directories: "96M", "-b size=2048 -n size=65536", "rw";
    log_unit_of_32k: "96M", "-l su=32k", "rw";
    log_unit_of_256k: "512M", "-l version=2,su=256k", "rw";
    large_log_buffers: "96M", "", "rw,logbsize=256k";
    large_inodes: "96M", "-i size=2048", "rw";
    one_group: "96M", "-d agcount=1", "rw";
    many_groups: "256M", "-d agcount=16", "rw";
    sectors_of_4096: "96M", "-s size=4096", "rw";
    without_newer_features: "96M", "-m bigtime=0,inobtcount=0,finobt=0,reflink=0 -i sparse=0", "rw";
    synchronous: "96M", "-m rmapbt=1", "rw,wsync";
}

/// A crash between the steps of a copy-on-write operation leaves intents in the log. The recovery completes the operation, which changes
/// the maps of files.
#[test]
fn copies_on_write_are_finished() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    for (name, mkfs) in [("copies", ""), ("copies_with_owners", "-m rmapbt=1")] {
        let variant = Variant { name, size: "96M", mkfs, mount: "rw", newer: false };
        rounds(&variant, (Work::CopyOnWrite, STEPS_OF_COPIES), 4 * states());
    }
}

/// Exchanged maps are recovered. With reverse-mapping B+trees, the kernel logs intents. Without these B+trees, the kernel logs a new owner
/// for the blocks of the maps. If a log later frees such blocks, the kernel refuses the log. So the test makes several volumes.
#[test]
fn maps_are_exchanged() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io"), Need::Tool("xfs_fsr")]);
    let volumes = [
        ("owners", "-m reflink=0"),
        ("more_owners", "-m reflink=0"),
        ("owners_again", "-m reflink=0 -i size=1024"),
        ("owners_by_intents", "-m rmapbt=1"),
    ];
    for (name, mkfs) in volumes {
        let variant = Variant { name, size: "96M", mkfs, mount: "rw", newer: false };
        rounds(&variant, (Work::Defragment, STEPS_OF_FRAGMENTS), states());
    }
}

macro_rules! newer_layouts {
    ($($name:ident: $mkfs:literal;)+) => {
        $(#[test]
        fn $name() {
            require!([Need::Root, Need::Variable(xfsprogs::VARIABLE), Need::Tool("xfs_io")]);
            let (name, size, mkfs, mount) = (stringify!($name), "96M", $mkfs, "rw");
            rounds(&Variant { name, size, mkfs, mount, newer: true }, (Work::All, STEPS), states());
        })+
    };
}

newer_layouts! {
    parent_pointers: "-n parent=1";
    parent_pointers_and_large_inodes: "-n parent=1 -i size=1024 -b size=2048";
    tree_of_metadata: "-m metadir=1,uquota,gquota";
    exchange_of_ranges: "-i exchange=1 -n parent=1";
}

/// New inodes are recovered. XFS creates them in chunks of 64. If a block contains more than 64 inodes, XFS creates a block of inodes at a
/// time.
#[test]
fn new_inodes_of_every_number_in_a_block() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    let sizes = (10..=16).flat_map(|block| (9..=11).map(move |inode| (1 << block, 1 << inode)));
    for (block, inode) in sizes.filter(|(block, inode)| inode * 2 <= *block) {
        let mkfs: &'static str = format!("-b size={block} -i size={inode}").leak();
        let variant = Variant { name: "new_inodes", size: "512M", mkfs, mount: "rw", newer: false };
        let image = make(&variant);
        match Mount::new(&image, "rw") {
            Ok(mount) => {
                for number in 0..FILES {
                    File::create_new(mount.dir().join(number.to_string())).expect("a new file");
                }
                run("xfs_io", &["-x", "-c", "shutdown -f", mount.dir().to_str().unwrap()]);
            }
            Err(refusal) => {
                note_part("xfs_log", mkfs, &refusal);
                continue;
            }
        }
        let log = compare(&image, mkfs, SEED, &mut Tally::default()).expect("a sound volume");
        assert!(log.recovered, "{mkfs}: {log:?}");
    }
}

/// A small log that wraps around is recovered. In the log area, the head may be before or after the tail.
#[test]
fn small_logs_wrap() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    let variant =
        Variant { name: "small_logs_wrap", size: "32M", mkfs: "", mount: "rw", newer: false };
    // The position of the head at the shutdown is random. So several attempts may be needed.
    let both = (0..5).any(|_| {
        let tally = rounds(&variant, (Work::All, STEPS_AROUND), states());
        tally.wrapped > 0 && tally.not_wrapped > 0
    });
    assert!(both, "no log wrapped, or all did");
}
