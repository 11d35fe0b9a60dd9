//! Tests of changes of damaged directories.

use std::sync::Arc;

use super::super::{ADD_CREDITS, Directory};
use super::volume::{Rng, Volume};
use crate::ErrorKind;
use crate::device::Ram;
use crate::error::Place;
use crate::fs::ext4::for_tests::Image;
use crate::fs::ext4::operation::InodeToChange;
use crate::fs::ext4::{Ext4, ROOT};
use crate::fs::{Clock, FileType, Follow};
use crate::units::FileBlock;

/// A change of a damaged directory may fail, but never panics. The volume has no checksums, because checksums would detect all wrong bytes
/// before the change.
#[test]
fn wrong_bytes_end_in_errors() {
    for options in
        ["-t ext4 -b 1024 -O ^metadata_csum", "-t ext4 -b 1024 -O ^metadata_csum,inline_data"]
    {
        let count = if options.contains("inline") { 5 } else { 700 };
        let mut volume = Volume::new("16M", options);
        for number in 0..count {
            volume.add(name(number).as_bytes(), number % 2);
        }
        let image = volume.finish();
        let ram = Ram::from_image(&std::fs::read(image.path()).unwrap());
        let mut corrupt = 0;
        for seed in 0..200 {
            println!("seed {seed}");
            corrupt += u32::from(change_wrong_bytes(&ram, count, seed));
        }
        assert!(corrupt > 10, "{options}: {corrupt} of 200 were found corrupt");
    }
}

fn name(number: usize) -> String {
    format!("{number}{}", "-".repeat(number % 90))
}

/// Writes wrong bytes into the directory and then changes the directory. Returns whether the change detected the damage.
fn change_wrong_bytes(ram: &Ram, count: usize, seed: u64) -> bool {
    let device = Arc::new(ram.snapshot());
    let fs = Ext4::open_for_writing(device, &Arc::default(), Clock::default()).unwrap();
    let dir = InodeToChange::in_test(fs.resolve(b"dir", Follow::All).unwrap());
    let mut rng = Rng(seed);
    for _ in 0..1 + rng.below(3) {
        // The first 64 bytes of a block contain the headers of nodes and of entries. The test therefore changes these bytes more often than
        // other bytes.
        let at = if rng.below(2) == 0 { rng.below(64) } else { rng.below(1024) };
        let value = [0, 1, 0xFF, rng.below(256) as u8][rng.below(4)];
        fs.transact(1, |h| {
            if dir.has_inline_data() {
                let at = rng.below(60);
                return h.update_inode(&dir, |raw| {
                    raw.i_block()?[at] = value;
                    Ok(())
                });
            }
            let blocks = dir.dir_blocks()?;
            let block = if rng.below(3) == 0 { 0 } else { rng.below(blocks as usize) as u64 };
            let Some(block) = dir.fs_block(FileBlock(block))? else { return Ok(()) };
            h.update(block, Place::new("test"), |bytes| {
                bytes[at] = value;
                Ok(())
            })
        })
        .unwrap();
    }
    let mut noticed = false;
    for step in 0..200 {
        let result = dir.again().and_then(|dir| {
            fs.transact(ADD_CREDITS, |h| match rng.below(3) {
                0 => Directory::of(&dir).remove_entry(h, name(rng.below(count)).as_bytes()),
                1 => Directory::of(&dir).set_entry(
                    h,
                    name(rng.below(count)).as_bytes(),
                    ROOT,
                    FileType::Directory,
                ),
                _ => {
                    let name = format!("{step}{}", "+".repeat(rng.below(200)));
                    Directory::of(&dir).add_entry(h, name.as_bytes(), ROOT, FileType::Directory)
                }
            })
        });
        match result.map_err(|error| error.kind()) {
            Ok(()) | Err(ErrorKind::NotFound | ErrorKind::NoSpace) => {}
            // `Corrupt` is expected, and also `ReadOnly`: if a block was changed before the error, the volume becomes read-only.
            Err(ErrorKind::Corrupt) | Err(ErrorKind::ReadOnly) => noticed = true,
            Err(other) => panic!("seed {seed}: {other:?}"),
        }
    }
    noticed
}

/// An entry of a damaged tree may point to a node where a leaf is required. The node must not be treated as a leaf with free space.
#[test]
fn a_node_in_the_place_of_a_leaf_is_found() {
    let mut volume = Volume::of(Image::with_dir("16M", "-t ext4 -b 1024"), Default::default());
    for number in 0..100 {
        volume.add(name(number).as_bytes(), 0);
    }
    let (fs, dir) = (&volume.fs, volume.dir());
    let leaf = dir.fs_block(FileBlock(1)).unwrap().unwrap();
    fs.transact(1, |h| {
        h.update(leaf, Place::new("test"), |bytes| {
            bytes.fill(0);
            bytes[4..6].copy_from_slice(&1024_u16.to_le_bytes());
            bytes[8..12].copy_from_slice(&[126, 0, 1, 0]);
            dir.seal_node(FileBlock(1), bytes);
            Ok(())
        })
    })
    .unwrap();
    let failed =
        (0..100).find_map(|number| volume.try_add(&format!("new-{number}").into_bytes(), 0).err());
    assert_eq!(failed.map(|error| error.kind()), Some(ErrorKind::Corrupt));
}
