//! Whole disks: the table, the contents, and the programs that read them.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use serde_json::Value;

use crate::common::loop_device::LoopDevice;
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, pattern, succeed, text, tool};

const MIB: u64 = 1 << 20;
/// The time of reproducible builds in these tests.
const DATE: &str = "1700000000";
const DISK: [&str; 14] = [
    "disk",
    "disk.img",
    "300M",
    "--json",
    "-p",
    "esp:64M:files=efi,label=EFI system",
    "-p",
    "root:min:files=tree,label=root,fs-label=rootfs,owner=7:8",
    "-p",
    "root-verity:min",
    "-p",
    "swap:16M:label=pages",
    "-p",
    "linux-generic:rest:fs=ext4,label=data,attrs=required+no-auto",
];

/// Makes the directories `efi` and `tree`.
fn sources(bench: &Bench) {
    for dir in ["efi/EFI/BOOT", "efi/loader/entries", "tree/etc"] {
        fs::create_dir_all(bench.path(dir)).unwrap();
    }
    for (name, len) in [
        ("efi/EFI/BOOT/BOOTX64.EFI", 300_001),
        ("efi/loader/loader.conf", 512),
        ("efi/loader/entries/Ein längerer Name.conf", 1),
        ("efi/empty", 0),
        ("tree/etc/hostname", 4),
        ("tree/large", 3_000_000),
    ] {
        fs::write(bench.path(name), pattern(len, len as u64)).unwrap();
    }
}

fn make(bench: &Bench, args: &[&str]) -> Value {
    let mut command = bench.command();
    let output = succeed(command.args(args).env("SOURCE_DATE_EPOCH", DATE));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a tool in the directory of the test's files, and returns its output.
fn ask(bench: &Bench, program: &str, args: &[&str]) -> String {
    text(&succeed(tool(program).args(args).current_dir(bench.path("."))).stdout)
}

/// Copies a partition to a file.
fn cut(bench: &Bench, part: &Value, name: &str) {
    let disk = fs::read(bench.path("disk.img")).unwrap();
    let [start, size] = ["start", "size"].map(|key| part[key].as_u64().unwrap() as usize);
    fs::write(bench.path(name), &disk[start..start + size]).unwrap();
}

/// The files below a directory and their content, without times and owners.
fn content(dir: &Path) -> Vec<(String, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(dir).unwrap().to_string_lossy().into_owned();
            found.push((name, (!path.is_dir()).then(|| fs::read(&path).unwrap())));
            if path.is_dir() {
                dirs.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The FAT in a file passes fsck.fat, and mcopy finds the files of a directory in it.
fn is_fat_of(bench: &Bench, fat: &str, tree: &str) {
    let checked = tool("fsck.fat").args(["-n", fat]).current_dir(bench.path(".")).output().unwrap();
    assert!(checked.status.success(), "{}", text(&checked.stdout));
    let back = bench.path("back");
    let _ = fs::remove_dir_all(&back);
    fs::create_dir(&back).unwrap();
    let mut mcopy = tool("mcopy");
    mcopy.env("LC_ALL", "C.UTF-8").args(["-s", "-i", fat, "::", "back"]);
    succeed(mcopy.current_dir(bench.path(".")));
    assert!(content(&back) == content(&bench.path(tree)), "{fat}");
}

/// Partitioning programs find no fault, and read the types, GUIDs, names and attributes that ironmap shows.
#[test]
fn other_programs_read_the_table() {
    require!([Need::Tool("sgdisk"), Need::Tool("sfdisk"), Need::Tool("blkid")]);
    let bench = Bench::empty();
    sources(&bench);
    let made = make(&bench, &DISK);
    let checked = ask(&bench, "sgdisk", &["-v", "disk.img"]);
    assert!(checked.contains("No problems found"), "{checked}");
    assert!(ask(&bench, "sfdisk", &["--verify", "disk.img"]).contains("No errors detected"));
    let read: Value =
        serde_json::from_str(&ask(&bench, "sfdisk", &["--json", "disk.img"])).unwrap();
    let read = &read["partitiontable"];
    let upper = |value: &Value| value.as_str().unwrap().to_uppercase();
    assert_eq!(read["id"].as_str().unwrap(), upper(&made["guid"]));
    let (read, made) = (&read["partitions"], &made["partitions"]);
    assert_eq!(made.as_array().unwrap().len(), 5);
    let attributes = ["", "GUID:60", "GUID:60", "", "RequiredPartition GUID:63"];
    for (index, attributes) in attributes.iter().enumerate() {
        let (read, made) = (&read[index], &made[index]);
        assert_eq!(read["type"].as_str().unwrap(), upper(&made["type_guid"]));
        assert_eq!(read["uuid"].as_str().unwrap(), upper(&made["guid"]));
        assert_eq!(read["name"].as_str().unwrap_or_default(), made["label"].as_str().unwrap());
        assert_eq!(read["attrs"].as_str().unwrap_or_default(), *attributes);
        for (ours, theirs) in [("start", "start"), ("size", "size")] {
            assert_eq!(made[ours].as_u64().unwrap(), read[theirs].as_u64().unwrap() * 512);
        }
        assert_eq!(made["start"].as_u64().unwrap() % MIB, 0);
    }
    for (index, kind, label) in
        [(0, "vfat", ""), (1, "ext4", "rootfs"), (3, "swap", "pages"), (4, "ext4", "data")]
    {
        let start = made[index]["start"].to_string();
        let size = made[index]["size"].to_string();
        let args = ["-p", "-o", "export", "-O", &start, "-S", &size, "disk.img"];
        let found = ask(&bench, "blkid", &args);
        assert!(found.contains(&format!("\nTYPE={kind}\n")), "{found}");
        assert!(label.is_empty() || found.contains(&format!("\nLABEL={label}\n")), "{found}");
    }
    if Need::Tool("systemd-repart").missing().is_none() {
        fs::create_dir(bench.path("repart")).unwrap();
        fs::write(bench.path("repart/esp.conf"), "[Partition]\nType=esp\n").unwrap();
        let args = ["--dry-run=yes", "--definitions=repart", "--json=short", "disk.img"];
        let found: Value = serde_json::from_str(&ask(&bench, "systemd-repart", &args)).unwrap();
        for (index, part) in made.as_array().unwrap().iter().enumerate() {
            let found = &found[index];
            assert_eq!((&found["type"], &found["uuid"]), (&part["type"], &part["guid"]));
            assert_eq!((&found["offset"], &found["raw_size"]), (&part["start"], &part["size"]));
            assert_eq!(found["activity"], "unchanged");
        }
    }
}

/// Each content is readable by other programs and by ironmap, and the hash tree verifies the root.
#[test]
fn the_contents_are_those_of_the_sources() {
    require!([Need::Tool("fsck.fat"), Need::Tool("mcopy"), Need::Tool("e2fsck")]);
    let bench = Bench::empty();
    sources(&bench);
    let made = make(&bench, &DISK);
    let part = |index: usize| &made["partitions"][index];
    cut(&bench, part(0), "esp");
    is_fat_of(&bench, "esp", "efi");
    for (index, name) in [(1, "root"), (4, "data")] {
        cut(&bench, part(index), name);
        ask(&bench, "e2fsck", &["-fn", name]);
    }
    let read = bench.succeed(["cat", "disk.img@p2:/large"]);
    assert!(read == pattern(3_000_000, 3_000_000));
    let owner = bench.succeed(["stat", "-c", "%u:%g", "disk.img@p2:/etc/hostname"]);
    assert_eq!(text(&owner), "7:8\n");
    // The GUIDs of the root and of its hash tree are the halves of the root hash.
    let root = part(1)["root_hash"].as_str().unwrap();
    let halves = [1, 2].map(|index| part(index)["guid"].as_str().unwrap().replace('-', ""));
    assert_eq!(halves.concat(), root);
    bench.succeed(["verity", "check", "disk.img@p2", "disk.img@p3", root]);
    if Need::Tool("veritysetup").missing().is_none() {
        cut(&bench, part(2), "hashes");
        ask(&bench, "veritysetup", &["verify", "root", "hashes", root]);
    }
    if Need::Tool("swaplabel").missing().is_none() {
        cut(&bench, part(3), "swap");
        assert!(ask(&bench, "swaplabel", &["swap"]).contains("LABEL: pages"));
    }
}

/// Two equal calls give equal bytes, although the sources are copied in between. A new image has holes.
#[test]
fn equal_calls_make_equal_disks() {
    let bench = Bench::empty();
    sources(&bench);
    make(&bench, &DISK);
    let metadata = fs::metadata(bench.path("disk.img")).unwrap();
    assert_eq!(metadata.len(), 300 * MIB);
    assert!(metadata.blocks() * 512 < 16 * MIB, "{} blocks", metadata.blocks());
    fs::rename(bench.path("disk.img"), bench.path("first.img")).unwrap();
    for dir in ["efi", "tree"] {
        ask(&bench, "cp", &["-r", dir, "copy"]);
        fs::remove_dir_all(bench.path(dir)).unwrap();
        fs::rename(bench.path("copy"), bench.path(dir)).unwrap();
    }
    make(&bench, &DISK);
    succeed(tool("cmp").args(["first.img", "disk.img"]).current_dir(bench.path(".")));
    // A different `--seed` gives different GUIDs.
    let other = make(&bench, &["disk", "other.img", "--json", "--seed", "x", "-p", "home:8M"]);
    let again = make(&bench, &["disk", "again.img", "--json", "--seed", "x", "-p", "home:8M"]);
    let third = make(&bench, &["disk", "third.img", "--json", "--seed", "y", "-p", "home:8M"]);
    assert_eq!(other, again);
    assert!(other["guid"] != third["guid"]);
    assert_eq!(other["size"].as_u64(), Some(10 * MIB));
}

/// Each type that systemd knows has systemd's name. sfdisk knows the GUIDs of the other types.
#[test]
fn types_have_the_names_of_systemd() {
    require!([Need::Tool("systemd-id128"), Need::Tool("sfdisk")]);
    let bench = Bench::empty();
    let known = ask(&bench, "systemd-id128", &["show", "--uuid"]);
    let known: Vec<_> = known
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, guid)| (name.to_owned(), guid.trim().to_owned()))
        .collect();
    let others = ask(&bench, "sfdisk", &["--label", "gpt", "-T"]).to_lowercase();
    let mut compared = 0;
    for (name, guid) in ironmap::partition::kinds::all() {
        let guid = ironmap::fs::uuid_text(&guid);
        match known.iter().find(|(known, _)| *known == name) {
            Some((_, theirs)) => assert_eq!(guid, *theirs, "{name}"),
            None => assert!(others.contains(&guid), "{name} {guid}"),
        }
        compared += 1;
    }
    assert!(compared > 40 && known.len() > 40);
}

/// Makes volumes of each FAT type, with sizes at the limits between the types. They contain names that need long entries, and a directory
/// of several clusters. fsck.fat finds no fault.
#[test]
fn fat_of_every_size_is_sound() {
    require!([Need::Tool("fsck.fat"), Need::Tool("mcopy"), Need::Tool("minfo")]);
    let bench = Bench::empty();
    fs::create_dir_all(bench.path("tree/many")).unwrap();
    for number in 0..300 {
        let name = format!("tree/many/a name of {number} in a directory.txt");
        fs::write(bench.path(&name), pattern(number * 7, number as u64)).unwrap();
    }
    for name in
        ["UPPER.TXT", "Mixed.Txt", "lower.txt", ".hidden", "no extension", "äöü", "a+b", "x"]
    {
        fs::write(bench.path("tree").join(name), name).unwrap();
    }
    let long = "n".repeat(255);
    fs::write(bench.path("tree").join(&long), "long").unwrap();
    for (size, kind) in [
        ("min", "FAT12"),
        ("2M", "FAT12"),
        ("3M", "FAT16"),
        ("32M", "FAT16"),
        ("33M", "FAT32"),
        ("259M", "FAT32"),
        ("261M", "FAT32"),
    ] {
        let part = format!("esp:{size}:files=tree,fs-label=A Label");
        let made = make(&bench, &["disk", "disk.img", "--json", "-F", "-p", &part]);
        cut(&bench, &made["partitions"][0], "fat");
        is_fat_of(&bench, "fat", "tree");
        let info = ask(&bench, "minfo", &["-i", "fat", "::"]);
        assert!(info.contains(&format!("disk type=\"{kind}   \"")), "{size}: {info}");
        let label = ask(&bench, "blkid", &["-p", "-o", "value", "-s", "LABEL", "fat"]);
        assert_eq!(label, "A LABEL\n");
    }
}

/// If a command line is wrong, the error names the wrong word, and no file in the directory is changed.
#[test]
fn a_call_that_fails_leaves_nothing() {
    let bench = Bench::empty();
    sources(&bench);
    symlink("empty", bench.path("efi/link")).unwrap();
    fs::create_dir(bench.path("twins")).unwrap();
    for name in ["a", "A"] {
        fs::write(bench.path("twins").join(name), "").unwrap();
    }
    fs::create_dir(bench.path("badname")).unwrap();
    fs::write(bench.path("badname/a:b"), "").unwrap();
    fs::write(bench.path("parts"), "# parts\n\nesp:64M\nroot:1G:fs=btrfs\n").unwrap();
    let before = content(&bench.path("."));
    for (args, code, says) in [
        (&["64M"][..], 2, "a disk needs partitions: write --part TYPE:SIZE"),
        (&["-p", "root:big"], 2, "--part root:big: big is not a size: write a size such as 512M"),
        (&["--from", "parts"], 2, "parts line 4: fs=btrfs is not known: write ext4, fat"),
        (&["-p", "root:rest"], 2, "add the size of the disk, as in disk.img 4G"),
        (
            &["1G", "-p", "home:rest", "-p", "srv:rest"],
            2,
            "only one partition can have the size rest",
        ),
        (&["8M", "-p", "root:8M"], 1, "the disk has 8M, but its partitions need at least 10M"),
        (&["-p", "home:min"], 2, "partition 1 (home): the size min is not possible"),
        (&["-p", "usr-verity:8M"], 2, "a hash tree needs an earlier partition of the type usr-"),
        (&["-p", "root:2M:files=tree"], 1, "partition 1 (root-x86-64): "),
        (&["-p", "root:8M:files=none"], 1, "none: No such file or directory"),
        (&["-p", "esp:64M:files=efi"], 1, "efi/link: FAT stores only files and directories"),
        (&["-p", "esp:64M:files=twins"], 1, "only in case"),
        (&["-p", "esp:64M:files=badname"], 1, "a:b: the name contains a character"),
        (&["-p", "swap:16M:fs-label=a label that is too long"], 2, "is longer than 16 bytes"),
        (&["-p", "esp:64M:fs-label=ümlaut"], 2, "is not possible: a FAT label"),
        (&["--sector-size", "1K", "-p", "home:8M"], 2, "write 512 or 4096"),
    ] {
        let output = bench.run([&["disk", "disk.img"], args].concat());
        let error = text(&output.stderr);
        assert!(error.contains(says), "{args:?}: {error}");
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{args:?}: {error}");
        assert!(!error.contains(".ironmap-"), "{args:?}: {error}");
        assert!(content(&bench.path(".")) == before, "{args:?} has changed the directory");
    }
}

/// An image with content is refused without --force. With --force, a failure leaves the old image, and a success replaces it.
#[test]
fn an_existing_image_is_replaced_only_by_a_complete_one() {
    let bench = Bench::empty();
    sources(&bench);
    bench.succeed(["mkfs", "-q", "disk.img", "16M"]);
    let before = fs::read(bench.path("disk.img")).unwrap();
    for (args, says) in [
        (&["disk", "disk.img", "-p", "home:8M"][..], "-F overwrites it"),
        (&["disk", "-F", "disk.img", "-p", "home:8M:files=none"], "none: No such file"),
        (&["disk", "-F", "disk.img@1M", "-p", "home:8M"], "only for a whole device or image"),
    ] {
        let output = bench.run(args);
        assert!(text(&output.stderr).contains(says), "{}", text(&output.stderr));
        assert!(fs::read(bench.path("disk.img")).unwrap() == before);
    }
    // If a partition takes the rest of the disk, an existing image keeps its size. No byte of the old content remains.
    make(&bench, &["disk", "-F", "disk.img", "--json", "-p", "home:rest"]);
    let forced = fs::read(bench.path("disk.img")).unwrap();
    assert_eq!(forced.len() as u64, 16 * MIB);
    fs::remove_file(bench.path("disk.img")).unwrap();
    File::create(bench.path("disk.img")).unwrap().set_len(16 * MIB).unwrap();
    make(&bench, &["disk", "disk.img", "--json", "-p", "home:rest"]);
    assert!(fs::read(bench.path("disk.img")).unwrap() == forced);
    make(&bench, &["disk", "-F", "disk.img", "--json", "-p", "home:8M"]);
    assert_eq!(fs::metadata(bench.path("disk.img")).unwrap().len(), 10 * MIB);
}

/// A qcow2 image gets the same bytes as a raw image, and its size is that of the content.
#[test]
fn a_qcow2_image_becomes_a_disk() {
    require!([Need::Tool("qemu-img")]);
    let bench = Bench::empty();
    sources(&bench);
    make(&bench, &DISK);
    for option in ["--quiet", "-Fq"] {
        let mut args = DISK;
        (args[1], args[3]) = ("qcow2:disk.qcow2", option);
        let mut command = bench.command();
        succeed(command.args(args).env("SOURCE_DATE_EPOCH", DATE));
        ask(&bench, "qemu-img", &["check", "-q", "disk.qcow2"]);
        let args = ["compare", "-f", "raw", "-F", "qcow2", "disk.img", "disk.qcow2"];
        assert!(ask(&bench, "qemu-img", &args).contains("Images are identical"));
    }
    assert!(fs::metadata(bench.path("disk.qcow2")).unwrap().len() < 16 * MIB);
    let read = bench.succeed(["cat", "qcow2:disk.qcow2@p2:/etc/hostname"]);
    assert!(read == pattern(4, 4));
    assert_eq!(fs::read_dir(bench.path(".")).unwrap().count(), 4);
}

/// A block device gets the same disk as an image, with each sector size. Content that the device had before is not recognised any longer.
#[test]
fn a_block_device_becomes_a_disk() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("sfdisk"), Need::Tool("blkid")]);
    let bench = Bench::empty();
    sources(&bench);
    for sector in ["512", "4096"] {
        let image = bench.path("backing.img");
        fs::write(&image, vec![0x5A; 128 << 20]).unwrap();
        let device = LoopDevice::with(&["--sector-size", sector], &image);
        let node = device.node();
        bench.succeed(["mkfs", "-q", "-F", node]);
        let parts = ["-p", "esp:40M:files=efi", "-p", "home:8M", "-p", "root:rest:files=tree"];
        let refused = bench.run([&["disk", node], &parts[..]].concat());
        assert!(text(&refused.stderr).contains("-F overwrites it"), "{}", text(&refused.stderr));
        let made = make(&bench, &[&["disk", "-F", "--json", node], &parts[..]].concat());
        assert_eq!(made["sector_size"].to_string(), sector);
        let read: Value = serde_json::from_str(&ask(&bench, "sfdisk", &["--json", node])).unwrap();
        for (index, part) in made["partitions"].as_array().unwrap().iter().enumerate() {
            let start = read["partitiontable"]["partitions"][index]["start"].as_u64().unwrap();
            assert_eq!(
                part["start"].to_string(),
                (start * sector.parse::<u64>().unwrap()).to_string()
            );
        }
        assert!(ask(&bench, "blkid", &["-p", node]).contains("PTTYPE=\"gpt\""));
        let read = bench.succeed(["cat", &format!("{node}@p3:/etc/hostname")]);
        assert!(read == pattern(4, 4));
        drop(device);
        fs::copy(&image, bench.path("disk.img")).unwrap();
        cut(&bench, &made["partitions"][0], "esp");
        is_fat_of(&bench, "esp", "efi");
        // In the partition without content, blkid finds no content that the device had before.
        cut(&bench, &made["partitions"][1], "home");
        let found = tool("blkid").args(["-p"]).arg(bench.path("home")).output().unwrap();
        assert_eq!(text(&found.stdout), "");
        fs::remove_file(image).unwrap();
    }
}

/// A description with one mistake is refused before anything on the target changes: a block device, a raw image and a qcow2 image keep every
/// byte.
#[test]
fn a_wrong_description_changes_nothing() {
    require!([Need::Root, Need::Tool("losetup")]);
    let bench = Bench::empty();
    sources(&bench);
    for dir in ["case", "colon", "dot"] {
        fs::create_dir(bench.path(dir)).unwrap();
    }
    for name in ["case/NAME", "case/name", "colon/a:b", "dot/a."] {
        fs::write(bench.path(name), "").unwrap();
    }
    let long = "x".repeat(37);
    let image = bench.path("backing.img");
    fs::write(&image, pattern(64 << 20, 9)).unwrap();
    let device = LoopDevice::new(&image);
    bench.succeed(["disk", "-q", "disk.img", "64M", "-p", "home:rest:fs=ext4"]);
    bench.succeed(["disk", "-q", "qcow2:disk.qcow2", "64M", "-p", "home:rest:fs=ext4"]);
    for wrong in [
        "root:8M:fs=ext4,fs-label=seventeen letters",
        "root:min:files=tree,fs-label=seventeen letters",
        "swap:8M:fs-label=seventeen letters",
        "swap:36K",
        "esp:8M:fs-label=twelve lette",
        "esp:8M:fs-label=a+b",
        "esp:8M:fs-label=größe",
        "esp:8M:files=case",
        "esp:8M:files=colon",
        "esp:8M:files=dot",
        "esp:1M:files=tree",
        "esp:4K",
        "root-verity:4K",
        &format!("home:8M:label={long}"),
        "root:8M:files=none",
    ] {
        for (target, file) in [
            (device.node(), "backing.img"),
            ("disk.img", "disk.img"),
            ("qcow2:disk.qcow2", "disk.qcow2"),
        ] {
            let before = fs::read(bench.path(file)).unwrap();
            let first = ["disk", "-F", target, "-p", "root:8M:files=tree", "-p", wrong];
            let output = bench.run(first);
            let said = text(&output.stderr);
            assert!(!output.status.success() && said.lines().count() == 1, "{wrong}: {said}");
            assert!(fs::read(bench.path(file)).unwrap() == before, "{target}: {wrong}: {said}");
        }
    }
    // A refused mkfs of a single volume does not change its target either.
    for (target, file) in [(device.node(), "backing.img"), ("disk.img", "disk.img")] {
        let before = fs::read(bench.path(file)).unwrap();
        let output = bench.run(["mkfs", "-F", "--discard", "-L", "seventeen letters", target]);
        assert!(!output.status.success());
        assert!(fs::read(bench.path(file)).unwrap() == before, "{target}");
    }
}

/// A disk that is refused because a partition is too small keeps every byte: no signature is wiped before all partitions are planned.
#[test]
fn a_disk_with_a_partition_that_is_too_small_keeps_every_byte() {
    let bench = Bench::empty();
    let disk = bench.path("disk.img");
    let old = pattern(8 << 20, 3);
    // An existing image is replaced, but a device is written in place. An NBD export is such a device.
    require!([Need::Tool("nbdkit")]);
    for (part, reason) in [
        ("root:8K:fs=ext4", "too small"),
        ("root:12K:fs=ext4", "too small"),
        ("swap:8K", "a swap area needs at least 40K"),
        ("esp:4K", ""),
    ] {
        fs::write(&disk, &old).unwrap();
        let command =
            format!("{} disk -qFF \"$uri\" --part home:1M --part {part}", crate::support::IRONMAP);
        let mut nbdkit = tool("nbdkit");
        nbdkit.args(["-U", "-", "file"]).arg(&disk).args(["--run", &command]);
        let output = nbdkit.current_dir(bench.path(".")).output().unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{part}: {said}");
        assert!(fs::read(&disk).unwrap() == old, "{part}: {said}");
    }
}
