//! The map of an XFS file as iomaps, for the direct-I/O core.

use std::sync::{Arc, OnceLock};

use super::inode::XfsInode;
use crate::error::{Error, Place, Result};
use crate::iomap::{Extent, ExtentMap, Iomap, IomapFlags, IomapType, MapFile};
use crate::units::{DevOffset, FileBlock, FilePos, FsBlock};

use super::disk::btree::RawExtent;
use super::fork::{Fork, Format};
use super::map_changes::{MapChange, MapChanges};

/// A map with at most this many leaves is read completely at the first use and cached. If a map has more leaves, each lookup reads a single
/// leaf through the metadata cache.
const RESIDENT_LEAVES: usize = 16 << 10;
/// A map with more extents than this limit is not cached. This many extents need 96 MiB of memory, and their index 80 MiB.
const RESIDENT_EXTENTS: usize = 4 << 20;

impl XfsInode {
    /// The complete map in memory; `None` if the map is too large to be cached.
    pub(super) fn resident(&self) -> Result<Option<&Arc<ExtentMap>>> {
        if let Some(map) = self.map.get() {
            return Ok(map.as_ref());
        }
        let map = self.load(&self.data)?.map(Arc::new);
        Ok(self.map.get_or_init(|| map).as_ref())
    }

    /// Reads the complete map of a fork; `None` if the map is too large.
    pub(super) fn load(&self, fork: &Fork) -> Result<Option<ExtentMap>> {
        let Some(extents) = self.load_extents(fork)? else { return Ok(None) };
        self.to_map(extents).map(Some)
    }

    /// Applies the unfinished map changes of the data fork from the log. Updates the file's block count.
    pub(super) fn change_map(&mut self, changes: &MapChanges) -> Result<()> {
        if self.data.is_realtime && self.fs.realtime_start.is_none() {
            // Without the realtime device, the map is not needed: the file appears in listings, but reads of its content are refused.
            return Ok(());
        }
        let blocks = |extents: &[Extent]| extents.iter().map(|e| u64::from(e.len)).sum::<u64>();
        let mut extents = self.extents_to_change()?;
        let before = blocks(&extents);
        changes.apply(self.stat.inode, &mut extents, |change, at| self.locate(change, at))?;
        if let Some((exchange, sides)) = changes.exchange_of(self.stat.inode)
            && self.stat.generation == sides[0].generation
        {
            let other = self.fs.inode_as_stored(sides[1].inode)?;
            let mut others = other.extents_to_change()?;
            if other.data.is_realtime != self.data.is_realtime {
                let place = Place::new("intent of an exchange").inode(self.stat.inode);
                return Err(place.corrupt("only one of the two files is a realtime file"));
            }
            let number = other.stat.inode;
            changes.apply(number, &mut others, |change, at| other.locate(change, at))?;
            let is_first = exchange.sides[0].inode == self.stat.inode;
            let first = if is_first { extents.clone() } else { others.clone() };
            exchange.apply(sides, &mut extents, &others, &first);
            if exchange.sizes {
                self.stat.size = other.stat.size;
            }
        }
        let map = self.to_map(extents)?;
        let unit = self.fs.superblock.geometry.block.bytes() as u64 / 512;
        let mut others = self.stat.blocks.saturating_sub(before.saturating_mul(unit));
        // If the extent list has become too long for the inode, the list moves to a leaf block. If a leaf's list has become short enough,
        // it moves back into the inode.
        let fits = map.extents().len() <= self.data.room / size_of::<RawExtent>();
        match self.data.format {
            Format::Tree if fits => others = others.saturating_sub(unit),
            Format::Extents if !fits => others = others.saturating_add(unit),
            _ => {}
        }
        let data = blocks(map.extents()).saturating_mul(unit);
        self.stat.blocks = others.saturating_add(data);
        self.map = OnceLock::from(Some(Arc::new(map)));
        Ok(())
    }

    /// The extents of the data fork, in order.
    fn extents_to_change(&self) -> Result<Vec<Extent>> {
        let map = self.load(&self.data)?.ok_or_else(|| {
            let what = format!(
                "inode {}: the map is too large to apply unfinished changes of the log",
                self.stat.inode
            );
            Error::unsupported(what)
        })?;
        Ok(map.extents().to_vec())
    }

    /// The first of the blocks that a map change assigns to the file.
    fn locate(&self, change: &MapChange, number: u64) -> Result<FsBlock> {
        let place = Place::new("intent of a mapping").inode(self.stat.inode).field("me_startblock");
        if change.is_realtime != self.data.is_realtime {
            return Err(
                place.corrupt("the blocks are on another device than the file's other blocks")
            );
        }
        if change.is_realtime {
            self.fs.realtime_extent(number, change.len.into(), place)
        } else {
            self.fs.superblock.geometry.extent(number, change.len.into(), place)
        }
    }

    fn to_map(&self, extents: Vec<Extent>) -> Result<ExtentMap> {
        let map = ExtentMap::new(extents, self.fs.superblock.geometry.block);
        map.map_err(|extent| {
            let what = format!("the extent of block {} overlaps the previous extent", extent.first);
            let place = Place::new("extent list").inode(self.stat.inode);
            place.field("br_startoff").corrupt(what)
        })
    }

    fn load_extents(&self, fork: &Fork) -> Result<Option<Vec<Extent>>> {
        let limit = FileBlock(self.fs.superblock.max_file_block());
        let (mut extents, mut block) = (Vec::new(), FileBlock(0));
        for _ in 0..RESIDENT_LEAVES {
            block = fork.leaf(&self.fs, self.stat.inode, block, &mut extents)?;
            let place = Place::new("extent list").inode(self.stat.inode);
            if block >= limit {
                if extents.len() as u64 != fork.extents && fork.has_blocks() {
                    let what = format!(
                        "the fork has {} extents, but the inode counts {}",
                        extents.len(),
                        fork.extents
                    );
                    return Err(place.field("di_nextents").corrupt(what));
                }
                return Ok(Some(extents));
            }
            if extents.len() > RESIDENT_EXTENTS {
                break;
            }
        }
        Ok(None)
    }

    /// Maps a position by reading only the leaf that covers it.
    fn map_by_leaf(&self, fork: &Fork, pos: FilePos) -> Result<Iomap> {
        let size = self.fs.superblock.geometry.block;
        let (mut extents, block) = (Vec::new(), size.block_of(pos));
        let end = if block.0 < self.fs.superblock.max_file_block() {
            fork.leaf(&self.fs, self.stat.inode, block, &mut extents)?
        } else {
            FileBlock(u64::MAX >> size.shift())
        };
        let at = extents.partition_point(|extent| extent.end() <= block);
        match extents.get(at) {
            Some(extent) if extent.first <= block => Ok(extent.to_iomap(size)),
            next => {
                let end = next.map_or(end, |extent| extent.first);
                Ok(Iomap {
                    pos,
                    len: size.pos_of(end).0.saturating_sub(pos.0).max(1),
                    addr: DevOffset(0),
                    kind: IomapType::Hole,
                    flags: IomapFlags::empty(),
                })
            }
        }
    }

    /// The blocks of a structure that occupies `count` consecutive file blocks of a fork; `None` if any of these file blocks is a hole.
    pub(super) fn fs_blocks(
        &self,
        fork: &Fork,
        map: Option<&ExtentMap>,
        first: u64,
        count: u64,
    ) -> Result<Option<Vec<FsBlock>>> {
        let size = self.fs.superblock.geometry.block;
        let mut blocks = Vec::with_capacity(count as usize);
        for block in first..first + count {
            if block >= self.fs.superblock.max_file_block() {
                return Ok(None);
            }
            let pos = size.pos_of(FileBlock(block));
            let iomap = match map {
                Some(map) => map.lookup(pos),
                None => self.map_by_leaf(fork, pos)?,
            };
            // Blocks in unwritten extents are read too. Linux also reads a directory's blocks from an unwritten extent.
            if iomap.kind == IomapType::Hole {
                return Ok(None);
            }
            blocks.push(size.fs_block_of(iomap.addr_of(pos)));
        }
        Ok(Some(blocks))
    }

    /// The map of the data fork, for directories and links.
    pub(super) fn data_map(&self) -> Result<Option<&ExtentMap>> {
        Ok(self.resident()?.map(|map| &**map))
    }

    pub(super) fn resident_map(&self) -> Option<&Arc<ExtentMap>> {
        self.map.get()?.as_ref()
    }
}

impl XfsInode {
    /// Maps a position of the data fork. Uses the complete map if it is given. Without the complete map, reads the leaf that covers the
    /// position.
    pub(super) fn map_in(&self, map: Option<&ExtentMap>, pos: FilePos) -> Result<Iomap> {
        match map {
            Some(map) => Ok(map.lookup(pos)),
            None => self.map_by_leaf(&self.data, pos),
        }
    }
}

impl MapFile for XfsInode {
    fn map(&self, pos: FilePos, _len: u64) -> Result<Iomap> {
        match self.resident()? {
            Some(map) => Ok(map.lookup(pos)),
            None => self.map_by_leaf(&self.data, pos),
        }
    }

    #[inline(always)]
    fn map_resident(&self, pos: FilePos) -> Option<Iomap> {
        self.map.get()?.as_ref().map(|map| map.lookup(pos))
    }

    fn read_inline(&self, _buf: &mut [u8], pos: FilePos) -> Result<()> {
        Err(Error::invalid(format!("position {pos} is not in the inode")))
    }
}
