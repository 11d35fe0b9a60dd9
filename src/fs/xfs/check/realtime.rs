//! Checks the space of realtime files: the free extents in the bitmaps and their summaries, and the trees of realtime groups.
//!
//! A volume with metadata directories has a bitmap file and a summary file for each realtime group. The files are found by their names.
//! Other volumes have a single bitmap and a single summary. Zones have no bitmap, because XFS frees a zone only as a whole.

use std::collections::BTreeMap;

use super::super::disk::inode::{format, metatype};
use super::super::disk::realtime::{BITMAP_MAGIC, HEADER, SUMMARY_MAGIC};
use super::super::disk::tree::owner;
use super::super::features::{Incompat, RoCompat};
use super::super::header::{Header, array};
use super::super::realtime::Realtime;
use super::Checker;
use super::found::Found;
use super::map::{Map, Which};
use super::owners::{FREE, Space};
use super::tree;
use crate::error::Place;
use crate::fs::block::Block;
use crate::fs::check::{Findings, Kind};
use crate::fs::xfs::Xfs;
use crate::units::{FsBlock, InodeNo};

/// The number of bits in a word.
const WORD: u64 = 32;
/// The maximum number of free extents that are recorded.
pub(super) const MOST_RUNS: usize = 1 << 22;

/// The layout of a bitmap and its summary.
#[derive(Clone, Copy)]
struct Layout {
    /// Whether blocks have a header and words are big-endian.
    has_headers: bool,
    /// The number of words in a block.
    words: u64,
    /// The number of blocks in a bitmap. The number is the same for all groups, including a shorter last group.
    blocks: u64,
    /// The number of size classes (powers of two of extents) in a summary.
    levels: u64,
}

impl Layout {
    fn new(realtime: &Realtime, block: usize) -> Self {
        let has_headers = realtime.has_groups();
        let header = if has_headers { HEADER } else { 0 };
        let words = (block.saturating_sub(header) / size_of::<u32>()) as u64;
        // If the only group is short, its bitmap and its summary still have the length for a full group.
        let extents = realtime.most_extents();
        let blocks = realtime.bitmap_blocks(block);
        Self { has_headers, words, blocks, levels: u64::from(extents.max(1).ilog2()) + 1 }
    }

    /// The words in a block of a bitmap or summary.
    fn words_of(self, content: &[u8]) -> impl Iterator<Item = u32> {
        let from = if self.has_headers { HEADER } else { 0 };
        let words = content[from..].chunks_exact(size_of::<u32>());
        words.map(move |word| match self.has_headers {
            true => u32::from_be_bytes(array(word, 0)),
            false => u32::from_le_bytes(array(word, 0)),
        })
    }
}

/// Collects the free extents of a bitmap. The caller adds the bitmap word by word.
struct FreeRuns {
    runs: Vec<(u64, u64)>,
    start: Option<u64>,
    at: u64,
    end: u64,
}

impl FreeRuns {
    /// Processes the next word of the bitmap. Returns the set bits of the word that are past the end of the group.
    fn word(&mut self, word: u32) -> u32 {
        let bits = WORD.min(self.end - self.at);
        let after = u64::from(word) >> bits << bits;
        // Most words are uniform: all bits continue the current run of free or used blocks. This path handles a whole word at once.
        if bits == WORD && word == if self.start.is_some() { u32::MAX } else { 0 } {
            self.at += WORD;
            return 0;
        }
        for bit in 0..bits {
            let is_free = word >> bit & 1 == 1;
            match (is_free, self.start) {
                (true, None) => self.start = Some(self.at + bit),
                (false, Some(start)) => {
                    self.runs.push((start, self.at + bit - start));
                    self.start = None;
                }
                _ => {}
            }
        }
        self.at += bits;
        after as u32
    }

    fn end(mut self) -> Vec<(u64, u64)> {
        self.runs.extend(self.start.map(|start| (start, self.end - start)));
        self.runs
    }
}

impl Xfs {
    /// The first block of an extent of a realtime file, if all blocks of the extent exist.
    pub(super) fn realtime_number(&self, number: u64, count: u64) -> Option<FsBlock> {
        self.superblock.realtime()?.within(number, count).map(|_| FsBlock(number))
    }
}

impl Checker<'_> {
    /// Describes how the volume numbers its realtime blocks. `None` if the volume has no realtime blocks.
    fn realtime_layout(&self) -> Option<Realtime> {
        self.fs.superblock.realtime().copied()
    }

    /// The names and kinds of the files of each realtime group. The full name of a file begins with the number of its group.
    pub(super) fn realtime_files(&self) -> Vec<(&'static str, u16)> {
        let sb = &self.fs.superblock;
        let mut files = Vec::new();
        if !sb.incompat.contains(Incompat::ZONED) {
            files.push(("bitmap", metatype::REALTIME_BITMAP));
            files.push(("summary", metatype::REALTIME_SUMMARY));
        }
        if sb.ro_compat.contains(RoCompat::RMAPBT) {
            files.push(("rmap", metatype::REALTIME_OWNERS));
        }
        if sb.ro_compat.contains(RoCompat::REFLINK) {
            files.push(("refcount", metatype::REALTIME_REFCOUNTS));
        }
        files
    }

    /// The group of an extent, and the extent's first block in that group. `None` if a block number is invalid or does not fit into 32
    /// bits.
    pub(super) fn realtime_group(&self, number: u64, count: u32) -> Option<(Space, u32)> {
        let (group, start) = self.realtime_layout()?.within(number, count.into())?;
        Some((Space::Realtime(group.try_into().ok()?), start.try_into().ok()?))
    }

    /// Reads the tree in the data fork of a realtime group's file. Returns the number of blocks of the tree.
    pub(super) fn check_space_file(&mut self, found: &Found) -> u64 {
        let kind = found.space_tree().filter(|_| found.raw.di_format == format::META_BTREE);
        let Some(kind) = kind else { return 0 };
        let is_of_owners = kind == metatype::REALTIME_OWNERS;
        let shape = if is_of_owners { &tree::REALTIME_OWNERS } else { &tree::REALTIME_REFCOUNTS };
        let walked = self.walk_file_tree(found, shape);
        let groups = self.realtime_layout().map_or(0, |realtime| realtime.groups());
        // If a second file belongs to the same group, the check of names reports it.
        let space = Space::Realtime(found.project());
        if !walked.whole || u64::from(found.project()) >= groups {
            return walked.blocks.into();
        }
        if is_of_owners {
            let recorded = self.recorded_owners(space, &walked);
            if found.counts_blocks(&self.fs.superblock) {
                let used: u64 = recorded.iter().map(|run| u64::from(run.len)).sum();
                let stored = found.v3.as_ref().map_or(0, |v3| v3.di_cowextsize.get());
                self.findings.expect(found.place("di_used_blocks"), stored, used);
            }
            self.group(space).recorded = Some(recorded);
        } else {
            let shared = self.recorded_counts(space, &walked);
            self.group(space).shared = Some(shared);
        }
        walked.blocks.into()
    }

    /// Records the free realtime blocks. The bitmap files must be known.
    pub(super) fn check_realtime_space(&mut self) {
        let Some(realtime) = self.realtime_layout() else { return };
        if realtime.is_zoned {
            return;
        }
        if realtime.group_len(0) > u32::MAX.into() {
            let what = "the space of the realtime device, because it has 2^32 blocks or more";
            return self.findings.add(Place::new("superblock"), Kind::NotChecked { what });
        }
        if realtime.has_superblock() {
            let extent = realtime.extent as u32;
            self.claim(Space::Realtime(0), (0, extent), owner::HEADERS, 0);
        }
        if !realtime.has_groups() {
            let raw = &self.superblock;
            let [bitmap, summary] = [&raw.sb_rbmino, &raw.sb_rsumino].map(|at| InodeNo(at.get()));
            let files =
                vec![(metatype::REALTIME_BITMAP, bitmap), (metatype::REALTIME_SUMMARY, summary)];
            for (_, number) in &files {
                let links = self.inodes.get(*number).map_or(1, |state| state.links);
                let place = Place::new("inode").inode(*number).field("di_nlink");
                self.findings.expect(place, links, 1_u32);
            }
            self.group(Space::Realtime(0)).files = files;
        }
        let groups: Vec<_> = self.realtime.keys().copied().collect();
        let (mut free, mut is_known) = (0, groups.len() as u64 == realtime.groups());
        for group in groups {
            match self.check_realtime_group(&realtime, group) {
                Some(extents) => free += extents,
                None => is_known = false,
            }
        }
        // `sb_frextents` is a lazy counter. After a crash, it is outdated like the other lazy counters.
        if is_known && !self.fs.log().recovered {
            let field = Place::new("superblock").field("sb_frextents");
            self.findings.expect(field, self.superblock.sb_frextents.get(), free);
        }
    }

    /// Reads the bitmap of a group, compares it with the summary, and records the group's free extents. Returns the number of free extents.
    fn check_realtime_group(&mut self, realtime: &Realtime, group: u32) -> Option<u64> {
        let space = Space::Realtime(group);
        let layout = Layout::new(realtime, self.fs.superblock.geometry.block.bytes());
        let end = realtime.group_len(group.into()) / realtime.extent;
        let bitmap = self.realtime_file(space, metatype::REALTIME_BITMAP)?;
        self.check_length(&bitmap.0, layout.blocks);
        let (mut free, mut after) = (FreeRuns { runs: Vec::new(), start: None, at: 0, end }, 0);
        for at in 0..layout.blocks {
            let content = self.realtime_block(&bitmap, at, layout, BITMAP_MAGIC)?;
            for word in layout.words_of(&content) {
                after |= free.word(word);
            }
            if free.runs.len() > self.runs_left {
                let what =
                    "the space of the realtime device, because it has millions of free extents";
                self.findings.add(bitmap.0.part("realtime bitmap"), Kind::NotChecked { what });
                return None;
            }
        }
        if after != 0 {
            self.wrong(bitmap.0.part("realtime bitmap"), "bits after the last extent are set");
        }
        let runs = free.end();
        self.runs_left -= runs.len();
        let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
        for &(start, count) in &runs {
            // The block numbers fit into 32 bits, because they are within a group, which has less than 2^32 blocks.
            let (first, blocks) = (start * realtime.extent, count * realtime.extent);
            self.claim(space, (first as u32, blocks as u32), FREE, 0);
            let at = u64::from(count.ilog2()) * layout.blocks + start / (layout.words * WORD);
            *counts.entry(at).or_default() += 1;
        }
        self.group(space).free_is_known = true;
        if let Some(summary) = self.realtime_file(space, metatype::REALTIME_SUMMARY) {
            self.check_summary(&summary, layout, &counts);
        }
        Some(runs.iter().map(|run| run.1).sum())
    }

    fn check_summary(&mut self, file: &(Found, Map), layout: Layout, counts: &BTreeMap<u64, u32>) {
        let mut differ = 0_u64;
        let blocks = (layout.levels * layout.blocks).div_ceil(layout.words);
        self.check_length(&file.0, blocks);
        for at in 0..blocks {
            let content = self.realtime_block(file, at, layout, SUMMARY_MAGIC);
            let Some(content) = content else { return };
            // Words after the last count of the summary must be zero.
            let stored = (at * layout.words..).zip(layout.words_of(&content));
            let expected = |at: &u64| counts.get(at).copied().unwrap_or(0);
            differ += stored.filter(|(at, stored)| *stored != expected(at)).count() as u64;
        }
        if differ > 0 {
            let what = format!("{differ} counts of free extents differ from the bitmap");
            self.add_of_space(file.0.part("realtime summary"), Kind::Records { what });
        }
    }

    fn check_length(&mut self, found: &Found, blocks: u64) {
        let bytes = blocks * self.fs.superblock.geometry.block.bytes() as u64;
        self.findings.expect(found.place("di_size"), found.size(), bytes);
    }

    /// A file of a realtime group, with its map.
    fn realtime_file(&mut self, space: Space, kind: u16) -> Option<(Found, Map)> {
        let files = self.group(space).files.iter();
        let (_, number) = files.copied().find(|(other, _)| *other == kind)?;
        let found = self.again(number)?;
        // The check of the inode has already reported faults of the map. So the findings of this second read are dropped.
        let map = self.fs.check_map(&mut Findings::default(), &found, Which::Data);
        Some((found, map))
    }

    /// Reads a block of a bitmap file or a summary file.
    fn realtime_block(
        &mut self,
        (found, map): &(Found, Map),
        at: u64,
        layout: Layout,
        magic: u32,
    ) -> Option<Block> {
        let place = found.part("realtime bitmap or summary");
        let Some(block) = map.lookup(at) else {
            self.wrong(place, format!("block {at} of the file is a hole"));
            return None;
        };
        let place = place.block(block);
        let content = self.read(place, &[block])?;
        if layout.has_headers {
            let stored = u32::from_be_bytes(array(&content, 0));
            if !self.findings.expect(place.field("rt_magic"), stored, magic) {
                return None;
            }
            let owner = (found.number, place);
            self.fs.check_seal(&mut self.findings, &content, Header::REALTIME, &[block], owner);
        }
        Some(content)
    }
}
