//! Checks the hash index of a directory: the hash and the address of each name.

use zerocopy::FromBytes;

use super::super::disk::dir::{
    LEAF, LEAF_HEADER, LEAF_HEADER_V5, LEAF_ONE, LEAF_ONE_V5, LEAF_V5, RawHashEntry, STALE,
};
use super::super::header::array;
use super::Checker;
use super::directories::Dir;
use super::hash_tree::{Index, IndexBlock};
use crate::error::Place;
use crate::fs::check::Kind;
use crate::sorting::Sorting;

/// The leaves read so far.
#[derive(Default)]
struct Leaves {
    /// Hash and address of each entry.
    entries: Vec<(u32, u32)>,
    /// The last hash of the leaves read so far.
    previous: u32,
    /// The free space of each block of entries, if the index is a single leaf.
    single: Option<Vec<u16>>,
}

impl Checker<'_> {
    /// Checks an index in separate blocks: either a single leaf, or leaves below nodes together with a free-space index.
    pub(super) fn check_index(&mut self, dir: &mut Dir<'_>, root: u64, free: u64) {
        let count = 1 << self.fs.superblock.geometry.dir_block_log;
        let structure = "directory index";
        let (found, map) = (dir.found, dir.map);
        let index = Index { found, map, structure, root, count };
        let mut leaves = Leaves::default();
        let whole =
            self.walk_index(&index, &mut |checker, block| checker.check_leaf(block, &mut leaves));
        let Leaves { entries, single, .. } = leaves;
        let place = found.part(structure);
        if whole {
            self.compare_index(dir, entries, place);
        }
        let has_free = map.pieces.iter().any(|piece| piece.first + u64::from(piece.len) > free);
        match single {
            Some(bests) => {
                if dir.whole && bests != dir.bests {
                    self.wrong(
                        place.field("bests"),
                        "the recorded free space differs from the free space in the blocks",
                    );
                }
                if has_free {
                    self.wrong(
                        place,
                        "the directory has a single leaf, but also blocks of free space",
                    );
                }
            }
            None if whole => self.check_rooms(dir, free),
            None => {}
        }
    }

    /// Checks a leaf and returns its last hash. A single leaf also records the free space of each block of entries.
    fn check_leaf(&mut self, block: &IndexBlock, leaves: &mut Leaves) -> Option<u32> {
        let (bytes, place) = (&block.content[..], block.place);
        let is_v5 = self.fs.superblock.is_v5();
        let is_single = block.magic == if is_v5 { LEAF_ONE_V5 } else { LEAF_ONE };
        if !is_single && block.magic != if is_v5 { LEAF_V5 } else { LEAF } {
            let what = format!("the magic number {:#06x} does not match a leaf", block.magic);
            self.findings.add(place.field("magic"), Kind::Damaged { what });
            return None;
        }
        let (header, at) = if is_v5 { (LEAF_HEADER_V5, 56) } else { (LEAF_HEADER, 12) };
        let field = |at: usize| u16::from_be_bytes(array(bytes, at));
        let (count, stale) = (usize::from(field(at)), field(at + 2));
        let mut end = bytes.len();
        if is_single {
            let rooms = u32::from_be_bytes(array(bytes, end - 4)) as usize;
            let Some(start) = rooms.checked_mul(2).and_then(|len| (end - 4).checked_sub(len))
            else {
                let what = format!("the {rooms} entries of free space exceed the block");
                self.findings.add(place.field("bestcount"), Kind::Damaged { what });
                return None;
            };
            let of = |index: usize| field(start + index * 2);
            leaves.single = Some((0..rooms).map(of).collect());
            end = start;
        }
        let area = bytes.get(header..end).unwrap_or_default();
        let Ok((raws, _)) = <[RawHashEntry]>::ref_from_prefix_with_elems(area, count) else {
            let what = format!("{count} entries do not fit into {} bytes", area.len());
            self.findings.add(place.field("count"), Kind::Damaged { what });
            return None;
        };
        let found = self.take_index(raws, &mut leaves.entries, &mut leaves.previous, place);
        self.findings.expect(place.field("stale"), stale, found as u64);
        raws.last().map(|raw| raw.hashval.get())
    }

    /// Adds the used entries of an index to `entries`, and returns the number of unused entries.
    pub(super) fn take_index(
        &mut self,
        raws: &[RawHashEntry],
        entries: &mut Vec<(u32, u32)>,
        previous: &mut u32,
        place: Place,
    ) -> usize {
        let mut stale = 0;
        for raw in raws {
            let hash = raw.hashval.get();
            if hash < *previous {
                self.wrong(place.field("hashval"), format!("the hash {hash:#x} is out of order"));
            }
            *previous = hash;
            match raw.address.get() {
                STALE => stale += 1,
                address => entries.push((hash, address)),
            }
        }
        stale
    }

    /// Compares the entries of the index with the names that were found in the directory.
    pub(super) fn compare_index(
        &mut self,
        dir: &mut Dir<'_>,
        mut entries: Vec<(u32, u32)>,
        place: Place,
    ) {
        if !dir.whole {
            return;
        }
        let mut expected = std::mem::take(&mut dir.hashes);
        entries.order();
        expected.order();
        if entries.windows(2).any(|pair| pair[0] == pair[1]) {
            self.wrong(place.field("address"), "an entry is in the index twice");
        }
        let told = |(hash, address): &(u32, u32)| {
            format!("hash {hash:#010x} of the entry at byte {}", u64::from(*address) * 8)
        };
        let add = |checker: &mut Self, site, what| checker.findings.add(site, what);
        self.compare_records(place, (&entries, &expected), told, add);
    }
}
