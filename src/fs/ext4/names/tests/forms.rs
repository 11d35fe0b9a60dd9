//! Tests of the forms of a directory: the change to each form, the change to the next form, and the limits of each form.

use super::super::{ADD_CREDITS, CHANGE_CREDITS, Directory};
use super::volume::Volume;
use crate::ErrorKind;
use crate::fs::ext4::ROOT;
use crate::fs::ext4::alloc::Freed;
use crate::fs::ext4::for_tests::Image;
use crate::fs::ext4::operation::InodeToChange;
use crate::fs::{FileSystem, FileType};
use crate::units::{FsBlock, InodeNo};

/// e2fsck accepts a new directory on volumes with every inode size. The directory is inline if the volume has the feature inline_data and
/// the inode has enough space. Otherwise the directory has one block.
#[test]
fn a_new_directory_has_its_two_entries() {
    for (options, inline) in [
        ("-t ext4 -b 4096", false),
        ("-t ext4 -b 1024 -O ^metadata_csum,^filetype", false),
        ("-t ext4 -b 65536", false),
        ("-t ext2 -b 1024 -I 128", false),
        ("-t ext4 -b 4096 -O inline_data", true),
        ("-t ext4 -b 1024 -O inline_data,casefold -E encoding=utf8 -I 1024", true),
    ] {
        let volume = Volume::new("64M", options);
        let fs = &volume.fs;
        let number = volume.make_directory(b"new");
        let new = fs.inode(ROOT).unwrap().lookup(b"new").unwrap();
        assert_eq!(new.number(), number);
        assert_eq!(new.has_inline_data(), inline, "{options}");
        assert!(new.is_empty_directory().unwrap());
        assert!(!fs.inode(ROOT).unwrap().is_empty_directory().unwrap());
        assert_eq!(new.read_dir().unwrap().count(), 2);
        // The parent of an inline or linear directory can be changed to another directory.
        for parent in [volume.dir, ROOT] {
            let new = InodeToChange::in_test(fs.inode(number).unwrap());
            volume.set_parent(&new, parent);
            assert_eq!(fs.inode(number).unwrap().lookup(b"..").unwrap().number(), parent);
        }
        fs.close().unwrap();
        volume.image.fsck();
    }
}

/// The parent of a hashed directory is stored in the root of the hash tree, and can be changed.
#[test]
fn the_parent_of_a_hashed_directory_can_change() {
    for options in ["-t ext4 -b 1024", "-t ext4 -b 1024 -O ^metadata_csum"] {
        let mut volume = Volume::new("16M", options);
        for number in 0..100 {
            volume.add(format!("name-{number}").as_bytes(), 0);
        }
        assert!(volume.dir().is_hashed());
        for parent in [volume.file(0), ROOT] {
            volume.set_parent(&volume.dir(), parent);
            assert_eq!(volume.dir().lookup(b"..").unwrap().number(), parent);
        }
        volume.finish();
    }
}

/// An inline directory first fills the space in the inode and then gets a block. The other attributes of the inode remain.
#[test]
fn an_inline_directory_outgrows_the_inode() {
    for (inode_size, attributes) in [
        (256, ""),
        (256, "ea_set dir user.a 12345\n"),
        (1024, "ea_set dir user.colour blue\nea_set dir user.b xyz\n"),
    ] {
        let image =
            Image::with_dir("16M", &format!("-t ext4 -b 1024 -O inline_data -I {inode_size}"));
        image.script(attributes);
        let expected = ask_attributes(&image);
        let mut volume = Volume::of(image, Default::default());
        assert!(volume.dir().has_inline_data());
        let mut inline = 0;
        for number in 0..100 {
            let name = format!("{number:04}");
            volume.add(name.as_bytes(), number % 2);
            inline += usize::from(volume.dir().has_inline_data());
            if number % 4 == 3 {
                volume.set(name.as_bytes(), 0);
                volume.remove(format!("{:04}", number - 1).as_bytes());
            }
            volume.assert_names();
        }
        // The 56 bytes in `i_block` contain four names of four bytes each. Further names are in the attribute `system.data`.
        assert!(inline > 4 && inline < 100, "{inline} inline of {inode_size}");
        assert_eq!(ask_attributes(&volume.finish()), expected);
    }
}

fn ask_attributes(image: &Image) -> Vec<String> {
    let answer = image.script("ea_list dir\n");
    let mut lines: Vec<_> =
        answer.lines().filter(|line| line.contains("user.")).map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// If no block is free, an attempt to add a name leaves a directory of any form unchanged. After a block is freed, names can be added.
#[test]
fn without_space_nothing_changes() {
    for options in [
        "-t ext4 -b 1024 -O inline_data",
        "-t ext4 -b 1024",
        "-t ext4 -b 1024 -O ^dir_index",
        "-t ext4 -b 1024 -O bigalloc -C 4096",
        "-t ext2 -b 1024",
    ] {
        let mut volume = Volume::new("16M", options);
        let mut added = 0;
        // Each round starts with one more free block than the previous round. Space is therefore exhausted once at every step of the
        // growth.
        for round in 0..12 {
            let hold = take_all_blocks(&volume);
            let (kind, before, state) = loop {
                let before = volume.dir();
                let name = format!("{added:0100}");
                match volume.try_add(name.as_bytes(), 0) {
                    Ok(()) => added += 1,
                    Err(error) => break (error.kind(), before, volume.dir()),
                }
            };
            assert_eq!(kind, ErrorKind::NoSpace, "{options}");
            volume.assert_names();
            assert_eq!(state.size(), before.size(), "{options}, round {round}");
            assert_eq!(state.flags(), before.flags(), "{options}, round {round}");
            assert_eq!(state.stat().blocks, before.stat().blocks, "{options}, round {round}");
            assert_eq!((state.i_block, &state.xattr_area), (before.i_block, &before.xattr_area));
            give_back(&volume, &hold);
            volume.add(format!("{added:0100}").as_bytes(), 1);
            added += 1;
        }
        volume.finish();
    }
}

fn take_all_blocks(volume: &Volume) -> Vec<(FsBlock, u32)> {
    let fs = &volume.fs;
    let mut hold = Vec::new();
    loop {
        match fs.transact(3, |h| h.allocate_blocks(FsBlock(0), 1000)) {
            Ok(run) => hold.push(run),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                return hold;
            }
        }
    }
}

fn give_back(volume: &Volume, hold: &[(FsBlock, u32)]) {
    let fs = &volume.fs;
    for (start, count) in hold {
        fs.transact(3, |h| h.free_blocks(*start, u64::from(*count), Freed::Data)).unwrap();
    }
    fs.sync().unwrap();
}

/// A case-insensitive directory computes the hash from the folded form of a name. It refuses names that Linux refuses or folds differently.
#[test]
fn names_without_regard_to_case() {
    for (options, strict) in [
        ("-t ext4 -b 1024 -O casefold -E encoding=utf8", false),
        ("-t ext4 -b 1024 -O casefold -E encoding=utf8,encoding_flags=strict", true),
    ] {
        let image = Image::with_dir("16M", options);
        image.script("set_inode_field dir flags 0x40080000\n");
        let mut volume = Volume::of(image, Default::default());
        for number in 0..300 {
            let name = format!("Größer-{number}-ΣΊΣΥΦΟΣ");
            volume.add(name.as_bytes(), number % 2);
            let found = volume.dir().lookup(format!("GRÖSSER-{number}-σίσυφος").as_bytes());
            assert_eq!(found.unwrap().number(), volume.file(number % 2));
        }
        assert!(volume.dir().is_hashed());
        let refused = |volume: &mut Volume, name: &[u8]| {
            volume.try_add(name, 0).err().map(|error| error.kind())
        };
        assert_eq!(refused(&mut volume, "\u{A7C7}".as_bytes()), Some(ErrorKind::Unsupported));
        let expected = strict.then_some(ErrorKind::InvalidInput);
        assert_eq!(refused(&mut volume, b"\xFFno UTF-8"), expected);
        volume.remove("Größer-7-ΣΊΣΥΦΟΣ".as_bytes());
        volume.finish();
    }
}

/// An invalid name cannot be added, removed or set. A missing name cannot be removed or set.
#[test]
fn an_invalid_name_is_refused() {
    let mut volume = Volume::new("16M", "-t ext4 -b 1024");
    volume.add(&[b'x'; 255], 0);
    let (fs, dir, file) = (volume.fs.clone(), volume.dir(), volume.file(0));
    for (name, kind) in [
        (&b""[..], ErrorKind::InvalidInput),
        (b".", ErrorKind::InvalidInput),
        (b"..", ErrorKind::InvalidInput),
        (b"a/b", ErrorKind::InvalidInput),
        (b"a\0b", ErrorKind::InvalidInput),
        (&[b'x'; 256], ErrorKind::NameTooLong),
    ] {
        let added = fs.transact(ADD_CREDITS, |h| {
            Directory::of(&dir).add_entry(h, name, file, FileType::Regular)
        });
        assert_eq!(added.unwrap_err().kind(), kind, "{}", name.escape_ascii());
        let removed = fs.transact(CHANGE_CREDITS, |h| Directory::of(&dir).remove_entry(h, name));
        assert_eq!(removed.unwrap_err().kind(), kind, "{}", name.escape_ascii());
    }
    let none = InodeNo(0);
    let added = fs
        .transact(ADD_CREDITS, |h| Directory::of(&dir).add_entry(h, b"a", none, FileType::Regular));
    assert_eq!(added.unwrap_err().kind(), ErrorKind::InvalidInput);
    let removed = fs.transact(CHANGE_CREDITS, |h| Directory::of(&dir).remove_entry(h, b"a"));
    assert_eq!(removed.unwrap_err().kind(), ErrorKind::NotFound);
    let set = fs.transact(CHANGE_CREDITS, |h| {
        Directory::of(&dir).set_entry(h, b"a", file, FileType::Regular)
    });
    assert_eq!(set.unwrap_err().kind(), ErrorKind::NotFound);
    let root = InodeToChange::in_test(fs.inode(file).unwrap());
    let added = fs.transact(ADD_CREDITS, |h| {
        Directory::of(&root).add_entry(h, b"a", file, FileType::Regular)
    });
    assert_eq!(added.unwrap_err().kind(), ErrorKind::NotADirectory);
    volume.finish();
}
