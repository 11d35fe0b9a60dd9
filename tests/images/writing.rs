//! Writes to images. A model predicts the bytes of the disk. qemu-img must find no error in the image and read the bytes of the model.

use std::fs::File;
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ironmap::device::Device;
use ironmap::units::DevOffset;

use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::make::{Dir, all, check, compare, content, qcow2};
use crate::require;

const SIZE: usize = 6 << 20;

/// Random writes, zeros, discards and flushes. A discarded range has undefined content, so the model gets the content that is read back.
fn steps(device: &dyn Device, model: &mut [u8], rng: &mut Rng, count: usize) {
    for _ in 0..count {
        let most = if rng.below(8) == 0 { 2000 } else { 40 };
        let len = 512 * (1 + rng.below(most) as usize);
        let at = 512 * rng.below(((model.len() - len) / 512) as u64) as usize;
        match rng.below(10) {
            0 => device.flush().unwrap(),
            1 => {
                device.discard(DevOffset(at as u64), len as u64).unwrap();
                device.read_exact_at(&mut model[at..at + len], DevOffset(at as u64)).unwrap();
            }
            2 => {
                device.write_zeroes(DevOffset(at as u64), len as u64).unwrap();
                model[at..at + len].fill(0);
            }
            3 => {
                let mut bytes = vec![0; len];
                device.read_exact_at(&mut bytes, DevOffset(at as u64)).unwrap();
                assert!(bytes == model[at..at + len]);
            }
            _ => {
                let data = rng.bytes(len);
                let (one, two) = data.split_at(len / 1024 * 512);
                let bufs = [IoSlice::new(one), IoSlice::new(two)];
                device.write_all_at(&bufs, DevOffset(at as u64), rng.below(20) == 0).unwrap();
                model[at..at + len].copy_from_slice(&data);
            }
        }
    }
}

#[test]
fn random_writes_leave_a_sound_image() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    let bytes = content(4, SIZE);
    let raw = dir.raw("raw", &bytes);
    let plain: &[&str] = &[];
    for (name, options) in [
        ("v3", plain),
        ("compressed", &["-c"]),
        ("small", &["-o", "cluster_size=512"]),
        ("small_c", &["-c", "-o", "cluster_size=1024,refcount_bits=64"]),
        ("large", &["-o", "cluster_size=2M"]),
        ("narrow", &["-o", "refcount_bits=1"]),
        ("metadata", &["-o", "preallocation=metadata"]),
    ] {
        let mut model = bytes.clone();
        let path = dir.convert(&raw, name, "qcow2", options);
        for round in 0..3 {
            let image = qcow2(&path, true).unwrap();
            steps(&image, &mut model, &mut Rng::new(round), 120);
            if round == 1 {
                image.flush().unwrap();
            }
            drop(image);
            check(&path);
            let model = dir.raw("model", &model);
            compare(&path, "qcow2", &model);
        }
        assert!(all(&qcow2(&path, false).unwrap()) == model, "{name}");
    }
}

/// If an image grows past the range of its refcount table, it gets a larger table. This happens several times in the test.
#[test]
fn the_refcount_table_grows() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    let size = 40 << 20;
    let bytes = Rng::new(6).bytes(size);
    let model = dir.raw("model", &bytes);
    for (name, options, clusters) in [
        ("small", "cluster_size=512", 2),
        ("wide", "cluster_size=512,refcount_bits=64", 6),
        ("kilo", "cluster_size=1024,refcount_bits=64", 2),
    ] {
        let path = dir.create(name, &["-o", options], size as u64);
        let table = || {
            let mut field = [0; 4];
            File::open(&path).unwrap().read_exact_at(&mut field, 56).unwrap();
            u32::from_be_bytes(field)
        };
        assert_eq!(table(), 1, "{name}");
        for part in [0..size / 2, size / 2..size] {
            let image = qcow2(&path, true).unwrap();
            for (index, at) in part.step_by(1 << 20).enumerate() {
                let data = [IoSlice::new(&bytes[at..at + (1 << 20)])];
                image.write_all_at(&data, DevOffset(at as u64), index % 8 == 0).unwrap();
            }
            drop(image);
            check(&path);
        }
        assert!(table() >= clusters, "{name}: {} clusters", table());
        compare(&path, "qcow2", &model);
        assert!(all(&qcow2(&path, false).unwrap()) == bytes, "{name}");
    }
}

/// Written zeros allocate no space. They hide the content of the backing file.
#[test]
fn zeros_take_no_room() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    dir.raw("base", &vec![7; SIZE]);
    let overlay = dir.create("overlay", &["-b", "base", "-F", "raw"], SIZE as u64);
    let raw = dir.raw("raw", &vec![7; SIZE]);
    let full = dir.convert(&raw, "full", "qcow2", &[]);
    let len = |path: &Path| std::fs::metadata(path).unwrap().len();
    for path in [overlay, full] {
        let before = len(&path);
        let image = qcow2(&path, true).unwrap();
        image.write_zeroes(DevOffset(0), SIZE as u64).unwrap();
        drop(image);
        check(&path);
        let model = dir.raw("model", &vec![0; SIZE]);
        compare(&path, "qcow2", &model);
        // The image grows by at most one L2 table and its refcounts.
        assert!(len(&path) <= before + (192 << 10), "{} after {before}", len(&path));
    }
}

/// Writes to an empty image, and to an image with a backing file. The test checks that the backing file is not changed.
#[test]
fn a_write_copies_from_below_and_leaves_it_unchanged() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    let bytes = content(5, SIZE);
    let base = dir.raw("base", &bytes);
    let overlay = dir.create("overlay", &["-b", "base", "-F", "raw"], SIZE as u64);
    let empty = dir.create("empty", &[], SIZE as u64);
    for (path, mut model) in [(overlay, bytes.clone()), (empty, vec![0; SIZE])] {
        let image = qcow2(&path, true).unwrap();
        steps(&image, &mut model, &mut Rng::new(9), 300);
        drop(image);
        check(&path);
        let model = dir.raw("model", &model);
        compare(&path, "qcow2", &model);
    }
    assert!(std::fs::read(base).unwrap() == bytes);
}
