//! Tests of the placement of files and directories.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::model::Rng;
use crate::fs::FileSystem;
use crate::fs::ext4::for_tests::Image;
use crate::fs::ext4::operation::MayChange;
use crate::fs::ext4::{Ext4, ROOT};
use crate::units::{FsBlock, InodeNo};

fn inode(fs: &Arc<Ext4>, parent: InodeNo, directory: bool) -> InodeNo {
    fs.transact(4, |h| h.allocate_inode(parent, directory).map(|fresh| fresh.number())).unwrap()
}

/// Allocates the blocks of a new file of this size, run by run.
fn file(fs: &Arc<Ext4>, inode: InodeNo, mut size: u32) -> Vec<(FsBlock, u32)> {
    let mut goal = fs.superblock.goal_of(inode);
    let mut runs: Vec<(FsBlock, u32)> = Vec::new();
    while size > 0 {
        let (start, count) = fs.transact(2, |h| h.allocate_blocks(goal, size)).unwrap();
        goal = FsBlock(start.0 + u64::from(count));
        size = size.saturating_sub(count);
        match runs.last_mut() {
            Some(last) if last.0.0 + u64::from(last.1) == start.0 => last.1 += count,
            _ => runs.push((start, count)),
        }
    }
    runs
}

#[test]
fn files_of_a_tree_are_in_one_piece() {
    for options in ["-t ext4", "-t ext4 -b 1024", "-t ext2 -b 2048", "-t ext4 -O bigalloc"] {
        let image = Image::new(options, "400M");
        let fs = image.open();
        let mut rng = Rng(5);
        let mut directories = vec![ROOT];
        let (mut files, mut whole) = (0, 0);
        let bound = fs.free_space().blocks * 8 / 10;
        let floor = fs.free_space().blocks - bound;
        while fs.free_space().blocks > floor && fs.free_space().inodes > 100 {
            let parent = directories[rng.below(directories.len() as u64) as usize];
            if rng.below(12) == 0 {
                let new = inode(&fs, parent, true);
                file(&fs, new, 1);
                directories.push(new);
                continue;
            }
            let most = [4, 16, 64, 1000][rng.below(4) as usize];
            let size = 1 + rng.below(most) as u32;
            files += 1;
            whole += u32::from(file(&fs, inode(&fs, parent, false), size).len() == 1);
        }
        println!("{options}: {whole} of {files} files in one extent");
        assert!(files > 100 && whole * 10 >= files * 9, "{options}: {whole} of {files}");
    }
}

#[test]
fn directories_in_the_root_are_apart_and_others_near_their_parents() {
    let image = Image::new("-t ext4 -O ^has_journal", "20G");
    let fs = image.open();
    let sb = fs.superblock();
    let region = |number: InodeNo| sb.group_of(number) / sb.flex_groups;
    let top: Vec<_> = (0..9).map(|_| inode(&fs, ROOT, true)).collect();
    let regions: BTreeSet<_> = top.iter().map(|number| region(*number)).collect();
    assert_eq!(regions, (1..10).collect(), "each in another region, and none with the root's");
    for parent in top {
        let child = inode(&fs, parent, true);
        assert_eq!(region(child), region(parent));
        let inside = inode(&fs, child, false);
        assert_eq!(sb.group_of(inside), sb.group_of(child));
        let (start, _) = file(&fs, inside, 5)[0];
        assert_eq!(sb.cluster_of(start).0, sb.group_of(inside), "blocks near their inode");
    }
}

#[test]
fn large_requests_begin_with_a_stripe() {
    let image = Image::new("-t ext4 -E stride=16,stripe_width=48", "300M");
    let fs = image.open();
    for _ in 0..10 {
        let number = inode(&fs, ROOT, false);
        file(&fs, number, 3);
        let runs = file(&fs, number, 96);
        assert_eq!(runs.len(), 1);
        assert_eq!(runs[0].0.0 % 48, 0, "{runs:?}");
    }
}

#[test]
fn a_hole_in_a_full_volume_is_found_wherever_it_is() {
    let image = Image::new("-t ext4 -b 1024 -g 256 -O ^has_journal", "60M");
    let fs = image.open();
    let runs = super::fill(&fs, super::Reserve::Allowed);
    let mut rng = Rng(9);
    for _ in 0..50 {
        let (start, count) = runs[rng.below(runs.len() as u64) as usize];
        let hole = FsBlock(start.0 + rng.below(u64::from(count)));
        super::free(&fs, &[(hole, 1)]);
        fs.sync().unwrap();
        let goal = FsBlock(rng.below(fs.superblock().blocks_count));
        let found = fs.transact(2, |h| h.allocate_blocks_for(goal, 1000, super::Reserve::Allowed));
        assert_eq!(found.unwrap(), (hole, 1));
    }
}
