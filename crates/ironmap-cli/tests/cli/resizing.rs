//! `ironmap resize`: the sizes are the same as with resize2fs. e2fsck finds no fault. Every file is unchanged.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, pattern, succeed, text, tool, xattr};

/// Layouts of metadata, as mke2fs makes them.
const LAYOUTS: &[&str] = &[
    "-t ext4 -b 1024",
    "-t ext4 -b 4096",
    "-t ext4 -b 1024 -O ^64bit",
    "-t ext4 -b 1024 -O ^metadata_csum",
    "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg",
    "-t ext4 -b 1024 -O ^flex_bg",
    "-t ext4 -b 1024 -O meta_bg,^resize_inode",
    "-t ext4 -b 1024 -O ^resize_inode",
    "-t ext4 -b 1024 -O sparse_super2,^resize_inode",
    "-t ext4 -b 1024 -O ^sparse_super,^resize_inode",
    "-t ext4 -b 1024 -O quota",
    "-t ext4 -b 1024 -O mmp -E mmp_update_interval=1",
    "-t ext4 -b 4096 -O bigalloc -C 16384",
    "-t ext2 -b 1024",
    "-t ext3 -b 1024",
    "-t ext3 -b 4096",
];

fn words(options: &str) -> impl Iterator<Item = &str> {
    options.split_whitespace()
}

fn fsck(image: &Path, what: &str) {
    let output = tool("e2fsck").arg("-fn").arg(image).output().unwrap();
    let said = text(&output.stdout);
    let silent = output.status.success() && !said.contains("? no") && !said.contains("wrong");
    assert!(silent, "{what}: {said}");
}

/// The lines of dumpe2fs that describe the layout of a volume, including the backups in groups.
fn geometry(image: &Path) -> BTreeMap<String, String> {
    const WANTED: [&str; 10] = [
        "Block count",
        "Inode count",
        "Reserved block count",
        "Blocks per group",
        "Inodes per group",
        "Group descriptor size",
        "Reserved GDT blocks",
        "First meta block group",
        "Backup block groups",
        "Filesystem state",
    ];
    let said = text(&succeed(tool("dumpe2fs").arg("-h").arg(image)).stdout);
    let fields = said.lines().filter_map(|line| line.split_once(':'));
    let fields = fields.filter(|(name, _)| WANTED.contains(name));
    fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

/// Creates a tree with many files: small, large, sparse and linked files, and files with attributes.
fn fill(root: &Path) {
    fs::create_dir_all(root.join("many")).unwrap();
    for number in 0..120_u64 {
        let dir = root.join(format!("dirs/{}/{}", number % 7, number % 3));
        fs::create_dir_all(&dir).unwrap();
        let len = (number * 37 % 5000) as usize;
        fs::write(dir.join(format!("file-{number}")), pattern(len, number)).unwrap();
        fs::write(root.join(format!("many/a name that is long, number {number}")), "").unwrap();
    }
    fs::write(root.join("large"), pattern(3 << 20, 7)).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(8 << 20).unwrap();
    for at in 0..12 {
        let piece = pattern(4096, at);
        std::os::unix::fs::FileExt::write_all_at(&sparse, &piece, at * 600_000).unwrap();
    }
    fs::hard_link(root.join("large"), root.join("dirs/again")).unwrap();
    std::os::unix::fs::symlink("../large", root.join("dirs/link")).unwrap();
    std::os::unix::fs::symlink("l".repeat(200), root.join("dirs/long-link")).unwrap();
}

/// All files by their paths. The text of a file describes its type, links, size, mode, owner, time and attributes. The bytes are its
/// content or the target of the link.
fn tree(bench: &Bench, image: &Path) -> BTreeMap<PathBuf, (String, Vec<u8>)> {
    let out = bench.path("out");
    let _ = fs::remove_dir_all(&out);
    let (from, to) = (format!("{}:/", image.display()), out.display().to_string());
    bench.succeed(["cp", "-a", &from, &to]);
    let mut found = BTreeMap::new();
    let mut pending = vec![out.clone()];
    while let Some(path) = pending.pop() {
        use std::os::unix::{ffi::OsStringExt, fs::MetadataExt};
        let stat = fs::symlink_metadata(&path).unwrap();
        if stat.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let content = if stat.is_file() {
            fs::read(&path).unwrap()
        } else if stat.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_vec()
        } else {
            Vec::new()
        };
        let size = if stat.is_dir() { 0 } else { stat.size() };
        let view = format!(
            "{:o} {} {size} {} {} {}.{} {:?}",
            stat.mode(),
            stat.nlink(),
            stat.uid(),
            stat.gid(),
            stat.mtime(),
            stat.mtime_nsec(),
            xattr(&path, "user.colour")
        );
        found.insert(path.strip_prefix(&out).unwrap().to_owned(), (view, content));
    }
    found
}

fn make(bench: &Bench, options: &str, size: &str) -> PathBuf {
    let image = bench.path("image");
    let _ = fs::remove_file(&image);
    let mut mke2fs = tool("mke2fs");
    mke2fs.arg("-qF").args(words(options)).arg("-d").arg(bench.source()).arg(&image).arg(size);
    succeed(&mut mke2fs);
    // mke2fs -d leaves the quotas wrong. e2fsck repairs them, and makes hash trees for directories (-D).
    let repaired = tool("e2fsck").arg("-fyD").arg(&image).output().unwrap();
    assert!(matches!(repaired.status.code(), Some(0 | 1)), "{}", text(&repaired.stdout));
    image
}

/// A copy of the image without its zeros. std::fs::copy would write them.
fn copy(bench: &Bench, image: &Path) -> PathBuf {
    let twin = bench.path("twin");
    succeed(tool("cp").args(["--sparse=always", "--reflink=auto"]).args([image, &twin]));
    twin
}

fn with_source() -> Bench {
    let bench = Bench::empty();
    fs::create_dir(bench.source()).unwrap();
    fill(&bench.source());
    bench
}

/// Calls `compare` for each layout and size. With multiple mount protection, each program waits for some seconds, so these cases have threads of
/// their own.
fn each<T: Copy + Send + Sync>(sizes: &[T], compare: impl Fn(&Bench, &str, T) + Sync) {
    let (bench, compare) = (with_source(), &compare);
    thread::scope(|scope| {
        let cases = sizes.iter().flat_map(|size| LAYOUTS.iter().map(move |it| (*it, *size)));
        for (options, size) in cases {
            if options.contains("mmp") {
                scope.spawn(move || compare(&with_source(), options, size));
            } else {
                compare(&bench, options, size);
            }
        }
    });
}

/// After a growth, four things are the same as with resize2fs: sizes, reserved blocks, positions of backups, and space for descriptors.
#[test]
fn a_volume_grows_as_by_resize2fs() {
    each(&[("16M", "17M"), ("20M", "120M")], |bench, options, (from, to)| {
        let what = format!("{options}: {from} to {to}");
        let image = make(bench, options, from);
        let twin = copy(bench, &image);
        let before = tree(bench, &image);
        bench.succeed(["resize", image.to_str().unwrap(), to]);
        fsck(&image, &what);
        succeed(tool("truncate").args(["-s", to]).arg(&twin));
        // Without -f, resize2fs refuses volumes with bigalloc.
        succeed(tool("resize2fs").arg("-f").arg(&twin).arg(to));
        assert_eq!(geometry(&image), geometry(&twin), "{what}");
        assert!(tree(bench, &image) == before, "{what}");
    });
}

fn blocks(image: &Path) -> u64 {
    geometry(image)["Block count"].parse().unwrap()
}

/// After a shrink, the layout is the same as with resize2fs, and all data beyond the new end have been moved.
#[test]
fn a_volume_shrinks_as_by_resize2fs() {
    each(&["41M", "24M"], |bench, options, to| {
        let what = format!("{options}: 60M to {to}");
        let image = make(bench, options, "60M");
        let twin = copy(bench, &image);
        let before = tree(bench, &image);
        bench.succeed(["resize", image.to_str().unwrap(), to]);
        fsck(&image, &what);
        assert!(tree(bench, &image) == before, "{what}");
        // resize2fs does not shrink volumes with bigalloc.
        if !options.contains("bigalloc") {
            succeed(tool("resize2fs").arg(&twin).arg(to));
            assert_eq!(geometry(&image), geometry(&twin), "{what}");
            assert_eq!(image.metadata().unwrap().len(), twin.metadata().unwrap().len(), "{what}");
        }
    });
}

/// mke2fs does not write the bitmaps of unused block groups. After a shrink, the last group has a bitmap, and the blocks that were reserved
/// for group descriptors count as free.
#[test]
fn groups_without_bitmaps_have_the_right_counts_after_a_shrink() {
    let bench = Bench::empty();
    for (options, from, to) in [
        ("-b 1024", "256M", "100M"),
        ("-b 1024 -J size=4", "512M", "200M"),
        ("-b 1024 -g 2048 -N 1200", "90M", "30M"),
        ("-b 4096", "1G", "512M"),
        ("-b 4096 -O ^flex_bg", "1G", "512M"),
        ("-b 4096 -J size=4", "20G", "4G"),
    ] {
        let what = format!("{options}: {from} to {to}");
        let image = bench.path("image");
        let _ = fs::remove_file(&image);
        let args = words(options).chain(["-qF", "-t", "ext4"]);
        succeed(tool("mke2fs").args(args).arg(&image).arg(from));
        let path = image.to_str().unwrap();
        bench.succeed(["resize", path, to]);
        fsck(&image, &what);
        bench.succeed(["check", path]);
        bench.succeed(["resize", "-M", path]);
        fsck(&image, &format!("{what}, then -M"));
        bench.succeed(["check", path]);
    }
}

/// The smallest size that `resize -M` reaches is at most the smallest size of resize2fs. A second `resize -M` does not make the volume
/// smaller. Afterwards, the volume grows to its old size.
#[test]
fn the_smallest_size_is_that_of_resize2fs_or_less() {
    each(&["60M"], |bench, options, size| {
        let image = make(bench, options, size);
        let twin = copy(bench, &image);
        let before = tree(bench, &image);
        let path = image.to_str().unwrap();
        let said = bench.json(&["resize", "-P", "--json", path]);
        assert_eq!(blocks(&image), said["blocks_before"].as_u64().unwrap(), "{options}");
        bench.succeed(["resize", "-M", path]);
        fsck(&image, options);
        assert!(tree(bench, &image) == before, "{options}: the smallest");
        let least = blocks(&image);
        assert_eq!(least, said["blocks"].as_u64().unwrap(), "{options}");
        bench.succeed(["resize", "-M", path]);
        assert_eq!(blocks(&image), least, "{options}: again");
        if !options.contains("bigalloc") {
            succeed(tool("resize2fs").arg("-M").arg(&twin));
            assert!(
                least <= blocks(&twin),
                "{options}: {least} blocks, {} by resize2fs",
                blocks(&twin)
            );
        }
        bench.succeed(["resize", path, size]);
        fsck(&image, options);
        assert!(tree(bench, &image) == before, "{options}: large again");
    });
}

/// A journal beyond the new end is moved. Thousands of inodes beyond the new end are moved too, and their directory entries are changed.
#[test]
fn journals_and_inodes_beyond_the_end_move() {
    let bench = with_source();
    for options in [
        "-t ext4 -b 1024 -g 2048 -J size=1,location=30M",
        "-t ext3 -b 1024 -g 2048",
        "-t ext4 -b 1024 -g 1024 -i 4096 -O ^metadata_csum",
    ] {
        let image = make(&bench, options, "40M");
        // The tree is copied with ironmap, because ironmap distributes new directories over the block groups.
        for dir in 0..60 {
            let new = bench.path("new");
            let _ = fs::remove_dir_all(&new);
            fs::create_dir_all(new.join(format!("late-{dir}/below"))).unwrap();
            fs::write(new.join(format!("late-{dir}/copy")), pattern(777, dir)).unwrap();
            let from = format!("{}/.", new.display());
            bench.succeed(["cp", "-a", &from, &format!("{}:/", image.display())]);
        }
        fsck(&image, options);
        let before = tree(&bench, &image);
        let had = (0..60).map(|dir| inode_of(&bench, &image, &format!("late-{dir}/below"))).max();
        bench.succeed(["resize", "-M", image.to_str().unwrap()]);
        fsck(&image, options);
        assert!(tree(&bench, &image) == before, "{options}");
        let had = had.unwrap();
        let last = inode_of(&bench, &image, "late-59/below");
        let count: u64 = geometry(&image)["Inode count"].parse().unwrap();
        assert!(had > count && last <= count, "{options}: {had} became {last} of {count}");
    }
}

fn inode_of(bench: &Bench, image: &Path, path: &str) -> u64 {
    let paths = format!("{}:/{path}", image.display());
    text(&bench.succeed(["stat", "-c", "%i", &paths])).trim().parse().unwrap()
}

/// The kernel mounts a volume that has grown, and fills it to the last block.
#[test]
fn the_kernel_fills_a_volume_that_has_grown() {
    require!([Need::Root, Need::Tool("resize2fs")]);
    let bench = with_source();
    for options in ["-t ext4 -b 1024", "-t ext4 -b 4096 -O bigalloc -C 16384", "-t ext2 -b 1024"] {
        let image = make(&bench, options, "16M");
        bench.succeed(["resize", image.to_str().unwrap(), "60M"]);
        let dir = bench.path("mnt");
        fs::create_dir_all(&dir).unwrap();
        succeed(tool("mount").args(["-o", "loop"]).arg(&image).arg(&dir));
        let free = || {
            let said = succeed(tool("df").args(["--output=avail", "-k"]).arg(&dir)).stdout;
            text(&said).split_whitespace().last().unwrap().parse::<u64>().unwrap()
        };
        let had = free();
        let written = tool("dd")
            .args(["if=/dev/urandom", "bs=64k", "conv=fsync"])
            .arg(format!("of={}", dir.join("rest").display()))
            .output();
        let full = free();
        succeed(tool("umount").arg(&dir));
        assert!(!written.unwrap().status.success(), "{options}: it is full");
        assert!(had > 35 << 10 && full < 64, "{options}: {had} KiB free, then {full}");
        fsck(&image, options);
    }
}

/// The superblock contains the inode number of the orphan file. If the smaller volume would have fewer inodes than this number, the shrink
/// is refused.
#[test]
fn an_orphan_file_beyond_the_end_is_not_renumbered() {
    let bench = Bench::empty();
    let image = bench.path("image");
    let options = "-qF -t ext4 -b 1024 -g 2048 -N 400 -I 256 -O ^orphan_file";
    succeed(tool("mke2fs").args(words(options)).arg(&image).arg("20M"));
    let path = image.to_str().unwrap();
    // When the orphan file is made, all inodes except the last are in use. After that, most inodes are freed.
    let debugfs = |script: &str| {
        let commands = bench.path("commands");
        fs::write(&commands, script).unwrap();
        succeed(tool("debugfs").args(["-w", "-f"]).arg(&commands).arg(&image));
    };
    let count: u64 = geometry(&image)["Inode count"].parse().unwrap();
    let made = 12..count;
    debugfs(&made.clone().map(|at| format!("write /dev/null f{at}\n")).collect::<String>());
    succeed(tool("tune2fs").args(["-O", "orphan_file"]).arg(&image));
    debugfs(&made.map(|at| format!("rm f{at}\n")).collect::<String>());
    fsck(&image, "made");
    let before = fs::read(&image).unwrap();
    let output = bench.run(["resize", path, "14M"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("is the orphan file") && fs::read(&image).unwrap() == before, "{said}");
}

/// A damaged volume is not extended. The growth would give a wrong bitmap a valid checksum. It would also write to the blocks of a damaged
/// resize inode.
#[test]
fn a_damaged_volume_does_not_grow() {
    let bench = Bench::empty();
    let image = bench.path("image");
    let path = image.to_str().unwrap();
    let make = |options: &str| {
        let _ = fs::remove_file(&image);
        succeed(tool("mke2fs").args(words(options)).arg(&image).arg("30M"));
    };
    let refused = |what: &str| {
        let before = fs::read(&image).unwrap();
        let output = bench.run(["resize", path, "60M"]);
        assert_eq!(output.status.code(), Some(4), "{what}: {}", text(&output.stderr));
        assert!(fs::read(&image).unwrap() == before, "{what}");
    };

    make("-qF -t ext4 -b 1024 -g 8192");
    bench.succeed(["cp", "/bin/sh", &format!("{path}:/sh")]);
    let said = succeed(tool("dumpe2fs").arg(&image)).stdout;
    let said = text(&said);
    let group = said.split("Group 3:").nth(1).unwrap();
    let at = group.split("Block bitmap at ").nth(1).unwrap();
    let block: u64 = at.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    let file = fs::File::options().write(true).open(&image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0x55; 300], block * 1024 + 100).unwrap();
    drop(file);
    refused("bitmap");

    make("-qF -t ext2 -b 1024");
    bench.succeed(["cp", "/bin/sh", &format!("{path}:/sh")]);
    let map = text(&succeed(tool("debugfs").args(["-R", "blocks /sh"]).arg(&image)).stdout);
    let block = map.split_whitespace().next().unwrap();
    let set = format!("set_inode_field <7> block[DIND] {block}");
    succeed(tool("debugfs").args(["-w", "-R", &set]).arg(&image));
    refused("resize inode");

    make("-qF -t ext2 -b 1024");
    succeed(tool("debugfs").args(["-w", "-R", "set_super_value state 0"]).arg(&image));
    refused("state");
}

/// The host's file system becomes full while a volume grows. In each run, the space ends at another write. Afterwards, the volume has the
/// old or the new size, and the image is not shorter than the volume.
#[test]
fn a_growth_on_a_full_disk_leaves_a_whole_image() {
    require!([Need::Root, Need::Tool("mke2fs"), Need::Tool("mount")]);
    let bench = Bench::empty();
    let small = bench.path("small");
    let source = bench.path("tree");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), pattern(300_000, 5)).unwrap();
    let mut mke2fs = tool("mke2fs");
    mke2fs.args(words("-qF -t ext4 -b 1024 -d")).arg(&source).arg(&small).arg("8M");
    succeed(&mut mke2fs);

    let dir = bench.path("full");
    fs::create_dir(&dir).unwrap();
    succeed(tool("mount").args(["-t", "tmpfs", "-o", "size=16M", "none"]).arg(&dir));
    let (mut failed, mut grown) = (0, 0);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for free in (16..600).step_by(8) {
            let image = dir.join("image");
            succeed(tool("cp").arg("--sparse=always").arg(&small).arg(&image));
            let stat = rustix::fs::statvfs(&dir).unwrap();
            let ballast = (stat.f_bavail * stat.f_bsize).saturating_sub(free << 10);
            succeed(tool("fallocate").arg("-l").arg(ballast.to_string()).arg(dir.join("ballast")));
            let code = bench.run(["resize", image.to_str().unwrap(), "24M"]).status.code();
            fs::remove_file(dir.join("ballast")).unwrap();
            match code {
                Some(0) => grown += 1,
                Some(1) => failed += 1,
                other => panic!("{free} KiB: {other:?}"),
            }
            assert!(image.metadata().unwrap().len() >= blocks(&image) << 10, "{free} KiB");
            let repaired = tool("e2fsck").arg("-fy").arg(&image).output().unwrap();
            let said = text(&repaired.stdout);
            assert!(matches!(repaired.status.code(), Some(0 | 1)), "{free} KiB: {said}");
            let file = format!("{}:/file", image.display());
            let content = bench.succeed(["cat", &file]);
            assert!(content == pattern(300_000, 5), "{free} KiB");
            fs::remove_file(&image).unwrap();
        }
    }));
    succeed(tool("umount").arg(&dir));
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    assert!(failed > 5 && grown > 5, "{failed} failed, {grown} grew");
}

/// An impossible size leaves volume and image unchanged.
#[test]
fn sizes_that_cannot_be_are_refused() {
    let bench = with_source();
    let image = make(&bench, "-t ext4 -b 1024 -O ^resize_inode", "16M");
    let before = fs::read(&image).unwrap();
    let refused = |args: &[&str], code, expected: &str| {
        let output = bench.run([&["resize"], args].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(expected) && said.lines().count() == 1, "{args:?}: {said}");
        assert!(fs::read(&image).unwrap() == before, "{args:?}");
    };
    refused(
        &["image", "1G"],
        3,
        "the group descriptors need 8 blocks, but only 1 are reserved: the largest possible size is 134217728",
    );
    refused(&["image", "0"], 2, "0");
    refused(&["image", "much"], 2, "much is not a size");
    refused(&["image@0", "1G"], 2, "on a device of 16777216");
    refused(&["image", "2M"], 1, "2048 blocks are too few: ");
    // A part of the image is missing. An extension would hide this.
    let file = fs::File::options().write(true).open(&image).unwrap();
    file.set_len(10 << 20).unwrap();
    drop(file);
    let before = fs::read(&image).unwrap();
    for size in ["16M", "20M"] {
        let output = bench.run(["resize", "image", size]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{size}: {said}");
        assert!(said.contains("truncated") && fs::read(&image).unwrap() == before, "{said}");
    }
    assert_eq!(bench.run(["resize", "missing", "16M"]).status.code(), Some(3));
}
