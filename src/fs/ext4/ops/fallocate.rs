//! Operations on space: preallocation, zeroing, hole punching, collapse, insertion.

use std::ops::Range;

use super::refuse;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::operation::{InodeToChange, Locked, Operation};
use crate::fs::{Fallocate, InodeFlags};
use crate::iomap::{ExtentState, IomapType};
use crate::units::{FileBlock, FilePos, InodeNo};

/// The maximum number of metadata blocks that one step changes. The blocks of the file's map are not included.
const CREDITS: u32 = 16;

impl Operation<'_> {
    /// Changes the allocation of a range of a regular file.
    pub(in crate::fs::ext4) fn fallocate(
        &self,
        number: InodeNo,
        how: Fallocate,
        pos: FilePos,
        len: u64,
    ) -> Result<()> {
        let file = self.quiesce(number)?;
        let inode = self.file_to_change(&file)?;
        if inode.flags().contains(InodeFlags::APPEND)
            && how != (Fallocate::Allocate { keep_size: true })
        {
            return Err(refuse(ErrorKind::NotPermitted, "the file is append-only"));
        }
        let end = pos.0.checked_add(len).filter(|_| len > 0);
        let Some(end) = end else { return Err(Error::invalid("the range is empty or too large")) };
        self.check_size(&inode, end)?;
        let inode = self.without_capabilities(&file, inode)?;
        if inode.has_inline_data() {
            self.move_out(&file, &inode)?;
        }
        let inode = file.inode()?;
        if !inode.flags().contains(InodeFlags::EXTENTS) && how != Fallocate::Punch {
            return Err(Error::unsupported(
                "a file with indirect blocks cannot have preallocated blocks",
            ));
        }
        let range = pos.0..end;
        match how {
            Fallocate::Allocate { keep_size } => self.allocate_and_grow(&file, range, keep_size),
            Fallocate::Punch => {
                self.empty_range(&inode, range)?;
                self.grow(&file, 0, true)
            }
            Fallocate::Zero { keep_size } => {
                self.empty_range(&inode, range.clone())?;
                self.allocate_and_grow(&file, range, keep_size)
            }
            Fallocate::Collapse => self.collapse(&file, &inode, range),
            Fallocate::Insert => self.insert(&inode, range),
        }
    }

    /// Allocates blocks for the holes of a range. If `keep_size` is not set, the file grows to the end of the allocated blocks. The file
    /// also grows if the space is exhausted within the range, so that no allocated block lies past the end of the file.
    fn allocate_and_grow(
        &self,
        file: &Locked<'_>,
        range: Range<u64>,
        keep_size: bool,
    ) -> Result<()> {
        let error = match self.allocate_range(file, range.clone()) {
            Ok(()) => return self.grow(file, range.end, keep_size),
            Err(error) if error.is_for_space() => error,
            Err(error) => return Err(error),
        };
        if let Some(reached) = self.first_hole(file, range.clone())?
            && reached > range.start
        {
            self.grow(file, reached, keep_size)?;
        }
        Err(error)
    }

    /// Sets the new size if it is larger than the old size, and sets the times.
    fn grow(&self, file: &Locked<'_>, end: u64, keep_size: bool) -> Result<()> {
        let inode = file.inode()?;
        let size = if keep_size { inode.size() } else { inode.size().max(end) };
        self.zero_past(&inode, size)?;
        self.transact_for_space(CREDITS, |handle| self.set_size(handle, file, size))
    }

    /// Allocates blocks for the holes of a range.
    pub(super) fn allocate_range(&self, file: &Locked<'_>, range: Range<u64>) -> Result<()> {
        let size = self.superblock.block_size;
        let end = FileBlock(size.blocks_for(range.end));
        let mut next = size.block_of(FilePos(range.start));
        while next < end {
            let inode = file.inode()?;
            let (_, count, kind) = self.mapping(&inode, next..end)?;
            if kind != IomapType::Hole {
                next.0 += count;
                continue;
            }
            let credits = CREDITS + inode.credits_for_map();
            let placed = self.transact_for_space(credits, |handle| {
                self.allocate_unwritten(handle, &inode, next, count)
            })?;
            next.0 += placed;
        }
        Ok(())
    }

    /// The position of the first block in a byte range that belongs to a hole.
    pub(super) fn first_hole(&self, file: &Locked<'_>, range: Range<u64>) -> Result<Option<u64>> {
        let (size, inode) = (self.superblock.block_size, file.inode()?);
        let end = FileBlock(size.blocks_for(range.end));
        let mut next = size.block_of(FilePos(range.start));
        while next < end {
            let (_, count, kind) = self.mapping(&inode, next..end)?;
            if kind == IomapType::Hole {
                return Ok(Some(size.pos_of(next).0));
            }
            next.0 += count;
        }
        Ok(None)
    }

    fn allocate_unwritten(
        &self,
        handle: &mut Handle<'_>,
        inode: &InodeToChange<'_>,
        first: FileBlock,
        count: u64,
    ) -> Result<u64> {
        let room = self.find_room(handle, inode, first, count)?;
        let extent = room.extent(first, ExtentState::Unwritten);
        if let Err(error) = inode.map_extent(handle, extent) {
            self.give_back(handle, &room)?;
            return Err(error);
        }
        Ok(room.len.into())
    }

    /// Frees the complete blocks of a range, and zeros the partial blocks at both ends.
    fn empty_range(&self, inode: &InodeToChange<'_>, range: Range<u64>) -> Result<()> {
        let size = self.superblock.block_size;
        let block = size.bytes() as u64;
        let (first, last) = (range.start.next_multiple_of(block), range.end / block * block);
        if first > last {
            return self.zero_part(inode, range);
        }
        self.zero_part(inode, range.start..first)?;
        self.zero_part(inode, last..range.end)?;
        let whole = FileBlock(first >> size.shift())..FileBlock(last >> size.shift());
        if whole.is_empty() {
            return Ok(());
        }
        self.transact_for_space(inode.credits_for_unmap() + CREDITS, |handle| {
            inode.unmap_range(handle, whole.clone())
        })
    }

    fn whole_blocks(&self, range: &Range<u64>) -> Result<Range<FileBlock>> {
        let size = self.superblock.block_size;
        let unit = u64::from(self.superblock.cluster_blocks) * size.bytes() as u64;
        if !range.start.is_multiple_of(unit) || !range.end.is_multiple_of(unit) {
            return Err(Error::invalid(format!(
                "the range does not begin and end at multiples of {unit} bytes"
            )));
        }
        Ok(FileBlock(range.start >> size.shift())..FileBlock(range.end >> size.shift()))
    }

    fn collapse(
        &self,
        file: &Locked<'_>,
        inode: &InodeToChange<'_>,
        range: Range<u64>,
    ) -> Result<()> {
        let blocks = self.whole_blocks(&range)?;
        if range.end >= inode.size() {
            return Err(Error::invalid(
                "the range reaches the end of the file: truncate the file instead",
            ));
        }
        let count = (blocks.end.0 - blocks.start.0) as i64;
        let size = inode.size() - (range.end - range.start);
        self.transact_for_space(2 * inode.credits_for_unmap() + CREDITS, |handle| {
            inode.unmap_range(handle, blocks.clone())?;
            file.inode()?.shift_range(handle, blocks.end, -count)?;
            self.set_size(handle, inode, size)
        })
    }

    fn insert(&self, inode: &InodeToChange<'_>, range: Range<u64>) -> Result<()> {
        let blocks = self.whole_blocks(&range)?;
        if range.start >= inode.size() {
            return Err(Error::invalid("the position is past the end of the file"));
        }
        let count = (blocks.end.0 - blocks.start.0) as i64;
        let size = inode.size().saturating_add(range.end - range.start);
        self.check_size(inode, size)?;
        self.transact_for_space(2 * inode.credits_for_unmap() + CREDITS, |handle| {
            inode.shift_range(handle, blocks.start, count)?;
            self.set_size(handle, inode, size)
        })
    }
}
