//! Devices whose direct requests are longer than the blocks, or the sectors, of the volume on them: it is served, and nothing else changes.

use std::fs;
use std::path::Path;

use ironmap::fs::{Credentials, NewFile};
use ironmap::units::FilePos;
use ironmap::{FileOptions, QueueOptions, VolumeOptions};

use crate::common::image::{Image, scratch};
use crate::common::loop_device::LoopDevice;
use crate::common::mounted::{Mounted, unmount};
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, pattern, succeed, text, tool};

/// Changes an ext4 volume, and reads it again: files of all lengths around a block and a sector, overwritten at such positions.
fn change(bench: &Bench, volume: &str) {
    let sizes = [1, 511, 1024, 1025, 2048, 3000, 4096, 4097, 10_000, 300_000, 3 << 20];
    fs::create_dir_all(bench.path("files")).unwrap();
    for size in sizes {
        let name = format!("files/{size}");
        fs::write(bench.path(&name), pattern(size, size as u64)).unwrap();
    }
    bench.succeed(["cp", "-r", "files", &format!("{volume}:/")]);
    fs::write(bench.path("piece"), pattern(1024, 77)).unwrap();
    for at in [0, 1024, 5120, 100_352] {
        let to = format!("{volume}:/files/300000");
        let mut write = bench.command();
        write.args(["write", "--offset", &at.to_string(), &to]);
        succeed(write.stdin(fs::File::open(bench.path("piece")).unwrap()));
    }
    for size in sizes {
        let mut expected = pattern(size, size as u64);
        if size == 300_000 {
            for at in [0, 1024, 5120, 100_352] {
                expected[at..at + 1024].copy_from_slice(&pattern(1024, 77));
            }
        }
        let found = bench.succeed(["cat", &format!("{volume}:/files/{size}")]);
        assert!(found == expected, "{volume}: {size}");
    }
    bench.succeed(["rm", "-r", &format!("{volume}:/files")]);
    bench.succeed(["cp", "-r", "files", &format!("{volume}:/again")]);
}

/// Whether requests are direct; a notice says once that they are not.
fn is_direct(bench: &Bench, volume: &str) -> bool {
    let info = bench.json(&["info", "--json", volume]);
    let said = info["device"]["notices"].to_string().matches("page cache").count();
    let direct = info["device"]["direct"].as_bool().unwrap();
    assert_eq!(said, usize::from(!direct), "{info}");
    direct
}

fn is_sound(image: &Path) {
    succeed(tool("e2fsck").arg("-fn").arg(image));
}

/// ext4 with each size of blocks on a loop device with sectors of 4096 bytes.
#[test]
fn blocks_that_are_shorter_than_sectors_are_written() {
    require!([Need::Root, Need::Tool("losetup")]);
    let bench = Bench::empty();
    for (block, direct) in [("1024", false), ("2048", false), ("4096", true)] {
        let image = Image::mke2fs("32M", &["-t", "ext4", "-b", block]);
        let device = LoopDevice::with(&["--sector-size=4096"], image.path());
        assert_eq!(is_direct(&bench, device.node()), direct, "{block}");
        change(&bench, device.node());
        bench.succeed(["check", device.node()]);
        drop(device);
        is_sound(&image.path());
        assert!(is_direct(&bench, image.path().to_str().unwrap()), "{block}: the image itself");
    }
}

/// An image that shares its blocks with a copy, which a plain `cp` makes on XFS: each of the two is changed, and the other stays as it is.
#[test]
fn images_with_shared_blocks_are_served() {
    require!([Need::Root, Need::Tool("mkfs.xfs")]);
    let bench = Bench::empty();
    let host = Mounted::xfs_with_reflink();
    for block in ["1024", "4096"] {
        let (image, copy) = (host.path("image"), host.path("copy"));
        let mut mke2fs = tool("mke2fs");
        mke2fs.args(["-qF", "-t", "ext4", "-b", block]).arg(&image).arg("32M");
        succeed(&mut mke2fs);
        change(&bench, image.to_str().unwrap());
        for (changed, other) in [(&image, &copy), (&copy, &image)] {
            succeed(tool("cp").arg("--reflink=always").arg(&image).arg(&copy));
            let before = fs::read(other).unwrap();
            bench.succeed(["rm", "-r", &format!("{}:/again", changed.display())]);
            change(&bench, changed.to_str().unwrap());
            is_sound(changed);
            assert!(fs::read(other).unwrap() == before, "{block}");
        }
    }
}

/// A copy that is made while an image is open makes its requests coarser: later writes go to the image alone.
#[test]
fn an_image_that_becomes_shared_while_it_is_open_is_written() {
    require!([Need::Root, Need::Tool("mkfs.xfs")]);
    let host = Mounted::xfs_with_reflink();
    let (image, copy) = (host.path("image"), host.path("copy"));
    let mut mke2fs = tool("mke2fs");
    succeed(mke2fs.args(["-qF", "-t", "ext4", "-b", "1024"]).arg(&image).arg("32M"));
    let volume = VolumeOptions::new().write(true).open(image.to_str().unwrap()).unwrap();
    let (on, root) = (volume.fs(), volume.fs().root());
    let who = Credentials::default();
    let number = on.create(root, b"file", NewFile::Regular, 0o644, &who).unwrap();
    let content = pattern(1 << 20, 1);
    on.write(number, FilePos(0), &content).unwrap();
    on.sync().unwrap();
    succeed(tool("cp").arg("--reflink=always").arg(&image).arg(&copy));
    let before = fs::read(&copy).unwrap();
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let file = FileOptions::new().write(true);
    let file = volume.open_inode(on.inode(number).unwrap(), file).unwrap();
    let mut expected = content;
    for (seed, at) in (2..).zip((0..1 << 20).step_by(11 << 10)) {
        let piece = pattern(1024, seed);
        assert_eq!(file.write_at(&mut queue, &piece, FilePos(at as u64)).unwrap(), 1024);
        expected[at..at + 1024].copy_from_slice(&piece);
        on.create(root, format!("{seed}").as_bytes(), NewFile::Regular, 0o644, &who).unwrap();
        if seed % 16 == 0 {
            on.sync().unwrap();
        }
    }
    drop((file, queue));
    volume.close().unwrap();
    drop(volume);
    is_sound(&image);
    let bench = Bench::empty();
    assert!(bench.succeed(["cat", &format!("{}:/file", image.display())]) == expected);
    assert!(fs::read(&copy).unwrap() == before);
    is_sound(&copy);
}

/// XFS that was not closed, with sectors of 512 bytes, on a device with sectors of 4096: its log is recovered in memory as on its own.
#[test]
fn a_log_of_shorter_sectors_is_recovered() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    for block in [1024, 4096] {
        let bench = Bench::empty();
        let mkfs = format!("mkfs.xfs -q -b size={block} -s size=512");
        let mounted = Mounted::new(&mkfs, 320, "noatime");
        for number in 0..300 {
            fs::write(mounted.path(&format!("{number}")), pattern(number * 50, 1)).unwrap();
        }
        succeed(tool("sync").arg("-f").arg(mounted.dir()));
        succeed(tool("xfs_io").args(["-x", "-c", "shutdown -f"]).arg(mounted.dir()));
        assert!(unmount(mounted.dir()));
        let dir = scratch();
        let image = dir.path().join("image");
        succeed(tool("cp").arg("--sparse=always").arg(mounted.image()).arg(&image));
        let listed = |volume: &str| text(&bench.succeed(["ls", "-l", &format!("{volume}:/")]));
        let expected = listed(image.to_str().unwrap());
        let device = LoopDevice::with(&["--sector-size=4096", "--read-only"], &image);
        assert_eq!(is_direct(&bench, device.node()), block == 4096);
        assert_eq!(listed(device.node()), expected, "{block}");
        assert!(expected.lines().count() >= 300);
        let found = bench.succeed(["cat", &format!("{}:/299", device.node())]);
        assert!(found == pattern(299 * 50, 1), "{block}");
    }
}
