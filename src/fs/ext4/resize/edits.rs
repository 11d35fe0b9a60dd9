//! The changed blocks of a resize, in memory.

use std::collections::BTreeMap;

use super::moves::Moves;
use crate::error::Result;
use crate::fs::block::Block;
use crate::fs::ext4::Ext4;
use crate::sys::Buffer;
use crate::units::FsBlock;

/// The order in which blocks are written if no transaction is possible. If the resize is interrupted between two ranks, e2fsck still finds
/// every file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// A block that the old volume does not use.
    Fresh,
    /// Bitmaps and group descriptors. They are written before the inodes. Blocks are thus marked as used before an inode refers to them.
    Bitmaps,
    /// Inodes. They are written after the content of their blocks was copied to the new positions.
    Inodes,
    /// Directory entries. They are written after the inodes to which they refer.
    Entries,
    /// The old copies of inodes that get new numbers. These copies are deleted after the directory entries were written. No entry then
    /// refers to an old number.
    Gone,
    /// The reserved descriptor blocks, and the resize inode, which owns these blocks. They are valid only for the new size.
    Reserved,
}

/// The new contents of blocks. The key is the position of a block in the new volume.
#[derive(Default)]
pub(super) struct Edits<'a> {
    blocks: BTreeMap<FsBlock, (Rank, Block)>,
    /// The moved blocks. Their content is read from their old positions.
    pub(super) moves: Option<&'a Moves>,
}

impl<'a> Edits<'a> {
    pub(super) fn with(moves: &'a Moves) -> Self {
        Self { blocks: BTreeMap::new(), moves: Some(moves) }
    }

    /// Changes a block. The first change of a block reads the block's content from the device. The content of a moved block is read from
    /// its old position.
    pub(super) fn edit<R>(
        &mut self,
        fs: &Ext4,
        block: FsBlock,
        rank: Rank,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let entry = match self.blocks.entry(block) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let source = self.moves.and_then(|moves| moves.source(block.0));
                let rank = if source.is_some() { Rank::Fresh } else { rank };
                entry.insert((rank, fs.blocks.read_device(source.map_or(block, FsBlock))?))
            }
        };
        entry.0 = entry.0.min(rank);
        Ok(change(entry.1.for_change()?))
    }

    /// Sets the content of a block.
    pub(super) fn put(&mut self, block: FsBlock, rank: Rank, content: Buffer) {
        self.blocks.insert(block, (rank, Block::new(content)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The new contents of the blocks whose rank (their place in the order of writes) is `wanted`, sorted by block number.
    pub(super) fn of(&self, wanted: impl Fn(Rank) -> bool) -> Vec<(FsBlock, Block)> {
        let wanted = self.blocks.iter().filter(|(_, (rank, _))| wanted(*rank));
        wanted.map(|(block, (_, content))| (*block, content.clone())).collect()
    }
}
