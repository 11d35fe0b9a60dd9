//! Open files, and writes of their data.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::{Arc, TryLockError};

use ironmap::fs::{FileOps, Inode};
use ironmap::iomap::{Snapshot, WriteAt, WriteFile, WriteIntent};
use ironmap::open_file::OpenInode;
use ironmap::units::{FilePos, InodeNo};
use ironmap::{Error, ErrorKind, Result};

use super::MemFs;
use super::content::{OpenFile, no_space};

/// An open inode.
pub(super) struct Open {
    fs: MemFs,
    number: InodeNo,
    open: Arc<OpenInode>,
}

impl Open {
    pub(super) fn new(fs: &MemFs, number: InodeNo) -> Result<Self> {
        let mut tree = fs.tree();
        let node = tree.node_mut(number)?;
        node.holders += 1;
        Ok(Self { fs: fs.clone(), number, open: Arc::clone(&node.open) })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let last = self.fs.tree().node(self.number).is_ok_and(|node| node.holders == 1);
        if last && self.fs.kind.writes {
            // If the metadata of written data cannot be updated here, the next sync tries it again.
            let converted = self.fs.convert(self.number);
            let give_back = |file: &mut OpenFile<'_>| {
                file.give_back(0..u64::MAX);
                Ok(())
            };
            let _ = converted.and_then(|()| self.fs.change_content(self.number, give_back));
        }
        let mut tree = self.fs.tree();
        if let Ok(node) = tree.node_mut(self.number) {
            node.holders -= 1;
        }
        tree.end_unused(self.number);
    }
}

impl FileOps for Open {
    fn number(&self) -> InodeNo {
        self.number
    }

    fn inode(&self) -> Result<Inode> {
        self.fs.decode(&self.fs.tree(), self.number).map(Inode::new)
    }

    fn writes(self: Arc<Self>) -> Option<(Arc<OpenInode>, Arc<dyn WriteFile>)> {
        self.fs.kind.writes.then(|| (Arc::clone(&self.open), self as Arc<dyn WriteFile>))
    }
}

impl WriteFile for Open {
    fn read(&self, intent: WriteIntent) -> Result<Snapshot> {
        let tree = match self.fs.tree.try_lock() {
            Ok(tree) => tree,
            Err(TryLockError::Poisoned(tree)) => tree.into_inner(),
            Err(TryLockError::WouldBlock) if intent.contains(WriteIntent::NOWAIT) => {
                return Err(Error::new(ErrorKind::WouldBlock, "someone has the inodes"));
            }
            Err(TryLockError::WouldBlock) => self.fs.tree(),
        };
        let changes = self.open.changes();
        let inode = self.fs.decode(&tree, self.number)?;
        let plain = tree.ended.is_none() && !inode.is_privileged(intent);
        Ok(Snapshot { changes, plain, map: Box::new(inode) })
    }

    fn size(&self) -> Result<u64> {
        // While the lock of the tree is held, no unwritten block is converted to a written block.
        let tree = self.fs.tree();
        let size = tree.node(self.number)?.stat.size;
        Ok(size.max(self.open.unconverted().size))
    }

    fn allocate(&self, range: Range<u64>, whole: bool) -> Result<u64> {
        self.fs.gate.pass();
        let mut tree = self.fs.change()?;
        let allocated = tree.file(&*self.fs.device, self.number)?.allocate(&range);
        self.open.changed();
        match allocated {
            Err(reached) if whole || reached <= range.start => Err(no_space()),
            Err(reached) => Ok(reached),
            Ok(()) => Ok(range.end),
        }
    }

    fn zero_tail(&self) -> Result<()> {
        self.fs.change_content(self.number, |file| file.zero_tail())
    }

    fn write_from(
        &self,
        at: WriteAt,
        bufs: &[IoSlice<'_>],
        intent: WriteIntent,
    ) -> Result<(FilePos, usize)> {
        self.fs.change_content(self.number, |file| {
            let size = file.stat.size;
            let pos = if let WriteAt::Pos(pos) = at { pos } else { FilePos(size) };
            let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
            let count = file.write(pos.0, &bytes)?;
            if count < bytes.len() && intent.contains(WriteIntent::WHOLE) {
                file.resize(size)?;
                return Err(no_space());
            }
            Ok((pos, count))
        })
    }

    fn convert(&self) -> Result<()> {
        self.fs.convert(self.number)
    }

    fn sync(&self, _data_only: bool) -> Result<()> {
        self.fs.convert(self.number)?;
        self.fs.write_log()
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn end_volume(&self, _why: &Error, then: &mut dyn FnMut()) {
        self.fs.end("a queue was lost");
        then();
    }
}
