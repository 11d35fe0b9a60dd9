//! Reads of a damaged or hostile image return an error or data. They never panic, never hang, and never need unbounded memory.

use std::path::Path;
use std::time::{Duration, Instant};

use ironmap::ErrorKind;
use ironmap::device::Device;
use ironmap::device::image::{Address, ImageFormat, describe};
use ironmap::units::DevOffset;

use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::make::{Dir, content, open, qcow2};
use crate::require;

const SIZE: usize = 1 << 20;

/// Reads and writes parts of an image. Any result is accepted.
fn use_it(path: &Path, format: ImageFormat, rng: &mut Rng) -> bool {
    let address = Address::new(format, path);
    let _ = describe(&address);
    let mut opened = false;
    if let Ok(image) = open(path, format, false) {
        opened = true;
        let mut buf = vec![0; 64 << 10];
        for at in [0, 64 << 10, 500 << 10, (SIZE - (64 << 10)) as u64, rng.next() >> 20] {
            let _ = image.read_exact_at(&mut buf, DevOffset(at));
        }
    }
    if format == ImageFormat::Qcow2
        && let Ok(image) = open(path, format, true)
    {
        opened = true;
        for _ in 0..3 {
            let at = 512 * rng.below(SIZE as u64 / 512 - 16);
            let data = [std::io::IoSlice::new(&[3; 8192])];
            let _ = image.write_all_at(&data, DevOffset(at), false);
            let _ = image.discard(DevOffset(at / 4096 * 4096), 65536);
        }
        let _ = image.flush();
    }
    opened
}

/// The position of a table. An entry in the header or in another table contains this position.
fn pointer(bytes: &[u8], at: usize) -> usize {
    let number = bytes[at..at + 8].iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
    (number & 0x00FF_FFFF_FFFF_FE00) as usize
}

/// The fields and tables of qcow2 images are changed at random. Each use of such an image returns an error or data.
#[test]
fn damaged_tables_are_errors_or_data() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    let raw = dir.raw("raw", &content(7, SIZE));
    let start = Instant::now();
    let plain: &[&str] = &[];
    let kinds = [
        plain,
        &["-c"],
        &["-o", "cluster_size=512"],
        &["-c", "-o", "cluster_size=4k,refcount_bits=1"],
        &["-c", "-o", "cluster_size=16k,compression_type=zstd"],
        &["-o", "cluster_size=16k,extended_l2=on"],
    ];
    let (mut opened, mut number) = (0, 0);
    for (kind, options) in kinds.iter().enumerate() {
        let whole = std::fs::read(dir.convert(&raw, "image", "qcow2", options)).unwrap();
        let (l1, refcounts) = (pointer(&whole, 40), pointer(&whole, 48));
        let (l2, block) = (pointer(&whole, l1), pointer(&whole, refcounts));
        let areas =
            [(0, 112), (l1, 64), (refcounts, 64), (l2, 1024), (block, 256), (0, whole.len())];
        for seed in 0..700 {
            let mut rng = Rng::new(seed * 4 + kind as u64);
            let mut bytes = whole.clone();
            for _ in 0..=rng.below(3) {
                let (from, len) = areas[rng.below(areas.len() as u64) as usize];
                let at = (from + rng.below(len as u64) as usize).min(bytes.len() - 8);
                match rng.below(5) {
                    0 => bytes[at] ^= 1 << rng.below(8),
                    1 => bytes[at] = rng.next() as u8,
                    2 => bytes[at & !7..][..8].copy_from_slice(&rng.next().to_be_bytes()),
                    // The test sets the pointer to another position in the file, or to a position just past the end of the file.
                    3 => {
                        let to =
                            (rng.below(bytes.len() as u64 + 65536) & !511) | (rng.below(3) << 62);
                        bytes[at & !7..][..8].copy_from_slice(&to.to_be_bytes());
                    }
                    _ => bytes[at & !7..][..8].fill(0xFF),
                }
            }
            if rng.below(20) == 0 {
                bytes.truncate(rng.below(bytes.len() as u64) as usize);
            }
            let path = dir.raw("hostile", &bytes);
            let begun = Instant::now();
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                use_it(&path, ImageFormat::Qcow2, &mut rng)
            }));
            assert!(result.is_ok(), "panic: options {options:?}, seed {seed}");
            assert!(begun.elapsed() < Duration::from_secs(5), "options {options:?}, seed {seed}");
            opened += u32::from(result.unwrap_or(false));
            number += 1;
            if start.elapsed() > Duration::from_secs(40) {
                break;
            }
        }
    }
    assert!(opened > number / 4, "{opened} of {number} were opened");
}

/// VMDK and VHDX images are damaged. Each use of such an image returns an error or data.
#[test]
fn damaged_vmdk_and_vhdx_images_are_errors_or_data() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    let raw = dir.raw("raw", &content(7, SIZE));
    let start = Instant::now();
    let (mut opened, mut number) = (0, 0);
    for (format, options) in [
        (ImageFormat::Vmdk, "subformat=monolithicSparse"),
        (ImageFormat::Vmdk, "subformat=streamOptimized"),
        (ImageFormat::Vmdk, "subformat=monolithicFlat"),
        (ImageFormat::Vhdx, "subformat=dynamic,block_size=1M"),
    ] {
        let whole =
            std::fs::read(dir.convert(&raw, "image", format.name(), &["-o", options])).unwrap();
        let areas: &[(usize, usize)] = match format {
            ImageFormat::Vhdx => {
                &[(65536, 128), (192 << 10, 128), (2 << 20, 512), (3 << 20, 64), (0, 1 << 22)]
            }
            _ => &[(0, 96), (512, 512), (0, 24 << 10), (0, usize::MAX)],
        };
        for seed in 0..500 {
            let mut rng = Rng::new(seed);
            let mut bytes = whole.clone();
            for _ in 0..=rng.below(3) {
                let (from, len) = areas[rng.below(areas.len() as u64) as usize];
                let len = len.min(bytes.len().saturating_sub(from)).max(1);
                let at = (from + rng.below(len as u64) as usize).min(bytes.len() - 8);
                match rng.below(4) {
                    0 => bytes[at] ^= 1 << rng.below(8),
                    1 => bytes[at] = rng.next() as u8,
                    2 => bytes[at & !3..][..4].copy_from_slice(&(rng.next() as u32).to_le_bytes()),
                    _ => bytes[at & !7..][..8].fill(0xFF),
                }
            }
            if rng.below(20) == 0 {
                bytes.truncate(rng.below(bytes.len() as u64) as usize);
            }
            let sum = |bytes: &mut [u8]| {
                bytes[4..8].fill(0);
                let sum = crc32c::crc32c(bytes).to_le_bytes();
                bytes[4..8].copy_from_slice(&sum);
            };
            if format == ImageFormat::Vhdx && bytes.len() > 320 << 10 {
                // A hostile image has valid checksums, so the test repairs the checksums after each change.
                for (at, len) in [(64, 4096), (128, 4096), (192, 65536), (256, 65536)] {
                    sum(&mut bytes[at << 10..][..len]);
                }
            }
            let path = dir.raw("hostile", &bytes);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                use_it(&path, format, &mut rng)
            }));
            assert!(result.is_ok(), "panic: options {options}, seed {seed}");
            opened += u32::from(result.unwrap_or(false));
            number += 1;
            if start.elapsed() > Duration::from_secs(30) {
                break;
            }
        }
    }
    assert!(opened > number / 4, "{opened} of {number} were opened");
}

/// ironmap refuses sizes that need too much memory or time compared with the size of the file.
#[test]
fn lying_sizes_are_refused() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    let whole = std::fs::read(dir.create("image", &[], 1 << 30)).unwrap();
    let field = |at: usize, value: &[u8]| {
        let mut bytes = whole.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        let path = dir.raw("lying", &bytes);
        let read = qcow2(&path, false).map(drop);
        let written = qcow2(&path, true).map(drop);
        (read.err().map(|error| error.to_string()), written.err().map(|error| error.to_string()))
    };
    for (at, value) in [
        (20, &40_u32.to_be_bytes()[..]),
        (20, &0_u32.to_be_bytes()),
        (24, &u64::MAX.to_be_bytes()),
        (24, &(1_u64 << 60).to_be_bytes()),
        (36, &u32::MAX.to_be_bytes()),
        (36, &(4_u32 << 20).to_be_bytes()),
        (40, &u64::MAX.to_be_bytes()),
        (40, &(1_u64 << 40).to_be_bytes()),
        (40, &513_u64.to_be_bytes()),
        (48, &(1_u64 << 40).to_be_bytes()),
        (56, &u32::MAX.to_be_bytes()),
        (96, &31_u32.to_be_bytes()),
        (100, &u32::MAX.to_be_bytes()),
    ] {
        let (read, written) = field(at, value);
        assert!(read.is_some() && written.is_some(), "{value:?} at {at}");
        assert!(read.unwrap().contains("qcow2 header"), "{value:?} at {at}");
    }
}

/// If an allocation could overwrite the tables of an image, ironmap opens the image only for reading. There are three cases: the refcounts
/// of the tables' clusters are wrong, a table is used twice, or the refcount table lacks its first block.
#[test]
fn tables_that_could_be_overwritten_are_only_read() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    let raw = dir.raw("raw", &content(3, SIZE));
    for (bits, cluster) in [(16, 4096), (1, 4096), (64, 65536), (4, 512)] {
        let options = format!("cluster_size={cluster},refcount_bits={bits}");
        let whole = std::fs::read(dir.convert(&raw, "image", "qcow2", &["-o", &options])).unwrap();
        let (l1, refcounts) = (pointer(&whole, 40), pointer(&whole, 48));
        let (l2, block) = (pointer(&whole, l1), pointer(&whole, refcounts));
        let zeroed = |place: usize| {
            let (mut bytes, at) = (whole.clone(), place / cluster * bits);
            if bits < 8 {
                bytes[block + at / 8] &= !(((1 << bits) - 1) << (at % 8));
            } else {
                bytes[block + at / 8..][..bits / 8].fill(0);
            }
            bytes
        };
        let led_to = |place: usize| {
            let mut bytes = whole.clone();
            bytes[l1..l1 + 8].copy_from_slice(&(1 << 63 | place as u64).to_be_bytes());
            bytes
        };
        let mut without_first = whole.clone();
        without_first[refcounts..refcounts + 8].fill(0);
        let mut without_table = whole.clone();
        without_table[56..60].fill(0);
        let wrong: Vec<_> = [0, l1, l2, refcounts, block]
            .map(zeroed)
            .into_iter()
            .chain([l1, refcounts, block].map(led_to))
            .chain([without_first, without_table])
            .collect();
        for (number, bytes) in wrong.iter().enumerate() {
            let path = dir.raw("wrong", bytes);
            let error = qcow2(&path, true).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{options}, {number}: {error}");
            assert!(std::fs::read(&path).unwrap() == *bytes, "{options}, {number}: it was written");
        }
        qcow2(&dir.raw("right", &whole), true).unwrap();
    }
}

/// ironmap keeps all tables of a writable image in memory. So it refuses to write an image with too many tables.
#[test]
fn an_image_with_too_many_tables_is_only_read() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    for (gib, fits) in [(32, true), (33, false)] {
        let path = dir.create("many", &["-o", "cluster_size=512"], gib << 30);
        qcow2(&path, false).unwrap();
        let error = qcow2(&path, true).err();
        assert_eq!(error.is_none(), fits, "{gib} GiB");
        if let Some(error) = error {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("L2 tables"), "{error}");
        }
    }
}

/// ironmap refuses invalid chains of backing files: a cycle, a chain of too many images, a device as backing file, and a name that is not a
/// path.
#[test]
fn backing_files_are_regular_files_in_a_short_chain() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    let size = (1 << 20) as u64;
    let unsafe_to = |name: &str, to: &str, format: &[&str]| {
        let options = [&["-u", "-b", to][..], format].concat();
        dir.create(name, &options, size)
    };
    let refused = |path: &Path, what: &str| {
        for write in [false, true] {
            let error = qcow2(path, write).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    };
    let qcow2_format: &[&str] = &["-F", "qcow2"];
    refused(&unsafe_to("self", "self", qcow2_format), "in its own chain");
    unsafe_to("one", "two", qcow2_format);
    refused(&unsafe_to("two", "one", qcow2_format), "in its own chain");
    for number in 1..40 {
        unsafe_to(&number.to_string(), &(number - 1).to_string(), qcow2_format);
    }
    dir.create("0", &[], size);
    refused(&dir.path("39"), "more than 32");
    qcow2(&dir.path("31"), true).unwrap();
    refused(&unsafe_to("null", "/dev/null", &["-F", "raw"]), "regular file");
    refused(&unsafe_to("dir", "/etc", &["-F", "raw"]), "regular file");
    refused(&unsafe_to("none", "missing", &["-F", "raw"]), "missing");
    refused(&unsafe_to("proto", "nbd:localhost:10809", &["-F", "raw"]), "only a path is supported");
    refused(&unsafe_to("json", "json:{}", &["-F", "raw"]), "only a path is supported");
    refused(&unsafe_to("vdi", "0", &["-F", "vdi"]), "format vdi");
    // qemu-img makes no image without the format of the backing file. So the test edits the header.
    let path = unsafe_to("format", "0", &["-F", "raw"]);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(4).position(|bytes| bytes == [0xE2, 0x79, 0x2A, 0xCA]).unwrap();
    bytes[at] = 1;
    std::fs::write(&path, bytes).unwrap();
    refused(&path, "does not record the format");
}
