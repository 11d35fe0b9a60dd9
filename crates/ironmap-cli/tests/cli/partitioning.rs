//! Disks whose partition table has lost a copy, is inconsistent, or contains partitions past the end of a truncated image.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::loop_device::LoopDevice;
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, succeed, text, tool};

const MIB: u64 = 1 << 20;
const DISK: u64 = 40 * MIB;

/// Makes `disk.img` with two partitions. Each partition contains a volume with a file `f`.
fn disk(bench: &Bench, label: &str) {
    fs::create_dir(bench.path("tree")).unwrap();
    fs::write(bench.path("tree/f"), "yes").unwrap();
    bench.succeed(["mkfs", "-q", "-b", "4K", "-O", "^has_journal", "-d", "tree", "one.img", "4M"]);
    File::create(bench.path("disk.img")).unwrap().set_len(DISK).unwrap();
    let script = format!("label: {label}\n2048,16384\n18432,57344\n");
    fs::write(bench.path("script"), script).unwrap();
    succeed(tool("sh").args(["-c", "sfdisk -q disk.img < script"]).current_dir(bench.path(".")));
    let volume = fs::read(bench.path("one.img")).unwrap();
    for sector in [2048, 18432] {
        write(&bench.path("disk.img"), &volume, sector * 512);
    }
}

fn write(path: &Path, bytes: &[u8], at: u64) {
    File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

fn cut(path: &Path, length: u64) {
    File::options().write(true).open(path).unwrap().set_len(length).unwrap();
}

/// Runs a command that must fail with one line that contains `says`, and must change nothing.
fn refused(bench: &Bench, args: &[&str], says: &str) {
    let before = fs::read(bench.path("disk.img")).unwrap();
    let output = bench.run(args);
    let error = text(&output.stderr);
    assert!(!output.status.success() && error.contains(says), "{args:?}: {error}");
    let faults = error.lines().filter(|line| !line.starts_with("note:"));
    assert_eq!(faults.count(), 1, "{args:?}: {error}");
    assert!(fs::read(bench.path("disk.img")).unwrap() == before, "{args:?} has changed the disk");
}

/// Commands that would overwrite a disk, or the tail of a disk.
const WRITERS: [&[&str]; 4] = [
    &["mkfs", "-q", "disk.img"],
    &["clone", "one.img", "disk.img"],
    &["integrity", "format", "disk.img"],
    &["integrity", "format", "one.img,disk.img"],
];

#[test]
fn the_backup_of_a_lost_header_is_read_and_said_once() {
    require!([Need::Tool("sfdisk")]);
    for lost in [&[0; 512][..], b"No boot sector"] {
        let bench = Bench::empty();
        disk(&bench, "gpt");
        write(&bench.path("disk.img"), lost, 512);
        let output = bench.run(["cat", "disk.img@p2:/f"]);
        assert_eq!(text(&output.stdout), "yes", "{}", text(&output.stderr));
        let said = text(&output.stderr);
        assert!(
            said.contains("the primary GPT header is lost") && said.lines().count() == 1,
            "{said}"
        );
        for args in WRITERS {
            refused(&bench, args, "partition table");
        }
        // The backup may belong to an older table. Partitions of the older table may overlap partitions of the current table.
        for args in [
            &["mkfs", "-qF", "disk.img@p1"][..],
            &["clone", "-F", "one.img", "disk.img@p1"],
            &["mkdir", "disk.img@p1:/new"],
            &["resize", "disk.img@p1"],
            // At these locations, the volume would end where a partition begins.
            &["mkfs", "-qF", "disk.img@1M"],
            &["clone", "-F", "one.img", "disk.img@1M"],
            &["rm", "disk.img@1M:/f"],
            &["resize", "disk.img@1M"],
        ] {
            refused(&bench, args, "name the range by @BYTE+LENGTH");
        }
        bench.succeed(["mkfs", "-qF", "disk.img@1M+4M"]);
        bench.succeed(["clone", "-F", "one.img", "disk.img@0x100000+4096K"]);
    }
}

/// If the MBR has no entry for the GPT, the MBR is the newer table. Linux and blkid assume the same.
#[test]
fn a_gpt_that_the_mbr_does_not_name_is_left_from_an_older_table() {
    require!([Need::Tool("sfdisk")]);
    let bench = Bench::empty();
    disk(&bench, "gpt");
    let mut sector = fs::read(bench.path("disk.img")).unwrap()[..512].to_vec();
    sector[446..510].fill(0);
    sector[450] = 0x83;
    sector[454..458].copy_from_slice(&2048_u32.to_le_bytes());
    sector[458..462].copy_from_slice(&73_728_u32.to_le_bytes());
    write(&bench.path("disk.img"), &sector, 0);
    assert_eq!(text(&bench.run(["cat", "disk.img@p1:/f"]).stdout), "yes");
    refused(&bench, &["mkfs", "-qF", "disk.img@p2"], "there is no partition 2");
    for args in WRITERS {
        refused(&bench, args, "partition table");
    }
}

#[test]
fn a_disk_with_one_copy_of_its_table_is_not_overwritten() {
    require!([Need::Tool("sfdisk")]);
    const LAST: u64 = DISK - 512;
    // The lost sectors, and the expected text of the error.
    for (lost, says) in [
        (&[512, LAST][..], "GPT header: the protective MBR announces a GPT (type 0xEE)"),
        (&[0, 512], "only the backup in sector 81919 is left"),
        (&[0, LAST], ""),
        (&[LAST], ""),
    ] {
        let bench = Bench::empty();
        disk(&bench, "gpt");
        for at in lost {
            write(&bench.path("disk.img"), &[0; 512], *at);
        }
        for args in WRITERS {
            refused(&bench, args, "partition table");
        }
        match says {
            "" => assert_eq!(text(&bench.run(["cat", "disk.img@p2:/f"]).stdout), "yes", "{lost:?}"),
            says => {
                refused(&bench, &["cat", "disk.img@p1:/f"], says);
                refused(&bench, &["mkfs", "-qF", "disk.img@p1"], says);
            }
        }
        bench.succeed(["mkfs", "-qF", "disk.img"]);
        bench.succeed(["check", "disk.img"]);
    }
}

/// A location with only an offset ends at the end of its partition. If the offset is in free space, the location ends at the next
/// partition. A command does not change bytes past this end. A location with a length is used as given.
#[test]
fn a_place_named_by_its_first_byte_ends_with_its_partition() {
    require!([Need::Tool("sfdisk")]);
    const END_OF_1: u64 = 9 * MIB;
    for label in ["dos", "gpt"] {
        // Each element contains a group of commands. The number is the end of the range that these commands may change.
        let commands: [(u64, &[&[&str]]); 9] = [
            (END_OF_1, &[&["resize", "-q", "disk.img@1M"], &["resize", "-q", "-M", "disk.img@1M"]]),
            (
                END_OF_1,
                &[&["mkfs", "-qF", "disk.img@1M"], &["rm", "-r", "disk.img@1M:/lost+found"]],
            ),
            (END_OF_1, &[&["mkfs", "-qF", "-d", "tree", "disk.img@1048576"]]),
            (END_OF_1, &[&["mkfs", "-qF", "disk.img@5M"], &["write", "disk.img@5M:/f"]]),
            (END_OF_1, &[&["mkdir", "one.img:/new"], &["clone", "-F", "one.img", "disk.img@1M"]]),
            (END_OF_1, &[&["mkdir", "disk.img@1M:/d"], &["cp", "-r", "tree", "disk.img@1M:/d"]]),
            (END_OF_1, &[&["fallocate", "-l", "2M", "disk.img@1M:/f"], &["rm", "disk.img@1M:/f"]]),
            (MIB, &[&["mkfs", "-qF", "disk.img@0x20000"]]),
            // The location ends where the backup of the table begins.
            (DISK - 33 * 512, &[&["mkfs", "-qF", "disk.img@37M"]]),
        ];
        for (end, commands) in commands {
            // In a GPT of sfdisk, no partition begins before 1 MiB. The bytes before 1 MiB belong to the table.
            if end == MIB && label == "gpt" {
                continue;
            }
            let bench = Bench::empty();
            disk(&bench, label);
            let before = fs::read(bench.path("disk.img")).unwrap();
            for args in commands {
                bench.succeed(*args);
            }
            let after = fs::read(bench.path("disk.img")).unwrap();
            assert!(before != after, "{label}: {commands:?} wrote nothing");
            let past = end as usize..;
            if end < MIB * 30 || label == "gpt" {
                assert!(before[past.clone()] == after[past], "{label}: {commands:?}");
            }
        }
        let bench = Bench::empty();
        disk(&bench, label);
        for (args, says) in [
            (&["resize", "disk.img@1M", "12M"][..], "name a longer range with @OFFSET+LENGTH"),
            (&["mkfs", "-qF", "disk.img@1M", "12M"], "8388608"),
            (&["clone", "-F", "disk.img@p2", "disk.img@1M"], "is on the device or image"),
            (&["clone", "-F", "large.img", "disk.img@1M"], "has 8388608 bytes"),
            (&["mkfs", "-qF", "disk.img@1M+48M"], "the length must be from 1 to 40894464"),
            (&["mkfs", "-qF", "disk.img@40M"], "is past the end of the device"),
            (&["mkfs", "-qF", "disk.img@0"], "byte 0 belongs to the"),
        ] {
            File::create(bench.path("large.img")).unwrap().set_len(12 * MIB).unwrap();
            refused(&bench, args, says);
        }
        bench.succeed(["resize", "-q", "disk.img@1M+12M"]);
        bench.succeed(["check", "disk.img@1M+12M"]);
    }
}

/// Without a partition table, a location with only an offset extends to the end of the disk. If there is a table that cannot be read, the
/// location is read-only.
#[test]
fn a_place_without_a_table_ends_with_the_disk() {
    let bench = Bench::empty();
    File::create(bench.path("disk.img")).unwrap().set_len(DISK).unwrap();
    bench.succeed(["mkfs", "-q", "disk.img@1M", "4M"]);
    let resized = text(&bench.succeed(["resize", "disk.img@1M"]));
    assert!(resized.contains("39936 blocks of 1024"), "{resized}");
    // The protective MBR of a GPT, without the GPT itself.
    let mut sector = [0; 512];
    (sector[450], sector[454], sector[458]) = (0xEE, 1, 0xFF);
    sector[510..].copy_from_slice(&[0x55, 0xAA]);
    write(&bench.path("disk.img"), &sector, 0);
    let found = bench.run(["ls", "disk.img@1M:/"]);
    assert!(found.status.success() && text(&found.stderr).contains("0xEE"), "{found:?}");
    refused(&bench, &["mkdir", "disk.img@1M:/d"], "@BYTE+LENGTH");
    bench.succeed(["mkdir", "disk.img@1M+39M:/d"]);
}

/// A tag area of an integrity device has its superblock in the first or the last block. Both places are recognised.
#[test]
fn tags_are_not_overwritten() {
    let bench = Bench::empty();
    for name in ["data.img", "disk.img", "one.img"] {
        File::create(bench.path(name)).unwrap().set_len(16 * MIB).unwrap();
    }
    bench.succeed(["integrity", "format", "--quiet", "data.img,disk.img"]);
    for args in WRITERS {
        refused(&bench, args, "integrity");
    }
    bench.succeed(["mkfs", "-qF", "disk.img"]);
    fs::remove_file(bench.path("disk.img")).unwrap();
    File::create(bench.path("disk.img")).unwrap().set_len(16 * MIB).unwrap();
    bench.succeed(["integrity", "format", "--quiet", "disk.img"]);
    for args in WRITERS {
        refused(&bench, args, "integrity");
    }
}

#[test]
fn a_whole_partition_of_a_disk_cut_short_is_read() {
    require!([Need::Tool("sfdisk")]);
    for label in ["dos", "gpt"] {
        let bench = Bench::empty();
        disk(&bench, label);
        cut(&bench.path("disk.img"), 20 * MIB);
        let read = |args: &[&str]| {
            let output = bench.run(args);
            (text(&output.stdout), text(&output.stderr))
        };
        let yes = ("yes".to_owned(), String::new());
        assert_eq!(read(&["cat", "disk.img@p1:/f"]), yes, "{label}");
        refused(&bench, &["cat", "disk.img@p2:/f"], "--truncated reads the remaining part");
        refused(
            &bench,
            &["mkfs", "-qF", "disk.img@p2"],
            "partition 2 has bytes 9437184 to 38797312",
        );
        assert_eq!(read(&["--truncated", "cat", "disk.img@p2:/f"]), yes, "{label}");
        // The image ends where the second partition begins.
        cut(&bench.path("disk.img"), 9 * MIB);
        assert_eq!(read(&["cat", "disk.img@p1:/f"]), yes, "{label}");
        refused(&bench, &["--truncated", "cat", "disk.img@p2:/f"], "the device has only 9437184");
    }
}

/// The name of a new image suggests a format that the command does not write. The command is refused with advice, and no file is made.
#[test]
fn a_raw_image_gets_no_name_of_another_format() {
    let bench = Bench::empty();
    fs::create_dir(bench.path("tree")).unwrap();
    bench.succeed(["mkfs", "-q", "one.img", "4M"]);
    for (name, says) in [
        ("a.qcow2", "write qcow2:a.qcow2"),
        ("a.QCOW2", "write qcow2:a.QCOW2"),
        ("a.vmdk", "vmdk:a.vmdk can be read but not written"),
        ("a.vhdx", "vhdx:a.vhdx can be read but not written"),
        ("a.vdi", "convert -O vdi RAW a.vdi"),
        ("a.vhd", "convert -O vpc RAW a.vhd"),
    ] {
        let archive = name.split('.').next().unwrap();
        let archive = format!("write {archive}.tar");
        let commands: [&[&str]; 6] = [
            &["clone", "one.img", name],
            &["clone", "-F", "one.img", name],
            &["mkfs", "-q", name, "4M"],
            &["mkfs", "-q", "-d", "tree", name],
            &["mkfs", "-q", "--shrink", "-d", "tree", name],
            &["tar", "-f", name, "one.img:/"],
        ];
        for args in commands {
            let output = bench.run(args);
            let error = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
            let says = if args[0] == "tar" { &archive } else { says };
            assert!(error.contains(says), "{args:?}: {error}");
            assert!(!bench.path(name).exists(), "{args:?}");
        }
        File::create(bench.path(name)).unwrap().set_len(4 * MIB).unwrap();
        assert_eq!(bench.run(["mkfs", "-q", name]).status.code(), Some(2), "{name}");
        bench.succeed(["mkfs", "-qF", name]);
    }
}

/// An image file in another format is copied unchanged to a file whose name suggests the same format.
#[test]
fn a_container_is_copied_to_a_name_of_its_format() {
    require!([Need::Tool("qemu-img")]);
    let bench = Bench::empty();
    for (format, extension) in [("qcow2", "qcow2"), ("vmdk", "vmdk"), ("vpc", "vhd")] {
        let args = ["create", "-q", "-f", format, "source", "8M"];
        succeed(tool("qemu-img").args(args).current_dir(bench.path(".")));
        bench.succeed(["clone", "source", &format!("copy.{extension}")]);
        let other = if extension == "vmdk" { "other.qcow2" } else { "other.vmdk" };
        assert_eq!(bench.run(["clone", "source", other]).status.code(), Some(2));
    }
}

#[test]
fn a_partition_of_an_image_without_its_prefix_names_the_prefix() {
    require!([Need::Tool("qemu-img")]);
    let bench = Bench::empty();
    for format in ["qcow2", "vmdk", "vhdx"] {
        succeed(
            tool("qemu-img")
                .args(["create", "-q", "-f", format, "image", "8M"])
                .current_dir(bench.path(".")),
        );
        let output = bench.run(["ls", "image@p1:/"]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{error}");
        assert!(error.contains(&format!("as in {format}:FILE")), "{error}");
    }
}

/// `info` of a disk shows each partition with its content, and with a location that the other commands accept. A nested partition table is
/// shown too. The JSON contains the same values.
#[test]
fn the_layers_of_a_disk_are_shown() {
    require!([Need::Tool("sfdisk")]);
    for label in ["gpt", "dos"] {
        let bench = Bench::empty();
        disk(&bench, label);
        bench.succeed(["tune", "-L", "data", "disk.img@p2"]);
        // The first partition contains a disk of its own, with one partition.
        File::create(bench.path("inner.img")).unwrap().set_len(8 * MIB).unwrap();
        fs::write(bench.path("script"), "label: dos\n2048,8192\n").unwrap();
        let inner = "sfdisk -q inner.img < script";
        succeed(tool("sh").args(["-c", inner]).current_dir(bench.path(".")));
        let inner = fs::read(bench.path("inner.img")).unwrap();
        write(&bench.path("disk.img"), &inner, 2048 * 512);
        let volume = fs::read(bench.path("one.img")).unwrap();
        write(&bench.path("disk.img"), &volume, 2 * 2048 * 512);
        let disk = bench.json(&["info", "--json", "disk.img"]);
        let parts = &disk["parts"];
        assert_eq!(parts[0]["parts"][0]["location"], "part:p1@disk.img@p1", "{disk}");
        assert_eq!(parts[1]["location"], "disk.img@p2", "{disk}");
        assert_eq!(parts[1]["label"], "data", "{disk}");
        assert_eq!(parts[1]["content"], "ext4", "{disk}");
        assert_eq!(parts[1]["size"], 57344 * 512, "{disk}");
        let shown = text(&bench.succeed(["info", "disk.img"]));
        assert_eq!(shown.lines().count(), 4, "{shown}");
        for (number, location) in
            ["disk.img", "disk.img@p1", "part:p1@disk.img@p1", "disk.img@p2"].iter().enumerate()
        {
            let line = shown.lines().nth(number).unwrap();
            assert!(line.contains(location), "{line}");
        }
        assert!(shown.contains("label data") && shown.contains("partition table"), "{shown}");
        for location in ["part:p1@disk.img@p1", "disk.img@p2"] {
            let file = bench.succeed(["cat", &format!("{location}:/f")]);
            assert_eq!(text(&file), "yes", "{location}");
        }
    }
}

/// `info` of a disk with twenty logical volumes reads no sector of the disk twice: each partition table, each metadata area and each
/// superblock is read once. strace shows the reads.
#[test]
fn each_table_of_a_disk_is_read_once() {
    let tools = ["sfdisk", "pvcreate", "strace"].map(Need::Tool);
    require!([Need::Root], tools);
    let bench = Bench::empty();
    File::create(bench.path("disk.img")).unwrap().set_len(160 * MIB).unwrap();
    let table = "printf 'label: gpt\nstart=2048,size=122880\nstart=126976,size=122880\n' | sfdisk -q disk.img";
    succeed(tool("sh").args(["-c", table]).current_dir(bench.path(".")));
    let part = |start: u64| {
        let (start, len) = ((start * 512).to_string(), (60 * MIB).to_string());
        LoopDevice::with(&["--offset", &start, "--sizelimit", &len], bench.path("disk.img"))
    };
    let parts = [part(2048), part(126976)];
    let [one, two] = [parts[0].node(), parts[1].node()];
    let script = format!(
        "set -e; export LVM_SYSTEM_DIR=$PWD LVM_SUPPRESS_FD_WARNINGS=1
        lvm() {{ tool=$1; shift; $tool -qq --driverloaded n -y --config 'devices {{ filter=[\"a|^{one}$|\",\"a|^{two}$|\",\"r|.*|\"] use_devicesfile=0 }} activation {{ udev_sync=0 udev_rules=0 monitoring=0 }} global {{ locking_dir=\"'$PWD'/locks\" }}' \"$@\"; }}
        lvm pvcreate {one} {two}; lvm vgcreate -s 1M vg {one} {two}
        for number in $(seq 20); do lvm lvcreate -an -Zn -Wn -n v$number -L 5M vg; done"
    );
    succeed(tool("sh").args(["-c", &script]).current_dir(bench.path(".")));
    drop(parts);
    let log = bench.path("log");
    let mut strace = tool("strace");
    strace.args(["-f", "-y", "-e", "trace=pread64,preadv,preadv2,read", "-o"]).arg(&log);
    strace.arg(bench.command().get_program()).args(["info", "disk.img"]);
    let shown = text(&succeed(strace.current_dir(bench.path("."))).stdout);
    assert_eq!(shown.matches("disk.img@vg/v").count(), 20, "{shown}");
    let log = fs::read_to_string(log).unwrap();
    let mut read = std::collections::BTreeSet::new();
    // Before the first page is read, the open of an image reads two sectors: to find the sector size, and to test NOWAIT.
    let lines = log.lines().filter(|line| line.contains("/disk.img>"));
    for line in lines.skip_while(|line| !line.contains(", 4096, 0)")) {
        // An example of a line: `pread64(3</tmp/disk.img>, "..."..., 4096, 8192) = 4096`
        let (call, count) = line.rsplit_once(" = ").unwrap();
        let at = call.trim_end_matches([')', ' ']).rsplit_once(", ").unwrap().1;
        let (at, count): (u64, u64) = (at.parse().unwrap(), count.parse().unwrap());
        for sector in at / 512..(at + count) / 512 {
            assert!(read.insert(sector), "sector {sector} is read twice: {line}");
        }
    }
    // The log contains reads of the labels of both physical volumes, and of both copies of the partition table.
    for sector in [1, 2049, 126977, 160 * 2048 - 1] {
        assert!(read.contains(&sector), "sector {sector} is not read");
    }
}

/// The location that `info` shows for a partition names this partition, even if a file has the usual name of the partition. Commands accept the
/// location.
#[test]
fn a_file_with_the_name_of_a_partition_is_not_meant() {
    require!([Need::Tool("sfdisk")]);
    let bench = Bench::empty();
    disk(&bench, "gpt");
    fs::write(bench.path("disk.img@p2"), "another file").unwrap();
    let disk = bench.json(&["info", "--json", "disk.img"]);
    let location = |number: usize| disk["parts"][number]["location"].as_str().unwrap().to_owned();
    assert_eq!(location(0), "disk.img@p1");
    assert_eq!(location(1), "part:p2@disk.img");
    assert_eq!(disk["parts"][1]["content"], "ext4", "{disk}");
    for location in [location(0), location(1)] {
        bench.succeed(["mkdir", &format!("{location}:/new")]);
        assert_eq!(text(&bench.succeed(["cat", &format!("{location}:/f")])), "yes");
    }
    assert_eq!(fs::read(bench.path("disk.img@p2")).unwrap(), b"another file");
}

/// With `--truncated`, `info` shows the volume of a partition whose end is missing.
#[test]
fn the_rest_of_a_truncated_partition_is_shown() {
    require!([Need::Tool("sfdisk")]);
    let bench = Bench::empty();
    disk(&bench, "dos");
    let image = bench.path("disk.img");
    File::options().write(true).open(&image).unwrap().set_len(20 * MIB).unwrap();
    let content = |args: &[&str]| bench.json(args)["parts"][1]["content"].to_string();
    let whole = content(&["info", "--json", "disk.img"]);
    assert!(whole.contains("--truncated reads the remaining part"), "{whole}");
    assert_eq!(content(&["info", "--json", "--truncated", "disk.img"]), "\"ext4\"");
}
