//! Volumes of revision 0. mke2fs made them in 1995, and mkfs of small systems still makes them. When the first feature is switched on, the
//! volume gets revision 1, as in the kernel.

use ironmap::VolumeOptions;
use ironmap::fs::ext4::{ROOT, TuneOptions};
use ironmap::fs::{Clock, Credentials, FileSystem, NewFile, SetXattr};
use ironmap::location::LocationOptions;

use crate::check::verdict::{agree, ironmap};
use crate::common::command::output;
use crate::common::image::{Image, words};
use crate::common::skip::Need;
use crate::require;

/// Reads a value from the copy of the superblock in a group.
fn field(image: &Image, group: u64, at: usize, len: usize) -> u64 {
    let first = 1 + group * 8192;
    let bytes = &image.block(first)[at..at + len];
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// The superblock fields `s_rev_level`, `s_first_ino` and `s_inode_size`.
fn revision(image: &Image, group: u64) -> [u64; 3] {
    [field(image, group, 76, 4), field(image, group, 84, 4), field(image, group, 88, 2)]
}

/// A volume of two groups. The second group contains a copy of the superblock.
fn made() -> Image {
    let image = Image::mke2fs("12M", &words("-t ext2 -b 1024 -r 0"));
    // Revision 0 gives `s_first_ino` and `s_inode_size` no meaning, so these fields may have any value.
    image.debugfs("ssv first_ino 0\nssv inode_size 0\n");
    assert_eq!(revision(&image, 0)[0], 0);
    image.check();
    image
}

fn large_file(fs: &dyn FileSystem) {
    let file = fs
        .writable()
        .unwrap()
        .create(ROOT, b"large", NewFile::Regular, 0o644, &Credentials::default())
        .unwrap();
    fs.writable().unwrap().truncate(file, 3 << 30).unwrap();
}

fn attribute(fs: &dyn FileSystem) {
    let file = fs
        .writable()
        .unwrap()
        .create(ROOT, b"named", NewFile::Regular, 0o644, &Credentials::default())
        .unwrap();
    fs.writable().unwrap().setxattr(file, b"user.name", b"value", SetXattr::Any).unwrap();
}

/// The first file that needs a feature switches this feature on and sets the revision to 1.
#[test]
fn the_first_feature_of_a_file_raises_the_revision() {
    for (what, work) in [("large_file", large_file as fn(&dyn FileSystem)), ("ext_attr", attribute)]
    {
        let image = made();
        let options = VolumeOptions::new().write(true);
        let volume = crate::common::beneath::open(&image.location(), &options).unwrap();
        let who = Credentials::default();
        volume
            .fs()
            .writable()
            .unwrap()
            .create(ROOT, b"plain", NewFile::Regular, 0o644, &who)
            .unwrap();
        volume.sync().unwrap();
        work(&**volume.fs());
        volume.close().unwrap();
        drop(volume);
        assert_eq!(revision(&image, 0), [1, 11, 128], "{what}");
        agree(what, &image.path(), true);
    }
}

/// How the test switches a feature on: by an operation on the volume that needs the feature, or by `tune`.
enum By {
    Operation(fn(&dyn FileSystem)),
    Tune,
}

/// The features that an operation or `tune` can switch on, on a volume of revision 0.
const FEATURES: [(&str, By); 14] = [
    ("large_file", By::Operation(large_file)),
    ("ext_attr", By::Operation(attribute)),
    ("large_file", By::Tune),
    ("dir_index", By::Tune),
    ("stable_inodes", By::Tune),
    ("extent", By::Tune),
    ("ea_inode", By::Tune),
    ("large_dir", By::Tune),
    ("encrypt", By::Tune),
    ("casefold", By::Tune),
    ("huge_file", By::Tune),
    ("dir_nlink", By::Tune),
    ("verity", By::Tune),
    ("read-only", By::Tune),
];

/// The three feature words of the superblock.
fn features(image: &Image, group: u64) -> [u64; 3] {
    [92, 96, 100].map(|at| field(image, group, at, 4))
}

/// All copies of the superblock get a new feature and the fields that the feature needs. The test covers volumes of each revision. The test
/// also replaces the superblock by each copy: e2fsck then finds only wrong counts, which are normal for copies, and the repaired volume has
/// the same files and attributes.
#[test]
fn a_feature_is_in_all_copies() {
    for revision_options in ["-r 0", "-O ^large_file,^ext_attr,^dir_index,^resize_inode"] {
        for (feature, by) in &FEATURES {
            let what = format!("{revision_options}: {feature}");
            let image =
                Image::mke2fs("12M", &words(&format!("-t ext2 -b 1024 {revision_options}")));
            match by {
                By::Operation(work) => {
                    let options = VolumeOptions::new().write(true);
                    let volume = crate::common::beneath::open(&image.location(), &options).unwrap();
                    work(&**volume.fs());
                    volume.close().unwrap();
                }
                By::Tune => {
                    let opened =
                        image.location().open(&LocationOptions::new().write(true)).unwrap();
                    let options = TuneOptions::new().features(vec![(*feature).to_owned()]);
                    ironmap::tools::tune(&opened.device, &options, Clock::System).unwrap();
                }
            }
            assert_eq!(features(&image, 0), features(&image, 1), "{what}");
            assert_eq!(revision(&image, 0)[0], 1, "{what}");
            assert_eq!(revision(&image, 0), revision(&image, 1), "{what}");
            agree(&what, &image.path(), true);
            check_by_the_copy(&what, &image);
        }
    }
}

fn check_by_the_copy(what: &str, image: &Image) {
    let content = |image: &Image| {
        image.ask_debugfs("stat large\nstat named\nea_get named user.name\nls -l /\n")
    };
    let path = image.path();
    let by_copy = |how: &str| {
        let args = [how.as_ref(), "-b".as_ref(), "8193".as_ref(), path.as_os_str()];
        String::from_utf8_lossy(&output("e2fsck", &args).stdout).into_owned()
    };
    let said = by_copy("-fn");
    let is_fault = |line: &&str| {
        let usual = ["count wrong", "Fix?", "Pass ", "WARNING", "files (", "e2fsck 1."];
        !line.is_empty() && !usual.iter().any(|text| line.contains(text))
    };
    let faults: Vec<_> = said.lines().filter(is_fault).collect();
    assert!(faults.is_empty(), "{what}: {faults:?}");
    let (before, words) = (content(image), features(image, 0));
    by_copy("-fy");
    assert_eq!(content(image), before, "{what}");
    assert_eq!(features(image, 0), words, "{what}");
    agree(what, &path, true);
}

/// Another program may have set features without setting revision 1. ironmap respects these features, as the kernel does, and a check
/// reports them.
#[test]
fn features_on_revision_zero_are_obeyed() {
    let with = |commands: &str| {
        let image = made();
        image.debugfs(commands);
        // The field is written directly, because debugfs would also change the revision.
        image.poke_block(1, 76, &0_u32.to_le_bytes());
        image
    };
    let image = with("feature ext_attr\nwrite /dev/null f\nea_set f user.name value\n");
    agree("ext_attr", &image.path(), true);
    let said = ironmap(&image.path()).text;
    assert!(said.contains("s_rev_level"), "{said}");
    let fs = image.ext4();
    assert!(fs.superblock().compat.contains(ironmap::fs::ext4::Compat::EXT_ATTR));
    let unknown = with("ssv feature_incompat 0x40000000\n");
    assert!(unknown.open().is_err());
    require!([Need::Root]);
    assert!(unknown.try_mount("ro").is_err());
    let mount = image.mount("ro");
    assert!(mount.dir().join("f").exists());
}
