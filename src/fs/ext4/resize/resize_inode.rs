//! The resize inode, which owns the reserved descriptor blocks.

use zerocopy::FromBytes;

use super::Volume;
use super::edits::{Edits, Rank};
use super::shape::Shape;
use crate::error::{Place, Result};
use crate::fs::ext4::Compat;
use crate::fs::ext4::disk::inode::RawInode;
use crate::fs::ext4::disk::reserved;
use crate::fs::ext4::inode::seal_inode;
use crate::units::{FsBlock, InodeNo};

/// The number of the resize inode.
pub(super) const RESIZE: InodeNo = InodeNo(reserved::RESIZE as u64);
const PLACE: Place = Place::new("inode");
/// The byte range of the double-indirect pointer in `i_block`.
const DOUBLE: std::ops::Range<usize> = 52..56;

impl Volume {
    /// The double-indirect block of the resize inode, if it has one.
    pub(super) fn double_of_resize_inode(&self) -> Result<Option<u64>> {
        if !self.found.superblock.compat.contains(Compat::RESIZE_INODE) {
            return Ok(None);
        }
        let inode = self.found.inode_or_orphan(RESIZE)?;
        let number =
            inode.i_block[DOUBLE].first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        Ok((number != 0).then_some(u64::from(number)))
    }

    /// Changes the resize inode, so that it owns the reserved descriptor blocks of the new volume. `double` is the new position of the
    /// inode's double-indirect block.
    pub(super) fn edit_resize_inode(
        &self,
        shape: &Shape,
        double: u64,
        edits: &mut Edits<'_>,
    ) -> Result<()> {
        let (sb, fs) = (&shape.sb, &self.found);
        let layout = shape.layout();
        let (map, count) = layout.resize_map(double)?;
        for (block, content) in map {
            let block = FsBlock(block);
            if *fs.blocks.read_device(block)? != *content {
                edits.put(block, Rank::Reserved, content);
            }
        }
        let place = fs.inode_place(RESIZE)?;
        let size = usize::from(sb.inode_size);
        edits.edit(fs, place.block, Rank::Reserved, |bytes| {
            let bytes = &mut bytes[place.at..place.at + size];
            let Ok((raw, _)) = RawInode::mut_from_prefix(bytes) else {
                return Err(PLACE.inode(RESIZE).corrupt("the resize inode is truncated"));
            };
            let sectors = (count * u64::from(sb.cluster_blocks)) << (sb.block_size.shift() - 9);
            raw.i_blocks_lo.set(sectors as u32);
            raw.i_block[DOUBLE].copy_from_slice(&(double as u32).to_le_bytes());
            seal_inode(sb, RESIZE, bytes);
            Ok(())
        })?
    }
}
