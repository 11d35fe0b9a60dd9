//! Stores extreme and invalid values in each field of the file system's internal inodes, and changes the maps of these inodes. The results
//! of ironmap, the kernel and e2fsck are compared as in the test of the superblock fields. `IRONMAP_FIELDS` has the same meaning as in that
//! test.

use super::exceptions::Side;
use super::programs::{Bench, write_changes};
use super::{SEED, drawn, indented};
use crate::common::image::{Image, words};
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::require;

/// Two volumes: one has every internal inode of the file system, the other has only the required ones.
const VOLUMES: [&str; 2] = [
    "-t ext4 -b 1024 -g 2048 -N 256 -J size=1 -O orphan_file -I 256",
    "-t ext4 -b 1024 -g 2048 -N 256 -O ^has_journal,^resize_inode,^orphan_file -I 256",
];
/// Inodes 1 to 13: bad blocks, the root, user quota, group quota, the boot loader, undelete, the resize inode, the journal, exclude,
/// replica, `lost+found`, the orphan file, and an inode that is not in use.
const INODES: std::ops::RangeInclusive<u32> = 1..=13;
const FIELDS: &[(&str, &[&str])] = &[
    ("mode", &["0", "0100600", "040755", "0120777", "010644", "0170000"]),
    ("uid", &["7"]),
    (
        "size",
        &[
            "0",
            "1",
            "1024",
            "513",
            "32767",
            "32769",
            "1049600",
            "8388608",
            "9437184",
            "4398046511104",
        ],
    ),
    ("links_count", &["0", "1", "2", "65535"]),
    ("dtime", &["@3", "@1700000000"]),
    ("blocks", &["0", "2", "4294967295"]),
    (
        "flags",
        &[
            "0",
            "0x10",
            "0x1000",
            "0x80000",
            "0x10000000",
            "0x20000",
            "0x800",
            "0x40000000",
            "0x200000",
        ],
    ),
    ("file_acl", &["1", "3", "99999999"]),
    ("generation", &["77"]),
    ("block[0]", &["0", "1", "99999999"]),
    ("block[5]", &["0", "1", "99999999"]),
    ("checksum", &["7"]),
];
/// Changes to the maps and content of the journal, the resize inode and the orphan file.
const MAPS: &[&str] = &[
    "punch <8> 3 3",
    "punch <8> 0 0",
    "punch <7> 13 13",
    "punch <12> 0 0",
    "punch <12> 3 3",
    "punch <12> 31 31",
];

/// An intended difference: the volume, the change, the only program that refuses the changed volume, and the reason.
type Exception = (&'static str, &'static str, Side, &'static str);

const EXCEPTIONS: &[Exception] = &[
    ("sif <2> links_count 1", "check", Side::Linux, KEPT),
    ("sif <11> links_count 1", "check", Side::Linux, KEPT),
    ("sif <7> links_count 0", "check", Side::Ironmap, ASKS),
    ("sif <7> flags 0x800", "check", Side::Ironmap, "e2fsck does not ask for encryption there"),
    ("sif <7> file_acl 99999999", "check", Side::Ironmap, PASSED),
    ("sif <7> flags 0x200000", "check", Side::Ironmap, "e2fsck does not ask for a value there"),
    ("punch <8> 3 3", "check", Side::Ironmap, "the volume is not written"),
    ("punch <8> 3 3", "writing", Side::Ironmap, "Linux meets the hole when the log comes there"),
];
const KEPT: &str =
    "Linux keeps the 1 of a directory that once had more names than the field can hold";
const ASKS: &str = "e2fsck asks, and ends with 0";
const PASSED: &str = "e2fsck passes over an attribute block outside the volume";

fn is_meant(change: &str, what: &str, side: Side) -> bool {
    EXCEPTIONS
        .iter()
        .any(|exception| (exception.0, exception.1, exception.2) == (change, what, side))
}

/// Applies each change to a volume. Returns the changes for which the results of the programs differ.
fn sweep(mkfs: &str) -> Vec<String> {
    let image = Image::in_memory("6M", &words(mkfs));
    let made = std::fs::read(image.path()).unwrap();
    let bench = Bench::new(made.len());
    let mut rng = Rng::new(SEED);
    let fields = INODES.flat_map(|inode| {
        FIELDS
            .iter()
            .flat_map(|(name, values)| {
                let values = drawn(values.to_vec(), &mut rng).into_iter();
                values.map(move |value| format!("sif <{inode}> {name} {value}"))
            })
            .collect::<Vec<_>>()
    });
    let mut wrong = Vec::new();
    for change in fields.chain(MAPS.iter().map(|map| (*map).to_owned())) {
        write_changes(&image.path(), &image.path(), &made);
        image.debugfs(&format!("{change}\n"));
        let bytes = std::fs::read(image.path()).unwrap();
        let (theirs, ours) = (bench.linux(&bytes), bench.ironmap(&bytes));
        for (what, theirs_refuses, ours_refuses) in
            [("writing", theirs.writing, ours.writing), ("check", theirs.check, ours.check)]
        {
            let side = if ours_refuses { Side::Ironmap } else { Side::Linux };
            if theirs_refuses != ours_refuses && !is_meant(&change, what, side) {
                let said = [&theirs.text, &ours.text].map(|text| indented(text)).concat();
                wrong.push(format!("{mkfs}, {change}: {what}, {side:?} alone{said}"));
            }
        }
    }
    wrong
}

#[test]
fn each_field_of_the_file_systems_own_inodes() {
    require!(
        [Need::Root],
        [Need::Tool("mke2fs")],
        [Need::Bare("the kernel mounts the image itself")]
    );
    let wrong: Vec<_> = std::thread::scope(|scope| {
        // A mount spends most of its time waiting. So the volumes are tested at the same time, each by its own thread.
        let threads = VOLUMES.map(|mkfs| scope.spawn(move || sweep(mkfs)));
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
