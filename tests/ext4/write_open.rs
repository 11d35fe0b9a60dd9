//! A volume that was opened for writing and closed is as clean as before the open. ironmap recovers a dirty journal as the kernel does.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::common::image::scratch;
use ironmap::bio::Buffer;
use ironmap::device::{Device, Entry, Limits, Ram, Record};
use ironmap::fs::ext4::{MkfsOptions, ROOT};
use ironmap::fs::{Clock, Credentials, NewFile, SetAttributes};
use ironmap::units::{DevOffset, FilePos};
use ironmap::{ErrorKind, FileOptions, Location, QueueOptions, Volume, VolumeOptions};

fn fsck(image: &Path) {
    let out = Command::new("e2fsck").args(["-fn"]).arg(image).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}

fn open(image: &Path) -> Volume {
    let options = VolumeOptions::new().write(true);
    let location: Location = image.to_str().unwrap().parse().unwrap();
    crate::common::beneath::open(&location, &options).unwrap()
}

#[test]
fn opened_and_closed_it_is_clean() {
    let dir = scratch();
    let image = dir.path().join("image");
    for features in
        ["-t ext4", "-t ext4 -b 1024", "-t ext3", "-t ext2", "-t ext4 -O ^metadata_csum,^64bit"]
    {
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.arg("-Fq").args(features.split(' ')).arg(&image).arg("64M");
        assert!(mke2fs.status().unwrap().success());
        let volume = open(&image);
        volume.fs().sync().unwrap();
        volume.close().unwrap();
        drop(volume);
        fsck(&image);
        drop(open(&image));
        fsck(&image);
    }
}

/// Several handles close the same volume. Only one close does the work, but each close returns success only after the volume is clean.
#[test]
fn whoever_closes_it_finds_it_closed() {
    const CLOSERS: usize = 4;
    let dir = scratch();
    let image = dir.path().join("image");
    for round in 0..20 {
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-Fq", "-t", "ext4"]).arg(&image).arg("64M");
        assert!(mke2fs.status().unwrap().success());
        let volume = open(&image);
        let who = Credentials::default();
        for number in 0..200 {
            let name = format!("file{number}");
            volume
                .fs()
                .writable()
                .unwrap()
                .create(ROOT, name.as_bytes(), NewFile::Regular, 0o644, &who)
                .unwrap();
        }
        let barrier = Barrier::new(CLOSERS);
        let closed_by_all = std::thread::scope(|scope| {
            let close = || {
                barrier.wait();
                volume.close().unwrap();
                !needs_recovery(&image)
            };
            let threads: Vec<_> = (0..CLOSERS).map(|_| scope.spawn(close)).collect();
            threads.into_iter().all(|thread| thread.join().unwrap())
        });
        assert!(closed_by_all, "round {round}");
        fsck(&image);
    }
}

fn bytes_of(ram: &Ram) -> Buffer {
    let mut bytes = Buffer::aligned(ram.size() as usize).unwrap();
    ram.read_exact_at(&mut bytes, DevOffset(0)).unwrap();
    bytes
}

/// Whether the superblock has `INCOMPAT_RECOVER`.
fn needs_recovery(image: &Path) -> bool {
    let mut features = [0; 4];
    File::open(image).unwrap().read_exact_at(&mut features, 1024 + 0x60).unwrap();
    u32::from_le_bytes(features) & 4 != 0
}

/// While the volume is open for writing, multiple mount protection excludes other nodes. The close ends this protection.
#[test]
fn a_protected_volume_is_held_while_it_is_open() {
    let dir = scratch();
    let image = dir.path().join("image");
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-Fq", "-t", "ext4", "-O", "mmp", "-E", "mmp_update_interval=1"]);
    assert!(mke2fs.arg(&image).arg("64M").status().unwrap().success());
    let seq = |path: &Path| {
        let out = Command::new("dumpe2fs").arg("-h").arg(path).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        text.lines().find(|line| line.contains("mmp_sequence")).unwrap_or_default().to_owned()
    };
    let clean = seq(&image);
    let volume = open(&image);
    assert_ne!(seq(&image), clean, "it is not held");
    // The copy of the image shows what another node would see. The lock that this process has on the image does not apply to the copy.
    let other = dir.path().join("other");
    std::fs::copy(&image, &other).unwrap();
    let out = Command::new("e2fsck").arg("-p").arg(&image).output().unwrap();
    assert!(!out.status.success(), "e2fsck took it: {}", String::from_utf8_lossy(&out.stdout));
    volume.close().unwrap();
    drop(volume);
    assert_eq!(seq(&image), clean);
    fsck(&image);
}

/// If another node has claimed the volume, this node stops writing to it, even during the close. The close returns an error.
#[test]
fn a_protected_volume_that_another_node_took_is_not_written() {
    let dir = scratch();
    let image = dir.path().join("image");
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-Fq", "-t", "ext4", "-b", "1024", "-O", "mmp,^metadata_csum"]);
    mke2fs.args(["-E", "mmp_update_interval=1"]);
    assert!(mke2fs.arg(&image).arg("8M").status().unwrap().success());
    let bytes = std::fs::read(&image).unwrap();
    let block = u64::from_le_bytes(bytes[1024 + 0x168..][..8].try_into().unwrap());
    let ram = Arc::new(Ram::from_image(&bytes));
    let volume = Volume::writable_on(ram.clone(), Clock::default()).unwrap();
    let change = |number: u64| {
        let permissions = Some(0o700 | (number % 8) as u32);
        let set = SetAttributes::new().permissions(permissions);
        volume.fs().writable().unwrap().set_attributes(ROOT, &set).and_then(|()| volume.fs().sync())
    };
    change(0).unwrap();
    let mut sector = Buffer::aligned(1024).unwrap();
    ram.read_exact_at(&mut sector, DevOffset(block * 1024)).unwrap();
    sector[4..8].copy_from_slice(&4711_u32.to_le_bytes());
    let taken = [std::io::IoSlice::new(&sector)];
    ram.write_all_at(&taken, DevOffset(block * 1024), true).unwrap();
    // The open volume reads and checks the block of the multiple mount protection once a second.
    let late = Instant::now() + Duration::from_secs(60);
    let refused =
        (1..).take_while(|_| Instant::now() < late).find_map(|number| change(number).err());
    let refused = refused.expect("it goes on writing");
    assert!(refused.to_string().contains("another node"), "{refused}");
    let before = bytes_of(&ram);
    let closed = volume.close().unwrap_err();
    assert!(closed.to_string().contains("another node"), "{closed}");
    drop(volume);
    assert!(bytes_of(&ram)[..] == before[..], "something was written");
}

/// The blocks of a volume are shorter than the device's sectors. Each way to open the volume still works: each request to the device
/// consists of whole sectors.
#[test]
fn blocks_shorter_than_sectors_are_written_in_whole_sectors() {
    let dir = scratch();
    let image = dir.path().join("image");
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-Fq", "-t", "ext4", "-b", "1024"]);
    assert!(mke2fs.arg(&image).arg("32M").status().unwrap().success());
    let ram = Ram::from_image(&std::fs::read(&image).unwrap());
    for sector in [512, 1024, 4096, 65536] {
        let limits = Limits { logical_block: sector, physical_block: sector, ..*ram.limits() };
        let base = Arc::new(ram.with_limits(limits));
        let record = Arc::new(Record::new(base.clone()));
        Volume::on(record.clone()).unwrap();
        assert!(record.log().is_empty(), "{sector}");
        let volume = Volume::writable_on(record.clone(), Clock::default()).unwrap();
        for number in 0..50 {
            volume.write(format!("/{number}"), vec![number; 300 * number as usize]).unwrap();
        }
        volume.close().unwrap();
        drop(volume);
        let whole = |value: u64| value.is_multiple_of(u64::from(sector));
        let log = record.log();
        let writes = log.entries().iter().filter_map(|entry| match entry {
            Entry::Write { at, data, .. } => Some((at.0, data.len() as u64)),
            _ => None,
        });
        assert!(writes.clone().count() > 50, "{sector}");
        for (at, len) in writes {
            assert!(whole(at) && whole(len), "{sector}: {len} bytes at {at}");
        }
        base.store(&File::create(&image).unwrap()).unwrap();
        let checked = Command::new("e2fsck").arg("-fn").arg(&image).output().unwrap();
        assert!(checked.status.success(), "{sector}: {}", String::from_utf8_lossy(&checked.stdout));
        let volume = Volume::on(record).unwrap();
        for number in 0..50_u8 {
            let read = volume.read(format!("/{number}")).unwrap();
            assert_eq!(read, vec![number; 300 * number as usize]);
        }
    }
}

/// The timer commits writes to an open file, even after the last handle of the volume was dropped.
#[test]
fn a_file_that_outlives_its_volume_is_committed() {
    let dir = scratch();
    let image = dir.path().join("image");
    assert!(
        Command::new("mke2fs")
            .args(["-Fq", "-t", "ext4"])
            .arg(&image)
            .arg("8M")
            .status()
            .unwrap()
            .success()
    );
    let location: Location = image.to_str().unwrap().parse().unwrap();
    let commit = Duration::from_millis(20);
    let options = VolumeOptions::new().write(true).commit(commit);
    let volume = options.open(&location).unwrap();
    let number = volume
        .fs()
        .writable()
        .unwrap()
        .create(ROOT, b"f", NewFile::Regular, 0o644, &Credentials::default())
        .unwrap();
    volume.fs().sync().unwrap();
    let inode = volume.fs().inode(number).unwrap();
    let file = volume.open_inode(inode, FileOptions::new().write(true)).unwrap();
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    drop(volume);
    file.write_at(&mut queue, &[7; 10_000], FilePos(0)).unwrap();
    // The copy has the content that would remain after a crash.
    let copy = dir.path().join("copy");
    let size = || {
        std::fs::copy(&image, &copy).unwrap();
        let location: Location = copy.to_str().unwrap().parse().unwrap();
        // A copy that is made during a commit may be torn.
        let left = Volume::open(&location).ok()?;
        left.fs().lookup(ROOT, b"f").ok().map(|inode| inode.size())
    };
    let late = Instant::now() + Duration::from_secs(60);
    while size() != Some(10_000) {
        assert!(Instant::now() < late, "nothing commits it");
    }
    drop((file, queue));
    fsck(&image);
}

/// As in Linux, an operation with an invalid name on a read-only volume returns the error for the name.
#[test]
fn names_are_refused_by_their_fault_on_a_volume_that_is_read() {
    let ram = Arc::new(Ram::new(8 << 20));
    ironmap::tools::make(&*ram, &MkfsOptions::default()).unwrap();
    let volume = Volume::on(ram).unwrap();
    let (writer, who, long) =
        (volume.fs().writable().unwrap(), Credentials::default(), [b'n'; 256]);
    let kind = |result: ironmap::Result<()>| result.unwrap_err().kind();
    let make = |name: &[u8], file| kind(writer.create(ROOT, name, file, 0o755, &who).map(drop));
    assert_eq!(make(&long, NewFile::Directory), ErrorKind::NameTooLong);
    assert_eq!(make(b"link", NewFile::Symlink(&[b't'; 5000])), ErrorKind::NameTooLong);
    assert_eq!(make(b"name", NewFile::Regular), ErrorKind::ReadOnly);
    assert_eq!(kind(writer.link(ROOT, ROOT, &long)), ErrorKind::NameTooLong);
    assert_eq!(kind(writer.rmdir(ROOT, b".")), ErrorKind::InvalidInput);
    assert_eq!(kind(writer.rmdir(ROOT, b"..")), ErrorKind::NotEmpty);
}
