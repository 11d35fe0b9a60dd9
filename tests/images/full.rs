//! Images on a full file system, and the persistent bitmaps of images: qemu-img must find no lost cluster.

use std::fs::File;
use std::io::IoSlice;
use std::path::Path;

use ironmap::device::Device;
use ironmap::location::LocationOptions;
use ironmap::units::DevOffset;
use ironmap::{Errno, Location};
use rustix::fs::FallocateFlags;

use crate::common::command::{output, run};
use crate::common::full_disk::Tmpfs;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::make::{Dir, all, check, qcow2};
use crate::require;

const SEED: u64 = 0x4655_4C4C;
const SIZE: usize = 16 << 20;
/// The size of the file system in MiB, and the step in bytes between two tested sizes of the free space.
const TOTAL: u64 = 4;
const STEP: u64 = 64 << 10;

/// Writes until the file system is full. Returns the expected content, and the range whose content is not known.
fn write_until_full(path: &Path, compress: bool, rng: &mut Rng) -> (Vec<u8>, usize, usize) {
    let location: Location = format!("qcow2:{}", path.display()).parse().unwrap();
    let how = LocationOptions::new().write(true).compress(compress);
    let device = location.open(&how).unwrap().device;
    let mut model = vec![0; SIZE];
    loop {
        let len = 4096 * (1 + rng.below(32)) as usize;
        let at = 4096 * rng.below(((SIZE - len) / 4096) as u64) as usize;
        let data = rng.bytes(len);
        match device.write_all_at(&[IoSlice::new(&data)], DevOffset(at as u64), false) {
            Ok(()) => model[at..at + len].copy_from_slice(&data),
            Err(error) => {
                assert_eq!(error.errno(), Errno::ENOSPC, "{error}");
                // After the failed write, a flush can still make all earlier writes durable.
                device.flush().unwrap();
                return (model, at, len);
            }
        }
        if rng.below(4) == 0 {
            device.flush().unwrap();
        }
    }
}

/// If the host has no free space, a write fails, but the commit of earlier writes succeeds: no cluster is lost, no data are lost, and the
/// image can be written again. The test varies the free space, so that each kind of table is at some size the first that finds no space.
#[test]
fn a_full_host_loses_no_cluster() {
    require!([Need::Root, Need::Tool("qemu-img")]);
    let full = Tmpfs::new(TOTAL);
    let mut rng = Rng::new(SEED);
    for (options, compress) in [
        (&[][..], false),
        (&["-o", "cluster_size=4096"], false),
        (&["-o", "cluster_size=512"], false),
        (&["-o", "cluster_size=4096"], true),
    ] {
        for free in (8..(TOTAL << 20) / STEP).map(|count| count * STEP) {
            let path = full.path().join("image");
            let mut args = vec!["create", "-q", "-f", "qcow2"];
            args.extend(options);
            let size = SIZE.to_string();
            args.extend([path.to_str().unwrap(), &size]);
            run("qemu-img", &args);
            let filler = File::create(full.path().join("filler")).unwrap();
            let len = (TOTAL << 20) - free;
            rustix::fs::fallocate(&filler, FallocateFlags::empty(), 0, len).unwrap();
            let what = format!("{options:?}, {free} bytes, seed {SEED:#x}");
            let (model, at, len) = write_until_full(&path, compress, &mut rng);
            check(&path);
            let found = all(&qcow2(&path, false).unwrap());
            assert!(found[..at] == model[..at] && found[at + len..] == model[at + len..], "{what}");
            // A child process of another test can have a copy of the descriptor until it executes its program. The space of a removed file
            // would then stay allocated, so the test first truncates the file.
            filler.set_len(0).unwrap();
            drop(filler);
            std::fs::remove_file(full.path().join("filler")).unwrap();
            let device = qcow2(&path, true).unwrap();
            device.write_all_at(&[IoSlice::new(&[7; 4096])], DevOffset(at as u64), false).unwrap();
            device.flush().unwrap();
            drop(device);
            check(&path);
            std::fs::remove_file(&path).unwrap();
        }
    }
}

/// A write makes the persistent bitmaps of an image inconsistent, and QEMU shows this. The write loses no cluster of the bitmaps, and QEMU
/// can remove the bitmaps.
#[test]
fn the_bitmaps_of_an_image_are_not_lost() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    let path = dir.create("image", &[], SIZE as u64);
    let name = path.to_str().unwrap();
    for bitmap in ["one", "another-bitmap"] {
        run("qemu-img", &["bitmap", "--add", "-g", "65536", name, bitmap]);
    }
    // An image that is opened, but not written, keeps its bitmaps.
    drop(qcow2(&path, true).unwrap());
    let shown = || String::from_utf8(run("qemu-img", &["info", name])).unwrap();
    assert!(!shown().contains("in-use"), "{}", shown());
    for at in [0, 5 << 20] {
        let device = qcow2(&path, true).unwrap();
        device
            .write_all_at(&[IoSlice::new(&[7; 70_000 / 512 * 512])], DevOffset(at), false)
            .unwrap();
        device.flush().unwrap();
        drop(device);
        check(&path);
        assert_eq!(shown().matches("in-use").count(), 2, "{}", shown());
    }
    for bitmap in ["one", "another-bitmap"] {
        run("qemu-img", &["bitmap", "--remove", name, bitmap]);
    }
    check(&path);
    let listed = output("qemu-img", &["info", name]);
    assert!(!String::from_utf8_lossy(&listed.stdout).contains("bitmaps"));
}
