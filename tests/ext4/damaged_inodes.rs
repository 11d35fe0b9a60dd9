//! Inodes with a wrong checksum. Only a salvage uses them, and only if their fields are plausible. e2fsck is the oracle: it keeps such an
//! inode and repairs its checksum.

use ironmap::fs::Inode;
use ironmap::units::{FilePos, InodeNo};
use ironmap::{ErrorKind, FileOptions, QueueOptions, Result, Volume};

use crate::common::image::{Image, scratch, words};

const VOLUMES: [&str; 4] = [
    "-t ext4 -b 1024 -O metadata_csum,64bit -I 256",
    "-t ext4 -b 4096 -O metadata_csum,64bit,flex_bg -I 256",
    "-t ext4 -b 1024 -O metadata_csum,^64bit -I 128",
    "-t ext4 -b 4096 -O metadata_csum,inline_data,meta_bg,^resize_inode -I 256",
];

fn content(volume: &Volume, inode: Inode) -> Result<Vec<u8>> {
    let mut bytes = vec![0; inode.size().min(1 << 20) as usize];
    let file = volume.open_inode(inode, FileOptions::default())?;
    let count =
        file.read_at(&mut volume.queue(&QueueOptions::default())?, &mut bytes, FilePos(0))?;
    bytes.truncate(count);
    Ok(bytes)
}

/// The byte of an inode on the device.
fn place(image: &Image, path: &str) -> (InodeNo, u64, u64) {
    let shown = image.ask_debugfs(&format!("imap {path}\n"));
    let word = |after: &str| {
        let (_, rest) = shown.split_once(after).unwrap_or_else(|| panic!("{after}: {shown}"));
        let end = rest.find(|char: char| !char.is_ascii_alphanumeric()).unwrap_or(rest.len());
        match rest[..end].strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
            None => rest[..end].parse().unwrap(),
        }
    };
    (InodeNo(word("Inode ")), word("located at block "), word("offset "))
}

/// One bit of each byte of an inode is flipped. A salvage uses the inode, or the inode is lost. If no field of the content has changed, the
/// content is the same.
#[test]
fn inodes_with_a_wrong_checksum_are_salvaged() {
    for options in VOLUMES {
        let tree = scratch();
        let expected: Vec<u8> = (0..9000_u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(tree.path().join("file"), &expected).unwrap();
        std::fs::create_dir(tree.path().join("dir")).unwrap();
        let image = Image::populated("16M", &words(options), tree.path());
        let (number, block, at) = place(&image, "/file");
        let size = if options.ends_with("128") { 128 } else { 256 };
        let mut used = 0;
        for bit in (0..size * 8).filter(|bit| bit % 8 == bit / 8 % 8) {
            let what = format!("{options}: byte {:#x}, bit {}", bit / 8, bit % 8);
            let sound = image.block(block)[(at + bit / 8) as usize];
            image.poke_block(block, at + bit / 8, &[sound ^ 1 << (bit % 8)]);
            let volume = image.open().unwrap();
            let refused = volume.fs().inode(number).err().unwrap_or_else(|| panic!("{what}: read"));
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "{what}: {refused}");
            volume.fs().tolerate_inodes();
            let found = volume.fs().inode(number);
            assert_eq!(volume.fs().tolerated(number).is_some(), found.is_ok(), "{what}");
            // The mode, the size, the link count, the flags, the map, the generation, and the length of the extra fields.
            let is_vital = [0..2, 4..8, 0x1A..0x1C, 0x20..0x24, 0x28..0x68, 0x6C..0x70, 0x76..0x78];
            let is_vital = is_vital.iter().any(|range| range.contains(&(bit / 8)));
            let is_vital =
                is_vital || (0x80..0x82).contains(&(bit / 8)) || (0x68..0x6C).contains(&(bit / 8));
            if !is_vital {
                let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(content(&volume, found).unwrap() == expected, "{what}: content");
                used += 1;
            } else if let Ok(found) = found {
                drop(content(&volume, found));
            }
            let left = volume.ext4().unwrap().take_left();
            assert!(left.len() <= 1, "{what}: {left:?}");
            drop(volume);
            if bit / 8 % 24 == 12 && !is_vital {
                let repaired = image.copy();
                repaired.repair();
                let volume = repaired.open().unwrap();
                let found =
                    volume.fs().inode(number).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(content(&volume, found).unwrap() == expected, "{what}: e2fsck");
            }
            image.poke_block(block, at + bit / 8, &[sound]);
        }
        assert!(used > size as usize / 4, "{options}: {used}");
    }
}
