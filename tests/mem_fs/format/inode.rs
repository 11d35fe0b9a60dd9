//! An inode as it was when it was read.

use std::sync::{Arc, OnceLock};

use ironmap::fs::{
    DirCursor, DirEntry, FileSystem, Inode, InodeOps, KeepSetId, ListDir, Listing, ReadDir, Stat,
    Xattr,
};
use ironmap::iomap::{Begun, ExtentMap, Iomap, MapFile, Write, WriteIntent, WriteMap};
use ironmap::open_file::OpenInode;
use ironmap::units::{FilePos, InodeNo};
use ironmap::{Error, ErrorKind, Result};

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
}

impl MemFs {
    /// An inode as users see it: its size includes writes that the metadata do not have yet.
    pub(super) fn read(&self, number: InodeNo) -> Result<MemInode> {
        let mut inode = self.decode(&self.tree(), number)?;
        inode.stat.size = inode.stat.size.max(inode.open.unconverted().size);
        Ok(inode)
    }

    /// An inode as the metadata have it.
    pub(super) fn decode(&self, tree: &Tree, number: InodeNo) -> Result<MemInode> {
        let node = tree.node(number)?;
        let (mut stat, map) = (node.stat.clone(), OnceLock::new());
        let mut link = None;
        match &node.content {
            Content::Blocks(blocks) => {
                stat.blocks = blocks.places().count() as u64 * BLOCK / 512;
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
        Ok(MemInode { fs: self.clone(), stat, open: Arc::clone(&node.open), map, link, xattrs })
    }
}

impl MemInode {
    /// The map of the file as it is now, and the number of changes with which it was read.
    fn read_map(&self) -> Result<(ExtentMap, u64)> {
        let tree = self.fs.tree();
        match &tree.node(self.stat.inode)?.content {
            Content::Blocks(blocks) => Ok((blocks.map()?, self.open.changes())),
            _ => Err(Error::new(ErrorKind::WrongFileType, "has no blocks")),
        }
    }
}

impl MapFile for MemInode {
    fn map(&self, pos: FilePos, _len: u64) -> Result<Iomap> {
        match self.map_resident(pos) {
            Some(iomap) => Ok(iomap),
            None => Ok(self.read_map()?.0.lookup(pos)),
        }
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
        let (map, changes) = self.read_map()?;
        let iomap = map.lookup(pos);
        if whole && changes == seen {
            let _ = self.map.set(Arc::new(map));
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
        if pos.0 > size && !size.is_multiple_of(BLOCK) && zeroed != Some(size) {
            return Ok(Begun::ZeroTail);
        }
        Ok(Begun::Direct { allocates: self.fs.kind.unwritten })
    }
}

impl MemInode {
    /// Whether a write takes something away.
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

/// The rest of a directory. Each entry is looked for when it is asked for.
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
        Some(Ok(DirEntry { name, inode, file_type }))
    }
}

impl ListDir for List {
    fn cursor(&self) -> DirCursor {
        DirCursor::from_raw(self.at)
    }
}
