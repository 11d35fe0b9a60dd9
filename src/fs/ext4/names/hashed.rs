//! Adds names to the leaves of a hash tree, and adds nodes to the tree.

use smallvec::SmallVec;
use zerocopy::{FromBytes, IntoBytes};

use super::super::casefold::Wanted;
use super::super::dir_block::{Area, HEADER, Home, raw_record_length};
use super::super::disk::dir::{
    DX_NODE_COUNT_OFFSET, DX_ROOT_COUNT_OFFSET, DX_ROOT_INFO_OFFSET, RawDirEntry, RawDxCount,
    RawDxEntry, RawDxRootInfo,
};
use super::super::hash::NameHash;
use super::super::htree::{ENTRY, dx_offset, dx_position};
use super::super::jbd2::Handle;
use super::super::superblock::Superblock;
use super::{Addition, Directory, PLACE, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::units::{FileBlock, FsBlock};

/// The path from the root of a hash tree to the leaf for a hash.
pub(super) struct Path {
    pub(super) hash: NameHash,
    /// The nodes from the root downwards. The path contains at least the root.
    nodes: SmallVec<[Node; 3]>,
    pub(super) leaf: Area,
}

/// A node on the path from the root of the hash tree to a leaf.
#[derive(Clone, Copy)]
pub(super) struct Node {
    block: FileBlock,
    at: FsBlock,
    /// The index of the node's entry that points to the next block on the path to the leaf.
    entry: usize,
    count: usize,
    /// The hash of the node's entry after the entry that points to the next block on the path. `None` if the node has no such entry.
    next: Option<u32>,
}

impl Node {
    fn is_full(&self, sb: &Superblock) -> bool {
        self.count >= sb.dx_limit(dx_offset(self.block))
    }

    /// Whether an entry with this hash may be inserted directly after the entry that points to the next block on the path.
    pub(super) fn takes(&self, hash: u32) -> bool {
        self.next.is_none_or(|next| hash <= next)
    }
}

impl Path {
    pub(super) fn parent(&self) -> &Node {
        &self.nodes[self.nodes.len() - 1]
    }
}

impl Directory<'_> {
    /// Adds a name to the leaf for its hash. If the leaf is full, splits the leaf. If the node above the leaf is also full, the function
    /// only makes space in that node. The caller must then call the function again to add the name.
    pub(super) fn add_hashed(&self, h: &mut Handle<'_>, addition: &Addition<'_>) -> Result<Step> {
        let path = self.path_to(&addition.wanted)?;
        let (name, target) = (addition.wanted.name, addition.target);
        if let Some(gap) = path.leaf.gap(name, &self.fs)? {
            let home = path.leaf.home;
            drop(path);
            self.change_entries(h, home, |mut entries| entries.insert(gap, name, target))?;
            Ok(Step::Added)
        } else if path.parent().is_full(&self.fs.superblock) {
            self.grow_nodes(h, &path)?;
            Ok(Step::Grown)
        } else {
            self.split_leaf(h, &path, addition)?;
            Ok(Step::Added)
        }
    }

    fn path_to(&self, wanted: &Wanted<'_>) -> Result<Path> {
        let root = self.dx_root()?;
        let hash = root.hash.of(wanted.hashed_bytes());
        let (mut below, mut nodes) = (root.area, SmallVec::new());
        for _ in 0..=root.levels {
            let Home::Block(block, at) = below.home else {
                return Err(below.place.corrupt(
                    "a node of the hash tree is in the inode, not in a block of the directory",
                ));
            };
            let entries = self.dx_entries(&below)?;
            let entry = dx_position(entries, hash);
            let next = entries.get(entry + 1).map(|entry| entry.hash.get());
            nodes.push(Node { block, at, entry, count: entries.len(), next });
            below = self.dx_child(&entries[entry], &below)?;
        }
        if below.end != self.fs.superblock.entries_end() {
            return Err(below
                .place
                .corrupt("the hash tree has an index node at the position of a leaf"));
        }
        Ok(Path { hash: root.hash, nodes, leaf: below })
    }

    /// Makes space in the nodes above a leaf: splits the highest node that must be split. If all nodes are full, adds a level below the
    /// root.
    fn grow_nodes(&self, h: &mut Handle<'_>, path: &Path) -> Result<()> {
        let nodes = &path.nodes;
        match nodes.iter().rposition(|node| !node.is_full(&self.fs.superblock)) {
            Some(above) => self.split_node(h, &nodes[above], &nodes[above + 1]),
            None if nodes.len() > usize::from(self.fs.superblock.deepest_htree()) => {
                let what = format!("the hash tree of directory inode {} is full", self.number);
                Err(Error::new(ErrorKind::NoSpace, what))
            }
            None => self.deepen(h, &nodes[0]),
        }
    }

    /// Moves the upper half of a node's entries to a new node. In the parent, inserts the new node after the old node.
    fn split_node(&self, h: &mut Handle<'_>, above: &Node, node: &Node) -> Result<()> {
        let half = node.count / 2;
        let (upper, hash) = {
            let area = self.node_area(node)?;
            let entries = &self.dx_entries(&area)?[half..];
            (entries.as_bytes().to_vec(), entries[0].hash.get())
        };
        let new = self.append_node(h, &upper)?;
        self.change_node(h, node, |bytes| {
            set_count(bytes, DX_NODE_COUNT_OFFSET, &self.fs.superblock, half);
        })?;
        self.insert_after(h, above, hash, new)
    }

    /// Moves all entries of the root to a new node. The new node becomes the only child of the root.
    fn deepen(&self, h: &mut Handle<'_>, root: &Node) -> Result<()> {
        let entries = {
            let area = self.node_area(root)?;
            self.dx_entries(&area)?.as_bytes().to_vec()
        };
        let new = self.append_node(h, &entries)?;
        self.change_node(h, root, |bytes| {
            if let Ok((info, _)) = RawDxRootInfo::mut_from_prefix(&mut bytes[DX_ROOT_INFO_OFFSET..])
            {
                info.indirect_levels += 1;
            }
            put_entry(bytes, DX_ROOT_COUNT_OFFSET, 0, new);
            set_count(bytes, DX_ROOT_COUNT_OFFSET, &self.fs.superblock, 1);
        })
    }

    fn node_area(&self, node: &Node) -> Result<Area> {
        let area = self.dir_block(node.block)?;
        area.ok_or_else(|| PLACE.inode(self.number).corrupt("a node of the hash tree is a hole"))
    }

    fn append_node(&self, h: &mut Handle<'_>, entries: &[u8]) -> Result<FileBlock> {
        let block = FileBlock(self.dir_blocks()?);
        self.append_block(h, |bytes| {
            // The node begins with an unused entry that fills the block. A linear reader therefore skips the node.
            let raw = RawDirEntry {
                inode: 0.into(),
                rec_len: raw_record_length(bytes.len()).into(),
                name_len: 0,
                file_type: 0,
            };
            bytes[..HEADER].copy_from_slice(raw.as_bytes());
            bytes[DX_NODE_COUNT_OFFSET..][..entries.len()].copy_from_slice(entries);
            let count = entries.len() / ENTRY;
            set_count(bytes, DX_NODE_COUNT_OFFSET, &self.fs.superblock, count);
            self.seal_node(block, bytes);
        })
    }

    /// Inserts an entry into a node, directly after the entry that points to the next block on the path to the leaf. The node must not be
    /// full.
    pub(super) fn insert_after(
        &self,
        h: &mut Handle<'_>,
        node: &Node,
        hash: u32,
        block: FileBlock,
    ) -> Result<()> {
        let offset = dx_offset(node.block);
        self.change_node(h, node, |bytes| {
            let at = offset + (node.entry + 1) * ENTRY;
            bytes.copy_within(at..offset + node.count * ENTRY, at + ENTRY);
            put_entry(bytes, at, hash, block);
            set_count(bytes, offset, &self.fs.superblock, node.count + 1);
        })
    }

    fn change_node(
        &self,
        h: &mut Handle<'_>,
        node: &Node,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        h.update(node.at, PLACE.inode(self.number), |bytes| {
            change(bytes);
            self.seal_node(node.block, bytes);
            Ok(())
        })
    }
}

/// Writes an entry of a node.
pub(super) fn put_entry(bytes: &mut [u8], at: usize, hash: u32, block: FileBlock) {
    let raw = RawDxEntry { hash: hash.into(), block: (block.0 as u32).into() };
    bytes[at..at + ENTRY].copy_from_slice(raw.as_bytes());
}

/// Writes the header of a node. The header is stored in the bytes of the first entry's hash.
pub(super) fn set_count(bytes: &mut [u8], offset: usize, sb: &Superblock, count: usize) {
    let limit = sb.dx_limit(offset) as u16;
    let raw = RawDxCount { limit: limit.into(), count: (count as u16).into() };
    bytes[offset..offset + size_of::<RawDxCount>()].copy_from_slice(raw.as_bytes());
}
