//! Reads and checks the map of a fork: a list of extents, or a B+tree.

use std::collections::HashSet;

use zerocopy::FromBytes;
use zerocopy::big_endian::U64;

use super::super::disk::btree::{
    HEADER, HEADER_V5, MAP, MAP_V5, NONE, RawExtent, RawHeader, RawRoot,
};
use super::super::disk::inode::{flags, format};
use super::super::header::Header;
use super::found::{EXTENT, Found};
use crate::error::Place;
use crate::fs::FileType;
use crate::fs::check::{Findings, Kind};
use crate::fs::xfs::Xfs;
use crate::sorting::Sorting;
use crate::units::FsBlock;

/// The maximum number of levels of a map.
const MAX_LEVELS: u16 = 12;

/// An extent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// The extent's first block in the fork.
    pub(super) first: u64,
    /// The first block on the volume. For a realtime file, this is the block number from the on-disk extent.
    pub(super) start: FsBlock,
    pub(super) len: u32,
    pub(super) unwritten: bool,
}

/// The part of a map that could be read.
#[derive(Default)]
pub(super) struct Map {
    pub(super) pieces: Vec<Piece>,
    /// The blocks of the map's B+tree.
    pub(super) tree: Vec<FsBlock>,
    /// Whether the extents are on the realtime device.
    pub(super) elsewhere: bool,
    pub(super) whole: bool,
}

impl Map {
    pub(super) fn blocks(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.len)).sum()
    }

    /// Converts a block of the fork to a block of the volume; `None` for a hole.
    pub(super) fn lookup(&self, block: u64) -> Option<FsBlock> {
        let at = self.pieces.partition_point(|piece| piece.first <= block).checked_sub(1)?;
        let piece = &self.pieces[at];
        let distance = block - piece.first;
        (distance < piece.len.into()).then(|| FsBlock(piece.start.0 + distance))
    }

    /// The blocks of a structure that uses several blocks; `None` if any of the blocks is a hole.
    pub(super) fn run(&self, first: u64, count: u64) -> Option<Vec<FsBlock>> {
        (first..first.checked_add(count)?).map(|block| self.lookup(block)).collect()
    }
}

/// One of the forks of an inode.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Data,
    Attributes,
}

/// A walk in progress.
struct Walk<'w> {
    findings: &'w mut Findings,
    found: &'w Found,
    map: Map,
    seen: HashSet<u64>,
    last: Vec<Option<(u64, u64)>>,
    /// The lowest block of the fork at which the next extent may begin.
    next: u64,
    limit: u64,
    /// Whether the extents are out of order and must be sorted.
    unsorted: bool,
}

impl Xfs {
    /// Reads and checks the map of a fork.
    pub(super) fn check_map(&self, findings: &mut Findings, found: &Found, which: Which) -> Map {
        let (format, bytes, count) = match which {
            Which::Data => (found.raw.di_format, found.data(), found.extents().0),
            Which::Attributes => {
                (found.raw.di_aformat, found.attributes().unwrap_or_default(), found.extents().1)
            }
        };
        // `limit` depends on the fork: a file position in the data fork has 63 bits, and a block number in the attribute fork has 32 bits.
        let limit = match which {
            Which::Data => self.superblock.max_file_block(),
            Which::Attributes => 1 << 32,
        };
        let elsewhere = which == Which::Data
            && found.raw.di_flags.get() & flags::REALTIME != 0
            && found.file_type() == Some(FileType::Regular)
            && !found.is_metadata()
            && self.superblock.realtime_blocks > 0;
        let map = Map { whole: true, elsewhere, ..Map::default() };
        let (seen, last) = (HashSet::new(), Vec::new());
        let mut walk = Walk { findings, found, map, seen, last, next: 0, limit, unsorted: false };
        match format {
            format::EXTENTS => {
                let len = usize::try_from(count).ok().and_then(|count| count.checked_mul(EXTENT));
                match len.and_then(|len| bytes.get(..len)) {
                    Some(bytes) => self.map_extents(&mut walk, bytes, found.place("extent")),
                    None => walk.map.whole = false,
                }
            }
            format::BTREE => self.map_root(&mut walk, bytes),
            _ => {}
        }
        let field = match which {
            Which::Data => "di_nextents",
            Which::Attributes => "di_anextents",
        };
        if format == format::BTREE && walk.map.whole {
            walk.findings.expect(found.place(field), count, walk.map.pieces.len() as u64);
        }
        let mut map = walk.map;
        if walk.unsorted {
            map.pieces.order_by_key(|piece| piece.first);
        }
        map
    }

    fn map_root(&self, walk: &mut Walk<'_>, bytes: &[u8]) {
        let place = walk.found.place("bb_level");
        let Ok((root, rest)) = RawRoot::ref_from_prefix(bytes) else {
            walk.map.whole = false;
            return walk.findings.wrong(place, "the root of the extent tree is truncated");
        };
        let (level, count) = (root.bb_level.get(), usize::from(root.bb_numrecs.get()));
        if level == 0 || level > MAX_LEVELS {
            walk.map.whole = false;
            let what = format!("the root of the extent tree has the invalid level {level}");
            return walk.findings.add(place, Kind::Damaged { what });
        }
        walk.last = vec![None; level.into()];
        self.map_children(walk, rest, (level, count, rest.len() / EXTENT), place);
        for (_, right) in walk.last.clone().into_iter().flatten() {
            if right != NONE {
                let place = walk.found.part("node of extents").field("bb_rightsib");
                walk.findings.wrong(place, "the last block of a level has a right sibling");
            }
        }
    }

    /// Checks the children of a node. Returns the first block of the fork that these children map.
    fn map_children(
        &self,
        walk: &mut Walk<'_>,
        bytes: &[u8],
        (level, count, room): (u16, usize, usize),
        place: Place,
    ) -> Option<u64> {
        if count == 0 || count > room {
            walk.map.whole = false;
            let what = format!("the block has {count} records, but must have from 1 to {room}");
            walk.findings.add(place.field("bb_numrecs"), Kind::Damaged { what });
            return None;
        }
        let numbers = |from: usize| <[U64]>::ref_from_prefix_with_elems(&bytes[from..], count);
        let (Ok((keys, _)), Ok((pointers, _))) = (numbers(0), numbers(room * 8)) else {
            walk.map.whole = false;
            return None;
        };
        let mut first = None;
        for (key, pointer) in keys.iter().zip(pointers) {
            let low = self.map_block_below(walk, pointer.get(), level - 1);
            if let Some(low) = low {
                walk.findings.expect(place.field("bb_key"), key.get(), low);
            }
            first = first.or(low);
        }
        first
    }

    fn map_block_below(&self, walk: &mut Walk<'_>, number: u64, level: u16) -> Option<u64> {
        let place = walk.found.part("node of extents");
        let block = match self.superblock.geometry.fs_block(number, 1, place.field("bb_ptr")) {
            Ok(block) => block,
            Err(error) => {
                walk.map.whole = false;
                walk.findings.error(place, &error);
                return None;
            }
        };
        let place = place.block(block);
        if !walk.seen.insert(number) {
            walk.map.whole = false;
            walk.findings.add(place, Kind::ClaimedTwice { block: block.0, count: 1 });
            return None;
        }
        let content = match self.metadata.block(block) {
            Ok(content) => content,
            Err(error) => {
                walk.map.whole = false;
                walk.findings.error(place, &error);
                return None;
            }
        };
        let is_v5 = self.superblock.is_v5();
        let Ok((raw, _)) = RawHeader::ref_from_prefix(&content) else { return None };
        if u32::from_be_bytes(raw.bb_magic) != if is_v5 { MAP_V5 } else { MAP } {
            walk.map.whole = false;
            let what = "the magic number does not match an extent tree".into();
            walk.findings.add(place.field("bb_magic"), Kind::Damaged { what });
            return None;
        }
        walk.map.tree.push(block);
        let owner = (walk.found.number, place);
        self.check_seal(walk.findings, &content, Header::MAP, &[block], owner);
        if !walk.findings.expect(place.field("bb_level"), raw.bb_level.get(), level) {
            walk.map.whole = false;
            return None;
        }
        let siblings = (raw.bb_leftsib.get(), raw.bb_rightsib.get());
        let before = walk.last[usize::from(level)].replace((number, siblings.1));
        let expected = before.map_or(NONE, |(before, _)| before);
        walk.findings.expect(place.field("bb_leftsib"), siblings.0, expected);
        if let Some((_, stored)) = before {
            walk.findings.expect(place.field("bb_rightsib"), stored, number);
        }
        let header = if is_v5 { HEADER_V5 } else { HEADER };
        let (room, count) = ((content.len() - header) / EXTENT, usize::from(raw.bb_numrecs.get()));
        if count > room || count == 0 {
            walk.map.whole = false;
            let what = format!("the block has {count} records, but must have from 1 to {room}");
            walk.findings.add(place.field("bb_numrecs"), Kind::Damaged { what });
            return None;
        }
        if level > 0 {
            return self.map_children(walk, &content[header..], (level, count, room), place);
        }
        let from = walk.map.pieces.len();
        let bytes = &content[header..header + count * EXTENT];
        self.map_extents(walk, bytes, place);
        let first = RawExtent::ref_from_prefix(bytes).ok().map(|(raw, _)| raw.file_block());
        first.filter(|_| walk.map.pieces.len() > from)
    }

    fn map_extents(&self, walk: &mut Walk<'_>, bytes: &[u8], place: Place) {
        for raw in <[RawExtent]>::ref_from_bytes(bytes).unwrap_or_default() {
            let (first, len) = (raw.file_block(), raw.count());
            let end = first + u64::from(len);
            if len == 0 || end > walk.limit {
                walk.map.whole = false;
                let what = format!(
                    "the extent of {len} blocks that starts at block {first} of the file is not valid"
                );
                walk.findings.add(place, Kind::Damaged { what });
                continue;
            }
            if first < walk.next {
                let what = format!("block {first} of the file is out of order, or mapped twice");
                walk.findings.add(place, Kind::Damaged { what });
                walk.unsorted = true;
            }
            walk.next = walk.next.max(end);
            let number = raw.fs_block();
            let start = if walk.map.elsewhere {
                self.realtime_number(number, len.into())
            } else {
                self.superblock.geometry.fs_block(number, len.into(), place).ok()
            };
            match start {
                Some(start) => {
                    let unwritten = raw.is_unwritten();
                    walk.map.pieces.push(Piece { first, start, len, unwritten });
                }
                None => {
                    walk.map.whole = false;
                    let count = len.into();
                    walk.findings.add(place, Kind::Outside { block: number, count });
                }
            }
        }
    }
}
