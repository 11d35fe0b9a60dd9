//! Quota limits. The tests write them into the quota file. A hard limit applies immediately, and a soft limit after its grace time.
//! Projects are counted separately.

use ironmap::ErrorKind;
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{Credentials, Fallocate, InodeFlags, NewFile, SetAttributes};
use ironmap::units::{FilePos, InodeNo};

use crate::common::rng::Rng;
use crate::quota::random::{self, Scope};
use crate::quota::volume::{NOW, Quota, Said};

const USER: Credentials = Credentials::new(1000, 2000, 0);
const OTHER: Credentials = Credentials::new(1001, 2001, 0);
const OPTIONS: &str = "-t ext4 -b 4096 -I 256 -O quota,project";

/// The offsets of fields in a quota entry.
const INODES_HARD: usize = 8;
const INODES_USED: usize = 24;
const SPACE_HARD: usize = 32;
const SPACE_SOFT: usize = 40;
const SPACE_USED: usize = 48;
const SPACE_TIME: usize = 56;
const ENTRY: usize = 72;

fn word(entry: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes"))
}

/// The positions in the image at which the quota entry of an id is stored: one position in the quota file, and the positions of the copies
/// in the journal.
fn entries(image: &[u8], id: u32, said: &Said) -> Vec<usize> {
    let is_entry = |at: &usize| {
        let entry = &image[*at..*at + ENTRY];
        word(entry, 0) == u64::from(id)
            && word(entry, INODES_USED) == said.inodes
            && word(entry, SPACE_USED) == said.bytes
    };
    let places: Vec<_> = (0..image.len() - ENTRY).step_by(4).filter(is_entry).collect();
    assert!(!places.is_empty(), "no entry of {id}");
    places
}

fn set(image: &mut [u8], id: u32, said: &Said, fields: &[(usize, u64)]) {
    for place in entries(image, id, said) {
        for (at, value) in fields {
            image[place + at..place + at + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
}

fn make(quota: &Quota, name: &str, who: &Credentials) -> Result<InodeNo, ErrorKind> {
    let made =
        quota.fs().writable().unwrap().create(ROOT, name.as_bytes(), NewFile::Regular, 0o644, who);
    made.map_err(|error| error.kind())
}

fn write(quota: &Quota, file: InodeNo, block: u64, blocks: usize) -> Result<usize, ErrorKind> {
    let written =
        quota.fs().writable().unwrap().write(file, FilePos(block * 4096), &vec![7; blocks * 4096]);
    written.map(|count| count / 4096).map_err(|error| error.kind())
}

/// A user can allocate blocks and inodes only up to the hard limits. A refused operation changes nothing.
#[test]
fn hard_limits_hold() {
    let mut quota = Quota::new("64M", OPTIONS);
    let file = make(&quota, "file", &USER).unwrap();
    let others = make(&quota, "others", &OTHER).unwrap();
    assert_eq!(write(&quota, file, 0, 3), Ok(3));
    assert_eq!(write(&quota, others, 0, 8), Ok(8));
    let said = Said { bytes: 3 * 4096, inodes: 1 };
    quota.change(NOW, |image| {
        set(image, 1000, &said, &[(SPACE_HARD, 40), (INODES_HARD, 3)]);
    });
    assert_eq!(quota.said("user", 1000), said);
    let give = SetAttributes::new().uid(1000);
    let given = quota.fs().writable().unwrap().set_attributes(others, &give);
    assert_eq!(given.map_err(|error| error.kind()), Err(ErrorKind::Quota), "11 blocks of 10");
    assert_eq!(write(&quota, file, 3, 100), Ok(7), "a short count");
    assert_eq!(write(&quota, file, 10, 1), Err(ErrorKind::Quota));
    assert_eq!(write(&quota, file, 9, 1), Ok(1), "existing blocks may be written");
    let allocated = quota.fs().writable().unwrap().fallocate(
        file,
        Fallocate::Allocate { keep_size: true },
        FilePos(1 << 20),
        4096,
    );
    assert_eq!(allocated.map_err(|error| error.kind()), Err(ErrorKind::Quota));
    make(&quota, "second", &USER).unwrap();
    make(&quota, "third", &USER).unwrap();
    assert_eq!(make(&quota, "fourth", &USER), Err(ErrorKind::Quota));
    let directory =
        quota.fs().writable().unwrap().create(ROOT, b"dir", NewFile::Directory, 0o755, &USER);
    assert_eq!(directory.map_err(|error| error.kind()), Err(ErrorKind::Quota));
    quota.fs().writable().unwrap().unlink(ROOT, b"second").unwrap();
    let directory =
        quota.fs().writable().unwrap().create(ROOT, b"dir", NewFile::Directory, 0o755, &USER);
    assert_eq!(directory.map_err(|error| error.kind()), Err(ErrorKind::Quota), "no block for it");
    quota.reopen();
    assert_eq!(quota.said("user", 1000), Said { bytes: 10 * 4096, inodes: 2 });
    assert_eq!(quota.said("group", 2000), Said { bytes: 10 * 4096, inodes: 2 });
    assert_eq!(quota.said("user", 1001), Said { bytes: 8 * 4096, inodes: 1 });
}

/// Usage may exceed a soft limit for the grace time in the quota file. After this time, usage cannot grow until it has been below the limit
/// again.
#[test]
fn soft_limits_hold_when_their_time_is_over() {
    let mut quota = Quota::new("64M", OPTIONS);
    let file = make(&quota, "file", &USER).unwrap();
    assert_eq!(write(&quota, file, 0, 3), Ok(3));
    let said = Said { bytes: 3 * 4096, inodes: 1 };
    quota.change(NOW, |image| set(image, 1000, &said, &[(SPACE_SOFT, 16)]));
    assert_eq!(write(&quota, file, 3, 3), Ok(3));
    let week = 7 * 24 * 3600;
    let time_of = |image: &[u8], said: &Said| {
        let place = entries(image, 1000, said)[0];
        word(&image[place..], SPACE_TIME)
    };
    let mut time = 0;
    let said = Said { bytes: 6 * 4096, inodes: 1 };
    quota.change(NOW + week - 1, |image| time = time_of(image, &said));
    assert_eq!(time, (NOW + week) as u64);
    assert_eq!(write(&quota, file, 6, 1), Ok(1));
    quota.change(NOW + week, |_| {});
    assert_eq!(write(&quota, file, 7, 1), Err(ErrorKind::Quota));
    quota.fs().writable().unwrap().truncate(file, 4 * 4096).unwrap();
    let said = Said { bytes: 4 * 4096, inodes: 1 };
    quota.change(NOW + week, |image| time = time_of(image, &said));
    assert_eq!(time, 0, "not exceeded");
    assert_eq!(write(&quota, file, 7, 1), Ok(1), "a new week");
    quota.reopen();
}

/// If an operation reaches a limit at any point, it undoes its changes. Afterwards the usage is correct, and no limit was exceeded.
#[test]
fn refusals_change_nothing() {
    let sets = [
        "-t ext4 -b 1024 -I 256 -O quota,project,ea_inode -J size=16",
        "-t ext4 -b 4096 -I 256 -O quota,project,inline_data",
        "-t ext4 -b 1024 -I 256 -O quota,project,bigalloc -C 8192",
    ];
    for (seed, options) in (0x0011_4175..).zip(sets) {
        println!("seed {seed:#x}: {options}");
        let mut rng = Rng::new(seed);
        let scope = Scope { id: Some(1000), names: 40 };
        let mut quota = Quota::new("64M", options);
        for _ in 0..300 {
            random::step(quota.fs(), &mut rng, scope);
        }
        quota.reopen();
        let said = quota.said("user", 1000);
        let inodes = said.inodes + 6;
        let limits = [(SPACE_HARD, said.bytes / 1024 + 20), (INODES_HARD, inodes)];
        quota.change(NOW, |image| set(image, 1000, &said, &limits));
        let mut refused = 0;
        for _ in 0..600 {
            let answer = random::step(quota.fs(), &mut rng, scope);
            refused += u32::from(answer == Some(ErrorKind::Quota));
        }
        quota.reopen();
        assert!(refused > 10, "{refused} refusals");
        assert!(quota.said("user", 1000).inodes <= inodes);
    }
}

/// A directory with project inheritance accepts no file of another project. The test tries each operation that could add such a file. New
/// files count for the project of the directory.
#[test]
fn projects_keep_apart() {
    for options in [OPTIONS, "-t ext4 -b 1024 -I 256 -O project"] {
        let mut quota = Quota::new("64M", options);
        let fs = quota.fs();
        let dir =
            fs.writable().unwrap().create(ROOT, b"dir", NewFile::Directory, 0o755, &USER).unwrap();
        let project = SetAttributes::new().project(77);
        fs.writable().unwrap().set_attributes(dir, &project).unwrap();
        fs.writable()
            .unwrap()
            .set_flags(dir, fs.inode(dir).unwrap().flags() | InodeFlags::PROJECT_INHERIT)
            .unwrap();
        let file = make(&quota, "file", &USER).unwrap();
        let inside =
            fs.writable().unwrap().create(dir, b"inside", NewFile::Regular, 0o644, &USER).unwrap();
        assert_eq!(fs.inode(inside).unwrap().stat().project, Some(77));
        let kind = |result: ironmap::Result<()>| result.map_err(|error| error.kind());
        let rename = |from, old: &[u8], to, new: &[u8], flags| {
            kind(fs.writable().unwrap().rename((from, old), (to, new), flags, &USER))
        };
        let plain = ironmap::fs::RenameFlags::empty();
        let exchange = ironmap::fs::RenameFlags::EXCHANGE;
        let crosses = Err(ErrorKind::CrossDevice);
        assert_eq!(kind(fs.writable().unwrap().link(file, dir, b"link")), crosses);
        assert_eq!(rename(ROOT, b"file", dir, b"file", plain), crosses);
        assert_eq!(rename(ROOT, b"file", dir, b"inside", exchange), crosses);
        assert_eq!(rename(dir, b"inside", ROOT, b"file", exchange), crosses);
        assert_eq!(rename(dir, b"inside", ROOT, b"out", plain), Ok(()), "out is allowed");
        assert_eq!(rename(ROOT, b"out", dir, b"back", plain), Ok(()), "of the same project");
        fs.writable().unwrap().set_attributes(file, &project).unwrap();
        assert_eq!(rename(ROOT, b"file", dir, b"file", plain), Ok(()));
        quota.reopen();
        if options == OPTIONS {
            assert_eq!(quota.said("project", 77).inodes, 3);
        }
    }
}
