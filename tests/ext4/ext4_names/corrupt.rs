//! Damaged directories, trees and attributes. The result is an error that names the position. ironmap never panics and never loops
//! endlessly.

use std::fs;

use ironmap::fs::ext4::Ext4Inode;

use ironmap::fs::{DirCursor, Follow};
use ironmap::{Error, ErrorKind};

use crate::common::image::{Image, scratch, words};
use crate::common::rng::Rng;

const HASH_SEED: &str = "00112233-4455-6677-8899-aabbccddeeff";

/// A volume with a linear directory and a hashed directory, with or without checksums.
fn image(checksums: bool) -> Image {
    let source = scratch();
    for (dir, count) in [("linear", 5), ("hashed", 400)] {
        fs::create_dir(source.path().join(dir)).unwrap();
        for number in 0..count {
            fs::write(source.path().join(format!("{dir}/file-{number:03}")), "").unwrap();
        }
    }
    let feature = if checksums { "metadata_csum" } else { "^metadata_csum" };
    let options = format!("-t ext4 -b 1024 -O {feature} -E hash_seed={HASH_SEED}");
    let image = Image::populated("16M", &words(&options), source.path());
    image.rebuild_directories();
    image
}

fn dir(image: &Image, path: &str) -> Ext4Inode {
    image.ext4().resolve(path.as_bytes(), Follow::All).unwrap()
}

fn list(dir: &Ext4Inode) -> Result<usize, Error> {
    dir.read_dir()?.try_fold(0, |count, entry| entry.map(|_| count + 1))
}

/// Asserts an error of kind `Corrupt` that names this directory and this field.
fn assert_corrupt<T>(result: Result<T, Error>, dir: &Ext4Inode, field: &str) {
    let error = result.err().unwrap_or_else(|| panic!("{field}: no error"));
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let place = error.place().unwrap();
    assert_eq!((place.inode, place.field), (Some(dir.number()), field), "{error}");
}

/// ironmap refuses a wrong value in any field of a directory entry. In the linear directory, the first entry after `.` and `..` begins at
/// byte 24.
#[test]
fn broken_entries_are_refused_by_field() {
    for (offset, bytes, field) in [
        (24 + 4, &[0, 0][..], "rec_len"),
        (24 + 4, &[18, 0], "rec_len"),
        (24 + 4, &[12, 0], "rec_len"),
        (24 + 4, &[0xFC, 0xFF], "rec_len"),
        (24 + 6, &[0], "name_len"),
        (24, &[0xFF, 0xFF, 0xFF, 0x7F], "inode"),
        (24 + 8, b"a/b", "name"),
        (24 + 8, b"a\0b", "name"),
    ] {
        let image = image(false);
        let third = dir(&image, "linear").read_dir().unwrap().nth(2).unwrap().unwrap();
        image.poke("linear", 0, offset, bytes);
        let dir = dir(&image, "linear");
        assert_corrupt(list(&dir), &dir, field);
        // A lookup checks all fields of the entry that it finds. For the entries before this one, the lookup checks only the lengths, as
        // Linux does.
        match field {
            "rec_len" => assert_corrupt(dir.lookup(b"file-004"), &dir, field),
            "inode" => assert_corrupt(dir.lookup(&third.name), &dir, field),
            _ => assert!(dir.lookup(b"file-004").is_ok() || third.name == b"file-004"),
        }
    }
}

/// With checksums, ironmap detects any changed byte in a block of a directory. The block can be a leaf or a node.
#[test]
fn changed_directory_blocks_fail_their_checksum() {
    for (path, offset, field) in [
        ("linear", 40, "det_checksum"),
        ("linear", 1020, "det_checksum"),
        ("hashed", 0x30, "dt_checksum"),
    ] {
        let image = image(true);
        image.poke(path, 0, offset, &[0x55]);
        let dir = dir(&image, path);
        assert_corrupt(list(&dir), &dir, field);
        assert_corrupt(dir.lookup(b"file-004"), &dir, field);
    }
    let image = image(true);
    image.poke("linear", 0, 1012 + 7, &[0]);
    assert_corrupt(list(&dir(&image, "linear")), &dir(&image, "linear"), "det_checksum");
}

/// A lookup in a broken tree fails, and does not fall back to a linear search. A listing succeeds, because it does not use the tree.
#[test]
fn broken_trees_are_refused_by_field() {
    for (offset, bytes, field) in [
        (0x1C, &[6][..], "hash_version"),
        (0x1D, &[9], "info_length"),
        (0x1E, &[2], "indirect_levels"),
        (0x1F, &[1], "unused_flags"),
        (0x20, &[0xFF, 0xFF], "limit"),
        (0x22, &[0xFF, 0x00], "count"),
        (0x22, &[0, 0], "count"),
        (0x28, &[0xFE, 0xFF, 0xFF, 0xFF], "hash"),
        (0x24, &[0, 0, 0, 0, 0xFE, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0xFE], "hash"),
    ] {
        let image = image(false);
        image.poke("hashed", 0, offset, bytes);
        let dir = dir(&image, "hashed");
        assert_eq!(list(&dir).unwrap(), 402, "{field}");
        let result = (0..400).map(|number| dir.lookup(format!("file-{number:03}").as_bytes()));
        let error = result.filter_map(Result::err).next();
        assert_corrupt(error.map_or(Ok(()), Err), &dir, field);
    }
}

/// If all entries of the tree refer to the same leaf with the same hash, a lookup ends with an error. The lookup searches the leaf only
/// once.
#[test]
fn a_tree_that_leads_in_circles_ends() {
    let image = image(false);
    let blocks = dir(&image, "hashed").size() / 1024;
    let output = image.ask_debugfs(&format!("dx_hash -h half_md4 -s {HASH_SEED} missing\n"));
    let hash = output.split(" is 0x").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let continued = u32::from_str_radix(hash, 16).unwrap() | 1;
    // All entries refer to block 1. Except for the first entry, each is marked as a continuation of the previous leaf.
    let count = 123_u16;
    assert!(blocks < u64::from(count));
    let mut entries = Vec::from(1_u32.to_le_bytes());
    for _ in 1..count {
        entries.extend_from_slice(&continued.to_le_bytes());
        entries.extend_from_slice(&1_u32.to_le_bytes());
    }
    image.poke("hashed", 0, 0x22, &count.to_le_bytes());
    image.poke("hashed", 0, 0x24, &entries);
    let dir = dir(&image, "hashed");
    assert_corrupt(dir.lookup(b"missing"), &dir, "block");
}

/// Random changes in a directory or in attributes give an error or other names. ironmap never panics and never loops endlessly.
#[test]
fn random_damage_is_survived() {
    let image = image(false);
    image.debugfs("ea_set linear user.a b\nea_set hashed user.name 0123456789\n");
    let bytes = fs::read(image.path()).unwrap();
    let mut rng = Rng::new(7);
    let mut random = |below: u64| rng.below(below);
    let mut targets = image.bmap("linear", 0..1);
    targets.extend(image.bmap("hashed", 0..4));
    let stat = image.ask_debugfs("imap linear\n");
    let table = stat.split("located at block ").nth(1).unwrap().split(',').next().unwrap();
    targets.push(table.trim().parse().unwrap());
    for _ in 0..1500 {
        for target in &targets {
            let before = &bytes[*target as usize * 1024..][..1024];
            image.poke_block(*target, 0, before);
        }
        for _ in 0..=random(3) {
            let target = targets[random(targets.len() as u64) as usize];
            let offset = if random(2) == 0 { random(64) } else { random(1024) };
            image.poke_block(target, offset, &[random(256) as u8]);
        }
        let fs = image.ext4();
        for path in ["linear", "hashed"] {
            let Ok(dir) = fs.resolve(path.as_bytes(), Follow::All) else { continue };
            let _ = list(&dir);
            let _ = dir.xattrs();
            for number in 0..20 {
                let _ = dir.lookup(format!("file-{:03}", number * 20).as_bytes());
            }
        }
    }
}

/// If the inode of an entry does not exist, the error names the directory and the entry.
#[test]
fn entries_that_point_to_no_file_accuse_the_directory() {
    for number in [3_u32, 11 + 1000] {
        let image = image(false);
        image.poke("linear", 0, 24, &number.to_le_bytes());
        let dir = dir(&image, "linear");
        let entries: Vec<_> = dir.read_dir().unwrap().map(Result::unwrap).collect();
        let result = dir.lookup(&entries[2].name);
        let text = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
        assert!(text.contains("file-") && text.contains(&number.to_string()), "{text}");
        assert_corrupt(result, &dir, "inode");
    }
}

/// ironmap refuses a directory if its size is not a multiple of the block size, or if the directory is larger than the volume.
#[test]
fn impossible_directory_sizes_are_refused() {
    for size in [1000_u64, 2000, 1 << 31] {
        let image = image(true);
        image.debugfs(&format!("set_inode_field linear size {size}\n"));
        let dir = dir(&image, "linear");
        assert_corrupt(list(&dir), &dir, "i_size");
    }
}

/// ironmap does not return the names in an encrypted directory, or the targets of encrypted links.
#[test]
fn encrypted_names_are_refused() {
    let source = scratch();
    fs::create_dir(source.path().join("dir")).unwrap();
    std::os::unix::fs::symlink("target", source.path().join("link")).unwrap();
    let image = Image::populated("16M", &words("-t ext4 -O encrypt"), source.path());
    image.debugfs("set_inode_field dir flags 0x80800\nset_inode_field link flags 0x800\n");
    let fs = image.ext4();
    let dir = fs.resolve(b"dir", Follow::All).unwrap();
    assert_eq!(dir.read_dir().err().map(|e| e.kind()), Some(ErrorKind::Encrypted));
    assert_eq!(
        fs.resolve(b"dir/x", Follow::All).err().map(|e| e.kind()),
        Some(ErrorKind::Encrypted)
    );
    assert_eq!(fs.resolve(b"dir/..", Follow::All).unwrap().number().0, 2);
    let link = fs.resolve(b"link", Follow::NotLast).unwrap();
    assert_eq!(link.read_link().err().map(|e| e.kind()), Some(ErrorKind::Encrypted));
}

/// On a damaged volume, attribute values may overlap. Their total size in memory is still limited.
#[test]
fn overlapping_values_are_limited() {
    let source = scratch();
    fs::write(source.path().join("file"), "").unwrap();
    let options = "-t ext4 -b 65536 -I 256 -O ^metadata_csum,^has_journal";
    let image = Image::populated("64M", &words(options), source.path());
    image.debugfs(&format!("ea_set file user.name {}\n", "v".repeat(500)));
    let stat = image.ask_debugfs("stat file\n");
    let block = stat.split("File ACL: ").nth(1).unwrap().split_whitespace().next().unwrap();
    // A block of 65,536 bytes gets 300 values of 59,000 bytes each.
    let mut list = Vec::new();
    for number in 0..300_u32 {
        list.extend([4, 1]);
        list.extend(6200_u16.to_le_bytes());
        list.extend([0; 4]);
        list.extend(59_000_u32.to_le_bytes());
        list.extend([0; 4]);
        list.extend(format!("{number:04}").bytes());
    }
    list.extend([0; 4]);
    image.poke_block(block.parse().unwrap(), 32, &list);
    let file = dir(&image, "file");
    assert_eq!(file.xattrs().err().map(|error| error.kind()), Some(ErrorKind::LimitExceeded));
    assert_eq!(file.xattr(b"user.0299").unwrap().map(|value| value.len()), Some(59_000));
}

/// ironmap refuses an attribute block whose fields contradict each other, with or without a checksum.
#[test]
fn broken_attribute_blocks_are_refused() {
    let source = scratch();
    fs::write(source.path().join("file"), "").unwrap();
    for (checksums, offset, bytes, field) in [
        (true, 900, &[1, 2, 3][..], "h_checksum"),
        (false, 0, &[1], "h_magic"),
        (false, 8, &[2], "h_blocks"),
        (false, 32, &[255], "e_name_len"),
        (false, 32 + 2, &[0xFF, 0xFF], "e_value_offs"),
        (false, 32 + 8, &[0xFF, 0xFF, 0xFF, 0xFF], "e_value_offs"),
        (false, 32 + 4, &[12], "e_value_inum"),
        (false, 32 + 12, &[1, 1, 1, 1], "e_hash"),
    ] {
        let options = if checksums { "-b 1024 -I 128" } else { "-b 1024 -I 128 -O ^metadata_csum" };
        let image = Image::populated("16M", &words(&format!("-t ext4 {options}")), source.path());
        let value = "v".repeat(200);
        image.debugfs(&format!("ea_set file user.name {value}\n"));
        let stat = image.ask_debugfs("stat file\n");
        let block: u64 = stat
            .split("File ACL: ")
            .nth(1)
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
            .unwrap();
        image.poke_block(block, offset, bytes);
        // A name of 255 bytes still ends within the block, so a wrong name length only hides the attribute. All other broken fields give an
        // error.
        let file = dir(&image, "file");
        if field == "e_name_len" {
            assert_eq!(file.xattr(b"user.name").ok().flatten(), None);
        } else {
            assert_corrupt(file.xattrs(), &file, field);
        }
    }
}

/// If the root of a directory's hash tree is broken, a read-only volume still lists all names, as Linux does. The listing can start at any
/// name.
#[test]
fn a_directory_with_a_broken_root_is_listed() {
    for (offset, bytes) in [(0x1C, &[99][..]), (0x1E, &[3]), (0x20, &[0xFF, 0xFF]), (0x22, &[0, 0])]
    {
        let image = image(false);
        image.poke("hashed", 0, offset, bytes);
        let dir = dir(&image, "hashed");
        let (mut names, mut cursor) = (Vec::new(), DirCursor::START);
        loop {
            let mut listing = dir.list(cursor).unwrap();
            let Some(entry) = listing.next() else { break };
            names.push(entry.unwrap().name);
            cursor = listing.cursor();
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 402, "{offset:#x}");
    }
}
