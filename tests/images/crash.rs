//! Crashes of a program that writes an image, and the locks of images.

use std::io::{BufRead as _, BufReader, IoSlice, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ironmap::ErrorKind;
use ironmap::device::{BlockFile, Device as _, OpenMode};
use ironmap::units::DevOffset;

use crate::common::command::{find, output};
use crate::common::loop_device::LoopDevice;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::make::{Dir, all, check, content, qcow2};
use crate::require;

const SIZE: usize = 4 << 20;

/// If an image is copied while a program writes it, the copy has a state that a crash of the program could leave. Each sector has flushed
/// data or newer data. The copy needs no repair: qemu-img finds at most unused clusters, and ironmap can immediately open the copy for
/// writing.
#[test]
fn an_image_is_sound_after_a_crash() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    let base = content(6, SIZE);
    let raw = dir.raw("raw", &base);
    let empty = dir.create("empty", &["-o", "cluster_size=512"], SIZE as u64);
    let plain = dir.convert(&raw, "plain", "qcow2", &["-o", "cluster_size=4k"]);
    let packed = dir.convert(&raw, "packed", "qcow2", &["-c", "-o", "cluster_size=16k"]);
    for (name, path, base) in
        [("empty", empty, vec![0; SIZE]), ("plain", plain, base.clone()), ("packed", packed, base)]
    {
        let copy = dir.path("copy");
        let (mut model, mut rng) = (base, Rng::new(11));
        let image = qcow2(&path, true).unwrap();
        for _ in 0..8 {
            let mut written = Vec::new();
            for _ in 0..20 {
                let at = 4096 * rng.below(SIZE as u64 / 4096) as usize;
                let (place, data) = (DevOffset(at as u64), rng.bytes(4096));
                if rng.below(8) == 0 {
                    image.write_zeroes(place, 4096).unwrap();
                    written.push((at, vec![0; 4096]));
                } else {
                    image.write_all_at(&[IoSlice::new(&data)], place, false).unwrap();
                    written.push((at, data));
                }
            }
            std::fs::copy(&path, &copy).unwrap();
            only_unused(&copy);
            let after = qcow2(&copy, true).unwrap();
            assert!(after.notices().is_empty(), "{name}");
            let found = all(&after);
            let mut newest = model.clone();
            for (at, data) in &written {
                newest[*at..*at + 4096].copy_from_slice(data);
            }
            for at in (0..SIZE).step_by(4096) {
                let found = &found[at..at + 4096];
                let one_of = |data: &[u8]| found == data;
                let between = written.iter().any(|(of, data)| *of == at && one_of(data));
                assert!(one_of(&model[at..at + 4096]) || between, "{name}: block at {at}");
            }
            // The image can be written without a repair.
            let data = rng.bytes(4096);
            after.write_all_at(&[IoSlice::new(&data)], DevOffset(0), true).unwrap();
            drop(after);
            only_unused(&copy);
            model = newest;
            image.flush().unwrap();
            std::fs::copy(&path, &copy).unwrap();
            check(&copy);
            assert!(all(&qcow2(&copy, true).unwrap()) == model, "{name}");
        }
        drop(image);
        check(&path);
    }
}

/// Whether qemu-img finds nothing worse than clusters that are in use without need. Its exit code is then 0 or 3.
fn only_unused(path: &Path) {
    let found = output("qemu-img", &["check", "-f", "qcow2", path.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(matches!(found.status.code(), Some(0 | 3)), "{}: {text}", path.display());
}

/// A QEMU process that has an image open for writing.
struct Theirs(Child);

impl Theirs {
    fn open(format: &str, image: &str) -> Self {
        let mut child = Command::new(find("qemu-io").unwrap())
            .args(["-f", format, image])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // QEMU answers only after it has opened the image, so its answer ends the wait.
        child.stdin.as_mut().unwrap().write_all(b"read 0 4k\n").unwrap();
        let mut answer = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        while !answer.contains("read 4096") {
            assert!(lines.read_line(&mut answer).unwrap() > 0, "{answer}");
        }
        Self(child)
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// QEMU refuses an image that ironmap has open, and ironmap refuses an image that QEMU has open.
#[test]
fn an_image_has_one_writer() {
    require!([Need::Tool("qemu-img"), Need::Tool("qemu-io")]);
    let dir = Dir::new();
    let path = dir.create("image", &[], SIZE as u64);
    let text = path.to_str().unwrap();
    let writes = || output("qemu-io", &["-f", "qcow2", "-c", "write 0 4k", text]);
    let reads = || output("qemu-io", &["-r", "-f", "qcow2", "-c", "read 0 4k", text]);
    assert!(writes().status.success());
    let ours = qcow2(&path, true).unwrap();
    for refused in [writes(), reads()] {
        let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && errors.contains("lock"), "{errors}");
    }
    assert_eq!(qcow2(&path, false).unwrap_err().kind(), ErrorKind::Busy);
    drop(ours);
    let ours = qcow2(&path, false).unwrap();
    assert!(!writes().status.success() && reads().status.success());
    drop(ours);
    let theirs = Theirs::open("qcow2", text);
    for write in [false, true] {
        let error = qcow2(&path, write).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    }
    drop(theirs);
    qcow2(&path, true).unwrap();
}

/// A raw image or a block device also has only one writer. QEMU opens block devices without `O_EXCL`. So ironmap checks QEMU's locks.
#[test]
fn a_raw_image_has_one_writer() {
    require!([Need::Tool("qemu-io"), Need::Root]);
    let dir = Dir::new();
    let path = dir.raw("image", &content(9, SIZE));
    let other = dir.raw("other", &content(9, SIZE));
    let device = LoopDevice::new(&other);
    for path in [path.as_path(), Path::new(device.node())] {
        let text = path.to_str().unwrap();
        let open = |write| BlockFile::open(path, &OpenMode { write, ..OpenMode::default() });
        let writes = || output("qemu-io", &["-f", "raw", "-c", "write 0 4k", text]);
        let reads = || output("qemu-io", &["-r", "-f", "raw", "-c", "read 0 4k", text]);
        assert!(writes().status.success());
        let ours = open(true).unwrap();
        let refused = writes();
        let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && errors.contains("lock"), "{text}: {errors}");
        drop(ours);
        let ours = open(false).unwrap();
        assert!(!writes().status.success() && reads().status.success(), "{text}");
        drop(ours);
        let theirs = Theirs::open("raw", text);
        for write in [false, true] {
            let error = open(write).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        }
        drop(theirs);
        open(true).unwrap();
    }
}

/// A writer is detected even if it uses another path to the same data. A lock of QEMU applies to one file only. So ironmap also checks the
/// locks of a disk, of the disk's partitions, and of the file of a loop device.
#[test]
fn a_writer_by_another_node_is_seen() {
    require!([Need::Tool("qemu-io"), Need::Tool("addpart"), Need::Root]);
    let dir = Dir::new();
    let image = dir.raw("image", &content(9, SIZE));
    let disk = LoopDevice::with(&["--partscan"], &image);
    let (first, second) = (disk.partition(1, 1, 1), disk.partition(2, 2, 1));
    let open = |path: &str, write| {
        let mode = OpenMode { write, ..OpenMode::default() };
        BlockFile::open(Path::new(path), &mode).map(drop)
    };
    for (theirs, ours) in [
        (disk.node(), [&*first, &*second]),
        (&*first, [disk.node(), disk.node()]),
        (image.to_str().unwrap(), [disk.node(), &*second]),
    ] {
        let theirs = Theirs::open("raw", theirs);
        for ours in ours {
            for write in [false, true] {
                let error = open(ours, write).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                assert!(error.to_string().contains("written by QEMU as"), "{error}");
            }
        }
        drop(theirs);
        ours.iter().for_each(|ours| open(ours, true).unwrap());
    }
    // QEMU and ironmap use separate partitions of the file, so both can have it open.
    let theirs = Theirs::open("raw", &first);
    open(&second, true).unwrap();
    drop(theirs);
}

/// ironmap locks the backing file of an overlay against writers.
#[test]
fn a_backing_file_is_not_written_meanwhile() {
    require!([Need::Tool("qemu-img"), Need::Tool("qemu-io")]);
    let dir = Dir::new();
    let base = dir.raw("base", &content(1, SIZE));
    let overlay = dir.create("overlay", &["-b", "base", "-F", "raw"], SIZE as u64);
    let image = qcow2(&overlay, true).unwrap();
    let other = dir.create("other", &["-b", "base", "-F", "raw"], SIZE as u64);
    let second = qcow2(&other, true).unwrap();
    let args = ["-f", "raw", "-c", "write 0 4k", base.to_str().unwrap()];
    assert!(!output("qemu-io", &args).status.success());
    drop((image, second));
    assert!(output("qemu-io", &args).status.success());
}
