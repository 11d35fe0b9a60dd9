//! Tests of the allocator. Allocations are compared with a model that has no groups, and e2fsck checks the result on disk.

mod image;
mod model;
mod policy;

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::sync::Arc;

use super::Freed;
use super::blocks::Reserve;
use crate::device::{Device, Faults, Sim};
use crate::error::ErrorKind;
use crate::fs::ext4::for_tests::{Alone, Image};
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::operation::MayChange;
use crate::fs::ext4::{Ext4, ROOT};
use crate::fs::{Clock, FileSystem, Writer};
use crate::units::{DevOffset, FsBlock, InodeNo};
use model::Model;

/// Options of mke2fs, and the sizes of the volumes.
const VOLUMES: &[(&str, &str)] = &[
    ("-t ext4", "300M"),
    ("-t ext4 -b 1024", "60M"),
    ("-t ext4 -b 2048 -O ^64bit", "200M"),
    ("-t ext4 -O ^flex_bg", "600M"),
    ("-t ext4 -b 1024 -O ^flex_bg,^64bit -g 1024 -N 4000", "40M"),
    ("-t ext4 -O meta_bg,^resize_inode -b 1024 -g 256", "40M"),
    ("-t ext4 -O meta_bg,^resize_inode,^flex_bg,^64bit -b 1024 -g 256", "40M"),
    ("-t ext4 -O bigalloc", "1G"),
    ("-t ext4 -O bigalloc -b 1024 -C 16384", "300M"),
    ("-t ext4 -O ^metadata_csum,uninit_bg", "600M"),
    ("-t ext4 -O ^metadata_csum,uninit_bg,^flex_bg -b 1024", "70M"),
    ("-t ext4 -O ^metadata_csum,^uninit_bg", "300M"),
    ("-t ext4 -O ^has_journal,sparse_super2 -b 1024", "60M"),
    ("-t ext4 -E packed_meta_blocks=1 -b 1024", "60M"),
    ("-t ext4 -G 4 -b 1024 -N 100000", "60M"),
    ("-t ext4 -E stride=4,stripe_width=12", "300M"),
    ("-t ext4 -E lazy_itable_init=0", "300M"),
    ("-t ext4 -E nodiscard,lazy_itable_init=1 -b 1024 -N 30000", "32M"),
    ("-t ext4 -E nodiscard,lazy_itable_init=1 -O ^metadata_csum,uninit_bg -b 2048 -g 2048", "32M"),
    ("-t ext4 -b 65536", "8G"),
    ("-t ext4 -m 0 -N 16", "1M"),
    ("-t ext3", "200M"),
    ("-t ext2", "300M"),
    ("-t ext2 -b 1024", "40M"),
    ("-t ext2 -b 1024 -O ^sparse_super,^resize_inode", "70M"),
];

#[test]
fn the_bitmaps_have_each_allocation_and_each_free() {
    for (seed, (options, size)) in (1..).zip(VOLUMES) {
        model_and_volume(options, size, seed);
    }
}

#[test]
fn on_a_large_volume_too() {
    model_and_volume("-t ext4 -O ^has_journal", "2T", 77);
}

fn model_and_volume(options: &str, size: &str, seed: u64) {
    let image = Image::new(options, size);
    let mut model = Model::new(seed);
    let fs = image.open();
    for _ in 0..200 {
        model.step(&fs);
    }
    fs.close().unwrap();
    drop(fs);
    let found = image.check();
    let what = format!("{options}, seed {seed}");
    assert_same(&found.clusters, &model.clusters(found.cluster), &what);
    assert_same(&found.inodes, &model.inodes(), &what);

    let fs = image.open();
    model.free_all(&fs);
    fs.close().unwrap();
    drop(fs);
    image.assert_clean();
}

fn assert_same(found: &BTreeSet<u64>, expected: &BTreeSet<u64>, what: &str) {
    let more: Vec<_> = found.difference(expected).take(10).collect();
    let missing: Vec<_> = expected.difference(found).take(10).collect();
    assert!(
        more.is_empty() && missing.is_empty(),
        "{what}: too many {more:?}, missing {missing:?}"
    );
}

/// A recovery can claim blocks and inodes that are free. A claim of other blocks and inodes is refused with an error.
#[test]
fn only_what_is_free_is_claimed() {
    let image = Image::new("-t ext4 -b 1024 -O ^flex_bg,^64bit -g 1024 -N 4000", "40M");
    let fs = image.open();
    let before = fs.free_space();
    let refused = |result: crate::error::Result<()>| {
        assert_eq!(result.err().map(|error| error.kind()), Some(ErrorKind::Corrupt));
    };
    let (start, count) = fs.transact(2, |h| h.allocate_blocks(FsBlock(7000), 100)).unwrap();
    let claim = || fs.transact(2, |h| h.claim_blocks(start, u64::from(count)));
    refused(claim());
    free(&fs, &[(start, count)]);
    // Before the commit, the freed blocks cannot be claimed.
    refused(claim());
    fs.sync().unwrap();
    claim().unwrap();
    assert_eq!(fs.free_space().blocks, before.blocks - u64::from(count));
    free(&fs, &[(start, count)]);

    // The block of the inode table that contains the last inode was never in use.
    let last = InodeNo(u64::from(fs.superblock.inodes_count));
    let claim = |number| fs.transact(9, |h| h.claim_inode(number, true));
    let claim = |number| claim(number).map(drop);
    refused(claim(InodeNo(8)));
    assert!(!fs.is_inode_in_use(last).unwrap());
    claim(last).unwrap();
    assert!(fs.is_inode_in_use(last).unwrap());
    refused(claim(last));
    fs.transact(4, |h| h.free_inode(&Alone(last), true)).unwrap();
    fs.close().unwrap();
    drop(fs);
    image.assert_clean();
}

/// Allocates every available block.
fn fill(fs: &Arc<Ext4>, reserve: Reserve) -> Vec<(FsBlock, u32)> {
    let mut runs = Vec::new();
    loop {
        let got = fs.transact(2, |h| h.allocate_blocks_for(FsBlock(7000), 5000, reserve));
        match got {
            Ok(run) => runs.push(run),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                return runs;
            }
        }
    }
}

fn free(fs: &Arc<Ext4>, runs: &[(FsBlock, u32)]) {
    for (start, count) in runs {
        let count = u64::from(*count);
        fs.transact(2, |h| h.free_blocks(*start, count, Freed::Data)).unwrap();
    }
}

#[test]
fn a_volume_is_filled_to_the_last_block_and_emptied() {
    for (options, size) in VOLUMES {
        let image = Image::new(options, size);
        let fs = image.open();
        let before = fs.free_space();
        let runs = fill(&fs, Reserve::Allowed);
        assert_eq!(fs.free_space().blocks, 0, "{options}");
        let sum: u64 = runs.iter().map(|(_, count)| u64::from(*count)).sum();
        assert_eq!(sum, before.blocks, "{options}");
        free(&fs, &runs);
        assert_eq!(fs.free_space(), before, "{options}");
        let parent = ROOT;
        let mut inodes = Vec::new();
        let allocate = |directory| {
            fs.transact(4, |h| h.allocate_inode(parent, directory).map(|fresh| fresh.number()))
        };
        while let Ok(number) = allocate(inodes.len() % 9 == 0) {
            inodes.push((number, inodes.len() % 9 == 0));
        }
        assert_eq!(inodes.len() as u64, before.inodes, "{options}");
        for (number, directory) in inodes {
            fs.transact(4, |h| h.free_inode(&Alone(number), directory)).unwrap();
        }
        fs.close().unwrap();
        drop(fs);
        image.assert_clean();
    }
}

#[test]
fn freed_blocks_are_to_be_had_after_the_commit() {
    let image = Image::new("-t ext4", "20M");
    let fs = image.open();
    let runs = fill(&fs, Reserve::Allowed);
    assert!(!fs.allocator().unwrap().commit_frees());
    free(&fs, &runs[..1]);
    let again = || fs.transact(2, |h| h.allocate_blocks(runs[0].0, 1));
    assert_eq!(again().unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(fs.allocator().unwrap().commit_frees());
    fs.sync().unwrap();
    assert_eq!(again().unwrap(), (runs[0].0, 1));
}

/// After a failed allocation, the allocator checks whether a commit can free space. If another thread has committed between the failure and
/// the check, the allocation is tried again.
#[test]
fn a_commit_that_ends_between_a_failure_and_the_next_attempt_counts() {
    let image = Image::new("-t ext4", "20M");
    let fs = image.open();
    let runs = fill(&fs, Reserve::Allowed);
    free(&fs, &runs[..1]);
    let (start, count) = runs[0];
    let mut attempts = 0;
    let attempt = |handle: &mut Handle<'_>| {
        attempts += 1;
        let found = handle.allocate_blocks(start, 1);
        if attempts == 1 {
            // `committed` is the function that a commit calls when it ends.
            fs.allocator().unwrap().committed(&fs, &[(start, count.into())]);
        }
        found
    };
    let found = fs.operate(|op| op.transact_for_space(2, attempt));
    assert_eq!((found.unwrap(), attempts), ((start, 1), 2));
}

#[test]
fn a_bitmap_that_cannot_be_read_or_is_wrong_changes_nothing() {
    let image = Image::new("-t ext4 -b 1024", "20M");
    let sim = Arc::new(Sim::new(image.device(true), Faults::default()));
    let device = Arc::clone(&sim);
    let fs = Ext4::open_for_writing(device, &Arc::default(), Clock::System).unwrap();
    let group = fs.group(0).unwrap();
    let before = fs.free_space();
    let fails = |expected: fn(ErrorKind) -> bool| {
        let blocks = fs.transact(2, |h| h.allocate_blocks(FsBlock(1), 1));
        let inode = fs.transact(3, |h| h.allocate_inode(ROOT, false).map(|fresh| fresh.number()));
        for error in [blocks.err().unwrap(), inode.err().unwrap()] {
            assert!(expected(error.kind()), "{error}");
        }
        assert_eq!(fs.free_space(), before);
    };
    let bitmaps = [group.block_bitmap.0, group.inode_bitmap.0];
    let bad_sectors = bitmaps.into_iter().flat_map(|block| [block * 2, block * 2 + 1]).collect();
    sim.set_faults(Faults { bad_sectors, ..Faults::default() });
    fails(|kind| matches!(kind, ErrorKind::Io(_)));

    sim.set_faults(Faults::default());
    for block in bitmaps {
        let at = DevOffset(block * 1024);
        let mut bytes = [0; 1024];
        sim.read_exact_at(&mut bytes, at).unwrap();
        bytes[100] ^= 1;
        sim.write_all_at(&[IoSlice::new(&bytes)], at, false).unwrap();
    }
    fails(|kind| kind == ErrorKind::Corrupt);
    assert!(fs.transact(2, |h| h.update_group(0, |_| Ok(()))).is_ok(), "nothing was aborted");
}

#[test]
fn the_reserve_is_the_owners() {
    let image = Image::new("-t ext4 -m 10", "50M");
    let fs = image.open();
    fill(&fs, Reserve::Denied);
    let left = fs.free_space();
    let for_nodes = fs.superblock().blocks_count / 50;
    assert_eq!((left.available, left.blocks), (0, fs.superblock().reserved_blocks + for_nodes));
    fill(&fs, Reserve::Superuser);
    assert_eq!(fs.free_space().blocks, for_nodes);
    fill(&fs, Reserve::Allowed);
    assert_eq!(fs.free_space().blocks, 0);
}

#[test]
fn free_blocks_and_metadata_are_not_freed() {
    let image = Image::new("-t ext4 -b 1024", "60M");
    let fs = image.open();
    let (start, count) = fs.transact(2, |h| h.allocate_blocks(FsBlock(8193), 100)).unwrap();
    let group = fs.group(0).unwrap();
    let blocks = fs.superblock().blocks_count;
    let wrong = [
        (FsBlock(start.0 + 1), u64::from(count)),
        (FsBlock(start.0 + 1000), 1),
        (group.inode_table, 1),
        (group.block_bitmap, 1),
        (FsBlock(1), 1),
        (FsBlock(blocks - 1), 2),
        (FsBlock(u64::MAX), 2),
        (FsBlock(0), 1),
    ];
    let before = fs.free_space();
    for (start, count) in wrong {
        let freed = fs.transact(9, |h| h.free_blocks(start, count, Freed::Metadata));
        assert_eq!(freed.unwrap_err().kind(), ErrorKind::Corrupt, "{count} blocks from {start}");
    }
    for number in [0, 1, 10, 4000, 1 << 40] {
        let freed = fs.transact(9, |h| h.free_inode(&Alone(InodeNo(number)), false));
        assert_eq!(freed.unwrap_err().kind(), ErrorKind::Corrupt, "inode {number}");
    }
    assert_eq!(fs.free_space(), before);
    free(&fs, &[(start, count)]);
    fs.close().unwrap();
    drop(fs);
    image.assert_clean();
}

#[test]
fn four_threads_get_different_blocks_and_inodes() {
    for options in ["-t ext4 -b 1024", "-t ext4 -O bigalloc"] {
        let image = Image::new(options, "100M");
        let fs = image.open();
        let models: Vec<_> = std::thread::scope(|scope| {
            let work = |seed| {
                let mut model = Model::new(seed);
                (0..400).for_each(|_| model.step_beside_others(&fs));
                model
            };
            let threads: Vec<_> = (100..104).map(|seed| scope.spawn(move || work(seed))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        fs.close().unwrap();
        drop(fs);
        let found = image.check();
        let (mut clusters, mut inodes) = (BTreeSet::new(), BTreeSet::new());
        for model in &models {
            let (own_clusters, own_inodes) = (model.clusters(found.cluster), model.inodes());
            assert!(clusters.is_disjoint(&own_clusters), "{options}: blocks have two owners");
            assert!(inodes.is_disjoint(&own_inodes), "{options}: inodes have two owners");
            clusters.extend(own_clusters);
            inodes.extend(own_inodes);
        }
        assert_same(&found.clusters, &clusters, options);
        assert_same(&found.inodes, &inodes, options);
    }
}

#[test]
fn free_space_is_discarded_and_nothing_else() {
    let image = Image::new("-t ext4 -b 1024 -O ^has_journal", "60M");
    image.dirty_all_free_blocks();
    let before = image.allocated();
    let fs = image.open();
    let (start, count) = fs.transact(2, |h| h.allocate_blocks(FsBlock(20_000), 3000)).unwrap();
    let free = fs.free_space().blocks * 1024;
    let trimmed = fs.trim(1).unwrap();
    assert_eq!(trimmed, free, "all that is free");
    assert_eq!(fs.trim(u64::MAX).unwrap(), 0);
    assert_eq!(fs.free_space().blocks * 1024, free);
    let after = image.allocated();
    assert!(after < before - free * 9 / 10, "{before} bytes before, {after} after");
    assert!(after >= u64::from(count) * 1024);

    fs.set_discard(true).unwrap();
    self::free(&fs, &[(start, count)]);
    fs.sync().unwrap();
    assert!(image.allocated() < after - 2_900_000);
    fs.close().unwrap();
    drop(fs);
    image.assert_clean();
}
