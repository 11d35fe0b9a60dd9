//! The block map of an ext4 file, in the form of extents and of the iomap that the direct-I/O core uses.

use std::ops::Range;
use std::sync::Arc;

use super::blocks::Relocated;
use super::features::{Compat, Incompat};
use super::inode::Inode;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::InodeFlags;
use crate::iomap::{Extent, ExtentMap, ExtentState, Iomap, IomapFlags, IomapType, MapFile};
use crate::units::{DevOffset, FileBlock, FilePos, FsBlock};

/// The maximum number of leaves of a map that stays in memory. Leaves are nodes with extents, or indirect blocks. With blocks of 4 KiB,
/// this number of leaves needs 64 MiB. A map with at most this number of leaves is read completely at its first use. In a map with more
/// leaves, each lookup reads one leaf through the metadata cache.
const RESIDENT_LEAVES: usize = 16 << 10;
/// The maximum number of extents of a map that stays in memory. The extents of such a map need at most 96 MiB of memory, and their index
/// needs at most 80 MiB.
const RESIDENT_EXTENTS: usize = 4 << 20;
/// The number of direct pointers in a block-mapped inode.
const DIRECT: usize = 12;

impl Inode {
    /// Adds the extents of the leaf that contains `block` to `into`. Extents before `block` may be missing. Returns the first block after
    /// the leaf. Changes by fast commits are applied. A block whose content is in the journal becomes a separate extent.
    fn leaf(&self, block: FileBlock, into: &mut Vec<Extent>) -> Result<FileBlock> {
        let before = into.len();
        let end = self.home_leaf(block, into)?;
        if let Some(edit) = self.fs.fast_commits.inode(self.number) {
            let extents = into.split_off(before);
            into.extend(edit.ranges(extents, block..end));
        }
        if !self.fs.blocks.overlay().is_empty() {
            let extents = into.split_off(before);
            // On a valid volume, a relocated block splits one extent and adds at most two extents. In a damaged map, extents may overlap,
            // and each relocated block could split many extents. This limit bounds the number of extents.
            let most = extents.len() + 2 * self.fs.blocks.overlay().len();
            for extent in extents {
                self.split_relocated(extent, into);
                if into.len() - before > most {
                    let place = Place::new("extent header").inode(self.number).field("ee_start");
                    return Err(place.corrupt(
                        "several extents map a block that was recovered from the journal",
                    ));
                }
            }
        }
        if end <= block {
            return Err(self.does_not_advance(block));
        }
        Ok(end)
    }

    /// Adds the extents of one leaf as the map stores them. Changes by fast commits and content in the journal are ignored.
    pub(super) fn home_leaf(&self, block: FileBlock, into: &mut Vec<Extent>) -> Result<FileBlock> {
        if self.flags.contains(InodeFlags::EXTENTS) {
            self.extent_leaf(block, into)
        } else {
            self.indirect_leaf(block, into)
        }
    }

    /// The extents in a range as the map stores them. Changes by fast commits and content in the journal are ignored.
    pub(super) fn home_extents(&self, range: Range<FileBlock>) -> Result<Vec<Extent>> {
        let (mut extents, mut next) = (Vec::new(), range.start);
        while next < range.end {
            let end = self.home_leaf(next, &mut extents)?;
            if end <= next {
                return Err(self.does_not_advance(next));
            }
            next = end;
        }
        Ok(extents.iter().filter_map(|extent| extent.within(&range)).collect())
    }

    #[cold]
    fn does_not_advance(&self, block: FileBlock) -> Error {
        let place = Place::new("extent header").inode(self.number);
        place.corrupt(format!("the map has no valid mapping after block {block}"))
    }

    /// Checks an internal inode, as Linux does when it reads the inode. The attribute block and the first block of the content must be
    /// blocks of the volume with numbers above `s_first_data_block`. Each flag of the inode requires the flag's feature on the volume.
    pub(super) fn check_own(&self) -> Result<()> {
        let place = Place::new("inode").inode(self.number);
        let first = u64::from(self.fs.superblock.first_data_block);
        let is_data = |block: FsBlock| block.0 > first && self.fs.blocks.contain(block, 1);
        if let Some(block) = self.xattr_block.filter(|block| !is_data(*block)) {
            return Err(place
                .field("i_file_acl")
                .corrupt(format!("block {block} is outside the range of blocks for data")));
        }
        let sb = &self.fs.superblock;
        let unknown = [
            (InodeFlags::CASEFOLD, sb.incompat.contains(Incompat::CASEFOLD)),
            (InodeFlags::EA_INODE, false),
            // Linux checks the flag INDEX only on volumes with metadata checksums.
            (InodeFlags::INDEX, sb.seed.is_none() || sb.compat.contains(Compat::DIR_INDEX)),
        ];
        if unknown.iter().any(|(flag, allowed)| self.flags.contains(*flag) && !allowed) {
            let what = format!(
                "a flag in {:#x} is set without the feature that it needs",
                self.flags.bits()
            );
            return Err(place.field("i_flags").corrupt(what));
        }
        if self.flags.contains(InodeFlags::INLINE_DATA) {
            return Ok(());
        }
        if !self.flags.contains(InodeFlags::EXTENTS) {
            let (words, _) = self.i_block.as_chunks::<4>();
            let blocks = words.iter().take(DIRECT).map(|word| u32::from_le_bytes(*word));
            if let Some(block) = blocks
                .filter(|block| *block != 0)
                .find(|block| !is_data(FsBlock(u64::from(*block))))
            {
                return Err(place
                    .field("i_block")
                    .corrupt(format!("block {block} is outside the range of blocks for data")));
            }
        }
        match self.home_block(FileBlock(0))? {
            Some(block) if is_data(block) => Ok(()),
            block => {
                let block = block.map_or_else(|| "a hole".to_owned(), |at| format!("block {at}"));
                Err(place.field("i_block").corrupt(format!(
                    "the first block of the file is {block}, which cannot contain data"
                )))
            }
        }
    }

    /// The home location of a block of this file, even if the block's content is in the journal. Some checksums cover the block number, and
    /// need the home location.
    pub(super) fn home_block(&self, block: FileBlock) -> Result<Option<FsBlock>> {
        let mut extents = Vec::new();
        self.home_leaf(block, &mut extents)?;
        let holds = |extent: &&Extent| extent.first <= block && block < extent.end();
        let found = extents.iter().find(holds);
        Ok(found.map(|extent| FsBlock(extent.start.0 + (block.0 - extent.first.0))))
    }

    fn split_relocated(&self, extent: Extent, into: &mut Vec<Extent>) {
        let mut rest = extent;
        let physical = extent.start..FsBlock(extent.start.0 + u64::from(extent.len));
        for (block, content) in self.fs.blocks.overlay().range(physical) {
            // Copies of an unwritten extent's blocks in the journal are ignored, because an unwritten extent contains no data.
            if extent.state == ExtentState::Unwritten {
                break;
            }
            let before = (block.0 - rest.start.0) as u32;
            if before > 0 {
                into.push(Extent { len: before, ..rest });
            }
            let (start, state) = match content {
                Relocated::Journal(copy) => (copy, ExtentState::Journal),
                Relocated::Escaped(_) => (block, ExtentState::Memory),
            };
            into.push(Extent {
                first: FileBlock(rest.first.0 + u64::from(before)),
                start,
                len: 1,
                state,
            });
            rest = Extent {
                first: FileBlock(rest.first.0 + u64::from(before) + 1),
                start: FsBlock(block.0 + 1),
                len: rest.len - before - 1,
                state: rest.state,
            };
        }
        if rest.len > 0 {
            into.push(rest);
        }
    }

    /// The complete map in memory. Loads the map at the first call. Returns `None` if the map is too large to stay in memory.
    fn resident(&self) -> Result<Option<&ExtentMap>> {
        if let Some(map) = self.map.get() {
            return Ok(map.as_deref());
        }
        let map = self.load()?.map(Arc::new);
        Ok(self.map.get_or_init(|| map).as_deref())
    }

    /// Reads the complete map into memory, if the map is not too large.
    pub(super) fn keep_map(&self) -> Result<()> {
        if self.has_inline_data() { Ok(()) } else { self.resident().map(|_| ()) }
    }

    fn load(&self) -> Result<Option<ExtentMap>> {
        let size = self.fs.superblock.block_size;
        let limit = FileBlock(1 << 32);
        let mut extents = Vec::new();
        let mut block = FileBlock(0);
        for _ in 0..RESIDENT_LEAVES {
            block = self.leaf(block, &mut extents)?;
            // An indirect map is read only up to the file's size. The trees past the end of the file may be huge and empty.
            let done = block >= limit
                || (!self.flags.contains(InodeFlags::EXTENTS)
                    && block.0 >= size.blocks_for(self.size));
            if done {
                let map = ExtentMap::new(extents, size).map_err(|extent| {
                    let place = Place::new("extent header").inode(self.number).field("ee_block");
                    place.corrupt(format!(
                        "the extent of block {} overlaps the previous extent",
                        extent.first
                    ))
                })?;
                return Ok(Some(map));
            }
            if extents.len() > RESIDENT_EXTENTS {
                break;
            }
        }
        Ok(None)
    }

    /// Reads the map into memory, if the root contains the complete map.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn keep_small_map(&self) -> Result<()> {
        if self.has_map() && self.has_small_map() {
            self.resident()?;
        }
        Ok(())
    }

    /// The complete map, if the map has been read into memory.
    pub(crate) fn resident_map(&self) -> Option<&Arc<ExtentMap>> {
        self.map.get()?.as_ref()
    }

    /// Maps a position. Reads only the leaf that contains the position, instead of the complete map. This function is for maps that will
    /// soon change or that are rarely used.
    pub(crate) fn map_by_leaf(&self, pos: FilePos) -> Result<Iomap> {
        let mut extents = Vec::new();
        let block = self.fs.superblock.block_size.block_of(pos);
        let end = self.leaf(block, &mut extents)?;
        let size = self.fs.superblock.block_size;
        let at = extents.partition_point(|extent| extent.end() <= block);
        match extents.get(at) {
            Some(extent) if extent.first <= block => Ok(extent.to_iomap(size)),
            next => {
                let end = next.map_or(end, |extent| extent.first);
                let len = (end.0.min(u64::MAX >> size.shift()) << size.shift()) - pos.0;
                Ok(Iomap {
                    pos,
                    len,
                    addr: DevOffset(0),
                    kind: IomapType::Hole,
                    flags: IomapFlags::empty(),
                })
            }
        }
    }

    /// The volume's block for a block of this file, or `None` for a hole or an unwritten block. This function is for metadata: directories,
    /// the journal and quota files. A caller that needs many blocks should first [load the map](Self::keep_map).
    pub(crate) fn fs_block(&self, block: FileBlock) -> Result<Option<FsBlock>> {
        let (at, state) = self.block_and_state(block)?;
        Ok(at.filter(|_| state != IomapType::Unwritten))
    }

    /// The volume's block for a block of this file, even if the block is unwritten. As in Linux, a directory's blocks are read even if they
    /// are unwritten.
    pub(crate) fn allocated_block(&self, block: FileBlock) -> Result<Option<FsBlock>> {
        Ok(self.block_and_state(block)?.0)
    }

    fn block_and_state(&self, block: FileBlock) -> Result<(Option<FsBlock>, IomapType)> {
        let size = self.fs.superblock.block_size;
        let pos = size.pos_of(block);
        let iomap = match self.map_resident(pos) {
            Some(iomap) => iomap,
            None => self.map_by_leaf(pos)?,
        };
        let at = match iomap.kind {
            IomapType::Hole => None,
            _ => Some(FsBlock(iomap.addr_of(pos).0 >> size.shift())),
        };
        Ok((at, iomap.kind))
    }

    /// The map of a file whose content is in the inode: one inline extent, followed by a hole.
    fn inline_map(&self, pos: FilePos) -> Iomap {
        let hole = pos.0 >= self.size;
        Iomap {
            pos: if hole { FilePos(self.size) } else { FilePos(0) },
            len: if hole { u64::MAX - self.size } else { self.size },
            addr: DevOffset(0),
            kind: if hole { IomapType::Hole } else { IomapType::Inline },
            flags: if hole { IomapFlags::LAST } else { IomapFlags::empty() },
        }
    }
}

impl MapFile for Inode {
    fn map(&self, pos: FilePos, _len: u64) -> Result<Iomap> {
        if self.has_inline_data() {
            return Ok(self.inline_map(pos));
        }
        match self.resident()? {
            Some(map) => Ok(map.lookup(pos)),
            None => self.map_by_leaf(pos),
        }
    }

    #[inline(always)]
    fn map_resident(&self, pos: FilePos) -> Option<Iomap> {
        match self.map.get() {
            Some(map) => map.as_ref().map(|map| map.lookup(pos)),
            None => self.has_inline_data().then(|| self.inline_map(pos)),
        }
    }

    fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()> {
        if self.has_inline_data() {
            return self.read_inline_data(buf, pos);
        }
        // The copy of this block in the journal has zeros in its first four bytes, instead of the block's own bytes. The block is therefore
        // read as metadata, because a metadata read restores these bytes.
        let size = self.fs.superblock.block_size;
        let (mut done, mut pos) = (0, pos);
        while done < buf.len() {
            let block = self.fs_block(size.block_of(pos))?;
            let Some(block) = block.filter(|block| self.fs.blocks.overlay().get(*block).is_some())
            else {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!("the block at position {pos} is not in memory"),
                ));
            };
            let content = self.fs.blocks.read(block, Place::new("data").inode(self.number))?;
            let from = size.offset_in(pos);
            let count = (content.len() - from).min(buf.len() - done);
            buf[done..done + count].copy_from_slice(&content[from..from + count]);
            done += count;
            pos = FilePos(pos.0 + count as u64);
        }
        Ok(())
    }
}
