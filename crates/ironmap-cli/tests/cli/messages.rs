//! Messages say what to type next: each row is a command line that a new user types, and the hint that its one line has.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use rustix::fs::FlockOperation;

use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, succeed, text, tool};

/// Runs command lines, each of which must fail with this code, and with one line that has the hint.
fn hints(bench: &Bench, rows: &[(&str, i32, &str)]) {
    let mut wrong = Vec::new();
    for (line, code, hint) in rows {
        let output = bench.run(line.split(' '));
        let said = text(&output.stderr);
        let one = said.starts_with("ironmap: ") && said.lines().count() == 1;
        if output.status.code() != Some(*code) || !one || !said.contains(hint) {
            wrong.push(format!("{line}: {:?}, {said:?} lacks {hint:?}", output.status.code()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_wrong_line_is_told_what_to_type() {
    let bench = Bench::empty();
    let magic = |name: &str, at: u64, bytes: &[u8]| {
        let file = File::create(bench.path(name)).unwrap();
        file.set_len(4 << 20).unwrap();
        file.write_all_at(bytes, at).unwrap();
    };
    magic("lvm.img", 512, b"LABELONE");
    magic("raid.img", 4096, &[0xFC, 0x4E, 0x2B, 0xA9]);
    bench.succeed(["mkfs", "-q", "image", "16M"]);
    hints(
        &bench,
        &[
            ("--nosuch", 2, "see ironmap --help"),
            ("ls --nosuch image", 2, "'--nosuch' found; see ironmap ls --help"),
            ("--superblock 8193 cp --nosuch image:/ .", 2, "see ironmap cp --help"),
            ("integrity format --nosuch image", 2, "see ironmap integrity format --help"),
            (
                "mkfs new.img",
                3,
                "new.img: No such file or directory: a size makes a new image, as in ironmap mkfs new.img 1G",
            ),
            ("mkfs /dev/nosuch", 3, "/dev/nosuch: No such file or directory (ENOENT)"),
            ("mkfs -t ext5 new.img 16M", 2, "[possible values: ext2, ext3, ext4]"),
            (
                "ls lvm.img:/",
                3,
                "name a logical volume below /dev/mapper (of an image: losetup -Pf first, then vgchange -ay)",
            ),
            (
                "ls raid.img:/",
                3,
                "name the array's device (of an image: losetup -Pf first, then mdadm --assemble --scan)",
            ),
            (
                "ls LABEL=nosuch:/",
                2,
                "no device has LABEL=nosuch: there is no /dev/disk/by-label/nosuch",
            ),
            ("mount UUID=ABCD .", 2, "no device has UUID=ABCD: there is no /dev/disk/by-uuid/abcd"),
            ("mkfs LABEL=typo 10M", 2, "no device has LABEL=typo"),
            (
                "bench --runtime 0.01 --truncated vol:image:/x",
                2,
                "--truncated: ironmap bench reads no volume",
            ),
            ("--superblock 1 clone image other", 2, "--superblock: ironmap clone reads no volume"),
            ("host --noload image", 2, "--noload: ironmap host reads no volume"),
            (
                "integrity check --journal image image",
                2,
                "--journal: ironmap integrity reads no volume",
            ),
            ("touch --truncated image:/new", 3, "only read"),
        ],
    );
    let missing = [bench.path("new.img"), bench.path("other")];
    assert!(missing.iter().all(|path| !path.exists()));
}

/// A lock names its holder, which is this process.
#[test]
fn a_lock_names_who_holds_it() {
    let bench = Bench::empty();
    bench.succeed(["mkfs", "-q", "image", "16M"]);
    let file = File::open(bench.image()).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    let said = text(&bench.run(["ls", "image:/"]).stderr);
    let seen = format!(" (pid {})\n", std::process::id());
    // A file system that numbers its files for /proc/locks otherwise, as overlayfs, hides the holder.
    let hidden = said.ends_with("locked by another program: which cannot be seen from here\n");
    assert!(
        said.contains("locked by another program: ") && (said.ends_with(&seen) || hidden),
        "{said}"
    );
    let locks = fs::read_to_string("/proc/locks").unwrap();
    let listed = locks.lines().any(|line| line.contains(&format!(" {} ", std::process::id())));
    assert!(!hidden || !listed, "{said}{locks}");
}

/// Commands of ext4 alone say that a volume is XFS, and what changes that; nothing is written.
#[test]
fn an_xfs_volume_is_named_where_only_ext4_is_changed() {
    require!([Need::Tool("mkfs.xfs")]);
    let bench = Bench::empty();
    File::create(bench.image()).unwrap().set_len(320 << 20).unwrap();
    succeed(tool("mkfs.xfs").arg("-q").arg(bench.image()));
    hints(
        &bench,
        &[
            (
                "tune -L new image",
                3,
                "image: this is XFS, and only ext2, ext3 and ext4 are changed so: xfs_admin",
            ),
            (
                "resize -P image",
                3,
                "image: this is XFS, and only ext2, ext3 and ext4 are changed so: xfs_growfs",
            ),
            ("resize image 400M", 3, "image: this is XFS"),
            ("undelete image", 1, "image: this is xfs, and that is of ext2, ext3 and ext4 only"),
            ("dump image superblock", 1, "image: this is xfs"),
            ("mount image .", 1, "image: a mount does not write xfs: add -o ro"),
        ],
    );
    assert_eq!(bench.image().metadata().unwrap().len(), 320 << 20);
}

#[test]
fn resize_says_that_the_partition_ends_there() {
    require!([Need::Tool("sgdisk")]);
    let bench = Bench::empty();
    File::create(bench.path("disk")).unwrap().set_len(64 << 20).unwrap();
    succeed(tool("sgdisk").args(["-n", "2:0:+16M"]).arg(bench.path("disk")));
    bench.succeed(["mkfs", "-q", "disk@p2"]);
    hints(
        &bench,
        &[(
            "resize disk@p2 32M",
            2,
            "the partition ends there: sfdisk or growpart makes it larger",
        )],
    );
    let same = text(&bench.succeed(["resize", "disk@p2"]));
    assert!(same.ends_with("as before: the partition ends there\n"), "{same}");
}

/// The types of mke2fs have its features, and e2fsck finds nothing.
#[test]
fn types_are_those_of_mke2fs() {
    let features = |bench: &Bench, name: &str| {
        let shown = text(&succeed(tool("dumpe2fs").arg("-h").arg(bench.path(name))).stdout);
        let line = shown.lines().find_map(|line| line.strip_prefix("Filesystem features:"));
        line.unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let bench = Bench::empty();
    for kind in ["ext2", "ext3", "ext4"] {
        bench.succeed(["mkfs", "-q", "-t", kind, "ours", "64M"]);
        succeed(tool("e2fsck").arg("-fn").arg(bench.path("ours")));
        succeed(tool("mke2fs").args(["-qF", "-t", kind]).arg(bench.path("theirs")).arg("64M"));
        if kind != "ext4" {
            assert_eq!(features(&bench, "ours"), features(&bench, "theirs"), "{kind}");
        }
        assert_eq!(features(&bench, "ours").contains(&"has_journal".to_owned()), kind != "ext2");
        fs::remove_file(bench.path("ours")).unwrap();
    }
}
