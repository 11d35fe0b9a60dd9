//! Walks complete maps of inodes: extent trees and indirect blocks.

use std::ops::Range;

use zerocopy::FromBytes;

use super::found::Found;
use super::reader::Reader;
use crate::error::Place;
use crate::fs::InodeFlags;
use crate::fs::check::{Findings, Kind};
use crate::fs::ext4::Ext4;
use crate::fs::ext4::checksum::crc32c_raw;
use crate::fs::ext4::disk::extent::{
    INIT_MAX_LEN, MAGIC, MAX_DEPTH, MOST_LEVELS, RawEntry, RawExtent, RawExtentHeader,
    RawExtentIndex,
};
use crate::units::FsBlock;

const HEADER: usize = size_of::<RawExtentHeader>();
const ENTRY: usize = size_of::<RawExtent>();
/// The maximum number of blocks of a file. File block numbers have 32 bits.
const MAX_BLOCKS: u64 = 1 << 32;
/// A node's capacity is the number of entries that fit into the node. The stored capacity may be lower by at most this number.
const SPARE: usize = 2;
/// The number of direct pointers in an inode.
pub(super) const DIRECT: u64 = 12;

/// A piece of a file's block map.
#[derive(Clone, Copy, Debug)]
pub(super) enum Piece {
    /// A node of the map.
    Node(u64),
    /// Blocks of content.
    Data(Data),
}

/// Blocks of content that are contiguous in the file and on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Data {
    /// The first block in the file.
    pub(super) first: u64,
    pub(super) start: u64,
    pub(super) count: u64,
    pub(super) written: bool,
}

/// A walk of one inode's map, with the reader and the list of findings.
pub(super) struct Walk<'w, 'a> {
    pub(super) fs: &'w Ext4,
    pub(super) reader: &'w mut Reader<'a>,
    pub(super) findings: &'w mut Findings,
    pub(super) inode: &'w Found,
    /// Whether the walk of the map has found no fault so far.
    pub(super) sound: bool,
}

impl Walk<'_, '_> {
    /// Calls `visit` for all pieces of the map in file order. `visit` returns whether a piece is valid. If a node is invalid, the walk
    /// skips the blocks below it. The walk ends, because it accepts each block at most once as a node.
    pub(super) fn run(&mut self, visit: &mut dyn FnMut(&mut Findings, Piece) -> bool) {
        let raw = self.inode.raw();
        if self.inode.flags().contains(InodeFlags::EXTENTS) {
            let place = Place::new("extent header").inode(self.inode.number);
            self.node(&raw.i_block, None, 0..MAX_BLOCKS, place, visit);
        } else {
            self.indirect(&raw.i_block, visit);
        }
    }

    fn wrong(&mut self, place: Place, what: Kind) {
        self.sound = false;
        self.findings.add(place, what);
    }

    /// Walks a node of an extent tree and the subtree below the node. The depth decreases at each step. The recursion therefore ends.
    /// `depth` is the expected depth, or `None` for the root. `bounds` are the file blocks that the subtree may map. Below the root, the
    /// first of these blocks is in the parent's entry.
    fn node(
        &mut self,
        bytes: &[u8],
        depth: Option<u16>,
        bounds: Range<u64>,
        place: Place,
        visit: &mut dyn FnMut(&mut Findings, Piece) -> bool,
    ) {
        let Ok((header, rest)) = RawExtentHeader::ref_from_prefix(bytes) else { return };
        let (magic, found) = (header.eh_magic.get(), header.eh_depth.get());
        if magic != MAGIC {
            let (stored, expected) = (u64::from(magic), u64::from(MAGIC));
            return self.wrong(place.field("eh_magic"), Kind::Value { stored, expected });
        }
        if found > MOST_LEVELS || depth.is_some_and(|depth| depth != found) {
            let (stored, rule) =
                (u64::from(found), "the depth does not match the position of the node in the tree");
            return self.wrong(place.field("eh_depth"), Kind::Invalid { stored, rule });
        }
        if found > MAX_DEPTH && depth.is_none() {
            // The tree is too deep. The walk continues nevertheless, because the blocks of the tree belong to the file.
            let (stored, rule) = (u64::from(found), "the tree is deeper than Linux can read");
            self.findings.add(place.field("eh_depth"), Kind::Invalid { stored, rule });
        }
        let (count, max) = (usize::from(header.eh_entries.get()), usize::from(header.eh_max.get()));
        let room = rest.len() / ENTRY;
        if max > room || max + SPARE < room {
            let (stored, rule) = (
                max as u64,
                "the maximum does not match the number of entries that fit into the node",
            );
            return self.wrong(place.field("eh_max"), Kind::Invalid { stored, rule });
        }
        if count > max || (count == 0 && found > 0) {
            let (stored, rule) =
                (count as u64, "the number of entries is 0 or exceeds the maximum of the node");
            return self.wrong(place.field("eh_entries"), Kind::Invalid { stored, rule });
        }
        let entries = &rest[..count * ENTRY];
        if depth.is_some() {
            self.checksum(bytes, HEADER + max * ENTRY, place);
            self.first_key(entries, bounds.start, place);
        }
        if found == 0 {
            self.leaf(entries, &bounds, place, visit);
        } else {
            self.inner(entries, found, &bounds, place, visit);
        }
    }

    fn checksum(&mut self, bytes: &[u8], at: usize, place: Place) {
        let Some(seed) = self.inode.seed(self.fs) else { return };
        let Some(stored) = bytes.get(at..).and_then(<[u8]>::first_chunk::<4>) else { return };
        let (stored, computed) = (u32::from_le_bytes(*stored), crc32c_raw(seed, &bytes[..at]));
        self.sound &= self.findings.checksum(place.field("et_checksum"), stored, computed);
    }

    fn inner(
        &mut self,
        entries: &[u8],
        depth: u16,
        bounds: &Range<u64>,
        place: Place,
        visit: &mut dyn FnMut(&mut Findings, Piece) -> bool,
    ) {
        let Ok(indexes) = <[RawExtentIndex]>::ref_from_bytes(entries) else { return };
        let mut next = bounds.start;
        for (at, index) in indexes.iter().enumerate() {
            let first = u64::from(index.ei_block.get());
            if first < next || first >= bounds.end {
                let rule = "the entry is out of order, or outside the range of its parent node";
                self.wrong(place.field("ei_block"), Kind::Invalid { stored: first, rule });
                continue;
            }
            next = first + 1;
            let end = indexes.get(at + 1).map_or(bounds.end, |next| u64::from(next.ei_block.get()));
            let block = u64::from(index.ei_leaf_lo.get()) | u64::from(index.ei_leaf_hi.get()) << 32;
            if !self.fs.superblock.contains(FsBlock(block)) || block == 0 {
                self.wrong(place.field("ei_leaf"), Kind::Outside { block, count: 1 });
                continue;
            }
            if !visit(self.findings, Piece::Node(block)) {
                self.sound = false;
                continue;
            }
            let below = place.block(FsBlock(block));
            match self.reader.block(FsBlock(block), below) {
                Ok(content) => {
                    self.node(&content, Some(depth - 1), first..end, below, visit);
                }
                Err(error) => {
                    self.sound = false;
                    self.findings.error(below, &error);
                }
            }
        }
    }

    /// Checks that the first file block of a node equals `key`. `key` is the file block in the node's entry in the parent.
    fn first_key(&mut self, entries: &[u8], key: u64, place: Place) {
        let Ok((first, _)) = RawEntry::ref_from_prefix(entries) else { return };
        let (stored, expected) = (key, u64::from(first.key.get()));
        if stored != expected {
            self.wrong(place.field("ei_block"), Kind::Value { stored, expected });
        }
    }

    fn leaf(
        &mut self,
        entries: &[u8],
        bounds: &Range<u64>,
        place: Place,
        visit: &mut dyn FnMut(&mut Findings, Piece) -> bool,
    ) {
        let Ok(extents) = <[RawExtent]>::ref_from_bytes(entries) else { return };
        let mut next = bounds.start;
        for raw in extents {
            let first = u64::from(raw.ee_block.get());
            let written = raw.ee_len.get() <= INIT_MAX_LEN;
            let count =
                u64::from(raw.ee_len.get()) - if written { 0 } else { u64::from(INIT_MAX_LEN) };
            let start = u64::from(raw.ee_start_lo.get()) | u64::from(raw.ee_start_hi.get()) << 32;
            if count == 0 {
                let rule = "the extent has length 0";
                self.wrong(place.field("ee_len"), Kind::Invalid { stored: 0, rule });
                continue;
            }
            if first < next || first + count > bounds.end {
                let rule = "the extent is out of order, or outside the range of its leaf";
                self.wrong(place.field("ee_block"), Kind::Invalid { stored: first, rule });
                continue;
            }
            next = first + count;
            self.data(Data { first, start, count, written }, place.field("ee_start"), visit);
        }
    }

    fn data(
        &mut self,
        data: Data,
        place: Place,
        visit: &mut dyn FnMut(&mut Findings, Piece) -> bool,
    ) {
        let end = data.start.checked_add(data.count);
        let within = end.is_some_and(|end| end <= self.fs.superblock.blocks_count);
        if data.start < u64::from(self.fs.superblock.first_data_block).max(1) || !within {
            self.wrong(place, Kind::Outside { block: data.start, count: data.count });
        } else if !visit(self.findings, Piece::Data(data)) {
            self.sound = false;
        }
    }

    /// Walks the twelve direct pointers, then the trees of one, two and three levels.
    fn indirect(
        &mut self,
        i_block: &[u8; 60],
        visit: &mut dyn FnMut(&mut Findings, Piece) -> bool,
    ) {
        let place = Place::new("indirect block").inode(self.inode.number);
        let fan_out = self.fs.superblock.block_size.bytes() as u64 / 4;
        let (direct, trees) = i_block.split_at(DIRECT as usize * 4);
        self.pointers(direct, 0, place, visit);
        let (mut first, mut span) = (DIRECT, fan_out);
        let (roots, _) = trees.as_chunks::<4>();
        for (level, root) in (0..).zip(roots) {
            let blocks = first..first + span;
            self.subtree(u32::from_le_bytes(*root), level, blocks, place, visit);
            first += span;
            span *= fan_out;
        }
    }

    /// Walks a tree of indirect blocks that maps the file blocks `blocks`. `level` is the level of the root. A block that points to data
    /// has level 0. The level decreases at each step. The recursion therefore ends.
    fn subtree(
        &mut self,
        root: u32,
        level: u32,
        blocks: Range<u64>,
        place: Place,
        visit: &mut dyn FnMut(&mut Findings, Piece) -> bool,
    ) {
        let block = FsBlock(u64::from(root));
        if root == 0 {
            return;
        }
        if !self.fs.superblock.contains(block) || root < self.fs.superblock.first_data_block {
            return self.wrong(place, Kind::Outside { block: block.0, count: 1 });
        }
        if !visit(self.findings, Piece::Node(block.0)) {
            self.sound = false;
            return;
        }
        let place = place.block(block);
        let content = match self.reader.block(block, place) {
            Ok(content) => content,
            Err(error) => {
                self.sound = false;
                return self.findings.error(place, &error);
            }
        };
        if level == 0 {
            return self.pointers(&content, blocks.start, place, visit);
        }
        let (pointers, _) = content.as_chunks::<4>();
        let span = (blocks.end - blocks.start) / pointers.len() as u64;
        for (index, pointer) in (0..).zip(pointers) {
            let first = blocks.start + index * span;
            let below = first..first + span;
            self.subtree(u32::from_le_bytes(*pointer), level - 1, below, place, visit);
        }
    }

    /// Calls `visit` for the data blocks to which a block of pointers refers. Adjacent data blocks are merged into runs. A pointer of 0 is
    /// a hole.
    fn pointers(
        &mut self,
        bytes: &[u8],
        first: u64,
        place: Place,
        visit: &mut dyn FnMut(&mut Findings, Piece) -> bool,
    ) {
        let (pointers, _) = bytes.as_chunks::<4>();
        let mut run: Option<Data> = None;
        for (index, pointer) in (0..).zip(pointers) {
            let start = u64::from(u32::from_le_bytes(*pointer));
            match &mut run {
                Some(run) if start != 0 && run.start + run.count == start => run.count += 1,
                _ => {
                    if let Some(run) = run.take() {
                        self.data(run, place, visit);
                    }
                    let here = Data { first: first + index, start, count: 1, written: true };
                    run = (start != 0).then_some(here);
                }
            }
        }
        if let Some(run) = run {
            self.data(run, place, visit);
        }
    }
}
