//! The space of realtime files: bitmaps, summaries, and the B+trees of groups. The kernel need not support realtime files: xfs_db assigns
//! realtime blocks to two files. xfs_repair and ironmap find no fault in the result. Then the test makes one fault in each volume.

use std::path::Path;

use ironmap::ErrorKind;

use crate::base::Tools;
use crate::common::command::{output, run};
use crate::common::realtime::{NO_GROUPS, OWN_ZONES, TREES, Way, World, ZONES, damaged};
use crate::common::skip::Need;
use crate::common::xfsprogs;
use crate::require;
use crate::verdict::ironmap;

/// A fault: the commands of xfs_db that make it, and a text that a finding of ironmap's check must contain.
type Damage = (&'static str, &'static str);

const OF_GROUPS: &[Damage] = &[
    ("path -m /rtgroups/1.bitmap;write -d core.projid_lo 2", "di_projid: 2, should be 1"),
    ("path -m /rtgroups/1.bitmap;write -d core.metatype 6", "di_metatype: 6, should be 5"),
    ("path -m /rtgroups/1.bitmap;write -d core.nlinkv2 2", "2 links, but 1 names"),
    ("path -m /rtgroups/1.bitmap;write -d core.mode 0100600", "di_mode"),
    ("path -m /rtgroups;write -d u3.sfdir3.list[4].name \"1.bitmaq\"", "lacks the file 1.bitmap"),
    ("sb 0;write -d rgcount 1", "sb_rgcount: 1 realtime groups do not match 16384 extents"),
    ("sb 1;write -d rgcount 1", "sb_rgcount: 1, should be 2"),
    ("sb 0;write -d rgextents 8193", "sb_rgblklog"),
    ("sb 0;write -d frextents 16380", "sb_frextents: 16380, should be 16379"),
    (
        "path -m /rtgroups/0.bitmap;dblock 0;write -d rtwords[0] 0xfffff2fe",
        "realtime blocks: number",
    ),
    (
        "path -m /rtgroups/0.bitmap;dblock 0;write -d rtwords[0] 0xffffe0fe",
        "realtime blocks: number",
    ),
    ("path -m /rtgroups/1.bitmap;dblock 0;write -d magicnum 5", "rt_magic"),
    ("path -m /rtgroups/1.bitmap;dblock 0;write -d owner 5", "owner"),
    (
        "path -m /rtgroups/0.summary;dblock 0;write -d suminfo[12] 2",
        "1 counts of free extents differ",
    ),
    ("path -m /rtgroups/0.rmap;write -d u3.rtrmapbt.recs[2].owner 999", "of owner 999"),
    (
        "path -m /rtgroups/0.rmap;write -d u3.rtrmapbt.recs[2].blockcount 3",
        "lacks 4 blocks from block 8 on",
    ),
    ("path -m /rtgroups/0.rmap;write -d u3.rtrmapbt.recs[2].startblock 99", "is out of order"),
    ("path -m /rtgroups/0.rmap;write -d u3.rtrmapbt.numrecs 2", "lacks 2 blocks from block 10 on"),
    (
        "path -m /rtgroups/0.rmap;write -d u3.rtrmapbt.numrecs 200",
        "the root of the tree has 200 records",
    ),
    (
        "path -m /rtgroups/0.rmap;write -d u3.rtrmapbt.level 30",
        "the root of the tree has the invalid level 30",
    ),
    ("path -m /rtgroups/0.rmap;write -d core.nblocks 2", "di_nblocks: 2, should be 0"),
    ("path -m /rtgroups/0.rmap;write -d core.metatype 8", "di_metatype: 8, should be 7"),
    ("path -m /rtgroups/0.refcount;write -d u3.rtrefcbt.recs[1].refcount 3", "with count 3"),
    (
        "path -m /rtgroups/0.refcount;write -d u3.rtrefcbt.numrecs 0",
        "lacks blocks 10 to 11 with count 2",
    ),
    ("path /one;write -d u3.bmx[0].startblock 9", "realtime blocks: number"),
    ("path /one;write -d u3.bmx[0].startblock 8190", "outside the volume"),
    ("path /one;write -d v3.reflink 0", "the inode shares blocks, but the flag reflink is not set"),
];
const MORE_OF_GROUPS: &[Damage] = &[
    ("path -m /rtgroups/0.rmap;write -d core.format 2", "di_format"),
    ("path -m /rtgroups/1.refcount;write -d core.format 2", "di_format"),
    ("path -m /rtgroups/0.rmap;write -d core.realtime 1", "di_flags"),
    ("path -m /rtgroups/0.bitmap;write -d core.size 8192", "di_size: 8192, should be 4096"),
    ("path -m /rtgroups/0.bitmap;write -d core.size 0", "di_size: 0, should be 4096"),
    ("path -m /rtgroups/0.summary;write -d core.size 8192", "di_size: 8192, should be 4096"),
    (
        "path -m /rtgroups/0.bitmap;dblock 0;write -d rtwords[300] 0xffffffff",
        "bits after the last extent",
    ),
    ("path -m /rtgroups/0.summary;dblock 0;write -d suminfo[100] 5", "1 counts of free extents"),
    ("sb 0;write -d rextsize 0", "sb_rextsize"),
    ("sb 0;write -d rextents 5", "sb_rextents"),
];
const OF_NO_GROUPS: &[Damage] = &[
    ("inode 129;write -d core.size 8192", "di_size: 8192, should be 4096"),
    ("inode 130;write -d core.size 0", "di_size: 0, should be 4096"),
    ("inode 129;write -d core.nlinkv2 2", "di_nlink: 2, should be 1"),
    ("inode 129;dblock 0;type data;write fill 0xff 2048 1", "bits after the last extent"),
    ("inode 130;dblock 0;type data;write fill 1 400 1", "1 counts of free extents"),
    ("inode 129;dblock 0;type data;write fill 0xf2 1 1", "realtime blocks: number"),
    ("inode 129;dblock 0;type data;write fill 0x7f 2047 1", "realtime blocks: number"),
    ("inode 130;dblock 0;type data;write fill 0 12 1", "1 counts of free extents differ"),
    ("sb 0;write -d frextents 1", "sb_frextents: 1, should be 16380"),
    ("path /one;write -d u3.bmx[0].startblock 9", "by inode 131 and by inode 132"),
    ("path /one;write -d u3.bmx[0].startblock 16383", "outside the volume"),
];
const OF_ZONES: &[Damage] = &[
    ("path -m /rtgroups/0.rmap;write -d core.format 2", "di_format"),
    ("path -m /rtgroups/0.rmap;write -d u3.rtrmapbt.recs[1].owner 999", "of owner 999"),
    ("path /one;write -d u3.bmx[0].startblock 9", "of owner 130 at 0x0"),
];

/// The verdict of xfs_repair: whether the volume has no fault, and the output.
fn passes(image: &Path, world: &World) -> (bool, String) {
    let args = ["-n", "-r", world.device.to_str().unwrap(), image.to_str().unwrap()];
    let output = output(&Tools::NEWER.program("xfs_repair"), &args);
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn each(way: &Way, damages: &[Damage]) -> World {
    let world = World::new(way);
    let (clean, text) = passes(&world.image.path(), &world);
    assert!(clean, "{}: xfs_repair: {text}", way.mkfs);
    let ours = ironmap(&world.image.path());
    assert!(ours.clean, "{}: {}", way.mkfs, ours.text);
    let copy = world.dir.path().join("copy");
    for (commands, part) in damages {
        run("cp", &["--sparse=always".into(), world.image.path(), copy.clone()]);
        damaged(&copy, commands);
        let (clean, text) = passes(&copy, &world);
        assert!(!clean, "{commands}: xfs_repair: {text}");
        let ours = ironmap(&copy);
        assert!(!ours.clean, "{commands}: {}", ours.text);
        assert!(ours.text.contains(part), "{commands}: {part}: {}", ours.text);
    }
    world
}

#[test]
fn groups_with_trees() {
    require!([Need::Variable(xfsprogs::VARIABLE)]);
    each(&TREES, OF_GROUPS);
    each(&TREES, MORE_OF_GROUPS);
}

/// If a realtime device is shorter than one group, its only group still has the bitmap and the summary of a full group. ironmap refuses a
/// volume whose superblock fields about groups contradict each other.
#[test]
fn a_short_group() {
    require!([Need::Variable(xfsprogs::VARIABLE)]);
    let world = World::new(&Way {
        mkfs: "-m metadir=1,reflink=1,rmapbt=1",
        files: &[],
        space: &[],
        ..TREES
    });
    let (clean, text) = passes(&world.image.path(), &world);
    assert!(clean, "xfs_repair: {text}");
    let ours = ironmap(&world.image.path());
    assert!(ours.clean, "{}", ours.text);
    let world = World::new(&OWN_ZONES);
    damaged(&world.image.path(), "sb 0;write -d rgextents 1024");
    let ours = ironmap(&world.image.path());
    assert!(ours.text.contains("sb_rgcount"), "{}", ours.text);
    let error = world.image.open().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    damaged(&world.image.path(), "sb 0;write -d rgextents 2048;write -d rtstart 0");
    let ours = ironmap(&world.image.path());
    assert!(ours.text.contains("sb_rtstart"), "{}", ours.text);
}

#[test]
fn a_device_without_groups() {
    require!([Need::Variable(xfsprogs::VARIABLE)]);
    each(&NO_GROUPS, OF_NO_GROUPS);
}

/// Linux counts the used blocks of a zone in the inode of the zone's B+tree. The check verifies this count, and xfs_repair ignores it.
/// xfs_repair reports two superblock fields of a valid volume as wrong, but its exit code means a valid volume.
#[test]
fn zones() {
    require!([Need::Variable(xfsprogs::VARIABLE)]);
    let world = each(&ZONES, OF_ZONES);
    let path = world.image.path();
    damaged(&path, "sb 0;write -d frextents 7;write -d rtreserved 99999999999");
    damaged(&path, "path -m /rtgroups/0.rmap;write -d v3.cowextsize 5");
    let ours = ironmap(&path);
    let parts = ["di_used_blocks: 5, should be 4", "sb_frextents: 7, should be 0", "sb_rtreserved"];
    for part in parts {
        assert!(ours.text.contains(part), "{part}: {}", ours.text);
    }
}
