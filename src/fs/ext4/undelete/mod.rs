//! Finds deleted files whose block maps still exist on the volume. Nothing is written.
//!
//! - If ext2 or debugfs deletes a file, the map stays in the inode, together with the size and `i_dtime`.
//! - If Linux deletes a file on ext3 or ext4, it clears the map. The log still contains older copies of the inode, the map's blocks and the
//!   directories, until later transactions overwrite them. `History` reads these copies.
//!
//! A file is read from the volume in its state before the transaction that deleted the file. If another file has reused a block of the
//! deleted file, the block contains data of the other file. If the other file was also deleted, the block is free again. In this case
//! ironmap detects the reuse only if it also finds the other file.

mod free;
mod map;
mod names;
mod versions;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::free::FreeBlocks;
use self::map::{Blocks, Budget};
use self::names::Names;
use self::versions::{Version, versions};
use super::Ext4;
use super::blocks::{Overlay, Relocated};
use super::inode::Inode;
use super::jbd2::{History, Past};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::deleted::{Content, Deleted};
use crate::fs::{FileType, InodeFlags};
use crate::iomap::Extent;
use crate::sorting::Sorting;
use crate::units::{DevOffset, FilePos, FsBlock};

/// The content of a deleted file.
struct FileContent {
    /// The data blocks whose newest content is in the log.
    relocated: BTreeMap<FsBlock, Relocated>,
    inode: Inode,
}

impl Content for FileContent {
    /// If the newest content of a block is in the log, the block is read from the log.
    fn read_extent(&self, buf: &mut [u8], at: u64) -> Result<()> {
        let size = self.inode.block_size();
        let blocks = &self.inode.file_system().blocks;
        blocks.device().read_exact_at(buf, DevOffset(at))?;
        let end = at + buf.len() as u64;
        let range = FsBlock(at >> size.shift())..FsBlock(end.div_ceil(size.bytes() as u64));
        for (block, copy) in self.relocated.range(range) {
            let content = blocks.read_relocated(*copy)?;
            let start = size.offset_of(*block).0;
            let (from, to) = (start.max(at), (start + size.bytes() as u64).min(end));
            let piece = &content[(from - start) as usize..(to - start) as usize];
            buf[(from - at) as usize..(to - at) as usize].copy_from_slice(piece);
        }
        Ok(())
    }

    fn inline_len(&self) -> Option<u64> {
        let is_inline = self.inode.flags().contains(InodeFlags::INLINE_DATA);
        is_inline.then(|| self.inode.inline_len().unwrap_or(0) as u64)
    }

    fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()> {
        self.inode.read_inline_data(buf, pos)
    }

    fn check(&self) -> Result<()> {
        if self.inode.flags().contains(InodeFlags::ENCRYPT) {
            return Err(Error::new(
                ErrorKind::Encrypted,
                "the content of the deleted file is encrypted",
            ));
        }
        Ok(())
    }
}

impl Ext4 {
    /// The deleted regular files whose maps still exist, sorted by inode number.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if the journal's superblock or a group descriptor is damaged; `LimitExceeded` if the deleted files or the log exceed
    /// the limits for memory.
    pub fn deleted(self: &Arc<Self>) -> Result<Vec<Deleted>> {
        let history = History::read(self)?;
        let mut versions = versions(self, &history)?;
        // The code below reads each version of an inode through a view: the volume in its state before a transaction. The versions are
        // sorted, so that versions with the same view are adjacent.
        versions.order_by_key(|version| version.view_end.unwrap_or(usize::MAX));
        let (mut names, mut budget) = (Names::default(), Budget::default());
        let (mut files, mut past) = (Vec::new(), Past::default());
        for alike in versions.chunk_by(|one, other| one.view_end == other.view_end) {
            let view = self.view(&history, &mut past, alike[0].view_end);
            for version in alike {
                // The version is an old copy of an inode. If it cannot be decoded, it is skipped.
                let Ok(inode) = version.decode(&view) else { continue };
                let found = Blocks::of(&inode, &mut budget);
                match inode.file_type() {
                    FileType::Directory => names.add_deleted(inode.number(), &found.extents),
                    FileType::Regular => {
                        names.want(inode.number());
                        let relocated = relocated(&found.extents, view.blocks.overlay());
                        budget.keep(found.extents.len() + relocated.len())?;
                        let file = self.deleted_file(version, found, relocated)?;
                        files.push((file, version.last, version.view_end));
                    }
                    _ => {}
                }
            }
            // The next view is made from the overlay of this view. If this view is the current volume, other code also uses it. Its overlay
            // must then not be removed.
            match Arc::into_inner(view) {
                Some(mut view) => past.overlay = view.blocks.take_overlay(),
                None => past = Past::default(),
            }
        }
        names.find(self, &history)?;
        for (file, _, end) in &mut files {
            file.path = names.path(file.number(), *end);
        }
        // If several deleted files contained the same block, the block counts as free only for the file that was deleted last.
        files.order_by_key(|(file, last, _)| std::cmp::Reverse((file.deleted, *last)));
        let mut files: Vec<_> = files.into_iter().map(|(file, ..)| file).collect();
        self.count_free(&mut files)?;
        files.order_by_key(|file| (file.number(), file.deleted));
        Ok(files)
    }

    /// Returns the volume in its state before transaction `end`. If `end` is `None`, returns the current volume. `past` is the state of the
    /// previous call. `end` must not be lower than in the previous call; `None` counts as the highest value of `end`.
    fn view(self: &Arc<Self>, history: &History, past: &mut Past, end: Option<usize>) -> Arc<Self> {
        let Some(end) = end else { return Arc::clone(self) };
        past.advance(history, end);
        let device = Arc::clone(self.blocks.device());
        let mut fs = Self::assemble(device, self.superblock.clone(), &Arc::default());
        fs.blocks.set_overlay(std::mem::take(&mut past.overlay));
        Arc::new(fs)
    }

    /// Makes the description of a file. The free blocks are counted later. The inode in the result refers to the current volume, because a
    /// view needs much memory.
    fn deleted_file(
        self: &Arc<Self>,
        version: &Version,
        found: Blocks,
        relocated: BTreeMap<FsBlock, Relocated>,
    ) -> Result<Deleted> {
        let inode = version.decode(self)?;
        Ok(Deleted {
            stat: inode.stat().clone(),
            deleted: version.deleted,
            path: None,
            blocks: found.extents.iter().map(|extent| u64::from(extent.len)).sum(),
            free: 0,
            problem: found.problem,
            extents: found.extents,
            block_size: inode.block_size(),
            content: Box::new(FileContent { relocated, inode }),
        })
    }

    /// Counts the free blocks of each file. If several files contain the same block, the block counts only for the first of them in the
    /// list.
    fn count_free(&self, files: &mut [Deleted]) -> Result<()> {
        let mut free = FreeBlocks::new(self);
        for file in files {
            for extent in &file.extents {
                file.free += free.take(extent.start, extent.len)?;
            }
        }
        Ok(())
    }
}

/// The blocks in these extents whose content is in the log.
fn relocated(extents: &[Extent], overlay: &Overlay) -> BTreeMap<FsBlock, Relocated> {
    let of = |extent: &Extent| {
        overlay.range(extent.start..FsBlock(extent.start.0 + u64::from(extent.len)))
    };
    extents.iter().flat_map(of).collect()
}
