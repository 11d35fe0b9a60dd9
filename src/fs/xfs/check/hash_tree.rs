//! Walks a hash index: its nodes and leaves. Directories and attributes use the same format of nodes.

use std::collections::HashSet;

use zerocopy::FromBytes;

use super::super::disk::dir::{LEAF_HEADER, LEAF_HEADER_V5, NODE, NODE_V5, RawHashEntry, RawLinks};
use super::super::header::{Header, array};
use super::Checker;
use super::found::Found;
use super::map::Map;
use crate::error::Place;
use crate::fs::block::Block;
use crate::fs::check::Kind;
use crate::units::FsBlock;

/// The maximum number of levels of an index.
const MAX_LEVELS: u16 = 5;

/// A block of an index, read into memory.
pub(super) struct IndexBlock {
    pub(super) content: Block,
    pub(super) blocks: Vec<FsBlock>,
    pub(super) magic: u16,
    pub(super) place: Place,
}

/// The location of an index.
pub(super) struct Index<'i> {
    pub(super) found: &'i Found,
    pub(super) map: &'i Map,
    pub(super) structure: &'static str,
    /// The first block of the index in the fork.
    pub(super) root: u64,
    /// The number of file-system blocks in an index block.
    pub(super) count: u64,
}

/// A function that checks a leaf and returns its last hash, or `None` if the leaf has no entries.
pub(super) type Leaf<'l> = &'l mut dyn FnMut(&mut Checker<'_>, &IndexBlock) -> Option<u32>;

struct Walk<'w, 'i> {
    index: &'w Index<'i>,
    seen: HashSet<u64>,
    /// For each level, the last block that was visited and its right sibling.
    last: Vec<Option<(u64, u32)>>,
}

impl Checker<'_> {
    /// Walks an index, leaf by leaf. Returns whether the index is complete.
    pub(super) fn walk_index(&mut self, index: &Index<'_>, leaf: Leaf<'_>) -> bool {
        let mut walk = Walk { index, seen: HashSet::new(), last: Vec::new() };
        let Some(root) = self.index_block(&mut walk, index.root) else { return false };
        let level = if self.is_node(&root) { self.index_level(&root) } else { 0 };
        if level > MAX_LEVELS || self.is_node(&root) && level == 0 {
            let what = Kind::Damaged {
                what: format!("the root of the index has the invalid level {level}"),
            };
            self.findings.add(root.place.field("level"), what);
            return false;
        }
        walk.last = vec![None; usize::from(level) + 1];
        let mut whole = true;
        self.index_below(&mut walk, (index.root, &root), level, (leaf, &mut whole));
        for (_, next) in walk.last.into_iter().flatten() {
            if next != 0 {
                let place = index.found.part(index.structure).field("forw");
                self.wrong(
                    place,
                    format!("the last block of a level points to another block, {next}"),
                );
            }
        }
        whole
    }

    fn is_node(&self, block: &IndexBlock) -> bool {
        block.magic == if self.fs.superblock.is_v5() { NODE_V5 } else { NODE }
    }

    fn index_level(&self, block: &IndexBlock) -> u16 {
        let at = if self.fs.superblock.is_v5() { 56 } else { 12 };
        u16::from_be_bytes(array(&block.content, at + 2))
    }

    fn index_block(&mut self, walk: &mut Walk<'_, '_>, number: u64) -> Option<IndexBlock> {
        let index = walk.index;
        let place = index.found.part(index.structure);
        if !walk.seen.insert(number) {
            let what = format!("block {number} of the fork is in the index twice");
            self.findings.add(place, Kind::Damaged { what });
            return None;
        }
        let Some(blocks) = index.map.run(number, index.count) else {
            let what = format!("block {number} of the fork is a hole");
            self.findings.add(place, Kind::Damaged { what });
            return None;
        };
        let place = place.block(blocks[0]);
        let content = self.read(place, &blocks)?;
        let magic = u16::from_be_bytes(array(&content, 8));
        Some(IndexBlock { content, blocks, magic, place })
    }

    /// Checks a block and the subtree below it. Returns the last hash in the subtree.
    fn index_below(
        &mut self,
        walk: &mut Walk<'_, '_>,
        (number, block): (u64, &IndexBlock),
        level: u16,
        (leaf, whole): (Leaf<'_>, &mut bool),
    ) -> Option<u32> {
        let found = walk.index.found;
        let is_node = self.is_node(block);
        if is_node != (level > 0) || is_node && self.index_level(block) != level {
            *whole = false;
            let what =
                format!("the magic number {:#06x} is not valid at level {level}", block.magic);
            self.findings.add(block.place.field("magic"), Kind::Damaged { what });
            return None;
        }
        let owner = (found.number, block.place);
        let (fs, content) = (self.fs, &block.content[..]);
        fs.check_seal(&mut self.findings, content, Header::DA, &block.blocks, owner);
        if let Ok((links, _)) = RawLinks::ref_from_prefix(content) {
            let before = walk.last[usize::from(level)].replace((number, links.forw.get()));
            let back = before.map_or(0, |(before, _)| before);
            self.findings.expect(block.place.field("back"), links.back.get(), back);
            if let Some((_, next)) = before {
                self.findings.expect(block.place.field("forw"), next, number);
            }
        }
        if level == 0 {
            return leaf(self, block);
        }
        let (header, at) =
            if fs.superblock.is_v5() { (LEAF_HEADER_V5, 56) } else { (LEAF_HEADER, 12) };
        let count = usize::from(u16::from_be_bytes(array(content, at)));
        let entries = <[RawHashEntry]>::ref_from_prefix_with_elems(&content[header..], count);
        let Some((entries, _)) = entries.ok().filter(|_| count > 0) else {
            *whole = false;
            let what = format!("the number of children, {count}, is 0 or exceeds the block");
            self.findings.add(block.place.field("count"), Kind::Damaged { what });
            return None;
        };
        let mut previous = 0;
        for entry in entries {
            let (hash, child) = (entry.hashval.get(), u64::from(entry.address.get()));
            if hash < previous {
                self.wrong(
                    block.place.field("hashval"),
                    format!("the hash {hash:#x} is out of order"),
                );
            }
            previous = hash;
            let Some(below) = self.index_block(walk, child) else {
                *whole = false;
                continue;
            };
            let last = self.index_below(walk, (child, &below), level - 1, (leaf, whole));
            if let Some(last) = last {
                self.findings.expect(block.place.field("hashval"), hash, last);
            }
        }
        Some(previous)
    }
}
