//! Writes that the kernel has cached may fail later: the volume is full, or the device fails. The writer then gets an error from `write`,
//! `msync` or `fsync`. If there is no error, all of the data exist.

use std::fs;
use std::path::Path;

use super::device::Device;
use crate::full::{CachedWrite, leave};
use crate::sides::{Ours, check, long, require_mounts, skip, unmount};
use crate::support::{Bench, succeed, text, tool};

const BLOCK: u64 = 1024;
/// The length of a file in blocks.
const LEN: u64 = 24;

/// The state of a file before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    New,
    /// Every other block is a hole. Therefore the data need many requests.
    Holes,
}

/// Makes a volume with a file in this state.
fn volume(features: &str, shape: Shape) -> Bench {
    let bench = Bench::empty();
    let (image, dir) = (bench.image(), bench.path("mounted"));
    let mke2fs = ["-qF", "-t", "ext4", "-b", "1024", "-N", "16", "-O", features];
    succeed(tool("mke2fs").args(mke2fs).arg(&image).arg("8M"));
    if shape == Shape::Holes {
        let ours = Ours::mount(&image, &dir, "rw");
        let mut program = tool("xfs_io");
        program.arg("-f");
        for block in (0..LEN).step_by(2) {
            program.args(["-c", &format!("pwrite -q -S 0x62 {} {BLOCK}", block * BLOCK)]);
        }
        succeed(program.args(["-c", &format!("truncate {}", LEN * BLOCK)]).arg(dir.join("file")));
        ours.unmount();
    }
    bench
}

/// Asserts that an error was reported, or that the written data are on the volume.
fn verify(image: &Path, dir: &Path, told: &str, when: &str) {
    let ours = Ours::mount(image, dir, "ro");
    let there = fs::read(dir.join("file")).unwrap_or_default();
    ours.unmount();
    let is_there = there == vec![b'a'; (LEN * BLOCK) as usize];
    assert!(is_there || !told.is_empty(), "{when}: {} bytes, and nobody was told", there.len());
}

/// The lines in which e2fsck asks a question or reports a repair. If the flush of a transaction failed, the journal must be recovered. The
/// superblock then has old counts of free blocks and inodes, as after a crash of Linux. The two lines about these counts are allowed.
fn complaints(found: &str) -> Vec<&str> {
    let is_recovered = found.contains("recovering journal");
    let forgiven = ["Free blocks count wrong (", "Free inodes count wrong ("];
    let mut before = "";
    found
        .lines()
        .filter(|line| {
            let is_forgiven = is_recovered && forgiven.iter().any(|it| before.starts_with(it));
            before = line;
            !is_forgiven && (line.contains('?') || line.contains("FIXED"))
        })
        .collect()
}

fn each(mut run: impl FnMut(CachedWrite, &str, Shape)) {
    for way in CachedWrite::ALL {
        for features in ["extents", "^extents,^64bit"] {
            for shape in [Shape::New, Shape::Holes] {
                run(way, features, shape);
            }
        }
    }
}

/// On a full volume, the writer gets an error. The write is repeated with each number of free blocks, from none to more than the file
/// needs.
#[test]
fn a_writer_on_a_full_volume_gets_an_error() {
    require_mounts!("a_writer_on_a_full_volume_gets_an_error");
    if tool("xfs_io").arg("-V").output().is_err() {
        return skip("a_writer_on_a_full_volume_gets_an_error", "needs the program xfs_io");
    }
    let rooms = if long() { (0..=LEN + 2).collect() } else { vec![1, 7, 11, LEN - 1, LEN + 2] };
    each(|way, features, shape| {
        let original = volume(features, shape);
        let (mut lost, mut kept) = (0, 0);
        for room in &rooms {
            let bench = Bench::empty();
            let (image, dir) = (bench.image(), bench.path("mounted"));
            fs::copy(original.image(), &image).unwrap();
            let ours = Ours::mount(&image, &dir, way.options());
            leave(&dir, room * BLOCK);
            let told = way.write(&dir.join("file"), LEN * BLOCK);
            ours.unmount();
            check(&image);
            let when = format!("{way:?}, {features}, {shape:?}, room for {room} blocks");
            verify(&image, &dir, &told, &when);
            assert!(told.is_empty() || told.contains("No space left"), "{when}: {told}");
            if told.is_empty() { kept += 1 } else { lost += 1 }
        }
        assert!(lost > 0 && kept > 0, "{way:?}, {features}, {shape:?}: {lost} told, {kept} not");
    });
}

/// On a failing device, the writer gets an error. In each run, a different write or flush of the device fails.
#[test]
fn a_writer_to_a_failing_device_gets_an_error() {
    require_mounts!("a_writer_to_a_failing_device_gets_an_error");
    if tool("xfs_io").arg("-V").output().is_err() {
        return skip("a_writer_to_a_failing_device_gets_an_error", "needs the program xfs_io");
    }
    each(|way, features, shape| {
        let original = volume(features, shape);
        let mut number = 1;
        loop {
            let when = format!("{way:?}, {features}, {shape:?}, write {number} fails");
            let bench = Bench::empty();
            let (image, dir) = (bench.image(), bench.path("mounted"));
            fs::copy(original.image(), &image).unwrap();
            let device = Device::new(&image, &bench.path("device"));
            let mut ours = Ours::mount(&device.path(), &dir, way.options());
            device.faults.fail_write(number);
            let told = way.write(&dir.join("file"), LEN * BLOCK);
            let has_failed = device.faults.has_failed();
            device.faults.fail_write(0);
            assert!(unmount(&dir), "{when}: stays mounted");
            // The daemon may exit with an error, because it reports the failure of the device.
            ours.wait();
            drop((ours, device));
            verify(&image, &dir, &told, &when);
            // The device's errors are recorded until e2fsck has run. This record is the only finding that e2fsck may report.
            let out = tool("e2fsck").args(["-fy"]).arg(&image).output().unwrap();
            let found = text(&out.stdout);
            assert_eq!(complaints(&found), Vec::<&str>::new(), "{when}: {found}");
            if !has_failed {
                assert!(!found.contains("recovering journal"), "{when}: {found}");
                assert_eq!(told, "", "{when}");
                assert!(number > 1, "{when}");
                break;
            }
            number += if long() { 1 } else { 1 + number / 2 };
        }
    });
}
