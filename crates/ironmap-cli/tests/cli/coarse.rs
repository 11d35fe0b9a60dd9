//! Tests devices whose direct requests must be longer than the blocks or sectors of the volume. The volume works, and a write does not
//! change neighbouring data.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use ironmap::fs::{Credentials, Follow, NewFile};
use ironmap::units::FilePos;
use ironmap::{FileOptions, QueueOptions, VolumeOptions};

use crate::common::image::{Image, scratch};
use crate::common::loop_device::LoopDevice;
use crate::common::mounted::{Mounted, unmount};
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, pattern, succeed, text, tool};

/// Writes files to an ext4 volume, overwrites parts of them, and reads them again. The lengths and positions are near multiples of a block
/// and of a sector.
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

/// Whether requests are direct. If they are not direct, exactly one notice reports this.
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

/// On a loop device with sectors of 4096 bytes, an ext4 can be changed, with each block size.
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

/// mkfs makes a volume whose blocks are shorter than the sectors. The device is empty, or contains a volume with longer blocks.
#[test]
fn shorter_blocks_than_sectors_are_made() {
    require!([Need::Root, Need::Tool("losetup")]);
    let bench = Bench::empty();
    for block in ["1024", "2048", "4096"] {
        for old in [None, Some("4096")] {
            let image = match old {
                Some(old) => Image::mke2fs("32M", &["-t", "ext4", "-b", old]),
                None => Image::mke2fs("32M", &["-t", "ext4", "-b", block]),
            };
            if old.is_none() {
                fs::File::create(image.path()).unwrap().set_len(32 << 20).unwrap();
            }
            let device = LoopDevice::with(&["--sector-size=4096"], image.path());
            bench.succeed(["mkfs", "-q", "-F", "-b", block, device.node()]);
            assert_eq!(is_direct(&bench, device.node()), block == "4096", "{block}");
            change(&bench, device.node());
            bench.succeed(["check", device.node()]);
            // Without an option, the block size is the sector size.
            if block == "1024" {
                drop(device);
                is_sound(&image.path());
                let device = LoopDevice::with(&["--sector-size=4096"], image.path());
                bench.succeed(["mkfs", "-q", "-F", device.node()]);
                assert!(is_direct(&bench, device.node()), "{block}");
            }
        }
    }
}

/// The blocks of a volume are shorter than the sectors, and its superblock is lost or damaged. A backup replaces the superblock. The user
/// names the backup, or the program finds one.
#[test]
fn a_backup_stands_in_on_longer_sectors() {
    require!([Need::Root, Need::Tool("losetup")]);
    for (block, backup) in [("1024", "8193"), ("2048", "16384"), ("4096", "32768")] {
        let bench = Bench::empty();
        let image = Image::mke2fs("256M", &["-t", "ext4", "-b", block]);
        change(&bench, image.path().to_str().unwrap());
        let listed = bench.succeed(["ls", "-l", &format!("{}:/again", image.path().display())]);
        let start = fs::File::options().write(true).open(image.path()).unwrap();
        // The damaged field is the number of inodes. No check of the superblock accepts its new value.
        start.write_all_at(&[0xFF; 4], 1024).unwrap();
        // A warning reports the use of a backup.
        let read = |args: &[&str]| {
            let output = bench.run(args);
            assert!(output.status.success(), "{block} {args:?}: {}", text(&output.stderr));
            output.stdout
        };
        for wiped in [false, true] {
            if wiped {
                start.write_all_at(&[0; 4096], 0).unwrap();
            }
            let device = LoopDevice::with(&["--sector-size=4096", "--read-only"], image.path());
            let volume = format!("{}:/again", device.node());
            let named = read(&["ls", "-l", "--superblock", backup, &volume]);
            assert!(named == listed, "{block}: named");
            if !wiped {
                assert!(read(&["ls", "-l", &volume]) == listed, "{block}: found");
            }
            let file = format!("{volume}/10000");
            assert!(read(&["cat", "--superblock", backup, &file]) == pattern(10_000, 10_000));
        }
    }
}

/// If blocks are shorter than the requests that a server accepts, one line warns about the costs.
#[test]
fn blocks_that_are_shorter_than_a_server_takes_are_written() {
    require!([Need::Tool("nbdkit")]);
    let bench = Bench::empty();
    let image = Image::mke2fs("32M", &["-t", "ext4", "-b", "1024"]);
    for (unit, lines) in [(1, 0), (4096, 1), (65536, 1)] {
        let mut nbdkit = tool("nbdkit");
        // With `-U -`, nbdkit makes a directory in /tmp, and does not always remove it.
        nbdkit.arg("-U").arg(bench.path(&format!("socket{unit}")));
        nbdkit.args(["--filter=blocksize-policy", "file"]).arg(image.path());
        nbdkit.arg(format!("blocksize-minimum={unit}"));
        nbdkit.args(["blocksize-preferred=65536", "blocksize-error-policy=error", "--run"]);
        let write = "printf new | \"$IRONMAP\" write \"$uri:/file\"";
        nbdkit.arg(format!("{write} && \"$IRONMAP\" info --json \"$uri\""));
        nbdkit.env("IRONMAP", bench.command().get_program());
        let said = text(&succeed(&mut nbdkit).stdout);
        let info: serde_json::Value = serde_json::from_str(&said).unwrap();
        let notices = info["device"]["notices"].to_string();
        assert_eq!(
            notices
                .matches("blocks have 1024 bytes, but the device accepts only requests of")
                .count(),
            lines,
            "{said}"
        );
        is_sound(&image.path());
        let file = bench.succeed(["cat", &format!("{}:/file", image.path().display())]);
        assert_eq!(file, b"new");
    }
}

/// An image shares its blocks with a copy that `cp` has made on XFS. A change of one file does not change the other file.
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

/// Simulates power cuts. The device has sectors of 4096 bytes. The volume has blocks of 1024 bytes, and is written through the page cache.
/// During the writes, the device is copied several times. Each copy is recovered. Blocks that were not written keep their content, even if
/// they share a sector with written blocks.
#[test]
fn a_cut_through_the_page_cache_leaves_the_neighbours() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("mkfs.xfs")]);
    let host = Mounted::xfs_with_reflink();
    let disk = host.path("disk");
    let mut mke2fs = tool("mke2fs");
    succeed(mke2fs.args(["-qF", "-t", "ext4", "-b", "1024"]).arg(&disk).arg("16M"));
    let device = LoopDevice::with(&["--sector-size=4096"], &disk);
    let volume = VolumeOptions::new().write(true).open(device.node()).unwrap();
    assert!(volume.notices().iter().any(|notice| notice.contains("page cache")));
    // Files of one block each. Every second file is written later.
    let content = |number: usize| pattern(1024, number as u64);
    for number in 0..64 {
        volume.write(format!("/{number}"), content(number)).unwrap();
    }
    volume.fs().sync().unwrap();
    let ended = AtomicBool::new(false);
    let copies: Vec<_> = (0..8).map(|number| host.path(&format!("copy{number}"))).collect();
    let (wrote, rounds) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (ended, copies, disk) = (&ended, &copies, &disk);
        scope.spawn(move || {
            for copy in copies {
                // Each copy is made during a different round of writes.
                while rounds.try_recv().is_ok() {}
                rounds.recv().unwrap();
                succeed(tool("cp").arg("--reflink=always").arg(disk).arg(copy));
            }
            ended.store(true, Ordering::Relaxed);
        });
        let mut queue = volume.queue(&QueueOptions::default()).unwrap();
        let files: Vec<_> = (0..64)
            .step_by(2)
            .map(|number| {
                let inode = volume.fs().resolve(format!("/{number}").as_bytes(), Follow::All);
                volume.open_inode(inode.unwrap(), FileOptions::new().write(true)).unwrap()
            })
            .collect();
        let mut round = 100;
        while !ended.load(Ordering::Relaxed) {
            for file in &files {
                file.write_at(&mut queue, &pattern(1024, round), FilePos(0)).unwrap();
            }
            volume.write(format!("/new{}", round % 7), pattern(3000, round)).unwrap();
            if round % 3 == 0 {
                volume.fs().sync().unwrap();
            }
            round += 1;
            // The send fails if the copying thread has ended. This is not a fault.
            let _ = wrote.send(());
        }
        assert!(round > 101, "{round} rounds");
    });
    volume.close().unwrap();
    drop(volume);
    drop(device);
    for image in copies.iter().chain([&disk]) {
        let path = image.to_str().unwrap();
        let volume = VolumeOptions::new().write(true).open(path).unwrap();
        for number in (1..64).step_by(2) {
            assert!(
                volume.read(format!("/{number}")).unwrap() == content(number),
                "{path} {number}"
            );
        }
        volume.close().unwrap();
        drop(volume);
        is_sound(image);
    }
}

/// An open image is copied, and both files then share blocks. Requests to the image must become longer. Later writes change only the image.
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
    let number =
        on.writable().unwrap().create(root, b"file", NewFile::Regular, 0o644, &who).unwrap();
    let content = pattern(1 << 20, 1);
    on.writable().unwrap().write(number, FilePos(0), &content).unwrap();
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
        on.writable()
            .unwrap()
            .create(root, format!("{seed}").as_bytes(), NewFile::Regular, 0o644, &who)
            .unwrap();
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

/// An XFS volume with sectors of 512 bytes was not closed. Its log is recovered in memory, even on a device with sectors of 4096 bytes.
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
