//! The sizes of a volume, and the numbering of its blocks and inodes by allocation group.

use std::ops::Range;

use crate::error::{Error, ErrorKind, Place, Result};
use crate::units::{BlockSize, DevOffset, FsBlock, InodeNo};

/// log2 of the size of a basic sector in bytes. Metadata record their own position in basic sectors.
pub(super) const BASIC_SHIFT: u8 = 9;
/// Inodes in a chunk.
const CHUNK: u32 = 64;

/// The checked sizes from the superblock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    /// The block size.
    pub(crate) block: BlockSize,
    /// Bytes of a sector.
    pub(crate) sector: usize,
    /// Bytes of an inode.
    pub(crate) inode: usize,
    /// log2 of the number of inodes in a block.
    pub(crate) inodes_per_block_log: u8,
    /// The number of blocks.
    pub(crate) blocks: u64,
    /// The number of allocation groups.
    pub(crate) groups: u32,
    /// The number of blocks of each group except the last.
    pub(crate) group_blocks: u32,
    /// log2 of `group_blocks`, rounded up: the number of bits of a block number within its group.
    pub(crate) group_blocks_log: u8,
    /// log2 of the number of file-system blocks in a directory block.
    pub(crate) dir_block_log: u8,
}

/// The location of an inode.
#[derive(Clone, Copy)]
pub(crate) struct InodePlace {
    pub(crate) block: FsBlock,
    /// The index of the inode in the block.
    pub(crate) index: usize,
}

impl Geometry {
    /// Bytes of a directory block.
    pub(crate) fn dir_block(&self) -> usize {
        self.block.bytes() << self.dir_block_log
    }

    /// The number of blocks of a group.
    pub(crate) fn group_len(&self, group: u32) -> u64 {
        let start = u64::from(group) * u64::from(self.group_blocks);
        self.blocks.saturating_sub(start).min(self.group_blocks.into())
    }

    /// Decodes a block number that contains the group in its upper bits. The first `count` blocks from this block on must be in that group.
    pub(crate) fn fs_block(&self, number: u64, count: u64, place: Place) -> Result<FsBlock> {
        let group = u32::try_from(number >> self.group_blocks_log).ok();
        let within = number & ((1 << self.group_blocks_log) - 1);
        let end = within.checked_add(count);
        let found = group.filter(|group| {
            *group < self.groups && end.is_some_and(|end| end <= self.group_len(*group))
        });
        let Some(group) = found else {
            let shown = number >> self.group_blocks_log;
            return Err(place.corrupt(format!(
                "{count} blocks from block {within} of group {shown} on are outside the volume"
            )));
        };
        Ok(FsBlock(u64::from(group) * u64::from(self.group_blocks) + within))
    }

    /// Decodes the number of an extent's first block. An extent cannot contain the group's first four sectors, which contain headers.
    pub(crate) fn extent(&self, number: u64, count: u64, place: Place) -> Result<FsBlock> {
        let within = number & ((1 << self.group_blocks_log) - 1);
        if within << self.block.shift() < 4 * self.sector as u64 {
            let what = format!(
                "block {within} of a group contains headers of the group, so no extent can begin there"
            );
            return Err(place.corrupt(what));
        }
        self.fs_block(number, count, place)
    }

    /// The location of an inode, computed from its number only.
    pub(crate) fn inode_place(&self, number: InodeNo) -> Result<InodePlace> {
        let log = self.inodes_per_block_log;
        let outside = || {
            // The number may come from a caller, so the error does not mean that the volume is damaged.
            let what = format!("inode {number} does not exist: the number is outside the volume");
            Error::new(ErrorKind::NotFound, what)
        };
        if number.0 == 0 || number.0 > u64::MAX >> 8 {
            return Err(outside());
        }
        let block = self.fs_block(number.0 >> log, 1, Place::new("inode"));
        let block = block.map_err(|_| outside())?;
        Ok(InodePlace { block, index: (number.0 & ((1 << log) - 1)) as usize })
    }

    /// Returns a run of blocks that contains `block`. The run has the length of an inode chunk. If chunks are not aligned, the run may
    /// contain parts of two chunks.
    pub(crate) fn inode_blocks(&self, block: FsBlock) -> Range<u64> {
        let count = (self.inode_run_bytes() >> self.block.shift()) as u64;
        let group = block.0 / u64::from(self.group_blocks);
        let start = group * u64::from(self.group_blocks);
        let end = start + self.group_len(group as u32);
        let first = start + (block.0 - start) / count * count;
        first..(first + count).min(end)
    }

    /// The range from [`inode_blocks`](Self::inode_blocks): its first block and the number of its blocks.
    pub(crate) fn inode_run(&self, block: FsBlock) -> (FsBlock, u64) {
        let Range { start, end } = self.inode_blocks(block);
        (FsBlock(start), end - start)
    }

    /// The length in bytes of the range from [`inode_blocks`](Self::inode_blocks): at least one block.
    pub(crate) fn inode_run_bytes(&self) -> usize {
        self.inodes_made() as usize * self.inode
    }

    /// The number of inodes that XFS creates at a time: a chunk of inodes. If a block contains more inodes than a chunk, XFS creates all
    /// inodes of a block.
    pub(crate) fn inodes_made(&self) -> u32 {
        CHUNK.max(1 << self.inodes_per_block_log)
    }

    /// The inode number for a location.
    pub(crate) fn inode_number(&self, block: FsBlock, index: usize) -> u64 {
        let group = block.0 / u64::from(self.group_blocks);
        let within = block.0 % u64::from(self.group_blocks);
        ((group << self.group_blocks_log | within) << self.inodes_per_block_log) | index as u64
    }

    /// The group of a block, and the number of the block in this group.
    pub(crate) fn in_group(&self, block: FsBlock) -> (u32, u32) {
        let per_group = u64::from(self.group_blocks);
        ((block.0 / per_group) as u32, (block.0 % per_group) as u32)
    }

    /// The first block of a group.
    pub(crate) fn group_block(&self, group: u32) -> FsBlock {
        FsBlock(u64::from(group) * u64::from(self.group_blocks))
    }

    /// The first byte of a group.
    pub(crate) fn group_start(&self, group: u32) -> DevOffset {
        self.block.offset_of(self.group_block(group))
    }

    /// A block's position in basic sectors, the unit in which metadata record their position.
    pub(crate) fn basic_sector(&self, block: FsBlock) -> u64 {
        block.0 << (self.block.shift() - BASIC_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        block: BlockSize::from_shift(12).unwrap(),
        sector: 512,
        inode: 512,
        inodes_per_block_log: 3,
        blocks: 250,
        groups: 3,
        group_blocks: 100,
        group_blocks_log: 7,
        dir_block_log: 0,
    };

    #[test]
    fn blocks_are_counted_in_groups() {
        let block = |number, count| GEOMETRY.fs_block(number, count, Place::new("extent")).ok();
        assert_eq!(block(99, 1), Some(FsBlock(99)));
        assert_eq!(block(128, 100), Some(FsBlock(100)));
        assert_eq!(block(256 + 49, 1), Some(FsBlock(249)));
        for (number, count) in
            [(100, 1), (99, 2), (256 + 50, 1), (384, 1), (u64::MAX, 1), (0, u64::MAX)]
        {
            assert_eq!(block(number, count), None, "{count} blocks from {number} on");
        }
    }

    #[test]
    fn an_inode_has_the_number_of_its_place() {
        for number in [1, 799, 128 << 3 | 5, (256 + 49) << 3 | 7] {
            let place = GEOMETRY.inode_place(InodeNo(number)).unwrap();
            assert_eq!(GEOMETRY.inode_number(place.block, place.index), number);
        }
        for number in [0, 800, (256 + 50) << 3, u64::MAX] {
            assert!(GEOMETRY.inode_place(InodeNo(number)).is_err(), "inode {number}");
        }
    }
}
