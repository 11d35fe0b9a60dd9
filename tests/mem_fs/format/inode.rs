//! An inode, with the content that it had when it was read.

use std::sync::{Arc, OnceLock};

use ironmap::fs::{
    DirCursor, DirEntry, FileSystem, Inode, InodeOps, KeepSetId, ListDir, Listing, ReadDir, Stat,
    Writer, Xattr,
};
use ironmap::iomap::{Begun, ExtentMap, Iomap, MapFile, Write, WriteIntent, WriteMap};
use ironmap::open_file::OpenInode;
use ironmap::units::{FilePos, InodeNo};
use ironmap::{Error, ErrorKind, Result};

use super::content::Blocks;
use super::content::{BLOCK, LARGEST};
use super::tree::{Content, Tree};
use super::{MemFs, SET_ID};

pub(super) struct MemInode {
    fs: MemFs,
    stat: Stat,
    open: Arc<OpenInode>,
    map: OnceLock<Arc<ExtentMap>>,
    link: Option<Vec<u8>>,
    xattrs: Vec<Xattr>,
    /// Whether the file shares blocks with another file.
    pub(super) shares: bool,
}

impl MemFs {
    /// The inode as users see it. Its size includes writes that the metadata do not contain yet.
    pub(super) fn read(&self, number: InodeNo) -> Result<MemInode> {
        let mut inode = self.decode(&self.tree(), number)?;
        inode.stat.size = inode.stat.size.max(inode.open.unconverted().size);
        Ok(inode)
    }

    /// The inode as the metadata contain it.
    pub(super) fn decode(&self, tree: &Tree, number: InodeNo) -> Result<MemInode> {
        let node = tree.node(number)?;
        let (mut stat, map, mut shares) = (node.stat.clone(), OnceLock::new(), false);
        let mut link = None;
        match &node.content {
            Content::Blocks(blocks) => {
                shares = blocks.are_shared();
                stat.blocks = blocks.count() as u64 * BLOCK / 512;
                if self.kind.resident {
                    let _ = map.set(Arc::new(blocks.map()?));
                }
            }
            Content::Link(target) => link = Some(target.clone()),
            Content::Names(_) | Content::Nothing => {}
        }
        let xattr = |(name, value): (&Vec<_>, &Vec<_>)| {
            let (name, value) = (name.clone(), value.clone());
            Xattr { name, value }
        };
        let xattrs = node.xattrs.iter().map(xattr).collect();
        let (fs, open) = (self.clone(), Arc::clone(&node.open));
        Ok(MemInode { fs, stat, open, map, link, xattrs, shares })
    }
}

impl MemInode {
    /// Reads the present blocks of the file. Also returns how many changes the file has had so far.
    fn read_blocks<T>(&self, look: impl FnOnce(&Blocks) -> Result<T>) -> Result<(T, u64)> {
        let tree = self.fs.tree();
        match &tree.node(self.stat.inode)?.content {
            Content::Blocks(blocks) => Ok((look(blocks)?, self.open.changes())),
            _ => Err(Error::new(ErrorKind::WrongFileType, "has no blocks")),
        }
    }

    fn look_up(&self, pos: FilePos, to_write: bool) -> Result<(Iomap, u64)> {
        self.read_blocks(|blocks| match blocks.are_shared() {
            true => blocks.lookup(pos, to_write),
            false => Ok(blocks.map()?.lookup(pos)),
        })
    }
}

impl MapFile for MemInode {
    fn map(&self, pos: FilePos, _len: u64) -> Result<Iomap> {
        match self.map_resident(pos) {
            Some(iomap) => Ok(iomap),
            None => Ok(self.look_up(pos, false)?.0),
        }
    }

    fn map_to_write(&self, pos: FilePos, _len: u64) -> Result<Iomap> {
        Ok(self.look_up(pos, true)?.0)
    }

    fn map_resident(&self, pos: FilePos) -> Option<Iomap> {
        self.map.get().map(|map| map.lookup(pos))
    }

    fn read_inline(&self, _buf: &mut [u8], _pos: FilePos) -> Result<()> {
        Err(Error::invalid("the file has no inline data"))
    }
}

impl WriteMap for MemInode {
    fn size(&self) -> u64 {
        self.stat.size
    }

    fn resident_map(&self) -> Option<&Arc<ExtentMap>> {
        self.map.get()
    }

    fn map_now(&self, pos: FilePos, seen: u64, whole: bool) -> Result<(Iomap, u64)> {
        let (iomap, changes) = self.look_up(pos, false)?;
        if whole && changes == seen {
            let _ = self.map.set(Arc::new(self.read_blocks(Blocks::map)?.0));
        }
        Ok((iomap, changes))
    }

    fn begin(&self, write: &Write) -> Result<Begun> {
        let &Write { pos, len, size, zeroed, intent } = write;
        drop(self.fs.change()?);
        let end = pos.0.checked_add(len).filter(|end| *end <= LARGEST);
        let end = end.ok_or_else(|| Error::new(ErrorKind::FileTooLarge, "past the last block"))?;
        let strips = self.is_privileged(intent);
        if intent.contains(WriteIntent::NOWAIT) && (strips || end > size) {
            return Err(Error::new(ErrorKind::WouldBlock, "the inode would have to change"));
        }
        if strips {
            self.fs.strip_privileges(self.stat.inode, KeepSetId::No)?;
        }
        if self.shares && (pos.0 | len) % BLOCK != 0 {
            return Ok(Begun::ByFileSystem);
        }
        if pos.0 > size && !size.is_multiple_of(BLOCK) && zeroed != Some(size) {
            return Ok(Begun::ZeroTail);
        }
        Ok(Begun::Direct { allocates: self.fs.kind.unwritten })
    }
}

impl MemInode {
    /// Whether a write must remove set-id bits or capabilities.
    pub(super) fn is_privileged(&self, intent: WriteIntent) -> bool {
        !intent.contains(WriteIntent::KEEP_SET_ID) && self.stat.mode & SET_ID != 0
    }
}

impl InodeOps for MemInode {
    fn stat(&self) -> &Stat {
        &self.stat
    }

    fn resident_map(&self) -> Option<&Arc<ExtentMap>> {
        self.map.get()
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        let target = self.link.clone();
        target.ok_or_else(|| Error::new(ErrorKind::WrongFileType, "is not a symbolic link"))
    }

    fn xattrs(&self) -> Result<Vec<Xattr>> {
        Ok(self.xattrs.clone())
    }

    fn lookup(&self, name: &[u8]) -> Result<Inode> {
        self.fs.lookup(self.stat.inode, name)
    }

    fn read_dir(&self) -> Result<ReadDir<'_>> {
        Ok(Box::new(self.list(DirCursor::START)?))
    }

    fn list(&self, from: DirCursor) -> Result<Listing> {
        self.fs.tree().names(self.stat.inode)?;
        Ok(Box::new(List { fs: self.fs.clone(), dir: self.stat.inode, at: from.to_raw() }))
    }
}

/// The entries of a directory that have not been returned yet. Each entry is looked up when it is requested.
struct List {
    fs: MemFs,
    dir: InodeNo,
    at: u64,
}

impl Iterator for List {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let tree = self.fs.tree();
        let (name, inode, at) = tree.names(self.dir).ok()?.behind(self.dir, self.at)?;
        self.at = at;
        let file_type = tree.node(inode).ok().map(|node| node.stat.file_type);
        Some(Ok(DirEntry::new(name, inode, file_type)))
    }
}

impl ListDir for List {
    fn cursor(&self) -> DirCursor {
        DirCursor::from_raw(self.at)
    }
}
