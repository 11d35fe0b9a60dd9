//! Inodes that other programs and old kernels made: short links whose target is in a block, and devices with nonzero bytes after the device
//! number. ironmap reads these inodes as the kernel does, and its check agrees with e2fsck. The removal of such an inode leaks no block.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use ironmap::VolumeOptions;
use ironmap::fs::ext4::{NewSize, ROOT, ResizeOptions};
use ironmap::fs::{Clock, Follow};
use ironmap::location::LocationOptions;

use crate::check::verdict::{agree, e2fsck, ironmap};
use crate::common::image::{Image, words};
use crate::common::skip::Need;
use crate::require;

const TARGET: &str = "etc/alternatives/editor";

/// A volume with two links. The target of `/l` is in a block, and the target of `/s` is in its inode.
fn links(options: &str) -> Image {
    let image = Image::mke2fs("8M", &words(options));
    let target = image.beside("target");
    fs::write(&target, TARGET).unwrap();
    let target = target.display();
    image.debugfs(&format!("write {target} l\nsif l mode 0120777\nsymlink s {TARGET}\n"));
    let number = image.ext4().resolve(b"/l", Follow::NotLast).unwrap().number();
    // The name is created with the file type of the inode.
    image.debugfs(&format!("unlink l\nlink <{number}> l\nsif <{number}> links_count 1\n"));
    image
}

fn read_link(image: &Image, name: &str) -> Option<Vec<u8>> {
    let fs = image.ext4();
    let link = fs.resolve(format!("/{name}").as_bytes(), Follow::NotLast).ok()?;
    link.read_link().ok()
}

/// Shrinks the volume to its minimum size.
fn shrink(image: &Image) {
    let options = LocationOptions::new().write(true);
    let opened = image.location().open(&options).unwrap();
    let smallest = ResizeOptions::new().size(NewSize::Minimum);
    ironmap::tools::resize(&opened.device, &smallest, Clock::System).unwrap();
}

/// A link's number of blocks determines where its target is stored. The link's size does not matter.
#[test]
fn links_are_read_as_the_kernel_reads_them() {
    require!([Need::Root]);
    let pointers = "-t ext2 -b 1024";
    let extents = "-t ext4 -b 1024 -I 128";
    let values = "-t ext4 -b 1024 -O ea_inode";
    let attributes = "ea_set l user.name value\nea_set s user.name value\n";
    for options in [pointers, extents, values] {
        for (what, commands) in [
            ("as they are", ""),
            ("a block of attributes", attributes),
            ("no blocks are counted", "sif l blocks 0\n"),
            ("blocks that are not there", "sif s blocks 2\n"),
            ("a length that the inode has no room for", "sif s size 70\n"),
        ] {
            let what = format!("{options}: {what}");
            let image = links(options);
            image.debugfs(&format!("{commands}\n"));
            let mount = image.mount("ro");
            let kernel = ["l", "s"].map(|name| {
                let target = fs::read_link(mount.dir().join(name)).ok()?;
                Some(target.into_os_string().into_encoded_bytes())
            });
            drop(mount);
            let ours = ["l", "s"].map(|name| read_link(&image, name));
            assert_eq!(ours, kernel, "{what}");
            agree(&what, &image.path(), false);
        }
    }
}

/// The removal of a link with a short target also frees the block of the target.
#[test]
fn the_block_of_a_short_target_goes_with_its_link() {
    for options in ["-t ext2 -b 1024", "-t ext4 -b 1024"] {
        let image = links(options);
        let options = VolumeOptions::new().write(true);
        let volume = crate::common::beneath::open(&image.location(), &options).unwrap();
        volume.fs().writable().unwrap().unlink(ROOT, b"l").unwrap();
        volume.close().unwrap();
        drop(volume);
        image.check();
    }
}

/// Nonzero bytes after the device number are accepted. If the inode also has a flag that is invalid for devices, these bytes are a fault.
#[test]
fn devices_with_bytes_after_their_number_are_devices() {
    require!([Need::Root]);
    let base = Image::mke2fs("16M", &words("-t ext4 -b 1024"));
    base.debugfs("mknod c c 5 1\nmknod b b 8 300\nmknod p p\n");
    for name in ["c", "b", "p"] {
        for (commands, sound) in [
            ("sif NAME block[2] 9\nsif NAME block[TIND] 77\n", true),
            ("sif NAME block[3] 77\nsif NAME flags 0x10\n", true),
            ("sif NAME block[4] 77\nsif NAME flags 0x10\n", false),
            ("sif NAME block[TIND] 77\nsif NAME flags 0x20\n", false),
            ("sif NAME size 7\n", false),
            ("sif NAME flags 0x80000\n", false),
        ] {
            let image = base.copy();
            let commands = commands.replace("NAME", name);
            image.debugfs(&commands);
            agree(&commands, &image.path(), sound);
            assert_eq!(e2fsck(&image.path()).clean, sound, "{commands}");
            assert_eq!(ironmap(&image.path()).clean, sound, "{commands}");
            if !sound {
                continue;
            }
            let found =
                image.ext4().resolve(format!("/{name}").as_bytes(), Follow::NotLast).unwrap();
            let mount = image.mount("ro");
            let theirs = fs::symlink_metadata(mount.dir().join(name)).unwrap();
            let number = (!theirs.file_type().is_fifo())
                .then(|| (rustix::fs::major(theirs.rdev()), rustix::fs::minor(theirs.rdev())));
            drop(mount);
            assert_eq!(found.stat().device, number, "{commands}");
            drop(found);
            shrink(&image);
            image.check();
        }
    }
}
