//! Volumes with a realtime device. If the caller gives this device, ironmap reads the content of realtime files from it. Without this
//! device, such a read fails, and the error names the reason.
//!
//! xfs_db makes the realtime files, because mkfs.xfs and many kernels cannot make them. `./x lab xfs` tests files that a kernel has
//! written.

use std::os::unix::fs::FileExt;

use ironmap::fs::Follow;
use ironmap::units::FilePos;
use ironmap::{
    Error, ErrorKind, FileOptions, Files, Location, QueueOptions, Volume, VolumeOptions,
};

use crate::common::command::run;
use crate::common::image::{Image, scratch, words};
use crate::common::realtime::{self, OWN_ZONES, ZONES};
use crate::common::skip::Need;
use crate::common::xfsprogs;
use crate::{SIZE, note, require};

const CONTENT: &[u8] = b"on the data device";
const THERE: &[u8] = b"on the other one..";
/// The options of mkfs.xfs for a realtime device with groups.
const GROUPS: &str = "-m metadir=1,reflink=0,rmapbt=0";

/// A volume with two files, one of which is a realtime file.
struct World {
    dir: tempfile::TempDir,
    image: Image,
    db: String,
}

impl World {
    fn new(mkfs: &str, options: &str) -> Self {
        let dir = scratch();
        let (content, device) = (dir.path().join("content"), dir.path().join("realtime"));
        std::fs::write(&content, CONTENT).unwrap();
        run("truncate", &["-s".as_ref(), SIZE.as_ref(), device.as_os_str()]);
        let file = format!("---644 0 0 {}", content.display());
        let prototype = dir.path().join("prototype");
        let text = format!("/dev/null\n0 0\nd--755 0 0\nplain {file}\nrealtime {file}\n$\n");
        std::fs::write(&prototype, text).unwrap();
        let rtdev = format!("rtdev={}", device.display());
        let args = ["-r", &rtdev, "-p", prototype.to_str().unwrap()];
        let image = Image::mkfs_xfs_by(mkfs, SIZE, &[&args[..], &words(options)].concat()).unwrap();
        // In the first group, a block has the same number on the data device and on the realtime device.
        let volume = image.open().unwrap();
        let inode = volume.fs().resolve(b"realtime", Follow::All).unwrap();
        let file = volume.open_inode(inode, FileOptions::new()).unwrap();
        let start = file.mappings().next().unwrap().unwrap().addr.0;
        let device = std::fs::File::options().write(true).open(&device).unwrap();
        device.write_all_at(THERE, start).unwrap();
        let db = if mkfs == "mkfs.xfs" { "xfs_db".to_owned() } else { xfsprogs::newer("xfs_db") };
        let world = Self { dir, image, db };
        world.set("core.realtime", "1");
        world
    }

    /// Changes a field in the inode of the file whose data are on the realtime device.
    fn set(&self, field: &str, value: &str) {
        let write = format!("write -d {field} {value}");
        let path = self.image.path();
        run(&self.db, &["-x", "-c", "path /realtime", "-c", &write, path.to_str().unwrap()]);
    }

    /// Sets the first block of the file's extent to this block. Asserts that a read then fails with kind `Corrupt`.
    fn is_corrupt(&self, block: &str, why: &str) {
        self.set("u3.bmx[0].startblock", block);
        let error = read(&self.open_with(self.device()).unwrap(), b"realtime").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }

    fn device(&self) -> Location {
        Location::try_from(&*self.dir.path().join("realtime")).unwrap()
    }

    fn open_with(&self, device: Location) -> Result<Volume, Error> {
        VolumeOptions::new().realtime(device).open(&*self.image.path())
    }
}

fn read(volume: &Volume, name: &[u8]) -> Result<Vec<u8>, Error> {
    let inode = volume.fs().resolve(name, Follow::All).unwrap();
    assert_eq!(inode.size(), CONTENT.len() as u64);
    let mut bytes = vec![0; CONTENT.len()];
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let file = volume.open_inode(inode, FileOptions::new())?;
    let count = file.read_at(&mut queue, &mut bytes, FilePos(0))?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Runs a test twice: with a realtime device without groups, and with groups. The two kinds number the blocks differently.
fn in_each_way(test: impl Fn(&World, &str)) {
    test(&World::new("mkfs.xfs", "-m reflink=0,rmapbt=0"), "no groups");
    if let Some(why) = Need::Variable(xfsprogs::VARIABLE).missing() {
        return note(&format!("groups of a realtime device: {why}"));
    }
    test(&World::new(&xfsprogs::newer("mkfs.xfs"), GROUPS), "groups");
}

/// If the caller gives no realtime device, a realtime file is listed, but a read of it fails. The error names the reason.
#[test]
fn content_on_a_realtime_device_that_is_not_given_is_refused() {
    require!([Need::Tool("mkfs.xfs"), Need::Tool("xfs_db")]);
    in_each_way(|world, way| {
        let volume = world.image.open().unwrap();
        assert!(volume.xfs().unwrap().superblock().realtime_blocks > 0, "{way}");
        let root = volume.fs().resolve(b"", Follow::All).unwrap();
        let names = root.read_dir().unwrap().map(|entry| entry.unwrap().name);
        let names: Vec<_> = names.filter(|name| name[0] != b'.').collect();
        assert_eq!(names, [&b"plain"[..], b"realtime"], "{way}");
        assert_eq!(read(&volume, b"plain").unwrap(), CONTENT, "{way}");
        let error = read(&volume, b"realtime").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{way}: {error}");
        assert!(
            error.to_string().contains("realtime device: name this device with --realtime"),
            "{error}"
        );
    });
}

#[test]
fn content_on_a_realtime_device_is_read() {
    require!([Need::Tool("mkfs.xfs"), Need::Tool("xfs_db")]);
    in_each_way(|world, way| {
        let volume = world.open_with(world.device()).unwrap();
        assert_eq!(read(&volume, b"plain").unwrap(), CONTENT, "{way}");
        assert_eq!(read(&volume, b"realtime").unwrap(), THERE, "{way}");
        // Block 200000 is past the end of the realtime device.
        world.is_corrupt("200000", "outside the realtime blocks");
        if way == "groups" {
            let world = World::new(&xfsprogs::newer("mkfs.xfs"), GROUPS);
            world.is_corrupt("0", "outside the realtime blocks");
        }
    });
}

/// Files in zones can be read. The zones are on a separate device, or on the data device. ironmap refuses to write these files.
#[test]
fn files_in_zones_are_read() {
    require!([Need::Variable(xfsprogs::VARIABLE)]);
    for way in [&ZONES, &OWN_ZONES] {
        let world = realtime::World::new(way);
        let (path, own) = (world.image.path(), std::ptr::eq(way, &OWN_ZONES));
        let volume = world.image.open().unwrap();
        // The blocks 8 and 9 of the zones. The zones begin at 304 MiB on the data device, or at the beginning of a separate device.
        let (file, start) = if own { (&path, 304 << 20) } else { (&world.device, 0) };
        let device = std::fs::File::options().write(true).open(file).unwrap();
        let content = [b"8".repeat(4096), b"9".repeat(4096)].concat();
        device.write_all_at(&content, start + 8 * 4096).unwrap();
        drop(device);
        let given = Location::try_from(&*world.device).unwrap();
        let with = VolumeOptions::new().realtime(given);
        let volume = if own { volume } else { with.open(&*path).unwrap() };
        assert_eq!(volume.read("one").unwrap(), content);
        if own {
            let opened = with.open(&*path).map(drop).unwrap_err();
            assert_eq!(opened.kind(), ErrorKind::InvalidInput, "{opened}");
            drop(volume);
            let volume = VolumeOptions::new().write(true).open(&*path).unwrap();
            let file = Files::open_with(&volume, "one", FileOptions::new().write(true)).unwrap();
            let mut queue = volume.queue(&QueueOptions::default()).unwrap();
            let refused = file.write_at(&mut queue, &[1; 4096], FilePos(0)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
            assert!(refused.to_string().contains("realtime file"), "{refused}");
        }
    }
}

/// ironmap refuses a realtime device if it recognises that the device belongs to another volume. It also refuses to open a volume with a
/// realtime device for writing.
#[test]
fn a_wrong_realtime_device_is_refused() {
    require!([Need::Tool("mkfs.xfs"), Need::Tool("xfs_db")]);
    let kind = |opened: Result<Volume, Error>| {
        let error = opened.map(|_| ()).unwrap_err();
        (error.kind(), error.to_string())
    };
    in_each_way(|world, way| {
        let writing = VolumeOptions::new().realtime(world.device()).write(true);
        let (refused, said) = kind(writing.open(&*world.image.path()));
        assert_eq!(refused, ErrorKind::InvalidInput, "{way}: {said}");
        let short = world.dir.path().join("short");
        std::fs::File::create(&short).unwrap().set_len(1 << 20).unwrap();
        let (refused, said) = kind(world.open_with(Location::try_from(&*short).unwrap()));
        assert!(refused == ErrorKind::InvalidInput && said.contains("realtime blocks"), "{said}");
        if way == "groups" {
            let other = world.dir.path().join("other");
            let mut bytes = std::fs::read(world.dir.path().join("realtime")).unwrap();
            std::fs::write(&other, vec![0; bytes.len()]).unwrap();
            let (refused, said) = kind(world.open_with(Location::try_from(&*other).unwrap()));
            assert_eq!(refused, ErrorKind::UnknownFormat, "{said}");
            // The checksum covers the entire block.
            bytes[100] ^= 1;
            std::fs::write(&other, &bytes).unwrap();
            let (refused, said) = kind(world.open_with(Location::try_from(&*other).unwrap()));
            assert!(said.contains("rsb_crc"), "{refused:?}, {said}");
            bytes[24] ^= 1;
            std::fs::write(&other, bytes).unwrap();
            let (refused, said) = kind(world.open_with(Location::try_from(&*other).unwrap()));
            assert!(
                refused == ErrorKind::InvalidInput && said.contains("another volume"),
                "{said}"
            );
        }
    });
    let plain = Image::mkfs_xfs_by("mkfs.xfs", SIZE, &[]).unwrap();
    let device = Location::try_from(&*plain.path()).unwrap();
    let (refused, said) = kind(VolumeOptions::new().realtime(device).open(&*plain.path()));
    assert!(refused == ErrorKind::InvalidInput && said.contains("no realtime device"), "{said}");
}
