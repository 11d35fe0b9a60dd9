//! A volume with one empty file, for tests that change its map.

use std::sync::Arc;

use crate::error::Result;
use crate::fs::ext4::Ext4;
use crate::fs::ext4::for_tests::Image;
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::operation::InodeToChange;
use crate::fs::{FileSystem, Follow};
use crate::iomap::{Extent, ExtentState, MapFile};
use crate::units::{FileBlock, FilePos, FsBlock, InodeNo};

impl Image {
    /// A volume that contains the file `f`.
    pub(super) fn with_file(options: &str, size: &str) -> Self {
        Self::with_tree(options, size, |root| std::fs::write(root.join("f"), b"").unwrap())
    }

    pub(super) fn open_file(&self) -> File {
        let fs = self.open();
        let number = fs.resolve(b"/f", Follow::All).unwrap().number();
        File { fs, number }
    }
}

/// The file `f`, on a volume that is open for writing.
pub(super) struct File {
    pub(super) fs: Arc<Ext4>,
    pub(super) number: InodeNo,
}

impl File {
    pub(super) fn inode(&self) -> InodeToChange<'static> {
        InodeToChange::in_test(self.fs.inode(self.number).unwrap())
    }

    /// Changes the map in a separate transaction. The transaction has a few more credits than the change of the map needs.
    pub(super) fn change<R>(
        &self,
        work: impl FnOnce(&mut Handle<'_>, &InodeToChange<'static>) -> Result<R>,
    ) -> Result<R> {
        let inode = self.inode();
        let credits = inode.credits_for_unmap() + 3;
        self.fs.transact(credits, |handle| work(handle, &inode))
    }

    /// Allocates up to `want` blocks from `goal` on.
    pub(super) fn allocate(&self, goal: u64, want: u32) -> (u64, u32) {
        let cluster = self.fs.superblock.cluster_blocks;
        let (start, len) =
            self.change(|handle, _| handle.allocate_blocks(FsBlock(goal), want)).unwrap();
        assert_eq!(len % cluster, 0);
        (start.0, len)
    }

    pub(super) fn map(&self, first: u64, start: u64, len: u32, state: ExtentState) -> Result<()> {
        let extent = Extent { first: FileBlock(first), start: FsBlock(start), len, state };
        let inode = self.inode();
        let credits = inode.credits_for_map() + 1;
        self.fs.transact(credits, |handle| {
            inode.map_extent(handle, extent)?;
            assert!(len > 256 || handle.credits_left() > 0, "more than {credits} blocks changed");
            Ok(())
        })
    }

    pub(super) fn unmap(&self, start: u64, end: u64) -> Result<()> {
        let range = FileBlock(start)..FileBlock(end);
        self.change(|handle, inode| inode.unmap_range(handle, range))
    }

    pub(super) fn set_state(&self, start: u64, end: u64, state: ExtentState) -> Result<()> {
        let range = FileBlock(start)..FileBlock(end);
        self.change(|handle, inode| inode.set_range_state(handle, range, state))
    }

    pub(super) fn shift(&self, from: u64, by: i64) -> Result<()> {
        self.change(|handle, inode| inode.shift_range(handle, FileBlock(from), by))
    }

    pub(super) fn set_size(&self, blocks: u64) {
        let size = blocks * self.fs.superblock.block_size.bytes() as u64;
        self.change(|handle, inode| handle.update_inode(inode, |inode| inode.set_size(size)))
            .unwrap();
    }

    /// The decoded map. Adjoining extents are merged.
    pub(super) fn extents(&self) -> Vec<Extent> {
        let inode = self.inode();
        inode.map(FilePos(0), 1).unwrap();
        inode.map.get().unwrap().as_ref().unwrap().extents().to_vec()
    }

    pub(super) fn depth(&self) -> u16 {
        let root = self.inode().i_block;
        u16::from_le_bytes([root[6], root[7]])
    }

    pub(super) fn close(self) {
        self.fs.close().unwrap();
    }
}

pub(super) fn extent(first: u64, start: u64, len: u32, state: ExtentState) -> Extent {
    Extent { first: FileBlock(first), start: FsBlock(start), len, state }
}
