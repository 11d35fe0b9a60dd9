//! Images that qemu-img made from raw images. ironmap must read the same bytes as from the raw images.

use ironmap::device::Device as _;
use ironmap::device::image::{Address, Image, ImageFormat, describe};
use ironmap::units::DevOffset;

use crate::common::command::{output, run};
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::make::{Dir, all, check, content, open, qcow2};
use crate::require;

const SIZE: usize = 8 << 20;

/// ironmap reads qcow2 images as qemu-img does. The test covers each version, several cluster sizes, several refcount sizes, and zlib
/// compression.
#[test]
fn a_qcow2_image_is_read_as_qemu_reads_it() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    let bytes = content(1, SIZE);
    let raw = dir.raw("raw", &bytes);
    let compat: &[&str] = &["-o", "compat=0.10"];
    for (name, options) in [
        ("v2", compat),
        ("v2c", &["-c", "-o", "compat=0.10"]),
        ("v3", &[]),
        ("v3c", &["-c"]),
        ("small", &["-o", "cluster_size=512"]),
        ("small_c", &["-c", "-o", "cluster_size=512"]),
        ("large", &["-o", "cluster_size=2M"]),
        ("large_c", &["-c", "-o", "cluster_size=2M"]),
        ("narrow", &["-o", "refcount_bits=1"]),
        ("wide", &["-o", "refcount_bits=64,lazy_refcounts=on"]),
        ("whole", &["-S", "0", "-o", "preallocation=full"]),
        ("metadata", &["-o", "preallocation=metadata"]),
        ("zstd", &["-c", "-o", "compression_type=zstd"]),
        ("zstd_s", &["-c", "-o", "compression_type=zstd,cluster_size=4k"]),
        ("zstd_l", &["-c", "-o", "compression_type=zstd,cluster_size=2M"]),
        ("sub", &["-o", "extended_l2=on"]),
        ("sub_s", &["-o", "extended_l2=on,cluster_size=16k"]),
        ("sub_c", &["-c", "-o", "extended_l2=on,cluster_size=2M,compression_type=zstd"]),
        ("apart", &["-o", &format!("data_file={}", dir.path("data").display())]),
    ] {
        let path = dir.convert(&raw, name, "qcow2", options);
        let image = qcow2(&path, false).unwrap();
        assert_eq!(image.size(), SIZE as u64, "{name}");
        assert!(all(&image) == bytes, "{name}");
        assert_eq!(image.notices(), Vec::<String>::new(), "{name}");
    }
}

/// A read of a truncated image returns the bytes or fails. If more than the last cluster is cut, the image has a notice. Only the end of the
/// last cluster reads as zeros, because QEMU need not write it.
#[test]
fn a_truncated_qcow2_image_never_reads_as_zeros() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    let bytes = vec![0xA5; 2 << 20];
    let raw = dir.raw("raw", &bytes);
    for options in [
        &["-o", "cluster_size=64k"][..],
        &["-o", "cluster_size=4k"],
        &["-o", "cluster_size=64k,extended_l2=on"],
        &["-c", "-o", "cluster_size=64k"],
        &["-c", "-o", "cluster_size=4k,compression_type=zstd"],
    ] {
        let path = dir.convert(&raw, "whole", "qcow2", options);
        let whole = std::fs::read(&path).unwrap();
        let (mut lost, mut rng) = (0, Rng::new(7));
        for _ in 0..120 {
            let len = rng.below(whole.len() as u64) as usize;
            let cut = dir.raw("cut", &whole[..len]);
            let Ok(image) = qcow2(&cut, false) else { continue };
            let mut failed = false;
            for at in (0..bytes.len()).step_by(4096) {
                let mut buffer = [0; 4096];
                match image.read_exact_at(&mut buffer, DevOffset(at as u64)) {
                    Err(_) => failed = true,
                    Ok(()) if buffer == bytes[at..at + 4096] => {}
                    Ok(()) => {
                        // The cut is in the last cluster of the file.
                        assert!(whole.len() - len <= 65536, "{options:?}, cut at {len}: byte {at}");
                        assert!(image.notices().is_empty(), "{options:?}, cut at {len}");
                    }
                }
            }
            lost += u32::from(failed);
            let in_last = whole.len() - len <= 65536;
            assert!(!failed || in_last || image.notices().len() == 1, "{options:?}, cut at {len}");
        }
        assert!(lost > 20, "{options:?}: {lost}");
    }
}

/// A chain of three images. The lowest image is raw and shorter than the others. Clusters of zeros hide the content of the backing files.
#[test]
fn a_chain_is_read_down_to_its_raw_image() {
    require!([Need::Tool("qemu-img"), Need::Tool("qemu-io")]);
    let dir = Dir::new();
    let mut bytes = content(2, SIZE);
    dir.raw("base", &bytes[..5 << 20]);
    bytes[5 << 20..].fill(0);
    let middle = dir.create("middle", &["-b", "base", "-F", "raw"], SIZE as u64);
    let top =
        dir.create("top", &["-b", "middle", "-F", "qcow2", "-o", "cluster_size=4k"], SIZE as u64);
    let mut write = |path: &std::path::Path, command: &str, at: usize, len: usize, byte: u8| {
        run("qemu-io", &["-f", "qcow2", "-c", command, path.to_str().unwrap()]);
        bytes[at..at + len].fill(byte);
    };
    write(&middle, "write -P 7 1M 300k", 1 << 20, 300 << 10, 7);
    write(&middle, "write -z 2M 256k", 2 << 20, 256 << 10, 0);
    write(&top, "write -P 9 1100k 8k", 1100 << 10, 8 << 10, 9);
    write(&top, "write -z 1500k 8k", 1500 << 10, 8 << 10, 0);
    write(&top, "write -P 3 7M 1k", 7 << 20, 1 << 10, 3);
    let image = qcow2(&top, false).unwrap();
    assert!(all(&image) == bytes);
    drop(image);
    check(&top);
    // qemu-img reads the same bytes from the chain.
    let raw = dir.path("flat");
    run("qemu-img", &["convert", "-O", "raw", top.to_str().unwrap(), raw.to_str().unwrap()]);
    assert!(std::fs::read(raw).unwrap() == bytes);
}

/// In an image with subclusters, a cluster can have parts of its own, parts of zeros, and parts of the backing file.
#[test]
fn subclusters_are_read_as_qemu_reads_them() {
    require!([Need::Tool("qemu-img"), Need::Tool("qemu-io")]);
    let dir = Dir::new();
    let bytes = content(12, SIZE);
    dir.raw("base", &bytes);
    for (name, options) in [("k64", "extended_l2=on"), ("k16", "extended_l2=on,cluster_size=16k")] {
        let args = ["-b", "base", "-F", "raw", "-o", options];
        let path = dir.create(name, &args, SIZE as u64);
        let mut model = bytes.clone();
        let mut rng = Rng::new(12);
        for number in 0..60_u8 {
            let at = 512 * rng.below(SIZE as u64 / 512 - 400) as usize;
            let len = 512 * (1 + rng.below(400)) as usize;
            let (command, byte) = match number % 3 {
                0 => (format!("write -z {at} {len}"), 0),
                _ => (format!("write -P {number} {at} {len}"), number),
            };
            run("qemu-io", &["-f", "qcow2", "-c", &command, path.to_str().unwrap()]);
            model[at..at + len].fill(byte);
        }
        let image = qcow2(&path, false).unwrap();
        assert!(all(&image) == model, "{name}");
        // The ranges without data contain only zeros.
        let mut at = 0;
        while at < SIZE as u64 {
            let found = image.data_from(DevOffset(at)).unwrap();
            assert!(model[at as usize..found.start.0 as usize].iter().all(|byte| *byte == 0));
            at = found.end.0.max(at + 1);
        }
        drop(image);
        let error = qcow2(&path, true).unwrap_err();
        assert!(error.to_string().contains("extended_l2"), "{error}");
    }
}

/// ironmap reads the content of an internal snapshot by the snapshot's name or number. The disk can have another size than at the time of
/// the snapshot.
#[test]
fn internal_snapshots_are_read_by_name() {
    require!([Need::Tool("qemu-img"), Need::Tool("qemu-io")]);
    let dir = Dir::new();
    let mut model = content(13, SIZE);
    let raw = dir.raw("raw", &model);
    let path = dir.convert(&raw, "image", "qcow2", &["-c"]);
    let text = path.to_str().unwrap();
    let mut states = Vec::new();
    for (number, name) in ["first", "before upgrade", "v1#2"].into_iter().enumerate() {
        run("qemu-img", &["snapshot", "-c", name, text]);
        states.push((name, (number + 1).to_string(), model.clone()));
        let at = number << 20;
        let command = format!("write -P {} {at} 300k", number + 1);
        run("qemu-io", &["-f", "qcow2", "-c", &command, text]);
        model[at..at + (300 << 10)].fill(number as u8 + 1);
    }
    run("qemu-img", &["resize", "-q", "-f", "qcow2", text, "9M"]);
    model.resize(9 << 20, 0);
    assert!(all(&qcow2(&path, false).unwrap()) == model);
    let names = describe(&Address::new(ImageFormat::Qcow2, &path)).unwrap().snapshots;
    assert_eq!(names, ["first", "before upgrade", "v1#2"]);
    for (name, number, state) in states {
        for name in [name, &number] {
            let address = Address::parse(ImageFormat::Qcow2, format!("{text}#{name}").as_bytes());
            assert!(all(&Image::open(&address, false).unwrap()) == state, "{name}");
            let error = Image::open(&address, true).unwrap_err();
            assert_eq!(error.kind(), ironmap::ErrorKind::ReadOnly, "{error}");
        }
    }
    let none = Address::parse(ImageFormat::Qcow2, format!("{text}#none").as_bytes());
    let error = Image::open(&none, false).unwrap_err();
    assert!(error.to_string().contains("before upgrade"), "{error}");
}

/// qemu-img makes VMDK and VHDX images of every kind. ironmap reads the same bytes from them as qemu-img.
#[test]
fn vmdk_and_vhdx_images_are_read_as_qemu_reads_them() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    let bytes = content(3, SIZE);
    let raw = dir.raw("raw", &bytes);
    for (name, format, options, kind) in [
        ("sparse.vmdk", ImageFormat::Vmdk, "subformat=monolithicSparse", "VMDK monolithicSparse"),
        (
            "zeroed.vmdk",
            ImageFormat::Vmdk,
            "subformat=monolithicSparse,zeroed_grain=on",
            "VMDK monolithicSparse",
        ),
        ("flat.vmdk", ImageFormat::Vmdk, "subformat=monolithicFlat", "VMDK monolithicFlat"),
        (
            "split.vmdk",
            ImageFormat::Vmdk,
            "subformat=twoGbMaxExtentSparse",
            "VMDK twoGbMaxExtentSparse",
        ),
        (
            "splitflat.vmdk",
            ImageFormat::Vmdk,
            "subformat=twoGbMaxExtentFlat",
            "VMDK twoGbMaxExtentFlat",
        ),
        ("stream.vmdk", ImageFormat::Vmdk, "subformat=streamOptimized", "VMDK streamOptimized"),
        ("dynamic.vhdx", ImageFormat::Vhdx, "subformat=dynamic", "VHDX"),
        ("fixed.vhdx", ImageFormat::Vhdx, "subformat=fixed", "VHDX"),
        ("small.vhdx", ImageFormat::Vhdx, "subformat=dynamic,block_size=1M", "VHDX"),
    ] {
        let path = dir.convert(&raw, name, format.name(), &["-o", options]);
        let image = open(&path, format, false).unwrap();
        assert_eq!(image.size(), SIZE as u64, "{name}");
        assert!(all(&image) == bytes, "{name}");
        let error = open(&path, format, true).unwrap_err();
        assert_eq!(error.kind(), ironmap::ErrorKind::ReadOnly, "{error}");
        let described = describe(&Address::new(format, &path)).unwrap();
        assert_eq!((described.format.as_str(), described.virtual_size), (kind, SIZE as u64));
        assert_eq!(described.files[0].0, path);
    }
    // An image of more than 2 GiB consists of several extents.
    let large = dir.path("large");
    std::fs::File::create(&large).unwrap().set_len(5 << 30).unwrap();
    for kind in ["twoGbMaxExtentSparse", "twoGbMaxExtentFlat"] {
        let name = format!("{kind}.vmdk");
        let path = dir.convert(&large, &name, "vmdk", &["-o", &format!("subformat={kind}")]);
        let text = path.to_str().unwrap();
        for (at, byte) in [(2_u64 << 30, 5), ((4 << 30) - 4096, 6), ((5 << 30) - 4096, 7)] {
            run("qemu-io", &["-f", "vmdk", "-c", &format!("write -P {byte} {at} 4k"), text]);
            let image = open(&path, ImageFormat::Vmdk, false).unwrap();
            let mut found = vec![1; 8192];
            image.read_exact_at(&mut found, DevOffset(at - 4096)).unwrap();
            assert!(found[..4096] == [0; 4096] && found[4096..] == [byte; 4096], "{kind}");
        }
    }
}

/// ironmap refuses an image that has a parent, extents in other files, or a wrong checksum. The message names the reason.
#[test]
fn a_vmdk_or_vhdx_image_with_more_is_refused_by_name() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    let refused = |path: &std::path::Path, format, what: &str| {
        let error = open(path, format, false).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    let base = dir.convert(&dir.raw("raw", &[1; 1 << 20]), "base.vmdk", "vmdk", &[]);
    let child = dir.path("child.vmdk");
    let (base, child) = (base.to_str().unwrap(), child.to_str().unwrap());
    run("qemu-img", &["create", "-q", "-f", "vmdk", "-b", base, "-F", "vmdk", child]);
    refused(child.as_ref(), ImageFormat::Vmdk, "parent");
    let descriptor =
        |lines: &str| dir.raw("some.vmdk", format!("# Disk DescriptorFile\n{lines}").as_bytes());
    for (line, what) in [
        ("RW 8 FLAT \"/etc/passwd\" 0", "not in the directory"),
        ("RW 8 FLAT \"../passwd\" 0", "not in the directory"),
        ("RW 8 SESPARSE \"raw\"", "SESPARSE"),
        ("RW 18446744073709551615 FLAT \"raw\" 0", "the extent"),
        ("RW 4096 FLAT \"raw\" 0", "shorter"),
        ("RW 8 FLAT \"raw\" 2048", "shorter"),
        ("RW 8 FLAT \"missing\" 0", "missing"),
        ("RW 8 SPARSE \"raw\" 0", "sparse extent"),
        ("", "no extents"),
    ] {
        refused(&descriptor(line), ImageFormat::Vmdk, what);
    }
    std::os::unix::fs::symlink("raw", dir.path("link")).unwrap();
    refused(&descriptor("RW 8 FLAT \"link\" 0"), ImageFormat::Vmdk, "symbolic link");
    let image = open(&descriptor("RW 8 FLAT \"raw\" 16\nRW 8 ZERO"), ImageFormat::Vmdk, false);
    assert!(all(&image.unwrap()) == [[1; 4096], [0; 4096]].concat());
    let vhdx = dir.convert(&dir.path("raw"), "image.vhdx", "vhdx", &[]);
    let mut bytes = std::fs::read(&vhdx).unwrap();
    for at in [64 << 10, 128 << 10] {
        bytes[at + 48] = 1;
    }
    std::fs::write(&vhdx, bytes).unwrap();
    refused(&vhdx, ImageFormat::Vhdx, "checksum");
}

/// ironmap refuses to open an image with an unsupported feature. The message names the feature.
#[test]
fn a_feature_is_refused_by_name() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    let path = dir.create("feature", &[], 1 << 20);
    for (at, value, what) in
        [(79, 1 << 5, "unknown incompatible features (0x20)"), (104, 2, "compression_type 2")]
    {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at] |= value;
        let changed = dir.raw("changed", &bytes);
        let error = qcow2(&changed, false).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    let data = format!("data_file={}", dir.path("data").display());
    for (name, options, what) in
        [("sub", "extended_l2=on", "extended_l2"), ("ext", &*data, "separate data file")]
    {
        let path = dir.create(name, &["-o", options], 1 << 20);
        let error = qcow2(&path, true).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    for format in ["aes", "luks"] {
        let encrypt = format!("encrypt.format={format},encrypt.key-secret=s");
        let path = dir.path(format);
        let args =
            ["create", "-q", "-f", "qcow2", "--object", "secret,id=s,data=x", "-o", &encrypt];
        let args = [&args[..], &[path.to_str().unwrap(), "1M"]].concat();
        // qemu-img measures its CPU time when it makes a LUKS image. It fails if the kernel's clock of CPU time is too coarse.
        let made = (0..50).any(|_| output("qemu-img", &args).status.success());
        assert!(made, "qemu-img makes no image with {format}");
        let error = qcow2(&path, false).unwrap_err();
        assert_eq!(error.kind(), ironmap::ErrorKind::Encrypted, "{error}");
    }
    let raw = dir.raw("raw", &content(1, 1 << 20));
    for format in [ImageFormat::Qcow2, ImageFormat::Vmdk, ImageFormat::Vhdx] {
        let error = open(&raw, format, false).unwrap_err();
        assert_eq!(error.kind(), ironmap::ErrorKind::UnknownFormat, "{error}");
    }
}
