//! The forks of an inode, for data and for attributes. A list of extents or a B+tree maps the blocks of each fork.

use smallvec::SmallVec;
use zerocopy::FromBytes;
use zerocopy::big_endian::U64;

use super::Xfs;
use super::disk::btree::{HEADER, HEADER_V5, MAP, MAP_V5, NONE, RawExtent, RawHeader, RawRoot};
use super::header::Header;
use crate::error::{Place, Result};
use crate::fs::block::{Block, Part};
use crate::iomap::{Extent, ExtentState};
use crate::units::{FileBlock, FsBlock, InodeNo};

/// The maximum number of levels of a map. The kernel's limit is lower, even for the smallest block size.
const MAX_LEVELS: u16 = 16;
/// The code for blocks of a map tree in [`Part`], which identifies the structures whose checksums were verified.
const KIND: u8 = 2;

/// A fork of an inode.
#[derive(Clone, Debug)]
pub(crate) struct Fork {
    pub(super) format: Format,
    /// Extents, the root of a tree, or the content itself. Most inodes have one or two extents, which need at most 32 bytes.
    pub(super) bytes: SmallVec<[u8; 32]>,
    /// The inode's extent counter.
    pub(super) extents: u64,
    /// The length of the fork's area in the inode.
    pub(super) room: usize,
    /// Whether the extents are on the realtime device.
    pub(super) is_realtime: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// The fork contains a device number.
    Device,
    /// The fork contains the content itself.
    Local,
    /// The fork contains a list of extents.
    Extents,
    /// The fork contains the root of a tree of extents.
    Tree,
}

/// The part of a map in one leaf.
struct Leaf {
    block: Block,
    records: usize,
    /// The first file block after the leaf's range.
    end: u64,
}

impl Fork {
    /// Copies the fork from its area of the inode. Bytes past the end of an extent list are not copied.
    pub(super) fn new(format: Format, area: &[u8], extents: u64) -> Self {
        let list = usize::try_from(extents).ok().and_then(|count| count.checked_mul(16));
        let used = match format {
            Format::Extents => list.and_then(|len| area.get(..len)),
            Format::Device | Format::Local | Format::Tree => None,
        };
        let bytes = SmallVec::from_slice(used.unwrap_or(area));
        Self { format, bytes, extents, room: area.len(), is_realtime: false }
    }

    /// Whether the fork maps blocks.
    pub(super) fn has_blocks(&self) -> bool {
        matches!(self.format, Format::Extents | Format::Tree)
    }

    /// Appends to `into` all extents of the leaf whose range contains `block`. An extent list counts as one leaf. Returns the first file
    /// block after the leaf.
    pub(super) fn leaf(
        &self,
        fs: &Xfs,
        owner: InodeNo,
        block: FileBlock,
        into: &mut Vec<Extent>,
    ) -> Result<FileBlock> {
        let place = Place::new("extent list").inode(owner);
        let end = match self.format {
            Format::Device | Format::Local => fs.superblock.max_file_block(),
            Format::Extents => {
                let len = usize::try_from(self.extents).ok().and_then(|n| n.checked_mul(16));
                let Some(bytes) = len.and_then(|len| self.bytes.get(..len)) else {
                    let what =
                        format!("{} extents do not fit into {} bytes", self.extents, self.room);
                    return Err(place.field("di_nextents").corrupt(what));
                };
                self.decode_extents(fs, bytes, fs.superblock.max_file_block(), place, into)?;
                fs.superblock.max_file_block()
            }
            Format::Tree => {
                let header = fs.map_header();
                let leaf =
                    self.find_leaf(fs, owner, block.0, &mut fs.superblock.max_file_block())?;
                let bytes = &leaf.block[header..header + leaf.records * 16];
                let place = Place::new("leaf of extents").inode(owner);
                self.decode_extents(fs, bytes, leaf.end, place, into)?;
                leaf.end
            }
        };
        Ok(FileBlock(end))
    }

    /// The first file block after the range of the leaf that covers `block`. If a block of the map is damaged, the nodes above the damaged
    /// block determine the range.
    pub(super) fn end_of_leaf(&self, fs: &Xfs, owner: InodeNo, block: u64) -> u64 {
        let mut end = fs.superblock.max_file_block();
        if self.format == Format::Tree {
            // The error is ignored here, because the caller already has it.
            let _ = self.find_leaf(fs, owner, block, &mut end);
        }
        end
    }

    /// Walks from the root of the tree to the leaf for a block. `end` is set to the end of the range of the node or leaf that was reached.
    fn find_leaf(&self, fs: &Xfs, owner: InodeNo, block: u64, end: &mut u64) -> Result<Leaf> {
        let place = Place::new("root of extents").inode(owner);
        let Ok((root, rest)) = RawRoot::ref_from_prefix(&self.bytes) else {
            return Err(place.corrupt("the extent tree is truncated"));
        };
        let mut level = root.bb_level.get();
        if level == 0 || level > MAX_LEVELS {
            return Err(place.field("bb_level").corrupt(format!("level {level}")));
        }
        let records = usize::from(root.bb_numrecs.get());
        let mut child = Self::child(rest, records, block, end, place)?;
        loop {
            level -= 1;
            let (content, records) = fs.map_block(child, owner, level)?;
            if level == 0 {
                return Ok(Leaf { block: content, records, end: *end });
            }
            let place = Place::new("node of extents").inode(owner);
            child = Self::child(&content[fs.map_header()..], records, block, end, place)?;
        }
    }

    /// Returns the pointer from a node to the child that covers `block`. On entry, `end` is the end of the node's range. On return, `end`
    /// is the end of the child's range.
    fn child(bytes: &[u8], records: usize, block: u64, end: &mut u64, place: Place) -> Result<u64> {
        let room = bytes.len() / 16;
        if records == 0 || records > room {
            return Err(place.field("bb_numrecs").corrupt(format!("{records} of {room}")));
        }
        let numbers = |from: usize| <[U64]>::ref_from_prefix_with_elems(&bytes[from..], records);
        let (Ok((keys, _)), Ok((pointers, _))) = (numbers(0), numbers(room * 8)) else {
            return Err(place.corrupt("the extent tree is truncated"));
        };
        // Blocks before the first key belong to a hole. The search descends to the first child. This child has no extent for these blocks.
        let at = keys.partition_point(|key| key.get() <= block).saturating_sub(1);
        if let Some(next) = keys.get(at + 1) {
            *end = (*end).min(next.get());
        }
        Ok(pointers[at].get())
    }

    /// Decodes extents, which must be in order and end at or before `limit`.
    fn decode_extents(
        &self,
        fs: &Xfs,
        bytes: &[u8],
        limit: u64,
        place: Place,
        into: &mut Vec<Extent>,
    ) -> Result<()> {
        let Ok(raws) = <[RawExtent]>::ref_from_bytes(bytes) else {
            return Err(place.corrupt("the extent tree is truncated"));
        };
        let mut next = 0;
        for raw in raws {
            let (first, count) = (raw.file_block(), u64::from(raw.count()));
            if count == 0 || first < next || first + count > limit {
                let what = format!(
                    "the extent of {count} blocks that starts at block {first} of the file is not valid, or out of order"
                );
                return Err(place.field("br_startoff").corrupt(what));
            }
            next = first + count;
            let place = place.field("br_startblock");
            let start: FsBlock = if self.is_realtime {
                fs.realtime_extent(raw.fs_block(), count, place)?
            } else {
                fs.superblock.geometry.extent(raw.fs_block(), count, place)?
            };
            let state =
                if raw.is_unwritten() { ExtentState::Unwritten } else { ExtentState::Written };
            into.push(Extent { first: FileBlock(first), start, len: raw.count(), state });
        }
        Ok(())
    }
}

impl Xfs {
    fn map_header(&self) -> usize {
        if self.superblock.is_v5() { HEADER_V5 } else { HEADER }
    }

    /// Reads and checks a block of a file's map. Returns the block and its number of records.
    fn map_block(&self, number: u64, owner: InodeNo, level: u16) -> Result<(Block, usize)> {
        let place = Place::new("node of extents").inode(owner);
        let block = self.superblock.geometry.fs_block(number, 1, place.field("bb_ptr"))?;
        let place = place.block(block);
        let content = self.metadata.block(block)?;
        let Ok((raw, _)) = RawHeader::ref_from_prefix(&content) else {
            return Err(place.corrupt("the extent tree is truncated"));
        };
        let magic = if self.superblock.is_v5() { MAP_V5 } else { MAP };
        if u32::from_be_bytes(raw.bb_magic) != magic {
            return Err(place
                .field("bb_magic")
                .corrupt("the magic number does not match an extent tree"));
        }
        content.verify_once(Part::whole(KIND, owner), || {
            self.check_header(&content, Header::MAP, &[block], owner, place)
        })?;
        if raw.bb_level.get() != level {
            let what = format!(
                "a block of level {} is below a block of level {}",
                raw.bb_level,
                level + 1
            );
            return Err(place.field("bb_level").corrupt(what));
        }
        let records = usize::from(raw.bb_numrecs.get());
        let room = (content.len() - self.map_header()) / 16;
        if records > room {
            return Err(place.field("bb_numrecs").corrupt(format!("{records} of {room}")));
        }
        let siblings = [raw.bb_leftsib.get(), raw.bb_rightsib.get()];
        if siblings.contains(&number) && number != NONE {
            return Err(place.field("bb_rightsib").corrupt("the block is its own sibling"));
        }
        Ok((content, records))
    }
}
