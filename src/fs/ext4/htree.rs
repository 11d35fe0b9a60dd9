//! Hashed directories: from a name's hash, down a tree of hash ranges, to the block that holds the entry.
//!
//! The tree hides in blocks that a linear reader takes for unused space. It only says where to look: names are compared in
//! the leaves, which are ordinary blocks of entries.

use zerocopy::FromBytes;

use super::casefold::Wanted;
use super::checksum::crc32c_raw;
use super::dir::Area;
use super::disk::dir::{
    DX_BLOCK_MASK, DX_NODE_COUNT_OFFSET, DX_ROOT_COUNT_OFFSET, DX_ROOT_INFO_OFFSET, RawDxCount,
    RawDxEntry, RawDxRootInfo, RawDxTail,
};
use super::features::{Compat, Incompat};
use super::hash::{HashVersion, NameHash};
use super::inode::{Inode, InodeFlags};
use crate::error::{Place, Result};
use crate::units::{FileBlock, InodeNo};

const PLACE: Place = Place::new("htree node");
const ENTRY: usize = size_of::<RawDxEntry>();

/// The search of one name.
struct Search<'a> {
    dir: &'a Inode,
    wanted: &'a Wanted<'a>,
    hash: u32,
    /// How many more blocks may be visited: a sound tree leads to each block of the directory at most once.
    budget: u64,
}

impl Inode {
    /// Whether names are looked up by their hash.
    pub(super) fn is_hashed(&self) -> bool {
        self.flags.contains(InodeFlags::INDEX)
            && !self.has_inline_data()
            && self.fs.superblock.compat.contains(Compat::DIR_INDEX)
    }

    /// The inode that a name stands for, by the tree alone.
    pub(super) fn find_hashed(&self, wanted: &Wanted<'_>) -> Result<Option<InodeNo>> {
        let Some(root) = self.dir_block(FileBlock(0))? else {
            return Err(PLACE.inode(self.number).corrupt("the root is a hole"));
        };
        let place = Place { structure: "htree root", ..root.place };
        let info = root.bytes.get(DX_ROOT_INFO_OFFSET..);
        let info = info.and_then(|bytes| RawDxRootInfo::ref_from_prefix(bytes).ok());
        let Some((info, _)) = info else { return Err(place.corrupt("the root is cut short")) };
        let hash = self.name_hash(info, place)?;
        let mut search = Search {
            dir: self,
            wanted,
            hash: hash.of(wanted.hashed_bytes()),
            budget: self.dir_blocks()?,
        };
        let levels = info.indirect_levels;
        search.node(&root, DX_ROOT_COUNT_OFFSET, levels)
    }

    /// The hash function of a directory by its root, all of the root's other fields checked.
    fn name_hash(&self, info: &RawDxRootInfo, place: Place) -> Result<NameHash> {
        let sb = &self.fs.superblock;
        let corrupt = |field, value: u8| Err(place.field(field).corrupt(format!("{value}")));
        let version = match info.hash_version {
            0 => HashVersion::Legacy,
            1 => HashVersion::HalfMd4,
            2 => HashVersion::Tea,
            // 6 is SipHash, keyed by the encryption key: only an encrypted directory has it, and that was refused before.
            other => return corrupt("hash_version", other),
        };
        let deepest = if sb.incompat.contains(Incompat::LARGEDIR) { 2 } else { 1 };
        if info.indirect_levels > deepest {
            return corrupt("indirect_levels", info.indirect_levels);
        }
        if usize::from(info.info_length) != size_of::<RawDxRootInfo>() {
            return corrupt("info_length", info.info_length);
        }
        if info.unused_flags & 1 != 0 {
            return corrupt("unused_flags", info.unused_flags);
        }
        Ok(NameHash { version, unsigned: sb.hash_unsigned, seed: sb.hash_seed })
    }

    /// Verifies a node's checksum.
    pub(super) fn verify_dx_block(
        &self,
        block: FileBlock,
        bytes: &[u8],
        place: Place,
    ) -> Result<()> {
        let Some(seed) = self.fs.superblock.seed else { return Ok(()) };
        let offset = if block.0 == 0 { DX_ROOT_COUNT_OFFSET } else { DX_NODE_COUNT_OFFSET };
        let (limit, count) = self.capacity(bytes, offset, place)?;
        let at = offset + limit * ENTRY;
        let tail = bytes.get(at..).and_then(|rest| RawDxTail::ref_from_prefix(rest).ok());
        let Some((tail, _)) = tail else {
            return Err(place.field("dt_checksum").corrupt("there is no room for it"));
        };
        let seed = seed.of_inode(self.number, self.generation);
        let computed = dx_checksum(seed, &bytes[..offset + count * ENTRY], tail);
        let stored = tail.dt_checksum.get();
        if stored == computed {
            Ok(())
        } else {
            Err(place.field("dt_checksum").bad_checksum(stored, computed))
        }
    }

    /// How many entries a node has room for, and how many it has; each counts the header as one.
    fn capacity(&self, bytes: &[u8], offset: usize, place: Place) -> Result<(usize, usize)> {
        let header = bytes.get(offset..).and_then(|rest| RawDxCount::ref_from_prefix(rest).ok());
        let Some((header, _)) = header else { return Err(place.corrupt("it is cut short")) };
        let (limit, count) = (usize::from(header.limit.get()), usize::from(header.count.get()));
        let tail = if self.fs.superblock.seed.is_some() { size_of::<RawDxTail>() } else { 0 };
        let room = (bytes.len() - offset - tail) / ENTRY;
        if limit != room {
            return Err(place.field("limit").corrupt(format!("{limit} in a block with {room}")));
        }
        if count == 0 || count > limit {
            return Err(place.field("count").corrupt(format!("{count} of {limit} entries")));
        }
        Ok((limit, count))
    }
}

impl Search<'_> {
    /// Searches below a node that has `levels` levels of nodes under it, so the recursion ends.
    fn node(&mut self, node: &Area, offset: usize, levels: u8) -> Result<Option<InodeNo>> {
        let place = Place { structure: PLACE.structure, ..node.place };
        let (_, count) = self.dir.capacity(&node.bytes, offset, place)?;
        let bytes = &node.bytes[offset..offset + count * ENTRY];
        let Ok(entries) = <[RawDxEntry]>::ref_from_bytes(bytes) else {
            return Err(place.corrupt("its entries are cut short"));
        };
        // The first entry has no hash: it takes all that is below the second one's.
        let (first, others) = entries.split_at(1);
        if !others.is_sorted_by_key(|entry| entry.hash.get()) {
            return Err(place.field("hash").corrupt("the entries are out of order"));
        }
        let after = others.partition_point(|entry| entry.hash.get() <= self.hash);
        let start = if after == 0 { &first[0] } else { &others[after - 1] };
        // Names of one hash may continue in the next leaf: the lowest bit of that one's hash says so.
        let hash = self.hash;
        let continued = others[after..].iter().take_while(|entry| entry.hash.get() & !1 == hash);
        for entry in std::iter::once(start).chain(continued) {
            let block = FileBlock(u64::from(entry.block.get() & DX_BLOCK_MASK));
            let below = self.visit(block, place)?;
            let found = match levels.checked_sub(1) {
                None => below.find(self.wanted, &self.dir.fs)?,
                Some(levels) => self.node(&below, DX_NODE_COUNT_OFFSET, levels)?,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn visit(&mut self, block: FileBlock, place: Place) -> Result<Area> {
        let place = place.field("block");
        let blocks = self.dir.dir_blocks()?;
        if block.0 == 0 || block.0 >= blocks {
            return Err(place.corrupt(format!("points to block {block} of {blocks}")));
        }
        let Some(budget) = self.budget.checked_sub(1) else {
            return Err(place.corrupt("it leads to more blocks than the directory has"));
        };
        self.budget = budget;
        match self.dir.dir_block(block)? {
            Some(area) => Ok(area),
            None => Err(place.corrupt(format!("points to block {block}, a hole"))),
        }
    }
}

/// The checksum of a node: over all up to the last entry in use, then over the tail with the checksum as 0.
fn dx_checksum(seed: u32, used: &[u8], tail: &RawDxTail) -> u32 {
    let sum = crc32c_raw(crc32c_raw(seed, used), &tail.dt_reserved.to_bytes());
    crc32c_raw(sum, &[0; 4])
}

/// Stores the checksum of a node, whose `limit` and `count` are set; the seed is the directory's.
pub(crate) fn seal_dx_block(seed: Option<u32>, block: FileBlock, bytes: &mut [u8]) {
    let Some(seed) = seed else { return };
    let offset = if block.0 == 0 { DX_ROOT_COUNT_OFFSET } else { DX_NODE_COUNT_OFFSET };
    let Ok((header, _)) = RawDxCount::read_from_prefix(&bytes[offset..]) else { return };
    let Some((nodes, tail)) =
        bytes.split_at_mut_checked(offset + usize::from(header.limit.get()) * ENTRY)
    else {
        return;
    };
    let used = offset + usize::from(header.count.get()) * ENTRY;
    if let (Some(used), Ok((tail, _))) = (nodes.get(..used), RawDxTail::mut_from_prefix(tail)) {
        tail.dt_checksum.set(dx_checksum(seed, used, tail));
    }
}
