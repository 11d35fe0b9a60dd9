//! Makes volumes with many sizes and features. Each is compared with the volume that mke2fs makes with the same options.

use std::collections::BTreeMap;
use std::fs::File;

use ironmap::fs::ext4::{JournalState, MkfsOptions};

use ironmap::fs::Follow;
use ironmap::units::InodeNo;

use super::{feature_list, make, options};
use crate::common::command::run;
use crate::common::image::Image;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Fields that are not compared: they differ for each volume, count writes, or contain a block number.
const CHANGING: [&str; 11] = [
    "MMP block number",
    "Filesystem created",
    "Last write time",
    "Last checked",
    "Checksum",
    "Lifetime writes",
    "Directory Hash Seed",
    "mmp_update_date",
    "mmp_update_time",
    "mmp_node_name",
    "mmp_device_name",
];

/// The fields of the superblock, as dumpe2fs prints them.
fn fields(image: &Image) -> BTreeMap<String, String> {
    let said = run("dumpe2fs", &["-h".as_ref(), image.path().as_os_str()]);
    let said = String::from_utf8(said).unwrap();
    let fields = said.lines().filter_map(|line| line.trim().split_once(':'));
    let fields: BTreeMap<_, _> =
        fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect();
    assert!(fields.len() > 30, "{said}");
    fields
}

/// Makes a volume with mke2fs. It has the same features and options as `made`.
fn by_mke2fs(size: u64, text: &str, made: &MkfsOptions) -> Image {
    let image = Image::none();
    File::create(image.path()).unwrap().set_len(size).unwrap();
    let mut args = vec!["-q".to_owned(), "-F".to_owned(), "-t".to_owned(), "ext4".to_owned()];
    args.extend(["-U".to_owned(), "1f0e3dad-9990-4a3a-8f8e-3a6d0b7c5e21".to_owned()]);
    let words: Vec<_> = text.split_whitespace().collect();
    let others = words.chunks_exact(2).filter(|pair| pair[0] != "-O").flatten();
    args.extend(others.map(|word| (*word).to_owned()));
    args.extend(["-O".to_owned(), feature_list(&made.features)]);
    args.push(image.path().to_str().unwrap().to_owned());
    run("mke2fs", &args);
    image
}

/// Makes a volume with ironmap and checks it. Makes another volume with mke2fs. Compares all fields that dumpe2fs prints for the two
/// volumes, except the fields in `ours`, for which ironmap intentionally chooses other values.
fn compare(size: u64, text: &str, ours: &[&str]) {
    let options = options(text);
    let image = make(size, &options).unwrap_or_else(|error| panic!("{size} {text}: {error}"));
    image.check();
    assert_opens(&image);
    let (expected, found) = (fields(&by_mke2fs(size, text, &options)), fields(&image));
    let names = expected.keys().chain(found.keys());
    for name in
        names.filter(|name| !CHANGING.contains(&name.as_str()) && !ours.contains(&name.as_str()))
    {
        assert_eq!(found.get(name), expected.get(name), "{name} of {size} bytes with {text}");
    }
}

/// Asserts that ironmap reads a valid, empty volume.
fn assert_opens(image: &Image) {
    let volume = image.open().unwrap();
    let fs = volume.ext4().unwrap();
    assert!(matches!(fs.journal().state, JournalState::Clean | JournalState::None));
    assert_eq!(fs.orphans().unwrap(), 0);
    assert_eq!(fs.resolve(b"/lost+found", Follow::All).unwrap().number(), InodeNo(11));
}

#[test]
fn sizes() {
    for size in [MIB, 2 * MIB, 3 * MIB, 8 * MIB, 31 * MIB, 64 * MIB, 511 * MIB] {
        compare(size, "", &[]);
    }
    for size in [512 * MIB, GIB, 8 * GIB, 15 << 40] {
        compare(size, "", &[]);
    }
}

/// If the last group is too small for its metadata, the volume ends before this group. If the group is just large enough, it is kept.
#[test]
fn tails() {
    // With blocks of 1 KiB, a group has 8 MiB. The number of reserved blocks is a share of all blocks. ironmap and mke2fs may count the
    // blocks of an omitted last group differently.
    for size in
        [16_500, 16_900, 17_100, 17_200, 17_300, 17_400, 24_700, 25_000, 8300, 8900, 9000, 9500]
    {
        compare(size * KIB, "", &["Reserved block count"]);
        compare(size * KIB, "-O ^flex_bg,^resize_inode", &["Reserved block count"]);
    }
    for size in [131_076, 132_000, 133_000, 134_000, 135_000, 140_000, 264_000, 267_000, 268_000] {
        compare(size * KIB, "-b 4096 -i 8192", &["Reserved block count"]);
        compare(size * KIB, "-b 2048 -N 20000", &["Reserved block count"]);
    }
}

#[test]
fn sizes_of_blocks_and_inodes() {
    for text in ["-b 1024", "-b 2048", "-b 4096", "-b 8192", "-b 16384"] {
        compare(300 * MIB, text, &[]);
    }
    compare(GIB, "-b 65536", &[]);
    for text in ["-I 128", "-I 512", "-b 1024 -I 1024", "-i 1024", "-i 65536", "-N 100", "-N 50000"]
    {
        compare(64 * MIB, text, &[]);
    }
    // With these numbers of inodes, the inode bitmap of a full-size group would be too small. So the groups are smaller. The number of
    // reserved blocks is computed before the groups are made smaller.
    for text in ["-b 1024 -N 20000", "-b 1024 -N 10000", "-b 2048 -N 30000", "-b 4096 -N 40000"] {
        for size in [16 * MIB, 31 * MIB] {
            compare(size, text, &["Reserved block count"]);
        }
    }
    for text in ["-G 4", "-G 64", "-m 0", "-m 1.5", "-L a-label", "-e remount-ro", "-e panic"] {
        compare(300 * MIB, text, &[]);
    }
}

#[test]
fn features() {
    let on_and_off = [
        "^orphan_file,^metadata_csum_seed",
        "^has_journal",
        "^metadata_csum",
        "uninit_bg",
        "^extent",
        "^64bit",
        "^flex_bg",
        "^resize_inode",
        "^sparse_super",
        "^filetype",
        "^dir_index",
        "^huge_file,^dir_nlink,^extra_isize",
        "^has_journal,^extent,^flex_bg,^metadata_csum,^huge_file,^dir_nlink,^extra_isize",
        "meta_bg",
        "meta_bg,^flex_bg",
        "sparse_super2",
        "ea_inode",
        "casefold",
        "large_dir",
        "encrypt",
        "verity",
        "stable_inodes",
        "fast_commit",
        "mmp",
        "quota",
        "project",
        "quota,project",
    ];
    for names in on_and_off {
        for size in [64 * MIB, 600 * MIB] {
            compare(size, &format!("-O {names}"), &[]);
        }
    }
    // The root directory of a new volume stores its entries in a block, even with inline_data.
    compare(64 * MIB, "-O inline_data", &["Free blocks"]);
}

/// In a volume of ironmap, the bitmaps of a flex group are contiguous, so that they use fewer clusters. So some fields differ from a volume
/// of mke2fs.
#[test]
fn clusters() {
    let ours = ["Overhead clusters", "Free blocks"];
    for text in ["", "-C 8192", "-C 1048576"] {
        compare(2 * GIB, &format!("-b 4096 -O bigalloc {text}"), &ours);
    }
    compare(600 * MIB, "-O bigalloc,quota,project,mmp", &ours);
    compare(600 * MIB, "-O bigalloc,meta_bg", &ours);
    compare(600 * MIB, "-O bigalloc,^flex_bg", &ours);
    // With blocks of 1 KiB there is no resize inode.
    let ours = [&ours[..], &["Filesystem features", "Reserved GDT blocks"]].concat();
    compare(64 * MIB, "-b 1024 -O bigalloc", &ours);
}
