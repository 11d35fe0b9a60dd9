//! The blocks of all inodes, read once.

use super::Volume;
use super::resize_inode::RESIZE;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::ext4::alloc::bitmap::Bits;
use crate::fs::ext4::inode::Inode;
use crate::fs::ext4::tree::read_extents::{MAX_BLOCKS, node};
use crate::fs::{FileType, InodeFlags};
use crate::iomap::Extent;
use crate::units::{FileBlock, FsBlock, InodeNo};

/// Lists blocks that are bad.
const BAD_BLOCKS: InodeNo = InodeNo(1);
const INODE_BITMAP: Place = Place::new("inode bitmap");
const INDIRECT: Place = Place::new("indirect block");
const EXTENTS: Place = Place::new("extent header");

/// The map of an inode.
#[derive(Default)]
pub(super) struct Map {
    pub(super) extents: Vec<Extent>,
    /// Blocks of the map itself.
    pub(super) nodes: Vec<u64>,
}

impl Volume {
    /// Gives all inodes in use, except the resize inode, in the order of their numbers.
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
                    // Reserved ones are marked in use, used or not.
                    Err(error) if inode.0 < sb.first_inode.into() && is_unused(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Refuses a volume with a list of bad blocks: they stay where they are.
    pub(super) fn check_bad_blocks(&self) -> Result<()> {
        let place = self.found.inode_place(BAD_BLOCKS)?;
        let block = self.found.blocks.read(place.block, Place::new("inode"))?;
        let map = &block[place.at + 40..place.at + 100];
        if map.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        Err(Error::unsupported("a volume with a list of bad blocks (inode 1): use resize2fs"))
    }
}

fn is_unused(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.kind() == ErrorKind::Corrupt
}

impl Map {
    pub(super) fn of(inode: &Inode) -> Result<Self> {
        if !inode.has_map() {
            return Ok(Self::default());
        }
        let in_extents = inode.flags.contains(InodeFlags::EXTENTS);
        let size = inode.block_size();
        let end = if in_extents { MAX_BLOCKS } else { size.blocks_for(inode.size) };
        let extents = inode.home_extents(FileBlock(0)..FileBlock(end))?;
        let mut nodes = Vec::new();
        if in_extents {
            below(inode, &inode.i_block, None, &mut nodes)?;
        } else {
            for slot in 12..15 {
                let at = slot * 4;
                pointed(inode, &inode.i_block[at..at + 4], slot as u32 - 12, &mut nodes)?;
            }
        }
        Ok(Self { extents, nodes })
    }
}

/// The nodes below one of an extent tree. The depth falls at each step.
fn below(inode: &Inode, bytes: &[u8], depth: Option<u16>, nodes: &mut Vec<u64>) -> Result<()> {
    let place = EXTENTS.inode(inode.number);
    let parsed = node(bytes, depth, place)?;
    if parsed.depth == 0 {
        return Ok(());
    }
    for index in parsed.indexes(&(0..MAX_BLOCKS), place)? {
        let child = index.child();
        check_count(inode, nodes)?;
        nodes.push(child.0);
        if parsed.depth > 1 {
            let content = inode.fs.blocks.read(child, place)?;
            below(inode, &content, Some(parsed.depth - 1), nodes)?;
        }
    }
    Ok(())
}

/// Pointers to blocks of pointers, `level` of them above the last.
fn pointed(inode: &Inode, bytes: &[u8], level: u32, nodes: &mut Vec<u64>) -> Result<()> {
    let (pointers, _) = bytes.as_chunks::<4>();
    for pointer in pointers.iter().map(|pointer| u32::from_le_bytes(*pointer)) {
        if pointer == 0 {
            continue;
        }
        check_count(inode, nodes)?;
        nodes.push(u64::from(pointer));
        let place = INDIRECT.inode(inode.number);
        if level > 0 {
            let content = inode.fs.blocks.read(FsBlock(u64::from(pointer)), place)?;
            pointed(inode, &content, level - 1, nodes)?;
        }
    }
    Ok(())
}

/// No sound map has more nodes than the volume has blocks.
fn check_count(inode: &Inode, nodes: &[u64]) -> Result<()> {
    if (nodes.len() as u64) < inode.fs.superblock.blocks_count {
        return Ok(());
    }
    Err(EXTENTS.inode(inode.number).corrupt("a map with more nodes than the volume has blocks"))
}

/// The facts of an inode that a plan needs.
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
    /// All inodes with their maps. Memory: 100 bytes an inode, and 24 for each extent.
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
