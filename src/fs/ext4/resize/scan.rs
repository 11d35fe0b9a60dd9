//! Reads the blocks of all inodes in one pass.

use std::ops::Range;

use super::Volume;
use super::resize_inode::RESIZE;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::block::Block;
use crate::fs::ext4::alloc::bitmap::Bits;
use crate::fs::ext4::disk::extent::RawExtentIndex;
use crate::fs::ext4::disk::reserved;
use crate::fs::ext4::inode::Inode;
use crate::fs::ext4::mkfs::map::DIRECT;
use crate::fs::ext4::tree::read_extents::{MAX_BLOCKS, node};
use crate::fs::{FileType, InodeFlags};
use crate::iomap::Extent;
use crate::units::{FileBlock, FsBlock, InodeNo};

const BAD_BLOCKS: InodeNo = InodeNo(reserved::BAD_BLOCKS as u64);
const INODE_BITMAP: Place = Place::new("inode bitmap");
const INDIRECT: Place = Place::new("indirect block");
const EXTENTS: Place = Place::new("extent header");

/// The block map of an inode.
#[derive(Default)]
pub(super) struct Map {
    pub(super) extents: Vec<Extent>,
    /// The blocks of the map itself.
    pub(super) nodes: Vec<u64>,
}

impl Volume {
    /// Calls `visit` for every inode in use, in the order of the inode numbers. The resize inode is skipped.
    pub(super) fn each_inode(&self, mut visit: impl FnMut(Inode) -> Result<()>) -> Result<()> {
        let fs = &self.found;
        let sb = &fs.superblock;
        for number in 0..sb.groups {
            let group = fs.group(number)?;
            if group.inodes_uninit {
                continue;
            }
            let bitmap = fs.blocks.read(group.inode_bitmap, INODE_BITMAP)?;
            let bits = Bits::new(&bitmap, None);
            let end = sb.inodes_per_group - group.unused_inodes;
            let mut bit = bits.next_set(0, end);
            while bit < end {
                let index = u64::from(number) * u64::from(sb.inodes_per_group) + u64::from(bit);
                let inode = InodeNo(index + 1);
                bit = bits.next_set(bit + 1, end);
                if inode == RESIZE {
                    continue;
                }
                match fs.inode_or_orphan(inode) {
                    Ok(inode) => visit(inode)?,
                    // A reserved inode may be unused even if the bitmap marks it as used.
                    Err(error) if inode.0 < sb.first_inode.into() && is_unused(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Refuses a volume with a list of bad blocks, because bad blocks cannot move.
    pub(super) fn check_bad_blocks(&self) -> Result<()> {
        let place = self.found.inode_place(BAD_BLOCKS)?;
        let block = self.found.blocks.read(place.block, Place::new("inode"))?;
        let map = &block[place.at + 40..place.at + 100];
        if map.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        Err(Error::unsupported(
            "the volume has a list of bad blocks (inode 1), which is not supported: use resize2fs",
        ))
    }
}

fn is_unused(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.kind() == ErrorKind::Corrupt
}

impl Map {
    /// Reads the complete map of an inode, including blocks past the end of the file. Preallocated blocks can be past the end. The last
    /// block of a journal that an old mke2fs made can also be past the end.
    pub(super) fn of(inode: &Inode) -> Result<Self> {
        let mut map = Self::default();
        if !inode.has_map() {
            return Ok(map);
        }
        if inode.flags.contains(InodeFlags::EXTENTS) {
            map.below(inode, &inode.i_block, None, 0..MAX_BLOCKS)?;
        } else {
            map.trees(inode)?;
        }
        Ok(map)
    }

    /// Reads a node of an extent tree and the subtree below the node. `depth` decreases with each level. The recursion therefore ends.
    fn below(
        &mut self,
        inode: &Inode,
        bytes: &[u8],
        depth: Option<u16>,
        bounds: Range<u64>,
    ) -> Result<()> {
        let place = EXTENTS.inode(inode.number);
        let parsed = node(bytes, depth, place)?;
        if parsed.depth == 0 {
            return inode.leaf_extents(&parsed, &bounds, place, &mut self.extents);
        }
        let indexes = parsed.indexes(&bounds, place)?;
        for (at, index) in indexes.iter().enumerate() {
            let end = indexes.get(at + 1).map_or(bounds.end, RawExtentIndex::key);
            let content = self.node(inode, index.child(), place)?;
            inode.verify_extent_block(&content, place.block(index.child()))?;
            self.below(inode, &content, Some(parsed.depth - 1), index.key()..end)?;
        }
        Ok(())
    }

    /// Reads the twelve pointers to data blocks, and then the trees of one, two and three levels.
    fn trees(&mut self, inode: &Inode) -> Result<()> {
        let (direct, roots) = inode.i_block.split_at(DIRECT * 4);
        let place = INDIRECT.inode(inode.number);
        inode.pointers(FileBlock(0), direct, place, &mut self.extents)?;
        let fan_out = inode.block_size().bytes() as u64 / 4;
        let mut first = DIRECT as u64;
        for (level, root) in (1..).zip(roots.as_chunks::<4>().0) {
            self.pointed(inode, u32::from_le_bytes(*root), level, first)?;
            first += fan_out.pow(level);
        }
        Ok(())
    }

    /// Reads a block of pointers and the subtree below it. `first` is the first file block that the subtree maps. `level` decreases with
    /// each level. The recursion therefore ends.
    fn pointed(&mut self, inode: &Inode, pointer: u32, level: u32, first: u64) -> Result<()> {
        if pointer == 0 {
            return Ok(());
        }
        let (block, place) = (FsBlock(u64::from(pointer)), INDIRECT.inode(inode.number));
        let content = self.node(inode, block, place)?;
        if level == 1 {
            return inode.pointers(
                FileBlock(first),
                &content,
                place.block(block),
                &mut self.extents,
            );
        }
        let (pointers, _) = content.as_chunks::<4>();
        let span = (pointers.len() as u64).pow(level - 1);
        for (index, pointer) in (0..).zip(pointers) {
            self.pointed(inode, u32::from_le_bytes(*pointer), level - 1, first + index * span)?;
        }
        Ok(())
    }

    /// Reads a block of the map. Returns an error if the map has more blocks than the volume, because such a map is damaged.
    fn node(&mut self, inode: &Inode, block: FsBlock, place: Place) -> Result<Block> {
        if self.nodes.len() as u64 >= inode.fs.superblock.blocks_count {
            return Err(place.corrupt("the map has more nodes than the volume has blocks"));
        }
        self.nodes.push(block.0);
        inode.fs.blocks.read(block, place)
    }
}

/// The properties of an inode that are needed to plan a shrink.
pub(super) struct Item {
    pub(super) number: InodeNo,
    pub(super) generation: u32,
    pub(super) flags: InodeFlags,
    pub(super) directory: bool,
    pub(super) inline: bool,
    pub(super) xattr: Option<u64>,
    pub(super) map: Map,
}

impl Volume {
    /// Reads all inodes with their maps. The result uses 100 bytes of memory for each inode and 24 bytes for each extent.
    pub(super) fn scan(&self) -> Result<Vec<Item>> {
        self.check_bad_blocks()?;
        let mut items = Vec::new();
        self.each_inode(|inode| {
            items.push(Item {
                number: inode.number,
                generation: inode.generation,
                flags: inode.flags,
                directory: inode.file_type == FileType::Directory,
                inline: inode.has_inline_data(),
                xattr: inode.xattr_block.map(|block| block.0),
                map: Map::of(&inode)?,
            });
            Ok(())
        })?;
        Ok(items)
    }
}
