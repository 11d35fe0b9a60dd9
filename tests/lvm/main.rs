//! Logical volumes of LVM, read and written without the device mapper. The oracle is lvm2: its tools make the volumes on loop devices, and
//! show where each segment is.

#[path = "../md/shape.rs"]
#[allow(dead_code, reason = "these tests use only a part of the module")]
mod array;
#[path = "../common/mod.rs"]
mod common;
mod kernel;
mod legs;
mod shape;
mod thin;
mod truncated;
mod writing;

use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use common::command::run;
use common::image::scratch;
use common::loop_device::LoopDevice;
use common::rng::Rng;
use common::skip::Need;
use ironmap::bio::{BioFlags, Buffer, Dev};
use ironmap::device::{Device, DeviceQueue, QueueOptions, Ram};
use ironmap::location::LocationOptions;
use ironmap::lvm::Groups;
use ironmap::prelude::*;
use ironmap::units::DevOffset;
use ironmap::{Engine, ErrorKind, Location};

const MIB: u64 = 1 << 20;
/// The partitions of the disk, as start and length in bytes. Each partition is a physical volume.
const PARTS: [(u64, u64); 2] = [(MIB, 40 * MIB), (41 * MIB, 50 * MIB)];
const SIZE: u64 = 96 * MIB;

/// The requirements of these tests.
const NEEDS: [Need; 3] = [Need::Root, Need::Tool("pvcreate"), Need::Tool("sfdisk")];

/// A disk with two partitions. Each partition is a physical volume, and both belong to one volume group.
struct Disk {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Disk {
    /// Makes the disk. Each word of eight bytes contains its own position on the disk, until LVM overwrites the word.
    fn new() -> Self {
        let dir = scratch();
        let path = dir.path().join("disk");
        let content: Vec<u8> = (0..SIZE).step_by(8).flat_map(u64::to_le_bytes).collect();
        std::fs::write(&path, content).unwrap();
        let table = dir.path().join("table");
        let lines =
            PARTS.map(|(start, len)| format!("start={}, size={}\n", start / 512, len / 512));
        std::fs::write(&table, format!("label: gpt\n{}", lines.concat())).unwrap();
        let script = format!("sfdisk -q --no-reread {} <{}", path.display(), table.display());
        run("sh", &["-c", &script]);
        let disk = Self { dir, path };
        disk.lvm("pvcreate", &["-y", "PV0", "PV1"]);
        disk.lvm("vgcreate", &["-y", "-s", "1M", "vg", "PV0", "PV1"]);
        disk
    }

    /// Runs a tool of LVM. The tool sees only the partitions, and stores its files in the directory of the test. `PV0` and `PV1` in the
    /// arguments are replaced by loop devices for the partitions. The loop devices exist only during the call, because ironmap refuses an
    /// image that is attached to a loop device.
    fn lvm(&self, program: &str, args: &[&str]) -> String {
        let devices = PARTS.map(|(start, len)| {
            let (start, len) = (start.to_string(), len.to_string());
            LoopDevice::with(&["--offset", &start, "--sizelimit", &len], &self.path)
        });
        let [one, two] = [devices[0].node(), devices[1].node()];
        let dir = self.dir.path().display();
        let config = format!(
            "devices {{ filter=[\"a|^{one}$|\",\"a|^{two}$|\",\"r|.*|\"] use_devicesfile=0 }} \
             activation {{ udev_sync=0 udev_rules=0 monitoring=0 }} global {{ locking_dir=\"{dir}/locks\" }}"
        );
        let system = format!("LVM_SYSTEM_DIR={dir}");
        let quiet = "LVM_SUPPRESS_FD_WARNINGS=1";
        let mut all = vec![&*system, quiet, program, "--config", &config, "--driverloaded", "n"];
        all.extend(args.iter().map(|arg| match *arg {
            "PV0" => one,
            "PV1" => two,
            arg => arg,
        }));
        let shown = String::from_utf8(run("env", &all)).unwrap();
        shown.replace(&format!("{one}:"), "PV0:").replace(&format!("{two}:"), "PV1:")
    }

    /// Makes a logical volume. lvcreate does not change the content of its blocks.
    fn make(&self, args: &[&str]) {
        self.lvm("lvcreate", &[&["-y", "-an", "-Zn", "-Wn"], args, &["vg"]].concat());
    }

    /// Makes logical volumes with one range (`gap`, `whole`), with two ranges (`root`), with ranges on both physical volumes (`spread`), and a
    /// striped one.
    fn make_all_kinds(&self) {
        self.make(&["-n", "root", "-L", "4M"]);
        self.make(&["-n", "gap", "-L", "3M"]);
        self.lvm("lvextend", &["-y", "-L", "9M", "vg/root"]);
        self.make(&["-n", "striped", "-L", "8M", "-i", "2", "-I", "64k"]);
        self.make(&["-n", "whole", "-L", "2M", "--alloc", "contiguous"]);
        self.make(&["-n", "spread", "-l", "100%FREE"]);
    }

    /// Makes the logical volume `root` of 30 MiB, with two linear segments and a striped one.
    fn make_root_in_segments(&self) {
        self.make(&["-n", "root", "-L", "6M"]);
        self.make(&["-n", "gap", "-L", "3M"]);
        self.lvm("lvextend", &["-y", "-L", "14M", "vg/root"]);
        self.lvm("lvextend", &["-y", "-i", "2", "-I", "4k", "-L", "30M", "vg/root"]);
    }

    fn location(&self, name: &str) -> Location {
        format!("{}@vg/{name}", self.path.display()).parse().unwrap()
    }

    /// The segments of a logical volume, as `lvs` shows them. For each segment: its length, the length of a stripe, and the first byte of
    /// each stripe on the disk.
    fn segments(&self, name: &str) -> Vec<(u64, u64, Vec<u64>)> {
        let columns = "seg_size,stripe_size,seg_pe_ranges";
        let name = format!("vg/{name}");
        let shown = [
            "--segments",
            "--noheadings",
            "--units",
            "b",
            "--nosuffix",
            "--separator",
            "|",
            "-o",
            columns,
        ];
        let lines = self.lvm("lvs", &[&shown[..], &[&*name]].concat());
        let extent = |range: &str| {
            let (node, extents) = range.rsplit_once(':').unwrap();
            let part = usize::from(node == "PV1");
            // pvcreate uses the first MiB of a physical volume for metadata.
            let first: u64 = extents.split_once('-').unwrap().0.parse().unwrap();
            PARTS[part].0 + MIB + first * MIB
        };
        let segment = |line: &str| {
            let fields: Vec<_> = line.trim().split('|').collect();
            let starts = fields[2].split_whitespace().map(extent).collect();
            (fields[0].parse().unwrap(), fields[1].parse().unwrap(), starts)
        };
        lines.lines().map(segment).collect()
    }

    /// For each word of eight bytes in a logical volume: its position on the disk.
    fn expected(&self, name: &str) -> Vec<u64> {
        let mut all = Vec::new();
        for (len, stripe, starts) in self.segments(name) {
            for at in (0..len).step_by(8) {
                all.push(match &starts[..] {
                    [start] => start + at,
                    starts => {
                        let (row, column) =
                            (at / stripe / starts.len() as u64, at / stripe % starts.len() as u64);
                        starts[column as usize] + row * stripe + at % stripe
                    }
                });
            }
        }
        all
    }
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(8).map(|number| u64::from_le_bytes(number.try_into().unwrap())).collect()
}

/// ironmap reads the data of a logical volume from the positions that `lvs` shows, by calls and by a queue. The test covers linear volumes
/// with one range, with two ranges and with ranges on both physical volumes, and a striped volume.
#[test]
fn logical_volumes_are_read_where_lvs_shows_them() {
    require!(NEEDS);
    let disk = Disk::new();
    disk.make_all_kinds();
    assert!(disk.segments("root").len() > 1 && disk.segments("spread").len() > 1);
    for name in ["root", "gap", "striped", "whole", "spread"] {
        let expected = disk.expected(name);
        for engine in [Engine::Auto, Engine::Psync] {
            let opened = disk.location(name).open(&LocationOptions::new().engine(engine)).unwrap();
            let device = opened.device;
            assert_eq!(device.size(), expected.len() as u64 * 8, "{name}");
            let mut bytes = vec![0; device.size() as usize];
            device.read_exact_at(&mut bytes, DevOffset(0)).unwrap();
            assert!(numbers(&bytes) == expected, "{name}, {engine}");
            let mut queue = device.queue(&QueueOptions::new()).unwrap();
            for at in (0..device.size()).step_by(192 << 10) {
                let len = (device.size() - at).min(4096) as usize;
                let mut buffer = Buffer::aligned(len).unwrap();
                let count = queue.read_now(Dev::OWN, &mut buffer, DevOffset(at), BioFlags::empty());
                assert_eq!(count, Ok(len));
                assert!(
                    numbers(&buffer) == expected[at as usize / 8..][..len / 8],
                    "{name}, {engine}"
                );
            }
        }
    }
    let partition = format!("{}@p2", disk.path.display());
    let refused = Volume::open(partition.as_str()).unwrap_err().to_string();
    assert!(
        refused.contains("LVM physical volume") && refused.contains("root (9 MiB)"),
        "{refused}"
    );
}

/// mke2fs made a volume whose parts are in the ranges that `lvs` shows. ironmap reads this volume.
#[test]
fn a_volume_in_several_segments_is_read() {
    require!(NEEDS);
    let disk = Disk::new();
    disk.make_root_in_segments();
    let content: Vec<u8> = (0..20 * MIB as usize).map(|at| (at % 251) as u8).collect();
    let tree = disk.dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), &content).unwrap();
    let image = disk.dir.path().join("root.img").display().to_string();
    run("mke2fs", &["-q", "-t", "ext4", "-b", "4096", "-d", tree.to_str().unwrap(), &image, "30M"]);
    let image = std::fs::read(&image).unwrap();
    let mut bytes = std::fs::read(&disk.path).unwrap();
    for (number, at) in image.chunks(8).zip(disk.expected("root")) {
        bytes[at as usize..][..8].copy_from_slice(number);
    }
    std::fs::write(&disk.path, bytes).unwrap();

    let qcow2 = disk.dir.path().join("disk.qcow2").display().to_string();
    run("qemu-img", &["convert", "-O", "qcow2", disk.path.to_str().unwrap(), &qcow2]);
    for location in [disk.location("root"), format!("qcow2:{qcow2}@vg/root").parse().unwrap()] {
        let volume = Volume::open(&location).unwrap();
        assert!(volume.read("/file").unwrap() == content, "{location}");
        let file = volume.open("/file").unwrap();
        let mut queue = volume.queue(&QueueOptions::new()).unwrap();
        let mut read = vec![0; content.len()];
        assert_eq!(file.read_at(&mut queue, &mut read, 0).unwrap(), content.len());
        assert!(read == content, "{location}");
    }
}

/// The physical volumes of a group are on two disks: a file, and a partition of a qcow2 image. ironmap reads the same bytes as from one
/// disk. If a disk is missing or is a copy of another disk, the error names this disk.
#[test]
fn a_group_on_several_disks_is_read() {
    require!(NEEDS);
    let disk = Disk::new();
    disk.make(&["-n", "root", "-L", "4M"]);
    disk.make(&["-n", "striped", "-L", "8M", "-i", "2", "-I", "64k"]);
    disk.make(&["-n", "spread", "-l", "100%FREE"]);
    let bytes = std::fs::read(&disk.path).unwrap();
    let path = |name: &str| disk.dir.path().join(name).display().to_string();
    let one = path("one");
    let (start, len) = PARTS[0];
    std::fs::write(&one, &bytes[start as usize..][..len as usize]).unwrap();
    std::fs::copy(&one, path("copy")).unwrap();
    let two = path("two.qcow2");
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", disk.path.to_str().unwrap(), &two]);
    let open = |text: String| {
        let location: Location = text.parse().unwrap();
        location.open(&LocationOptions::new())
    };
    for name in ["root", "striped", "spread"] {
        let expected = disk.expected(name);
        for disks in [format!("{one},qcow2:{two}@p2"), format!("qcow2:{two}@p2,{one}")] {
            let device = open(format!("lvm:vg/{name}@{disks}")).unwrap().device;
            let mut read = vec![0; device.size() as usize];
            device.read_exact_at(&mut read, DevOffset(0)).unwrap();
            assert!(numbers(&read) == expected, "{name} of {disks}");
            let device = open(format!("part:1M+8K@lvm:vg/{name}@{disks}")).unwrap().device;
            let mut read = vec![0; 8192];
            device.read_exact_at(&mut read, DevOffset(0)).unwrap();
            assert!(
                device.size() == 8192 && numbers(&read) == expected[MIB as usize / 8..][..1024]
            );
        }
    }
    for (text, what) in [
        (format!("lvm:vg/striped@{one}"), "lvm:VG/LV@DISK,DISK names several disks"),
        (format!("lvm:vg/none@{one},qcow2:{two}@p2"), "there is no logical volume vg/none"),
        (format!("lvm:vg/root@{one},{}", path("copy")), "copy and "),
        (format!("lvm:vg/root@{one},{one}"), "is named twice"),
        (format!("lvm:vg/root@{one},{}", path("missing")), "missing"),
    ] {
        let error = open(text.clone()).unwrap_err().to_string();
        assert!(error.contains(what), "{text}: {error}");
    }
    // Only one of the group's two disks is given. A logical volume can be read if all its blocks are on this disk.
    assert_eq!(open(format!("lvm:vg/root@{one}")).unwrap().device.size(), 4 * MIB);
}

/// The result of opening a logical volume: the kind and the message of the error.
fn open(disk: &Disk, name: &str) -> Result<(), (ErrorKind, String)> {
    let opened = disk.location(name).open(&LocationOptions::new());
    opened.map(|_| ()).map_err(|error| (error.kind(), error.to_string()))
}

/// Asserts that an open fails with this kind of error, and that the message contains this text.
fn assert_refused(disk: &Disk, name: &str, kind: ErrorKind, text: &str) {
    let (found, message) = open(disk, name).unwrap_err();
    assert!(found == kind && message.contains(text), "{found:?}: {message}");
}

impl Disk {
    /// Overwrites bytes of the disk.
    fn overwrite(&self, bytes: &[u8], at: u64) {
        let file = std::fs::OpenOptions::new().write(true).open(&self.path).unwrap();
        file.write_all_at(bytes, at).unwrap();
    }

    /// The first MiB of a partition, with the metadata of its physical volume.
    fn metadata(&self, (start, _): (u64, u64)) -> Vec<u8> {
        let mut bytes = vec![0; MIB as usize];
        std::fs::File::open(&self.path).unwrap().read_exact_at(&mut bytes, start).unwrap();
        bytes
    }

    /// Changes the metadata of the group with `vgcfgrestore`, as a user who edits a backup.
    fn edit(&self, change: impl FnOnce(String) -> String) {
        let backup = self.dir.path().join("backup.txt").display().to_string();
        self.lvm("vgcfgbackup", &["-f", &backup, "vg"]);
        let text = std::fs::read_to_string(&backup).unwrap();
        let changed = change(text.clone());
        assert_ne!(changed, text);
        std::fs::write(&backup, changed).unwrap();
        self.lvm("vgcfgrestore", &["-f", &backup, "vg"]);
    }
}

/// The store of a snapshot cannot be read as a volume. The origin of the snapshot can be read, except while the snapshot is being merged
/// into it.
#[test]
fn snapshots_are_obeyed() {
    require!(NEEDS);
    let disk = Disk::new();
    for name in ["root", "store", "other"] {
        disk.make(&["-n", name, "-L", "4M"]);
    }
    let volumes = "logical_volumes {";
    disk.edit(|text| text.replacen(volumes, &format!("{volumes}{SNAPSHOT}"), 1));
    assert_eq!([open(&disk, "root"), open(&disk, "other")], [Ok(()), Ok(())]);
    assert_refused(&disk, "store", ErrorKind::Unsupported, "the changes of a snapshot");

    disk.edit(|text| text.replacen("cow_store", "merging_store", 1));
    assert_refused(&disk, "store", ErrorKind::Unsupported, "the changes of a snapshot");
    assert_refused(&disk, "root", ErrorKind::Unsupported, "a snapshot is being merged");
    assert_eq!(open(&disk, "other"), Ok(()));
}

const SNAPSHOT: &str = r#"
    snapshot0 {
        id = "aaaaaa-aaaa-aaaa-aaaa-aaaa-aaaa-aaaaaa"
        status = ["READ", "WRITE"]
        flags = []
        segment_count = 1
        segment1 {
            start_extent = 0
            extent_count = 4
            type = "snapshot"
            chunk_size = 8
            origin = "root"
            cow_store = "store"
        }
    }
"#;

/// An open fails in three cases, and the error names the reason: the name is unknown, a physical volume of the logical volume is lost, or
/// one physical volume is a copy of another. A logical volume without blocks on the lost physical volume can still be opened.
#[test]
fn lost_and_copied_physical_volumes_are_named() {
    require!(NEEDS);
    let disk = Disk::new();
    disk.make(&["-n", "root", "-L", "4M"]);
    disk.make(&["-n", "other", "-l", "100%FREE"]);
    assert_refused(&disk, "none", ErrorKind::NotFound, "root (4 MiB)");
    assert_eq!(open(&disk, "other"), Ok(()));
    let copy = disk.metadata(PARTS[0]);
    disk.overwrite(&[0; 4096], PARTS[1].0);
    assert_eq!(open(&disk, "root"), Ok(()));
    assert_refused(&disk, "other", ErrorKind::Unsupported, "is not on this disk");
    disk.overwrite(&copy, PARTS[1].0);
    assert_refused(&disk, "root", ErrorKind::Corrupt, "one is a copy of the other");
}

/// A physical volume was moved to another group. The other disk of its old group was missing at that time and has old metadata. These
/// metadata are wrong for the moved physical volume, so ironmap reads no data from it.
#[test]
fn a_physical_volume_of_another_group_is_not_read() {
    require!(NEEDS);
    let disk = Disk::new();
    disk.make(&["-n", "first", "-L", "4M"]);
    disk.make(&["-n", "both", "-l", "100%FREE"]);
    let older = disk.metadata(PARTS[0]);
    disk.lvm("vgremove", &["-y", "-f", "vg"]);
    disk.lvm("vgcreate", &["-y", "-s", "1M", "new", "PV1"]);
    disk.overwrite(&older, PARTS[0].0);
    assert_eq!(open(&disk, "first"), Ok(()));
    assert_refused(&disk, "both", ErrorKind::Corrupt, "belongs to another volume group");
}

/// A logical volume ends within the partition of its physical volume, even if the disk continues. If a disk has a newer partition table
/// than its label, ironmap ignores the label, as LVM does.
#[test]
fn the_partition_table_bounds_physical_volumes() {
    require!(NEEDS);
    let disk = Disk::new();
    disk.make(&["-n", "small", "-L", "4M", "--alloc", "contiguous"]);
    disk.make(&["-n", "large", "-l", "100%FREE"]);
    let resize = |script: &str| {
        let command =
            format!("echo '{script}' | sfdisk -q --no-reread -N 1 {}", disk.path.display());
        run("sh", &["-c", &command]);
    };
    resize(&format!("start={}, size={}", PARTS[0].0 / 512, 20 * MIB / 512));
    assert_eq!(open(&disk, "small"), Ok(()));
    assert_refused(&disk, "large", ErrorKind::Corrupt, "is shorter than its physical volume");

    let whole = disk.metadata(PARTS[0]);
    disk.overwrite(&whole[512..1024], 512);
    disk.overwrite(&whole[4096..], 4096);
    let table = "printf 'label: dos\nstart=2048, size=8192\n' | sfdisk -q --no-reread --wipe never";
    run("sh", &["-c", &format!("{table} {}", disk.path.display())]);
    disk.overwrite(&[0; 4096], MIB);
    assert_refused(&disk, "small", ErrorKind::NotFound, "it has no LVM physical volume");
}

/// The test changes single bytes in the label, in the header of the metadata area, and in the metadata text. After each change, ironmap
/// refuses the logical volume or finds it at the same position.
#[test]
fn damaged_metadata_are_an_error_or_the_same() {
    require!(NEEDS);
    let disk = Disk::new();
    disk.make(&["-n", "root", "-L", "4M"]);
    let mut bytes = vec![0; (PARTS[0].1) as usize];
    std::fs::File::open(&disk.path).unwrap().read_exact_at(&mut bytes, PARTS[0].0).unwrap();
    let ram = Ram::from_image(&bytes);
    let place = |ram: &Ram| Groups::read(ram).and_then(|groups| groups.find("vg", "root"));
    let sound = place(&ram).unwrap();
    let mut rng = Rng::new(0x1F3A);
    let text = bytes.windows(4).position(|bytes| bytes == b"vg {").unwrap();
    let label = 512..1024;
    let header = 4096..4096 + 512;
    let sampled = (0..400).map(|_| text + rng.below(1600) as usize).collect::<Vec<_>>();
    let mut refused = 0;
    for at in label.chain(header).chain(sampled) {
        let sector = at / 512 * 512;
        let mut changed = Buffer::aligned(512).unwrap();
        changed.copy_from_slice(&bytes[sector..sector + 512]);
        changed[at % 512] ^= 1 << rng.below(8);
        ram.write_all_at(&[IoSlice::new(&changed)], DevOffset(sector as u64), false).unwrap();
        match place(&ram) {
            Ok(found) => assert_eq!(found, sound, "byte {at}"),
            Err(_) => refused += 1,
        }
        changed.copy_from_slice(&bytes[sector..sector + 512]);
        ram.write_all_at(&[IoSlice::new(&changed)], DevOffset(sector as u64), false).unwrap();
    }
    assert!(refused > 1000, "only {refused} changes were refused");
    assert_eq!(place(&ram).unwrap(), sound);
}
