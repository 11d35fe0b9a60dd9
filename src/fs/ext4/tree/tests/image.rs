//! A volume made by mke2fs with one empty file in it, asked by programs that know nothing of us.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use crate::device::{BlockFile, OpenMode, Psync};
use crate::error::Result;
use crate::fs::Timestamp;
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::{Clock, Ext4, Follow, Inode};
use crate::iomap::{Extent, ExtentState, MapFile};
use crate::units::{FileBlock, FilePos, FsBlock, InodeNo};

/// An image file, gone when dropped.
pub(super) struct Image {
    dir: tempfile::TempDir,
}

impl Image {
    /// A volume of this size, made with these options of mke2fs, as one writes them in a shell. It holds the file `f`.
    pub(super) fn new(options: &str, size: &str) -> Self {
        let prefix = format!("ironmap-test-{}-", std::process::id());
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir().unwrap();
        std::fs::create_dir(dir.path().join("content")).unwrap();
        std::fs::write(dir.path().join("content/f"), b"").unwrap();
        let image = Self { dir };
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-Fq", "-d"]).arg(image.dir.path().join("content"));
        mke2fs.args(options.split_whitespace()).arg(image.path()).arg(size);
        let out = mke2fs.output().unwrap();
        assert!(out.status.success(), "{options}: {}", String::from_utf8_lossy(&out.stderr));
        image
    }

    pub(super) fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    pub(super) fn open(&self) -> File {
        let mode = OpenMode { write: true, ..OpenMode::default() };
        let device = Psync::new(Arc::new(BlockFile::open(&self.path(), &mode).unwrap()));
        let clock = Clock::Fixed(Timestamp { seconds: 1_700_000_000, nanoseconds: 5 });
        let fs = Ext4::open_for_writing(Arc::new(device), &Arc::default(), clock).unwrap();
        let number = fs.resolve(b"/f", Follow::All).unwrap().number();
        File { fs, number }
    }

    /// What debugfs answers.
    pub(super) fn debugfs(&self, command: &str) -> String {
        let out = Command::new("debugfs").args(["-R", command]).arg(self.path()).output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// e2fsck finds nothing to repair. It may offer to write a tree anew that has room in its nodes.
    pub(super) fn fsck(&self) {
        let out = Command::new("e2fsck").arg("-fn").arg(self.path()).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        let mut questions = text.lines().filter(|line| line.contains("? "));
        let offers = questions.all(|line| line.contains("Optimize? no"));
        assert!(out.status.success() && offers, "{text}");
    }
}

/// The file of a volume that is open for writing.
pub(super) struct File {
    pub(super) fs: Arc<Ext4>,
    pub(super) number: InodeNo,
}

impl File {
    pub(super) fn inode(&self) -> Inode {
        self.fs.inode(self.number).unwrap()
    }

    /// Runs a change of the map in a transaction of its own, with a few credits for other things.
    pub(super) fn change<R>(
        &self,
        work: impl FnOnce(&mut Handle<'_>, &Inode) -> Result<R>,
    ) -> Result<R> {
        let inode = self.inode();
        let credits = self.fs.credits_for_unmap(&inode) + 3;
        self.fs.transact(credits, |handle| work(handle, &inode))
    }

    /// Allocates some of the blocks that are wanted from a goal on.
    pub(super) fn allocate(&self, goal: u64, want: u32) -> (u64, u32) {
        let cluster = self.fs.superblock.cluster_blocks;
        let (start, len) =
            self.change(|handle, _| self.fs.allocate_blocks(handle, FsBlock(goal), want)).unwrap();
        assert_eq!(len % cluster, 0);
        (start.0, len)
    }

    pub(super) fn map(&self, first: u64, start: u64, len: u32, state: ExtentState) -> Result<()> {
        let extent = Extent { first: FileBlock(first), start: FsBlock(start), len, state };
        let inode = self.inode();
        let credits = self.fs.credits_for_map(&inode) + 1;
        self.fs.transact(credits, |handle| {
            self.fs.map_extent(handle, &inode, extent)?;
            assert!(len > 256 || handle.credits_left() > 0, "more than {credits} blocks changed");
            Ok(())
        })
    }

    pub(super) fn unmap(&self, start: u64, end: u64) -> Result<()> {
        let range = FileBlock(start)..FileBlock(end);
        self.change(|handle, inode| self.fs.unmap_range(handle, inode, range))
    }

    pub(super) fn set_state(&self, start: u64, end: u64, state: ExtentState) -> Result<()> {
        let range = FileBlock(start)..FileBlock(end);
        self.change(|handle, inode| self.fs.set_range_state(handle, inode, range, state))
    }

    pub(super) fn shift(&self, from: u64, by: i64) -> Result<()> {
        self.change(|handle, inode| self.fs.shift_range(handle, inode, FileBlock(from), by))
    }

    pub(super) fn set_size(&self, blocks: u64) {
        let size = blocks * self.fs.superblock.block_size.bytes() as u64;
        self.change(|handle, _| {
            self.fs.update_inode(handle, self.number, |inode| inode.set_size(size))
        })
        .unwrap();
    }

    /// The map as we read it, joined.
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
