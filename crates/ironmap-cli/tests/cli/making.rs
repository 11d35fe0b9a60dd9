//! `ironmap mkfs`: the volumes that it makes, the devices that it must not change, and its output.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::support::{Bench, IRONMAP, succeed, text, tool};

const UUID: &str = "6f1c5a0e-4f0b-4b0e-9a53-1d2f6a7b8c9d";

/// The value of a field in the output of dumpe2fs.
fn field(image: &std::path::Path, name: &str) -> String {
    let said = text(&succeed(tool("dumpe2fs").arg("-h").arg(image)).stdout);
    let line = said.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("no {name}: {said}")).trim().to_owned()
}

/// Asserts that e2fsck finds no fault.
fn check(image: &std::path::Path) {
    let said = text(&succeed(tool("e2fsck").arg("-fn").arg(image)).stdout);
    assert!(!said.contains("? no"), "{said}");
}

#[test]
fn an_image_is_made_with_what_was_asked_for() {
    let bench = Bench::empty();
    let said = bench.succeed([
        "mkfs",
        "-L",
        "a label",
        "-U",
        UUID,
        "-O",
        "^has_journal,bigalloc",
        "-O",
        "quota",
        "-b",
        "4K",
        "-C",
        "32k",
        "-N",
        "5000",
        "-m",
        "1",
        "-e",
        "remount-ro",
        "--root-owner",
        "1000:1001",
        "image",
        "100M",
    ]);
    let said = text(&said);
    assert!(said.starts_with("image: 25600 blocks of 4096 bytes") && said.contains(UUID), "{said}");
    let image = bench.image();
    check(&image);
    assert_eq!(fs::metadata(&image).unwrap().len(), 100 << 20);
    assert_eq!(field(&image, "Filesystem volume name"), "a label");
    assert_eq!(field(&image, "Filesystem UUID"), UUID);
    assert_eq!(field(&image, "Cluster size"), "32768");
    assert_eq!(field(&image, "Errors behavior"), "Remount read-only");
    assert_eq!(field(&image, "Reserved block count"), "256");
    let features = field(&image, "Filesystem features");
    assert!(features.contains("quota") && !features.contains("has_journal"), "{features}");
    let root = bench.json(&["stat", "--json", &bench.target("/")]);
    assert_eq!((&root["uid"], &root["gid"]), (&1000.into(), &1001.into()));
}

#[test]
fn uuid_and_time_make_the_same_bytes() {
    let bench = Bench::empty();
    bench.succeed(["mkfs", "-q", "-U", UUID, "--time", "1700000000", "one", "40M"]);
    let mut two = bench.command();
    succeed(
        two.env("SOURCE_DATE_EPOCH", "1700000000").args(["mkfs", "-q", "-U", UUID, "two", "40M"]),
    );
    assert!(fs::read(bench.path("one")).unwrap() == fs::read(bench.path("two")).unwrap());
    let info = bench.json(&["info", "--json", "one"]);
    assert_eq!(info["made"], "2023-11-14T22:13:20.000000000Z");
}

#[test]
fn a_shorter_image_is_extended_and_a_longer_one_keeps_its_rest() {
    let bench = Bench::empty();
    fs::write(bench.image(), vec![7; 9 << 20]).unwrap();
    bench.succeed(["mkfs", "-q", "image", "16M"]);
    check(&bench.image());
    assert_eq!(fs::metadata(bench.image()).unwrap().len(), 16 << 20);
    bench.succeed(["mkfs", "-q", "--force", "image", "8M"]);
    check(&bench.image());
    assert_eq!(field(&bench.image(), "Block count"), "8192");
    assert_eq!(fs::metadata(bench.image()).unwrap().len(), 16 << 20);
}

#[test]
fn a_part_of_an_image_does_not_change_the_rest() {
    let bench = Bench::empty();
    fs::write(bench.image(), vec![7; 20 << 20]).unwrap();
    bench.succeed(["mkfs", "-q", "image@4M", "12M"]);
    let listed = bench.succeed(["ls", "image@4M:/"]);
    assert_eq!(text(&listed), "lost+found\n");
    let bytes = fs::read(bench.image()).unwrap();
    assert!(bytes[..4 << 20].iter().chain(&bytes[16 << 20..]).all(|byte| *byte == 7));
}

/// An impossible volume is refused with one line and the documented exit code, and no file is changed.
#[test]
fn an_impossible_volume_is_refused_and_changes_nothing() {
    let bench = Bench::empty();
    bench.succeed(["mkfs", "-q", "volume", "2M"]);
    let file = File::create(bench.path("swap")).unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(b"SWAPSPACE2", 4086).unwrap();
    drop(file);
    let before = [fs::read(bench.path("volume")).unwrap(), fs::read(bench.path("swap")).unwrap()];
    let cases: [(&[&str], i32, &str); 16] = [
        (&["volume"], 3, "contains an ext2, ext3 or ext4 file system"),
        (&["volume", "30M"], 3, "contains an ext2, ext3 or ext4 file system"),
        (&["swap"], 3, "contains a Linux swap area"),
        (&["missing"], 3, "missing: No such file or directory"),
        (&["new", "10K"], 3, "too small"),
        (&["new", "1M", "-b", "3000"], 2, "the block size is 3000"),
        (&["new", "1M", "-O", "frobnicate"], 2, "frobnicate is not a feature"),
        (&["new", "1M", "-O", "compression"], 2, "mkfs does not support the feature compression"),
        (&["new", "1M", "-O", "meta_bg,resize_inode"], 2, "contradicts"),
        (&["new", "1M", "-L", "seventeen letters"], 2, "at most 16"),
        (&["new", "1M", "-U", "1234"], 2, "1234 is not a UUID"),
        (&["new", "1M", "-e", "ignore"], 2, "continue, remount-ro or panic"),
        (&["new", "1M", "-m", "60"], 2, "60 percent of the blocks cannot be reserved"),
        (&["new", "1M", "--time=-1"], 2, "the time -1, in seconds since 1970"),
        (&["new", "1M", "--time=15032385536"], 2, "the time 15032385536, in seconds since 1970"),
        (&["swap", "--force", "-O", "^extent,bigalloc"], 2, "contradicts"),
    ];
    for (args, code, says) in cases {
        let output = bench.run(["mkfs"].iter().chain(args));
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert!(error.contains(says) && error.lines().count() == 1, "{args:?}: {error}");
        assert_eq!(text(&output.stdout), "", "{args:?}");
        assert!(!bench.path("new").exists(), "{args:?} left an image");
    }
    let after = [fs::read(bench.path("volume")).unwrap(), fs::read(bench.path("swap")).unwrap()];
    assert!(before == after);
    bench.succeed(["mkfs", "-q", "--force", "swap"]);
    check(&bench.path("swap"));
}

/// Options of mke2fs are accepted. 0 means the default number of inodes. A feature can have an alternative name. A feature also enables the
/// features that it needs.
#[test]
fn options_of_mke2fs_are_accepted() {
    let bench = Bench::empty();
    bench.succeed(["mkfs", "-q", "image", "64M"]);
    let usual = field(&bench.image(), "Inode count");
    bench.succeed(["mkfs", "-qF", "-N", "0", "-O", "^extents", "image"]);
    assert_eq!(field(&bench.image(), "Inode count"), usual);
    let features = field(&bench.image(), "Filesystem features");
    assert!(!features.contains("extent") && !features.contains("64bit"), "{features}");
    check(&bench.image());
    bench.succeed(["check", "image"]);
}

/// An error of the device names the device only once.
#[test]
fn errors_of_the_device_name_it_once() {
    let bench = Bench::empty();
    File::create(bench.image()).unwrap().set_len(64 << 20).unwrap();
    // No file can be written past 100 blocks of 512 bytes. The shell and the program ignore the signal SIGXFSZ.
    let script = "trap '' XFSZ; ulimit -f 100; exec \"$0\" mkfs image";
    let mut shell = tool("sh");
    shell.args(["-c", script, IRONMAP]).current_dir(bench.dir.path());
    let output = shell.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.starts_with("ironmap: image: write at ") && said.ends_with("(EFBIG)\n"), "{said}");
}

/// If a tree does not fit, the error is one line with a sufficient size, and the volume is sound.
#[test]
fn a_tree_that_does_not_fit_is_one_line() {
    let bench = Bench::empty();
    let fill = |name: &str, files: u64, len: usize| {
        fs::create_dir(bench.path(name)).unwrap();
        for number in 0..files {
            let content = crate::support::pattern(len, number);
            fs::write(bench.path(&format!("{name}/{number:030}")), content).unwrap();
        }
    };
    fill("large", 3, 9 << 20);
    fill("blocks", 170, 60_000);
    fill("inodes", 3000, 0);
    // If the user requests a number of inodes, the volume has this number. A larger volume does not have more.
    let output = bench.run(["mkfs", "-q", "-N", "100", "-d", "inodes", "image", "64M"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("too few inodes: inodes needs 3001 inodes and about "), "{said}");
    let enough = said.split("--inodes ").last().unwrap().split(' ').next().unwrap();
    fs::remove_file(bench.image()).unwrap();
    bench.succeed(["mkfs", "-q", "-N", enough, "-d", "inodes", "image", "64M"]);
    fs::remove_file(bench.image()).unwrap();
    let output = bench.run(["mkfs", "--noload", "-d", "large", "image", "64M"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(!bench.image().exists());
    for tree in ["large", "blocks", "inodes"] {
        let output = bench.run(["mkfs", "-q", "-d", tree, "image", "8M"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{tree}: {said}");
        assert!(said.starts_with("ironmap: image:/") && said.lines().count() == 1, "{said}");
        let why = format!("(ENOSPC): the volume is too small: {tree} needs ");
        assert!(said.contains(&why) && said.ends_with(" should be enough\n"), "{said}");
        check(&bench.image());
        let enough = said.split("a size of ").last().unwrap().split(' ').next().unwrap();
        fs::remove_file(bench.image()).unwrap();
        bench.succeed(["mkfs", "-q", "-d", tree, "image", enough]);
        check(&bench.image());
        fs::remove_file(bench.image()).unwrap();
    }
}

/// The bitmaps have too few bits for all inodes. In this case, the groups become smaller, which gives more groups and bitmaps.
#[test]
fn more_names_than_a_group_has_inodes() {
    let bench = Bench::empty();
    let tree = bench.path("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..9000 {
        std::os::unix::fs::symlink("target", tree.join(format!("{number:06}"))).unwrap();
    }
    for options in ["--shrink -b 1K", "--shrink -b 1K -O bigalloc -C 4K", "-b 1K -N 20000"] {
        let mut args = vec!["mkfs", "-q", "-d", "tree"];
        args.extend(options.split(' '));
        args.push("image");
        if !options.contains("shrink") {
            args.push("32M");
        }
        bench.succeed(&args);
        check(&bench.image());
        let names = text(&bench.succeed(["ls", "-1", "image:/"]));
        assert_eq!(names.lines().count(), 9001, "{options}");
        let len = bench.image().metadata().unwrap().len();
        assert!(len < 33 << 20, "{options}: {len}");
        fs::remove_file(bench.image()).unwrap();
    }
    // By default, a volume of the given size has too few inodes. The message suggests a larger number of inodes.
    let output = bench.run(["mkfs", "-q", "-b", "1K", "-d", "tree", "image", "24M"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let advice = said.split("; --inodes ").last().unwrap();
    let mut words = advice.split([' ', ',']);
    let (inodes, size) = (words.next().unwrap(), words.nth(1).unwrap());
    fs::remove_file(bench.image()).unwrap();
    bench.succeed(["mkfs", "-q", "-b", "1K", "-N", inodes, "-d", "tree", "image", size]);
    check(&bench.image());
}

/// A volume that is refused changes no byte of the device, at any size from 0 to the smallest possible volume.
#[test]
fn a_device_that_is_too_small_keeps_every_byte() {
    use std::io::IoSlice;

    use ironmap::device::{Device, Ram};
    use ironmap::fs::ext4::{Features, MkfsOptions};
    use ironmap::units::DevOffset;

    const MOST: u64 = 3 << 20;
    let mut old = ironmap::Buffer::aligned(MOST as usize).unwrap();
    old.copy_from_slice(&crate::support::pattern(MOST as usize, 7));
    let mut read = vec![0; MOST as usize];
    for features in
        ["", "^has_journal", "quota,mmp", "bigalloc", "none,^has_journal", "^resize_inode,meta_bg"]
    {
        for block in [1024, 4096, 65536] {
            let mut options = MkfsOptions::new().block_size(block).force(true);
            if !features.is_empty() {
                options.features = Features::MODERN;
                options.features.edit(features).unwrap();
            }
            let mut made = 0;
            for size in (0..MOST).step_by(512) {
                let ram = Ram::new(size);
                if size > 0 {
                    ram.write_all_at(&[IoSlice::new(&old[..size as usize])], DevOffset(0), false)
                        .unwrap();
                }
                if ironmap::tools::make(&ram, &options).is_ok() {
                    made += 1;
                    if made > 64 {
                        break;
                    }
                    continue;
                }
                let read = &mut read[..size as usize];
                ram.read_exact_at(read, DevOffset(0)).unwrap();
                assert!(*read == old[..size as usize], "{features} {block} {size}");
            }
        }
    }
}
