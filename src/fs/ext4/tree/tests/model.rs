//! Random changes of a map, compared with a model that maps single blocks.

use std::collections::BTreeMap;

use super::image::File;
use crate::error::ErrorKind;
use crate::fs::FileSystem;
use crate::fs::ext4::for_tests::Image;
use crate::iomap::{Extent, ExtentState};
use crate::units::{FileBlock, FsBlock};

/// A random generator (SplitMix64). A failing test prints the seed, so that the test can be repeated with the same random numbers.
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

/// The mapped blocks of the file, each with its device block and its state.
#[derive(Default)]
struct Model(BTreeMap<u64, (u64, ExtentState)>);

impl Model {
    fn extents(&self) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for (&block, &(start, state)) in &self.0 {
            match extents.last_mut() {
                Some(last)
                    if last.end().0 == block
                        && last.start.0 + u64::from(last.len) == start
                        && last.state == state =>
                {
                    last.len += 1;
                }
                _ => extents.push(Extent {
                    first: FileBlock(block),
                    start: FsBlock(start),
                    len: 1,
                    state,
                }),
            }
        }
        extents
    }

    fn unmap(&mut self, start: u64, end: u64) {
        self.0.extract_if(start..end, |_, _| true).for_each(drop);
    }

    fn shift(&mut self, from: u64, by: i64) {
        let moved = self.0.split_off(&from);
        self.0.extend(moved.into_iter().map(|(block, what)| (block.wrapping_add_signed(by), what)));
    }
}

/// The parameters of a test run.
pub(super) struct Run<'a> {
    pub(super) seed: u64,
    pub(super) options: &'a str,
    /// The number of the file's blocks that the run uses.
    pub(super) blocks: u64,
    pub(super) steps: u64,
    /// Whether the map has extents, which have states and can be shifted.
    pub(super) extents: bool,
    /// The number of one-block extents that are mapped first.
    pub(super) scattered: u64,
    pub(super) depth: u16,
}

impl Run<'_> {
    pub(super) fn go(&self) {
        let image = Image::with_file(self.options, "192M");
        let (mut random, mut model, mut deepest) = (Rng(self.seed), Model::default(), 0);
        let mut file = image.open_file();
        file.set_size(self.blocks * 2);
        let cluster = u64::from(file.fs.superblock.cluster_blocks);
        self.scatter(&file, &mut model, &mut random);
        for step in 0..self.steps {
            let what = format!("seed {}, step {step}, {}", self.seed, self.options);
            let start = random.below(self.blocks);
            let len = match random.below(40) {
                0 => random.below(self.blocks / 20),
                1..9 => random.below(400),
                _ => random.below(12),
            } + 1;
            let state = if random.below(2) == 0 && self.extents {
                ExtentState::Unwritten
            } else {
                ExtentState::Written
            };
            let to = random.below(file.fs.superblock.blocks_count);
            match random.below(if self.extents { 12 } else { 6 }) {
                0..4 => map(&file, &mut model, start, len, state, to),
                4..6 => {
                    file.unmap(start, start + len).expect(&what);
                    model.unmap(start, start + len);
                }
                6..10 => {
                    file.set_state(start, start + len, state).expect(&what);
                    let range = model.0.range_mut(start..start + len);
                    range.for_each(|(_, block)| block.1 = state);
                }
                choice => {
                    let by = len.min(500).next_multiple_of(cluster) as i64;
                    let from = start.next_multiple_of(cluster).max(by as u64);
                    if choice == 10 {
                        file.unmap(from - by as u64, from).expect(&what);
                        model.unmap(from - by as u64, from);
                        file.shift(from, -by).expect(&what);
                        model.shift(from, -by);
                    } else {
                        file.shift(from, by).expect(&what);
                        model.shift(from, by);
                    }
                }
            }
            deepest = deepest.max(if self.extents { file.depth() } else { 0 });
            if step % 100 == 99 {
                assert_eq!(file.extents(), model.extents(), "{what}");
            }
            if step % (self.steps / 3) == 0 {
                file.close();
                image.fsck();
                file = image.open_file();
            }
        }
        assert_eq!(file.extents(), model.extents(), "seed {}", self.seed);
        assert!(deepest >= self.depth, "{deepest} levels");
        file.close();
        image.fsck();
        let file = image.open_file();
        file.unmap(0, u64::MAX).unwrap();
        assert_eq!((file.inode().stat().blocks, file.extents()), (0, vec![]));
        file.close();
        image.fsck();
    }

    /// Maps extents of one block in random order, with holes between them.
    fn scatter(&self, file: &File, model: &mut Model, random: &mut Rng) {
        let mut places: Vec<u64> = (0..self.scattered).collect();
        for i in (1..places.len()).rev() {
            places.swap(i, random.below(i as u64 + 1) as usize);
        }
        let mut goal = 0;
        let mut places = places.into_iter();
        while places.len() > 0 {
            let (start, len) = file.allocate(goal, places.len().min(5000) as u32);
            goal = start + u64::from(len);
            for (block, place) in (start..goal).zip(&mut places) {
                file.map(place * 2, block, 1, ExtentState::Written).unwrap();
                model.0.insert(place * 2, (block, ExtentState::Written));
            }
        }
    }
}

/// Fills the holes of a range while space is available. With bigalloc, the function uses complete free clusters, or the unmapped blocks of
/// the file's own clusters.
fn map(file: &File, model: &mut Model, start: u64, len: u64, state: ExtentState, goal: u64) {
    let cluster = u64::from(file.fs.superblock.cluster_blocks);
    let mut at = start;
    while at < start + len {
        if model.0.contains_key(&at) {
            at += 1;
            continue;
        }
        let end = model.0.range(at..).next().map_or(u64::MAX, |(block, _)| *block);
        let base = at / cluster * cluster;
        // The file already has this cluster if another block of the cluster is mapped.
        let there = model.0.range(base..base + cluster).next();
        let (first, blocks) = match there {
            Some((block, (place, _))) => {
                (place + at - block, end.min(base + cluster).min(start + len) - at)
            }
            None => {
                let want = (end.min(start + len) - base).min(2000) as u32;
                let got = file.change(|h, _| h.allocate_blocks(FsBlock(goal), want));
                let (place, got) = match got {
                    Ok(got) => got,
                    Err(error) if error.kind() == ErrorKind::NoSpace => {
                        return file.fs.sync().unwrap();
                    }
                    Err(error) => panic!("{error}"),
                };
                let whole = base + u64::from(got);
                let mapped = whole.min(end).min(start + len);
                // If blocks of the file's last cluster are already mapped, the file already has a device cluster for them. The newly
                // allocated cluster cannot be used in this case.
                let last = (whole - 1) / cluster * cluster;
                let shared =
                    cluster > 1 && (mapped <= last || model.0.range(last..whole).next().is_some());
                if shared {
                    let free = (FsBlock(place.0), u64::from(got));
                    file.change(|h, _| {
                        h.free_blocks(free.0, free.1, crate::fs::ext4::alloc::Freed::Data)
                    })
                    .unwrap();
                    at = whole.max(at + 1);
                    continue;
                }
                (place.0 + (at - base), mapped - at)
            }
        };
        if let Err(error) = file.map(at, first, blocks as u32, state) {
            panic!("{error:?}: {at} {first} {blocks}");
        }
        model.0.extend((0..blocks).map(|i| (at + i, (first + i, state))));
        at += blocks;
    }
}

#[test]
fn random_changes_of_a_deep_tree() {
    for seed in [1, 2] {
        Run {
            seed,
            options: "-t ext4 -b 1024 -N 64",
            blocks: 80_000,
            steps: 4000,
            extents: true,
            scattered: 35_000,
            depth: 3,
        }
        .go();
    }
}

#[test]
fn random_changes_of_a_small_tree() {
    for (seed, options) in [
        (3, "-t ext4 -b 1024"),
        (4, "-t ext4"),
        (5, "-t ext4 -b 2048 -O ^metadata_csum,^huge_file,^64bit"),
        (6, "-t ext4 -b 1024 -O ^has_journal"),
    ] {
        Run { seed, options, blocks: 30_000, steps: 3000, extents: true, scattered: 100, depth: 1 }
            .go();
    }
}
