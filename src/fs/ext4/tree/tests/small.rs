//! Tests of single changes. debugfs checks the results.

use super::super::node::{NodeMut, capacity};
use super::super::path::Tree;
use super::image::extent;
use crate::error::ErrorKind;
use crate::fs::FileSystem;
use crate::fs::ext4::alloc::Freed;
use crate::fs::ext4::for_tests::Image;
use crate::fs::ext4::tree::read_extents::seal_extent_block;
use crate::iomap::ExtentState::{Unwritten, Written};
use crate::units::FileBlock;

const KINDS: [&str; 4] = [
    "-t ext4",
    "-t ext4 -b 1024",
    "-t ext4 -b 1024 -O ^metadata_csum,^64bit,^huge_file",
    "-t ext4 -O ^has_journal",
];

/// Adjacent extents are merged, whichever of them is mapped first.
#[test]
fn neighbours_are_joined() {
    for kind in KINDS {
        let image = Image::with_file(kind, "64M");
        let file = image.open_file();
        file.set_size(100);
        let (start, len) = file.allocate(3000, 12);
        assert_eq!(len, 12);
        for (at, many) in [(3, 3), (9, 3), (0, 3), (6, 3)] {
            file.map(at, start + at, many, Written).unwrap();
        }
        assert_eq!(file.extents(), [extent(0, start, 12, Written)]);
        file.close();
        let shown = image.debugfs("ex /f");
        let words: Vec<_> = shown.split_whitespace().skip(6).collect();
        let row = format!("0/ 0 1/ 1 0 - 11 {start} - {} 12", start + 11);
        assert_eq!(words.join(" "), row, "{kind}: {shown}");
        image.fsck();
    }
}

/// An extent can have the maximum length of the format: 32768 blocks if it is written, 32767 if it is unwritten.
#[test]
fn the_longest_extents() {
    let image = Image::with_file("-t ext4 -b 4096 -O ^has_journal -G 64", "1G");
    let file = image.open_file();
    file.set_size(200_000);
    let (start, len) = file.allocate(40_000, 90_000);
    let long = u64::from(len);
    assert!(len > 32_768 / 2, "{len}");
    file.map(0, start, len, Unwritten).unwrap();
    let mut end = start + long;
    let mut mapped = long;
    while mapped < 100_000 {
        let (next, len) = file.allocate(end, 30_000);
        file.map(mapped, next, len, Unwritten).unwrap();
        (end, mapped) = (next + u64::from(len), mapped + u64::from(len));
    }
    file.set_state(0, mapped, Written).unwrap();
    let written = file.extents();
    file.set_state(0, mapped, Unwritten).unwrap();
    let lengths: u64 = file.extents().iter().map(|extent| u64::from(extent.len)).sum();
    assert_eq!((file.extents().len(), lengths), (written.len(), mapped));
    file.set_state(0, mapped, Written).unwrap();
    assert_eq!(file.extents(), written);
    file.close();
    image.fsck();
}

/// A range can change its state in the middle of an extent, at its edge, or for the whole extent. After the change, adjacent extents with
/// the same state are merged.
#[test]
fn states_change_and_join_again() {
    for kind in KINDS {
        let image = Image::with_file(kind, "64M");
        let file = image.open_file();
        file.set_size(100);
        let (start, _) = file.allocate(3000, 20);
        file.map(10, start, 20, Unwritten).unwrap();
        file.set_state(15, 17, Written).unwrap();
        let parts = [
            extent(10, start, 5, Unwritten),
            extent(15, start + 5, 2, Written),
            extent(17, start + 7, 13, Unwritten),
        ];
        assert_eq!(file.extents(), parts);
        file.set_state(0, 15, Written).unwrap();
        file.set_state(17, 99, Written).unwrap();
        assert_eq!(file.extents(), [extent(10, start, 20, Written)]);
        file.set_state(0, 12, Unwritten).unwrap();
        file.set_state(12, 13, Unwritten).unwrap();
        assert_eq!(
            file.extents(),
            [extent(10, start, 3, Unwritten), extent(13, start + 3, 17, Written)]
        );
        file.close();
        image.fsck();
    }
}

/// Holes are punched, ranges are collapsed and ranges are inserted. The remaining blocks then have the expected positions. When all blocks
/// are unmapped, no block stays allocated.
#[test]
fn punch_collapse_insert() {
    for kind in KINDS {
        let image = Image::with_file(kind, "64M");
        let before =
            image.debugfs("stats").lines().find(|l| l.contains("Free blocks")).unwrap().to_owned();
        let file = image.open_file();
        file.set_size(100);
        let (start, _) = file.allocate(3000, 30);
        file.map(0, start, 30, Written).unwrap();
        file.unmap(10, 20).unwrap();
        file.shift(20, -10).unwrap();
        assert_eq!(
            file.extents(),
            [extent(0, start, 10, Written), extent(10, start + 20, 10, Written)]
        );
        file.shift(5, 7).unwrap();
        assert_eq!(
            file.extents(),
            [
                extent(0, start, 5, Written),
                extent(12, start + 5, 5, Written),
                extent(17, start + 20, 10, Written)
            ]
        );
        file.shift(12, -7).unwrap();
        assert_eq!(file.extents()[0], extent(0, start, 10, Written));
        assert_eq!(
            file.inode().stat().blocks,
            20 * file.fs.superblock.block_size.bytes() as u64 / 512
        );
        file.unmap(0, u64::MAX).unwrap();
        assert_eq!(file.inode().stat().blocks, 0);
        file.close();
        image.fsck();
        let after = image.debugfs("stats");
        assert!(after.contains(&before), "{before}, then {after}");
    }
}

/// A change that is not possible is refused before anything is changed.
#[test]
fn refusals() {
    let image = Image::with_file("-t ext4 -b 1024", "64M");
    let file = image.open_file();
    file.set_size(100);
    let (start, _) = file.allocate(3000, 10);
    let last = u64::from(u32::MAX) - 1;
    file.map(0, start, 5, Written).unwrap();
    file.map(last, start + 5, 5, Written).unwrap_err();
    assert_eq!(file.map(last, start + 5, 2, Written).unwrap_err().kind(), ErrorKind::FileTooLarge);
    assert_eq!(file.map(4, start + 5, 2, Written).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(file.map(9, 1 << 40, 2, Written).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(file.shift(3, -2).unwrap_err().kind(), ErrorKind::InvalidInput);
    file.map(last, start + 5, 1, Written).unwrap();
    assert_eq!(file.shift(0, 1).unwrap_err().kind(), ErrorKind::FileTooLarge);
    file.unmap(last, u64::MAX).unwrap();
    file.map(100, start + 6, 4, Written).unwrap();
    assert_eq!(file.extents(), [extent(0, start, 5, Written), extent(100, start + 6, 4, Written)]);
    file.set_size(104);
    file.close();
    image.fsck();
}

/// A range can be inserted before the first extent of the only leaf.
#[test]
fn insert_before_the_first_leaf() {
    let image = Image::with_file("-t ext4 -b 1024", "64M");
    let file = image.open_file();
    file.set_size(200);
    let (start, _) = file.allocate(3000, 5);
    for i in 0..5 {
        file.map(100 + i * 2, start + i, 1, Written).unwrap();
    }
    assert_eq!(file.depth(), 1);
    file.shift(50, 20).unwrap();
    assert_eq!(file.extents()[0], extent(120, start, 1, Written));
    file.close();
    image.fsck();
}

/// A change that needs only one step stays in the caller's transaction. If the range of the change covers a hole in another leaf, this leaf
/// needs no step.
#[test]
fn a_step_that_finds_nothing_takes_no_transaction() {
    for (options, gap) in [("-t ext4 -b 1024 -N 64", 1000), ("-t ext3 -b 1024 -N 64", 12)] {
        let image = Image::with_file(options, "64M");
        let file = image.open_file();
        file.set_size(5000);
        // The first extents fill one leaf, or the pointers in the inode. Ten more blocks follow after a gap.
        let (start, len) = file.allocate(0, 200);
        assert_eq!(len, 200);
        for i in 0..84 {
            let first = if gap == 12 { i / 8 } else { i * 2 };
            if gap != 12 || i % 8 == 0 {
                file.map(first, start + i, 1, Written).unwrap();
            }
        }
        for i in 0..10 {
            file.map(gap + i * 2, start + 100 + i, 1, Written).unwrap();
        }
        // The sync ends the running transaction. In the new transaction, each changed block uses one journal credit. The test can therefore
        // compute the number of changed blocks from the remaining credits.
        file.fs.sync().unwrap();
        let inode = file.inode();
        let credits = inode.credits_for_unmap();
        let left = file.fs.transact(credits, |handle| {
            inode.unmap_range(handle, FileBlock(gap - 1)..FileBlock(5000))?;
            Ok(handle.credits_left())
        });
        assert!(left.unwrap() < credits - 2, "{options}: the change is not the handle's any more");
        file.unmap(0, 5000).unwrap();
    }
}

/// A volume may contain a leaf without extents. Linux accepts and removes such a leaf. ironmap frees the leaf when the leaf's range is
/// unmapped.
#[test]
fn a_leaf_without_extents_is_freed() {
    for leaves in [1, 3] {
        let image = Image::with_file("-t ext4 -b 1024", "64M");
        let file = image.open_file();
        let extents = leaves * capacity(1024) as u64;
        file.set_size(2 * extents);
        for at in 0..extents {
            let (start, _) = file.allocate(3000, 1);
            file.map(2 * at, start, 1, Written).unwrap();
        }
        let last = file
            .change(|handle, inode| {
                let path = Tree { inode }.find(FileBlock(2 * extents - 2))?;
                let (fs, place) = (&inode.fs, Tree { inode }.place());
                let leaf = path.steps.last().and_then(|step| step.block).unwrap();
                handle.update(leaf, place, |bytes| {
                    NodeMut::of(bytes, place)?.splice(0..path.extents.len(), &[]);
                    seal_extent_block(
                        fs.superblock.inode_seed(inode.number, inode.generation),
                        bytes,
                    );
                    Ok(())
                })?;
                for extent in &path.extents {
                    handle.free_blocks(extent.start, 1, Freed::Data)?;
                }
                let count = -(path.extents.len() as i64);
                handle.update_inode(inode, |inode| inode.add_blocks(&fs.superblock, count))?;
                Ok(path.extents[0].first.0)
            })
            .unwrap();
        file.unmap(last, u64::MAX).unwrap();
        // The last leaf, which the test has emptied, was freed. The other leaves still exist. In the ranges of these leaves, every second
        // block is mapped.
        assert_eq!(file.inode().stat().blocks, 2 * (last / 2 + leaves - 1));
        file.unmap(0, u64::MAX).unwrap();
        assert_eq!(file.inode().stat().blocks, 0);
        file.close();
        image.fsck();
    }
}
