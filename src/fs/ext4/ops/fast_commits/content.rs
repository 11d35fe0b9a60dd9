//! Applies recorded changes of inodes and of their maps to the device.

use std::ops::Range;

use zerocopy::FromBytes;

use super::PLACE;
use super::names::Touched;
use crate::error::{Error, Result};
use crate::fs::ext4::disk::extent;
use crate::fs::ext4::disk::inode::RawInode;
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::jbd2::fast_commit::RangeEdit;
use crate::fs::ext4::operation::{InodeToChange, MayChange, Operation};
use crate::fs::ext4::{Incompat, Inode};
use crate::fs::{FileType, InodeFlags};
use crate::iomap::Extent;
use crate::units::{FileBlock, FsBlock};

/// The changes that turn the map on the device into the recorded map.
#[derive(Default)]
pub(super) struct MapEdit {
    /// The ranges of file blocks to unmap, before any extent is mapped.
    unmapped: Vec<Range<FileBlock>>,
    /// The extents to map, after the ranges were unmapped.
    mapped: Vec<Extent>,
    /// The extents whose state changes between written and unwritten.
    restated: Vec<Extent>,
}

impl MapEdit {
    /// Computes the changes of an inode's block map. The inode must be in use after the fast commits. The result is empty for a directory:
    /// the blocks that fast commits record for a directory are not used.
    pub(super) fn of(inode: &Touched<'_>) -> Result<Self> {
        let mut map = Self::default();
        let (Some(after), Some(edit)) = (&inode.after, inode.edit) else { return Ok(map) };
        let before = inode.before.as_ref().filter(|before| !inode.is_new() && before.has_map());
        if before.is_some() && !after.has_map() {
            let what = "the fast commit would move the content from blocks into the inode";
            return Err(PLACE.inode(after.number()).corrupt(what));
        }
        if after.file_type() == FileType::Directory || !after.has_map() {
            return Ok(map);
        }
        if !after.flags().contains(InodeFlags::EXTENTS) {
            return Err(Error::read_only(
                "ironmap cannot recover fast commits of a file without extents: run e2fsck, or mount the volume with the kernel",
            ));
        }
        for range in &edit.ranges {
            map.add(before, range)?;
        }
        Ok(map)
    }

    fn add(&mut self, before: Option<&Inode>, edit: &RangeEdit) -> Result<()> {
        let window = FileBlock(edit.blocks.start)..FileBlock(edit.blocks.end);
        let old = before.map(|before| before.home_extents(window.clone())).transpose()?;
        let old = old.unwrap_or_default();
        let Some((start, state)) = edit.start else {
            if !old.is_empty() {
                self.unmapped.push(window);
            }
            return Ok(());
        };
        let part = |blocks: Range<FileBlock>| Extent {
            first: blocks.start,
            start: FsBlock(start.0 + (blocks.start.0 - window.start.0)),
            len: (blocks.end.0 - blocks.start.0) as u32,
            state,
        };
        let mut next = window.start;
        for old in old {
            let same = part(old.first..old.end());
            if same.start != old.start {
                continue;
            }
            if next < old.first {
                self.replace(part(next..old.first));
            }
            if state != old.state {
                self.restated.push(same);
            }
            next = old.end();
        }
        if next < window.end {
            self.replace(part(next..window.end));
        }
        Ok(())
    }

    fn replace(&mut self, extent: Extent) {
        self.unmapped.push(extent.first..extent.end());
        self.mapped.push(extent);
    }

    /// Marks the blocks that the fast commits add to the file as used.
    pub(super) fn claim(&self, handle: &mut Handle<'_>) -> Result<()> {
        let mut extents = self.mapped.iter();
        extents.try_for_each(|new| handle.claim_blocks(new.start, u64::from(new.len)))
    }

    pub(super) fn apply(&self, handle: &mut Handle<'_>, inode: &InodeToChange<'_>) -> Result<()> {
        for range in &self.unmapped {
            inode.unmap_range(handle, range.clone())?;
        }
        for extent in &self.mapped {
            inode.map_extent(handle, *extent)?;
        }
        for extent in &self.restated {
            inode.set_range_state(handle, extent.first..extent.end(), extent.state)?;
        }
        Ok(())
    }
}

impl Operation<'_> {
    /// Writes an inode as the fast commits have recorded it. Three parts of the inode on the device are kept: the block map, the
    /// attributes, and the fields that describe the blocks of a directory. In a new inode, these parts are empty.
    pub(super) fn write_recorded(
        &self,
        handle: &mut Handle<'_>,
        proof: &impl MayChange,
        inode: &Touched<'_>,
    ) -> Result<()> {
        let Some(edit) = inode.edit.filter(|edit| edit.bytes.is_some()) else { return Ok(()) };
        let extents = self.superblock.incompat.contains(Incompat::EXTENTS);
        let number = proof.number();
        handle.update_inode(proof, |table| {
            let mut old = table.bytes().to_vec();
            if inode.is_new() {
                old.fill(0);
            }
            table.bytes().copy_from_slice(&edit.inode(&old));
            let Ok((old, _)) = RawInode::ref_from_prefix(&old) else {
                return Err(PLACE.inode(number).corrupt("the inode is truncated"));
            };
            let new = table.fields()?;
            new.i_blocks_lo = old.i_blocks_lo;
            new.i_blocks_high = old.i_blocks_high;
            new.i_file_acl_lo = old.i_file_acl_lo;
            new.i_file_acl_high = old.i_file_acl_high;
            new.i_dtime = old.i_dtime;
            let flags_before = InodeFlags::from_bits_retain(old.i_flags.get());
            let mut flags = InodeFlags::from_bits_retain(new.i_flags.get());
            // The flag HUGE_FILE determines the unit of `i_blocks`.
            flags.set(InodeFlags::HUGE_FILE, flags_before.contains(InodeFlags::HUGE_FILE));
            let directory = inode.after.as_ref().map(Inode::file_type) == Some(FileType::Directory);
            if directory {
                (new.i_size_lo, new.i_size_high) = (old.i_size_lo, old.i_size_high);
                new.i_block = old.i_block;
                let form = InodeFlags::INDEX | InodeFlags::INLINE_DATA | InodeFlags::EXTENTS;
                flags = (flags - form) | (flags_before & form);
                if inode.is_new() && extents {
                    flags |= InodeFlags::EXTENTS;
                    new.i_block.copy_from_slice(&extent::empty_root());
                }
            }
            new.i_flags.set(flags.bits());
            Ok(())
        })
    }
}
