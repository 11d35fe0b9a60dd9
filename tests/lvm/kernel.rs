//! Logical volumes that LVM and the kernel make and fill in a virtual machine (lab/lvm.sh). The guest prints the hash of each logical volume
//! as the kernel reads it. `./x lab lvm` runs these tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use ironmap::bio::{BioFlags, Buffer, Dev};
use ironmap::device::{DeviceQueue, QueueOptions};
use ironmap::location::LocationOptions;
use ironmap::units::DevOffset;
use ironmap::{ErrorKind, Location};

use crate::common::command::run;
use crate::common::image::scratch;
use crate::common::rng::Rng;
use crate::common::skip::{Need, note};
use crate::require;

const SEED: u64 = 0x4C56_4D32;
const UNAVAILABLE: i32 = 77;
const DISKS: usize = 5;
const DISK: u64 = 192 << 20;
const PATTERN: usize = 32 << 20;
/// The modules of the guest's kernel.
const MODULES: &str = "libcrc32c dm-mod dm-log dm-region-hash dm-mirror dm-bufio dm-snapshot dm-bio-prison dm-persistent-data dm-thin-pool xor \
    raid6_pq async_tx async_memcpy async_xor async_pq async_raid6_recov md-mod raid0 raid1 raid10 raid456 dm-raid";

/// The number of disks that may be missing when this logical volume is read.
fn spared(name: &str) -> usize {
    match name {
        name if name.starts_with("raid6") => 2,
        "raid1" | "three" | "raid10" | "raid4" | "raid5" => 1,
        _ => 0,
    }
}

/// The disks after the guest has written to them, and its output.
struct Lab {
    dir: tempfile::TempDir,
    disks: Vec<PathBuf>,
    said: String,
}

impl Lab {
    /// Runs the guest. `None` if there is no virtual machine.
    fn boot() -> Option<Self> {
        let dir = scratch();
        if let Ok(dev) = std::env::var("DEVLAB") {
            let d = Path::new(&dev);
            return Some(Self {
                disks: (0..DISKS).map(|i| d.join(format!("disk{i}"))).collect(),
                said: std::fs::read_to_string(d.join("out")).unwrap(),
                dir,
            });
        }
        let files = dir.path().join("files");
        std::fs::create_dir(&files).unwrap();
        std::fs::write(files.join("pattern"), Rng::new(SEED).bytes(PATTERN)).unwrap();
        let disks: Vec<PathBuf> =
            (0..DISKS).map(|disk| dir.path().join(format!("disk{disk}"))).collect();
        for disk in &disks {
            std::fs::File::create(disk).unwrap().set_len(DISK).unwrap();
        }
        let shown: Vec<String> = disks.iter().map(|disk| disk.display().to_string()).collect();
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/boot.sh"));
        command.args(["lvm.sh", "lvm", "dmsetup", "thin_check"]);
        command.env("LAB_FILES", &files).env("LAB_DISKS", shown.join(" "));
        command.env("LAB_MODULES", MODULES).env("LAB_SECONDS", "1800");
        command.env("LAB_CONSOLE", dir.path().join("console"));
        let output = command.output().expect("the lab's script");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.code() == Some(UNAVAILABLE) {
            note("lvm::kernel", said.lines().last().unwrap_or_default());
            return None;
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}{errors}", output.status);
        Some(Self { dir, disks, said })
    }

    /// The location of a logical volume without some of the disks.
    fn location(&self, name: &str, without: &[usize]) -> Location {
        let disks = (0..DISKS).filter(|disk| !without.contains(disk));
        let disks: Vec<String> = disks.map(|disk| self.disks[disk].display().to_string()).collect();
        format!("lvm:vg/{name}@{}", disks.join(",")).parse().unwrap()
    }

    /// Opens a logical volume. Returns its faults and its content, or the kind and the message of the error.
    fn read(
        &self,
        name: &str,
        without: &[usize],
    ) -> Result<(String, Vec<u8>), (ErrorKind, String)> {
        let opened = self.location(name, without).open(&LocationOptions::new());
        let opened = opened.map_err(|error| (error.kind(), error.to_string()))?;
        let device = opened.device;
        let mut bytes = vec![0; device.size() as usize];
        device.read_exact_at(&mut bytes, DevOffset(0)).unwrap();
        // A queue reads the same bytes as the calls of the device.
        let mut queue = device.queue(&QueueOptions::new()).unwrap();
        let mut rng = Rng::new(SEED);
        for _ in 0..200 {
            let len = 512 * (1 + rng.below(600) as usize);
            let at = rng.below((bytes.len() - len) as u64 / 512 + 1) as usize * 512;
            let mut buffer = Buffer::aligned(len).unwrap();
            let place = DevOffset(at as u64);
            assert_eq!(queue.read_now(Dev::OWN, &mut buffer, place, BioFlags::empty()), Ok(len));
            assert!(buffer[..] == bytes[at..at + len], "{name}: {len} bytes at {at}, seed {SEED}");
        }
        Ok((opened.faults.join("; "), bytes))
    }

    fn assert_refused(&self, name: &str, without: &[usize], kind: ErrorKind, text: &str) {
        let Err((found, message)) = self.read(name, without) else { panic!("{name} is read") };
        assert!(found == kind && message.contains(text), "{name}: {found:?}: {message}");
    }

    /// The hash of bytes, as a line of the guest shows it.
    fn hash(&self, bytes: &[u8]) -> String {
        let path = self.dir.path().join("content");
        std::fs::write(&path, bytes).unwrap();
        let shown = String::from_utf8(run("sha256sum", &[path])).unwrap();
        format!("{} {}", bytes.len(), shown.split(' ').next().unwrap())
    }
}

/// ironmap reads the same bytes from every logical volume as the kernel. RAID volumes have these bytes even if the maximum number of disks
/// is missing. Legs that are not in sync are not used, and a fault names them. If a type or state cannot be read, the error names it. Only
/// the striped logical volume can be opened for writing.
#[test]
fn stacked_volumes_are_read_as_the_kernel_reads_them() {
    require!([
        Need::Variable("IRONMAP_LVM_LAB"),
        Need::Tool("qemu-system-x86_64"),
        Need::Tool("lvm"),
        Need::Tool("dmsetup"),
        Need::Tool("thin_check")
    ]);
    let Some(lab) = Lab::boot() else { return };
    println!("{}", lab.said.lines().find(|line| line.contains("Linux")).unwrap_or_default());
    let mut volumes = 0;
    for line in lab.said.lines().filter_map(|line| line.strip_prefix("lab: lvm ")) {
        let (name, expected) = line.split_once(' ').unwrap();
        let (faults, bytes) = lab.read(name, &[]).unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!(lab.hash(&bytes), expected, "{name}, {faults}");
        let is_stale = name.starts_with("stale");
        assert_eq!(faults.contains("is left out"), is_stale, "{name}: {faults}");
        assert_eq!(faults.is_empty(), !is_stale, "{name}: {faults}");
        let spared = spared(name);
        for first in (0..DISKS).filter(|_| spared > 0) {
            let without: Vec<usize> = (0..spared).map(|step| (first + 2 * step) % DISKS).collect();
            let (faults, degraded) = lab.read(name, &without).unwrap();
            assert!(degraded == bytes, "{name} without {without:?}: {faults}");
        }
        let write = LocationOptions::new().write(true);
        let refused = lab.location(name, &[]).open(&write).err().map(|error| error.kind());
        let expected_kind = (name != "striped").then_some(ErrorKind::ReadOnly);
        assert_eq!(refused, expected_kind, "{name}");
        println!("{name}: {expected}");
        volumes += 1;
    }
    assert!(volumes > 20, "{}", lab.said);
    refused(&lab);
}

/// Without a leg that it needs, a logical volume is refused. Some types of logical volumes are always refused.
fn refused(lab: &Lab) {
    let (faults, mirror) = lab.read("mirror", &[0]).unwrap();
    assert!(faults.contains("mirror_mimage_0 is left out"), "{faults}");
    assert!(mirror == lab.read("mirror", &[]).unwrap().1);
    assert!(lab.read("core", &[3]).is_ok());
    let too_few = "is left out";
    lab.assert_refused("core", &[1], ErrorKind::NotFound, "known to be complete");
    lab.assert_refused("raid1", &[0, 1], ErrorKind::NotFound, too_few);
    // If only the leg that is out of date is present, ironmap cannot detect that it is out of date. Linux cannot detect this either.
    let (faults, stale) = lab.read("stale1", &[2]).unwrap();
    assert!(faults.contains("stale1_rimage_0 is left out"), "{faults}");
    assert!(stale != lab.read("stale1", &[]).unwrap().1);
    lab.assert_refused("raid5", &[0, 1], ErrorKind::NotFound, too_few);
    lab.assert_refused("raid0", &[0], ErrorKind::NotFound, too_few);
    lab.assert_refused("pool", &[], ErrorKind::Unsupported, "it is a thin pool");
    lab.assert_refused("on-ahead", &[], ErrorKind::Unsupported, "is at transaction");
    for hidden in ["pool_tdata", "pool_tmeta", "raid1_rimage_0", "raid1_rmeta_1", "mirror_mlog"] {
        assert!(lab.read(hidden, &[]).is_ok(), "{hidden}");
        let write = LocationOptions::new().write(true);
        let error = lab.location(hidden, &[]).open(&write).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{hidden}: {error}");
    }
}
