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
    /// The tree that the inode header of a group names.
    pub(super) fn inode_tree(&self, group: u32, header: &RawInodes) -> GroupTree {
        let (root, levels) = (header.agi_root.get(), header.agi_level.get());
        let magic = if self.superblock.is_v5() { MAGIC_V5 } else { MAGIC };
        GroupTree { group, root, levels, magic, name: "tree of inodes" }
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
        let index = within - raw.ir_startino.get();
        if index >= CHUNK {
            return Ok(false);
        }
        let is_sparse = self.superblock.incompat.contains(Incompat::SPARSE_INODES);
        let is_hole = is_sparse && raw.ir_holemask.get() >> (index / INODES_PER_HOLE) & 1 == 1;
        Ok(!is_hole && raw.ir_free.get() >> index & 1 == 0)
    }
}
