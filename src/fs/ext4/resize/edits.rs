//! The changed blocks, in memory.

use std::collections::BTreeMap;

use super::moves::Moves;
use crate::error::Result;
use crate::fs::block::Block;
use crate::fs::ext4::Ext4;
use crate::sys::Buffer;
use crate::units::FsBlock;

/// The order in which blocks are written without a transaction. After the blocks of each rank are written, a check still finds every file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// The old volume does not use the block.
    Fresh,
    /// Bitmaps and descriptors. They mark blocks as used before anything refers to the blocks.
    Bitmaps,
    /// Inodes. The copies of their blocks exist.
    Inodes,
    /// Directory entries. The inodes that they name exist.
    Entries,
    /// Old inodes that no directory entry names.
    Gone,
    /// The reserved descriptor blocks, and the inode that owns them. They are valid only for the new size.
    Reserved,
}

/// The new contents of blocks, by their position in the new volume.
#[derive(Default)]
pub(super) struct Edits<'a> {
    blocks: BTreeMap<FsBlock, (Rank, Block)>,
    /// The moved blocks. Their initial content is read from their old position.
    pub(super) moves: Option<&'a Moves>,
}

impl<'a> Edits<'a> {
    pub(super) fn with(moves: &'a Moves) -> Self {
        Self { blocks: BTreeMap::new(), moves: Some(moves) }
    }

    /// Changes a block. Its content is first read from the device; for a moved block, from the old position.
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

    /// The new contents of blocks of these ranks, sorted by block number.
    pub(super) fn of(&self, wanted: impl Fn(Rank) -> bool) -> Vec<(FsBlock, Block)> {
        let wanted = self.blocks.iter().filter(|(_, (rank, _))| wanted(*rank));
        wanted.map(|(block, (_, content))| (*block, content.clone())).collect()
    }
}
