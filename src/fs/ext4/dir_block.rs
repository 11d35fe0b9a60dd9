//! A block of directory entries, or a part of an inline directory: its checks, its searches, and the computation of its checksum.

use zerocopy::FromBytes;

use super::Ext4;
use super::casefold::Wanted;
use super::checksum::{Kind, crc32c_raw};
use super::disk::dir::{RawDirEntry, RawDirTail, TAIL_FILE_TYPE};
use super::features::Incompat;
use super::inode::Inode;
use super::superblock::Superblock;
use crate::error::{Error, Place, Result};
use crate::fs::block::{Block, Part};
use crate::fs::{FileType, InodeFlags};
use crate::units::{BlockSize, FileBlock, FsBlock, InodeNo};

pub(super) const PLACE: Place = Place::new("directory entry");
pub(super) const HEADER: usize = size_of::<RawDirEntry>();
const TAIL: usize = size_of::<RawDirTail>();

/// A range of bytes that consists of complete entries: a block of a directory, or a part of an inline directory.
pub(super) struct Area {
    pub(super) bytes: AreaBytes,
    /// The end of the entries. Only the checksum may be stored after the entries.
    pub(super) end: usize,
    pub(super) home: Home,
    pub(super) place: Place,
}

/// The location of directory entries: a block of the directory, or a part of an inline directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// The number of the block within the directory, and its number on the volume.
    Block(FileBlock, FsBlock),
    /// A [part](Inode::inline_dir_part) of an inline directory.
    Inline(u64),
}

/// The bytes of a block of entries, or of a part of an inline directory.
pub(super) enum AreaBytes {
    Block(Block),
    Inline(Vec<u8>),
}

impl std::ops::Deref for AreaBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Block(block) => block,
            Self::Inline(bytes) => bytes,
        }
    }
}

/// An entry whose fields were checked.
pub(super) struct Entry<'a> {
    pub(super) name: &'a [u8],
    /// The inode number; `None` for unused space.
    pub(super) inode: Option<InodeNo>,
    pub(super) file_type: Option<FileType>,
    /// The offset of the next entry.
    pub(super) next: usize,
}

/// The position of an entry in its block (or in its part of an inline directory), and the inode to which the entry refers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) at: usize,
    /// The position of the previous entry.
    pub(super) before: Option<usize>,
    /// The offset of the next entry.
    pub(super) next: usize,
    pub(super) inode: InodeNo,
}

/// The entry that was found for a name.
pub(super) struct Found {
    pub(super) area: Area,
    pub(super) spot: Spot,
}

impl Area {
    /// The entries `.` and `..` for a directory that does not store them.
    pub(super) fn dots(dir: InodeNo, parent: InodeNo) -> Self {
        let entry = |number: InodeNo, name_len: u8, name: [u8; 4]| {
            let number = u32::try_from(number.0).unwrap_or(u32::MAX).to_le_bytes();
            [number, [12, 0, name_len, 2], name].concat()
        };
        let bytes = [entry(dir, 1, *b".\0\0\0"), entry(parent, 2, *b"..\0\0")].concat();
        Self::inline(bytes, 0, dir)
    }

    /// A part of an inline directory.
    pub(super) fn inline(bytes: Vec<u8>, part: u64, dir: InodeNo) -> Self {
        let (home, place) = (Home::Inline(part), PLACE.inode(dir));
        Self { end: bytes.len(), bytes: AreaBytes::Inline(bytes), home, place }
    }

    /// The error for a byte offset at which no valid [record] begins.
    #[cold]
    fn bad_record(&self, at: usize, size: BlockSize) -> Error {
        let bytes = &self.bytes[at..self.end];
        let left = bytes.len();
        let what = match RawDirEntry::ref_from_prefix(bytes) {
            Ok((raw, _)) => {
                let (len, name_len) = (record_length(raw.rec_len.get(), size), raw.name_len);
                format!(
                    "a record length of {len} is not valid for a name of {name_len} bytes in the last {left} bytes of the block"
                )
            }
            Err(_) => format!("only {left} bytes remain for an entry"),
        };
        self.corrupt("rec_len", &what, at)
    }

    #[cold]
    fn corrupt(&self, field: &'static str, what: &str, at: usize) -> Error {
        self.place.field(field).corrupt(format!("{what}, at byte {at} of the block"))
    }

    /// The entry that begins at offset `at`.
    pub(super) fn entry(&self, at: usize, fs: &Ext4) -> Result<Entry<'_>> {
        let corrupt = |field, what: String| Err(self.corrupt(field, &what, at));
        let size = fs.superblock.block_size;
        let Some((raw, name, next)) = record(&self.bytes[..self.end], at, size) else {
            return Err(self.bad_record(at, size));
        };
        let number = raw.inode.get();
        if number == 0 {
            return Ok(Entry { name: &[], inode: None, file_type: None, next });
        }
        let count = fs.superblock.inodes_count;
        if number > count {
            return corrupt("inode", format!("{number} of {count}"));
        }
        if name.is_empty() {
            return corrupt("name_len", "the name has length 0".to_owned());
        }
        if name.iter().any(|byte| matches!(byte, 0 | b'/')) {
            return corrupt(
                "name",
                format!("{:?} is not a valid name", String::from_utf8_lossy(name)),
            );
        }
        let typed = fs.superblock.incompat.contains(Incompat::FILETYPE);
        let file_type = typed.then(|| FileType::from_entry(raw.file_type)).flatten();
        Ok(Entry { name, inode: Some(InodeNo(u64::from(number))), file_type, next })
    }

    /// Finds the position of a name in this area. Only the lengths of the entries before the name's entry are checked.
    pub(super) fn find(&self, wanted: &Wanted<'_>, fs: &Ext4) -> Result<Option<Spot>> {
        let (size, bytes) = (fs.superblock.block_size, &self.bytes[..self.end]);
        let (mut at, mut before) = (0, None);
        while at < bytes.len() {
            let Some((raw, name, next)) = record(bytes, at, size) else {
                return Err(self.bad_record(at, size));
            };
            if raw.inode.get() != 0
                && wanted.matches(name)
                && let Some(inode) = self.entry(at, fs)?.inode
            {
                return Ok(Some(Spot { at, before, next, inode }));
            }
            before = Some(at);
            at = next;
        }
        Ok(None)
    }

    /// Like [`find`](Self::find), but returns the area together with the position.
    pub(super) fn into_found(self, wanted: &Wanted<'_>, fs: &Ext4) -> Result<Option<Found>> {
        Ok(self.find(wanted, fs)?.map(|spot| Found { area: self, spot }))
    }
}

/// The entry at offset `at`, its name, and the offset of the next entry. Only the lengths are checked.
#[inline]
fn record(bytes: &[u8], at: usize, size: BlockSize) -> Option<(&RawDirEntry, &[u8], usize)> {
    let bytes = &bytes[at..];
    let (raw, behind) = RawDirEntry::ref_from_prefix(bytes).ok()?;
    let len = record_length(raw.rec_len.get(), size);
    let name = behind.get(..usize::from(raw.name_len))?;
    let sound = len.is_multiple_of(4) && len >= HEADER + name.len() && len <= bytes.len();
    sound.then_some((raw, name, at + len))
}

/// The length of a record in bytes. A record may fill a block of 64 KiB. This length exceeds 16 bits and is stored as 0 or 65535.
pub(super) fn record_length(raw: u16, block_size: BlockSize) -> usize {
    match raw {
        0 | u16::MAX if block_size.bytes() == 1 << 16 => 1 << 16,
        raw => usize::from(raw),
    }
}

/// Encodes the length of a record in 16 bits.
pub(super) fn raw_record_length(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}

/// The code of a file type in directory entries.
pub(super) fn entry_code(file_type: FileType) -> u8 {
    match file_type {
        FileType::Regular => 1,
        FileType::Directory => 2,
        FileType::CharDevice => 3,
        FileType::BlockDevice => 4,
        FileType::Fifo => 5,
        FileType::Socket => 6,
        FileType::Symlink => 7,
    }
}

impl Inode {
    /// The number of blocks in this directory, including holes.
    pub(super) fn dir_blocks(&self) -> Result<u64> {
        let sb = &self.fs.superblock;
        let blocks = self.size >> sb.block_size.shift();
        if !self.size.is_multiple_of(sb.block_size.bytes() as u64) || blocks > sb.blocks_count {
            let (size, count) = (self.size, sb.blocks_count);
            let place = Place::new("inode").inode(self.number).field("i_size");
            return Err(place.corrupt(format!(
                "the size of {size} bytes is not a multiple of the block size, or exceeds the volume's {count} blocks"
            )));
        }
        Ok(blocks)
    }

    /// Reads a block of this directory and verifies its checksum; `None` for a hole.
    pub(super) fn dir_block(&self, block: FileBlock) -> Result<Option<Area>> {
        let place = Place::new("directory block").inode(self.number);
        let Some(at) = self.allocated_block(block)? else { return Ok(None) };
        let content = self.fs.blocks.read(at, place)?;
        let mut end = content.len();
        if let Some(seed) = self.fs.superblock.seed {
            let place = place.block(at);
            if self.is_dx_block(block, &content) {
                let kind = if block.0 == 0 { Kind::DxRoot } else { Kind::DxNode };
                let verify = || self.verify_dx_block(block, &content, place);
                content.verify_once(Part::whole(kind, self.number), verify)?;
            } else {
                end = self.fs.superblock.entries_end();
                content.verify_once(Part::whole(Kind::Entries, self.number), || {
                    let seed = seed.of_inode(self.number, self.generation);
                    verify_tail(seed, &content[..end], &content[end..], place)
                })?;
            }
        }
        let (home, place) = (Home::Block(block, at), PLACE.inode(self.number).block(at));
        Ok(Some(Area { bytes: AreaBytes::Block(content), end, home, place }))
    }

    /// Whether a block is a node of the hash tree. Block 0 is the root. Every other node begins with an unused entry that fills the block.
    /// A linear reader therefore skips the node.
    pub(super) fn is_dx_block(&self, block: FileBlock, content: &[u8]) -> bool {
        let Ok((first, _)) = RawDirEntry::ref_from_prefix(content) else { return false };
        let whole = record_length(first.rec_len.get(), self.fs.superblock.block_size);
        self.flags.contains(InodeFlags::INDEX)
            && (block.0 == 0 || (first.inode.get() == 0 && whole == content.len()))
    }
}

impl Superblock {
    /// The offset of the end of the entries in a block. Only the checksum may be stored after the entries.
    pub(super) fn entries_end(&self) -> usize {
        self.block_size.bytes() - if self.seed.is_some() { TAIL } else { 0 }
    }
}

pub(super) fn verify_tail(seed: u32, entries: &[u8], tail: &[u8], place: Place) -> Result<()> {
    let place = place.field("det_checksum");
    let Ok((tail, _)) = RawDirTail::ref_from_prefix(tail) else {
        return Err(place.corrupt("the directory block is too short for its checksum"));
    };
    if tail.det_reserved_zero1.get() != 0
        || usize::from(tail.det_rec_len.get()) != TAIL
        || tail.det_reserved_zero2 != 0
        || tail.det_reserved_ft != TAIL_FILE_TYPE
    {
        return Err(place.corrupt("the directory block has no checksum entry"));
    }
    let (stored, computed) = (tail.det_checksum.get(), entries_checksum(seed, entries));
    if stored == computed { Ok(()) } else { Err(place.bad_checksum(stored, computed)) }
}

/// The checksum of a block of entries. `entries` must be all bytes before the tail.
fn entries_checksum(seed: u32, entries: &[u8]) -> u32 {
    crc32c_raw(seed, entries)
}

/// Writes the tail of a block of entries. The last bytes of the block must be unused. `seed` is the directory's seed.
pub(crate) fn seal_dir_block(seed: Option<u32>, block: &mut [u8]) {
    let Some(seed) = seed else { return };
    let (entries, tail) = block.split_at_mut(block.len() - TAIL);
    let Ok(tail) = RawDirTail::mut_from_bytes(tail) else { return };
    *tail = RawDirTail {
        det_reserved_zero1: 0.into(),
        det_rec_len: (TAIL as u16).into(),
        det_reserved_zero2: 0,
        det_reserved_ft: TAIL_FILE_TYPE,
        det_checksum: entries_checksum(seed, entries).into(),
    };
}
