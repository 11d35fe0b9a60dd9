//! Reads the indirect maps of ext2 and ext3 files: 12 direct pointers, then trees of one, two and three levels.

use std::ops::Range;

use crate::error::{Place, Result};
use crate::fs::block::Block;
use crate::fs::ext4::inode::Inode;
use crate::iomap::{Extent, ExtentState};
use crate::units::{FileBlock, FsBlock};

const DIRECT: u64 = 12;
const PLACE: Place = Place::new("indirect block");

/// A range of file blocks, and the pointer block that maps it. `None` if the range is a hole.
type Below = (Range<u64>, Result<Option<(FsBlock, Block)>>);

impl Inode {
    /// Appends the runs of blocks in the pointer block for `block` to `into`, in file order. Returns the file block that follows the range
    /// of this pointer block.
    pub(in crate::fs::ext4) fn indirect_leaf(
        &self,
        block: FileBlock,
        into: &mut Vec<Extent>,
    ) -> Result<FileBlock> {
        let place = PLACE.inode(self.number);
        if block.0 < DIRECT {
            self.pointers(FileBlock(0), self.direct_pointers(), place, into)?;
            return Ok(FileBlock(DIRECT));
        }
        let (range, found) = self.pointer_block_below(block);
        if let Some((node, content)) = found? {
            self.pointers(FileBlock(range.start), &content, place.block(node), into)?;
        }
        Ok(FileBlock(range.end))
    }

    /// The pointers for `block`: those in the inode, or the content of a pointer block. `None` if the pointer block does not exist. Also
    /// returns the range of file blocks of these pointers, or, if there are none, the range of the missing or damaged tree.
    pub(super) fn pointer_block(&self, block: FileBlock) -> (Range<u64>, Result<Option<Vec<u8>>>) {
        if block.0 < DIRECT {
            return (0..DIRECT, Ok(Some(self.direct_pointers().to_vec())));
        }
        let (range, found) = self.pointer_block_below(block);
        (range, found.map(|found| found.map(|(_, content)| content.to_vec())))
    }

    fn direct_pointers(&self) -> &[u8] {
        &self.i_block[..DIRECT as usize * 4]
    }

    fn pointer_block_below(&self, block: FileBlock) -> Below {
        let fan_out = self.fs.superblock.block_size.bytes() as u64 / 4;
        let mut first = DIRECT;
        // The number of file blocks that the tree of this level maps: fan_out, fan_out^2 or fan_out^3.
        let mut span = fan_out;
        for level in 0..3_u32 {
            if block.0 - first < span {
                let root = pointer(&self.i_block, DIRECT + u64::from(level));
                return self.subtree(root, level, first..first + span, block);
            }
            first += span;
            span *= fan_out;
        }
        // No block can be mapped past all three trees.
        (first..u64::MAX, Ok(None))
    }

    /// Descends from the pointer `root` to the pointer block for `block`. `blocks` are the file blocks that `root` maps. `level` is the number
    /// of levels of pointer blocks below the block to which `root` points.
    fn subtree(&self, root: u32, level: u32, blocks: Range<u64>, block: FileBlock) -> Below {
        let fan_out = self.fs.superblock.block_size.bytes() as u64 / 4;
        let (mut node, mut first, mut span) = (root, blocks.start, blocks.end - blocks.start);
        let mut place = PLACE.inode(self.number);
        for depth in 0..=level {
            let range = first..first + span;
            let at = FsBlock(u64::from(node));
            if node == 0 {
                return (range, Ok(None));
            }
            let content = match self.fs.blocks.read(at, place) {
                Ok(content) if depth == level => return (range, Ok(Some((at, content)))),
                Ok(content) => content,
                Err(error) => return (range, Err(error)),
            };
            place = PLACE.inode(self.number).block(at);
            span /= fan_out;
            let index = (block.0 - first) / span;
            node = pointer(&content, index);
            first += index * span;
        }
        (first..first + span, Ok(None))
    }

    /// Converts a block of pointers to runs of blocks. The pointer 0 represents a hole.
    pub(in crate::fs::ext4) fn pointers(
        &self,
        first: FileBlock,
        bytes: &[u8],
        place: Place,
        into: &mut Vec<Extent>,
    ) -> Result<()> {
        let (words, _) = bytes.as_chunks::<4>();
        let mut run: Option<Extent> = None;
        for (index, word) in words.iter().enumerate() {
            let start = FsBlock(u64::from(u32::from_le_bytes(*word)));
            let block = FileBlock(first.0 + index as u64);
            if start.0 != 0 && !self.fs.blocks.contain(start, 1) {
                return Err(place.corrupt(format!(
                    "pointer {index} leads to block {start}, which is outside the volume"
                )));
            }
            match &mut run {
                Some(run) if start.0 != 0 && run.start.0 + u64::from(run.len) == start.0 => {
                    run.len += 1;
                }
                _ => {
                    into.extend(run.take());
                    run = (start.0 != 0).then_some(Extent {
                        first: block,
                        start,
                        len: 1,
                        state: ExtentState::Written,
                    });
                }
            }
        }
        into.extend(run);
        Ok(())
    }
}

fn pointer(bytes: &[u8], index: u64) -> u32 {
    let (words, _) = bytes.as_chunks::<4>();
    words.get(index as usize).map_or(0, |word| u32::from_le_bytes(*word))
}
