//! Inodes without a name (orphans) that cannot be freed, because the map, the attributes, or the list of orphans is broken. ironmap can
//! remove the name of such a file, and can open a volume with such an orphan for writing. The kernel can mount the volume. The superblock
//! records the error, and e2fsck frees the orphan.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::common::command::{output, run};
use crate::common::image::{Image, words};
use crate::common::skip::Need;
use ironmap::device::{Device, Faults, Ram, Sim};
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{Clock, Credentials, FileSystem, Follow, NewFile};
use ironmap::units::InodeNo;
use ironmap::{ErrorKind, Result, Volume, VolumeOptions};

const BLOCK: u64 = 1024;
const EXTENTS: &str = "-t ext4 -b 1024 -O ^metadata_csum,^orphan_file";
const SUMS: &str = "-t ext4 -b 1024 -O metadata_csum,^orphan_file";
const POINTERS: &str = "-t ext4 -b 1024 -O ^extents,^64bit,^flex_bg,^metadata_csum,^orphan_file";

/// A function that damages the file `/bad`, one for each fault.
type Break = fn(&Image);

const BREAKS: [(&str, &str, Break); 9] = [
    ("the magic number of a leaf", EXTENTS, |image| image.poke_block(leaf(image), 0, &[0, 0])),
    ("blocks outside the volume", EXTENTS, |image| image.poke_block(leaf(image), 20, &[0xF0; 4])),
    ("a wrong order", EXTENTS, |image| image.poke_block(leaf(image), 24, &[0; 4])),
    ("the checksum of a leaf", SUMS, |image| image.poke_block(leaf(image), 13, &[0x55])),
    ("the magic number of the root", SUMS, |image| set(image, "block[0] 0")),
    ("blocks of the file system", POINTERS, |image| set(image, "block[0] 2")),
    ("a pointer out of the volume", POINTERS, |image| set(image, "block[IND] 99999999")),
    ("pointers out of the volume", POINTERS, |image| {
        image.poke_block(number(&stat(image), "(IND):"), 0, &[0xF0; 64]);
    }),
    ("attributes", SUMS, |image| {
        image.poke_block(number(&stat(image), "File ACL: "), 0, &[0; 4]);
    }),
];

fn set(image: &Image, what: &str) {
    image.debugfs(&format!("sif /bad {what}\n"));
}

fn stat(image: &Image) -> String {
    image.ask_debugfs("stat /bad\n")
}

fn leaf(image: &Image) -> u64 {
    number(&stat(image), "(ETB0):")
}

fn number(said: &str, before: &str) -> u64 {
    let (_, rest) = said.split_once(before).unwrap_or_else(|| panic!("no {before}: {said}"));
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().unwrap()
}

/// A volume with the files `/bad`, `/good`, `/left` and `/last`. The map of `/bad` has a node outside the inode, and `/bad` has an
/// attribute in a separate block.
fn image(mkfs: &str) -> Image {
    let image = Image::in_memory("16M", &words(mkfs));
    let sparse = std::fs::File::create(image.beside("sparse")).unwrap();
    for at in 0..40 {
        sparse.write_all_at(&[7; BLOCK as usize], at * 3 * BLOCK).unwrap();
    }
    std::fs::write(image.beside("value"), [b'v'; 700]).unwrap();
    let (sparse, value) = (image.beside("sparse"), image.beside("value"));
    let (sparse, value) = (sparse.display(), value.display());
    image.debugfs(&format!(
        "write {sparse} bad\nea_set -f {value} bad user.x\nwrite {value} good\nwrite {sparse} left\nwrite {value} last\n"
    ));
    // debugfs does not update the quotas, so e2fsck repairs them.
    image.repair();
    image.check();
    image
}

fn inode_of(image: &Image, path: &str) -> u64 {
    number(&image.ask_debugfs(&format!("stat {path}\n")), "Inode: ")
}

/// Removes the names of these files and puts their inodes into the list of orphans. The first file is the head of the list. In the entry of
/// the last file, the number of the next inode is `end`.
fn orphan(image: &Image, paths: &[&str], end: u64) {
    let numbers: Vec<_> = paths.iter().map(|path| inode_of(image, path)).collect();
    let nexts = numbers.iter().skip(1).copied().chain([end]);
    let mut commands = format!("ssv last_orphan {}\n", numbers[0]);
    for ((path, number), next) in paths.iter().zip(&numbers).zip(nexts) {
        commands += &format!("unlink {path}\nsif <{number}> links_count 0\n");
        commands += &format!("sif <{number}> dtime @{next}\n");
    }
    image.debugfs(&commands);
}

fn open(image: &Image) -> Result<Volume> {
    let options = VolumeOptions::new().write(true);
    crate::common::beneath::open(&image.location(), &options)
}

fn create(fs: &Arc<dyn FileSystem>, name: &str) -> Result<()> {
    fs.writable()
        .unwrap()
        .create(ROOT, name.as_bytes(), NewFile::Regular, 0o644, &Credentials::default())
        .map(drop)
}

fn field(image: &Image, name: &str) -> String {
    let said = run("dumpe2fs", &["-h".as_ref(), image.path().as_os_str()]);
    let said = String::from_utf8(said).unwrap();
    let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

/// Checks that the volume remains usable: other files can be changed, another open reports nothing, the kernel mounts the volume, and
/// e2fsck repairs it without questions.
fn goes_on(image: &Image, what: &str) {
    assert!(field(image, "Filesystem state").contains("with errors"), "{what}");
    assert!(!field(image, "Filesystem features").contains("needs_recovery"), "{what}");
    let volume = open(image).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(volume.ext4().unwrap().take_left(), [""; 0], "{what}: told once");
    create(volume.fs(), "new").unwrap();
    volume.fs().writable().unwrap().unlink(ROOT, b"good").unwrap();
    volume.close().unwrap();
    drop(volume);
    if Need::Root.missing().is_none() {
        let mount = image.mount("rw,errors=continue");
        std::fs::write(mount.dir().join("newer"), b"by the kernel").unwrap();
    }
    let said = output("e2fsck", &["-p".as_ref(), image.path().as_os_str()]);
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(matches!(said.status.code(), Some(0 | 1)), "{what}: {text}");
    image.check();
}

/// The name of a broken file can be removed, even while a program has the file open.
#[test]
fn the_name_of_a_broken_file_can_be_removed() {
    for (what, mkfs, break_it) in BREAKS {
        for held in [false, true] {
            let image = image(mkfs);
            break_it(&image);
            let volume = open(&image).unwrap();
            let fs = volume.fs();
            let number = inode_of(&image, "/bad");
            let hold = held.then(|| fs.hold(InodeNo(number)).unwrap());
            fs.writable()
                .unwrap()
                .unlink(ROOT, b"bad")
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            drop(hold);
            create(fs, "another").unwrap_or_else(|error| panic!("{what}: {error}"));
            let left = fs.take_notices();
            assert_eq!(left.len(), 1, "{what}: {left:?}");
            assert!(left[0].contains(&format!("inode {number}")), "{what}: {left:?}");
            volume.close().unwrap();
            drop(volume);
            goes_on(&image, what);
        }
    }
}

/// A broken orphan does not prevent the open of the volume, and the other orphans are freed.
#[test]
fn a_broken_orphan_prevents_no_opening() {
    for (what, mkfs, break_it) in BREAKS {
        let image = image(mkfs);
        break_it(&image);
        let others = ["/left", "/last"].map(|path| inode_of(&image, path));
        orphan(&image, &["/left", "/bad", "/last"], 0);
        let volume = open(&image).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(volume.ext4().unwrap().take_left().len(), 1, "{what}");
        volume.close().unwrap();
        drop(volume);
        for other in others {
            let said = image.ask_debugfs(&format!("testi <{other}>\n"));
            assert!(said.contains("not in use"), "{what}: {said}");
        }
        goes_on(&image, what);
    }
}

/// A file with a name has a broken map, and the system crashed while the file was truncated. The volume can still be opened. The file
/// remains, with its blocks past the end.
#[test]
fn a_broken_truncation_prevents_no_opening() {
    // This test omits two of the faults, because they damage parts of the file that a truncation does not change.
    let kept = ["blocks of the file system", "attributes"];
    for (what, mkfs, break_it) in BREAKS.iter().filter(|(what, ..)| !kept.contains(what)) {
        let image = image(mkfs);
        break_it(&image);
        let number = inode_of(&image, "/bad");
        image.debugfs(&format!("ssv last_orphan {number}\nsif /bad size 1024\n"));
        let volume = open(&image).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(volume.ext4().unwrap().take_left().len(), 1, "{what}");
        create(volume.fs(), "another").unwrap();
        volume.close().unwrap();
        drop(volume);
        let volume = open(&image).unwrap();
        assert_eq!(volume.ext4().unwrap().take_left(), [""; 0], "{what}: told once");
        volume.close().unwrap();
        drop(volume);
        // The file has a name. One run of e2fsck repairs its map, and the next run frees the blocks that were mapped.
        image.repair();
        image.repair();
        image.check();
    }
}

/// An invalid entry ends the list of orphans. The entries before it are freed.
#[test]
fn a_list_that_cannot_be_followed_ends_there() {
    let free = |_: &Image| 4000;
    let outside = |_: &Image| 99_999_999;
    let own = |_: &Image| 8;
    let cycle = |image: &Image| inode_of(image, "/left");
    let broken = |image: &Image| {
        let said = image.ask_debugfs("imap /good\n");
        let (block, offset) = (number(&said, "located at block "), said.split_once("offset 0x"));
        let offset = u64::from_str_radix(offset.unwrap().1.trim(), 16).unwrap();
        let good = inode_of(image, "/good");
        image.poke_block(block, offset + 0x10, &[0x55; 4]);
        good
    };
    type End = fn(&Image) -> u64;
    let ends: [(&str, End); 5] = [
        ("a free inode", free),
        ("no inode", outside),
        ("the journal", own),
        ("a cycle", cycle),
        ("an inode whose checksum is wrong", broken),
    ];
    for (what, end) in ends {
        for alone in [false, true] {
            let image = image(SUMS);
            let end = end(&image);
            let left = inode_of(&image, "/left");
            if alone {
                if end == left {
                    continue;
                }
                image.debugfs(&format!("ssv last_orphan {end}\n"));
            } else {
                orphan(&image, &["/left"], end);
            }
            let volume = open(&image).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(volume.ext4().unwrap().take_left().len(), 1, "{what}");
            volume.close().unwrap();
            drop(volume);
            let freed = image.ask_debugfs(&format!("testi <{left}>\n")).contains("not in use");
            assert_eq!(freed, !alone, "{what}");
            let volume = open(&image).unwrap();
            assert_eq!(volume.ext4().unwrap().take_left(), [""; 0], "{what}: told once");
            create(volume.fs(), "another").unwrap();
            volume.close().unwrap();
            drop(volume);
            image.repair();
            image.check();
        }
    }
}

/// If an entry of the orphan file is not an orphan, ironmap clears this entry and frees the others.
#[test]
fn entries_of_the_orphan_file_that_are_no_orphans_are_cleared() {
    let image = image("-t ext4 -b 1024 -O ^metadata_csum,orphan_file");
    image.poke_block(leaf(&image), 0, &[0, 0]);
    let numbers = ["/bad", "/left"].map(|path| inode_of(&image, path));
    let stats = String::from_utf8(run("dumpe2fs", &["-h".as_ref(), image.path().as_os_str()]));
    let file = number(&stats.unwrap().replace(' ', ""), "Orphanfileinode:");
    let block = image.bmap(&format!("<{file}>"), std::iter::once(0))[0];
    for number in numbers {
        image.debugfs(&format!("sif <{number}> links_count 0\n"));
    }
    image.debugfs("unlink /bad\nunlink /left\nfeature orphan_present\n");
    let entries = [4000, 99_999_999, numbers[0] as u32, 8, numbers[1] as u32];
    for (at, entry) in (0..).zip(entries) {
        image.poke_block(block, at * 8, &entry.to_le_bytes());
    }
    let volume = open(&image).unwrap();
    assert_eq!(volume.ext4().unwrap().take_left().len(), 4);
    volume.close().unwrap();
    drop(volume);
    let said = image.ask_debugfs(&format!("testi <{}>\n", numbers[1]));
    assert!(said.contains("not in use"), "{said}");
    goes_on(&image, "an orphan file");
}

/// With the error policy `remount-ro`, only the open that finds the error is read-only. Later opens can write.
#[test]
fn a_policy_of_errors_is_obeyed_once() {
    let image = image(&format!("{EXTENTS} -e remount-ro"));
    image.poke_block(leaf(&image), 0, &[0, 0]);
    orphan(&image, &["/left", "/bad", "/last"], 0);
    let volume = open(&image).unwrap();
    assert_eq!(create(volume.fs(), "new").unwrap_err().kind(), ErrorKind::ReadOnly);
    assert!(volume.fs().resolve(b"/good", Follow::All).is_ok());
    assert!(volume.close().is_err());
    drop(volume);
    let volume = open(&image).unwrap();
    create(volume.fs(), "another").unwrap();
    volume.close().unwrap();
    drop(volume);
    goes_on(&image, "remount-ro");
}

/// ironmap refuses to open two damaged volumes for writing. If a group descriptor is wrong, the open changes nothing. If a quota inode is
/// missing, the open may replay the journal before it fails. The volume then needs no further recovery.
#[test]
fn a_volume_that_is_refused_does_not_need_recovery() {
    for dirty in [false, true] {
        for quota in [false, true] {
            let image = image("-t ext4 -b 1024 -O metadata_csum,quota -g 4096");
            if dirty {
                let data = image.beside("value").display().to_string();
                image.debugfs(&format!(
                    "journal_open\njournal_write -b 12000 {data}\njournal_close\n"
                ));
                assert!(field(&image, "Filesystem features").contains("needs_recovery"));
            }
            if quota {
                image.debugfs("clri <3>\n");
            } else {
                // The bytes are the checksum in the last group descriptor.
                image.poke_block(2, 3 * 64 + 0x1E, &[0x55, 0x55]);
            }
            let before = std::fs::read(image.path()).unwrap();
            assert!(open(&image).is_err());
            if quota {
                let features = field(&image, "Filesystem features");
                assert!(!features.contains("needs_recovery"), "{features}");
            } else {
                assert!(std::fs::read(image.path()).unwrap() == before, "nothing has changed");
            }
        }
    }
}

/// If a truncation fails half way, the volume becomes read-only until it is opened again. If changes were still possible, the file could
/// grow again and show its old blocks.
#[test]
fn a_truncation_that_failed_shows_nothing_old() {
    let image = Image::in_memory("16M", &words(EXTENTS));
    let sparse = std::fs::File::create(image.beside("sparse")).unwrap();
    for at in 0..300 {
        sparse.write_all_at(&[7; BLOCK as usize], at * 3 * BLOCK).unwrap();
    }
    drop(sparse);
    image.debugfs(&format!("write {} bad\n", image.beside("sparse").display()));
    image.repair();
    let said = stat(&image);
    let leaves: Vec<u64> =
        said.match_indices("(ETB0):").map(|(at, name)| number(&said[at..], name)).collect();
    // The truncation first frees the blocks that the map lists after this leaf. The blocks before the leaf remain allocated.
    image.poke_block(leaves[leaves.len() - 2], 0, &[0, 0]);
    let bad = InodeNo(inode_of(&image, "/bad"));
    let volume = open(&image).unwrap();
    assert_eq!(
        volume.fs().writable().unwrap().truncate(bad, 0).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    let grown = volume.fs().writable().unwrap().truncate(bad, 50 * BLOCK);
    assert_eq!(grown.unwrap_err().kind(), ErrorKind::ReadOnly);
}

/// If a read fails once during the open, the open returns the error. The orphan does not count as broken.
#[test]
fn one_read_that_fails_gives_no_orphan_up() {
    let image = image(EXTENTS);
    orphan(&image, &["/left", "/last"], 0);
    let bytes = std::fs::read(image.path()).unwrap();
    let mut refused = 0;
    for at in 0..60 {
        let ram: Arc<dyn Device> = Arc::new(Ram::from_image(&bytes));
        let faults = Faults { fail_at: Some(at), ..Faults::default() };
        match Volume::writable_on(Arc::new(Sim::new(ram, faults)), Clock::default()) {
            Ok(volume) => assert!(volume.ext4().unwrap().take_left().is_empty(), "request {at}"),
            Err(error) => {
                assert!(error.to_string().contains("EIO"), "request {at}: {error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 10, "{refused}");
}
