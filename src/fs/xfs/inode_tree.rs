//! The inode B+tree of each group, which records the inodes in use.

use super::Xfs;
use super::disk::group::RawInodes;
use super::disk::tree::RawChunk;
use super::features::Incompat;
use super::group;
use super::group_tree::GroupTree;
use crate::error::{Error, Result};
use crate::sync::Cache;
use crate::units::InodeNo;

/// `bb_magic` of the tree's blocks, without and with checksums.
const MAGIC: [u8; 4] = *b"IABT";
const MAGIC_V5: [u8; 4] = *b"IAB3";
/// Inodes in a chunk.
const CHUNK: u32 = 64;
/// Inodes for each bit of `ir_holemask`.
const INODES_PER_HOLE: u32 = 4;
/// The number of groups whose roots are cached.
const ROOTS: usize = 1024;

/// The trees by group.
pub(super) type Roots = Cache<u32, GroupTree>;

pub(super) fn no_roots() -> Roots {
    Cache::new(ROOTS)
}

impl Xfs {
    /// The inode tree of a group. The inode header of the group contains the number of the tree's root block.
    pub(super) fn inode_tree(&self, group: u32, header: &RawInodes) -> GroupTree {
        let (root, levels) = (header.agi_root.get(), header.agi_level.get());
        let magic = if self.superblock.is_v5() { MAGIC_V5 } else { MAGIC };
        GroupTree { group, root, levels, magic, name: "tree of inodes" }
    }

    /// The inode chunks of a group, in the order of their numbers. If the inode tree is damaged, returns the chunks before the fault, and the
    /// fault.
    pub(super) fn chunks(&self, group: u32) -> (Vec<RawChunk>, Option<Error>) {
        let (mut chunks, mut next) = (Vec::new(), 0);
        let read = group::inodes(&self.metadata, &self.superblock, group).and_then(|header| {
            self.inode_tree(group, &header).leaves(self, |records: &[RawChunk], place| {
                for record in records {
                    let start = record.ir_startino.get();
                    if start < next {
                        let field = place.field("ir_startino");
                        return Err(field.corrupt("the chunks are out of order"));
                    }
                    next = start.saturating_add(CHUNK);
                    chunks.push(*record);
                }
                Ok(())
            })
        });
        (chunks, read.err())
    }

    /// The numbers of the inodes that a chunk marks as in use.
    pub(super) fn used_in(&self, group: u32, chunk: &RawChunk) -> impl Iterator<Item = InodeNo> {
        let (start, free) = (u64::from(chunk.ir_startino.get()), chunk.ir_free.get());
        let is_sparse = self.superblock.incompat.contains(Incompat::SPARSE_INODES);
        let holes = if is_sparse { chunk.ir_holemask.get() } else { 0 };
        let geometry = self.superblock.geometry;
        let bits = geometry.group_blocks_log + geometry.inodes_per_block_log;
        let is_used = move |index: &u32| {
            free >> index & 1 == 0 && holes >> (index / INODES_PER_HOLE) & 1 == 0
        };
        let used = (0..CHUNK).filter(is_used);
        used.map(move |index| InodeNo(u64::from(group) << bits | (start + u64::from(index))))
    }

    /// Whether the inode tree of the group marks an inode as in use. The bytes at the inode's position do not suffice, because file content
    /// can look like an inode.
    pub(super) fn is_in_use(&self, number: InodeNo) -> Result<bool> {
        let Some(roots) = &self.inode_roots else { return Ok(true) };
        let geometry = &self.superblock.geometry;
        let bits = u32::from(geometry.group_blocks_log) + u32::from(geometry.inodes_per_block_log);
        // The caller has refused inode numbers outside all groups. So the number of the group fits in 32 bits.
        let group = (number.0 >> bits) as u32;
        let within = (number.0 & ((1 << bits) - 1)) as u32;
        let tree = roots.get_or_insert_with(&group, || {
            let raw = group::inodes(&self.metadata, &self.superblock, group)?;
            Ok::<_, Error>(self.inode_tree(group, &raw))
        })?;
        let found = tree.find(self, within, |chunk: &RawChunk| chunk.ir_startino.get())?;
        let Some(raw) = found else { return Ok(false) };
        Ok(self.used_in(group, &raw).any(|used| used == number))
    }
}
