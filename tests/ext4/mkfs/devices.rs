//! The content of a device before and after mkfs.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

use ironmap::ErrorKind;

use super::{make, make_on, options};
use crate::common::command::{output, run};
use crate::common::image::Image;
use crate::common::loop_device::LoopDevice;
use crate::common::skip::Need;
use crate::require;

const MIB: u64 = 1 << 20;

/// A file filled with a nonzero byte. So the test can recognise ranges that mkfs does not write.
fn dirty(size: u64) -> Image {
    let image = Image::none();
    fs::write(image.path(), vec![0xA5; size as usize]).unwrap();
    image
}

#[test]
fn same_options_make_the_same_bytes() {
    for text in ["", "-O quota,mmp,casefold,^flex_bg", "-b 4096 -O bigalloc"] {
        let (one, two) =
            (make(64 * MIB, &options(text)).unwrap(), make(64 * MIB, &options(text)).unwrap());
        assert!(fs::read(one.path()).unwrap() == fs::read(two.path()).unwrap(), "{text}");
    }
    let chance = options("").uuid(None);
    let uuids = [(); 2].map(|()| make(MIB, &chance).unwrap().ext4().superblock().uuid);
    assert_ne!(uuids[0], uuids[1]);
}

/// mkfs clears old content of the device where it could be mistaken for a part of the new volume.
#[test]
fn a_device_that_is_not_empty_is_cleared_where_it_matters() {
    for text in
        ["", "-b 4096", "-O ^metadata_csum", "-O ^has_journal,^extent", "-b 4096 -O bigalloc,quota"]
    {
        for lazy_tables in [false, true] {
            let image = dirty(64 * MIB);
            make_on(&image.path(), &options(text).lazy_tables(lazy_tables)).unwrap();
            image.check();
            image.open().unwrap();
        }
    }
    let image = dirty(64 * MIB);
    make_on(&image.path(), &options("").discard(true)).unwrap();
    image.check();
}

/// A sparse image stays sparse: tables of zeros need no space.
#[test]
fn a_sparse_image_stays_sparse() {
    let image = Image::none();
    File::create(image.path()).unwrap().set_len(16 << 30).unwrap();
    make_on(&image.path(), &options("-b 4096")).unwrap();
    image.check();
    let taken = fs::metadata(image.path()).unwrap().blocks() * 512;
    assert!(taken < 12 * MIB, "{taken} bytes");
}

/// On a block device, the kernel zeroes the ranges that mkfs must clear.
#[test]
fn a_block_device_is_cleared_where_it_matters() {
    require!([Need::Root, Need::Tool("losetup")]);
    for text in ["", "-O ^has_journal,^extent"] {
        let image = dirty(64 * MIB);
        let device = LoopDevice::new(image.path());
        make_on(device.node().as_ref(), &options(text)).unwrap();
        drop(device);
        image.check();
        image.open().unwrap();
    }
}

#[test]
fn a_volume_may_be_smaller_than_its_device() {
    let image = dirty(64 * MIB);
    make_on(&image.path(), &options("").size(20 * MIB)).unwrap();
    image.check();
    let rest = fs::read(image.path()).unwrap().split_off(20 << 20);
    assert!(rest.iter().all(|byte| *byte == 0xA5), "it wrote past its end");
    let larger = options("").size(65 * MIB).force(true);
    assert_eq!(make_on(&image.path(), &larger).unwrap_err().kind(), ErrorKind::InvalidInput);
}

/// If a device has known content, mkfs without `force` refuses the device and does not change it.
#[test]
fn known_content_is_refused_unless_forced() {
    let magics: [(u64, &[u8], &str); 4] = [
        (1024 + 56, &[0x53, 0xEF], "ext2, ext3 or ext4"),
        (0, b"XFSB", "an XFS file system"),
        (65536 + 64, b"_BHRfS_M", "a btrfs file system"),
        (0, b"LUKS\xBA\xBE", "a LUKS container"),
    ];
    for (at, bytes, name) in magics {
        let image = Image::none();
        let file = File::create(image.path()).unwrap();
        file.set_len(8 * MIB).unwrap();
        file.write_all_at(bytes, at).unwrap();
        // If another program has the image open for writing, mkfs refuses the image and names this reason.
        drop(file);
        let before = fs::read(image.path()).unwrap();
        let error = make_on(&image.path(), &options("")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
        assert!(error.to_string().contains(name), "{error}");
        assert!(fs::read(image.path()).unwrap() == before);
        make_on(&image.path(), &options("").force(true)).unwrap();
        image.check();
        let found = output("blkid", &["-p".as_ref(), image.path().as_os_str()]);
        let found = String::from_utf8_lossy(&found.stdout).into_owned();
        assert!(found.contains("TYPE=\"ext4\""), "of {name} something is left: {found}");
    }
}

#[test]
fn a_partition_table_is_refused_unless_forced() {
    require!([Need::Tool("sfdisk")]);
    let image = Image::none();
    File::create(image.path()).unwrap().set_len(64 * MIB).unwrap();
    let script = image.beside("script");
    fs::write(&script, "label: gpt\n,,L\n").unwrap();
    run("sh", &["-c", &format!("sfdisk -q {} < {}", image.path().display(), script.display())]);
    let error = make_on(&image.path(), &options("")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
    make_on(&image.path(), &options("").force(true)).unwrap();
    image.check();
    assert!(
        ironmap::partition::PartitionTable::read(&**image.open().unwrap().device())
            .unwrap()
            .is_none()
    );
}

#[test]
fn a_mounted_device_is_refused_even_if_forced() {
    require!([Need::Root, Need::Tool("losetup")]);
    let image = make(16 * MIB, &options("")).unwrap();
    let mount = image.mount("rw");
    let force = options("").force(true);
    for path in [image.path(), mount.device().into()] {
        assert_eq!(make_on(&path, &force).unwrap_err().kind(), ErrorKind::Busy, "{path:?}");
    }
}
