//! Error messages suggest the next command. Each row contains a command line that a new user may type, and the expected hint. The error
//! message has one line.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::common::loop_device::LoopDevice;
use crate::common::skip::{Need, note_part};
use crate::require;
use crate::support::{Bench, succeed, text, tool};

/// Runs command lines. Each must fail with its exit code and one line that contains the hint.
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

/// Command lines, with the exit code and the hint. The directory contains an image, and the beginnings of an LVM volume and of an array.
const WRONG_LINES: [(&str, i32, &str); 26] = [
    ("--nosuch", 2, "see ironmap --help"),
    ("ls --nosuch image", 2, "'--nosuch' found; see ironmap ls --help"),
    ("--superblock 8193 cp --nosuch image:/ .", 2, "see ironmap cp --help"),
    ("integrity format --nosuch image", 2, "see ironmap integrity format --help"),
    (
        "mkfs new.img",
        3,
        "new.img: No such file or directory: add a size to make a new image, as in ironmap mkfs new.img 1G",
    ),
    ("mkfs /dev/nosuch", 3, "/dev/nosuch: No such file or directory (ENOENT)"),
    ("mkfs -t ext5 new.img 16M", 2, "[possible values: ext2, ext3, ext4]"),
    ("ls lvm.img:/", 3, "name a logical volume of the disk, as in @VG/LV"),
    ("ls image@vg/root:/", 3, "there is no logical volume vg/root; it has no LVM physical volume"),
    ("ls raid.img:/", 3, "a Linux RAID array: name all members, as in md:DISK,DISK"),
    (
        "ls LABEL=nosuch:/",
        2,
        "no device has LABEL=nosuch: the udev link /dev/disk/by-label/nosuch does not exist",
    ),
    (
        "mount UUID=ABCD .",
        2,
        "no device has UUID=ABCD: the udev link /dev/disk/by-uuid/abcd does not exist",
    ),
    ("mkfs LABEL=typo 10M", 2, "no device has LABEL=typo"),
    (
        "bench --runtime 0.01 --truncated vol:image:/x",
        2,
        "--truncated: ironmap bench does not have this option",
    ),
    (
        "--superblock 1 clone image other",
        2,
        "--superblock: ironmap clone does not have this option",
    ),
    ("host --noload image", 2, "--noload: ironmap host does not have this option"),
    (
        "integrity check --journal image image",
        2,
        "--journal: ironmap integrity does not have this option",
    ),
    ("touch --truncated image:/new", 3, "but not written"),
    ("cp image:/a", 2, ": write ironmap cp <VOLUME:/PATH|PATH>... <DEST>; see ironmap cp --help"),
    ("mkdir", 2, "missing <VOLUME:/PATH>...: write ironmap mkdir"),
    ("dump image", 2, "a command is missing: one of inode, block, group"),
    ("mv image:/a", 2, "name it last, as VOLUME:/DEST"),
    ("ln image:/a", 2, "name it last, as VOLUME:/DEST"),
    ("tar -f image.qcow2 image:/", 2, "write image.tar"),
    ("umount .", 1, "nothing is mounted there"),
    ("umount /proc", 1, "proc is mounted there: umount(8) unmounts it"),
];

#[test]
fn a_wrong_line_gets_the_line_to_type() {
    let bench = Bench::empty();
    let magic = |name: &str, at: u64, bytes: &[u8]| {
        let file = File::create(bench.path(name)).unwrap();
        file.set_len(4 << 20).unwrap();
        file.write_all_at(bytes, at).unwrap();
    };
    magic("lvm.img", 512, b"LABELONE");
    magic("raid.img", 4096, &[0xFC, 0x4E, 0x2B, 0xA9]);
    bench.succeed(["mkfs", "-q", "image", "16M"]);
    hints(&bench, &WRONG_LINES);
    let missing = [bench.path("new.img"), bench.path("other")];
    assert!(missing.iter().all(|path| !path.exists()));
}

/// The message about a locked image names the process that has locked it. Here, this is the test process.
#[test]
fn a_lock_names_its_holder() {
    let bench = Bench::empty();
    bench.succeed(["mkfs", "-q", "image", "16M"]);
    let file = File::open(bench.image()).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    let said = text(&bench.run(["ls", "image:/"]).stderr);
    let seen = format!(" (pid {})\n", std::process::id());
    // On a file system such as overlayfs, /proc/locks contains another inode number. The process then cannot be found.
    let hidden = said.ends_with("locked by another program: its process is not visible in /proc\n");
    assert!(
        said.contains("locked by another program: ") && (said.ends_with(&seen) || hidden),
        "{said}"
    );
    let locks = fs::read_to_string("/proc/locks").unwrap();
    let listed = locks.lines().any(|line| line.contains(&format!(" {} ", std::process::id())));
    assert!(!hidden || !listed, "{said}{locks}");
}

/// The message about a device in use names its users. They are mounts, devices on top of it, and programs that have opened it exclusively.
#[test]
fn a_device_in_use_names_its_users() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("mount")]);
    let bench = Bench::empty();
    bench.succeed(["mkfs", "-q", "image", "16M"]);
    fs::create_dir(bench.path("mnt")).unwrap();
    let device = LoopDevice::with(&["--partscan"], bench.image());
    let target = format!("{}:/", device.node());
    let refused = |says: &str| {
        let output = bench.run(["ls", &target]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains(says) && said.lines().count() == 1, "{says}: {said}");
    };
    let open = rustix::fs::open(
        device.node(),
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::EXCL | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    let open = open.unwrap();
    refused(&format!("(pid {})", std::process::id()));
    drop(open);
    succeed(tool("mount").arg(device.node()).arg(bench.path("mnt")));
    let place = bench.path("mnt").canonicalize().unwrap();
    refused(&format!("in use: mounted on {}\n", place.display()));
    succeed(tool("umount").arg(bench.path("mnt")));
    if Need::Tool("dmsetup").missing().is_none() && Path::new("/dev/mapper/control").exists() {
        let name = format!("ironmap-test-{}", std::process::id());
        let table = format!("0 8192 linear {} 0", device.node());
        let made = tool("dmsetup").args(["create", &name, "--table", &table]).output().unwrap();
        if made.status.success() {
            let said = text(&bench.run(["ls", &target]).stderr);
            succeed(tool("dmsetup").args(["remove", "--retry", &name]));
            assert!(said.contains(&format!("in use: held by /dev/mapper/{name} (dm-")), "{said}");
        }
    }
    bench.succeed(["ls", &target]);
}

/// A symbolic link below `/dev/disk` as udev makes it, and the directories that were made for this link. Dropping the value removes both.
struct Link {
    path: PathBuf,
    made: Vec<PathBuf>,
}

impl Link {
    fn new(dir: &str, name: &str, node: &str) -> Self {
        let dir = Path::new("/dev/disk").join(dir);
        let made = [Path::new("/dev/disk"), &dir].into_iter().filter(|dir| !dir.exists());
        let made = made.map(Path::to_owned).collect();
        fs::create_dir_all(&dir).unwrap();
        let link = Self { path: dir.join(name), made };
        let _ = fs::remove_file(&link.path);
        std::os::unix::fs::symlink(node, &link.path).unwrap();
        link
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        for dir in self.made.iter().rev() {
            // Another test may have a link in this directory, so the removal may fail.
            let _ = fs::remove_dir(dir);
        }
    }
}

/// ironmap finds the device for LABEL= or UUID= by a symbolic link of udev. blkid(8) prints the name of this link. `mount` accepts the same
/// tags.
#[test]
fn tags_lead_to_devices() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("blkid")]);
    let bench = Bench::empty();
    // The label has at most 16 bytes. It contains characters that udev escapes, and characters that udev does not escape.
    let label = format!("a b/é{}", std::process::id() % 100_000);
    bench.succeed(["mkfs", "-q", "-L", &label, "image", "16M"]);
    fs::create_dir(bench.path("mnt")).unwrap();
    let device = LoopDevice::new(bench.image());
    let found = text(&succeed(tool("blkid").args(["-p", "-o", "udev", device.node()])).stdout);
    let value = |key: &str| {
        let line = found.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim_start_matches('=').to_owned()
    };
    let (name, uuid) = (value("ID_FS_LABEL_ENC"), value("ID_FS_UUID_ENC"));
    assert!(name.contains("\\x20") && name.contains("\\x2f"), "{name}");
    let _label = Link::new("by-label", &name, device.node());
    let _uuid = Link::new("by-uuid", &uuid, device.node());
    for tag in
        [format!("LABEL={label}"), format!("UUID={uuid}"), format!("UUID={}", uuid.to_uppercase())]
    {
        bench.succeed(["mkdir", "-p", &format!("{tag}:/d")]);
        assert_eq!(bench.json(&["info", "--json", &tag])["label"], *label, "{tag}");
        if !Path::new("/dev/fuse").exists() {
            note_part("tags_lead_to_devices", "mount", "needs /dev/fuse");
            continue;
        }
        let dir = bench.path("mnt");
        let mount = bench.command().arg("mount").arg(&tag).arg(&dir).output().unwrap();
        assert!(mount.status.success(), "{tag}: {}", text(&mount.stderr));
        let there = dir.join("d").is_dir();
        bench.succeed(["umount".as_ref(), dir.as_os_str()]);
        assert!(there, "{tag}");
    }
}

/// Commands that support only ext4 report that a volume is XFS, and name a program that can change it. Nothing is written.
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
                "image: the file system is XFS, but this command supports only ext2, ext3 and ext4: xfs_admin",
            ),
            (
                "resize -P image",
                3,
                "image: the file system is XFS, but this command supports only ext2, ext3 and ext4: xfs_growfs",
            ),
            ("resize image 400M", 3, "image: the file system is XFS"),
            ("dump image superblock", 1, "image: the file system is xfs"),
            ("mkdir image:/d", 1, "on XFS only the data of files can be overwritten"),
            ("rmdir image:/", 1, "on XFS only the data of files can be overwritten"),
            ("write image:/f", 1, "on XFS only the data of files can be overwritten"),
            ("mount image .", 1, "image: a mount cannot write a volume of xfs: add -o ro"),
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
            "the partition has no more space: grow the partition with sfdisk or growpart",
        )],
    );
    let same = text(&bench.succeed(["resize", "disk@p2"]));
    assert!(same.ends_with("unchanged: the partition has no more space\n"), "{same}");
}

/// A volume of each type has the same features as with mke2fs, and e2fsck finds no fault.
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
