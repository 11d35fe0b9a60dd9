//! All inodes, and the free blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ironmap::device::Device;
use ironmap::fs::{FileType, Stat, Timestamp};
use ironmap::open_file::{OpenInode, Unconverted};
use ironmap::units::InodeNo;
use ironmap::{Error, ErrorKind, Result};

use super::content::{BLOCK, Blocks, OpenFile};
use super::names::Names;

pub(super) const ROOT: InodeNo = InodeNo(2);

pub(super) struct Tree {
    pub(super) nodes: BTreeMap<InodeNo, Node>,
    pub(super) free: BTreeSet<u64>,
    /// The reason why the volume refuses all changes. `None` if it permits changes.
    pub(super) ended: Option<&'static str>,
    last: InodeNo,
    /// The number of syncs of a volume with a log.
    pub(super) syncs: u64,
}

pub(super) struct Node {
    pub(super) stat: Stat,
    pub(super) content: Content,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) open: Arc<OpenInode>,
    /// How many handles and other values keep the inode in use.
    pub(super) holders: u32,
}

pub(super) enum Content {
    Blocks(Blocks),
    Names(Names),
    Link(Vec<u8>),
    Nothing,
}

impl Tree {
    pub(super) fn new(blocks: impl Iterator<Item = u64>) -> Self {
        let (nodes, free) = (BTreeMap::new(), blocks.collect());
        let mut tree = Self { nodes, free, ended: None, last: InodeNo(ROOT.0 - 1), syncs: 0 };
        let root = tree.add(FileType::Directory, Content::Names(Names::of(ROOT)));
        root.stat.links = 2;
        root.stat.mode |= 0o755;
        tree
    }

    /// Adds an inode without a name.
    pub(super) fn add(&mut self, file_type: FileType, content: Content) -> &mut Node {
        self.last.0 += 1;
        let now = Timestamp::default();
        let stat = Stat::new(self.last, file_type)
            .mode(file_type.to_mode())
            .size(if let Content::Link(target) = &content { target.len() as u64 } else { 0 })
            .block_size(BLOCK as u32)
            .accessed(now)
            .modified(now)
            .changed(now);
        let (xattrs, open) = (BTreeMap::new(), Arc::default());
        self.nodes.entry(self.last).or_insert(Node { stat, content, xattrs, open, holders: 0 })
    }

    pub(super) fn node(&self, number: InodeNo) -> Result<&Node> {
        self.nodes.get(&number).ok_or_else(no_inode)
    }

    pub(super) fn node_mut(&mut self, number: InodeNo) -> Result<&mut Node> {
        self.nodes.get_mut(&number).ok_or_else(no_inode)
    }

    pub(super) fn open(&self, number: InodeNo) -> Result<Arc<OpenInode>> {
        Ok(Arc::clone(&self.node(number)?.open))
    }

    /// A regular file, together with the parts of the tree that a change of its content needs.
    pub(super) fn file<'a>(
        &'a mut self,
        device: &'a dyn Device,
        number: InodeNo,
    ) -> Result<OpenFile<'a>> {
        let node = self.nodes.get_mut(&number).ok_or_else(no_inode)?;
        match &mut node.content {
            Content::Blocks(blocks) => {
                let (open, stat) = (&node.open, &mut node.stat);
                Ok(OpenFile { device, free: &mut self.free, open, stat, blocks })
            }
            Content::Names(_) => Err(Error::new(ErrorKind::IsADirectory, "is a directory")),
            _ => Err(Error::new(ErrorKind::WrongFileType, "is not a regular file")),
        }
    }

    /// The files with written data whose metadata are not updated yet.
    pub(super) fn unconverted(&self) -> Vec<InodeNo> {
        let waits = |node: &Node| node.open.unconverted() != Unconverted::default();
        self.nodes.values().filter(|node| waits(node)).map(|node| node.stat.inode).collect()
    }

    /// Frees an inode that has no name and is not open.
    pub(super) fn end_unused(&mut self, number: InodeNo) {
        let unused = |node: &&Node| node.stat.links == 0 && node.holders == 0;
        if self.nodes.get(&number).filter(unused).is_none() {
            return;
        }
        if let Some(Node { content: Content::Blocks(blocks), .. }) = self.nodes.remove(&number) {
            self.free.extend(blocks.own_places());
        }
    }
}

fn no_inode() -> Error {
    Error::new(ErrorKind::NotFound, "no such inode")
}
