//! The hash index of a directory: in the directory's only block, or in leaves below nodes.

use zerocopy::FromBytes;

use super::DirBlock;
use super::data::Data;
use crate::error::{Place, Result};
use crate::fs::block::Part;
use crate::fs::xfs::disk::dir::{
    ALIGN, LEAF, LEAF_HEADER, LEAF_HEADER_V5, LEAF_OFFSET, LEAF_ONE, LEAF_ONE_V5, LEAF_V5, NODE,
    NODE_V5, RawHashEntry, RawLinks, STALE,
};
use crate::fs::xfs::header::{Header, array};
use crate::fs::xfs::inode::XfsInode;
use crate::iomap::ExtentMap;
use crate::units::InodeNo;

/// The code for blocks of a hash index in [`Part`], which identifies the structures whose checksums were verified.
const KIND: u8 = 4;
/// The maximum number of levels of an index.
const MAX_LEVELS: usize = 5;

/// A block of the index.
struct IndexBlock {
    block: DirBlock,
    count: usize,
    /// The level of the block: 0 for a leaf.
    level: u16,
    /// The next leaf; 0 if there is none.
    next: u64,
}

impl XfsInode {
    /// Looks for a name by its hash.
    pub(super) fn find_by_hash(&self, name: &[u8]) -> Result<Option<InodeNo>> {
        let hash = self.fs.hash_name(name);
        let map = self.data_map()?;
        let place = Place::new("directory").inode(self.stat.inode);
        if self.stat.size == self.fs.superblock.geometry.dir_block() as u64 {
            let Some(block) = self.dir_block(map, 0)? else {
                return Err(place.corrupt("the only block of the directory is a hole"));
            };
            // A separate index is possible even if the directory has a single block of entries.
            let data = self.data_block(&block)?;
            if data.is_only {
                return self.find_in_only(&data, hash, name);
            }
        }
        let mut leaf = self.find_leaf(map, hash)?;
        // Entries with the same hash can continue in the next leaf. The loop makes at most as many steps as the file has blocks. So the
        // loop also ends in a circular chain.
        for _ in 0..=self.stat.blocks {
            let header = self.index_header();
            let entries = Self::index_entries(&leaf, header, place)?;
            let at = entries.partition_point(|entry| entry.hashval.get() < hash);
            let alike = entries[at..].iter().take_while(|entry| entry.hashval.get() == hash);
            for entry in alike.filter(|entry| entry.address.get() != STALE) {
                if let Some(found) = self.entry_of_address(map, entry.address.get(), name)? {
                    return Ok(Some(found));
                }
            }
            let goes_on = entries.last().is_some_and(|entry| entry.hashval.get() <= hash);
            if !goes_on || leaf.next == 0 {
                return Ok(None);
            }
            leaf = self.index_block(map, leaf.next)?;
            if leaf.level != 0 {
                return Err(place
                    .field("forw")
                    .corrupt("the block after a leaf is a node, not a leaf"));
            }
        }
        Err(place.field("forw").corrupt("the chain of leaves is circular"))
    }

    /// Looks for a name in the only block of a directory. This block contains the index.
    fn find_in_only(&self, data: &Data<'_>, hash: u32, name: &[u8]) -> Result<Option<InodeNo>> {
        let at = data.index.partition_point(|entry| entry.hashval.get() < hash);
        let alike = data.index[at..].iter().take_while(|entry| entry.hashval.get() == hash);
        for entry in alike.filter(|entry| entry.address.get() != STALE) {
            let entry = data.entry_at(self, 0, entry.address.get() as usize * ALIGN)?;
            if self.fs.is_name(&entry.name, name) {
                return Ok(Some(entry.inode));
            }
        }
        Ok(None)
    }

    /// Reads the directory entry at an address that was found in the index. Returns the entry's inode if the entry has the given name.
    fn entry_of_address(
        &self,
        map: Option<&ExtentMap>,
        address: u32,
        name: &[u8],
    ) -> Result<Option<InodeNo>> {
        let size = self.fs.superblock.geometry.dir_block();
        let byte = u64::from(address) * ALIGN as u64;
        let (number, at) = (byte / size as u64, (byte % size as u64) as usize);
        let place = Place::new("directory index").inode(self.stat.inode).field("address");
        if byte >= LEAF_OFFSET {
            return Err(place.corrupt(format!("byte {byte} of the directory is past the entries")));
        }
        let log = self.fs.superblock.geometry.dir_block_log;
        let Some(block) = self.dir_block(map, number << log)? else {
            return Err(place.corrupt(format!("byte {byte} of the directory is in a hole")));
        };
        let base = number * (size / ALIGN) as u64;
        let entry = self.data_block(&block)?.entry_at(self, base, at)?;
        Ok(self.fs.is_name(&entry.name, name).then_some(entry.inode))
    }

    /// The first leaf that can contain entries with a hash.
    fn find_leaf(&self, map: Option<&ExtentMap>, hash: u32) -> Result<IndexBlock> {
        let mut number = LEAF_OFFSET >> self.fs.superblock.geometry.block.shift();
        let mut above: Option<u16> = None;
        for _ in 0..=MAX_LEVELS {
            let block = self.index_block(map, number)?;
            let place = Place::new("directory index").inode(self.stat.inode);
            if above.is_some_and(|above| block.level + 1 != above) {
                return Err(place.field("level").corrupt(format!("level {}", block.level)));
            }
            if block.level == 0 {
                return Ok(block);
            }
            let children = Self::index_entries(&block, self.index_header(), place)?;
            let at = children.partition_point(|entry| entry.hashval.get() < hash);
            // If the hash is greater than all hashes in the index, the search ends in the last leaf.
            let Some(child) = children.get(at).or(children.last()) else {
                return Err(place.field("count").corrupt("the node has no children"));
            };
            (number, above) = (child.address.get().into(), Some(block.level));
        }
        Err(Place::new("directory index")
            .inode(self.stat.inode)
            .corrupt("the index has too many levels"))
    }

    /// Reads and checks the block of the index that begins at block `number` of the file.
    fn index_block(&self, map: Option<&ExtentMap>, number: u64) -> Result<IndexBlock> {
        let place = Place::new("directory index").inode(self.stat.inode);
        let Some(block) = self.dir_block(map, number)? else {
            return Err(place.corrupt(format!("block {number} of the directory is a hole")));
        };
        let (first, bytes) = (block.blocks[0], &block.content[..]);
        let place = place.block(first);
        let Ok((links, _)) = RawLinks::ref_from_prefix(bytes) else {
            return Err(place.corrupt("the block of the index is truncated"));
        };
        let is_v5 = self.fs.superblock.is_v5();
        let is_node = match (links.magic.get(), is_v5) {
            (LEAF | LEAF_ONE, false) | (LEAF_V5 | LEAF_ONE_V5, true) => false,
            (NODE, false) | (NODE_V5, true) => true,
            (magic, _) => return Err(place.field("magic").corrupt(format!("{magic:#06x}"))),
        };
        block.content.verify_once(Part::whole(KIND, self.stat.inode), || {
            self.fs.check_header(bytes, Header::DA, &block.blocks, self.stat.inode, place)
        })?;
        let (next, at) = (links.forw.get().into(), if is_v5 { 56 } else { 12 });
        let count = usize::from(u16::from_be_bytes(array(bytes, at)));
        let level = if is_node { u16::from_be_bytes(array(bytes, at + 2)) } else { 0 };
        if is_node && (level == 0 || usize::from(level) > MAX_LEVELS) {
            return Err(place.field("level").corrupt(format!("level {level}")));
        }
        Ok(IndexBlock { block, count, level, next })
    }

    fn index_header(&self) -> usize {
        if self.fs.superblock.is_v5() { LEAF_HEADER_V5 } else { LEAF_HEADER }
    }

    fn index_entries(block: &IndexBlock, header: usize, place: Place) -> Result<&[RawHashEntry]> {
        let bytes = &block.block.content[header..];
        let entries = <[RawHashEntry]>::ref_from_prefix_with_elems(bytes, block.count);
        entries.map(|(entries, _)| entries).map_err(|_| {
            place.field("count").corrupt(format!(
                "{} entries do not fit into {} bytes",
                block.count,
                bytes.len()
            ))
        })
    }
}
