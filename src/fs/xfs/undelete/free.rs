//! The free blocks of a volume.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use crate::error::Result;
use crate::fs::xfs::Xfs;
use crate::fs::xfs::disk::tree::RawFreeExtent;
use crate::fs::xfs::group;
use crate::fs::xfs::group_tree::GroupTree;
use crate::units::FsBlock;

/// `bb_magic` of the free-space tree, without and with checksums.
const MAGIC: [u8; 4] = *b"ABTB";
const MAGIC_V5: [u8; 4] = *b"AB3B";

/// The free blocks of the groups that were read. If [`take`](Self::take) has counted a block for one file, the block does not count as free
/// for other files.
pub(super) struct FreeBlocks<'a> {
    fs: &'a Xfs,
    /// The free extents of each group. The key is the first block of an extent, and the value is the block after the extent. Both are
    /// relative to the start of the group.
    groups: HashMap<u32, BTreeMap<u64, u64>>,
}

impl<'a> FreeBlocks<'a> {
    pub(super) fn new(fs: &'a Xfs) -> Self {
        Self { fs, groups: HashMap::new() }
    }

    /// Counts the free blocks in a range of one group. The counted blocks no longer count as free in later calls.
    pub(super) fn take(&mut self, start: FsBlock, len: u32) -> Result<u64> {
        let (number, first) = self.fs.superblock.geometry.in_group(start);
        let free = match self.groups.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(free_extents(self.fs, number)?),
        };
        let (start, end) = (u64::from(first), u64::from(first) + u64::from(len));
        let before = free.range(..start).next_back().filter(|(_, stop)| **stop > start);
        let from = before.map_or(start, |(first, _)| *first);
        let found: Vec<_> = free.range(from..end).map(|(first, stop)| (*first, *stop)).collect();
        let mut count = 0;
        for (first, stop) in found {
            free.remove(&first);
            if first < start {
                free.insert(first, start);
            }
            if stop > end {
                free.insert(end, stop);
            }
            count += stop.min(end) - first.max(start);
        }
        Ok(count)
    }
}

/// Reads the free extents of a group from the tree that is sorted by position.
fn free_extents(fs: &Xfs, number: u32) -> Result<BTreeMap<u64, u64>> {
    let header = group::free_space(&fs.metadata, &fs.superblock, number)?;
    let tree = GroupTree {
        group: number,
        root: header.agf_roots[0].get(),
        levels: header.agf_levels[0].get(),
        magic: if fs.superblock.is_v5() { MAGIC_V5 } else { MAGIC },
        name: "tree of free space",
    };
    let (mut free, mut next) = (BTreeMap::new(), 0);
    tree.leaves(fs, |records: &[RawFreeExtent], place| {
        for record in records {
            let start = u64::from(record.ar_startblock.get());
            let end = start + u64::from(record.ar_blockcount.get());
            if start < next || end <= start || end > fs.superblock.geometry.group_len(number) {
                let what = format!("the free extent of blocks {start} to {end} is not valid");
                return Err(place.field("ar_startblock").corrupt(what));
            }
            next = end;
            free.insert(start, end);
        }
        Ok(())
    })?;
    Ok(free)
}
