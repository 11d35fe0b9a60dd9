//! Inodes with a wrong checksum, which a salvage uses if their fields are plausible.

use super::disk::extent;
use super::inode::Inode;
use crate::error::{Error, Result};
use crate::fs::{FileType, InodeFlags};
use crate::units::FileBlock;

/// The maximum number of leaves of a map that are read. No sound map has more.
const MOST_LEAVES: usize = 1 << 22;

impl Inode {
    /// Accepts an inode with a wrong checksum, and reports it once.
    ///
    /// # Errors
    /// `why`, the wrong checksum, if the fields of the inode are not plausible.
    #[cold]
    pub(super) fn take_for_salvage(&self, why: Error) -> Result<()> {
        let left = &self.fs.left;
        if left.inode_fault(self.number()).is_some() {
            return Ok(());
        }
        if !(self.has_plausible_fields() && self.has_valid_map()) {
            return Err(why);
        }
        left.keep_inode_fault(self.number(), &why);
        Ok(())
    }

    fn has_plausible_fields(&self) -> bool {
        let sb = &self.fs.superblock;
        let (size, block) = (self.size(), sb.block_size.bytes() as u64);
        let size_fits = match self.file_type() {
            FileType::Regular => true,
            FileType::Directory => self.has_inline_data() || size > 0 && size % block == 0,
            FileType::Symlink => (1..=block).contains(&size),
            _ => size == 0,
        };
        let inline_fits = !self.has_inline_data() || size <= u64::from(sb.inode_size);
        let is_used = self.stat().links > 0 && !self.flags().contains(InodeFlags::EA_INODE);
        let attributes = self.xattr_block.is_none_or(|block| self.fs.blocks.contain(block, 1));
        size_fits && inline_fits && is_used && attributes
    }

    /// Whether the complete map is valid, and leads only to blocks of the volume.
    fn has_valid_map(&self) -> bool {
        let has_map = matches!(self.file_type(), FileType::Regular | FileType::Directory)
            || self.file_type() == FileType::Symlink && self.size() >= self.i_block.len() as u64;
        if !has_map || self.has_inline_data() {
            return true;
        }
        let is_tree = self.flags().contains(InodeFlags::EXTENTS);
        // The root of an extent tree must not be read as block pointers.
        if !is_tree && self.i_block.starts_with(&extent::MAGIC.to_le_bytes()) {
            return false;
        }
        let blocks = self.fs.superblock.block_size.blocks_for(self.size());
        let end = if is_tree { 1 << 32 } else { blocks };
        let (mut next, mut extents) = (FileBlock(0), Vec::new());
        for _ in 0..MOST_LEAVES {
            if next.0 >= end {
                return true;
            }
            extents.clear();
            match self.home_leaf(next, &mut extents) {
                Ok(after) if after > next => next = after,
                _ => return false,
            }
        }
        false
    }
}
