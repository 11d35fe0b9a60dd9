//! Directories as a sequence of entries: listings, and linear searches for a name.

use crate::fs::ext4::superblock::Superblock;
use std::collections::btree_map;

use super::ROOT;
use super::casefold::Wanted;
use super::dir_block::{Area, Found, PLACE};
use super::disk::dir::MAX_NAME;
use super::features::Incompat;
use super::inode::Inode;
use super::jbd2::fast_commit::DirEdit;
use super::listing::Ext4Listing;
use crate::error::{Context, Error, ErrorKind, Place, Result};
use crate::fs::{DirCursor, DirEntry, FileType, InodeFlags};
use crate::iomap::MapFile;
use crate::units::{FileBlock, InodeNo};

/// Iterates over the areas of a directory in order. An area is a block of entries, or a part of an inline directory. Only one area is in
/// memory at a time.
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
            let block = self.next;
            if block > FileBlock(0) {
                // The search needs more than the first block, and will probably need all other blocks too. The complete map is therefore
                // loaded.
                dir.keep_map()?;
            }
            self.next.0 += 1;
            if let Some(area) = dir.dir_block(block)? {
                return Ok(Some(area));
            }
            // The search continues after the hole. A hole of any size is skipped in one step.
            let hole = dir.map(size.pos_of(block), size.bytes() as u64)?;
            self.next = self.next.max(FileBlock(size.blocks_for(hole.end().0)));
        }
        Ok(None)
    }
}

/// The entries of a directory, including `.` and `..`. After an error in a block, the listing on a read-only volume continues with the next
/// block. On a volume that is open for writing, the listing ends after the error.
pub struct Ext4ReadDir<'a>(Source<'a>);

enum Source<'a> {
    DiskOrder(DiskOrder<'a>),
    Listing(Ext4Listing),
}

impl Iterator for Ext4ReadDir<'_> {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Source::DiskOrder(entries) => entries.next(),
            Source::Listing(entries) => entries.next(),
        }
    }
}

/// The entries of a directory that does not change, in on-disk order. Entries added by fast commits come last.
///
/// The iterator has one block of the directory in memory. After an error, the iterator skips the remaining entries of the block. The
/// iterator ends if it cannot find a next block.
pub(super) struct DiskOrder<'a> {
    areas: Areas<'a>,
    area: Option<Area>,
    at: usize,
    /// The value of `areas.next` at the last error. If the value is the same at the next error, the iterator has made no progress.
    failed_at: Option<FileBlock>,
    added: Option<btree_map::Iter<'a, Vec<u8>, Option<InodeNo>>>,
    ended: bool,
}

impl DiskOrder<'_> {
    /// The last block that was read, as a block number within the directory.
    pub(super) fn block(&self) -> FileBlock {
        FileBlock(self.areas.next.0.saturating_sub(1))
    }

    fn step(&mut self) -> Result<Option<DirEntry>> {
        let dir = self.areas.dir;
        let edit = dir.fast_commit_edit();
        loop {
            let Some(area) = self.area.as_ref().filter(|area| self.at < area.end) else {
                self.at = 0;
                self.area = None;
                self.area = self.areas.next()?;
                if self.area.is_none() {
                    return self.next_added();
                }
                continue;
            };
            let entry = area.entry(self.at, &dir.fs)?;
            self.at = entry.next;
            let Some(inode) = entry.inode else { continue };
            // An entry is skipped if fast commits have changed its name, because the recorded change replaces the entry.
            if edit.is_none_or(|edit| !edit.names.contains_key(entry.name)) {
                let (name, file_type) = (entry.name.to_vec(), entry.file_type);
                return Ok(Some(DirEntry { name, inode, file_type }));
            }
        }
    }

    /// The next name that a fast commit added. The record of a fast commit has no file type. This function therefore reads the inode. If
    /// the inode is not in use, the name is listed without a file type.
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

impl Iterator for DiskOrder<'_> {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let step = self.step();
        match &step {
            Ok(Some(_)) => {}
            Ok(None) => self.ended = true,
            Err(_) => {
                // Without progress since the last error, the same error would occur again. The iterator therefore ends.
                let next = Some(self.areas.next);
                self.ended = std::mem::replace(&mut self.failed_at, next) == next;
                self.area = None;
            }
        }
        step.transpose()
    }
}

impl Inode {
    /// The entries of this directory. On a volume that is open read-only, the entries are in on-disk order. On a volume that is open for
    /// writing, the entries are in the order of a [listing](Self::list).
    ///
    /// # Errors
    /// `NotADirectory`; `Encrypted` for encrypted names; the errors of reading and checking the entries.
    pub fn read_dir(&self) -> Result<Ext4ReadDir<'_>> {
        Ok(Ext4ReadDir(if self.fs.is_writable() {
            Source::Listing(self.list(DirCursor::START)?)
        } else {
            Source::DiskOrder(self.entries()?)
        }))
    }

    /// The entries of a directory that must not change while they are read.
    ///
    /// # Errors
    /// The errors of [`read_dir`](Self::read_dir).
    pub(super) fn entries(&self) -> Result<DiskOrder<'_>> {
        self.check_directory()?;
        self.check_readable_names()?;
        let areas = Areas { dir: self, next: FileBlock(0) };
        let added = self.fast_commit_edit().map(|edit| edit.names.iter());
        Ok(DiskOrder { areas, area: None, at: 0, failed_at: None, added, ended: false })
    }

    /// The inode that a name in this directory refers to. A case-insensitive directory also finds names that differ only in case.
    ///
    /// # Errors
    /// `NotFound`; `NotADirectory`; `NameTooLong`; `Encrypted` for encrypted names; `Corrupt` if the directory or the inode is damaged.
    pub fn lookup(&self, name: &[u8]) -> Result<Self> {
        let number = self.read_current(|dir| dir.entry_number(name))?;
        self.entry_inode(number, name)
    }

    /// The inode number that a name in this directory refers to.
    pub(super) fn entry_number(&self, name: &[u8]) -> Result<InodeNo> {
        self.check_directory()?;
        if name.len() > MAX_NAME {
            let len = name.len();
            return Err(Error::new(
                ErrorKind::NameTooLong,
                format!("a name has at most 255 bytes, but this name has {len}"),
            ));
        }
        let none = || Error::new(ErrorKind::NotFound, "no such entry");
        self.number_of(name).and_then(|found| found.ok_or_else(none)).at(|| shown(name))
    }

    /// The inode number of a name. Every lookup of a name calls this function.
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

    /// Finds the entry of a name in the directory's blocks.
    pub(super) fn find(&self, name: &[u8]) -> Result<Option<Found>> {
        if matches!(name, b"." | b"..") {
            // The names `.` and `..` are not hashed, encrypted or folded, and are always the first entries.
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
        self.find_in_row(&wanted)
    }

    /// Finds the entry by a linear search. On a volume that is open read-only, the search continues past a damaged block.
    fn find_in_row(&self, wanted: &Wanted<'_>) -> Result<Option<Found>> {
        let mut areas = Areas { dir: self, next: FileBlock(0) };
        let mut first = Ok(None);
        loop {
            let before = areas.next;
            let found = match areas.next() {
                Ok(None) => return first,
                Ok(Some(area)) => area.into_found(wanted, &self.fs),
                Err(error) => Err(error),
            };
            match found {
                Ok(None) => {}
                Err(error) if self.fs.left.is_lenient() && areas.next > before => {
                    first = first.and(Err(error));
                }
                found => return found,
            }
        }
    }

    /// The name in the form in which this directory compares names.
    pub(super) fn wanted<'a>(&self, name: &'a [u8]) -> Result<Wanted<'a>> {
        self.check_readable_names()?;
        if self.flags.contains(InodeFlags::CASEFOLD) {
            Wanted::folded(name, &self.fs)
        } else {
            Ok(Wanted::exact(name))
        }
    }

    /// The first block of entries at or after block `next`, and the block's number in the directory.
    pub(super) fn area_from(&self, next: FileBlock) -> Result<Option<(FileBlock, Area)>> {
        let mut areas = Areas { dir: self, next };
        let area = areas.next()?;
        Ok(area.map(|area| (FileBlock(areas.next.0 - 1), area)))
    }

    /// The changes to this directory that fast commits have recorded. The directory's blocks do not contain these changes yet.
    pub(super) fn fast_commit_edit(&self) -> Option<&DirEdit> {
        self.fs.fast_commits.edits_of(self.number)
    }

    /// The inode of an entry. If the entry points to an invalid inode, the error says that the directory is corrupt.
    pub(super) fn entry_inode(&self, number: InodeNo, name: &[u8]) -> Result<Self> {
        let corrupt = |what: &str| {
            let place = PLACE.inode(self.number).field("inode");
            place.corrupt(format!("{} points to {what}", shown(name)))
        };
        if self.fs.superblock.is_reserved(number) {
            return Err(corrupt(&format!("the reserved inode {number}")));
        }
        match self.fs.inode(number) {
            Ok(inode) if inode.is_internal() => {
                Err(corrupt(&format!("inode {number}, which contains an attribute's value")))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(corrupt(&format!("inode {number}, which is not in use")).source(error))
            }
            inode => inode,
        }
    }

    /// Whether this inode is internal to the file system, like the journal or an attribute's value. No name may refer to an internal inode.
    #[must_use]
    pub fn is_internal(&self) -> bool {
        self.fs.superblock.is_reserved(self.number) || self.flags.contains(InodeFlags::EA_INODE)
    }

    pub(super) fn check_directory(&self) -> Result<()> {
        if self.file_type == FileType::Directory {
            return Ok(());
        }
        let number = self.number;
        Err(Error::new(ErrorKind::NotADirectory, format!("inode {number} is not a directory")))
    }

    pub(super) fn check_readable_names(&self) -> Result<()> {
        if self.flags.contains(InodeFlags::ENCRYPT) {
            let number = self.number;
            let what = format!("the names of directory inode {number} are encrypted");
            return Err(Error::new(ErrorKind::Encrypted, what));
        }
        if self.flags.contains(InodeFlags::CASEFOLD)
            && !self.fs.superblock.incompat.contains(Incompat::CASEFOLD)
        {
            let place = Place::new("inode").inode(self.number).field("i_flags");
            return Err(place.corrupt("the flag casefold is set without the feature casefold"));
        }
        Ok(())
    }
}

impl Superblock {
    /// Whether an inode is internal: its number is reserved, or a field of the superblock contains its number.
    pub(super) fn is_reserved(&self, number: InodeNo) -> bool {
        number != ROOT && number.0 < u64::from(self.first_inode)
            || self.quota_files.contains(&Some(number))
            || [self.journal_inode, self.orphan_file].contains(&Some(number))
    }
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Returns the change that fast commits made to a name: the new inode, `Some(None)` for a removed name, or `None` for an unchanged name. In
/// a case-insensitive directory, all names with the same folded form refer to one entry. A change of any of these names counts.
fn find_edit(edit: &DirEdit, wanted: &Wanted<'_>) -> Option<Option<InodeNo>> {
    if wanted.is_exact() {
        return edit.names.get(wanted.name).copied();
    }
    let equal = edit.names.iter().filter(|(name, _)| wanted.matches(name));
    equal.map(|(_, inode)| *inode).reduce(Option::or)
}
