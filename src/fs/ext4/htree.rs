//! Hashed directories. A search computes the hash of a name. It then descends a tree of hash ranges to the block with the entry.
//!
//! The nodes of the tree are directory blocks. A linear reader sees a node as one unused entry. The tree contains no names. The leaves are
//! ordinary blocks of entries, and the search compares the names in them.

use zerocopy::FromBytes;

use super::casefold::Wanted;
use super::checksum::crc32c_raw;
use super::dir_block::{Area, Found, Home};
use super::disk::dir::{
    DX_BLOCK_MASK, DX_NODE_COUNT_OFFSET, DX_ROOT_COUNT_OFFSET, DX_ROOT_INFO_OFFSET, RawDxCount,
    RawDxEntry, RawDxRootInfo, RawDxTail,
};
use super::features::{Compat, Incompat};
use super::hash::{HashVersion, NameHash};
use super::inode::Inode;
use super::superblock::Superblock;
use crate::error::{Place, Result};
use crate::fs::InodeFlags;
use crate::units::FileBlock;

const PLACE: Place = Place::new("htree node");
pub(super) const ENTRY: usize = size_of::<RawDxEntry>();

/// The root of a tree.
pub(super) struct DxRoot {
    pub(super) area: Area,
    pub(super) hash: NameHash,
    /// The number of levels of nodes below the root.
    pub(super) levels: u8,
}

/// A search for a name.
struct Search<'a> {
    dir: &'a Inode,
    wanted: &'a Wanted<'a>,
    hash: u32,
    /// The number of further blocks that the search may visit. The limit ends a search in a damaged tree. A valid tree contains each block
    /// of the directory at most once.
    budget: u64,
}

impl Inode {
    /// Whether the directory has a hash tree.
    pub(super) fn is_hashed(&self) -> bool {
        self.flags.contains(InodeFlags::INDEX)
            && !self.has_inline_data()
            && self.fs.superblock.compat.contains(Compat::DIR_INDEX)
    }

    /// Finds the entry of a name through the tree, without a linear search.
    pub(super) fn find_hashed(&self, wanted: &Wanted<'_>) -> Result<Option<Found>> {
        let root = self.dx_root()?;
        let hash = root.hash.of(wanted.hashed_bytes());
        let mut search = Search { dir: self, wanted, hash, budget: self.dir_blocks()? };
        search.node(&root.area, root.levels)
    }

    /// Reads the root without checking its entries.
    pub(super) fn dx_root(&self) -> Result<DxRoot> {
        let Some(area) = self.dir_block(FileBlock(0))? else {
            return Err(PLACE
                .inode(self.number)
                .corrupt("the root block of the hash tree is a hole"));
        };
        let place = Place { structure: "htree root", ..area.place };
        let info = area.bytes.get(DX_ROOT_INFO_OFFSET..);
        let info = info.and_then(|bytes| RawDxRootInfo::ref_from_prefix(bytes).ok());
        let Some((info, _)) = info else {
            return Err(place.corrupt("the root of the hash tree is truncated"));
        };
        let (hash, levels) = (self.name_hash(info, place)?, info.indirect_levels);
        Ok(DxRoot { area, hash, levels })
    }

    /// The entries of a node, in the order of their hashes.
    pub(super) fn dx_entries<'a>(&self, node: &'a Area) -> Result<&'a [RawDxEntry]> {
        let place = Place { structure: PLACE.structure, ..node.place };
        let offset = node.dx_offset();
        let (_, count) = self.capacity(&node.bytes, offset, place)?;
        let bytes = &node.bytes[offset..offset + count * ENTRY];
        let Ok(entries) = <[RawDxEntry]>::ref_from_bytes(bytes) else {
            return Err(place.corrupt("the entries of the node are truncated"));
        };
        // The first entry has no hash. It covers all hashes below the hash of the second entry.
        if !entries[1..].is_sorted_by_key(|entry| entry.hash.get()) {
            return Err(place.field("hash").corrupt("the entries of the node are out of order"));
        }
        Ok(entries)
    }

    /// Reads the block that an entry of a node points to.
    pub(super) fn dx_child(&self, entry: &RawDxEntry, node: &Area) -> Result<Area> {
        let place = Place { structure: PLACE.structure, ..node.place }.field("block");
        let block = FileBlock(u64::from(entry.block.get() & DX_BLOCK_MASK));
        let blocks = self.dir_blocks()?;
        if block.0 == 0 || block.0 >= blocks {
            return Err(place.corrupt(format!(
                "the entry points to block {block}, but the directory has {blocks} blocks"
            )));
        }
        match self.dir_block(block)? {
            Some(area) => Ok(area),
            None => {
                Err(place.corrupt(format!("the entry points to block {block}, which is a hole")))
            }
        }
    }

    /// Reads the directory's hash function from the root, and checks the other fields of the root.
    fn name_hash(&self, info: &RawDxRootInfo, place: Place) -> Result<NameHash> {
        let sb = &self.fs.superblock;
        let corrupt = |field, value: u8| Err(place.field(field).corrupt(format!("{value}")));
        let Some(version) = HashVersion::from_raw(info.hash_version) else {
            return corrupt("hash_version", info.hash_version);
        };
        if info.indirect_levels > sb.deepest_htree() {
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
        let offset = dx_offset(block);
        let (limit, count) = self.capacity(bytes, offset, place)?;
        let at = offset + limit * ENTRY;
        let tail = bytes.get(at..).and_then(|rest| RawDxTail::ref_from_prefix(rest).ok());
        let Some((tail, _)) = tail else {
            return Err(place
                .field("dt_checksum")
                .corrupt("the node has no space for its checksum"));
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

    /// The capacity of a node and its number of entries. In both numbers, the header counts as one entry.
    fn capacity(&self, bytes: &[u8], offset: usize, place: Place) -> Result<(usize, usize)> {
        let header = bytes.get(offset..).and_then(|rest| RawDxCount::ref_from_prefix(rest).ok());
        let Some((header, _)) = header else { return Err(place.corrupt("the node is truncated")) };
        let (limit, count) = (usize::from(header.limit.get()), usize::from(header.count.get()));
        let room = self.fs.superblock.dx_limit(offset);
        if limit != room {
            return Err(place.field("limit").corrupt(format!(
                "the limit is {limit} entries, but the block has space for {room}"
            )));
        }
        if count == 0 || count > limit {
            return Err(place
                .field("count")
                .corrupt(format!("the number of entries is {count}, but the limit is {limit}")));
        }
        Ok((limit, count))
    }
}

impl Superblock {
    /// The maximum number of levels of nodes below a root.
    pub(super) fn deepest_htree(&self) -> u8 {
        if self.incompat.contains(Incompat::LARGEDIR) { 2 } else { 1 }
    }

    /// The capacity of a node whose entries begin at `offset`. The header counts as an entry.
    pub(super) fn dx_limit(&self, offset: usize) -> usize {
        let tail = if self.seed.is_some() { size_of::<RawDxTail>() } else { 0 };
        (self.block_size.bytes() - offset - tail) / ENTRY
    }
}

impl Search<'_> {
    /// Searches the tree below a node. `levels` is the number of levels of nodes below this node. It decreases with each level. The
    /// recursion therefore ends.
    fn node(&mut self, node: &Area, levels: u8) -> Result<Option<Found>> {
        let entries = self.dir.dx_entries(node)?;
        let start = dx_position(entries, self.hash);
        // The next leaf may continue with names that have the same hash. If so, the lowest bit of the next leaf's hash is set.
        let hash = self.hash;
        let continued =
            entries[start + 1..].iter().take_while(|entry| entry.hash.get() & !1 == hash);
        for entry in std::iter::once(&entries[start]).chain(continued) {
            let below = self.visit(entry, node)?;
            let found = match levels.checked_sub(1) {
                None => below.into_found(self.wanted, &self.dir.fs)?,
                Some(levels) => self.node(&below, levels)?,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn visit(&mut self, entry: &RawDxEntry, node: &Area) -> Result<Area> {
        let Some(budget) = self.budget.checked_sub(1) else {
            let place = Place { structure: PLACE.structure, ..node.place }.field("block");
            return Err(place.corrupt("the hash tree contains more blocks than the directory"));
        };
        self.budget = budget;
        self.dir.dx_child(entry, node)
    }
}

impl Area {
    /// The offset of the node's entries in this area; `None` if the area is not a node.
    pub(super) fn dx_offset(&self) -> usize {
        match self.home {
            Home::Block(block, _) => dx_offset(block),
            Home::Inline(_) => DX_NODE_COUNT_OFFSET,
        }
    }
}

/// The index of the node's entry whose range contains `hash`: the last entry with a hash that is not greater than `hash`.
pub(super) fn dx_position(entries: &[RawDxEntry], hash: u32) -> usize {
    entries[1..].partition_point(|entry| entry.hash.get() <= hash)
}

/// The offset of a node's entries in its block. Block 0 contains the root.
pub(super) fn dx_offset(block: FileBlock) -> usize {
    if block.0 == 0 { DX_ROOT_COUNT_OFFSET } else { DX_NODE_COUNT_OFFSET }
}

/// The checksum of a node. The checksum covers all bytes up to the end of the last used entry, and the tail. The checksum field in the tail
/// counts as 0.
fn dx_checksum(seed: u32, used: &[u8], tail: &RawDxTail) -> u32 {
    let sum = crc32c_raw(crc32c_raw(seed, used), &tail.dt_reserved.to_bytes());
    crc32c_raw(sum, &[0; 4])
}

/// Stores the checksum of a node, whose `limit` and `count` must already be set. `seed` is the directory's seed.
pub(crate) fn seal_dx_block(seed: Option<u32>, block: FileBlock, bytes: &mut [u8]) {
    let Some(seed) = seed else { return };
    let offset = dx_offset(block);
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
