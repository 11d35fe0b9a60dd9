//! The entries of a directory, from a cursor on.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Entry;
use crate::error::{Error, Result};
use crate::fs::xfs::disk::dir::{ALIGN, LEAF_OFFSET};
use crate::fs::xfs::fork::Format;
use crate::fs::xfs::inode::XfsInode;
use crate::fs::{DirCursor, DirEntry};
use crate::iomap::IomapType;
use crate::units::FileBlock;

/// The maximum number of damaged blocks in a listing. A hostile directory can map every block of a large volume.
const MOST_FAULTS: u32 = 4096;

/// The entries of a directory that remain to be listed. If a block is damaged, the other blocks are listed.
pub struct XfsListing {
    inode: Arc<XfsInode>,
    /// The position in units of 8 bytes from the start of the directory.
    cursor: u64,
    /// Entries that were read but not returned yet.
    ready: VecDeque<Entry>,
    /// The fault of the block from which the entries in `ready` come.
    fault: Option<Error>,
    /// The next block to read, counted in file-system blocks of the directory's file; `None` after the last block.
    next_block: Option<u64>,
    on_fault: OnFault,
    /// Whether the complete map of the directory cannot be read. If so, the complete map is not requested again for each block.
    map_is_damaged: bool,
    /// The number of damaged blocks so far.
    faults: u32,
}

/// The reaction of a listing to a damaged block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OnFault {
    /// Returns the error, and continues with the next block.
    Report,
    /// Skips the block and reports a notice. On a volume that is open for writing, the error ends the listing instead.
    PassOver,
}

impl XfsInode {
    /// The entries of this directory from a cursor on, including `.` and `..`.
    ///
    /// # Errors
    /// `NotADirectory`, `Corrupt`.
    pub fn list(&self, from: DirCursor, on_fault: OnFault) -> Result<XfsListing> {
        self.check_directory()?;
        let inode = Arc::new(self.fs.inode_or_orphan(self.stat.inode)?);
        inode.check_directory()?;
        let cursor = from.to_raw();
        let (mut ready, mut next_block) = (VecDeque::new(), None);
        if inode.data.format == Format::Local {
            ready.extend(inode.short_entries()?.into_iter().filter(|entry| entry.at >= cursor));
        } else {
            let geometry = &inode.fs.superblock.geometry;
            let per_block = (geometry.dir_block() / ALIGN) as u64;
            next_block = Some((cursor / per_block) << geometry.dir_block_log);
        }
        Ok(XfsListing {
            inode,
            cursor,
            ready,
            fault: None,
            next_block,
            on_fault,
            map_is_damaged: false,
            faults: 0,
        })
    }
}

impl XfsListing {
    /// The cursor after the last entry that was returned.
    #[must_use]
    pub fn cursor(&self) -> DirCursor {
        DirCursor::from_raw(self.cursor)
    }

    /// Reads the entries of the next block that has entries or is damaged.
    fn fill(&mut self) {
        let geometry = self.inode.fs.superblock.geometry;
        while self.ready.is_empty()
            && self.fault.is_none()
            && let Some(first) = self.next_block.take()
        {
            if first >= LEAF_OFFSET >> geometry.block.shift() {
                return;
            }
            let mut next = first + (1 << geometry.dir_block_log);
            match self.read(first, &mut next) {
                Ok((entries, fault)) => {
                    let cursor = self.cursor;
                    self.ready.extend(entries.into_iter().filter(|entry| entry.at >= cursor));
                    self.fault = fault;
                }
                Err(error) => self.fault = Some(error),
            }
            self.faults += u32::from(self.fault.is_some());
            // A damaged map has no known end. In this case, the size of the directory limits the listing.
            let is_last =
                self.faults > MOST_FAULTS || next << geometry.block.shift() >= self.inode.stat.size;
            self.next_block = (self.fault.is_none() || !is_last).then_some(next);
            if self.on_fault == OnFault::PassOver {
                if self.inode.fs.overwriting.is_none() {
                    if let Some(error) = self.fault.take() {
                        self.inode.fs.pass_over_names(self.inode.stat.inode, first, &error);
                    }
                } else if self.fault.is_some() {
                    self.next_block = None;
                }
            }
        }
    }

    /// The entries of the directory block that begins at the file-system block `first`, and the fault that ends these entries. `next` is
    /// set to the first block after the directory block, or to the first block after a hole or a damaged part of the map.
    fn read(&mut self, first: u64, next: &mut u64) -> Result<(Vec<Entry>, Option<Error>)> {
        let inode = &self.inode;
        let geometry = &inode.fs.superblock.geometry;
        let size = geometry.block;
        // Skips to the directory block that contains or follows a block.
        let mut skip = |block: u64| {
            let end = block.min(LEAF_OFFSET >> size.shift());
            let end = end.div_ceil(1 << geometry.dir_block_log) << geometry.dir_block_log;
            *next = end.max(*next);
        };
        // If a part of the map is damaged, the other parts are read one by one.
        let map = if self.map_is_damaged { None } else { inode.data_map().ok().flatten() };
        self.map_is_damaged = map.is_none();
        let block = inode.dir_block(map, first).inspect_err(|_| {
            skip(inode.data.end_of_leaf(&inode.fs, inode.stat.inode, first));
        })?;
        let Some(block) = block else {
            // A hole may be long, so it is skipped in one step.
            let iomap = inode.map_in(map, size.pos_of(FileBlock(first)))?;
            if iomap.kind == IomapType::Hole {
                skip(iomap.end().0.div_ceil(size.bytes() as u64));
            }
            return Ok((Vec::new(), None));
        };
        let number = first >> geometry.dir_block_log;
        let base = number * (geometry.dir_block() / ALIGN) as u64;
        Ok(inode.data_block(&block)?.entries(inode, base))
    }
}

impl Iterator for XfsListing {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ready.is_empty() {
            if self.fault.is_none() {
                self.fill();
            }
            if self.ready.is_empty() {
                return self.fault.take().map(Err);
            }
        }
        let entry = self.ready.pop_front()?;
        self.cursor = entry.next;
        Some(Ok(entry.public()))
    }
}
