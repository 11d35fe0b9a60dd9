//! Logical volumes of LVM, read and written without the device mapper. The oracle is lvm2: its tools make the volumes on loop devices, and
//! show where each segment is.

mod common;

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
use ironmap::fs::ext4::MkfsOptions;
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
    disk.make(&["-n", "root", "-L", "4M"]);
    disk.make(&["-n", "gap", "-L", "3M"]);
    disk.lvm("lvextend", &["-y", "-L", "9M", "vg/root"]);
    disk.make(&["-n", "striped", "-L", "8M", "-i", "2", "-I", "64k"]);
    disk.make(&["-n", "whole", "-L", "2M", "--alloc", "contiguous"]);
    disk.make(&["-n", "spread", "-l", "100%FREE"]);
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

/// Makes and fills an ext4 volume on a logical volume with several segments. e2fsck and debugfs find this volume in the ranges that `lvs`
/// shows. No other byte of the disk changes.
#[test]
fn a_written_volume_is_in_its_ranges_only() {
    require!(NEEDS);
    let disk = Disk::new();
    disk.make(&["-n", "root", "-L", "6M"]);
    disk.make(&["-n", "gap", "-L", "3M"]);
    disk.lvm("lvextend", &["-y", "-L", "14M", "vg/root"]);
    disk.lvm("lvextend", &["-y", "-i", "2", "-I", "4k", "-L", "30M", "vg/root"]);
    let before = std::fs::read(&disk.path).unwrap();
    let location = disk.location("root");
    let opened = location.open(&LocationOptions::new().write(true).block_size(4096)).unwrap();
    ironmap::tools::make(&*opened.device, &MkfsOptions::new().block_size(4096)).unwrap();
    drop(opened);
    let volume = VolumeOptions::new().write(true).open(location).unwrap();
    let content: Vec<u8> = (0..20 * MIB as usize).map(|at| (at % 251) as u8).collect();
    volume.write("/file", &content).unwrap();
    volume.close().unwrap();
    drop(volume);

    let after = std::fs::read(&disk.path).unwrap();
    let places = disk.expected("root");
    let image = disk.dir.path().join("root.img");
    let bytes: Vec<u8> =
        places.iter().flat_map(|at| after[*at as usize..][..8].iter().copied()).collect();
    std::fs::write(&image, bytes).unwrap();
    run("e2fsck", &["-fn", image.to_str().unwrap()]);
    let copy = disk.dir.path().join("copy");
    run("debugfs", &["-R", &format!("dump /file {}", copy.display()), image.to_str().unwrap()]);
    assert!(std::fs::read(&copy).unwrap() == content);
    let mut own = vec![false; after.len() / 8];
    places.iter().for_each(|at| own[*at as usize / 8] = true);
    let others = (0..own.len()).filter(|index| !own[*index]);
    let changed: Vec<_> =
        others.filter(|index| before[index * 8..][..8] != after[index * 8..][..8]).collect();
    assert!(
        changed.is_empty(),
        "{} numbers outside of the volume, first {:?}",
        changed.len(),
        changed.first()
    );
}

/// Opens a logical volume. If the open fails, returns the kind and the message of the error.
fn open(disk: &Disk, name: &str, write: bool) -> Result<(), (ErrorKind, String)> {
    let opened = disk.location(name).open(&LocationOptions::new().write(write));
    opened.map(|_| ()).map_err(|error| (error.kind(), error.to_string()))
}

/// Asserts that an open fails with this kind of error, and that the message contains this text.
fn assert_refused(disk: &Disk, name: &str, write: bool, kind: ErrorKind, text: &str) {
    let (found, message) = open(disk, name, write).unwrap_err();
    assert!(found == kind && message.contains(text), "{found:?}: {message}");
}

/// A logical volume that is marked as read-only cannot be opened for writing. The same applies if its group is read-only, or if the volume
/// has a snapshot. The volume that stores the changes of the snapshot cannot be opened at all. The test edits a backup of the metadata and
/// restores it with `vgcfgrestore`.
#[test]
fn states_in_the_metadata_are_obeyed() {
    require!(NEEDS);
    let disk = Disk::new();
    for name in ["root", "store", "other"] {
        disk.make(&["-n", name, "-L", "4M"]);
    }
    let backup = disk.dir.path().join("backup.txt").display().to_string();
    disk.lvm("vgcfgbackup", &["-f", &backup, "vg"]);
    let text = std::fs::read_to_string(&backup).unwrap();
    let restore = |changed: String| {
        assert_ne!(changed, text);
        std::fs::write(&backup, changed).unwrap();
        disk.lvm("vgcfgrestore", &["-f", &backup, "vg"]);
    };
    assert_eq!([open(&disk, "root", false), open(&disk, "root", true)], [Ok(()), Ok(())]);

    let writable = r#"status = ["READ", "WRITE", "VISIBLE"]"#;
    restore(text.replacen(writable, r#"status = ["READ", "VISIBLE"]"#, 3));
    assert_eq!(open(&disk, "root", false), Ok(()));
    assert_refused(&disk, "root", true, ErrorKind::ReadOnly, "it is read-only");

    restore(text.replacen(
        r#"status = ["RESIZEABLE", "READ", "WRITE"]"#,
        r#"status = ["RESIZEABLE", "READ"]"#,
        1,
    ));
    assert_refused(&disk, "root", true, ErrorKind::ReadOnly, "its volume group is read-only");

    // `store` contains the changes of a snapshot of `root`.
    let volumes = "logical_volumes {";
    restore(text.replacen(volumes, &format!("{volumes}{SNAPSHOT}"), 1));
    assert_eq!(open(&disk, "root", false), Ok(()));
    assert_refused(&disk, "root", true, ErrorKind::ReadOnly, "it has a snapshot");
    for write in [false, true] {
        let text = "the changes of a snapshot";
        assert_refused(&disk, "store", write, ErrorKind::Unsupported, text);
        assert_eq!(open(&disk, "other", write), Ok(()));
    }
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
    let shown = "root (4 MiB)";
    assert_refused(&disk, "none", false, ErrorKind::NotFound, shown);
    assert_eq!(open(&disk, "other", true), Ok(()));

    let overwrite = |bytes: &[u8]| {
        let file = std::fs::OpenOptions::new().write(true).open(&disk.path).unwrap();
        file.write_all_at(bytes, PARTS[1].0).unwrap();
    };
    overwrite(&[0; 4096]);
    assert_eq!([open(&disk, "root", false), open(&disk, "root", true)], [Ok(()), Ok(())]);
    assert_refused(&disk, "other", false, ErrorKind::Unsupported, "which is not on this disk");

    let mut copy = vec![0; MIB as usize];
    std::fs::File::open(&disk.path).unwrap().read_exact_at(&mut copy, PARTS[0].0).unwrap();
    overwrite(&copy);
    let text = "one is a copy of the other";
    assert_refused(&disk, "root", false, ErrorKind::Corrupt, text);
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
    let sound = place(&ram).unwrap().segments;
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
            Ok(found) => assert_eq!(found.segments, sound, "byte {at}"),
            Err(_) => refused += 1,
        }
        changed.copy_from_slice(&bytes[sector..sector + 512]);
        ram.write_all_at(&[IoSlice::new(&changed)], DevOffset(sector as u64), false).unwrap();
    }
    assert!(refused > 1000, "only {refused} changes were refused");
    assert_eq!(place(&ram).unwrap().segments, sound);
}
