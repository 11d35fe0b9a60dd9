//! The entries of a directory, from a cursor on.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Entry;
use crate::error::Result;
use crate::fs::xfs::disk::dir::{ALIGN, LEAF_OFFSET};
use crate::fs::xfs::fork::Format;
use crate::fs::xfs::inode::XfsInode;
use crate::fs::{DirCursor, DirEntry};
use crate::iomap::IomapType;
use crate::units::{FileBlock, FilePos};

/// The entries of a directory that remain to be listed.
pub struct XfsListing {
    inode: Arc<XfsInode>,
    /// The position in units of 8 bytes from the start of the directory.
    cursor: u64,
    /// Entries that were read but not returned yet.
    ready: VecDeque<Entry>,
    /// The next block to read, counted in file-system blocks of the directory's file; `None` after the last block or after an error.
    next_block: Option<u64>,
}

impl XfsInode {
    /// The entries of this directory from a cursor on, including `.` and `..`.
    ///
    /// # Errors
    /// `NotADirectory`, `Corrupt`.
    pub fn list(&self, from: DirCursor) -> Result<XfsListing> {
        self.check_directory()?;
        let inode = Arc::new(self.fs.inode_or_orphan(self.stat.inode)?);
        inode.check_directory()?;
        let cursor = from.to_raw();
        let (mut ready, mut next_block) = (VecDeque::new(), None);
        if inode.data.format == Format::Local {
            ready.extend(inode.short_entries()?.into_iter().filter(|entry| entry.at >= cursor));
        } else {
            inode.data_map()?;
            let geometry = &inode.fs.superblock.geometry;
            let per_block = (geometry.dir_block() / ALIGN) as u64;
            next_block = Some((cursor / per_block) << geometry.dir_block_log);
        }
        Ok(XfsListing { inode, cursor, ready, next_block })
    }
}

impl XfsListing {
    /// The cursor after the last entry that was returned.
    #[must_use]
    pub fn cursor(&self) -> DirCursor {
        DirCursor::from_raw(self.cursor)
    }

    /// Reads the entries of the next block that is not a hole.
    fn fill(&mut self) -> Result<()> {
        while self.ready.is_empty()
            && let Some(first) = self.next_block.take()
        {
            let geometry = &self.inode.fs.superblock.geometry;
            let size = geometry.block;
            if first >= LEAF_OFFSET >> size.shift() {
                return Ok(());
            }
            let map = self.inode.data_map()?;
            let Some(block) = self.inode.dir_block(map, first)? else {
                // A hole may be long, so it is skipped in one step.
                let pos = size.pos_of(FileBlock(first));
                let iomap = crate::iomap::MapFile::map(&*self.inode, pos, 1)?;
                let end =
                    if iomap.kind == IomapType::Hole { iomap.end() } else { FilePos(pos.0 + 1) };
                let end = end.0.min(LEAF_OFFSET).div_ceil(geometry.dir_block() as u64);
                let next =
                    (end << geometry.dir_block_log).max(first + (1 << geometry.dir_block_log));
                self.next_block = Some(next);
                continue;
            };
            let number = first >> geometry.dir_block_log;
            let base = number * (geometry.dir_block() / ALIGN) as u64;
            let entries = self.inode.data_block(&block)?.entries(&self.inode, base)?;
            let cursor = self.cursor;
            self.ready.extend(entries.into_iter().filter(|entry| entry.at >= cursor));
            self.next_block = Some(first + (1 << geometry.dir_block_log));
        }
        Ok(())
    }
}

impl Iterator for XfsListing {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ready.is_empty()
            && let Err(error) = self.fill()
        {
            return Some(Err(error));
        }
        let entry = self.ready.pop_front()?;
        self.cursor = entry.next;
        Some(Ok(entry.public()))
    }
}
