//! Damaged maps of files. Only the ranges whose pointers are damaged are lost. A volume that is open for writing refuses the file.

use std::ops::Range;

use ironmap::fs::Follow;
use ironmap::units::FilePos;
use ironmap::{ErrorKind, FileOptions, QueueOptions, VolumeOptions};

use crate::common::image::{Image, scratch, words};

const BLOCK: usize = 1024;
const BLOCKS: usize = 700;

/// Asserts that exactly the blocks in `lost` cannot be read, and that all other blocks are right.
fn loses(image: &Image, lost: &Range<usize>, what: &str) {
    let volume = image.open().unwrap();
    let inode = volume.fs().resolve(b"file", Follow::NotLast).unwrap();
    let file = volume.open_inode(inode, FileOptions::default()).unwrap();
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let mut bytes = vec![0; BLOCK];
    for block in 0..BLOCKS {
        let read = file.read_at(&mut queue, &mut bytes, FilePos((block * BLOCK) as u64));
        match read {
            Ok(count) => {
                assert!(!lost.contains(&block), "{what}: block {block} was read");
                assert!(count == BLOCK && bytes == content_of(block), "{what}: block {block}");
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: block {block}: {error}");
                assert!(lost.contains(&block), "{what}: block {block}: {error}");
            }
        }
    }
    drop((queue, file, volume));
    let Ok(volume) = VolumeOptions::new().write(true).open(image.location()) else { return };
    let inode = volume.fs().resolve(b"file", Follow::NotLast).unwrap();
    let file = volume.open_inode(inode, FileOptions::default()).unwrap();
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let at = FilePos((lost.start * BLOCK) as u64);
    assert!(lost.is_empty() || file.read_at(&mut queue, &mut bytes, at).is_err(), "{what}: write");
}

fn content_of(block: usize) -> Vec<u8> {
    (0..BLOCK / 4).flat_map(|word| ((block * BLOCK + word) as u32).to_le_bytes()).collect()
}

fn image(options: &str) -> Image {
    let tree = scratch();
    let content: Vec<u8> = (0..BLOCKS).flat_map(content_of).collect();
    std::fs::write(tree.path().join("file"), content).unwrap();
    Image::populated("16M", &words(options), tree.path())
}

#[test]
fn a_bad_pointer_loses_its_range() {
    let fan_out = BLOCK / 4;
    for options in ["-t ext3 -b 1024", "-t ext2 -b 1024 -O ^sparse_super,^resize_inode"] {
        let image = image(options);
        loses(&image, &(0..0), options);
        let ranges = [
            ("block[0]", 0..1),
            ("block[5]", 5..6),
            ("block[11]", 11..12),
            ("block[IND]", 12..12 + fan_out),
            ("block[DIND]", 12 + fan_out..BLOCKS),
        ];
        for (field, lost) in ranges {
            let field = format!("inode /file {field}");
            let sound = image.copy();
            let what = format!("{options}: {field}");
            image.debugfs(&format!(
                "set_{} 0xFFFFF000\n",
                field.replacen("inode", "inode_field", 1)
            ));
            loses(&image, &lost, &what);
            std::fs::copy(sound.path(), image.path()).unwrap();
        }
        // Each pointer of the indirect block, and of the first block below the double indirect block.
        let shown = image.ask_debugfs("stat /file\n");
        let block_of = |name: &str| {
            let (_, rest) = shown.split_once(name).unwrap_or_else(|| panic!("{name}: {shown}"));
            rest[..rest.find(|char: char| !char.is_ascii_digit()).unwrap()].parse::<u64>().unwrap()
        };
        for index in [0, 1, 100, fan_out - 1] {
            let bad = 0xFFFF_F000_u32.to_le_bytes();
            for (name, first) in [("(IND):", 12), ("(DIND):", 12 + fan_out)] {
                let (block, at) = (block_of(name), index as u64 * 4);
                let sound = image.block(block)[at as usize..][..4].to_vec();
                image.poke_block(block, at, &bad);
                let start = if name == "(IND):" { first + index } else { first + index * fan_out };
                let end = if name == "(IND):" { start + 1 } else { start + fan_out };
                let lost = start.min(BLOCKS)..end.min(BLOCKS);
                loses(&image, &lost, &format!("{options}: {name} {index}"));
                image.poke_block(block, at, &sound);
            }
        }
    }
}

/// The file has an extent for each block, so that its tree has several leaves.
#[test]
fn a_bad_extent_or_leaf_loses_its_range() {
    for options in ["-t ext4 -b 1024 -O ^metadata_csum", "-t ext4 -b 1024 -O metadata_csum"] {
        let image = image(options);
        let summed = !options.contains('^');
        let before = image.copy();
        // A file of one extent: the extent's start is damaged in the inode.
        if !summed {
            let shown = image.ask_debugfs("imap /file\n");
            let word = |after: &str| {
                let (_, rest) = shown.split_once(after).unwrap();
                let end =
                    rest.find(|char: char| !char.is_ascii_alphanumeric()).unwrap_or(rest.len());
                let text = rest[..end].trim_start_matches("0x");
                u64::from_str_radix(text, if rest.starts_with("0x") { 16 } else { 10 }).unwrap()
            };
            let (block, at) = (word("located at block "), word("offset "));
            let map = image.block(block)[at as usize + 40..][..60].to_vec();
            let entries = u16::from_le_bytes([map[2], map[3]]);
            let depth = u16::from_le_bytes([map[6], map[7]]);
            assert_eq!(depth, 0, "mke2fs makes a few extents");
            for entry in 0..u64::from(entries) {
                let raw = &map[12 + entry as usize * 12..][..12];
                let first = u32::from_le_bytes(*raw.first_chunk().unwrap()) as usize;
                let len = usize::from(u16::from_le_bytes([raw[4], raw[5]]));
                let field = at + 40 + 12 + entry * 12 + 8;
                image.poke_block(block, field, &0xFFFF_0000_u32.to_le_bytes());
                loses(&image, &(first..first + len), &format!("{options}: extent {entry}"));
                std::fs::copy(before.path(), image.path()).unwrap();
            }
        }
        loses(&image, &(0..0), options);
    }
}
