//! Lists directories and looks up names in them. The tests cover every form of directory: linear, hashed with every function and depth,
//! inline, and case-insensitive.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use ironmap::ErrorKind;
use ironmap::fs::ext4::{Ext4, JournalState};
use ironmap::fs::{FileType, Follow, InodeFlags};

use crate::common::image::{Image, scratch, words};
use crate::common::skip::Need;
use crate::require;

/// Makes the name that belongs to a number. The names have all lengths. Some are not ASCII, and some are not UTF-8.
fn name(number: usize) -> Vec<u8> {
    let mut name = format!("{number}-").into_bytes();
    match number % 5 {
        0 => name.extend_from_slice(&b"x".repeat(number % 200)),
        1 => name.extend_from_slice("größer-世界".as_bytes()),
        2 => name.extend_from_slice(&[0xFF, 0x80, 0xC3]),
        _ => name.extend_from_slice(b"file"),
    }
    name
}

/// Asserts that the listing contains exactly the expected entries. Asserts that a lookup of each name finds the same inode as the listing.
fn assert_names(fs: &Arc<Ext4>, path: &str, expected: &BTreeMap<Vec<u8>, u64>) {
    let dir = fs.resolve(path.as_bytes(), Follow::All).unwrap();
    let mut listed: BTreeMap<_, _> =
        dir.read_dir().unwrap().map(|entry| entry.map(|e| (e.name, e.inode.0)).unwrap()).collect();
    assert_eq!(listed.remove(&b"."[..]), Some(dir.number().0), "{path}/.");
    assert!(listed.remove(&b".."[..]).is_some(), "{path}/..");
    assert!(listed == *expected, "{path}: {} listed, {} expected", listed.len(), expected.len());
    for (name, number) in expected {
        assert_eq!(dir.lookup(name).unwrap().number().0, *number, "{}", name.escape_ascii());
    }
    let missing = dir.lookup(b"no such name").err().map(|error| error.kind());
    assert_eq!(missing, Some(ErrorKind::NotFound));
}

/// Some features change how a directory is stored. With each of them, a copied tree has the same names and types as its source.
#[test]
fn a_copied_tree_has_the_names_and_types_of_its_source() {
    let source = scratch();
    let root = source.path();
    for (dir, count) in
        [("empty", 0), ("one", 1), ("small", 5), ("inline-full", 12), ("large", 600)]
    {
        fs::create_dir(root.join(dir)).unwrap();
        for number in 0..count {
            let name = name(number);
            let path = root.join(dir).join(std::ffi::OsStr::from_bytes(&name));
            match number % 3 {
                0 => fs::write(path, &name).unwrap(),
                1 => fs::create_dir(path).unwrap(),
                _ => std::os::unix::fs::symlink("target", path).unwrap(),
            }
        }
    }
    for options in [
        "-t ext2 -b 1024 -I 128",
        "-t ext3 -b 4096",
        "-t ext4 -b 1024",
        "-t ext4 -b 4096",
        "-t ext4 -b 65536",
        "-t ext4 -b 65536 -O ^metadata_csum",
        "-t ext4 -b 1024 -O ^metadata_csum",
        "-t ext4 -b 4096 -O ^filetype",
        "-t ext4 -b 1024 -O inline_data -I 512",
        "-t ext4 -b 4096 -O inline_data,ea_inode",
    ] {
        let image = Image::populated("64M", &words(options), root);
        compare_tree(&image.ext4(), root, options);
        image.rebuild_directories();
        compare_tree(&image.ext4(), root, options);
    }
}

fn compare_tree(fs: &Arc<Ext4>, root: &Path, options: &str) {
    let typed = !options.contains("^filetype");
    // In `lost+found`, each block except the first contains one unused entry, which is as long as the block.
    let lost_and_found = fs.resolve(b"lost+found", Follow::All).unwrap();
    assert_eq!(lost_and_found.read_dir().unwrap().map(Result::unwrap).count(), 2, "{options}");
    for dir in fs::read_dir(root).unwrap() {
        let dir = dir.unwrap();
        let inode = fs.resolve(dir.file_name().as_bytes(), Follow::All).unwrap();
        let mut listed = 0;
        for entry in inode.read_dir().unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.file_type.is_some(), typed, "{options}");
            if matches!(&entry.name[..], b"." | b"..") {
                continue;
            }
            listed += 1;
            let source = dir.path().join(std::ffi::OsStr::from_bytes(&entry.name));
            let stat = fs::symlink_metadata(source).unwrap();
            let found = inode.lookup(&entry.name).unwrap();
            assert_eq!(found.number(), entry.inode, "{options}");
            assert_eq!(Some(found.file_type()), FileType::from_mode(stat.mode()), "{options}");
            assert!(entry.file_type.is_none_or(|t| t == found.file_type()), "{options}");
        }
        let expected = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(listed, expected, "{options}: {:?}", dir.file_name());
    }
}

/// If a directory has a tree, a lookup uses only the tree. So a wrong hash function would make lookups fail.
#[test]
fn every_hash_function_finds_every_name() {
    let source = scratch();
    let dir = source.path().join("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(source.path().join("file"), "").unwrap();
    for number in 0..4_000 {
        let path = dir.join(std::ffi::OsStr::from_bytes(&name(number)));
        fs::hard_link(source.path().join("file"), path).unwrap();
    }
    for algorithm in ["legacy", "half_md4", "tea"] {
        // Flag 1: the bytes of a name are signed numbers. Flag 2: the bytes are unsigned numbers.
        for flags in [1, 2] {
            let options = "-t ext4 -b 1024 -E hash_seed=00112233-4455-6677-8899-aabbccddeeff";
            let image = Image::populated("64M", &words(options), source.path());
            image.tune2fs(&format!("-E hash_alg={algorithm}"));
            image.debugfs(&format!("set_super_value flags {flags}\n"));
            let number = image.ext4().resolve(b"file", Follow::All).unwrap().number().0;
            let expected = (0..4_000).map(|index| (name(index), number)).collect();
            image.rebuild_directories();
            image.check();
            let fs = image.ext4();
            let dir = fs.resolve(b"dir", Follow::All).unwrap();
            assert!(dir.flags().contains(InodeFlags::INDEX), "{algorithm}");
            let dump = image.ask_debugfs("htree_dump dir\n");
            assert!(dump.contains("Indirect levels: 1"), "two levels of nodes: {algorithm}");
            assert_names(&fs, "dir", &expected);
        }
    }
}

/// A lookup finds every name in a directory that the kernel filled. The tree has up to three levels of nodes.
#[test]
fn kernel_made_directories_of_any_depth_are_found_whole() {
    require!([Need::Root]);
    for (options, count, levels) in [
        ("-t ext4 -b 1024 -O large_dir", 70_000, 2),
        ("-t ext4 -b 1024 -O ^metadata_csum", 10_000, 1),
        ("-t ext4 -b 4096", 100_000, 1),
        ("-t ext3 -b 4096", 2_000, 0),
    ] {
        let image = Image::mke2fs("256M", &words(options));
        let mount = image.mount("rw");
        let dir = mount.dir().join("dir");
        fs::create_dir(&dir).unwrap();
        let mut expected = BTreeMap::new();
        let mut number = 0;
        for index in 0..count {
            let mut name = name(index);
            if levels == 2 {
                name.resize(240, b'y');
            }
            // The names are hard links, so that few inodes are needed.
            let path = dir.join(std::ffi::OsStr::from_bytes(&name));
            let shared = mount.dir().join(format!("shared-{}", index / 20_000));
            if index % 20_000 == 0 {
                fs::write(&shared, "").unwrap();
                number = fs::metadata(&shared).unwrap().ino();
            }
            fs::hard_link(&shared, path).unwrap();
            expected.insert(name, number);
        }
        drop(mount);
        let dump = image.ask_debugfs("htree_dump dir\n");
        assert!(dump.contains(&format!("Indirect levels: {levels}")), "{options}");
        assert_names(&image.ext4(), "dir", &expected);
    }
}

/// Names with the same hash can fill several leaves. A lookup finds all of them, because it continues in the next leaf.
///
/// The eight names have the same legacy hash. A search over all numbers of nine digits up to 260,000,000 found them.
#[test]
fn names_of_equal_hash_are_found_across_leaves() {
    require!([Need::Root]);
    let image = Image::mke2fs("16M", &words("-t ext4 -b 1024 -O ^metadata_csum"));
    image.tune2fs("-E hash_alg=legacy");
    let mount = image.mount("rw");
    let dir = mount.dir().join("dir");
    fs::create_dir(&dir).unwrap();
    let colliding = [
        22_772_571,
        55_298_533,
        65_788_888,
        107_343_881,
        125_201_876,
        127_235_444,
        167_628_780,
        184_688_867,
    ];
    let mut expected = BTreeMap::new();
    for number in colliding.into_iter().chain(0..40) {
        let name = format!("{}{number:09}", "x".repeat(240));
        fs::write(dir.join(&name), "").unwrap();
        expected.insert(name.clone().into_bytes(), fs::metadata(dir.join(&name)).unwrap().ino());
    }
    drop(mount);
    let dump = image.ask_debugfs("htree_dump dir\n");
    assert!(dump.contains("Hash 0xc045064d"), "the hash continues in another leaf: {dump}");
    assert_names(&image.ext4(), "dir", &expected);
}

/// In a case-insensitive directory, a lookup finds a name in any case and in any normal form. This holds for hashed and linear directories.
/// A name that is not UTF-8 must match exactly.
#[test]
fn names_without_regard_to_case() {
    for (padding, indexed) in [(0, false), (400, true)] {
        let source = scratch();
        fs::create_dir(source.path().join("dir")).unwrap();
        let image = Image::populated(
            "32M",
            &words("-t ext4 -b 1024 -O casefold -E encoding=utf8"),
            source.path(),
        );
        fs::write(source.path().join("empty"), "").unwrap();
        let empty = source.path().join("empty").display().to_string();
        let mut commands = String::from("cd dir\n");
        let special =
            ["ReadMe.TXT", "Größe", "ΣΊΣΥΦΟΣ", "\u{212B}ngström", "soft\u{AD}hyphen", "İstanbul"];
        for name in special {
            commands.push_str(&format!("write {empty} \"{name}\"\n"));
        }
        for number in 0..padding {
            commands.push_str(&format!("write {empty} Padding-{number}\n"));
        }
        commands.push_str("cd /\nset_inode_field dir flags 0x40080000\n");
        image.debugfs(&commands);
        image.rebuild_directories();
        let fs = image.ext4();
        let dir = fs.resolve(b"dir", Follow::All).unwrap();
        assert!(dir.flags().contains(InodeFlags::CASEFOLD));
        assert_eq!(dir.flags().contains(InodeFlags::INDEX), indexed);
        for (other, stored) in [
            ("readme.txt", "ReadMe.TXT"),
            ("GRÖSSE", "Größe"),
            ("gro\u{308}ße", "Größe"),
            ("σίσυφος", "ΣΊΣΥΦΟΣ"),
            ("ÅNGSTRÖM", "\u{212B}ngström"),
            ("softhyphen", "soft\u{AD}hyphen"),
            ("i\u{307}STANBUL", "İstanbul"),
        ] {
            let found = dir.lookup(other.as_bytes()).unwrap().number();
            assert_eq!(found, dir.lookup(stored.as_bytes()).unwrap().number(), "{other}");
        }
        for number in 0..padding {
            dir.lookup(format!("pADDING-{number}").as_bytes()).unwrap();
        }
        assert_eq!(dir.lookup(b"readme").err().map(|e| e.kind()), Some(ErrorKind::NotFound));
        assert_eq!(dir.lookup(b"\xFF").err().map(|e| e.kind()), Some(ErrorKind::NotFound));
    }
}

/// Some changes of names are recorded only in fast commits of the journal. ironmap shows these changes. The test adds, renames and removes
/// names in old and new directories. The kernel mounts a copy of the same state for comparison.
#[test]
fn names_in_fast_commits_are_those_that_the_kernel_recovers() {
    require!([Need::Root]);
    let image = Image::mke2fs("64M", &words("-t ext4 -O fast_commit"));
    let mount = image.mount("rw");
    let at = |path: &str| mount.dir().join(path);
    fs::create_dir(at("dir")).unwrap();
    for number in 0..400 {
        fs::write(at(&format!("dir/old-{number}")), "").unwrap();
    }
    rustix::fs::syncfs(fs::File::open(mount.dir()).unwrap()).unwrap();
    fs::create_dir(at("new")).unwrap();
    for number in 0..10 {
        fs::write(at(&format!("dir/added-{number}")), "").unwrap();
        fs::write(at(&format!("new/added-{number}")), "").unwrap();
    }
    fs::remove_file(at("dir/old-7")).unwrap();
    fs::remove_file(at("dir/added-3")).unwrap();
    fs::rename(at("dir/old-8"), at("dir/renamed")).unwrap();
    fs::hard_link(at("dir/old-9"), at("new/link")).unwrap();
    fs::rename(at("dir/old-10"), at("dir/old-11")).unwrap();
    for path in ["dir/renamed", "dir/added-1", "new/added-1", "new/link", "dir/old-11"] {
        fs::File::open(at(path)).unwrap().sync_all().unwrap();
    }
    let dirty = image.copy();
    drop(mount);
    let recovered = dirty.copy();
    let mount = recovered.mount("rw");
    let fs = dirty.ext4();
    let state = &fs.journal().state;
    let fast = matches!(state, JournalState::Recovered(recovery) if recovery.fast_commits > 0);
    assert!(fast, "the kernel made fast commits: {state:?}");
    for path in ["dir", "new"] {
        let entries = fs::read_dir(mount.dir().join(path)).unwrap().map(Result::unwrap);
        let expected = entries.map(|e| (e.file_name().as_bytes().to_vec(), e.ino())).collect();
        assert_names(&fs, path, &expected);
    }
    let dir = fs.resolve(b"dir", Follow::All).unwrap();
    let removed = dir.lookup(b"old-7").err().map(|error| error.kind());
    assert_eq!(removed, Some(ErrorKind::NotFound));
}
