//! Applies transactions in log order to sectors in memory.

use std::collections::HashMap;
use std::ops::Range;

use zerocopy::FromBytes;

use super::finish::{Ended, Intents};
use super::inode_item::{is_sealed, seal};
use super::transactions::{Item, Transaction};
use crate::error::{Error, Place, Result};
use crate::fs::xfs::Superblock;
use crate::fs::xfs::disk::inode::{FORKS_V3, MAGIC as INODE_MAGIC};
use crate::fs::xfs::disk::log::{RawBufferItem, RawInodeCreate, buffer, item};
use crate::fs::xfs::geometry::BASIC_SHIFT;
use crate::fs::xfs::header::array;
use crate::fs::xfs::metadata::Metadata;
use crate::fs::xfs::overlay::Overlay;
use crate::units::{DevOffset, FsBlock};

/// The maximum length of a buffer in bytes. A buffer is a block of a directory or of the volume, or a cluster of inodes.
const MAX_BUFFER: u64 = 64 << 10;
/// Byte offset of `di_next_unlinked` in an inode.
const NEXT_UNLINKED: usize = 96;
/// The value that ends an unlinked list.
const NO_INODE: [u8; 4] = [0xFF; 4];

/// Cancelled buffers. Content that was logged before the cancellation must not be applied. The key is the buffer's position and length in
/// basic sectors. The value is the number of cancellations.
#[derive(Default)]
pub(super) struct Cancelled(HashMap<(u64, u16), u32>);

impl Cancelled {
    pub(super) fn collect(&mut self, transaction: &Transaction) -> Result<()> {
        for item in transaction.items.iter().filter(|item| item.code() == item::BUFFER) {
            let raw = buffer_item(item, transaction.place)?;
            if raw.blf_flags.get() & buffer::CANCEL != 0 {
                *self.0.entry(key(raw)).or_default() += 1;
            }
        }
        Ok(())
    }

    /// Whether the buffer with this position and length, in basic sectors, is cancelled.
    pub(super) fn has(&self, at: u64, len: u64) -> bool {
        u16::try_from(len).is_ok_and(|len| self.0.contains_key(&(at, len)))
    }

    /// Counts down the remaining cancellations of a buffer. After the last cancellation, the blocks may be reused, so content that is
    /// logged later is applied.
    fn pass(&mut self, raw: &RawBufferItem) {
        if let Some(count) = self.0.get_mut(&key(raw)) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&key(raw));
            }
        }
    }

    /// Whether any cancelled buffer overlaps a range of basic sectors.
    fn touches(&self, sectors: &Range<u64>) -> bool {
        self.0.keys().any(|(at, len)| *at < sectors.end && sectors.start < *at + u64::from(*len))
    }
}

fn key(raw: &RawBufferItem) -> (u64, u16) {
    (raw.blf_blkno.get(), raw.blf_len.get())
}

pub(super) fn buffer_item(item: &Item, place: Place) -> Result<&RawBufferItem> {
    let region = item.region(0, place)?;
    let raw = RawBufferItem::ref_from_prefix(region);
    raw.map(|(raw, _)| raw).map_err(|_| place.corrupt("the buffer item is truncated"))
}

pub(super) struct Replay<'a> {
    metadata: &'a Metadata,
    pub(super) superblock: &'a Superblock,
    pub(super) cancelled: Cancelled,
    overlay: Overlay,
    /// The last record of the current transaction, for error messages.
    pub(super) place: Place,
    intents: Intents,
    /// The number of block ownership changes that the replay may still make before it reaches the limit.
    pub(super) owners_left: u32,
}

impl<'a> Replay<'a> {
    pub(super) fn new(
        metadata: &'a Metadata,
        superblock: &'a Superblock,
        cancelled: Cancelled,
    ) -> Self {
        let (overlay, intents) = (Overlay::default(), Intents::default());
        let place = Place::new("log record");
        let owners_left = super::owner::MAX_OWNED;
        Self { metadata, superblock, cancelled, overlay, place, intents, owners_left }
    }

    /// Ends the replay. Returns the overlay, and the result of processing the unfinished intents.
    pub(super) fn end(self) -> Result<(Overlay, Ended)> {
        Ok((self.overlay, self.intents.end(self.superblock)?))
    }

    /// Applies a transaction: first buffers, then items that change parts of buffers, then unlinked lists. Cancellations are processed
    /// last, because they affect only later transactions.
    pub(super) fn transaction(&mut self, transaction: &Transaction) -> Result<()> {
        let lsn = transaction.lsn;
        self.place = transaction.place;
        for turn in [Turn::Buffers, Turn::Items, Turn::InodeBuffers, Turn::Cancellations] {
            for item in &transaction.items {
                if Turn::of(item, self.place)? == turn {
                    self.item(item, turn, lsn)?;
                }
            }
        }
        Ok(())
    }

    fn item(&mut self, item: &Item, turn: Turn, lsn: u64) -> Result<()> {
        match item.code() {
            item::BUFFER => match turn {
                Turn::Cancellations => {
                    self.cancelled.pass(buffer_item(item, self.place)?);
                    Ok(())
                }
                _ => self.buffer(item, lsn),
            },
            item::INODE_CREATE => self.create_inodes(item),
            item::INODE => self.inode(item, lsn),
            // Quota records are skipped, because reads of files do not depend on them.
            item::DQUOT | item::QUOTA_OFF => Ok(()),
            code => self.intent(code, item),
        }
    }

    fn intent(&mut self, code: u16, item: &Item) -> Result<()> {
        let region = item.region(0, self.place)?;
        if self.intents.take(code, u64::from_le_bytes(array(region, 8)), &item.regions) {
            return Ok(());
        }
        let what = format!("the XFS log contains items of the unknown type {code:#06x}");
        Err(Error::unsupported(what))
    }

    /// Reads a buffer (a range of basic sectors) with all changes that were applied so far.
    pub(super) fn read(&self, sector: u64, count: u64) -> Result<(u64, Vec<u8>)> {
        let geometry = &self.superblock.geometry;
        let shift = geometry.block.shift() - BASIC_SHIFT;
        let end = sector.checked_add(count);
        let fits = end.is_some_and(|end| end <= geometry.blocks << shift);
        if count == 0 || count << BASIC_SHIFT > MAX_BUFFER || !fits {
            let what = format!("a buffer of {count} sectors at sector {sector} is not valid");
            return Err(self.place.field("blf_blkno").corrupt(what));
        }
        let at = sector << BASIC_SHIFT;
        let mut bytes = vec![0; (count << BASIC_SHIFT) as usize];
        self.metadata.read_at(DevOffset(at), &mut bytes)?;
        self.overlay.patch(at, &mut bytes);
        Ok((at, bytes))
    }

    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) {
        self.overlay.put(at, bytes);
    }

    /// Stores a part of a buffer in the overlay, rounded to whole sectors. Inodes in other sectors are still read from the device.
    pub(super) fn put_part(&mut self, at: u64, bytes: &[u8], part: Range<usize>) {
        const SECTOR: usize = 1 << BASIC_SHIFT;
        let start = part.start / SECTOR * SECTOR;
        let end = part.end.next_multiple_of(SECTOR).min(bytes.len());
        self.put(at + start as u64, &bytes[start..end]);
    }

    fn buffer(&mut self, item: &Item, lsn: u64) -> Result<()> {
        let raw = buffer_item(item, self.place)?;
        let (sector, count) = (raw.blf_blkno.get(), raw.blf_len.get().into());
        if self.cancelled.has(sector, count) {
            return Ok(());
        }
        let (at, mut bytes) = self.read(sector, count)?;
        let newest = self.superblock.is_v5().then(|| lsn_of(&bytes, self.superblock)).flatten();
        let is_inodes = raw.blf_flags.get() & buffer::INODES != 0;
        if newest.is_some_and(|newest| newest >= lsn) {
            return Ok(());
        }
        let parts = logged_parts(item, raw, bytes.len(), self.place)?;
        if is_inodes {
            self.next_unlinked(at, &mut bytes, &parts);
            return Ok(());
        }
        for (range, content) in parts {
            bytes[range].copy_from_slice(content);
        }
        self.put(at, &bytes);
        Ok(())
    }

    /// Applies only the logged `di_next_unlinked` fields of the inodes in a buffer.
    fn next_unlinked(&mut self, at: u64, bytes: &mut [u8], parts: &[(Range<usize>, &[u8])]) {
        let size = self.superblock.geometry.inode;
        for start in (0..bytes.len() / size).map(|index| index * size) {
            let field = start + NEXT_UNLINKED..start + NEXT_UNLINKED + 4;
            let is_in = |range: &Range<usize>| range.start <= field.start && field.end <= range.end;
            let Some((range, content)) = parts.iter().find(|(range, _)| is_in(range)) else {
                continue;
            };
            let from = field.start - range.start;
            let inode = &mut bytes[start..start + size];
            // The checksum is updated only if it was correct before. A wrong checksum stays wrong, because this change does not repair the
            // inode.
            let is_sound = self.superblock.is_v5() && is_sealed(inode);
            inode[NEXT_UNLINKED..NEXT_UNLINKED + 4].copy_from_slice(&content[from..from + 4]);
            if is_sound {
                seal(inode);
            }
            self.put_part(at, bytes, start..start + size);
        }
    }

    /// Writes the unused inodes that an inode creation item describes. Later log items contain the first use of these inodes.
    fn create_inodes(&mut self, item: &Item) -> Result<()> {
        let place = self.place;
        let Ok((raw, _)) = RawInodeCreate::ref_from_prefix(item.region(0, place)?) else {
            return Err(place.corrupt("the inode creation item is truncated"));
        };
        let geometry = self.superblock.geometry;
        let (count, length) = (raw.icl_count.get(), u64::from(raw.icl_length.get()));
        let size = raw.icl_isize.get() as usize;
        let bytes = length << geometry.block.shift();
        let most = geometry.inodes_made();
        if size != geometry.inode || count > most || bytes != u64::from(count) * size as u64 {
            let what =
                format!("{count} inodes of {size} bytes are not valid: the maximum is {most}");
            return Err(place.field("icl_count").corrupt(what));
        }
        let (group, within) = (u64::from(raw.icl_ag.get()), u64::from(raw.icl_agbno.get()));
        let number = group << geometry.group_blocks_log | within;
        if within >> geometry.group_blocks_log != 0 {
            return Err(place
                .field("icl_agbno")
                .corrupt(format!("block {within} is past the end of the group")));
        }
        let first = geometry.fs_block(number, length, place.field("icl_agbno"))?;
        let start = geometry.basic_sector(first);
        if self.cancelled.touches(&(start..start + (bytes >> BASIC_SHIFT))) {
            return Ok(());
        }
        let per_block = geometry.block.bytes() / size;
        let mut content = vec![0; bytes as usize];
        for (index, inode) in content.chunks_exact_mut(size).enumerate() {
            let block = FsBlock(first.0 + (index / per_block) as u64);
            let number = geometry.inode_number(block, index % per_block);
            inode[..2].copy_from_slice(&INODE_MAGIC.to_be_bytes());
            inode[4] = if self.superblock.is_v5() { 3 } else { 2 };
            inode[92..96].copy_from_slice(&raw.icl_gen.get().to_be_bytes());
            inode[NEXT_UNLINKED..NEXT_UNLINKED + 4].copy_from_slice(&NO_INODE);
            if self.superblock.is_v5() {
                inode[152..160].copy_from_slice(&number.to_be_bytes());
                inode[160..FORKS_V3].copy_from_slice(&self.superblock.meta_uuid);
                seal(inode);
            }
        }
        self.put(geometry.block.offset_of(first).0, &content);
        Ok(())
    }
}

/// The logged parts of a buffer. Each run of set bits in the item's map describes one part.
pub(super) fn logged_parts<'i>(
    item: &'i Item,
    raw: &RawBufferItem,
    len: usize,
    place: Place,
) -> Result<Vec<(Range<usize>, &'i [u8])>> {
    let words = raw.blf_map_size.get() as usize;
    let map = item.region(0, place)?.get(size_of::<RawBufferItem>()..).unwrap_or_default();
    if words > map.len() / 4 {
        let what = format!("a map of {words} words does not fit into {} bytes", map.len());
        return Err(place.field("blf_map_size").corrupt(what));
    }
    let is_set = |bit: usize| {
        bit < words * 32 && u32::from_le_bytes(array(map, bit / 32 * 4)) >> (bit % 32) & 1 == 1
    };
    let (mut parts, mut bit, mut number) = (Vec::new(), 0, 1);
    while bit < words * 32 {
        if !is_set(bit) {
            bit += 1;
            continue;
        }
        let run = (bit..).take_while(|bit| is_set(*bit)).count();
        let content = item.region(number, place)?;
        // The content of a long run can be split into several regions.
        let count = run.min(content.len() / buffer::CHUNK);
        let range = bit * buffer::CHUNK..(bit + count) * buffer::CHUNK;
        if count == 0 || range.end > len {
            let what = format!("the bytes {range:?} exceed the buffer of {len} bytes");
            return Err(place.field("blf_data_map").corrupt(what));
        }
        parts.push((range.clone(), &content[..range.len()]));
        bit += count;
        number += 1;
    }
    Ok(parts)
}

/// The order in which an item is applied within its transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Buffers,
    Items,
    InodeBuffers,
    Cancellations,
}

impl Turn {
    fn of(item: &Item, place: Place) -> Result<Self> {
        Ok(match item.code() {
            item::INODE_CREATE => Self::Buffers,
            item::BUFFER => {
                let flags = buffer_item(item, place)?.blf_flags.get();
                if flags & buffer::CANCEL != 0 {
                    Self::Cancellations
                } else if flags & buffer::INODES != 0 {
                    Self::InodeBuffers
                } else {
                    Self::Buffers
                }
            }
            _ => Self::Items,
        })
    }
}

/// The position (LSN) of the last change in a structure. If the structure has no valid LSN, returns `None`, and logged changes are always
/// applied.
fn lsn_of(bytes: &[u8], superblock: &Superblock) -> Option<u64> {
    let (lsn, uuid) = match &array::<4>(bytes, 0) {
        b"AB3B" | b"AB3C" | b"IAB3" | b"FIB3" | b"RMB3" | b"R3FC" => (24, 32),
        b"BMA3" => (32, 40),
        b"XAGF" => (208, 64),
        b"XAFL" => (24, 8),
        b"XAGI" => (320, 296),
        b"XSLM" => (48, 16),
        b"XDB3" | b"XDD3" | b"XDF3" => (16, 24),
        b"XFSB" => (240, 32),
        // All other structures with an LSN are directory or attribute blocks: their magic is at byte 8, after two links to sibling blocks.
        _ => match array::<2>(bytes, 8) {
            [0x3D, 0xF1 | 0xFF] | [0x3E, 0xBE] | [0x3B, 0xEE] => (24, 32),
            _ => return None,
        },
    };
    let own = if &bytes[..4] == b"XFSB" { superblock.uuid } else { superblock.meta_uuid };
    let lsn = u64::from_be_bytes(array(bytes, lsn));
    // A block can still have the UUID of an earlier volume on the same device. The LSN in such a block refers to another log and is
    // ignored.
    (array(bytes, uuid) == own && lsn != 0 && lsn != u64::MAX).then_some(lsn)
}
