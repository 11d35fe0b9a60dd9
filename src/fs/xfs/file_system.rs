//! The [`FileSystem`] implementation of XFS.

use std::sync::Arc;

use super::dir::{OnFault, XfsListing};
use super::inode::XfsInode;
use super::overwrite::OpenFile;
use super::{Superblock, Xfs};
use crate::error::{Error, Result};
use crate::fs::check::{Progress, Report};
use crate::fs::deleted::Deleted;
use crate::fs::{
    self, Capabilities, DirCursor, FileOps, FileSystem, Footprint, Format, FreeSpace, How,
    InodeOps, ListDir, ReadDir, Stat, Usage, Xattr,
};
use crate::iomap::{ExtentMap, WriteFile};
use crate::open_file::OpenInode;
use crate::units::InodeNo;

/// The entry for XFS in the table of formats.
pub(crate) const FORMAT: Format = Format {
    name: "XFS",
    is_on: Superblock::is_on,
    find_backup: super::rescue::find_backup,
    wanted_journal: None,
    footprint: |device| {
        let superblock = Superblock::read(device)?;
        Ok(Footprint { end: superblock.end(), block_size: superblock.block_size() })
    },
    open: |device, events, how| match how {
        How::Read => Ok(Arc::new(Xfs::open(device, events)?)),
        How::Rescue(rescue) => Ok(Arc::new(Xfs::open_damaged(device, events, rescue)?)),
        How::Write(_) => Ok(Arc::new(Xfs::open_for_overwrites(device, events)?)),
    },
};

/// The number of blocks that each group reserves for its own trees.
const SET_ASIDE: u64 = 8;
/// The largest inode number.
const LARGEST_INODE: u64 = (1 << 56) - 1;

impl FileSystem for Arc<Xfs> {
    fn format(&self) -> &'static str {
        "xfs"
    }

    fn capabilities(&self) -> Capabilities {
        let all = Capabilities::JOURNAL | Capabilities::XATTRS | Capabilities::PROJECTS;
        if self.overwriting.is_some() { all | Capabilities::WRITE } else { all }
    }

    fn root(&self) -> InodeNo {
        self.superblock.root
    }

    fn usage(&self) -> Usage {
        let sb = &self.superblock;
        let log = if sb.log_start == 0 { 0 } else { sb.log_blocks.into() };
        let aside = SET_ASIDE * u64::from(sb.geometry.groups);
        let aside = aside + self.free_space_trees();
        let free = sb.free_blocks.saturating_sub(aside);
        let log_inodes = sb.geometry.inodes_per_block_log.min(63);
        let possible = free << log_inodes;
        let most = match u128::from(sb.max_inode_percent) {
            0 => LARGEST_INODE,
            percent => {
                // The space for inodes is rounded down to whole chunks, because inodes are created in chunks.
                let blocks = (u128::from(sb.geometry.blocks) * percent / 100) as u64;
                let chunk = u64::from(sb.geometry.inodes_made()) >> log_inodes;
                (blocks / chunk * chunk) << log_inodes
            }
        };
        let inodes = sb.inodes.saturating_add(possible).min(most).max(sb.inodes);
        let used = sb.inodes.saturating_sub(sb.free_inodes);
        let free_inodes = inodes.saturating_sub(used);
        let blocks = sb.geometry.blocks.saturating_sub(log);
        Usage::new(sb.block_size() as u32, blocks, inodes, FreeSpace::new(free, free, free_inodes))
    }

    fn check(&self, progress: &mut dyn FnMut(Progress)) -> Result<Report> {
        Xfs::check(self, progress)
    }

    fn deleted(&self) -> Result<Vec<Deleted>> {
        Xfs::deleted(self)
    }

    fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut *self.notices.lock())
    }

    fn has_lost_names(&self, dir: InodeNo) -> bool {
        self.incomplete.lock().contains(&dir)
    }

    fn used_inodes(
        &self,
        found: &mut dyn FnMut(InodeNo, Result<fs::Inode>) -> Result<()>,
    ) -> Result<()> {
        Xfs::used_inodes(self, found)
    }

    fn inode(&self, number: InodeNo) -> Result<fs::Inode> {
        Xfs::inode_by_number(self, number).map(fs::Inode::new)
    }

    fn known_inode(&self, number: InodeNo) -> Result<fs::Inode> {
        Xfs::inode(self, number).map(fs::Inode::new)
    }

    fn look(
        &self,
        number: InodeNo,
        look: &mut dyn FnMut(&dyn InodeOps) -> Result<()>,
    ) -> Result<()> {
        look(&Xfs::inode(self, number)?)
    }

    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<fs::Inode> {
        Xfs::inode(self, dir)?.lookup(name).map(fs::Inode::new)
    }

    fn hold(&self, number: InodeNo) -> Result<fs::Held> {
        let inode = Xfs::inode(self, number)?;
        match &self.overwriting {
            Some(overwriting) => Ok(fs::Held::new(OpenFile::new(inode, overwriting))),
            None => Ok(fs::Held::new(XfsHeld { fs: Arc::clone(self), number })),
        }
    }

    fn hold_read(&self, inode: fs::Inode) -> Result<(fs::Held, fs::Inode)> {
        // ironmap never changes or frees an inode of XFS, so `inode` is in its present state. The inode may have no name.
        if self.overwriting.is_some() {
            return Ok((FileSystem::hold(self, inode.number())?, inode));
        }
        let held = XfsHeld { fs: Arc::clone(self), number: inode.number() };
        Ok((fs::Held::new(held), inode))
    }

    fn sync(&self) -> Result<()> {
        self.flush()
    }

    fn close(&self) -> Result<()> {
        self.end_writing()
    }

    fn not_written(&self) -> Error {
        Error::read_only(
            "on XFS only the data of files can be overwritten: this operation would change metadata",
        )
    }
}

impl FileOps for OpenFile {
    fn number(&self) -> InodeNo {
        OpenFile::number(self)
    }

    fn inode(&self) -> Result<fs::Inode> {
        self.fs().inode(OpenFile::number(self)).map(fs::Inode::new)
    }

    fn writes(self: Arc<Self>) -> Option<(Arc<OpenInode>, Arc<dyn WriteFile>)> {
        Some((self.open_inode(), self))
    }
}

/// An open inode of a volume that is open for reading.
struct XfsHeld {
    fs: Arc<Xfs>,
    number: InodeNo,
}

impl FileOps for XfsHeld {
    fn number(&self) -> InodeNo {
        self.number
    }

    fn inode(&self) -> Result<fs::Inode> {
        self.fs.known_inode(self.number)
    }
}

impl InodeOps for XfsInode {
    fn stat(&self) -> &Stat {
        &self.stat
    }

    fn is_internal(&self) -> bool {
        self.is_metadata
    }

    fn resident_map(&self) -> Option<&Arc<ExtentMap>> {
        XfsInode::resident_map(self)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        XfsInode::read_link(self)
    }

    fn xattrs(&self) -> Result<Vec<Xattr>> {
        XfsInode::xattrs(self)
    }

    fn lookup(&self, name: &[u8]) -> Result<fs::Inode> {
        XfsInode::lookup(self, name).map(fs::Inode::new)
    }

    fn read_dir(&self) -> Result<ReadDir<'_>> {
        Ok(Box::new(XfsInode::list(self, DirCursor::START, OnFault::Report)?))
    }

    fn list(&self, from: DirCursor) -> Result<fs::Listing> {
        Ok(Box::new(XfsInode::list(self, from, OnFault::PassOver)?))
    }
}

impl ListDir for XfsListing {
    fn cursor(&self) -> DirCursor {
        XfsListing::cursor(self)
    }
}
