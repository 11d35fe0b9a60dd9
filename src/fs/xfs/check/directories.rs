//! Checks directories: the target of each name, and the hash index.

use std::collections::HashSet;
use std::ops::{Range, RangeInclusive};

use super::super::disk::dir::{ALIGN, FREE_OFFSET, LEAF_OFFSET};
use super::super::disk::inode::format;
use super::Checker;
use super::found::Found;
use super::map::{Map, Which};
use crate::device::BATCH;
use crate::error::Place;
use crate::fs::FileType;
use crate::fs::check::{Findings, Kind, Pass};
use crate::fs::xfs::Xfs;
use crate::units::InodeNo;

/// The valid file-type codes in directory entries.
const TYPES: RangeInclusive<u8> = 1..=7;

/// The number of directories that are read together. Adjacent directories share the blocks of their inodes.
const TOGETHER: usize = 128;

/// A directory that is being checked.
pub(super) struct Dir<'d> {
    pub(super) found: &'d Found,
    pub(super) map: &'d Map,
    /// The directory's index in the table of directories.
    at: usize,
    /// The names so far, to detect duplicates.
    names: HashSet<Vec<u8>>,
    /// The hash and the address of each name. The hash index must contain exactly these pairs.
    pub(super) hashes: Vec<(u32, u32)>,
    /// The longest unused run of each block of entries.
    pub(super) bests: Vec<u16>,
    dots: [bool; 2],
    /// Whether all blocks of entries were read. If a block was not read, the hash index may contain more names than `hashes`.
    pub(super) whole: bool,
}

/// A directory entry, from a block or from the inode.
pub(super) struct Entry<'e> {
    pub(super) name: &'e [u8],
    pub(super) target: InodeNo,
    /// The code of the file type, if the volume records types.
    pub(super) file_type: Option<u8>,
    /// The address, in units of 8 bytes from the start of the directory.
    pub(super) address: u32,
}

impl Checker<'_> {
    /// Reads all directories. The first call checks the directories. If parent pointers must be compared in full, a second call collects
    /// names for this comparison.
    pub(super) fn check_directories(&mut self) {
        let count = self.directories.len();
        for first in (0..count).step_by(TOGETHER) {
            self.tell(Pass::Directories, first as u64, count as u64);
            let range = first..count.min(first + TOGETHER);
            let inodes = self.announce_directories(range.clone());
            for (at, found) in range.zip(inodes) {
                if let Some(found) = found {
                    self.check_directory(at, &found);
                }
            }
        }
        self.fs.metadata.announce(&mut self.queue, std::iter::empty());
    }

    /// Returns the inodes of some directories, and reads the blocks of these directories ahead.
    fn announce_directories(&mut self, range: Range<usize>) -> Vec<Option<Found>> {
        let geometry = self.fs.superblock.geometry;
        let directories = &self.directories[range];
        let places = directories.iter().filter_map(|dir| geometry.inode_place(dir.number).ok());
        let runs = places.map(|place| geometry.inode_run(place.block));
        self.fs.metadata.announce(&mut self.queue, runs);
        let numbers: Vec<_> = directories.iter().map(|directory| directory.number).collect();
        let inodes: Vec<_> = numbers.into_iter().map(|number| self.again(number)).collect();
        let (mut runs, mut left) = (Vec::new(), BATCH >> geometry.block.shift());
        for found in inodes.iter().flatten() {
            if left > 0 {
                let map = self.fs.check_map(&mut Findings::default(), found, Which::Data);
                for piece in &map.pieces {
                    runs.push((piece.start, piece.len.into()));
                    left = left.saturating_sub(piece.len.into());
                }
            }
        }
        self.fs.metadata.announce(&mut self.queue, runs.into_iter());
        inodes
    }

    fn check_directory(&mut self, at: usize, found: &Found) {
        let mut quiet = Findings::default();
        let map = self.fs.check_map(&mut quiet, found, Which::Data);
        let mut dir = Dir {
            found,
            map: &map,
            at,
            names: HashSet::new(),
            hashes: Vec::new(),
            bests: Vec::new(),
            dots: [false; 2],
            whole: map.whole,
        };
        match found.raw.di_format {
            format::LOCAL => return self.check_short_directory(&mut dir),
            format::EXTENTS | format::BTREE => {}
            _ => return,
        }
        let geometry = self.fs.superblock.geometry;
        let (size, shift) = (geometry.dir_block() as u64, geometry.block.shift());
        let (leaf, free) = (LEAF_OFFSET >> shift, FREE_OFFSET >> shift);
        self.check_holes(&dir);
        let has_index = map.pieces.iter().any(|piece| piece.first + u64::from(piece.len) > leaf);
        let last = map.pieces.iter().rev().find(|piece| piece.first < leaf);
        let end = last.map_or(0, |piece| (piece.first + u64::from(piece.len)).min(leaf));
        let blocks = end.div_ceil(1 << geometry.dir_block_log);
        if map.whole {
            let place = found.place("di_size");
            self.findings.expect(place, found.size(), blocks * size);
        }
        self.check_entry_blocks(&mut dir, blocks, !has_index);
        if dir.dots != [true; 2] && dir.whole {
            self.findings.add(found.part("directory"), Kind::MissingDots);
        }
        if has_index {
            let (root, free) = (leaf, free);
            self.check_index(&mut dir, root, free);
        }
    }

    /// Checks that no file-system block of a directory block is a hole.
    fn check_holes(&mut self, dir: &Dir<'_>) {
        let unit = 1_u64 << self.fs.superblock.geometry.dir_block_log;
        if unit == 1 {
            return;
        }
        let (mut start, mut end) = (None, 0);
        let odd = |block: u64| !block.is_multiple_of(unit);
        let mut broken = false;
        for piece in &dir.map.pieces {
            if start.is_none() || piece.first != end {
                broken |= start.is_some() && odd(end) || odd(piece.first);
                start = Some(piece.first);
            }
            end = piece.first + u64::from(piece.len);
        }
        if broken || start.is_some() && odd(end) {
            let what = format!("a directory block of {unit} file-system blocks has a hole");
            self.findings.add(dir.found.part("directory"), Kind::Damaged { what });
        }
    }

    /// Checks an entry of a directory.
    pub(super) fn check_entry(&mut self, dir: &mut Dir<'_>, entry: &Entry<'_>, place: Place) {
        let (name, number) = (entry.name, dir.found.number);
        let hash = self.fs.hash_name(name);
        dir.hashes.push((hash, entry.address));
        let dots = match name {
            b"." => Some(0),
            b".." => Some(1),
            _ => None,
        };
        if self.parents.are_collected() {
            if dots.is_none() {
                self.name_of(entry.target, dir.found, name);
            }
            return;
        }
        if let Some(which) = dots {
            return self.check_dots(dir, entry, which, place);
        }
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
            let name = name.to_vec();
            self.findings.add(place, Kind::BadName { name });
        }
        let key = match self.fs.superblock.ascii_ci {
            true => Xfs::folded(name),
            false => name.to_vec(),
        };
        if !dir.names.insert(key) {
            let name = name.to_vec();
            self.findings.add(place, Kind::DuplicateName { name });
        }
        let (name, target) = (name.to_vec(), entry.target);
        let sb = &self.fs.superblock;
        let is_root = target == sb.root || sb.metadata_root == Some(target);
        if sb.internal.contains(&target) || is_root {
            return self.findings.add(place, Kind::EntryToInvalid { name, target });
        }
        let Some(state) = self.inodes.get_mut(target).filter(|state| state.used) else {
            return self.findings.add(place, Kind::EntryToUnused { name, target });
        };
        state.names = state.names.saturating_add(1);
        let (file_type, is_metadata) = (state.file_type, state.metadata);
        self.name_of(target, dir.found, &name);
        if is_metadata != dir.found.is_metadata() {
            let name = String::from_utf8_lossy(&name);
            let what = match is_metadata {
                true => format!("{name:?} names inode {target}, which is a metadata inode"),
                false => format!("{name:?} names inode {target}, which is not a metadata inode"),
            };
            self.wrong(place, what);
        }
        if dir.found.is_metadata() {
            self.tree.add(number, &name, target);
        }
        self.check_type(entry, file_type, place);
        if file_type == Some(FileType::Directory) {
            self.directories[dir.at].children += 1;
            self.set_parent(target, number, (name, place));
        }
    }

    /// Checks an entry with the name `.` (`which` is 0) or `..` (1).
    fn check_dots(&mut self, dir: &mut Dir<'_>, entry: &Entry<'_>, which: usize, place: Place) {
        let (name, number) = (entry.name, dir.found.number);
        // The addresses of the first two entries of a directory, which must be `.` and `..`.
        let first = (self.fs.dir_header() / ALIGN) as u32;
        let second = first + (self.fs.entry_len(1) / ALIGN) as u32;
        if entry.address != [first, second][which] || std::mem::replace(&mut dir.dots[which], true)
        {
            let name = name.to_vec();
            return self.findings.add(place, Kind::DuplicateName { name });
        }
        if which == 1 {
            self.directories[dir.at].dot_dot = entry.target;
        } else if entry.target != number {
            self.wrong(
                place,
                format!(". names inode {}, but should name inode {number}", entry.target),
            );
        }
        self.check_type(entry, Some(FileType::Directory), place);
    }

    fn check_type(&mut self, entry: &Entry<'_>, actual: Option<FileType>, place: Place) {
        let (Some(stored), Some(actual)) = (entry.file_type, actual) else { return };
        let is_known = TYPES.contains(&stored);
        if !is_known || FileType::from_entry(stored) != Some(actual) {
            let name = entry.name.to_vec();
            self.findings.add(place, Kind::EntryType { name, stored, actual });
        }
    }

    fn set_parent(&mut self, target: InodeNo, parent: InodeNo, (name, place): (Vec<u8>, Place)) {
        // The table of directories is sorted by inode number.
        let at = self.directories.partition_point(|directory| directory.number < target);
        let directory = self.directories.get_mut(at);
        let Some(directory) = directory.filter(|directory| directory.number == target) else {
            return;
        };
        if directory.parent.0 == 0 {
            directory.parent = parent;
        } else {
            self.findings.add(place, Kind::SecondName { name, target });
        }
    }

    /// Records the `..` entry of a directory.
    pub(super) fn set_dot_dot(&mut self, dir: &Dir<'_>, target: InodeNo) {
        self.directories[dir.at].dot_dot = target;
    }
}
