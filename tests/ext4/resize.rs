//! Power cuts during a resize. Afterwards the volume has its old size or its new size, and after e2fsck no file is missing.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use ironmap::device::{CrashState, Crashes, Device, Entry, Ram, Record};
use ironmap::fs::ext4::{NewSize, ResizeOptions};
use ironmap::fs::{Clock, FileType, Inode, Timestamp};
use ironmap::units::DevOffset;
use ironmap::{FileOptions, QueueOptions, Volume, VolumeOptions};

use crate::common::image::{Image, words};
use crate::crash::fsck::Fsck;

const SEED: u64 = 0x5245_5349_5A45;
const CLOCK: Clock = Clock::Fixed(Timestamp { seconds: 1_700_000_000, nanoseconds: 0 });

/// The mke2fs options, the old size, and the new size in KiB. A group has 1024 or 2048 blocks, so even a small volume has many groups.
const CASES: &[(&str, &str, u64)] = &[
    ("-t ext4 -b 1024 -g 2048 -N 512", "6M", 20 << 10),
    ("-t ext2 -b 1024 -g 2048 -N 512", "6M", 20 << 10),
    ("-t ext4 -b 1024 -g 2048 -N 512 -J size=1", "12M", 7 << 10),
    ("-t ext4 -b 1024 -g 2048 -N 512 -J size=1,location=8M", "12M", 7 << 10),
    ("-t ext4 -b 1024 -g 2048 -N 512 -O ^has_journal", "12M", 6 << 10),
    ("-t ext4 -b 1024 -g 2048 -N 512 -O sparse_super2,^resize_inode,^has_journal", "12M", 6 << 10),
    ("-t ext2 -b 1024 -g 2048 -N 512", "12M", 6 << 10),
    ("-t ext3 -b 1024 -g 2048 -N 512 -J size=1", "12M", 7 << 10),
];

/// A volume with files and directories in every group.
fn filled(options: &str, size: &str) -> Image {
    let source = crate::common::image::scratch();
    for dir in 0..12 {
        let path = source.path().join(format!("directory-{dir}"));
        fs::create_dir_all(path.join("below/deeper")).unwrap();
        for file in 0..8_usize {
            let content: Vec<u8> =
                (0..dir * 1500 + file * 700).map(|at| (at * 7 + dir) as u8).collect();
            fs::write(path.join(format!("file-{file}")), content).unwrap();
        }
        fs::hard_link(path.join("file-1"), path.join("below/again")).unwrap();
    }
    let mut args = words(options);
    args.push("-q");
    let image = Image::populated(size, &args, source.path());
    // mke2fs places directories in different groups, and each file in the group of its directory.
    {
        let volume = VolumeOptions::new().write(true).open(image.location()).unwrap();
        for dir in 0..10 {
            let dir = format!("/late-{dir}");
            volume.create_dir(&dir).unwrap();
            volume.create_dir(format!("{dir}/below")).unwrap();
            volume.write(format!("{dir}/copy"), b"content of a file".repeat(300)).unwrap();
            volume.symlink("target/".repeat(20), format!("{dir}/link")).unwrap();
        }
        volume.close().unwrap();
    }
    let set = |dir| format!("ea_set late-{dir}/copy user.large {}\n", "x".repeat(300));
    image.debugfs(&(0..10).map(set).collect::<String>());
    image.repair();
    image
}

/// The highest inode number that has a name.
fn last_inode(device: Ram) -> u64 {
    fn highest(volume: &Volume, inode: &Inode) -> u64 {
        let mut last = inode.number().0;
        if inode.file_type() == FileType::Directory {
            for entry in inode.read_dir().unwrap().map(Result::unwrap) {
                if ![&b"."[..], b".."].contains(&&*entry.name) {
                    let below = volume.fs().inode(entry.inode).unwrap();
                    last = last.max(highest(volume, &below));
                }
            }
        }
        last
    }
    let volume = Volume::on(Arc::new(device)).unwrap();
    let root = volume.fs().inode(ironmap::fs::ext4::ROOT).unwrap();
    highest(&volume, &root)
}

/// Every path with its content, except files that e2fsck reconnected.
fn tree(device: Ram) -> BTreeMap<String, String> {
    let volume = Volume::on(Arc::new(device)).unwrap();
    let mut found = BTreeMap::new();
    let root = volume.fs().inode(ironmap::fs::ext4::ROOT).unwrap();
    visit(&volume, &root, "", &mut found);
    found
}

fn visit(volume: &Volume, inode: &Inode, path: &str, found: &mut BTreeMap<String, String>) {
    let stat = inode.stat();
    let content = match stat.file_type {
        FileType::Regular => {
            let mut queue = volume.queue(&QueueOptions::default()).unwrap();
            let file = volume.open_inode(inode.number(), FileOptions::default()).unwrap();
            let mut bytes = vec![0; stat.size as usize];
            file.read_exact_at(&mut queue, &mut bytes, 0_u64).unwrap();
            format!("{bytes:?}")
        }
        FileType::Symlink => format!("{:?}", inode.read_link().unwrap()),
        _ => String::new(),
    };
    let xattrs = format!("{:?}", inode.xattrs().unwrap());
    let time = stat.modified.seconds;
    let view = format!("{:o} {} {} {time} {xattrs} {content}", stat.mode, stat.links, stat.uid);
    found.insert(path.to_owned(), view);
    if stat.file_type != FileType::Directory {
        return;
    }
    for entry in inode.read_dir().unwrap() {
        let entry = entry.unwrap();
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        if [".", "..", "lost+found"].contains(&&*name) {
            continue;
        }
        let below = volume.fs().inode(entry.inode).unwrap();
        visit(volume, &below, &format!("{path}/{name}"), found);
    }
}

#[test]
fn a_power_cut_leaves_the_old_size_or_the_new_one_and_every_file() {
    let fsck = Fsck::new();
    for (options, size, to) in CASES {
        let image = filled(options, size);
        let bytes = fs::read(image.path()).unwrap();
        let old = bytes.len() as u64;
        let new = to << 10;
        let base = Ram::from_image(&bytes).resized(old.max(new));
        let before = tree(base.snapshot());
        let record = Arc::new(Record::new(Arc::new(base.snapshot())));
        let device: Arc<dyn Device> = record.clone();
        let how = ResizeOptions::new().size(NewSize::Bytes(new));
        ironmap::tools::resize(&device, &how, CLOCK)
            .unwrap_or_else(|error| panic!("{options}: {error}"));
        let (old, new) = (old >> 10, *to);

        let superblock = DevOffset(1024)..DevOffset(2048);
        let mut crashes = Crashes::new(&base, record.log()).with_atomic(superblock);
        let (mut olds, mut news) = (0, 0);
        for name in chosen(&crashes) {
            let state = crashes.state(name);
            let repaired =
                fsck.repaired(&state).unwrap_or_else(|said| panic!("{options}: {name}: {said}"));
            let volume = Volume::on(Arc::new(repaired.snapshot())).unwrap();
            let blocks = volume.ext4().unwrap().superblock().blocks_count;
            olds += u32::from(blocks == old);
            news += u32::from(blocks == new);
            assert!(blocks == old || blocks == new, "{options}: {name}: {blocks} blocks");
            compare(&before, &tree(repaired), &format!("{options}: {name}"));
        }
        assert!(
            olds > 0 && news > 0,
            "{options}: {olds} states of the old size, {news} of the new one"
        );
        let last = crashes.names(SEED, 0).pop().unwrap();
        let resized = crashes.state(last);
        fsck.clean(&resized).unwrap_or_else(|said| panic!("{options}: {said}"));
        if new < old {
            let (had, has) = (last_inode(base.snapshot()), last_inode(resized));
            assert!(had > has, "{options}: inodes up to {had} have moved below {has}");
        }
    }
}

/// Chooses crash states from all parts of the resize. Most of the chosen states are after the first flush, when the resize writes blocks
/// for the old size and for the new size. `IRONMAP_CRASH_STATES` sets a larger number of states.
fn chosen(crashes: &Crashes) -> Vec<CrashState> {
    let states = std::env::var("IRONMAP_CRASH_STATES").ok();
    let most = states.map_or(40, |states| states.parse().expect("a number of states"));
    let entries = crashes.log().entries();
    let flush = entries.iter().position(|entry| *entry == Entry::Flush).unwrap();
    let (fresh, both): (Vec<_>, Vec<_>) =
        crashes.names(SEED, 2).into_iter().partition(|name| name.cut <= flush);
    let spread = |names: Vec<CrashState>, most: usize| {
        let step = names.len().div_ceil(most).max(1);
        names.into_iter().rev().step_by(step).collect::<Vec<_>>()
    };
    let mut chosen = spread(both, most);
    chosen.extend(spread(fresh, most / 8));
    chosen.reverse();
    chosen
}

fn compare(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>, what: &str) {
    for (path, view) in before {
        match after.get(path) {
            Some(found) => assert!(found == view, "{what}: {path}: {found} instead of {view}"),
            None => panic!("{what}: {path} is gone"),
        }
    }
    assert_eq!(before.len(), after.len(), "{what}: files that were not there");
}
