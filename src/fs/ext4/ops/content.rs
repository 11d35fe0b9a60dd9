//! Writes file data without the journal. New blocks are written before the transaction that maps them ends. A crash therefore never exposes
//! the previous content of the blocks.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use super::refuse;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Direction, ErrorEvent};
use crate::fs::ext4::attr::Attributes;
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::operation::{InodeToChange, Locked, Operation};
use crate::fs::ext4::{Ext4, Inode};
use crate::iomap::WriteAt;
use crate::iomap::{ExtentState, IomapType};
use crate::sys::Buffer;
use crate::units::{DevOffset, FileBlock, FilePos, FsBlock, InodeNo};

/// The maximum number of bytes written in one transaction.
const PIECE: usize = 8 << 20;
/// The maximum number of metadata blocks that change when the data of one transaction are written. The blocks of the file's map are not
/// included.
const CREDITS: u32 = 16;
/// An upper limit of the length of inline content, in bytes.
const INLINE_LIMIT: u64 = 64 << 10;

/// The progress of a write to blocks.
struct Reached {
    /// The block after the last written block.
    block: FileBlock,
    /// The device error that ended the write, if any. Data written before the error are part of the file.
    failed: Option<Error>,
}

/// Complete blocks of a file, with their new content.
struct Blocks<'a> {
    first: FileBlock,
    content: &'a Buffer,
}

impl Ext4 {
    /// Writes several buffers. Returns the position and the length of the write. `is_cache` marks the writeback of a cache, which may write
    /// to any position of an append-only file. If `whole` is set and the space does not suffice for all data, the write fails and the file
    /// keeps its size.
    pub(crate) fn write_from(
        self: &Arc<Self>,
        number: InodeNo,
        at: WriteAt,
        bufs: &[IoSlice<'_>],
        is_cache: bool,
        whole: bool,
    ) -> Result<(FilePos, usize)> {
        self.operate(|op| {
            let file = op.quiesce(number)?;
            let inode = op.file_to_change(&file)?;
            let pos = if let WriteAt::Pos(pos) = at { pos } else { FilePos(inode.size()) };
            let len: usize = bufs.iter().map(|buf| buf.len()).sum();
            if len == 0 {
                return Ok((pos, 0));
            }
            op.admit_write(&inode, pos, len as u64, (!is_cache).then_some(inode.size()))?;
            let inode = op.without_capabilities(&file, inode)?;
            if inode.has_inline_data() && op.write_inline(&file, &inode, pos, bufs, len as u64)? {
                return Ok((pos, len));
            }
            // The inode is read again, because the call of `write_inline` may have moved the content to blocks.
            op.zero_past(&*file.inode()?, pos.0)?;
            let mut done = 0;
            for piece in bufs.iter().flat_map(|buf| buf.chunks(PIECE)) {
                match op.write_piece(&file, FilePos(pos.0 + done as u64), piece) {
                    Ok(count) => {
                        done += count;
                        if count < piece.len() {
                            break;
                        }
                    }
                    Err(error) if error.is_for_space() && done > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            if whole && done < len {
                if pos.0 + done as u64 > inode.size() {
                    op.resize(&file, &file.inode()?, inode.size())?;
                    file.is_cut(inode.has_small_map());
                }
                return Err(refuse(
                    ErrorKind::NoSpace,
                    "the volume has no space for the complete write",
                ));
            }
            Ok((pos, done))
        })
    }
}

impl Operation<'_> {
    /// Writes the data of one transaction. Returns the number of bytes written. If the space is exhausted, this number is smaller than the
    /// length of the data.
    fn write_piece(&self, file: &Locked<'_>, pos: FilePos, bytes: &[u8]) -> Result<usize> {
        let inode = file.inode()?;
        let size = self.superblock.block_size;
        let end = pos.0 + bytes.len() as u64;
        let (first, behind) = (size.block_of(pos), FileBlock(size.blocks_for(end)));
        let count = (behind.0 - first.0) as usize;
        let mut content = Buffer::aligned(count * size.bytes())?;
        let skip = size.offset_in(pos);
        // The range may begin and end within a block. The other bytes of the first and the last block keep their content.
        if skip > 0 {
            self.read_block(&inode, first, &mut content[..size.bytes()])?;
        }
        if !end.is_multiple_of(size.bytes() as u64) && (count > 1 || skip == 0) {
            let last = FileBlock(behind.0 - 1);
            self.read_block(&inode, last, &mut content[(count - 1) * size.bytes()..])?;
        }
        content[skip..skip + bytes.len()].copy_from_slice(bytes);
        let blocks = Blocks { first, content: &content };
        let credits = CREDITS + inode.credits_for_map();
        let (reached, failed) = self.transact_for_space(credits, |handle| {
            let Reached { block, failed } =
                self.write_blocks(handle, file, &blocks, first..behind, end)?;
            let reached = size.pos_of(block).0.min(end);
            self.set_size(handle, file, reached.max(inode.size()))?;
            Ok((reached, failed))
        })?;
        failed.map_or(Ok((reached - pos.0) as usize), Err)
    }

    /// Writes blocks. Mapped blocks are written in place; other blocks are first allocated. `end` is the end of the data in bytes. Returns
    /// the block after the last written block. If the space is exhausted or the device fails, the write ends early. If not even the first
    /// block was written, the error is returned. If several transactions are needed, each transaction sets the size.
    fn write_blocks(
        &self,
        handle: &mut Handle<'_>,
        file: &Locked<'_>,
        blocks: &Blocks<'_>,
        range: Range<FileBlock>,
        end: u64,
    ) -> Result<Reached> {
        let size = self.superblock.block_size;
        let (mut next, mut failed) = (range.start, None);
        while next < range.end {
            let inode = file.inode()?;
            let needed = CREDITS + inode.credits_for_map();
            if next > range.start && handle.credits_left() < needed {
                self.set_size(handle, file, inode.size().max(size.pos_of(next).0.min(end)))?;
                handle.renew(needed)?;
            }
            match self.write_extent(handle, &inode, blocks, next..range.end) {
                Ok(reached) => next = reached,
                Err(error) if error.is_for_space() && next > range.start => break,
                Err(error) if next > range.start && handle.was_taken_back() => {
                    failed = Some(error);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Reached { block: next, failed })
    }

    /// Writes blocks of one extent, or of one hole. For a hole, allocates one extent. Returns the block after the last written block.
    fn write_extent(
        &self,
        handle: &mut Handle<'_>,
        inode: &InodeToChange<'_>,
        blocks: &Blocks<'_>,
        range: Range<FileBlock>,
    ) -> Result<FileBlock> {
        let first = range.start;
        let (start, count, kind) = self.mapping(inode, range)?;
        if kind == IomapType::Hole {
            return self.fill_hole(handle, inode, blocks, first, count);
        }
        let behind = FileBlock(first.0 + count);
        self.write_data(inode, blocks, first, start, count).inspect_err(|_| handle.took_back())?;
        if kind == IomapType::Unwritten {
            inode.set_range_state(handle, first..behind, ExtentState::Written)?;
        }
        Ok(behind)
    }

    /// Allocates one contiguous run of blocks for a hole, writes the blocks, and then maps them. Returns the file block that follows the
    /// run.
    fn fill_hole(
        &self,
        handle: &mut Handle<'_>,
        inode: &InodeToChange<'_>,
        blocks: &Blocks<'_>,
        first: FileBlock,
        count: u64,
    ) -> Result<FileBlock> {
        let room = self.find_room(handle, inode, first, count)?;
        let extent = room.extent(first, ExtentState::Written);
        if let Err(error) = self.write_data(inode, blocks, first, room.start, room.len.into()) {
            self.give_back(handle, &room)?;
            handle.took_back();
            return Err(error);
        }
        if let Err(error) = inode.map_extent(handle, extent) {
            self.give_back(handle, &room)?;
            return Err(error);
        }
        Ok(extent.end())
    }

    fn write_data(
        &self,
        inode: &Inode,
        blocks: &Blocks<'_>,
        first: FileBlock,
        start: FsBlock,
        count: u64,
    ) -> Result<()> {
        let size = self.superblock.block_size;
        let skip = (first.0 - blocks.first.0) as usize * size.bytes();
        let part = &blocks.content[skip..skip + count as usize * size.bytes()];
        self.write_file(inode, part, first, start)
    }

    /// Writes blocks of a file to the device. An error is also reported as an event.
    fn write_file(
        &self,
        inode: &Inode,
        content: &[u8],
        first: FileBlock,
        start: FsBlock,
    ) -> Result<()> {
        let at = self.superblock.block_size.offset_of(start);
        let written = self.blocks.device().write_all_at(&[IoSlice::new(content)], at, false);
        self.report(written, Direction::DirectWrite, inode, first, content.len())
    }

    fn report(
        &self,
        result: Result<()>,
        direction: Direction,
        inode: &Inode,
        first: FileBlock,
        len: usize,
    ) -> Result<()> {
        if let Err(ErrorKind::Io(errno)) = result.as_ref().map_err(|error| error.kind()) {
            let (inode, pos) = (inode.number(), self.superblock.block_size.pos_of(first));
            self.blocks.report(ErrorEvent { direction, inode, pos, len: len as u64, errno });
        }
        result
    }

    /// The first mapping in a range of file blocks: its first device block, its length in blocks, and its kind.
    pub(super) fn mapping(
        &self,
        inode: &Inode,
        range: Range<FileBlock>,
    ) -> Result<(FsBlock, u64, IomapType)> {
        let size = self.superblock.block_size;
        let (pos, end) = (size.pos_of(range.start), size.pos_of(range.end));
        let iomap = inode.map_by_leaf(pos)?;
        let count = (iomap.end().0.min(end.0) - pos.0) >> size.shift();
        let start = match iomap.kind {
            IomapType::Hole => FsBlock(0),
            _ => FsBlock(iomap.addr_of(pos).0 >> size.shift()),
        };
        Ok((start, count, iomap.kind))
    }

    /// Reads a block of a file. A hole and an unwritten block read as zeros.
    fn read_block(&self, inode: &Inode, block: FileBlock, into: &mut [u8]) -> Result<()> {
        let size = self.superblock.block_size;
        let (start, _, kind) = self.mapping(inode, block..FileBlock(block.0 + 1))?;
        if kind != IomapType::Mapped {
            into.fill(0);
            return Ok(());
        }
        let read = self.blocks.device().read_exact_at(into, size.offset_of(start));
        self.report(read, Direction::DirectRead, inode, block, into.len())?;
        let pos = size.pos_of(block);
        let valid = inode.size().saturating_sub(pos.0).min(into.len() as u64);
        into[valid as usize..].fill(0);
        Ok(())
    }

    /// Zeros a part of one block on the device, if the block is mapped and written.
    pub(super) fn zero_part(&self, inode: &Inode, part: Range<u64>) -> Result<()> {
        if part.is_empty() {
            return Ok(());
        }
        let size = self.superblock.block_size;
        let block = size.block_of(FilePos(part.start));
        let (start, _, kind) = self.mapping(inode, block..FileBlock(block.0 + 1))?;
        if kind != IomapType::Mapped {
            return Ok(());
        }
        let mut content = Buffer::aligned(size.bytes())?;
        self.read_block(inode, block, &mut content)?;
        let base = size.pos_of(block).0;
        content[(part.start - base) as usize..(part.end - base) as usize].fill(0);
        self.write_file(inode, &content, block, start)
    }

    /// Zeros a part of one block on the device.
    pub(super) fn write_zeros(
        &self,
        inode: &Inode,
        block: FileBlock,
        start: FsBlock,
        part: Range<u64>,
    ) -> Result<()> {
        let size = self.superblock.block_size;
        let zeros = Buffer::aligned((part.end - part.start) as usize)?;
        let at = size.offset_of(start).0 + part.start - size.pos_of(block).0;
        let written =
            self.blocks.device().write_all_at(&[IoSlice::new(&zeros)], DevOffset(at), false);
        self.report(written, Direction::DirectWrite, inode, block, zeros.len())
    }

    /// Zeros the bytes of a file's last block that are past the new end of the file. Without this, the old bytes would reappear when the
    /// file grows again.
    pub(super) fn zero_tail(&self, inode: &Inode, size: u64) -> Result<()> {
        let block = self.superblock.block_size.bytes() as u64;
        self.zero_part(inode, size..size.next_multiple_of(block))
    }

    /// Zeros the bytes of the last block that are past the end of the file, before the file grows. A write that failed or was lost in a
    /// crash may have left data in these bytes.
    pub(super) fn zero_past(&self, inode: &Inode, size: u64) -> Result<()> {
        if size > inode.size() { self.zero_tail(inode, inode.size()) } else { Ok(()) }
    }

    /// Writes into a file with inline content. If the inode has too little space, moves the old content to blocks and returns false. The
    /// caller then writes the new data.
    fn write_inline(
        &self,
        file: &Locked<'_>,
        inode: &InodeToChange<'_>,
        pos: FilePos,
        bufs: &[IoSlice<'_>],
        len: u64,
    ) -> Result<bool> {
        let end = pos.0 + len;
        let size = end.max(inode.size());
        if size > INLINE_LIMIT {
            self.move_out(file, inode)?;
            return Ok(false);
        }
        let mut content = vec![0; size as usize];
        inode.read_inline_data(&mut content[..inode.size() as usize], FilePos(0))?;
        let mut at = pos.0 as usize;
        for buf in bufs {
            content[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        self.replace_inline(file, inode, &content)
    }

    pub(super) fn resize_inline(
        &self,
        file: &Locked<'_>,
        inode: &InodeToChange<'_>,
        size: u64,
    ) -> Result<()> {
        if size <= INLINE_LIMIT {
            let mut content = vec![0; size as usize];
            let kept = inode.size().min(size) as usize;
            inode.read_inline_data(&mut content[..kept], FilePos(0))?;
            if self.replace_inline(file, inode, &content)? {
                return Ok(());
            }
        } else {
            self.move_out(file, inode)?;
        }
        self.transact_for_space(CREDITS, |handle| self.set_size(handle, file, size))
    }

    /// Stores content in the inode. If the content does not fit, moves the previous content of the file to blocks instead.
    fn replace_inline(
        &self,
        file: &Locked<'_>,
        inode: &InodeToChange<'_>,
        content: &[u8],
    ) -> Result<bool> {
        let fitted = self.transact_for_space(CREDITS + inode.xattr_credits(), |handle| {
            let fitted = Attributes::of(inode).store_inline(handle, content)?;
            if fitted {
                self.set_size(handle, file, content.len() as u64)?;
            }
            Ok(fitted)
        })?;
        if !fitted {
            self.move_out(file, inode)?;
        }
        Ok(fitted)
    }

    /// Moves content from the inode to one block. The content fits, because an inode is not larger than a block.
    pub(super) fn move_out(&self, file: &Locked<'_>, inode: &InodeToChange<'_>) -> Result<()> {
        let size = self.superblock.block_size;
        let count = size.blocks_for(inode.inline_len()? as u64);
        let credits = CREDITS + inode.xattr_credits() + inode.credits_for_map();
        self.transact_for_space(credits, |handle| {
            let old = Attributes::of(inode).evict_inline(handle)?;
            let mut content = Buffer::aligned((count as usize * size.bytes()).max(1))?;
            content[..old.len()].copy_from_slice(&old);
            let blocks = Blocks { first: FileBlock(0), content: &content };
            let range = FileBlock(0)..FileBlock(count);
            let moved = self.write_blocks(handle, file, &blocks, range, inode.size());
            if let Err(error) = moved.and_then(|reached| reached.failed.map_or(Ok(()), Err)) {
                let was_taken_back = handle.was_taken_back();
                Attributes::of(&file.inode()?).store_inline(handle, &old)?;
                if was_taken_back {
                    handle.took_back();
                }
                return Err(error);
            }
            Ok(())
        })
    }
}
