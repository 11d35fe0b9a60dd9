//! The basic change of an extent tree: new extents replace extents of a leaf. A node with too many entries is split, and an empty node is
//! freed. If the first key of a node or the number of nodes changes, the entries on the next higher level are replaced in the same way.
//!
//! Blocks for new nodes are allocated before the first change. `NoSpace` therefore leaves the tree unchanged.

use std::ops::Range;

use smallvec::smallvec;

use super::node::{Entries, NodeMut, capacity, index, leaf_entry};
use super::path::{Path, Step, Tree};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::ext4::alloc::{Freed, Reserve};
use crate::fs::ext4::disk::extent::{MAX_DEPTH, MOST_LEVELS, RawEntry};
use crate::fs::ext4::features::RoCompat;
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::tree::read_extents::seal_extent_block;
use crate::iomap::Extent;
use crate::units::{FileBlock, FsBlock};

/// A change of one node: the range of the replaced entries, and the new entries.
struct Edit {
    range: Range<usize>,
    with: Entries,
}

/// A change in progress. The inode is written as the last step.
struct Change<'t, 'h, 'f> {
    tree: Tree<'t>,
    handle: &'h mut Handle<'f>,
    /// The blocks for new nodes that are not used yet.
    spare: Vec<FsBlock>,
    /// Nodes that the new tree does not need. These nodes are freed after the last reference to them is removed. A change that fails
    /// earlier therefore leaves no reference to a free block.
    released: Vec<FsBlock>,
    /// The change of the number of clusters that the inode uses.
    clusters: i64,
    root: Option<[u8; 60]>,
}

impl Tree<'_> {
    /// Replaces extents of the leaf at the end of a path. `clusters` is the number of data clusters that the change adds. A negative number
    /// means that clusters are freed. If `clusters` is not positive, new nodes may use blocks that are reserved for nodes.
    ///
    /// # Errors
    /// `NoSpace`, `FileTooLarge`; nothing is changed in these cases.
    pub(super) fn replace(
        &self,
        handle: &mut Handle<'_>,
        path: &Path,
        range: Range<usize>,
        with: &[Extent],
        clusters: i64,
    ) -> Result<()> {
        let nodes = self.nodes_needed(path, range.len(), with.len())?;
        self.check_count(clusters + nodes as i64)?;
        let last = path.steps.last().and_then(|step| step.block);
        let data = with.first().map(|extent| extent.start);
        let goal = last.or(data).unwrap_or(FsBlock(0));
        let alloc = &self.inode.fs.writing()?.alloc;
        let reserve = if clusters > 0 { alloc.reserve() } else { Reserve::Allowed };
        let spare = self.reserve(handle, goal, nodes, reserve)?;
        let clusters = clusters + nodes as i64;
        let released = Vec::new();
        let mut change = Change { tree: *self, handle, spare, released, clusters, root: None };
        let with = with.iter().map(leaf_entry).collect();
        change.apply(path, Edit { range, with })?;
        change.finish()
    }

    /// The number of new nodes that are needed when `added` entries replace `removed` entries in a leaf.
    fn nodes_needed(&self, path: &Path, removed: usize, added: usize) -> Result<usize> {
        let capacity = capacity(self.inode.block_size().bytes());
        let (mut removed, mut added, mut new) = (removed, added, 0);
        for step in path.steps.iter().rev() {
            let mut total = step.entries - removed + added;
            if total <= step.max {
                return Ok(new);
            }
            if step.block.is_some() {
                (removed, added) = (1, total.div_ceil(step.max));
                new += added - 1;
                continue;
            }
            let mut depth = path.depth();
            while total > step.max {
                total = total.div_ceil(capacity);
                new += total;
                depth += 1;
            }
            if depth > usize::from(MAX_DEPTH) {
                let what = format!("the file's map would need {depth} levels");
                return Err(Error::new(ErrorKind::FileTooLarge, what));
            }
        }
        Ok(new)
    }

    /// Without the feature `huge_file`, refuses a change that raises the inode's count of blocks above 2 TiB. The inode could not store
    /// such a count.
    pub(super) fn check_count(&self, clusters: i64) -> Result<()> {
        let sb = &self.inode.fs.superblock;
        if clusters <= 0 || sb.ro_compat.contains(RoCompat::HUGE_FILE) {
            return Ok(());
        }
        let blocks = clusters as u64 * u64::from(sb.cluster_blocks);
        let more = blocks << (sb.block_size.shift() - 9);
        if u64::from(self.raw_inode()?.i_blocks_lo.get()) + more > u64::from(u32::MAX) {
            return Err(Error::new(
                ErrorKind::FileTooLarge,
                "the file would have more than 2 TiB of blocks",
            ));
        }
        Ok(())
    }

    /// Allocates `count` blocks for nodes. If there is too little space, allocates no block. With bigalloc, each node needs a complete
    /// cluster.
    pub(super) fn reserve(
        &self,
        handle: &mut Handle<'_>,
        goal: FsBlock,
        count: usize,
        reserve: Reserve,
    ) -> Result<Vec<FsBlock>> {
        let fs = &self.inode.fs;
        let cluster = fs.superblock.cluster_blocks;
        let mut spare = Vec::with_capacity(count);
        while spare.len() < count {
            let want = (count - spare.len()) as u32 * cluster;
            match handle.allocate_blocks_for(goal, want, reserve) {
                Ok((start, got)) => {
                    let nodes = u64::from(got / cluster);
                    spare.extend((0..nodes).map(|i| FsBlock(start.0 + i * u64::from(cluster))));
                }
                Err(error) => {
                    for block in spare {
                        handle.free_blocks(block, u64::from(cluster), Freed::Data)?;
                    }
                    return Err(error);
                }
            }
        }
        // The list is reversed, because blocks are taken from its end.
        spare.reverse();
        Ok(spare)
    }

    /// Reduces the depth of the tree: if the root has only one child, and the entries of the child fit into the root, the entries are moved
    /// into the root. This is repeated as long as possible.
    pub(super) fn lower(&self, handle: &mut Handle<'_>) -> Result<()> {
        let inode = self.inode;
        for _ in 0..MOST_LEVELS {
            let path = self.find(FileBlock(0))?;
            let [root, child, ..] = &path.steps[..] else { return Ok(()) };
            let Some(block) = child.block.filter(|_| root.entries == 1) else { return Ok(()) };
            if child.entries > root.max {
                return Ok(());
            }
            let mut content = inode.fs.blocks.read(block, self.place())?.to_vec();
            let place = self.place().block(block);
            let below = NodeMut::of(&mut content, place)?;
            let mut bytes = path.root;
            let mut node = NodeMut::of(&mut bytes, self.place())?;
            node.splice(0..1, below.entries());
            node.set_depth(below.depth());
            let (spare, released, root) = (Vec::new(), vec![block], Some(bytes));
            Change { tree: *self, handle, spare, released, clusters: 0, root }.finish()?;
        }
        Ok(())
    }
}

impl Change<'_, '_, '_> {
    /// Changes the leaf, and the nodes above it as needed.
    fn apply(&mut self, path: &Path, edit: Edit) -> Result<()> {
        let mut edit = edit;
        for (level, step) in path.steps.iter().enumerate().rev() {
            let Some(block) = step.block else { return self.edit_root(path, &edit) };
            let above = &path.steps[level - 1];
            let with = match step.entries - edit.range.len() + edit.with.len() {
                0 => {
                    self.released.push(block);
                    Entries::new()
                }
                total if total <= step.max => {
                    let key = self.edit(block, step, &edit)?;
                    if key == above.key {
                        return Ok(());
                    }
                    smallvec![index(key, block)]
                }
                _ => self.split(block, step, &edit)?,
            };
            edit = Edit { range: above.at..above.at + 1, with };
        }
        Ok(())
    }

    /// Changes a node that has enough space for the new entries. Returns the first key in the node.
    fn edit(&mut self, block: FsBlock, step: &Step, edit: &Edit) -> Result<u64> {
        let place = self.tree.place().block(block);
        let seed = self.seed();
        self.handle.update(block, place, |bytes| {
            let mut node = NodeMut::of(bytes, place)?;
            if node.entries().len() != step.entries {
                return Err(place
                    .field("eh_entries")
                    .corrupt("the extent node was changed by another operation"));
            }
            node.splice(edit.range.clone(), &edit.with);
            let key = node.entries().first().map_or(0, |entry| u64::from(entry.key.get()));
            seal_extent_block(seed, bytes);
            Ok(key)
        })
    }

    /// Changes a node that has too little space for the new entries. The entries that do not fit are stored in new nodes. Returns an entry
    /// for each of these nodes, to be stored in the parent.
    fn split(&mut self, block: FsBlock, step: &Step, edit: &Edit) -> Result<Entries> {
        let place = self.tree.place().block(block);
        let mut content = self.tree.inode.fs.blocks.read(block, place)?.to_vec();
        let node = NodeMut::of(&mut content, place)?;
        let mut entries = node.entries().to_vec();
        entries.splice(edit.range.clone(), edit.with.iter().copied());
        // If the change is at the end of the node, later extents will probably be appended. In this case, all nodes except the last are
        // filled completely. If the change is at another position, the entries are distributed evenly, and each node has space for
        // insertions.
        let appends = edit.range.end == step.entries;
        let nodes = entries.len().div_ceil(step.max);
        let share = if appends { step.max } else { entries.len().div_ceil(nodes) };
        let (first, rest) = entries.split_at(share);
        let whole = Edit { range: 0..step.entries, with: first.into() };
        let key = self.edit(block, step, &whole)?;
        let mut indexes: Entries = smallvec![index(key, block)];
        indexes.extend(self.make_nodes(node.depth(), rest, share)?);
        Ok(indexes)
    }

    /// Changes the root. If the root has too little space, its entries are moved to new nodes. The tree then has one more level.
    fn edit_root(&mut self, path: &Path, edit: &Edit) -> Result<()> {
        let mut bytes = path.root;
        let mut node = NodeMut::of(&mut bytes, self.tree.place())?;
        let mut entries = node.entries().to_vec();
        entries.splice(edit.range.clone(), edit.with.iter().copied());
        let mut depth = if entries.is_empty() { 0 } else { node.depth() };
        let capacity = capacity(self.tree.inode.block_size().bytes());
        while entries.len() > node.max() {
            entries = self.make_nodes(depth, &entries, capacity)?.into_vec();
            depth += 1;
        }
        node.splice(0..node.entries().len(), &entries);
        node.set_depth(depth);
        self.root = Some(bytes);
        Ok(())
    }

    /// Creates nodes with `share` entries each. Returns an entry for each of these nodes, to be stored in the parent.
    fn make_nodes(&mut self, depth: u16, entries: &[RawEntry], share: usize) -> Result<Entries> {
        let seed = self.seed();
        let mut indexes = Entries::new();
        for entries in entries.chunks(share) {
            let Some(block) = self.spare.pop() else {
                return Err(self
                    .tree
                    .place()
                    .corrupt("a split needs more nodes than were reserved"));
            };
            self.handle.create(block, |bytes| {
                NodeMut::init(bytes, depth, entries);
                seal_extent_block(seed, bytes);
            })?;
            indexes.push(index(u64::from(entries[0].key.get()), block));
        }
        Ok(indexes)
    }

    /// Changes the inode, and frees the unused blocks.
    fn finish(mut self) -> Result<()> {
        let (tree, fs) = (self.tree, &self.tree.inode.fs);
        // An even split may need fewer nodes than were allocated. The unused blocks are freed.
        self.released.append(&mut self.spare);
        let clusters = self.clusters - self.released.len() as i64;
        let cluster = u64::from(fs.superblock.cluster_blocks);
        if clusters != 0 || self.root.is_some() {
            self.handle.update_inode(tree.inode, |inode| {
                inode.add_blocks(&fs.superblock, clusters * cluster as i64)?;
                if let Some(root) = self.root {
                    *inode.i_block()? = root;
                }
                Ok(())
            })?;
        }
        self.released.iter().try_for_each(|block| {
            let start = FsBlock(block.0 - block.0 % cluster);
            self.handle.free_blocks(start, cluster, Freed::Metadata)
        })
    }

    fn seed(&self) -> Option<u32> {
        let inode = self.tree.inode;
        inode.fs.superblock.inode_seed(inode.number, inode.generation)
    }
}
