//! A volume whose journal contains fast commits is opened for writing. The open writes the changes of these fast commits to the volume.
//! Then e2fsck must find no fault, and the tree must be the same as after the kernel's recovery of a copy. A read-only open before the
//! recovery must also show this tree. Needs root.

use std::fs::{self, File, OpenOptions as Options};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ironmap::device::{Crashes, Ram, Record as Recorder};
use ironmap::fs::ext4::{JournalFeatures, JournalState};
use ironmap::fs::{Clock, Timestamp};
use ironmap::units::DevOffset;
use ironmap::{Volume, VolumeOptions};
use rustix::fs::FileType;

use crate::common::compare::{assert_contents, assert_same};
use crate::common::image::{Image, words};
use crate::common::skip::{Need, note_part};
use crate::common::view::{Subject, View};
use crate::journal::kernel::{ORDERED, Replay, Scenario, recovered_by_kernel};
use crate::require;

const CLOCK: Clock = Clock::Fixed(Timestamp { seconds: 1_000_000_000, nanoseconds: 0 });

fn fast_commits(image: &Image) -> u32 {
    match image.ext4().journal().state.clone() {
        JournalState::Recovered(recovery) => recovery.fast_commits,
        state => panic!("{state:?}"),
    }
}

/// Opens a copy of the volume for writing, and closes it.
fn recover(dirty: &Image, what: &str) -> Image {
    let image = dirty.copy();
    let options = VolumeOptions::new().write(true);
    let volume = crate::common::beneath::open(&image.location(), &options);
    let volume = volume.unwrap_or_else(|error| panic!("{what}: {error}"));
    volume.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    drop(volume);
    image.check();
    image
}

/// The view of a read-only open of the dirty volume. The view omits everything that fast commits do not record: the blocks of directories
/// and of map nodes, the number of subdirectories, and the times at which entries changed.
fn seen(image: &Image) -> View {
    let mut view = Subject::open(image).view();
    for record in view.values_mut() {
        record.blocks = None;
        if record.is(FileType::Directory) {
            (record.links, record.size, record.flags) = (None, None, None);
            record.changed = None;
        }
    }
    view
}

/// Recovers the volume, and compares it with the oracles. Returns the number of fast commits.
fn compare(dirty: &Image, what: &str) -> u32 {
    let recovered = recover(dirty, what);
    let mut subject = Subject::open(&recovered);
    let actual = subject.view();
    assert_same(&seen(dirty), &actual, &format!("{what}, as read before"));
    match recovered_by_kernel(dirty, Replay::Fast) {
        Ok(mut expected) => {
            // Linux does not count subdirectories during the replay, so the link counts and flags of directories are not compared.
            let directories = expected.values_mut().filter(|record| record.is(FileType::Directory));
            directories.for_each(|record| (record.links, record.flags) = (None, None));
            assert_same(&expected, &actual, what);
            assert_contents(&expected, &mut subject, &actual, what);
        }
        Err(refusal) => note_part("fast_commits", what, refusal.trim()),
    }
    fast_commits(dirty)
}

#[test]
fn they_become_part_of_the_volume() {
    require!([Need::Root]);
    let features = JournalFeatures::FAST_COMMIT;
    let mut count = 0;
    for (mke2fs, seed) in [
        ("-b 4096 -O fast_commit", 21),
        ("-b 4096 -O fast_commit,^64bit,orphan_file", 22),
        ("-b 2048 -O fast_commit,^metadata_csum", 23),
        ("-b 2048 -O fast_commit,inline_data", 24),
        ("-b 1024 -O fast_commit", 25),
        ("-b 1024 -O fast_commit,^metadata_csum,uninit_bg", 26),
    ] {
        for plain in [true, false] {
            let scenario = Scenario { mke2fs, features, plain, ..ORDERED };
            count += compare(&scenario.dirty(seed), &scenario.name(seed));
        }
    }
    // Linux sometimes makes a full commit instead of a fast commit. So the test checks only the total number of fast commits.
    assert!(count > 0, "no fast commits");
}

fn synced(path: PathBuf) {
    File::open(path).unwrap().sync_all().unwrap();
}

fn append(path: &Path, bytes: &[u8]) {
    let mut file = Options::new().append(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

/// Makes one change of each kind after a full commit. In these changes, one name is created and removed again, and one inode number is
/// reused.
fn one_of_each(root: &Path) {
    let at = |name: &str| root.join(name);
    let bytes = |number: u8| vec![number; 20_000];
    fs::create_dir(at("dir")).unwrap();
    fs::create_dir(at("old")).unwrap();
    for number in 0..12 {
        fs::write(at(&format!("f{number}")), bytes(number)).unwrap();
    }
    let attribute = |name: &str| {
        let (flags, value) = (rustix::fs::XattrFlags::empty(), b"value");
        rustix::fs::setxattr(at(name), "user.name", value, flags).unwrap();
    };
    attribute("f0");
    attribute("f4");
    rustix::fs::syncfs(File::open(root).unwrap()).unwrap();

    append(&at("f0"), &bytes(100));
    let file = Options::new().write(true).open(at("f1")).unwrap();
    file.write_all_at(&bytes(101), 70_000).unwrap();
    file.sync_all().unwrap();
    let file = Options::new().write(true).open(at("f2")).unwrap();
    file.set_len(5_000).unwrap();
    file.sync_all().unwrap();
    fs::write(at("f3"), bytes(103)).unwrap();
    synced(at("f3"));
    fs::remove_file(at("f4")).unwrap();
    fs::write(at("n4"), bytes(104)).unwrap();
    synced(at("n4"));
    fs::rename(at("f5"), at("r5")).unwrap();
    synced(at("r5"));
    fs::hard_link(at("f6"), at("dir/l6")).unwrap();
    synced(at("f6"));
    fs::remove_file(at("f6")).unwrap();
    fs::rename(at("f7"), at("f8")).unwrap();
    synced(at("f8"));
    fs::write(at("gone"), bytes(105)).unwrap();
    synced(at("gone"));
    fs::remove_file(at("gone")).unwrap();
    fs::remove_dir(at("old")).unwrap();
    fs::create_dir(at("new")).unwrap();
    fs::write(at("new/file"), bytes(106)).unwrap();
    synced(at("new/file"));
    // Together, these names need more than one block.
    for number in 0..200 {
        File::create(at(&format!("dir/{number:050}"))).unwrap();
    }
    append(&at("f9"), &bytes(107));
    fs::remove_file(at("f10")).unwrap();
    append(&at("f11"), b"the last");
}

fn dirty_with_one_of_each(size: &str, mke2fs: &str) -> Image {
    let image = Image::mke2fs(size, &words(&format!("-t ext4 {mke2fs}")));
    let mounted = image.mount("noatime,commit=600");
    one_of_each(mounted.dir());
    image.copy()
}

#[test]
fn every_kind_of_change_is_recovered() {
    require!([Need::Root]);
    for mke2fs in [
        "-b 1024 -O fast_commit",
        "-b 1024 -O fast_commit,^metadata_csum,^dir_index",
        "-b 4096 -O fast_commit",
        "-b 4096 -O fast_commit,inline_data",
        "-b 2048 -O fast_commit,^64bit",
    ] {
        assert!(compare(&dirty_with_one_of_each("64M", mke2fs), mke2fs) > 0, "{mke2fs}");
    }
}

/// If power fails at any point of a recovery, the next open recovers the volume to the same result.
#[test]
fn a_recovery_that_is_cut_off_is_done_again() {
    require!([Need::Root]);
    let dirty = dirty_with_one_of_each("16M", "-b 1024 -J size=4 -O fast_commit");
    assert!(fast_commits(&dirty) > 0);
    let expected = seen(&dirty);
    let base = Ram::from_image(&fs::read(dirty.path()).unwrap());
    let record = Arc::new(Recorder::new(Arc::new(base.snapshot())));
    Volume::writable_on(record.clone(), CLOCK).unwrap().close().unwrap();
    let superblock = DevOffset(1024)..DevOffset(2048);
    let mut crashes = Crashes::new(&base, record.log()).with_atomic(superblock);
    let names = crashes.names(0xFA57, 1);
    assert!(names.len() > 20, "{} states", names.len());
    for name in names {
        let state = crashes.state(name);
        let image = Image::none();
        state.store(&File::create(image.path()).unwrap()).unwrap();
        let what = format!("state {name}");
        assert_same(&expected, &seen(&image), &format!("{what}, read"));
        let again = recover(&image, &what);
        assert_same(&expected, &seen(&again), &format!("{what}, recovered"));
    }
}
