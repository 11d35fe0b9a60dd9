//! Tests `integrity:DATA,TAGS` as a volume, and the command `ironmap integrity`. Some devices are damaged, some are swapped, and some were
//! left by killed programs.

use crate::require;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::skip::Need;
use crate::support::{Bench, pattern, succeed, text, tool};
use ironmap::bio::Buffer;
use ironmap::dio::{DioFlags, StablePages};
use ironmap::fs::Follow;
use ironmap::units::FilePos;
use ironmap::{Errno, FileOptions, QueueOptions, Volume};
use serde_json::Value;

const SECTOR: u64 = 4096;
/// The byte offset of the tags on a separate device, after a superblock and a dirty map of one block.
const TAGS: u64 = 2 * 4096;
const VOLUME: &str = "integrity:image,tags";

/// An image of a tree, and tags for it.
fn protected(options: &[&str]) -> Bench {
    let bench = Bench::new();
    sized(&bench, "tags", 24);
    bench.succeed([&["integrity", "format", "image,tags"], options].concat());
    bench
}

fn sized(bench: &Bench, name: &str, mib: u64) -> PathBuf {
    let path = bench.path(name);
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(mib << 20)
        .unwrap();
    path
}

fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

/// The offset of the first byte of a file on the image.
fn place(bench: &Bench, path: &str) -> u64 {
    let map = bench.json(&["map", "--json", &format!("image:{path}")]);
    map["extents"][0]["physical"].as_u64().unwrap()
}

fn fsck(bench: &Bench) {
    succeed(tool("e2fsck").arg("-fn").arg(bench.image()));
}

#[track_caller]
fn refused(output: &Output, code: i32, says: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    for says in says {
        assert!(said.contains(says), "{says} is not in {said}");
    }
}

fn scrub(bench: &Bench, device: &str) -> Value {
    let output = bench.run(["integrity", "scrub", "--json", device]);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A volume is changed and read through its integrity device. Every name of the device is used. Afterwards, the data device is a plain ext4
/// in which e2fsck finds no fault.
#[test]
fn a_volume_is_served_through_its_tags() {
    for options in [&["--mode", "bitmap"][..], &["--mode", "journal", "--guard", "crc64"]] {
        let bench = protected(options);
        let content = pattern(5 << 20 | 13, 7);
        fs::write(bench.path("new"), &content).unwrap();
        bench.succeed(["cp", "new", &format!("{VOLUME}:/dir/new")]);
        bench.succeed(["mkdir", &format!("{VOLUME}:/made")]);
        bench.succeed(["rm", &format!("{VOLUME}:/dir/large")]);
        let dir = bench.dir.path().display();
        let read = bench.succeed(["cat", &format!("integrity:{dir}/image,{dir}/tags:/dir/new")]);
        assert!(read == content, "the file is read with other data");
        bench.succeed(["check", VOLUME]);
        let info = bench.json(&["info", "--json", VOLUME]);
        let device = &info["device"]["integrity"];
        assert_eq!((&device["mode"], &device["closed"]), (&options[1].into(), &true.into()));
        assert_eq!(device["mismatches"], 0);
        assert_eq!(scrub(&bench, "image,tags")["mismatches"], 0);
        fsck(&bench);
        assert!(
            bench.succeed(["cat", "image:/dir/new"]) == content,
            "the data half is a volume of its own"
        );
    }
}

/// The kernel mounts the data device of an integrity device.
#[test]
fn the_kernel_mounts_the_data() {
    require!([Need::Root, Need::Tool("mount")]);
    let bench = protected(&[]);
    bench.succeed(["cp", "source/small", &format!("{VOLUME}:/copy")]);
    let mount = bench.path("mount");
    fs::create_dir(&mount).unwrap();
    succeed(tool("mount").args(["-o", "loop,ro"]).arg(bench.image()).arg(&mount));
    let read = fs::read(mount.join("copy"));
    crate::common::mounted::unmount(&mount);
    assert_eq!(read.unwrap(), b"small\n");
}

/// `mkfs` makes a volume on an integrity device that contains no volume.
#[test]
fn a_volume_is_made_through_its_tags() {
    let bench = Bench::empty();
    sized(&bench, "image", 32);
    sized(&bench, "tags", 4);
    bench.succeed(["integrity", "format", "--interval", "512", "--generation", "image,tags"]);
    bench.succeed(["mkfs", "-q", "-b", "1K", VOLUME]);
    bench.succeed(["mkdir", &format!("{VOLUME}:/a")]);
    fsck(&bench);
    let scrubbed = scrub(&bench, "image,tags");
    assert_eq!((&scrubbed["mismatches"], &scrubbed["lost"]), (&0.into(), &0.into()));
    assert_eq!(scrubbed["sectors"], (32 << 20) / 512);
}

/// Both devices may be partitions of one disk. Overlapping devices are refused.
#[test]
fn halves_are_partitions_of_one_disk() {
    let bench = Bench::empty();
    let disk = File::create(sized(&bench, "disk", 64)).unwrap();
    disk.set_len(64 << 20).unwrap();
    // An MBR with two partitions. The positions are in sectors of 512 bytes.
    for (number, (start, count)) in [(2048_u32, 65_536_u32), (67_584, 16_384)].iter().enumerate() {
        let mut entry = [0; 16];
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..].copy_from_slice(&count.to_le_bytes());
        disk.write_all_at(&entry, 446 + 16 * number as u64).unwrap();
    }
    disk.write_all_at(&[0x55, 0xAA], 510).unwrap();
    drop(disk);
    bench.succeed(["integrity", "format", "disk@p1,disk@p2"]);
    let volume = "integrity:disk@p1,disk@p2";
    bench.succeed(["mkfs", "-q", "-b", "4K", volume]);
    bench.succeed(["mkdir", &format!("{volume}:/a")]);
    assert_eq!(bench.succeed(["ls", &format!("{volume}:/")]), b"a\nlost+found\n");
    refused(&bench.run(["ls", "integrity:disk@p1,disk:/"]), 3, &["disk@p1 and disk overlap"]);
    let inside = bench.run(["ls", "integrity:disk@p1,disk@2M:/"]);
    refused(&inside, 3, &["disk@p1 and disk@2097152 overlap"]);
}

/// A sector does not match its tag. Each read counts and reports the sector once, although the device itself repeats the failed read. This
/// rule holds for each method that keeps the memory of a write unchanged.
#[test]
fn a_wrong_sector_is_reported_once_for_each_read() {
    let bench = protected(&[]);
    let at = place(&bench, "/dir/large") + 3 * SECTOR;
    flip(&bench.image(), at + 77);
    let halves = (bench.image(), bench.path("tags"));
    let volume = format!("integrity:{},{}", halves.0.display(), halves.1.display());
    let volume = Volume::open(volume).unwrap();
    let mut count = 0;
    for way in [StablePages::ZeroCopy, StablePages::Bounce, StablePages::Lazy, StablePages::Owned] {
        let inode = volume.fs().resolve(b"/dir/large", Follow::All).unwrap();
        let options = FileOptions::new().stable_pages(Some(way));
        let file = volume.open_inode(inode, options).unwrap();
        let mut queue = volume.queue(&QueueOptions::default()).unwrap();
        for (pos, len) in [(3 * SECTOR, 4096), (0, 64 << 10)] {
            let mut lent = Buffer::aligned(len).unwrap();
            let read = file.read_at(&mut queue, &mut lent, FilePos(pos)).map_err(|e| e.errno());
            file.submit_read(&mut queue, lent, FilePos(pos), DioFlags::empty(), 0).unwrap();
            queue.wait(1).unwrap();
            let queued = queue.pop().unwrap().result.map_err(|error| error.errno());
            assert_eq!([read, queued], [Err(Errno::EILSEQ); 2], "{way:?}: {len} at {pos}");
            let (told, dropped) = volume.events().take_wrong_tuples();
            let told: Vec<_> = told.iter().map(|wrong| wrong.sector).collect();
            assert_eq!((told, dropped), (vec![at / SECTOR; 2], 0), "{way:?}: {len} at {pos}");
            count += 2;
        }
    }
    assert_eq!(volume.events().wrong_tuples(), count);
}

/// A bit of a file's data is flipped. A read of this file then fails and names the sector. Other data can be read. The scrub lists this
/// sector. It also lists a sector with a flipped bit in its tag.
#[test]
fn flipped_bits_are_found() {
    let bench = protected(&[]);
    let (data, tag) = (place(&bench, "/dir/large"), place(&bench, "/sparse") / SECTOR);
    flip(&bench.image(), data + 3 * SECTOR + 77);
    flip(&bench.path("tags"), TAGS + 8 * tag + 1);
    let sector = data / SECTOR + 3;
    let file = format!("{VOLUME}:/dir/large");
    let says = format!("sector {sector}: guard: expected 0x");
    for args in [["cat", &file].as_slice(), &["cp", &file, "copy"]] {
        refused(&bench.run(args), 4, &[&file, "EILSEQ", &says]);
    }
    assert!(!bench.path("copy").exists(), "half a file is left");
    assert_eq!(bench.succeed(["cat", &format!("{VOLUME}:/small")]), b"small\n");
    let output = bench.run(["integrity", "scrub", "image,tags"]);
    refused(&output, 4, &["integrity:image,tags: 2 wrong sectors, 0 unreadable"]);
    let said = text(&output.stdout);
    for sector in [sector, tag] {
        assert!(said.contains(&format!("sector {sector}: guard: expected 0x")), "{said}");
    }
    let found = scrub(&bench, "image,tags");
    let sectors: Vec<_> = found["findings"].as_array().unwrap().iter().collect();
    assert_eq!(sectors.len(), 2);
    for finding in sectors {
        assert_eq!((&finding["kind"], &finding["field"]), (&"mismatch".into(), &"guard".into()));
        assert_eq!(finding["offset"], finding["sector"].as_u64().unwrap() * SECTOR);
    }
}

/// Two sectors are swapped. The reference tags of both sectors are then wrong.
#[test]
fn swapped_sectors_are_found() {
    let bench = protected(&["--tag", "7"]);
    let image = File::options().read(true).write(true).open(bench.image()).unwrap();
    let tags = File::options().read(true).write(true).open(bench.path("tags")).unwrap();
    let first = place(&bench, "/dir/large") / SECTOR;
    for (file, unit, base) in [(&image, SECTOR, 0), (&tags, 8, TAGS)] {
        let mut two = vec![0; 2 * unit as usize];
        file.read_exact_at(&mut two, base + first * unit).unwrap();
        two.rotate_left(unit as usize);
        file.write_all_at(&two, base + first * unit).unwrap();
    }
    let found = scrub(&bench, "image,tags");
    assert_eq!(found["mismatches"], 2);
    for (number, finding) in found["findings"].as_array().unwrap().iter().enumerate() {
        assert_eq!(
            (&finding["field"], &finding["kind"]),
            (&"reference_tag".into(), &"mismatch".into())
        );
        assert_eq!(finding["expected"], first + number as u64);
        assert_eq!(finding["found"], first + 1 - number as u64);
    }
}

/// Waits, for at most a minute, until the bytes at an offset of a file satisfy `is_there`.
fn await_bytes(child: &mut Child, path: &Path, at: u64, is_there: impl Fn(&[u8]) -> bool) {
    let (file, begun) = (File::open(path).unwrap(), Instant::now());
    let mut bytes = [0; 8];
    loop {
        file.read_exact_at(&mut bytes, at).unwrap();
        if is_there(&bytes) {
            return;
        }
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be killed");
        assert!(begun.elapsed() < Duration::from_secs(60), "it writes nothing");
        std::thread::yield_now();
    }
}

/// A writer is killed during its work. The next command that opens the device for writing recovers the device and reports the recovery.
/// Afterwards, all sectors match their tags, and the volume is sound.
#[test]
fn a_killed_writer_is_recovered_from() {
    for mode in ["bitmap", "journal"] {
        let bench = protected(&["--mode", mode]);
        fs::write(bench.path("new"), pattern(40 << 20, 9)).unwrap();
        let geometry = &bench.json(&["integrity", "check", "--json", "image,tags"])["geometry"];
        let number = |name: &str| geometry[name].as_u64().unwrap();
        let mut command = bench.command();
        command.args(["cp", "new", &format!("{VOLUME}:/new")]);
        let mut writer = command.stdout(Stdio::null()).spawn().unwrap();
        let tags = bench.path("tags");
        if mode == "bitmap" {
            // Waits until bits of the dirty map are set.
            await_bytes(&mut writer, &tags, 4096, |map| {
                map.iter().map(|byte| byte.count_ones()).sum::<u32>() > 5
            });
        } else {
            // Waits until a record in the middle of the journal is written.
            let journal = number("area_size") - 4096 - number("journal");
            await_bytes(&mut writer, &tags, journal + (1 << 20), |bytes| bytes != [0; 8]);
        }
        writer.kill().unwrap();
        writer.wait().unwrap();

        let before = bench.json(&["integrity", "check", "--json", "image,tags"]);
        assert_eq!(
            (&before["closed"], &before["problems"]),
            (&false.into(), &Value::Array(vec![]))
        );
        if mode == "bitmap" {
            let skipped = scrub(&bench, "image,tags");
            let dirty = before["dirty_regions"].as_u64().unwrap() * number("region");
            assert_eq!(skipped["skipped"].as_u64().unwrap(), dirty / SECTOR);
            assert_eq!(skipped["mismatches"], 0, "{skipped}");
        }
        let opened = bench.json(&["integrity", "open", "--json", "image,tags"]);
        assert_eq!(opened["closed"], false);
        let recovered = &opened["recovered"];
        match mode {
            "bitmap" => assert_eq!(recovered["regions"], before["dirty_regions"]),
            _ => assert_eq!(recovered["records"], before["journal_records"]),
        }
        let what = recovered["regions"].as_u64().unwrap() + recovered["records"].as_u64().unwrap();
        assert!(what > 0, "{mode}: {opened}");
        let again = bench.json(&["integrity", "open", "--json", "image,tags"]);
        assert_eq!(again["closed"], true, "{again}");
        assert_eq!(scrub(&bench, "image,tags")["mismatches"], 0, "{mode}");
        bench.succeed(["sync", VOLUME]);
        bench.succeed(["check", VOLUME]);
        assert_eq!(scrub(&bench, "image,tags")["mismatches"], 0, "{mode}");
        fsck(&bench);
    }
}

/// A data device and a tag device that do not belong together are refused. One line names the reason.
#[test]
fn halves_that_do_not_fit_are_refused() {
    let bench = protected(&[]);
    let ls = |volume: &str| bench.run(["ls", &format!("integrity:{volume}:/")]);
    refused(&ls("tags,image"), 3, &["DATA and TAGS are swapped", "the tags are on tags"]);
    refused(&ls("image"), 3, &["image contains no tags"]);
    refused(&ls("tags"), 3, &["tags contains the tags of another device"]);
    refused(&ls("missing,tags"), 3, &["the data device", "missing"]);
    refused(&ls("image,missing"), 3, &["the tag device", "missing"]);
    // The tags belong to another device with the same size, so no sector matches its tag.
    sized(&bench, "other", 64);
    sized(&bench, "tags-of-other", 24);
    bench.succeed(["integrity", "format", "other,tags-of-other"]);
    refused(&ls("image,tags-of-other"), 4, &["guard: expected", "EILSEQ"]);
    sized(&bench, "image", 60);
    refused(
        &ls("image,tags"),
        4,
        &["the tags are for 67108864 bytes of data, but the data device has 62914560"],
    );
    let check = bench.run(["integrity", "check", "image,tags"]);
    assert_eq!(check.status.code(), Some(4));
    assert!(text(&check.stdout).starts_with("the data device has 62914560 bytes"));
}

/// If the data device or the tag device is locked, the integrity device is locked.
#[test]
fn both_halves_are_locked() {
    let bench = protected(&[]);
    for (name, half) in [("image", "data"), ("tags", "tag")] {
        let file = File::open(bench.path(name)).unwrap();
        file.lock().unwrap();
        let output = bench.run(["ls", &format!("{VOLUME}:/")]);
        refused(&output, 3, &[&format!("the {half} device: {name}: locked")]);
    }
}

/// Tags are stored in the tail of a device only if no file system extends into the tail. The content of TAGS is overwritten only with
/// --force.
#[test]
fn a_device_with_content_is_refused() {
    let bench = Bench::new();
    let before = fs::read(bench.image()).unwrap();
    let full = bench.run(["integrity", "format", "image"]);
    refused(&full, 3, &["image: the file system has 67108864 bytes", "shrink the file system"]);
    let forced = bench.run(["integrity", "format", "--force", "image"]);
    assert_eq!(forced.status.code(), Some(3), "that its end is lost nobody can want");
    assert!(fs::read(bench.image()).unwrap() == before, "a refusal has changed the device");
    sized(&bench, "image", 80);
    bench.succeed(["integrity", "format", "image"]);
    bench.succeed(["rm", "integrity:image:/dir/large"]);
    assert_eq!(scrub(&bench, "image")["mismatches"], 0);
    fsck(&bench);

    refused(&bench.run(["integrity", "format", "image"]), 3, &["integrity superblock"]);
    sized(&bench, "data", 8);
    let taken = bench.run(["integrity", "format", "data,image"]);
    refused(&taken, 3, &["image: contains an ext2, ext3 or ext4 file system"]);
    bench.succeed(["integrity", "format", "--force", "data,image"]);
}

/// An ext4 with a damaged superblock may extend into the tail. Even `--force` does not overwrite this tail, and the error names the
/// possible loss. The end of another file system is always unknown. For such a file system, `--force` overwrites the tail.
#[test]
fn a_tail_that_a_damaged_volume_may_have_is_not_taken_by_force() {
    let bench = Bench::new();
    // The flipped bit changes the size of the file system, and invalidates the checksum of the superblock.
    flip(&bench.image(), 1024 + 4);
    let before = fs::read(bench.image()).unwrap();
    for options in [&[][..], &["--force"]] {
        let output = bench.run([&["integrity", "format", "image"], options].concat());
        refused(&output, 3, &["whose end is not known", "checksum", "overwrite all bytes from"]);
    }
    assert!(fs::read(bench.image()).unwrap() == before, "a refusal has changed the device");
    let told = bench.run(["integrity", "format", "--lose-tail", "image,tags"]);
    assert_eq!(told.status.code(), Some(2));
    bench.succeed(["integrity", "format", "--lose-tail", "image"]);
    assert_eq!(scrub(&bench, "image")["mismatches"], 0);

    let other = File::options().write(true).open(sized(&bench, "other", 64)).unwrap();
    other.write_all_at(b"_BHRfS_M", 65536 + 64).unwrap();
    drop(other);
    let output = bench.run(["integrity", "format", "other"]);
    refused(&output, 3, &["btrfs file system, whose end is not known"]);
    bench.succeed(["integrity", "format", "--force", "other"]);
}

/// One undamaged superblock is enough to open the device. The check reports the other superblock as damaged.
#[test]
fn a_damaged_superblock_is_reported() {
    let bench = protected(&[]);
    flip(&bench.path("tags"), 100);
    let output = bench.run(["integrity", "check", "image,tags"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(text(&output.stdout).starts_with("first superblock: "), "{}", text(&output.stdout));
    bench.succeed(["integrity", "open", "image,tags"]);
    bench.succeed(["integrity", "check", "image,tags"]);
    for at in [100, (24 << 20) - 100] {
        flip(&bench.path("tags"), at);
    }
    refused(&bench.run(["integrity", "check", "image,tags"]), 4, &["checksum"]);
}

/// Impossible options give the exit code of a wrong command line.
#[test]
fn wrong_options_are_named() {
    let bench = Bench::new();
    sized(&bench, "tags", 24);
    for (options, says) in [
        ("--interval 1K", "the interval is 1024 bytes"),
        ("--region 5000", "a region is 5000 bytes"),
        ("--journal-size 1M", "--journal-size is for --mode journal"),
        ("--mode journal --journal-size 100", "a journal size of 100 bytes"),
    ] {
        let args = options.split(' ').chain(["image,tags"]);
        refused(&bench.run(["integrity", "format"].into_iter().chain(args)), 2, &[says]);
    }
    bench.succeed(["mkfs", "-q", "-b", "1K", "small", "16M"]);
    bench.succeed(["integrity", "format", "small,tags"]);
    bench.succeed(["check", "integrity:small,tags"]);
    sized(&bench, "tags", 0);
    let tags = File::options().write(true).open(bench.path("tags")).unwrap();
    tags.set_len(8192).unwrap();
    drop(tags);
    let output = bench.run(["integrity", "format", "image,tags"]);
    refused(&output, 2, &["the tag device has 8192 bytes", "are needed"]);
    // The device is a sparse file of 1 TiB. Small regions are refused, because each region of an open device needs memory.
    sized(&bench, "large", 1 << 20);
    let output = bench.run(["integrity", "format", "--region", "8K", "large,tags"]);
    refused(&output, 2, &["regions of 8192 bytes are too small", "the minimum is 16384"]);
}

/// `bench` measures an integrity device and a volume on it, side by side.
#[test]
fn benches_take_integrity_devices() {
    let bench = protected(&[]);
    let raw = format!("raw:{VOLUME}");
    let vol = format!("vol:{VOLUME}:/dir/large");
    let args = ["bench", "--json", "-", "--runtime", "0.1", "--rw", "randread", &raw, &vol];
    let output = bench.run(args);
    assert!(output.status.success(), "{}", text(&output.stderr));
}
