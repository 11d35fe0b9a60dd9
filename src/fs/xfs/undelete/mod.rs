//! Finds deleted files whose block maps still exist on the volume. Nothing is written.
//!
//! - Linux frees an inode by clearing its mode, its size, its link count and its extent count. The list of extents in the inode stays, so
//!   the positions of the data are known until the inode is used again.
//! - The log contains old transactions until newer transactions overwrite them. The last state of an inode before its deletion has the
//!   size, the mode and the extent count.
//! - A removed directory entry loses only the first four bytes of its inode number, until a new entry overwrites it.

mod free;
mod names;
mod versions;

use std::sync::Arc;

use self::free::FreeBlocks;
use self::names::Names;
use self::versions::Version;
use super::Xfs;
use super::inode::XfsInode;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::FileType;
use crate::fs::deleted::{Content, Deleted};
use crate::iomap::Extent;
use crate::sorting::Sorting;
use crate::units::{DevOffset, FileBlock};

/// The maximum number of leaves of maps that are read, and of extents in memory, for all files together.
const MAX_LEAVES: u64 = 4 << 20;
const MAX_EXTENTS: usize = 4 << 20;

/// The content of a deleted file.
struct FileContent(Arc<Xfs>);

impl Content for FileContent {
    fn read_extent(&self, buf: &mut [u8], at: u64) -> Result<()> {
        self.0.metadata.device().read_exact_at(buf, DevOffset(at))
    }
}

/// The number of map leaves that may still be read, and the number of extents that may still be stored.
struct Budget {
    leaves: u64,
    extents: usize,
}

impl Budget {
    fn spend(&mut self, leaves: u64, extents: usize) -> Result<()> {
        let left = (self.leaves.checked_sub(leaves), self.extents.checked_sub(extents));
        let (Some(leaves), Some(extents)) = left else {
            let what = "the maps of the deleted files are too large";
            return Err(Error::new(ErrorKind::LimitExceeded, what));
        };
        (self.leaves, self.extents) = (leaves, extents);
        Ok(())
    }
}

impl Xfs {
    /// The deleted regular files whose maps still exist, sorted by inode number.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if the log is damaged; `LimitExceeded` if the deleted files or the log exceed the limits for memory.
    pub(super) fn deleted(self: &Arc<Self>) -> Result<Vec<Deleted>> {
        // If the log is ignored, the volume is in an unknown state between two transactions. Therefore the log is not searched for deleted
        // files either.
        let with_log = self.inode_roots.is_some();
        let mut versions = if with_log { versions::in_log(self)? } else { Vec::new() };
        versions.iter_mut().for_each(|version| version.complete(self));
        let (known, mut faults) = (versions::known(&versions), Vec::new());
        versions::free_inodes(self, &mut faults, |version| {
            if !known.contains(&version.number) {
                versions.push(version);
            }
            versions::check_count(versions.len())
        })?;
        let mut names = Names::new(&versions);
        names.find(self, with_log)?;
        let mut budget = Budget { leaves: MAX_LEAVES, extents: MAX_EXTENTS };
        let mut files = Vec::new();
        for version in &versions {
            // An inode that cannot be decoded is left out.
            let Ok(inode) = version.decode(self) else { continue };
            if inode.stat.file_type == FileType::Regular {
                let mut file = self.deleted_file(version, &inode, &mut budget)?;
                file.path = names.path(version.number, version.order);
                files.push((file, version.order));
            }
        }
        // Several deleted files may have contained the same block. Such a block counts as free only for the file that was deleted last.
        files.order_by_key(|(file, order)| std::cmp::Reverse((file.deleted, *order)));
        let mut free = FreeBlocks::new(self);
        for (file, _) in &mut files {
            self.count_free(file, &mut free, &mut faults);
        }
        let told =
            faults.iter().map(|error| format!("some deleted files cannot be found: {error}"));
        self.notices.lock().extend(told);
        let mut files: Vec<_> = files.into_iter().map(|(file, _)| file).collect();
        files.order_by_key(|file| (file.number(), file.deleted));
        Ok(files)
    }

    fn deleted_file(
        self: &Arc<Self>,
        version: &Version,
        inode: &XfsInode,
        budget: &mut Budget,
    ) -> Result<Deleted> {
        let (extents, problem) = self.remaining_map(inode, budget)?;
        let mut stat = inode.stat.clone();
        if version.order == versions::NOT_IN_LOG {
            let end = extents.last().map_or(FileBlock(0), Extent::end);
            stat.size = self.superblock.geometry.block.pos_of(end).0;
        }
        Ok(Deleted {
            stat,
            deleted: version.deleted,
            path: None,
            blocks: extents.iter().map(|extent| u64::from(extent.len)).sum(),
            free: 0,
            problem: problem.or_else(|| version.problem.map(str::to_owned)),
            extents,
            block_size: self.superblock.geometry.block,
            content: Box::new(FileContent(Arc::clone(self))),
        })
    }

    /// The extents of a map that can still be read. If a part of the map is lost, also returns a description of the fault.
    fn remaining_map(
        &self,
        inode: &XfsInode,
        budget: &mut Budget,
    ) -> Result<(Vec<Extent>, Option<String>)> {
        if inode.data.is_realtime {
            return Ok((Vec::new(), Some("the content is in the realtime space".to_owned())));
        }
        let (mut found, mut fault) = (Vec::new(), None);
        let (mut block, limit) = (0, self.superblock.max_file_block());
        while block < limit {
            let before = found.len();
            let leaf = inode.data.leaf(self, inode.stat.inode, FileBlock(block), &mut found);
            budget.spend(1, found.len() - before)?;
            block = match leaf {
                Ok(end) => end.0.max(block + 1),
                Err(error) => {
                    fault = fault.or(Some(error.to_string()));
                    inode.data.end_of_leaf(self, inode.stat.inode, block).max(block + 1)
                }
            };
        }
        let mut next = FileBlock(0);
        // The freed blocks of a tree may be from different times, so their extents can overlap. An overlapping extent is removed.
        found.retain(|extent: &Extent| {
            let is_next = extent.first >= next;
            next = if is_next { extent.end() } else { next };
            is_next
        });
        let (had, count) = (inode.data.extents, found.len() as u64);
        let has_count = inode.data.format != super::fork::Format::Tree || had > 0;
        let lost = has_count && had != count;
        let fault = fault.or_else(|| {
            lost.then(|| {
                format!(
                    "the file had {had} extents; the positions of {} extents are lost",
                    had.abs_diff(count)
                )
            })
        });
        Ok((found, fault))
    }

    /// Counts the blocks of a deleted file that are free. If the file's inode is not freed yet, all its blocks still belong to the file.
    fn count_free(
        self: &Arc<Self>,
        file: &mut Deleted,
        free: &mut FreeBlocks<'_>,
        faults: &mut Vec<Error>,
    ) {
        let now = self.inode_as_stored(file.number());
        if now.is_ok_and(|inode| {
            inode.stat.links == 0 && inode.stat.generation == file.stat.generation
        }) {
            file.free = file.blocks;
            return;
        }
        for extent in &file.extents {
            match free.take(extent.start, extent.len) {
                Ok(count) => file.free += count,
                Err(error) if faults.is_empty() => faults.push(error),
                Err(_) => {}
            }
        }
    }
}
