//! Volumes that current kernels cannot mount: volumes of version 4, and volumes with case-insensitive names. mkfs.xfs fills them from a
//! prototype, and xfs_db adds attributes. The oracle is the directory that was copied.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::common::command::run;
use crate::common::compare::{assert_contents, assert_same};
use crate::common::image::{Image, scratch, words};
use crate::common::kernel;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::common::view::{Record, Subject};
use crate::{DEPTH, FOR_READING, SEED, SIZE, assert_clean, grub, listing, note, require};

/// The number of names in each directory.
const NAMES: [usize; 6] = [0, 3, 40, 150, 1000, 4000];
/// Attributes that xfs_db sets. Each has xfs_db's option for the name space, the name space, and the length of the value.
const XATTRS: [(&str, &str, usize); 5] = [
    ("-u", "user", 3),
    ("-r", "trusted", 100),
    ("-s", "security", 1500),
    ("-u", "user", 5000),
    ("-r", "trusted", 65_536),
];

/// Makes a directory to copy. It contains all kinds of files that a prototype can describe.
fn source(dir: &Path, longest_link: usize) {
    let rng = &mut Rng::new(SEED);
    let mut write =
        |name: &str, size: u64| std::fs::write(dir.join(name), rng.bytes(size as usize)).unwrap();
    for size in [0, 1, 511, 512, 513, 4095, 4096, 4097, 100_000, 2_000_000] {
        write(&format!("size-{size}"), size);
    }
    write("MiXed", 10);
    write("xattrs", 700);
    write("many-xattrs", 0);
    let links = [1, 30, 140, 155, 156, 157, 300, 455, 456, 457, 500, 600, 1000, 1023];
    for len in links.into_iter().filter(|len| *len <= longest_link) {
        symlink("t".repeat(len), dir.join(format!("link-{len}"))).unwrap();
    }
    for (name, file_type) in [("c", FileType::CharacterDevice), ("b", FileType::BlockDevice)] {
        for (major, minor) in [(1, 3), (255, 255), (4095, 0x3_FFFF)] {
            let path = dir.join(format!("{name}-{major}-{minor}"));
            let mode = Mode::from_raw_mode(0o600);
            mknodat(CWD, path, file_type, mode, makedev(major, minor)).unwrap();
        }
    }
    let mut rng = Rng::new(SEED);
    for count in NAMES {
        let below = dir.join(format!("NAMES-{count}"));
        std::fs::create_dir(&below).unwrap();
        for index in 0..count {
            let width = 1 + rng.below(if index % 20 == 0 { 200 } else { 20 }) as usize;
            let letter = ["n", "N", "tt", "Tt"][rng.below(4) as usize];
            let path = below.join(format!("{letter}{index:0width$}"));
            mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
        }
    }
    for (name, mode, owner) in [("size-1", 0o600, 1000), ("size-4095", 0o777, 70_000)] {
        let path = dir.join(name);
        rustix::fs::chmod(&path, Mode::from_raw_mode(mode)).unwrap();
        std::os::unix::fs::chown(&path, Some(owner), Some(owner + 1)).unwrap();
    }
}

/// The prototype for mkfs.xfs. It has one line for each file, and `$` at the end of each directory.
fn prototype(dir: &Path, into: &mut String) {
    let mut paths: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let stat = path.symlink_metadata().unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let file_type = FileType::from_raw_mode(stat.mode());
        let letter = match file_type {
            FileType::RegularFile => '-',
            FileType::Directory => 'd',
            FileType::Symlink => 'l',
            FileType::Fifo => 'p',
            FileType::CharacterDevice => 'c',
            _ => 'b',
        };
        let (mode, uid, gid) = (stat.mode() & 0o777, stat.uid(), stat.gid());
        write!(into, "{name} {letter}--{mode:03o} {uid} {gid} ").unwrap();
        match file_type {
            FileType::RegularFile => writeln!(into, "{}", path.display()).unwrap(),
            FileType::Symlink => {
                writeln!(into, "{}", path.read_link().unwrap().display()).unwrap();
            }
            FileType::CharacterDevice | FileType::BlockDevice => {
                let (major, minor) =
                    (rustix::fs::major(stat.rdev()), rustix::fs::minor(stat.rdev()));
                writeln!(into, "{major} {minor}").unwrap();
            }
            _ => into.push('\n'),
        }
        if file_type == FileType::Directory {
            prototype(&path, into);
        }
    }
    into.push_str("$\n");
}

/// Sets attributes with xfs_db. Returns the attributes of each file.
fn set_xattrs(image: &Image) -> BTreeMap<&'static str, BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut commands = vec!["-x".to_owned()];
    let mut command = |words: String| commands.extend(["-c".to_owned(), words]);
    let mut set = BTreeMap::<_, BTreeMap<_, _>>::new();
    let mut add = |file: &'static str, kind: &str, name: &str, len: usize| {
        let (name, value) = (format!("{kind}.{name}").into_bytes(), vec![b'v'; len]);
        set.entry(file).or_default().insert(name, value);
    };
    command("path /xattrs".to_owned());
    for (index, (option, kind, len)) in XATTRS.into_iter().enumerate() {
        command(format!("attr_set {option} -v {len} name-{index}"));
        add("xattrs", kind, &format!("name-{index}"), len);
    }
    command("path /many-xattrs".to_owned());
    for index in 0..300 {
        command(format!("attr_set -u -v {} name-{index}", index % 90 + 1));
        add("many-xattrs", "user", &format!("name-{index}"), index % 90 + 1);
    }
    commands.push(image.path().to_str().unwrap().to_owned());
    run("xfs_db", &commands);
    set
}

fn by_prototype(options: &str) {
    let what = format!("mkfs.xfs {options}, prototype, seed {SEED:#x}");
    let dir = scratch();
    let from = dir.path().join("from");
    std::fs::create_dir(&from).unwrap();
    let is_v4 = options.contains("crc=0");
    // For a long link in a prototype, mkfs.xfs 6.1 writes a block without a header. Version 5 needs this header.
    source(&from, if is_v4 { 1023 } else { 300 });
    let mut text = "/dev/null\n0 0\nd--755 0 0\n".to_owned();
    prototype(&from, &mut text);
    text.push_str("$\n");
    let path = dir.path().join("prototype");
    std::fs::write(&path, text).unwrap();
    let mut args = words(options);
    args.extend(["-p", path.to_str().unwrap()]);
    let image = match Image::mkfs_xfs(SIZE, &args) {
        Ok(image) => image,
        Err(refusal) => return note(&refusal),
    };
    // xfs_db 6.1 crashes on volumes with attributes of version 1.
    let mut xattrs = if options.contains("attr=1") { BTreeMap::new() } else { set_xattrs(&image) };
    image.check();
    assert_clean(&image, &what);
    // The kernel may refuse to mount the volume. The test then records the refusal and continues.
    if let Err(refusal) = image.try_mount(FOR_READING).map(drop) {
        note(&format!("the kernel's view: {refusal}"));
    }

    let mut expected = kernel::view(&from, DEPTH, SEED);
    expected.remove(&b""[..]);
    for (path, record) in &mut expected {
        let is_dir = record.is(FileType::Directory);
        let file = std::str::from_utf8(path).unwrap();
        *record = Record {
            mode: record.mode,
            links: record.links.filter(|_| !is_dir),
            owner: record.owner,
            size: record.size.filter(|_| !is_dir),
            device: record.device,
            target: record.target.take(),
            reads: std::mem::take(&mut record.reads),
            xattrs: Some(xattrs.remove(file).unwrap_or_default()),
            ..Record::default()
        };
    }
    let mut subject = Subject::open(&image);
    let mut actual = subject.view();
    let root = actual.remove(&b""[..]).unwrap();
    assert_same(&expected, &actual, &what);
    assert_contents(&expected, &mut subject, &actual, &what);
    // GRUB finds a name only in its exact case. So case-insensitive volumes are omitted.
    if !options.contains("version=ci") {
        grub::assert_same(&image, &actual, &what);
    }
    assert_cases(&subject, &actual, options.contains("version=ci"), &what);
    actual.insert(Vec::new(), root);
    listing::assert_cursors(&subject, &actual, &what);
}

/// Asserts that a name in another case refers to the same file in a case-insensitive volume, and to no file in other volumes.
fn assert_cases(subject: &Subject, view: &crate::common::view::View, folds: bool, what: &str) {
    for (path, record) in view {
        let text = std::str::from_utf8(path).unwrap();
        for other in [text.to_uppercase(), text.to_lowercase()] {
            let place = || format!("{what}: {other}");
            let found = subject.fs().resolve(other.as_bytes(), ironmap::fs::Follow::NotLast);
            match found {
                Ok(inode) if folds => {
                    assert_eq!(Some(inode.number().0), record.inode, "{}", place());
                }
                Ok(_) => assert!(view.contains_key(other.as_bytes()), "{}", place()),
                Err(error) => {
                    assert!(!folds && !view.contains_key(other.as_bytes()), "{}: {error}", place());
                    assert_eq!(error.kind(), ironmap::ErrorKind::NotFound, "{}", place());
                }
            }
        }
    }
}

/// Defines one test for each volume. Each line consists of the name of the test and the options of mkfs.xfs.
macro_rules! prototypes {
    ($($name:ident: $options:expr;)+) => {
        $(#[test]
        fn $name() {
            let tools = ["mkfs.xfs", "xfs_repair", "xfs_db"].map(Need::Tool);
            require!([Need::Root], tools);
            by_prototype($options);
        })+
    };
}

prototypes! {
    v5: "";
    v5_ignores_case: "-n version=ci";
    v5_of_1024_ignores_case: "-b size=1024 -n version=ci";
    v4: "-m crc=0";
    v4_blocks_of_512: "-m crc=0 -b size=512";
    v4_blocks_of_1024: "-m crc=0 -b size=1024";
    v4_blocks_of_2048: "-m crc=0 -b size=2048";
    v4_with_types: "-m crc=0 -n ftype=1";
    v4_without_types: "-m crc=0 -n ftype=0";
    v4_ignores_case: "-m crc=0 -n version=ci";
    v4_attributes_of_version_1: "-m crc=0 -i attr=1";
    v4_projects_of_16_bits: "-m crc=0 -i projid32bit=0";
    v4_log_of_version_1: "-m crc=0 -l version=1";
    v4_exact_counts: "-m crc=0 -l lazy-count=0";
    v4_inodes_of_2048: "-m crc=0 -i size=2048";
    v4_inodes_anywhere: "-m crc=0 -i align=0";
    v4_names_in_65536: "-m crc=0 -b size=512 -n size=65536";
    v4_names_in_4096: "-m crc=0 -b size=1024 -n size=4096,ftype=1";
    v4_sectors_of_4096: "-m crc=0 -s size=4096";
    v4_blocks_of_65536: "-m crc=0 -b size=65536";
}
