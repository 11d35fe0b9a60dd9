//! The blocks of the log: headers, tags, revocations, and their checksums.

use std::ops::Range;
use std::sync::Arc;

use zerocopy::FromBytes;
use zerocopy::big_endian::{U32, U64};

use super::superblock::{JournalFeatures, JournalSuperblock};
use crate::error::{Place, Result};
use crate::fs::block::Block;
use crate::fs::ext4::alloc::Zones;
use crate::fs::ext4::checksum::crc32c_raw;
use crate::fs::ext4::disk::journal::{
    COMMIT_CHECKSUM, COMMIT_FIELDS, MAGIC, RawCommit, RawHeader, RawRevoke, RawTag, RawTag3,
    TAG_ESCAPED, TAG_LAST, TAG_SAME_UUID, TAG_UUID_LEN, TAIL_LEN, tag_len,
};
use crate::fs::ext4::{Ext4, Inode};
use crate::fs::{FileType, InodeFlags};
use crate::units::{FileBlock, FsBlock, InodeNo};

/// The journal as a sequence of blocks.
pub(super) struct Log {
    fs: Arc<Ext4>,
    home: Home,
    pub(super) superblock: JournalSuperblock,
}

/// Where the journal's blocks are stored.
enum Home {
    /// The blocks of a file of the volume.
    Inode(Box<Inode>),
    /// The blocks of an external device. ironmap reads the volume's device and the external device as one combined device. The field is the
    /// number of the external device's first block on the combined device.
    Device(FsBlock),
}

/// A copy of a block in a transaction, as one tag of a descriptor block describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tag {
    /// The block's home location.
    pub(super) target: FsBlock,
    /// Whether the copy's first four bytes were replaced by zeros, because these bytes equal the magic number.
    pub(super) escaped: bool,
    /// The stored checksum: all 32 bits, or the lower 16 bits.
    pub(super) checksum: u32,
}

impl Log {
    pub(super) fn open(fs: &Arc<Ext4>, number: InodeNo) -> Result<Self> {
        let inode = fs.inode(number)?;
        let inline = inode.flags().intersects(InodeFlags::INLINE_DATA | InodeFlags::ENCRYPT);
        if inode.file_type() != FileType::Regular || inline {
            let place = Place::new("journal").inode(number).field("i_mode");
            return Err(place.corrupt("the journal inode is not a regular file with blocks"));
        }
        let size = fs.superblock.block_size;
        inode.keep_map()?;
        let file_size = inode.size();
        let home = Home::Inode(Box::new(inode));
        let first = home.block(0)?;
        let content = fs.blocks.read_device(first)?;
        // A valid journal maps each block of the volume at most once, and is not larger than the volume. A damaged journal may be larger.
        // Without this limit, a walk of the log could be endless.
        let available = (file_size >> size.shift()).min(fs.superblock.blocks_count);
        let superblock = JournalSuperblock::parse(&content, first, size, available)?;
        Ok(Self { fs: Arc::clone(fs), home, superblock })
    }

    /// The journal on an external device. `first` is the number of the device's first block on the combined device, which consists of the
    /// volume's device and the external device.
    pub(super) fn on_device(fs: &Arc<Ext4>, first: FsBlock, superblock: JournalSuperblock) -> Self {
        Self { fs: Arc::clone(fs), home: Home::Device(first), superblock }
    }

    /// Returns the same journal with another superblock.
    pub(super) fn with(self, superblock: JournalSuperblock) -> Self {
        Self { superblock, ..self }
    }

    /// Checks that the journal contains no block of a superblock, descriptor, bitmap or inode table. Writes to such a journal would
    /// overwrite these structures.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(super) fn check_place(&self) -> Result<()> {
        let zones = Zones::of(&self.fs)?;
        for index in 0..self.superblock.blocks {
            let block = self.block(index)?;
            if zones.has(block) {
                let what = "the block belongs to a superblock, the descriptors, a bitmap or an inode table";
                return Err(Place::new("journal").block(block).corrupt(what));
            }
        }
        Ok(())
    }

    /// The device block that stores block `index` of the journal.
    pub(super) fn block(&self, index: u32) -> Result<FsBlock> {
        self.home.block(index)
    }

    /// Reads a block of the journal. Also returns the number of this block on the device, for error messages.
    pub(super) fn read(&self, index: u32) -> Result<(FsBlock, Block)> {
        let block = self.block(index)?;
        let shown = match self.home {
            Home::Inode(_) => block,
            Home::Device(first) => FsBlock(block.0 - first.0),
        };
        Ok((shown, self.fs.blocks.read_device(block)?))
    }

    /// The block numbers that represent the blocks of an external journal's device. The range is empty if the journal is internal.
    pub(super) fn outside(&self) -> Range<u64> {
        match self.home {
            Home::Inode(_) => 0..0,
            Home::Device(first) => first.0..first.0 + u64::from(self.superblock.blocks),
        }
    }

    /// The index of the next block in the ring. After the last block, the ring continues at the first block.
    pub(super) fn after(&self, index: u32) -> u32 {
        let log = &self.superblock.log;
        if index + 1 < log.end { index + 1 } else { log.start }
    }

    /// The block type in a block's header. Returns `None` if the block does not belong to transaction `sequence`. The log then ends before
    /// the block.
    pub(super) fn block_type(content: &[u8], sequence: u32) -> Option<u32> {
        let (header, _) = RawHeader::ref_from_prefix(content).ok()?;
        (header.h_magic.get() == MAGIC && header.h_sequence.get() == sequence)
            .then(|| header.h_blocktype.get())
    }

    /// The bytes of a descriptor or revoke block before its checksum.
    fn body<'a>(&self, content: &'a [u8]) -> &'a [u8] {
        let tail = if self.superblock.seed.is_some() { TAIL_LEN } else { 0 };
        &content[..content.len() - tail]
    }

    /// Verifies the checksum at the end of a descriptor or revoke block.
    pub(super) fn verify_tail(&self, content: &[u8], place: Place) -> Result<()> {
        let Some(seed) = self.superblock.seed else { return Ok(()) };
        let body = self.body(content);
        let computed = crc32c_raw(crc32c_raw(seed, body), &[0; TAIL_LEN]);
        let stored = U32::read_from_bytes(&content[body.len()..]).map_or(0, U32::get);
        if stored == computed {
            Ok(())
        } else {
            Err(place.field("t_checksum").bad_checksum(stored, computed))
        }
    }

    /// Verifies the checksum of a commit block (checksum versions 2 and 3). The checksum is valid in two forms: over all bytes of the
    /// block, or over the fields followed by zeros. In the second form, the stored bytes after the fields may have any values, as in Linux.
    pub(super) fn verify_commit(&self, content: &[u8], place: Place) -> Result<()> {
        let Some(seed) = self.superblock.seed else { return Ok(()) };
        let stored = U32::read_from_bytes(&content[COMMIT_CHECKSUM]).map_or(0, U32::get);
        let mut zeroed = content.to_vec();
        zeroed[COMMIT_CHECKSUM].fill(0);
        let computed = crc32c_raw(seed, &zeroed);
        zeroed[COMMIT_FIELDS..].fill(0);
        if stored == computed || stored == crc32c_raw(seed, &zeroed) {
            Ok(())
        } else {
            Err(place.field("h_chksum").bad_checksum(stored, computed))
        }
    }

    /// Verifies the content of a copy in the journal against the checksum in the copy's tag.
    pub(super) fn verify_copy(
        &self,
        tag: &Tag,
        sequence: u32,
        content: &[u8],
        place: Place,
    ) -> Result<()> {
        let Some(seed) = self.superblock.seed else { return Ok(()) };
        let mut computed = crc32c_raw(crc32c_raw(seed, &sequence.to_be_bytes()), content);
        if !self.superblock.has(JournalFeatures::CSUM_V3) {
            computed &= 0xFFFF;
        }
        if tag.checksum == computed {
            Ok(())
        } else {
            Err(place.field("t_checksum").bad_checksum(tag.checksum, computed))
        }
    }

    /// The tags of a descriptor block. The list ends after the tag that is marked as the last, or at the end of the block.
    ///
    /// The flag for a deleted block in a tag is ignored, because Linux never wrote this flag into the images that were examined.
    pub(super) fn tags(&self, content: &[u8]) -> Vec<Tag> {
        let sb = &self.superblock;
        let wide = sb.has(JournalFeatures::SIXTY_FOUR_BIT);
        let version3 = sb.has(JournalFeatures::CSUM_V3);
        let len = if version3 {
            size_of::<RawTag3>()
        } else {
            tag_len(wide, sb.has(JournalFeatures::CSUM_V2))
        };
        let mut rest = &self.body(content)[size_of::<RawHeader>()..];
        let mut tags = Vec::new();
        while let Some((bytes, behind)) = rest.split_at_checked(len) {
            let tag = if version3 { tag3(bytes, wide) } else { tag2(bytes, wide) };
            let Some((tag, flags)) = tag else { break };
            tags.push(tag);
            let uuid = if flags & TAG_SAME_UUID == 0 { TAG_UUID_LEN } else { 0 };
            rest = behind.get(uuid..).unwrap_or_default();
            if flags & TAG_LAST != 0 {
                break;
            }
        }
        tags
    }

    /// The blocks that a revoke block revokes.
    pub(super) fn revocations(&self, content: &[u8], place: Place) -> Result<Vec<FsBlock>> {
        let used = RawRevoke::ref_from_prefix(content).map_or(0, |(raw, _)| raw.r_count.get());
        let numbers = (size_of::<RawRevoke>() <= used as usize)
            .then(|| self.body(content).get(size_of::<RawRevoke>()..used as usize))
            .flatten();
        let Some(numbers) = numbers else {
            return Err(place.field("r_count").corrupt(format!("{used} bytes")));
        };
        let blocks = if self.superblock.has(JournalFeatures::SIXTY_FOUR_BIT) {
            let (numbers, _) = numbers.as_chunks::<8>();
            numbers.iter().map(|number| FsBlock(U64::from_bytes(*number).get())).collect()
        } else {
            let (numbers, _) = numbers.as_chunks::<4>();
            numbers
                .iter()
                .map(|number| FsBlock(u64::from(U32::from_bytes(*number).get())))
                .collect()
        };
        Ok(blocks)
    }

    /// The fixed fields of a commit block.
    pub(super) fn commit(content: &[u8], place: Place) -> Result<&RawCommit> {
        RawCommit::ref_from_prefix(content)
            .map(|(raw, _)| raw)
            .map_err(|_| place.corrupt("the commit block is truncated"))
    }
}

impl Home {
    fn block(&self, index: u32) -> Result<FsBlock> {
        match self {
            Self::Inode(inode) => inode.fs_block(FileBlock(u64::from(index)))?.ok_or_else(|| {
                let place = Place::new("journal").inode(inode.number());
                place.corrupt(format!("block {index} of the journal is a hole"))
            }),
            Self::Device(first) => Ok(FsBlock(first.0 + u64::from(index))),
        }
    }
}

fn tag3(bytes: &[u8], wide: bool) -> Option<(Tag, u32)> {
    let (raw, _) = RawTag3::read_from_prefix(bytes).ok()?;
    let high = if wide { raw.t_blocknr_high.get() } else { 0 };
    let flags = raw.t_flags.get();
    Some((tag(raw.t_blocknr.get(), high, flags, raw.t_checksum.get()), flags))
}

fn tag2(bytes: &[u8], wide: bool) -> Option<(Tag, u32)> {
    let (raw, rest) = RawTag::read_from_prefix(bytes).ok()?;
    let high = if wide { U32::read_from_prefix(rest).ok()?.0.get() } else { 0 };
    let flags = u32::from(raw.t_flags.get());
    Some((tag(raw.t_blocknr.get(), high, flags, u32::from(raw.t_checksum.get())), flags))
}

fn tag(low: u32, high: u32, flags: u32, checksum: u32) -> Tag {
    let target = FsBlock(u64::from(low) | u64::from(high) << 32);
    Tag { target, escaped: flags & TAG_ESCAPED != 0, checksum }
}
