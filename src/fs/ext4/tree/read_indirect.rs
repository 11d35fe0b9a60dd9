//! Reads the indirect maps of ext2 and ext3 files: 12 direct pointers, then trees of one, two and three levels.

use std::ops::Range;

use crate::error::{Place, Result};
use crate::fs::ext4::inode::Inode;
use crate::iomap::{Extent, ExtentState};
use crate::units::{FileBlock, FsBlock};

const DIRECT: u64 = 12;
const PLACE: Place = Place::new("indirect block");

impl Inode {
    /// Appends the runs of blocks in the pointer block for `block` to `into`, in file order. Returns the file block that follows the range
    /// of this pointer block.
    pub(in crate::fs::ext4) fn indirect_leaf(
        &self,
        block: FileBlock,
        into: &mut Vec<Extent>,
    ) -> Result<FileBlock> {
        if block.0 < DIRECT {
            self.pointers(
                FileBlock(0),
                &self.i_block[..DIRECT as usize * 4],
                PLACE.inode(self.number),
                into,
            )?;
            return Ok(FileBlock(DIRECT));
        }
        let fan_out = self.fs.superblock.block_size.bytes() as u64 / 4;
        let mut first = DIRECT;
        // The number of file blocks that the tree of this level maps: fan_out, fan_out^2 or fan_out^3.
        let mut span = fan_out;
        for level in 0..3_u32 {
            if block.0 - first < span {
                let root = pointer(&self.i_block, DIRECT + u64::from(level));
                return self.subtree(root, level, first..first + span, block, into);
            }
            first += span;
            span *= fan_out;
        }
        // No block can be mapped past all three trees.
        Ok(FileBlock(u64::MAX))
    }

    /// Descends from the pointer `root` to `block`. `blocks` are the file blocks that `root` maps. `level` is the number of levels of
    /// pointer blocks below the block to which `root` points.
    fn subtree(
        &self,
        root: u32,
        level: u32,
        blocks: Range<u64>,
        block: FileBlock,
        into: &mut Vec<Extent>,
    ) -> Result<FileBlock> {
        let fan_out = self.fs.superblock.block_size.bytes() as u64 / 4;
        let (mut node, mut first, mut span) = (root, blocks.start, blocks.end - blocks.start);
        let mut place = PLACE.inode(self.number);
        for _ in 0..level {
            if node == 0 {
                return Ok(FileBlock(first + span));
            }
            let content = self.fs.blocks.read(FsBlock(u64::from(node)), place)?;
            place = PLACE.inode(self.number).block(FsBlock(u64::from(node)));
            span /= fan_out;
            let index = (block.0 - first) / span;
            node = pointer(&content, index);
            first += index * span;
        }
        if node != 0 {
            let content = self.fs.blocks.read(FsBlock(u64::from(node)), place)?;
            self.pointers(
                FileBlock(first),
                &content,
                PLACE.inode(self.number).block(FsBlock(u64::from(node))),
                into,
            )?;
        }
        Ok(FileBlock(first + span))
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
