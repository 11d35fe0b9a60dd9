//! A model of the allocated blocks and inodes, as sets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::Freed;
use crate::error::ErrorKind;
use crate::fs::FileSystem;
use crate::fs::ext4::for_tests::Alone;
use crate::fs::ext4::operation::MayChange;
use crate::fs::ext4::{Ext4, ROOT};
use crate::units::{FsBlock, InodeNo};

/// A seeded generator of random numbers (SplitMix64).
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }
}

pub(super) struct Model {
    rng: Rng,
    runs: Vec<(u64, u64)>,
    blocks: BTreeSet<u64>,
    /// The blocks that were freed since the last commit.
    pending: BTreeSet<u64>,
    /// The allocated inodes. The value is true for a directory.
    inodes: BTreeMap<u64, bool>,
}

impl Model {
    pub(super) fn new(seed: u64) -> Self {
        let (blocks, pending) = (BTreeSet::new(), BTreeSet::new());
        Self { rng: Rng(seed), runs: Vec::new(), blocks, pending, inodes: BTreeMap::new() }
    }

    /// The numbers of the used clusters. A cluster's number is its first block divided by the cluster size.
    pub(super) fn clusters(&self, cluster: u64) -> BTreeSet<u64> {
        self.blocks.iter().map(|block| block / cluster).collect()
    }

    pub(super) fn inodes(&self) -> BTreeSet<u64> {
        self.inodes.keys().copied().collect()
    }

    /// Runs one operation while other threads also commit. Freed blocks can become available at any time. The model treats them as
    /// available at once.
    pub(super) fn step_beside_others(&mut self, fs: &Arc<Ext4>) {
        self.step(fs);
        self.pending.clear();
    }

    /// Runs one operation.
    pub(super) fn step(&mut self, fs: &Arc<Ext4>) {
        match self.rng.below(100) {
            0..45 => self.allocate(fs),
            45..65 => self.free_one(fs),
            65..85 => self.allocate_inode(fs),
            85..95 => self.free_inode(fs),
            _ => {
                fs.sync().unwrap();
                self.pending.clear();
            }
        }
        let space = fs.free_space();
        assert!(space.blocks <= fs.superblock().blocks_count);
    }

    fn allocate(&mut self, fs: &Arc<Ext4>) {
        let goal = FsBlock(self.rng.below(fs.superblock().blocks_count + 10));
        let most = [1, 8, 500, 40_000][self.rng.below(4) as usize];
        let want = 1 + self.rng.below(most) as u32;
        let cluster = fs.superblock().cluster_blocks;
        let got = fs.transact(8, |handle| handle.allocate_blocks(goal, want));
        let (start, count) = match got {
            Ok(run) => run,
            Err(error) => return assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
        };
        assert!(count > 0 && count <= want.next_multiple_of(cluster), "{count} of {want}");
        for block in start.0..start.0 + u64::from(count) {
            assert!(self.blocks.insert(block), "block {block} is given out twice");
            assert!(!self.pending.contains(&block), "block {block} is not free before a commit");
        }
        self.runs.push((start.0, u64::from(count)));
    }

    /// Frees a run of blocks, or the end of a run.
    fn free_one(&mut self, fs: &Arc<Ext4>) {
        if self.runs.is_empty() {
            return;
        }
        let cluster = u64::from(fs.superblock().cluster_blocks);
        let at = self.rng.below(self.runs.len() as u64) as usize;
        let (start, count) = self.runs.swap_remove(at);
        let keep = self.rng.below(count / cluster) * cluster;
        if keep > 0 {
            self.runs.push((start, keep));
        }
        self.free(fs, start + keep, count - keep);
    }

    fn free(&mut self, fs: &Arc<Ext4>, start: u64, count: u64) {
        let kind = if self.rng.below(2) == 0 { Freed::Data } else { Freed::Metadata };
        fs.transact(8, |handle| handle.free_blocks(FsBlock(start), count, kind)).unwrap();
        for block in start..start + count {
            self.blocks.remove(&block);
            self.pending.insert(block);
        }
    }

    fn allocate_inode(&mut self, fs: &Arc<Ext4>) {
        let directory = self.rng.below(4) == 0;
        let parents: Vec<_> =
            self.inodes.iter().filter(|(_, is)| **is).map(|(number, _)| *number).collect();
        let parent = parents.get(self.rng.below(1 + parents.len() as u64) as usize);
        let parent = parent.map_or(ROOT, |number| InodeNo(*number));
        let got = fs.transact(8, |handle| {
            handle.allocate_inode(parent, directory).map(|fresh| fresh.number())
        });
        match got {
            Ok(number) => {
                assert!(number.0 >= u64::from(fs.superblock().first_inode));
                let before = self.inodes.insert(number.0, directory);
                assert!(before.is_none(), "inode {number} is given out twice");
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
        }
    }

    fn free_inode(&mut self, fs: &Arc<Ext4>) {
        let at = self.rng.below(self.inodes.len() as u64) as usize;
        let Some((number, directory)) = self.inodes.iter().nth(at).map(|(n, d)| (*n, *d)) else {
            return;
        };
        self.inodes.remove(&number);
        fs.transact(8, |handle| handle.free_inode(&Alone(InodeNo(number)), directory)).unwrap();
    }

    pub(super) fn free_all(&mut self, fs: &Arc<Ext4>) {
        for (start, count) in std::mem::take(&mut self.runs) {
            self.free(fs, start, count);
        }
        for (number, directory) in std::mem::take(&mut self.inodes) {
            fs.transact(8, |handle| handle.free_inode(&Alone(InodeNo(number)), directory)).unwrap();
        }
    }
}
