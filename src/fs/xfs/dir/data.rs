//! Directory blocks that contain entries.

use zerocopy::FromBytes;

use super::{DirBlock, Entry};
use crate::error::{Error, Place, Result};
use crate::fs::block::Part;
use crate::fs::xfs::disk::dir::{
    ALIGN, BLOCK, BLOCK_V5, DATA, DATA_HEADER, DATA_HEADER_V5, DATA_V5, FREE_TAG, RawBlockTail,
    RawHashEntry,
};
use crate::fs::xfs::header::{Header, array};
use crate::fs::xfs::inode::XfsInode;
use crate::units::InodeNo;

/// The code for blocks of directory entries in [`Part`], which identifies the structures whose checksums were verified.
const KIND: u8 = 3;

/// A checked block of entries. If the block is the directory's only block, the index follows the entries.
pub(super) struct Data<'a> {
    bytes: &'a [u8],
    start: usize,
    /// Whether this is the directory's only block and also contains the index. A directory with a single block of entries can also have a
    /// separate index.
    pub(super) is_only: bool,
    pub(super) index: &'a [RawHashEntry],
    place: Place,
}

impl XfsInode {
    /// Checks a block with entries.
    pub(super) fn data_block<'a>(&self, block: &'a DirBlock) -> Result<Data<'a>> {
        let first = block.blocks[0];
        let place = Place::new("directory block").inode(self.stat.inode).block(first);
        let bytes = &block.content[..];
        let is_v5 = self.fs.superblock.is_v5();
        let magic = u32::from_be_bytes(array(bytes, 0));
        let is_only = match (magic, is_v5) {
            (BLOCK, false) | (BLOCK_V5, true) => true,
            (DATA, false) | (DATA_V5, true) => false,
            _ => return Err(place.field("magic").corrupt(format!("{magic:#010x}"))),
        };
        block.content.verify_once(Part::whole(KIND, self.stat.inode), || {
            self.fs.check_header(bytes, Header::DIR_DATA, &block.blocks, self.stat.inode, place)
        })?;
        let start = if is_v5 { DATA_HEADER_V5 } else { DATA_HEADER };
        if !is_only {
            return Ok(Data { bytes, start, is_only, index: &[], place });
        }
        let place = place.field("count");
        let Ok((before, tail)) = RawBlockTail::ref_from_suffix(&bytes[start..]) else {
            return Err(place.corrupt("the directory block is truncated"));
        };
        let count = tail.count.get() as usize;
        let Ok((entries, index)) = <[RawHashEntry]>::ref_from_suffix_with_elems(before, count)
        else {
            return Err(place.corrupt(format!("the {count} entries of the index exceed the block")));
        };
        Ok(Data { bytes: &bytes[..start + entries.len()], start, is_only, index, place })
    }
}

impl Data<'_> {
    /// The entry at byte `at` of the block. The index points to this byte.
    pub(super) fn entry_at(&self, inode: &XfsInode, base: u64, at: usize) -> Result<Entry> {
        let within = at >= self.start && at < self.bytes.len() && at.is_multiple_of(ALIGN);
        let entry = if within { self.parse(inode, base, at)? } else { None };
        entry.ok_or_else(|| {
            self.place.field("address").corrupt(format!(
                "the index points to byte {at} of the block, where no entry begins"
            ))
        })
    }

    /// The entries of the block, up to the first fault. `base` is the block's position in the directory, in units of 8 bytes.
    pub(super) fn entries(&self, inode: &XfsInode, base: u64) -> (Vec<Entry>, Option<Error>) {
        let (mut at, mut entries) = (self.start, Vec::new());
        while at < self.bytes.len() {
            match self.parse(inode, base, at) {
                Ok(Some(entry)) => {
                    at = ((entry.next - base) as usize) * ALIGN;
                    entries.push(entry);
                }
                Ok(None) => match self.unused(at) {
                    Ok(len) => at += len,
                    Err(error) => return (entries, Some(error)),
                },
                Err(error) => return (entries, Some(error)),
            }
        }
        (entries, None)
    }

    /// The length of the unused space at byte `at` of the block.
    fn unused(&self, at: usize) -> Result<usize> {
        let len = usize::from(u16::from_be_bytes(array(self.bytes, at + 2)));
        if len < ALIGN || !len.is_multiple_of(ALIGN) || len > self.bytes.len() - at {
            let what =
                format!("the length of {len} unused bytes at byte {at} of the block is not valid");
            return Err(self.place.field("length").corrupt(what));
        }
        Ok(len)
    }

    /// The entry at a byte of the block; `None` for unused space.
    fn parse(&self, inode: &XfsInode, base: u64, at: usize) -> Result<Option<Entry>> {
        let fs = &inode.fs;
        let rest = &self.bytes[at..];
        if u16::from_be_bytes(array(rest, 0)) == FREE_TAG {
            return Ok(None);
        }
        let len = usize::from(rest.get(8).copied().unwrap_or(0));
        let whole = fs.entry_len(len);
        if len == 0 || whole > rest.len() {
            let what = format!(
                "the name of {len} bytes at byte {at} of the block is empty or exceeds the block"
            );
            return Err(self.place.field("namelen").corrupt(what));
        }
        let name = &rest[9..9 + len];
        if name.contains(&b'/') || name.contains(&0) {
            return Err(self
                .place
                .field("name")
                .corrupt(format!("the name at byte {at} of the block contains a slash or a NUL")));
        }
        let tag = usize::from(u16::from_be_bytes(array(rest, whole - 2)));
        if tag != at {
            return Err(self.place.field("tag").corrupt(format!(
                "the tag of the entry at byte {at} of the block is {tag} instead of the offset"
            )));
        }
        let number = base + (at / ALIGN) as u64;
        Ok(Some(Entry {
            name: name.to_vec(),
            inode: InodeNo(u64::from_be_bytes(array(rest, 0))),
            file_type: fs.file_type(rest[9 + len]),
            at: number,
            next: number + (whole / ALIGN) as u64,
        }))
    }
}
