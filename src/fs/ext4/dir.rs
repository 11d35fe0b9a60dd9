//! Directories as a sequence of entries: listing, and the search of one name among them.

use std::collections::btree_map;

use zerocopy::FromBytes;

use super::blocks::Block;
use super::casefold::Wanted;
use super::checksum::crc32c_raw;
use super::disk::dir::{RawDirEntry, RawDirTail, TAIL_FILE_TYPE};
use super::features::Incompat;
use super::inode::{Inode, InodeFlags};
use super::jbd2::fast_commit::DirEdit;
use super::superblock::Superblock;
use super::{Ext4, ROOT};
use crate::error::{Context, Error, ErrorKind, Place, Result};
use crate::fs::{DirEntry, FileType};
use crate::iomap::{IomapType, MapFile};
use crate::units::{BlockSize, FileBlock, FsBlock, InodeNo};

const PLACE: Place = Place::new("directory entry");
pub(super) const HEADER: usize = size_of::<RawDirEntry>();
const TAIL: usize = size_of::<RawDirTail>();
/// The longest name that an entry can hold.
pub(super) const MAX_NAME: usize = 255;

/// A stretch of entries that none of them crosses: a directory's block, or a part of an inline directory.
pub(super) struct Area {
    pub(super) bytes: AreaBytes,
    /// Where the entries end; behind them stands at most the checksum.
    pub(super) end: usize,
    pub(super) home: Home,
    pub(super) place: Place,
}

/// Where an area stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// In this block of the directory, at this place of the volume.
    Block(FileBlock, FsBlock),
    /// In this [part](Inode::inline_dir_part) of an inline directory.
    Inline(u64),
}

/// The bytes of an area.
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

/// An entry in its area, checked.
pub(super) struct Entry<'a> {
    pub(super) name: &'a [u8],
    /// `None` in unused space.
    pub(super) inode: Option<InodeNo>,
    file_type: Option<FileType>,
    /// Where the next one begins.
    pub(super) next: usize,
}

/// Where an entry stands in its area, and whose it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) at: usize,
    /// The entry before it.
    pub(super) before: Option<usize>,
    /// Where the next one begins.
    pub(super) next: usize,
    pub(super) inode: InodeNo,
}

/// The entry that a name was found to have.
pub(super) struct Found {
    pub(super) area: Area,
    pub(super) spot: Spot,
}

impl Area {
    /// The entries `.` and `..` of a directory that does not hold them itself.
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

    /// The entry that begins at a byte.
    pub(super) fn entry(&self, at: usize, fs: &Ext4) -> Result<Entry<'_>> {
        let corrupt = |field, what: String| {
            Err(self.place.field(field).corrupt(format!("{what}, at byte {at}")))
        };
        let bytes = &self.bytes[at..self.end];
        let Ok((raw, behind)) = RawDirEntry::ref_from_prefix(bytes) else {
            return corrupt("rec_len", format!("{} bytes are left for an entry", bytes.len()));
        };
        let len = record_length(raw.rec_len.get(), fs.superblock.block_size);
        let name_len = usize::from(raw.name_len);
        if !len.is_multiple_of(4) || len < HEADER + name_len || len > bytes.len() {
            let left = bytes.len();
            return corrupt("rec_len", format!("{len} for a name of {name_len}, {left} left"));
        }
        let next = at + len;
        let number = raw.inode.get();
        if number == 0 {
            return Ok(Entry { name: &[], inode: None, file_type: None, next });
        }
        let count = fs.superblock.inodes_count;
        if number > count {
            return corrupt("inode", format!("{number} of {count}"));
        }
        let name = &behind[..name_len];
        if name.is_empty() {
            return corrupt("name_len", "a name without length".to_owned());
        }
        if name.iter().any(|byte| matches!(byte, 0 | b'/')) {
            return corrupt("name", format!("{:?} is no name", String::from_utf8_lossy(name)));
        }
        let typed = fs.superblock.incompat.contains(Incompat::FILETYPE);
        let file_type = typed.then(|| entry_type(raw.file_type)).flatten();
        Ok(Entry { name, inode: Some(InodeNo(u64::from(number))), file_type, next })
    }

    /// Where a name stands in this area.
    pub(super) fn find(&self, wanted: &Wanted<'_>, fs: &Ext4) -> Result<Option<Spot>> {
        let (mut at, mut before) = (0, None);
        while at < self.end {
            let entry = self.entry(at, fs)?;
            if let Some(inode) = entry.inode
                && wanted.matches(entry.name)
            {
                return Ok(Some(Spot { at, before, next: entry.next, inode }));
            }
            before = Some(at);
            at = entry.next;
        }
        Ok(None)
    }

    /// The same for an area that is the last one to look at.
    pub(super) fn into_found(self, wanted: &Wanted<'_>, fs: &Ext4) -> Result<Option<Found>> {
        Ok(self.find(wanted, fs)?.map(|spot| Found { area: self, spot }))
    }
}

/// In blocks of 64 KiB a record may take the whole block, which 16 bits cannot say: 0 and 65535 stand for it.
pub(super) fn record_length(raw: u16, block_size: BlockSize) -> usize {
    match raw {
        0 | u16::MAX if block_size.bytes() == 1 << 16 => 1 << 16,
        raw => usize::from(raw),
    }
}

/// How 16 bits say a record's length.
pub(super) fn raw_record_length(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}

fn entry_type(raw: u8) -> Option<FileType> {
    Some(match raw {
        1 => FileType::Regular,
        2 => FileType::Directory,
        3 => FileType::CharDevice,
        4 => FileType::BlockDevice,
        5 => FileType::Fifo,
        6 => FileType::Socket,
        7 => FileType::Symlink,
        _ => return None,
    })
}

/// The areas of a directory in their order, one in memory at a time.
struct Areas<'a> {
    dir: &'a Inode,
    next: FileBlock,
}

impl Areas<'_> {
    fn next(&mut self) -> Result<Option<Area>> {
        let created_in = self.dir.fast_commit_edit().and_then(|edit| edit.created_in);
        if created_in.is_some() || self.dir.has_inline_data() {
            let part = self.next.0;
            self.next.0 += 1;
            return match created_in {
                Some(parent) => Ok((part == 0).then(|| Area::dots(self.dir.number, parent))),
                None => self.dir.inline_dir_part(part),
            };
        }
        let (dir, size) = (self.dir, self.dir.fs.superblock.block_size);
        let end = FileBlock(dir.dir_blocks()?);
        while self.next < end {
            let pos = size.pos_of(self.next);
            let iomap = dir.map(pos, size.bytes() as u64)?;
            if matches!(iomap.kind, IomapType::Hole | IomapType::Unwritten) {
                // To the first block behind the hole, however large it is.
                let behind = FileBlock(size.blocks_for(iomap.end().0));
                self.next = behind.max(FileBlock(self.next.0 + 1));
                continue;
            }
            let block = self.next;
            self.next.0 += 1;
            return dir.dir_block(block);
        }
        Ok(None)
    }
}

/// The entries of a directory in the order in which they stand on disk, `.` and `..` among them.
///
/// Holds one block of the directory. After an error it ends. What fast commits added comes last.
pub struct ReadDir<'a> {
    areas: Areas<'a>,
    area: Option<Area>,
    at: usize,
    added: Option<btree_map::Iter<'a, Vec<u8>, Option<InodeNo>>>,
    ended: bool,
}

impl ReadDir<'_> {
    fn step(&mut self) -> Result<Option<DirEntry>> {
        let dir = self.areas.dir;
        let edit = dir.fast_commit_edit();
        loop {
            let Some(area) = self.area.as_ref().filter(|area| self.at < area.end) else {
                self.at = 0;
                self.area = self.areas.next()?;
                if self.area.is_none() {
                    return self.next_added();
                }
                continue;
            };
            let entry = area.entry(self.at, &dir.fs)?;
            self.at = entry.next;
            let Some(inode) = entry.inode else { continue };
            // A name that a fast commit changed is no longer what the block says.
            if edit.is_none_or(|edit| !edit.names.contains_key(entry.name)) {
                let (name, file_type) = (entry.name.to_vec(), entry.file_type);
                return Ok(Some(DirEntry { name, inode, file_type }));
            }
        }
    }

    /// A name that a fast commit added. The record does not carry the type, so the inode is asked; a name without one is listed
    /// all the same, as a name in a block would be.
    fn next_added(&mut self) -> Result<Option<DirEntry>> {
        let fs = &self.areas.dir.fs;
        let named = |(name, inode): (_, &Option<InodeNo>)| Some((name, (*inode)?));
        let Some((name, inode)) = self.added.as_mut().and_then(|added| added.find_map(named))
        else {
            return Ok(None);
        };
        let mut file_type = None;
        if fs.superblock.incompat.contains(Incompat::FILETYPE) {
            match fs.inode(inode) {
                Ok(found) => file_type = Some(found.file_type),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(DirEntry { name: name.clone(), inode, file_type }))
    }
}

impl Iterator for ReadDir<'_> {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let step = self.step();
        self.ended = !matches!(step, Ok(Some(_)));
        step.transpose()
    }
}

impl Inode {
    /// The entries of this directory.
    ///
    /// # Errors
    /// `NotADirectory`; `Encrypted` where the names are; what reading and checking the entries gives.
    pub fn read_dir(&self) -> Result<ReadDir<'_>> {
        self.check_directory()?;
        self.check_readable_names()?;
        let areas = Areas { dir: self, next: FileBlock(0) };
        let added = self.fast_commit_edit().map(|edit| edit.names.iter());
        Ok(ReadDir { areas, area: None, at: 0, added, ended: false })
    }

    /// The inode that a name of this directory stands for; a name with other case where the directory ignores it.
    ///
    /// # Errors
    /// `NotFound`; `NotADirectory`; `NameTooLong`; `Encrypted` where the names are; `Corrupt` where directory or inode is.
    pub fn lookup(&self, name: &[u8]) -> Result<Self> {
        self.check_directory()?;
        if name.len() > MAX_NAME {
            let len = name.len();
            return Err(Error::new(ErrorKind::NameTooLong, format!("a name of {len} bytes")));
        }
        let shown = String::from_utf8_lossy(name);
        let Some(number) = self.number_of(name).context(|| format!("{shown}"))? else {
            return Err(Error::new(ErrorKind::NotFound, format!("{shown}: no such entry")));
        };
        self.entry_inode(number, &shown)
    }

    /// The number that a name stands for: the one place that every lookup of a name goes through.
    fn number_of(&self, name: &[u8]) -> Result<Option<InodeNo>> {
        if let Some(edit) = self.fast_commit_edit()
            && !matches!(name, b"." | b"..")
        {
            let edited = find_edit(edit, &self.wanted(name)?);
            if edited.is_some() || edit.created_in.is_some() {
                return Ok(edited.flatten());
            }
        }
        Ok(self.find(name)?.map(|found| found.spot.inode))
    }

    /// The entry of a name, as the directory's blocks have it.
    pub(super) fn find(&self, name: &[u8]) -> Result<Option<Found>> {
        if matches!(name, b"." | b"..") {
            // These two are neither hashed, encrypted nor folded; they stand first.
            let area = Areas { dir: self, next: FileBlock(0) }.next()?;
            return area.map_or(Ok(None), |area| area.into_found(&Wanted::exact(name), &self.fs));
        }
        let wanted = self.wanted(name)?;
        if self.is_hashed() {
            let found = self.find_hashed(&wanted)?;
            if found.is_some() || !wanted.depends_on_tables() {
                return Ok(found);
            }
        }
        let mut areas = Areas { dir: self, next: FileBlock(0) };
        while let Some(area) = areas.next()? {
            if let Some(found) = area.into_found(&wanted, &self.fs)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// A name as this directory compares it.
    pub(super) fn wanted<'a>(&self, name: &'a [u8]) -> Result<Wanted<'a>> {
        self.check_readable_names()?;
        if self.flags.contains(InodeFlags::CASEFOLD) {
            Wanted::folded(name, &self.fs)
        } else {
            Ok(Wanted::exact(name))
        }
    }

    /// What fast commits that are not yet in the directory's blocks change of it.
    fn fast_commit_edit(&self) -> Option<&DirEdit> {
        self.fs.fast_commits.edits_of(self.number)
    }

    /// The inode that an entry points to. One that no entry may point to is the directory's fault.
    fn entry_inode(&self, number: InodeNo, name: &str) -> Result<Self> {
        let place = PLACE.inode(self.number).field("inode");
        if number != ROOT && number.0 < u64::from(self.fs.superblock.first_inode) {
            return Err(place.corrupt(format!("{name} points to the reserved inode {number}")));
        }
        let unused = || place.corrupt(format!("{name} points to inode {number}, not in use"));
        match self.fs.inode(number) {
            Ok(inode) if inode.flags.contains(InodeFlags::EA_INODE) => {
                Err(place.corrupt(format!("{name} points to inode {number}, an attribute's value")))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Err(unused().source(error)),
            inode => inode,
        }
    }

    pub(super) fn check_directory(&self) -> Result<()> {
        if self.file_type == FileType::Directory {
            return Ok(());
        }
        let number = self.number;
        Err(Error::new(ErrorKind::NotADirectory, format!("inode {number} is not a directory")))
    }

    fn check_readable_names(&self) -> Result<()> {
        if self.flags.contains(InodeFlags::ENCRYPT) {
            let number = self.number;
            let what = format!("the names of directory inode {number} are encrypted");
            return Err(Error::new(ErrorKind::Encrypted, what));
        }
        if self.flags.contains(InodeFlags::CASEFOLD)
            && !self.fs.superblock.incompat.contains(Incompat::CASEFOLD)
        {
            let place = Place::new("inode").inode(self.number).field("i_flags");
            return Err(place.corrupt("casefold on a volume without the feature"));
        }
        Ok(())
    }

    /// The number of this directory's blocks, holes included.
    pub(super) fn dir_blocks(&self) -> Result<u64> {
        let sb = &self.fs.superblock;
        let blocks = self.size >> sb.block_size.shift();
        if !self.size.is_multiple_of(sb.block_size.bytes() as u64) || blocks > sb.blocks_count {
            let (size, count) = (self.size, sb.blocks_count);
            let place = Place::new("inode").inode(self.number).field("i_size");
            return Err(place.corrupt(format!(
                "{size} bytes of a directory are no whole blocks or exceed the volume's {count}"
            )));
        }
        Ok(blocks)
    }

    /// A block of this directory, its checksum verified; `None` where there is a hole.
    pub(super) fn dir_block(&self, block: FileBlock) -> Result<Option<Area>> {
        let place = Place::new("directory block").inode(self.number);
        let Some(at) = self.fs_block(block)? else { return Ok(None) };
        let content = self.fs.blocks.read(at, place)?;
        let mut end = content.len();
        if let Some(seed) = self.fs.superblock.seed {
            if self.is_dx_block(block, &content) {
                self.verify_dx_block(block, &content, place.block(at))?;
            } else {
                end = self.fs.superblock.entries_end();
                let seed = seed.of_inode(self.number, self.generation);
                verify_tail(seed, &content[..end], &content[end..], place.block(at))?;
            }
        }
        let (home, place) = (Home::Block(block, at), PLACE.inode(self.number).block(at));
        Ok(Some(Area { bytes: AreaBytes::Block(content), end, home, place }))
    }

    /// Whether a block is a node of the hash tree, to a linear reader unused space. The first one is the tree's root.
    fn is_dx_block(&self, block: FileBlock, content: &[u8]) -> bool {
        let Ok((first, _)) = RawDirEntry::ref_from_prefix(content) else { return false };
        let whole = record_length(first.rec_len.get(), self.fs.superblock.block_size);
        self.flags.contains(InodeFlags::INDEX)
            && (block.0 == 0 || (first.inode.get() == 0 && whole == content.len()))
    }
}

/// What fast commits made of a name, if they changed it. Names that are equal without regard to case stand for one entry, so
/// an edit of any of them decides.
fn find_edit(edit: &DirEdit, wanted: &Wanted<'_>) -> Option<Option<InodeNo>> {
    if wanted.is_exact() {
        return edit.names.get(wanted.name).copied();
    }
    let equal = edit.names.iter().filter(|(name, _)| wanted.matches(name));
    equal.map(|(_, inode)| *inode).reduce(Option::or)
}

impl Superblock {
    /// Where the entries of a block end: behind them stands at most the checksum.
    pub(super) fn entries_end(&self) -> usize {
        self.block_size.bytes() - if self.seed.is_some() { TAIL } else { 0 }
    }
}

fn verify_tail(seed: u32, entries: &[u8], tail: &[u8], place: Place) -> Result<()> {
    let place = place.field("det_checksum");
    let Ok((tail, _)) = RawDirTail::ref_from_prefix(tail) else {
        return Err(place.corrupt("it is cut short"));
    };
    if tail.det_reserved_zero1.get() != 0
        || usize::from(tail.det_rec_len.get()) != TAIL
        || tail.det_reserved_zero2 != 0
        || tail.det_reserved_ft != TAIL_FILE_TYPE
    {
        return Err(place.corrupt("the block has no checksum"));
    }
    let (stored, computed) = (tail.det_checksum.get(), entries_checksum(seed, entries));
    if stored == computed { Ok(()) } else { Err(place.bad_checksum(stored, computed)) }
}

/// The checksum of a block of entries, over all that is before the tail.
fn entries_checksum(seed: u32, entries: &[u8]) -> u32 {
    crc32c_raw(seed, entries)
}

/// Writes the tail of a block of entries, whose last bytes no entry has; the seed is the directory's.
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
