//! Reading damaged volumes. ironmap must list and read everything that the kernel lists and reads after `mount -o ro` and after `-o
//! ro,noload`. For each fault that it skips, ironmap reports one line. It does not open a damaged volume for writing.

use std::path::Path;

use crate::common::image::{Image, words};
use crate::common::skip::Need;
use ironmap::fs::{FileType, Inode};
use ironmap::units::FilePos;
use ironmap::{ErrorKind, FileOptions, QueueOptions, Result, Volume, VolumeOptions};

const MKFS: &str = "-t ext4 -b 1024 -g 4096 -O metadata_csum,^flex_bg";

/// A volume with directories and files in several groups.
fn image(mkfs: &str) -> Image {
    let tree = crate::common::image::scratch();
    for dir in 0..8 {
        let path = tree.path().join(format!("dir{dir}"));
        std::fs::create_dir(&path).unwrap();
        for file in 0..5 {
            let content = vec![b'a' + dir + file; 3000 + usize::from(dir) * 999];
            std::fs::write(path.join(format!("file{file}")), content).unwrap();
        }
    }
    let image = Image::populated("16M", &words(mkfs), tree.path());
    image.check();
    image
}

fn open(image: &Image, no_load: bool) -> Result<Volume> {
    VolumeOptions::new().no_load(no_load).open(image.location())
}

/// Every path with its content. For an unreadable path, the content is the name of the errno.
type Seen = std::collections::BTreeMap<String, Result<Vec<u8>, String>>;

fn seen_by_kernel(dir: &Path, name: &str, seen: &mut Seen) {
    let path = dir.join(name.trim_start_matches('/'));
    match std::fs::read_dir(&path) {
        Err(_) => drop(seen.insert(name.to_owned(), Err("error".to_owned()))),
        Ok(entries) => {
            seen.insert(name.to_owned(), Ok(Vec::new()));
            for entry in entries.flatten() {
                let below = format!("{name}/{}", entry.file_name().to_str().unwrap());
                match entry.path().symlink_metadata() {
                    Ok(stat) if stat.is_dir() => seen_by_kernel(dir, &below, seen),
                    _ => {
                        let content = std::fs::read(entry.path());
                        seen.insert(below, content.map_err(|_| "error".to_owned()));
                    }
                }
            }
        }
    }
}

fn seen_by_us(volume: &Volume, inode: Result<Inode>, name: &str, seen: &mut Seen) {
    let failed = |_| "error".to_owned();
    let inode = match inode {
        Ok(inode) => inode,
        Err(error) => return drop(seen.insert(name.to_owned(), Err(failed(error)))),
    };
    if inode.file_type() != FileType::Directory {
        let read = || {
            let mut bytes = vec![0; inode.size() as usize];
            let file = volume.open_inode(inode, FileOptions::default())?;
            let mut queue = volume.queue(&QueueOptions::default())?;
            file.read_at(&mut queue, &mut bytes, FilePos(0))?;
            Ok(bytes)
        };
        return drop(seen.insert(name.to_owned(), read().map_err(failed)));
    }
    let entries = inode.read_dir().and_then(Iterator::collect::<Result<Vec<_>>>);
    match entries {
        Err(error) => drop(seen.insert(name.to_owned(), Err(failed(error)))),
        Ok(entries) => {
            seen.insert(name.to_owned(), Ok(Vec::new()));
            for entry in entries.iter().filter(|entry| entry.name != b"." && entry.name != b"..") {
                let below = format!("{name}/{}", std::str::from_utf8(&entry.name).unwrap());
                seen_by_us(volume, volume.fs().inode(entry.inode), &below, seen);
            }
        }
    }
}

/// Asserts that ironmap lists and reads everything that the kernel lists and reads. Returns the reports of skipped faults.
fn compare(image: &Image, what: &str, no_load: bool) -> Vec<String> {
    let volume = open(image, no_load).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut ours = Seen::new();
    seen_by_us(&volume, volume.fs().inode(ironmap::fs::ext4::ROOT), "", &mut ours);
    let left = volume.ext4().unwrap().take_left();
    drop(volume);
    if Need::Root.missing().is_none() {
        let mount = image.mount(if no_load { "ro,noload" } else { "ro" });
        let mut kernels = Seen::new();
        seen_by_kernel(mount.dir(), "", &mut kernels);
        for (name, kernel) in &kernels {
            if kernel.is_ok() {
                assert_eq!(ours.get(name), Some(kernel), "{what}: {name}");
            }
        }
    }
    assert!(ours.values().filter(|seen| seen.is_ok()).count() > 40, "{what}");
    left
}

/// Asserts that an open for writing is refused and changes nothing.
fn is_not_written(image: &Image, what: &str) {
    let before = std::fs::read(image.path()).unwrap();
    let options = VolumeOptions::new().write(true);
    let error = options.open(image.location()).err();
    let error = error.unwrap_or_else(|| panic!("{what}: opened for writing"));
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
    assert!(std::fs::read(image.path()).unwrap() == before, "{what}: nothing has changed");
}

#[test]
fn groups_with_damaged_descriptors_are_read() {
    for group in 0..4 {
        // The checksum, the flags, and the number of unused inodes of a group descriptor.
        for (field, bytes) in [(0x1E, [0x55, 0x55]), (0x12, [7, 0]), (0x1C, [0xFF, 0])] {
            let what = format!("group {group}, byte {field:#x}");
            let image = image(MKFS);
            image.poke_block(2, group * 64 + field, &bytes);
            let left = compare(&image, &what, false);
            let told = left.iter().filter(|line| line.contains(&format!("group {group} ")));
            assert!(told.count() <= 1 && left.len() <= 1, "{what}: {left:?}");
            assert!(group > 0 || left.len() == 1, "{what}: the root's group is reported: {left:?}");
            is_not_written(&image, &what);
        }
    }
}

#[test]
fn groups_with_damaged_bitmaps_are_read() {
    for (name, field) in [("block bitmap", 0), ("inode bitmap", 4)] {
        for group in 0..4 {
            let image = image(MKFS);
            let descriptor = image.block(2)[group * 64..][..64].to_vec();
            let block = u32::from_le_bytes(*descriptor[field..].first_chunk().unwrap());
            image.poke_block(block.into(), 0, &[0x5A; 16]);
            let what = format!("{name} of group {group}");
            assert_eq!(compare(&image, &what, false), [""; 0], "{what}: nobody asked for it");
        }
    }
}

#[test]
fn damaged_multiple_mount_protection_is_passed_over() {
    let image = image("-t ext4 -b 1024 -O metadata_csum,mmp");
    let volume = open(&image, false).unwrap();
    let stats = crate::common::command::run("dumpe2fs", &["-h".as_ref(), image.path().as_os_str()]);
    drop(volume);
    let stats = String::from_utf8(stats).unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("MMP block number:")).unwrap();
    image.poke_block(line.trim().parse().unwrap(), 0, &[0; 8]);
    let left = compare(&image, "MMP", false);
    assert!(left.len() == 1 && left[0].contains("mmp"), "{left:?}");
    is_not_written(&image, "MMP");
}

/// A journal needs recovery, and its superblock or its inode is damaged. ironmap skips the journal if the caller requests this.
#[test]
fn a_damaged_journal_is_skipped_on_request() {
    for what in ["superblock", "inode", "feature"] {
        let image = image(MKFS);
        let data = image.beside("data");
        std::fs::write(&data, [b'j'; 1024]).unwrap();
        let write =
            format!("journal_open\njournal_write -b 12000 {}\njournal_close\n", data.display());
        image.debugfs(&write);
        match what {
            "superblock" => image.poke("<8>", 0, 0, &[0; 64]),
            "inode" => drop(image.debugfs("clri <8>\n")),
            _ => drop(image.debugfs("feature ^has_journal\n")),
        }
        let error = open(&image, false).expect_err("it needs recovery");
        assert!(
            matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound),
            "{what}: {error}"
        );
        let left = if what != "superblock" {
            // The kernel refuses these volumes, both with `ro` and with `ro,noload`.
            open(&image, true).unwrap().ext4().unwrap().take_left()
        } else {
            compare(&image, what, true)
        };
        assert!(left.len() == 1 && left[0].contains("the journal needs recovery"), "{left:?}");
        let named = format!("noload:{}", image.path().display());
        let named = Volume::open(named).unwrap();
        assert_eq!(named.ext4().unwrap().take_left(), left, "{what}");
    }
}

#[test]
fn nothing_is_written_without_the_journal() {
    let image = image(MKFS);
    let options = VolumeOptions::new().write(true).no_load(true);
    let error = options.open(image.location()).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

/// A listing through the public interface ends with an error if a block of the directory is damaged. The names of the other blocks are
/// listed before it.
#[test]
fn a_listing_without_all_names_ends_with_an_error() {
    let tree = crate::common::image::scratch();
    let many: Vec<_> = (0..150).map(|number| format!("a-rather-long-name-{number:05}")).collect();
    for (dir, count) in [("one", 8), ("many", many.len())] {
        std::fs::create_dir(tree.path().join(dir)).unwrap();
        for name in &many[..count] {
            std::fs::write(tree.path().join(dir).join(name), name).unwrap();
        }
    }
    let listed = |volume: &Volume, dir: &str| {
        let entries: Vec<_> = volume.read_dir(dir).unwrap().collect();
        let names = entries.iter().flatten().map(|entry| entry.name.clone());
        let names: std::collections::BTreeSet<_> = names.collect();
        let faults = entries.iter().filter(|entry| entry.is_err()).count();
        if let Some(Err(error)) = entries.last() {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().starts_with(&format!("{dir}: ")), "{error}");
        }
        (names, faults, entries.last().is_some_and(Result::is_err))
    };
    for mkfs in [MKFS, "-t ext4 -b 1024 -O ^dir_index,^metadata_csum"] {
        let image = Image::populated("16M", &words(mkfs), tree.path());
        for (dir, blocks) in [("/one", 1), ("/many", 12)] {
            let (all, faults, _) = listed(&open(&image, false).unwrap(), dir);
            assert_eq!(faults, 0, "{mkfs}: {dir}");
            let blocks: Vec<_> =
                image.bmap(dir, 0..blocks).into_iter().filter(|block| *block != 0).collect();
            for (index, block) in blocks.iter().copied().enumerate() {
                let good = image.block(block);
                image.poke_block(block, 0, &[0; 1024]);
                let volume = open(&image, false).unwrap();
                let what = format!("{mkfs}: block {index} of {dir}");
                // The second listing ends with the error too.
                for _ in 0..2 {
                    let (names, faults, ends) = listed(&volume, dir);
                    assert!(names.is_subset(&all), "{what}");
                    assert!(ends && faults == 1, "{what}: {faults} errors");
                    assert!(
                        blocks.len() == 1 || names.len() * 2 > all.len(),
                        "{what}: {}",
                        names.len()
                    );
                }
                let other = if dir == "/one" { "/many" } else { "/one" };
                assert_eq!(listed(&volume, other).1, 0, "{what}: {other} is whole");
                image.poke_block(block, 0, &good);
            }
        }
    }
}
