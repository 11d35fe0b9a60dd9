//! Damaged group descriptors. A volume that is only read takes the positions of a group's structures from a copy of the descriptor. The truth
//! is the tree from which the volume was made. e2fsck is the oracle of `check`.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use ironmap::fs::Follow;
use ironmap::units::FilePos;
use ironmap::{FileOptions, QueueOptions, Result, Volume, VolumeOptions};

use crate::common::image::{Image, scratch, words};

/// The groups whose descriptors are damaged. Group 0 contains the root directory and the journal.
const GROUPS: [u64; 2] = [0, 2];

/// Options of mke2fs, the size of the volume, and whether the descriptors have checksums.
const VOLUMES: [(&str, &str, bool); 9] = [
    ("16M", "-t ext4 -b 1024 -g 4096 -O metadata_csum,64bit,^flex_bg", true),
    ("16M", "-t ext4 -b 1024 -g 4096 -O metadata_csum,64bit,flex_bg", true),
    ("16M", "-t ext4 -b 1024 -g 4096 -O ^metadata_csum,uninit_bg,^64bit", true),
    ("16M", "-t ext4 -b 1024 -g 4096 -O metadata_csum,meta_bg,^resize_inode", true),
    ("32M", "-t ext4 -b 4096 -g 2048 -O metadata_csum,sparse_super2,^resize_inode", true),
    ("16M", "-t ext4 -b 1024 -g 4096 -O ^metadata_csum,^uninit_bg,meta_bg,^resize_inode", false),
    ("32M", "-t ext4 -b 4096 -g 2048 -O ^metadata_csum,^uninit_bg,flex_bg", false),
    ("16M", "-t ext3 -b 1024 -g 4096", false),
    ("16M", "-t ext2 -b 1024 -g 4096 -O ^sparse_super,^resize_inode", false),
];

/// The content of each file by its path.
type Truth = BTreeMap<String, Vec<u8>>;

/// A volume with a directory in each group.
fn made(size: &str, options: &str) -> (Image, Truth) {
    let (tree, mut truth) = (scratch(), Truth::new());
    for dir in 0..8_u8 {
        std::fs::create_dir(tree.path().join(format!("dir{dir}"))).unwrap();
        for file in 0..1 {
            let content = vec![b'a' + dir * 3 + file; 3000 + usize::from(dir) * 999];
            let path = format!("dir{dir}/file{file}");
            std::fs::write(tree.path().join(&path), &content).unwrap();
            truth.insert(path, content);
        }
    }
    (Image::populated(size, &words(options), tree.path()), truth)
}

fn content(volume: &Volume, path: &str) -> Result<Vec<u8>> {
    let inode = volume.fs().resolve(path.as_bytes(), Follow::NotLast)?;
    let mut bytes = vec![0; inode.size() as usize];
    let file = volume.open_inode(inode, FileOptions::default())?;
    file.read_at(&mut volume.queue(&QueueOptions::default())?, &mut bytes, FilePos(0))?;
    Ok(bytes)
}

/// Asserts that all files can be read. Returns the reports.
fn read_all(image: &Image, truth: &Truth, what: &str) -> Vec<String> {
    let volume = image.open().unwrap_or_else(|error| panic!("{what}: {error}"));
    for (path, expected) in truth {
        let found =
            content(&volume, path).unwrap_or_else(|error| panic!("{what}: {path}: {error}"));
        assert!(found == *expected, "{what}: {path}");
    }
    let (mut inodes, mut refused) = (0, 0);
    let mut count = |_, inode: Result<_>| {
        match inode {
            Ok(_) => inodes += 1,
            // Without checksums of inodes, the unused part of such a group may contain inodes of an earlier file system.
            Err(error) => {
                assert!(error.to_string().contains("are not searched"), "{what}: {error}");
                refused += 1;
            }
        }
        Ok(())
    };
    volume.fs().used_inodes(&mut count).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(inodes > truth.len() || refused > 0, "{what}: {inodes} inodes");
    volume.fs().deleted().unwrap_or_else(|error| panic!("{what}: {error}"));
    volume.ext4().unwrap().take_left()
}

fn is_clean(image: &Image, what: &str) -> bool {
    let volume = image.open().unwrap_or_else(|error| panic!("{what}: {error}"));
    volume.fs().check(&mut |_| ()).unwrap().is_clean()
}

fn e2fsck_is_clean(image: &Image) -> bool {
    let path = image.path();
    let mut e2fsck = Command::new("e2fsck");
    e2fsck.args(["-fn"]).arg(path).stdout(Stdio::null()).stderr(Stdio::null());
    e2fsck.status().unwrap().success()
}

fn dumped(image: &Image) -> String {
    let dumped = crate::common::command::run("dumpe2fs", &[image.path().as_os_str()]);
    String::from_utf8(dumped).unwrap()
}

fn number(dumped: &str, key: &str) -> Option<u64> {
    let line = dumped.lines().find_map(|line| line.strip_prefix(key));
    line.map(|line| line.trim().parse().unwrap())
}

/// The block and the byte of a group's primary descriptor, and the length of a descriptor.
fn descriptor(image: &Image, group: u64) -> (u64, u64, u64) {
    let dumped = dumped(image);
    let size = number(&dumped, "Group descriptor size:").unwrap_or(32);
    (number(&dumped, "First block:").unwrap() + 1, group * size, size)
}

/// The blocks with the descriptors of the first groups: the primary block, and its copies.
fn copies(image: &Image) -> Vec<u64> {
    let first = |line: &str| {
        let (_, at) =
            line.split_once("roup descriptors at ").or(line.split_once("roup descriptor at "))?;
        at.split(|char: char| !char.is_ascii_digit()).next()?.parse().ok()
    };
    dumped(image).lines().filter_map(first).collect()
}

/// Each bit of a descriptor is flipped.
#[test]
fn each_field_of_a_descriptor_can_be_damaged() {
    for (size, options, summed) in VOLUMES {
        let (image, truth) = made(size, options);
        assert!(read_all(&image, &truth, options).is_empty(), "{options}");
        let backup = image.copy();
        for group in GROUPS {
            let (block, at, len) = descriptor(&image, group);
            for bit in 0..len * 8 {
                let byte = at + bit / 8;
                // All bits of the positions, and one bit of each other byte.
                let is_place = (0..12).contains(&(bit / 8)) || (32..44).contains(&(bit / 8));
                // Without a checksum, only a position outside the volume shows the damage.
                if is_place && !summed {
                    continue;
                }
                if !is_place && bit % 8 != bit / 8 % 8 {
                    continue;
                }
                let what =
                    format!("{options}: group {group}, byte {:#x}, bit {}", bit / 8, bit % 8);
                let sound = image.block(block)[byte as usize];
                image.poke_block(block, byte, &[sound ^ 1 << (bit % 8)]);
                let left = read_all(&image, &truth, &what);
                let told = format!("the descriptor of group {group} is damaged");
                assert!(
                    left.len() <= 1 && left.iter().all(|line| line.contains(&told)),
                    "{left:?}"
                );
                assert!(left.len() == 1 || !summed, "{what}: is reported");
                if is_place || summed || bit % 64 == 0 && !e2fsck_is_clean(&image) {
                    assert!(!is_clean(&image, &what), "{what}: check");
                }
                if summed {
                    let writing = VolumeOptions::new().write(true).open(image.location());
                    assert!(writing.is_err(), "{what}: opened for writing");
                }
                image.poke_block(block, byte, &[sound]);
            }
        }
        assert!(std::fs::read(image.path()).unwrap() == std::fs::read(backup.path()).unwrap());
    }
}

/// A complete block of descriptors is overwritten. Without checksums, a block of zeros contains positions within the volume.
#[test]
fn a_damaged_block_of_descriptors_is_replaced() {
    for (size, options, summed) in VOLUMES {
        let (image, truth) = made(size, options);
        let (block, ..) = descriptor(&image, 0);
        for byte in if summed { &[0, 0x5A, 0xFF][..] } else { &[0x5A, 0xFF] } {
            let what = format!("{options}: {byte:#x}");
            image.poke_block(block, 0, &vec![*byte; image.block_size() as usize]);
            let left = read_all(&image, &truth, &what);
            assert!(left.len() >= 4, "{what}: each group is reported: {left:?}");
            assert!(!is_clean(&image, &what), "{what}: check");
        }
    }
}

/// If no copy of a descriptor is valid, only the inodes of this group are lost.
#[test]
fn a_group_without_a_valid_copy_is_lost_alone() {
    for (size, options, _) in VOLUMES {
        let (image, truth) = made(size, options);
        let (_, at, len) = descriptor(&image, 2);
        let copies = copies(&image);
        assert!(copies.len() > 1, "{options}: {copies:?}");
        for block in copies {
            image.poke_block(block, at, &vec![0xF5; len as usize]);
        }
        let volume = image.open().unwrap();
        for (path, expected) in &truth {
            assert!(content(&volume, path).unwrap() == *expected, "{options}: {path}");
        }
        let (mut inodes, mut lost) = (0, 0);
        let mut count = |_, inode: Result<_>| {
            *if inode.is_ok() { &mut inodes } else { &mut lost } += 1;
            Ok(())
        };
        volume.fs().used_inodes(&mut count).unwrap();
        assert!(inodes > truth.len() && lost == 1, "{options}: {inodes} inodes, {lost} lost");
        volume.fs().deleted().unwrap_or_else(|error| panic!("{options}: {error}"));
        drop(volume);
        assert!(!is_clean(&image, options), "{options}: check");
    }
}
