//! Metadata directories and parent pointers. A newer xfs_db than the installed one makes one fault in each volume, and repairs the
//! checksums.

use std::fs;
use std::path::Path;

use crate::base::Tools;
use crate::common::command::run;
use crate::common::image::{Image, scratch, words};
use crate::common::realtime::damaged;
use crate::common::skip::Need;
use crate::common::xfsprogs;
use crate::verdict::{Verdict, ironmap, repair};
use crate::{note, require};

const SIZE: &str = "320M";
const OPTIONS: &str = "-m metadir=1 -n parent=1";
/// The number of names in `/dir/many`. The parent pointers of so many names need a leaf.
const NAMES: usize = 40;

/// A fault: the commands of xfs_db that make it, and texts. For each text, ironmap's check must have a finding that contains it.
type Damage = (&'static str, &'static [&'static str]);

const PARENTS: &[Damage] = &[
    (
        "path /dir/file;write -d a.sfattr.list[0].parent_dir.inumber 128",
        &["lacks the name \"file\" in directory", "has the name \"file\" in directory 128"],
    ),
    (
        "path /dir/file;write -d a.sfattr.list[0].parent_dir.gen 5",
        &["lacks the name \"file\"", "of generation 5"],
    ),
    (
        "path /dir/file;write -d a.sfattr.list[0].name \"filf\"",
        &["lacks the name \"file\"", "has the name \"filf\""],
    ),
    ("path /dir/file;write -d a.sfattr.list[0].name \"fi/e\"", &["\"fi/e\" is not a valid name"]),
    // The fault turns the parent pointer into an attribute in the name space `user`.
    ("path /dir/file;write -d a.sfattr.list[0].parent 0", &["lacks the name \"file\""]),
    (
        "path /dir/file;write -d a.sfattr.list[0].root 1",
        &["the attribute's name belongs to several name spaces"],
    ),
    (
        "path /dir/file;write -d a.sfattr.list[0].valuelen 11",
        &["does not contain the number and the generation"],
    ),
    ("path /dir;write -d core.gen 77", &["lacks the name \"file\"", "of generation 77"]),
    // The fault turns another attribute in the name space `user` into a parent pointer.
    (
        "path /tagged;write -d a.sfattr.list[1].parent 1",
        &["has the name \"tag\" in directory 128", "of generation 9"],
    ),
    (
        "path /dir/many;ablock 0;write -d nvlist[0].parent_dir.inumber 128",
        &["hashval", "lacks the name"],
    ),
    ("path /dir/many;ablock 0;write -d nvlist[0].parent_dir.gen 1", &["of generation 1"]),
    ("path /dir/many;ablock 0;write -d entries[0].parent 0", &["lacks the name"]),
    (
        "path /dir/many;ablock 0;write -d entries[0].local 0",
        &["does not contain the number and the generation"],
    ),
    ("path /dir/many;ablock 0;write -d entries[3].hashval 0x70000000", &["hashval"]),
    ("path /dir/many;ablock 0;write -d entries[0].incomplete 1", &["lacks the name"]),
    (
        "path /dir/many;ablock 0;write -d nvlist[0].valuelen 8",
        &["does not contain the number and the generation"],
    ),
];

const TREE: &[Damage] = &[
    ("sb 0;write -d metadirino 131", &["sb_metadirino: inode 131 is not a metadata directory"]),
    ("sb 0;write -d uquotino 131", &["superblock, sb_uquotino: 131, should be 0"]),
    ("sb 1;write -d rbmino 131", &["group 1: copy of the superblock, sb_rbmino"]),
    (
        "sb 0;write -d rgcount 3",
        &["superblock, sb_rgcount: 3 realtime groups do not match 0 extents"],
    ),
    ("sb 1;write -d rgextents 1", &["group 1: copy of the superblock, sb_rgextents"]),
    ("sb 0;write -d rgblklog 7", &["superblock, sb_rgblklog: realtime groups of"]),
    ("path -m /;write -d core.nlinkv2 5", &["5 links, but 3 names"]),
    ("path -m /;write -d core.mode 040755", &["di_mode"]),
    ("path -m /;write -d core.mode 0100000", &["inode 129", "di_format"]),
    ("path -m /;write -d core.uid 5", &["di_uid: 5, should be 0"]),
    ("path -m /;write -d core.gid 5", &["di_gid: 5, should be 0"]),
    ("path -m /;write -d core.metatype 2", &["di_metatype"]),
    ("path -m /;write -d core.immutable 0", &["flags of a metadata file are missing"]),
    ("path -m /;write -d core.nosymlinks 0", &["flags of a metadata file are missing"]),
    ("path -m /;write -d v3.dax 1", &["di_flags2"]),
    ("path -m /;write -d v3.metadata 0", &["inode 129 is not a metadata directory"]),
    ("path -m /rtgroups;write -d v3.metadata 0", &["which is not a metadata inode"]),
    ("path -m /rtgroups;write -d core.nlinkv2 3", &["3 links, but 2 names"]),
    ("path -m /rtgroups;write -d core.metatype 9", &["di_metatype"]),
    ("path -m /rtgroups;write -d a.sfattr.list[0].parent_dir.gen 5", &["of generation 5"]),
    (
        "path -m /;write -d u3.sfdir3.list[0].name \"rtgroupz\"",
        &["lacks the name \"rtgroupz\" in directory 129"],
    ),
    (
        "path -m /;write -d u3.sfdir3.list[0].inumber.i4 128",
        &["\"rtgroups\" names inode 128", "not reachable"],
    ),
    ("path /dir;write -d v3.metadata 1", &["which is a metadata inode"]),
];

/// Faults on a volume without metadata directories and without parent pointers.
const NEITHER: &[Damage] = &[
    ("path /tagged;write -d a.sfattr.list[0].parent 1", &["the feature parent is not set"]),
    ("path /tagged;write -d v3.metadata 1", &["di_flags2"]),
];

/// A volume with directories, and with attribute leaves that contain parent pointers. One attribute only looks like a parent pointer.
/// `None` if the kernel does not mount the volume.
fn made(options: &str) -> Option<Image> {
    let mkfs = xfsprogs::newer("mkfs.xfs");
    let image = Image::mkfs_xfs_by(&mkfs, SIZE, &words(options)).expect("a volume");
    let mount = match image.try_mount("rw") {
        Ok(mount) => mount,
        Err(refusal) => {
            note(&refusal);
            return None;
        }
    };
    let root = mount.dir();
    fs::create_dir(root.join("dir")).unwrap();
    for name in ["dir/file", "dir/many", "tagged"] {
        fs::write(root.join(name), name).unwrap();
    }
    for number in 0..NAMES {
        let name = format!("dir/another-name-{number}");
        fs::hard_link(root.join("dir/many"), root.join(name)).unwrap();
    }
    // The value of this attribute looks like a parent pointer to inode 128 with generation 9.
    let value = [0, 0, 0, 0, 0, 0, 0, 128, 0, 0, 0, 9];
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(root.join("tagged"), "user.tag", &value, flags).unwrap();
    drop(mount);
    assert_both(&image.path(), options, |verdict| verdict.clean);
    Some(image)
}

fn assert_both(image: &Path, what: &str, is_right: impl Fn(&Verdict) -> bool) -> Verdict {
    let (theirs, ours) = (repair(image, Tools::NEWER), ironmap(image));
    assert!(is_right(&theirs), "{what}: xfs_repair: {}", theirs.text);
    assert!(is_right(&ours), "{what}: ironmap: {}", ours.text);
    ours
}

fn each(options: &str, damages: &[Damage]) {
    if let Some(why) = Need::Variable(xfsprogs::VARIABLE).missing() {
        return note(&why);
    }
    let Some(image) = made(options) else { return };
    let dir = scratch();
    let copy = dir.path().join("copy");
    for (commands, parts) in damages {
        run("cp", &["--sparse=always".into(), image.path(), copy.clone()]);
        damaged(&copy, commands);
        let ours = assert_both(&copy, commands, |verdict| !verdict.clean);
        for part in *parts {
            assert!(ours.text.contains(part), "{commands}: {part}: {}", ours.text);
        }
    }
}

/// The check finds each name without a parent pointer, and each parent pointer without a name. A name must have exactly one parent pointer.
#[test]
fn parent_pointers() {
    require!([Need::Root]);
    each(OPTIONS, PARENTS);
}

/// The check verifies the metadata directories. The root, the files and the flags must be right. Other files must not exist.
#[test]
fn metadata_directories() {
    require!([Need::Root]);
    each(OPTIONS, TREE);
}

#[test]
fn volumes_without_these_features() {
    require!([Need::Root]);
    each("-m metadir=0 -n parent=0", NEITHER);
}

/// The check finds a wrong parent of the root directory. xfs_repair does not check this parent if the entries of the root directory are in
/// its inode.
#[test]
fn the_parent_of_the_root() {
    require!([Need::Root]);
    if let Some(why) = Need::Variable(xfsprogs::VARIABLE).missing() {
        return note(&why);
    }
    let Some(image) = made(OPTIONS) else { return };
    damaged(&image.path(), "path -m /;write -d u3.sfdir3.hdr.parent.i4 128");
    let ours = ironmap(&image.path());
    assert!(ours.text.contains(".. names inode 128, but should name inode 129"), "{}", ours.text);
}

/// The check finds a free inode that still has blocks, or whose attribute fork has a format.
#[test]
fn free_inodes() {
    require!([Need::Root]);
    if let Some(why) = Need::Variable(xfsprogs::VARIABLE).missing() {
        return note(&why);
    }
    let Some(image) = made(OPTIONS) else { return };
    let volume = image.open().unwrap();
    let last = volume.fs().resolve(b"tagged", ironmap::fs::Follow::All).unwrap().number().0;
    drop(volume);
    let dir = scratch();
    let copy = dir.path().join("copy");
    for (field, part) in [("core.nblocks 4", "di_nblocks"), ("core.aformat 1", "di_aformat")] {
        run("cp", &["--sparse=always".into(), image.path(), copy.clone()]);
        damaged(&copy, &format!("inode {};write -d {field}", last + 1));
        let ours = assert_both(&copy, field, |verdict| !verdict.clean);
        assert!(ours.text.contains(part), "{field}: {}", ours.text);
    }
}
