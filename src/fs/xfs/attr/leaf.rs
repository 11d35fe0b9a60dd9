//! Leaf blocks of attributes, and the index nodes above them.

use zerocopy::FromBytes;

use super::Attributes;
use crate::error::{Place, Result};
use crate::fs::xfs::disk::attr::{
    LEAF, LEAF_HEADER, LEAF_HEADER_V5, LEAF_V5, RawEntry, RawLocal, RawRemote, flags,
};
use crate::fs::xfs::disk::dir::{
    LEAF_HEADER as NODE_HEADER, LEAF_HEADER_V5 as NODE_HEADER_V5, NODE, NODE_V5, RawHashEntry,
    RawLinks,
};
use crate::fs::xfs::fork::Fork;
use crate::fs::xfs::header::{Header, array};
use crate::fs::xfs::inode::XfsInode;
use crate::iomap::ExtentMap;

/// The maximum number of levels of an index.
const MAX_LEVELS: usize = 5;

impl XfsInode {
    /// Reads all attributes of all leaves, in the order of their hashes.
    pub(super) fn leaf_attributes(&self, fork: &Fork, found: &mut Attributes) -> Result<()> {
        let place = Place::new("attributes").inode(self.stat.inode);
        let map = self.load(fork)?;
        let map = map.as_ref();
        let is_v5 = self.fs.superblock.is_v5();
        // Walks down to the first leaf.
        let (mut number, mut levels) = (0, 0);
        let mut content = loop {
            let content = self.attribute_block(fork, map, number)?;
            let magic = u16::from_be_bytes(array(&content, 8));
            if magic != if is_v5 { NODE_V5 } else { NODE } {
                break content;
            }
            levels += 1;
            if levels > MAX_LEVELS {
                return Err(place.corrupt("the attribute index has too many levels"));
            }
            let header = if is_v5 { NODE_HEADER_V5 } else { NODE_HEADER };
            let Ok((first, _)) = RawHashEntry::ref_from_prefix(&content[header..]) else {
                return Err(place.corrupt("the attribute index is truncated"));
            };
            number = u64::from(first.address.get());
        };
        // A chain has at most as many leaves as the fork has blocks, so a longer chain is circular.
        let most = map.map_or(u64::from(u32::MAX), |map| {
            map.extents().iter().map(|extent| u64::from(extent.len)).sum()
        });
        for _ in 0..most {
            let magic = u16::from_be_bytes(array(&content, 8));
            if magic != if is_v5 { LEAF_V5 } else { LEAF } {
                return Err(place.field("magic").corrupt(format!(
                    "the magic number {magic:#06x} does not match an attribute leaf"
                )));
            }
            self.leaf(fork, map, &content, found)?;
            number = u64::from(u32::from_be_bytes(array(&content, 0)));
            if number == 0 {
                return Ok(());
            }
            content = self.attribute_block(fork, map, number)?;
        }
        Err(place.field("forw").corrupt("the chain of attribute leaves is circular"))
    }

    fn attribute_block(
        &self,
        fork: &Fork,
        map: Option<&ExtentMap>,
        number: u64,
    ) -> Result<crate::fs::block::Block> {
        let place = Place::new("attribute leaf").inode(self.stat.inode);
        let Some(blocks) = self.fs_blocks(fork, map, number, 1)? else {
            return Err(place.corrupt(format!("block {number} of the attribute fork is a hole")));
        };
        let content = self.fs.metadata.blocks(&blocks)?;
        let place = place.block(blocks[0]);
        self.fs.check_header(&content, Header::DA, &blocks, self.stat.inode, place)?;
        Ok(content)
    }

    fn leaf(
        &self,
        fork: &Fork,
        map: Option<&ExtentMap>,
        content: &[u8],
        found: &mut Attributes,
    ) -> Result<()> {
        let place = Place::new("attribute leaf").inode(self.stat.inode);
        let is_v5 = self.fs.superblock.is_v5();
        let header = if is_v5 { LEAF_HEADER_V5 } else { LEAF_HEADER };
        let links = if is_v5 { 56 } else { size_of::<RawLinks>() };
        let count = usize::from(u16::from_be_bytes(array(content, links)));
        let Ok((entries, _)) = <[RawEntry]>::ref_from_prefix_with_elems(&content[header..], count)
        else {
            return Err(place
                .field("count")
                .corrupt(format!("the {count} entries exceed the block")));
        };
        for entry in entries {
            let at = usize::from(entry.nameidx.get());
            let outside = || {
                place.field("nameidx").corrupt(format!("the name at byte {at} exceeds the block"))
            };
            let bytes = content.get(at..).filter(|_| at >= header).ok_or_else(outside)?;
            if entry.flags & flags::LOCAL != 0 {
                let Ok((raw, rest)) = RawLocal::ref_from_prefix(bytes) else {
                    return Err(outside());
                };
                let (name, value) = (usize::from(raw.namelen), usize::from(raw.valuelen.get()));
                let content = rest.get(..name + value).ok_or_else(outside)?;
                let (name, value) = content.split_at(name);
                found.add(name, entry.flags, place, || Ok(value.to_vec()))?;
            } else {
                let Ok((raw, rest)) = RawRemote::ref_from_prefix(bytes) else {
                    return Err(outside());
                };
                let name = rest.get(..usize::from(raw.namelen)).ok_or_else(outside)?;
                let (first, len) = (raw.valueblk.get(), raw.valuelen.get());
                found.add(name, entry.flags, place, || self.remote_value(fork, map, first, len))?;
            }
        }
        Ok(())
    }
}
