//! `ironmap resize`: the sizes are those of resize2fs, e2fsck finds nothing, and every file is as it was.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

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
    "-t ext4 -b 4096 -O bigalloc",
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

/// The lines of dumpe2fs that say how a volume is laid out; with them the groups' places of copies.
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

/// A tree with files of many shapes: small, large, sparse, linked, with attributes; and many of them.
fn fill(root: &Path) {
    fs::create_dir_all(root.join("many")).unwrap();
    for number in 0..300_u64 {
        let dir = root.join(format!("dirs/{}/{}", number % 7, number % 3));
        fs::create_dir_all(&dir).unwrap();
        let len = (number * 37 % 5000) as usize;
        fs::write(dir.join(format!("file-{number}")), pattern(len, number)).unwrap();
        fs::write(root.join(format!("many/a name that is long, number {number}")), "").unwrap();
    }
    fs::write(root.join("large"), pattern(3 << 20, 7)).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(8 << 20).unwrap();
    for at in 0..40 {
        let piece = pattern(4096, at);
        std::os::unix::fs::FileExt::write_all_at(&sparse, &piece, at * 200_000).unwrap();
    }
    fs::hard_link(root.join("large"), root.join("dirs/again")).unwrap();
    std::os::unix::fs::symlink("../large", root.join("dirs/link")).unwrap();
    std::os::unix::fs::symlink("l".repeat(200), root.join("dirs/long-link")).unwrap();
}

/// Every file by its path: type, links, size, mode, owner, time, content or target, attributes.
fn tree(bench: &Bench, image: &Path) -> BTreeMap<PathBuf, String> {
    let out = bench.path("out");
    let _ = fs::remove_dir_all(&out);
    let (from, to) = (format!("{}:/", image.display()), out.display().to_string());
    bench.succeed(["cp", "-a", &from, &to]);
    let mut found = BTreeMap::new();
    let mut pending = vec![out.clone()];
    while let Some(path) = pending.pop() {
        use std::os::unix::fs::MetadataExt;
        let stat = fs::symlink_metadata(&path).unwrap();
        if stat.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let content = if stat.is_file() {
            format!("{:x}", hash(&fs::read(&path).unwrap()))
        } else if stat.is_symlink() {
            format!("{:?}", fs::read_link(&path).unwrap())
        } else {
            String::new()
        };
        let size = if stat.is_dir() { 0 } else { stat.size() };
        let view = format!(
            "{:o} {} {size} {} {} {}.{} {content} {:?}",
            stat.mode(),
            stat.nlink(),
            stat.uid(),
            stat.gid(),
            stat.mtime(),
            stat.mtime_nsec(),
            xattr(&path, "user.colour")
        );
        found.insert(path.strip_prefix(&out).unwrap().to_owned(), view);
    }
    found
}

fn hash(bytes: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

fn make(bench: &Bench, options: &str, size: &str) -> PathBuf {
    let image = bench.path("image");
    let _ = fs::remove_file(&image);
    let mut mke2fs = tool("mke2fs");
    mke2fs.arg("-qF").args(words(options)).arg("-d").arg(bench.source()).arg(&image).arg(size);
    succeed(&mut mke2fs);
    // mke2fs -d leaves quotas of before. -D: directories are hashed.
    let repaired = tool("e2fsck").arg("-fyD").arg(&image).output().unwrap();
    assert!(matches!(repaired.status.code(), Some(0 | 1)), "{}", text(&repaired.stdout));
    image
}

fn with_source() -> Bench {
    let bench = Bench::empty();
    fs::create_dir(bench.source()).unwrap();
    fill(&bench.source());
    bench
}

/// Sizes, reserved blocks, places of backups and room for descriptors are those that resize2fs gives.
#[test]
fn a_volume_grows_as_by_resize2fs() {
    let bench = with_source();
    for options in LAYOUTS {
        for (from, to) in [("16M", "17M"), ("21M", "60M"), ("24M", "120M")] {
            let what = format!("{options}: {from} to {to}");
            let image = make(&bench, options, from);
            let twin = bench.path("twin");
            fs::copy(&image, &twin).unwrap();
            let before = tree(&bench, &image);
            bench.succeed(["resize", image.to_str().unwrap(), to]);
            fsck(&image, &what);
            succeed(tool("truncate").args(["-s", to]).arg(&twin));
            // -f: resize2fs takes bigalloc with it only.
            succeed(tool("resize2fs").arg("-f").arg(&twin).arg(to));
            assert_eq!(geometry(&image), geometry(&twin), "{what}");
            assert!(tree(&bench, &image) == before, "{what}");
        }
    }
}

fn blocks(image: &Path) -> u64 {
    geometry(image)["Block count"].parse().unwrap()
}

/// The same for smaller sizes: whatever lies beyond the end has moved.
#[test]
fn a_volume_shrinks_as_by_resize2fs() {
    let bench = with_source();
    for options in LAYOUTS {
        for (from, to) in [("60M", "41M"), ("60M", "24M")] {
            let what = format!("{options}: {from} to {to}");
            let image = make(&bench, options, from);
            let twin = bench.path("twin");
            fs::copy(&image, &twin).unwrap();
            let before = tree(&bench, &image);
            bench.succeed(["resize", image.to_str().unwrap(), to]);
            fsck(&image, &what);
            assert!(tree(&bench, &image) == before, "{what}");
            // resize2fs does not shrink volumes with bigalloc.
            if !options.contains("bigalloc") {
                succeed(tool("resize2fs").arg(&twin).arg(to));
                assert_eq!(geometry(&image), geometry(&twin), "{what}");
                assert_eq!(
                    image.metadata().unwrap().len(),
                    twin.metadata().unwrap().len(),
                    "{what}"
                );
            }
        }
    }
}

/// As small as resize2fs makes it, or smaller, and no smaller the second time; then as large as it was.
#[test]
fn the_smallest_size_is_that_of_resize2fs_or_less() {
    let bench = with_source();
    for options in LAYOUTS {
        let image = make(&bench, options, "60M");
        let twin = bench.path("twin");
        fs::copy(&image, &twin).unwrap();
        let before = tree(&bench, &image);
        let path = image.to_str().unwrap();
        let said = bench.json(&["resize", "-P", "--json", path]);
        assert_eq!(blocks(&image), said["blocks_before"].as_u64().unwrap(), "{options}");
        bench.succeed(["resize", "-M", path]);
        fsck(&image, options);
        assert!(tree(&bench, &image) == before, "{options}: the smallest");
        let least = blocks(&image);
        assert!(least <= said["blocks"].as_u64().unwrap(), "{options}");
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
        bench.succeed(["resize", path, "60M"]);
        fsck(&image, options);
        assert!(tree(&bench, &image) == before, "{options}: large again");
    }
}

/// A journal beyond the new end moves; so do inodes, by their thousands, with their names.
#[test]
fn journals_and_inodes_beyond_the_end_move() {
    let bench = with_source();
    for options in [
        "-t ext4 -b 1024 -g 2048 -J size=1,location=30M",
        "-t ext3 -b 1024 -g 2048",
        "-t ext4 -b 1024 -g 1024 -i 4096 -O ^metadata_csum",
    ] {
        let image = make(&bench, options, "40M");
        let mut script = String::new();
        for dir in 0..60 {
            script += &format!("mkdir late-{dir}\nmkdir late-{dir}/below\n");
            script += &format!(
                "write {} late-{dir}/copy\n",
                bench.source().join("dirs/0/0/file-21").display()
            );
            script += &format!("symlink late-{dir}/below/link {}\n", "t/".repeat(60));
        }
        let file = bench.path("script");
        fs::write(&file, script).unwrap();
        succeed(tool("debugfs").arg("-w").arg("-f").arg(&file).arg(&image));
        let repaired = tool("e2fsck").arg("-fy").arg(&image).output().unwrap();
        assert!(matches!(repaired.status.code(), Some(0 | 1)));
        let before = tree(&bench, &image);
        bench.succeed(["resize", "-M", image.to_str().unwrap()]);
        fsck(&image, options);
        assert!(tree(&bench, &image) == before, "{options}");
    }
}

/// The kernel mounts a volume that has grown, and fills it to the last block.
#[test]
fn the_kernel_fills_a_volume_that_has_grown() {
    require!([Need::Root, Need::Tool("resize2fs")]);
    let bench = with_source();
    for options in ["-t ext4 -b 1024", "-t ext4 -b 4096 -O bigalloc", "-t ext2 -b 1024"] {
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

/// A size that cannot be leaves volume and image as they were.
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
        "the group descriptors need 8 blocks and have room for 1: 134217728",
    );
    refused(&["image", "0"], 2, "0");
    refused(&["image", "much"], 2, "much is no size");
    refused(&["image@0", "1G"], 2, "on a device that has 16777216");
    refused(&["image", "2M"], 1, "2048 blocks are too few: ");
}
