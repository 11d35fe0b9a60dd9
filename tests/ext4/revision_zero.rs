//! Volumes of revision 0, as mke2fs of 1995 made them and mkfs of small systems still do: the first feature makes the volume one of revision 1, as the
//! kernel does.

use ironmap::fs::ext4::{ROOT, TuneOptions};
use ironmap::fs::{Clock, Credentials, FileSystem, NewFile, SetXattr};
use ironmap::location::LocationOptions;
use ironmap::{Volume, VolumeOptions};

use crate::check::verdict::{agree, ironmap};
use crate::common::image::{Image, words};
use crate::common::skip::Need;
use crate::require;

/// A value of the superblock in a group, as debugfs names it.
fn field(image: &Image, group: u64, at: usize, len: usize) -> u64 {
    let first = 1 + group * 8192;
    let bytes = &image.block(first)[at..at + len];
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// `s_rev_level`, `s_first_ino`, `s_inode_size`.
fn revision(image: &Image, group: u64) -> [u64; 3] {
    [field(image, group, 76, 4), field(image, group, 84, 4), field(image, group, 88, 2)]
}

/// Two groups: the second has a copy of the superblock.
fn made() -> Image {
    let image = Image::mke2fs("12M", &words("-t ext2 -b 1024 -r 0"));
    // Fields without a meaning in revision 0 may hold anything.
    image.debugfs("ssv first_ino 0\nssv inode_size 0\n");
    assert_eq!(revision(&image, 0)[0], 0);
    image.check();
    image
}

fn large_file(fs: &dyn FileSystem) {
    let file = fs.create(ROOT, b"large", NewFile::Regular, 0o644, &Credentials::default()).unwrap();
    fs.truncate(file, 3 << 30).unwrap();
}

fn attribute(fs: &dyn FileSystem) {
    let file = fs.create(ROOT, b"named", NewFile::Regular, 0o644, &Credentials::default()).unwrap();
    fs.setxattr(file, b"user.name", b"value", SetXattr::Any).unwrap();
}

/// A file that needs a feature switches it on. The kernel changes the superblock alone, and e2fsck does not ask for these features in the copies.
#[test]
fn the_first_feature_of_a_file_raises_the_revision() {
    for (what, work) in [("large_file", large_file as fn(&dyn FileSystem)), ("ext_attr", attribute)]
    {
        let image = made();
        let options = VolumeOptions::new().write(true);
        let volume = crate::common::beneath::open(&image.location(), &options).unwrap();
        let who = Credentials::default();
        volume.fs().create(ROOT, b"plain", NewFile::Regular, 0o644, &who).unwrap();
        volume.sync().unwrap();
        work(&**volume.fs());
        volume.close().unwrap();
        drop(volume);
        assert_eq!(revision(&image, 0), [1, 11, 128], "{what}");
        agree(what, &image.path(), true);
    }
}

/// A feature that is asked for by name does too, in all copies.
#[test]
fn a_feature_by_name_raises_the_revision_in_all_copies() {
    for feature in ["large_file", "dir_index", "extent", "dir_nlink", "large_dir", "huge_file"] {
        let image = made();
        let opened = image.location().open(&LocationOptions::new().write(true)).unwrap();
        let options = TuneOptions::new().features(vec![feature.to_owned()]);
        Volume::tune(&opened.device, &options, Clock::System).unwrap();
        drop(opened);
        for group in 0..2 {
            assert_eq!(revision(&image, group), [1, 11, 128], "{feature}, group {group}");
        }
        agree(feature, &image.path(), true);
    }
}

/// Features that another program has set without the revision are obeyed, as by the kernel; a check notes them.
#[test]
fn features_on_revision_zero_are_obeyed() {
    let with = |commands: &str| {
        let image = made();
        image.debugfs(commands);
        // By hand: debugfs raises the revision.
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
