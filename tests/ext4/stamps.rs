//! Time stamps that are written lazily. A new time stamp is visible immediately. It is written to the journal with the next commit, but
//! does not cause a commit itself. A crash before this commit loses the time stamp.

use crate::require;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use crate::common::image::Image;
use crate::common::skip::Need;
use ironmap::bio::Buffer;
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{
    Access, Clock, Credentials, FileSystem, NewFile, SetAttributes, Stat, Timestamp,
};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{FileOptions, QueueOptions, Volume, VolumeOptions};

/// The time when a file is made, the time when it is used, and the time that a program sets.
const MADE: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 1 };
const USED: Timestamp = Timestamp { seconds: 1_700_086_400, nanoseconds: 987_654_321 };
const SET: Timestamp = Timestamp { seconds: 1_000_000_000, nanoseconds: 5 };

const KINDS: [&[&str]; 4] = [
    &["-t", "ext4"],
    &["-t", "ext4", "-O", "quota"],
    &["-t", "ext4", "-I", "128"],
    &["-t", "ext2"],
];

/// The times of access, modification and change.
type Times = [Timestamp; 3];

fn open(image: &Image, now: Timestamp) -> Volume {
    let clock = Clock::Fixed(now);
    // The commit timer is off, so the volume commits only on request.
    let options = VolumeOptions::new().write(true).clock(clock).commit(std::time::Duration::ZERO);
    crate::common::beneath::open(&image.location(), &options)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// A volume with a file that was created at [`MADE`] and is open at [`USED`].
fn used(kind: &[&str]) -> (Image, Volume, InodeNo) {
    let image = Image::mke2fs("64M", kind);
    let volume = open(&image, MADE);
    let fs = volume.fs();
    let file = fs
        .writable()
        .unwrap()
        .create(ROOT, b"file", NewFile::Regular, 0o644, &Credentials::default())
        .unwrap();
    fs.writable().unwrap().write(file, FilePos(0), &[7; 5000]).unwrap();
    volume.close().unwrap();
    drop(volume);
    let volume = open(&image, USED);
    (image, volume, file)
}

/// The time, rounded down to the precision of the inode.
fn kept(kind: &[&str], time: Timestamp) -> Timestamp {
    let fine = !kind.contains(&"128");
    Timestamp { nanoseconds: if fine { time.nanoseconds } else { 0 }, ..time }
}

fn times_of(stat: &Stat) -> Times {
    [stat.accessed, stat.modified, stat.changed]
}

fn times(fs: &Arc<dyn FileSystem>, file: InodeNo) -> Times {
    times_of(fs.inode(file).unwrap().stat())
}

/// The times of the file after a power cut. If the volume has a journal, e2fsck recovers it first.
fn after_crash(image: &Image, kind: &[&str], file: InodeNo) -> Times {
    let crashed = image.copy();
    if !kind.contains(&"ext2") {
        crashed.repair_journal();
    }
    times(&crashed.fs(), file)
}

/// A time stamp causes no write. Every reader sees it immediately. After a sync it is durable.
#[test]
fn stamps_wait_for_a_sync() {
    for kind in KINDS {
        let (image, volume, file) = used(kind);
        let fs = volume.fs();
        let (made, now) = (kept(kind, MADE), kept(kind, USED));
        let held = fs.hold(file).unwrap();
        let before = std::fs::read(image.path()).unwrap();
        held.stamp(Access::Write);
        assert_eq!(times(fs, file), [made, USED, USED], "{kind:?}");
        assert_eq!(times_of(held.inode().unwrap().stat()), [made, USED, USED], "{kind:?}");
        held.stamp(Access::Read);
        assert_eq!(times(fs, file), [USED; 3], "{kind:?}");
        assert!(std::fs::read(image.path()).unwrap() == before, "{kind:?}: something was written");
        assert_eq!(after_crash(&image, kind, file), [made; 3], "{kind:?}");

        fs.sync().unwrap();
        assert_eq!(after_crash(&image, kind, file), [now; 3], "{kind:?}");
        assert_eq!(times(fs, file), [now; 3], "{kind:?}");
        drop(held);
        volume.close().unwrap();
        drop(volume);
        image.check();
    }
}

/// Another change of the inode also makes its pending time stamps durable. A time that a program has set replaces older stamps. Stamps of a
/// file that was closed become durable with the next commit.
#[test]
fn stamps_go_with_the_next_change() {
    for kind in KINDS {
        let (image, volume, file) = used(kind);
        let fs = volume.fs();
        let (set, now) = (kept(kind, SET), kept(kind, USED));
        let held = fs.hold(file).unwrap();
        held.stamp(Access::Write);
        held.stamp(Access::Read);
        let change = SetAttributes::new().modified(SET);
        fs.writable().unwrap().set_attributes(file, &change).unwrap();
        assert_eq!(times(fs, file), [now, set, now], "{kind:?}");
        fs.sync().unwrap();
        assert_eq!(after_crash(&image, kind, file), [now, set, now], "{kind:?}");

        held.stamp(Access::Write);
        let other = fs.hold(file).unwrap();
        drop(held);
        assert_eq!(times(fs, file), [now, USED, USED], "{kind:?}");
        drop(other);
        assert_eq!(times(fs, file), [now; 3], "{kind:?}: no longer open");
        fs.sync().unwrap();
        assert_eq!(after_crash(&image, kind, file), [now; 3], "{kind:?}");
    }
}

/// If several writes follow in quick succession, only the first write sets a time stamp. After a program has set a time, the next write
/// always sets a time stamp.
#[test]
fn a_write_sets_a_stamp_however_soon_after_a_time_that_is_set() {
    for kind in KINDS {
        let (image, volume, file) = used(kind);
        let fs = volume.fs();
        let opened =
            volume.open_inode(fs.inode(file).unwrap(), FileOptions::new().write(true)).unwrap();
        let mut queue = volume.queue(&QueueOptions::new().depth(4)).unwrap();
        let block = Buffer::aligned(4096).unwrap();
        let change = SetAttributes::new().modified(SET);
        for round in 0..200 {
            for _ in 0..1 + round % 3 {
                opened.write_at(&mut queue, &block, FilePos(0)).unwrap();
                assert_eq!(times(fs, file)[1], USED, "{kind:?}, round {round}");
            }
            fs.writable().unwrap().set_attributes(file, &change).unwrap();
            assert_eq!(times(fs, file)[1], kept(kind, SET), "{kind:?}, round {round}");
        }
        drop((queue, opened));
        volume.close().unwrap();
        drop(volume);
        image.check();
    }
}

/// The pending time stamps of a removed file do not affect the last close of the file. They do not affect the next file with the same inode
/// number either.
#[test]
fn stamps_go_with_their_file() {
    for kind in KINDS {
        let (image, volume, file) = used(kind);
        let fs = volume.fs();
        let held = fs.hold(file).unwrap();
        held.stamp(Access::Write);
        fs.writable().unwrap().unlink(ROOT, b"file").unwrap();
        held.stamp(Access::Read);
        fs.sync().unwrap();
        held.stamp(Access::Write);
        drop(held);
        volume.close().unwrap();
        drop(volume);
        image.check();
        let volume = open(&image, SET);
        let who = Credentials::default();
        let next = volume
            .fs()
            .writable()
            .unwrap()
            .create(ROOT, b"next", NewFile::Regular, 0o644, &who)
            .unwrap();
        assert_eq!(next, file, "{kind:?}: the number is not used again");
        assert_eq!(times(volume.fs(), next), [kept(kind, SET); 3], "{kind:?}");
    }
}

/// Some threads use files while other threads change, sync and close these files. Each time stamp is visible immediately, and none is lost.
#[test]
fn stamps_of_many_threads_are_kept() {
    const FILES: u64 = 8;
    let (image, volume, _) = used(KINDS[0]);
    let fs = volume.fs();
    let make = |number: u64| {
        let name = format!("file {number}");
        fs.writable()
            .unwrap()
            .create(ROOT, name.as_bytes(), NewFile::Regular, 0o644, &Credentials::default())
            .unwrap()
    };
    let files: Vec<_> = (0..FILES).map(make).collect();
    let change = SetAttributes::new().modified(SET);
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(move || {
                for _ in 0..200 {
                    fs.writable().unwrap().set_attributes(*file, &change).unwrap();
                    let held = fs.hold(*file).unwrap();
                    held.stamp(Access::Write);
                    assert_eq!(times(fs, *file)[1], USED);
                    drop(held);
                    assert_eq!(times(fs, *file)[1], USED);
                }
            });
        }
        scope.spawn(|| (0..100).for_each(|_| fs.sync().unwrap()));
    });
    volume.close().unwrap();
    drop(volume);
    image.check();
    let fs = image.fs();
    files.iter().for_each(|file| assert_eq!(times(&fs, *file)[1], USED));
}

/// After a close, the kernel sees the times that were visible before the close.
#[test]
fn the_kernel_sees_them_after_a_close() {
    require!([Need::Root]);
    for kind in KINDS {
        let (image, volume, file) = used(kind);
        let held = volume.fs().hold(file).unwrap();
        held.stamp(Access::Write);
        held.stamp(Access::Read);
        // The file is still open, so its time stamps are not written yet: the close of the volume must write them.
        volume.close().unwrap();
        drop((held, volume));
        image.check();
        let now = kept(kind, USED);
        let mount = image.mount("ro");
        let seen = std::fs::metadata(mount.dir().join("file")).unwrap();
        let expected = (now.seconds, i64::from(now.nanoseconds));
        assert_eq!((seen.mtime(), seen.mtime_nsec()), expected, "{kind:?}");
        assert_eq!((seen.atime(), seen.atime_nsec()), expected, "{kind:?}");
        assert_eq!((seen.ctime(), seen.ctime_nsec()), expected, "{kind:?}");
    }
}
