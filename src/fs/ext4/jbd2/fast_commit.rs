//! Fast commits: short records of changes since the last full commit, stored in an area after the log.
//!
//! Linux replays a fast commit by repeating the operations, and therefore allocates blocks. This module instead builds an overlay of edits
//! in memory: replaced inodes, edited maps and edited directories. Each edit is applied when the inode, the map or the directory is read.
//! When a volume is opened for writing, `ops/fast_commits` first applies the edits on the device.
//!
//! A fast commit is valid if its tail contains the expected transaction number and the correct checksum. The first invalid fast commit was
//! not written completely. This fast commit and all later fast commits are ignored. If the first fast commit in the area is invalid,
//! ironmap opens the volume without fast commits. Linux was observed to refuse the mount in this case.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::ops::Range;

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::log::Log;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::InodeFlags;
use crate::fs::block::Block;
use crate::fs::ext4::checksum::crc32c_raw;
use crate::fs::ext4::disk::extent::{self, INIT_MAX_LEN};
use crate::fs::ext4::disk::fast_commit::{
    ADD_RANGE, CREAT, DEL_RANGE, HEAD, INODE, LINK, PAD, RawAddRange, RawDelRange, RawDentry,
    RawHead, RawTagLength, RawTail, TAIL, UNLINK,
};
use crate::fs::ext4::disk::inode::{GOOD_OLD_SIZE, RawInode};
use crate::iomap::{Extent, ExtentState};
use crate::units::{FileBlock, FsBlock, InodeNo};

const PLACE: Place = Place::new("fast commit");

/// The maximum length of the fast-commit area in bytes, and the maximum number of its records. The map of a damaged journal may contain the
/// same block many times. Without these limits, such a journal could need any amount of memory. Linux's default area has 256 blocks.
const MAX_BYTES: usize = 64 << 20;
const MAX_RECORDS: usize = 1 << 20;

/// The combined changes of all fast commits. They occupy at most 512 MiB of memory, for a million records.
#[derive(Default)]
pub(crate) struct FastCommits {
    inodes: BTreeMap<InodeNo, InodeEdit>,
    directories: BTreeMap<InodeNo, DirEdit>,
    /// The number of fast commits.
    pub(super) count: u32,
}

/// The changes of fast commits to an inode.
#[derive(Default)]
pub(crate) struct InodeEdit {
    /// The newest recorded content of the inode, without the bytes after the fixed fields.
    pub(crate) bytes: Option<Box<[u8]>>,
    /// Whether a fast commit created the inode. If so, the map in the inode table belongs to a removed file.
    pub(crate) created: bool,
    /// The edits of the map. While the fast commits are read, the edits are in the order of their records. Afterwards they are disjoint and
    /// sorted by file block.
    pub(crate) ranges: Vec<RangeEdit>,
    /// The number of edits in `ranges` that are older than `bytes`.
    ranges_before: usize,
}

/// A range of a file that is mapped to other blocks, or becomes a hole.
pub(crate) struct RangeEdit {
    pub(crate) blocks: Range<u64>,
    pub(crate) start: Option<(FsBlock, ExtentState)>,
}

/// The changes of fast commits to a directory's entries.
#[derive(Default)]
pub(crate) struct DirEdit {
    /// The parent directory, if a fast commit created this directory. Such a directory has no entries in its blocks, not even `.` and `..`.
    pub(crate) created_in: Option<InodeNo>,
    /// The changed names. An added name maps to its inode, and a removed name maps to `None`.
    pub(crate) names: BTreeMap<Vec<u8>, Option<InodeNo>>,
}

/// A record of a fast commit. Its value is not decoded.
struct Record {
    place: Place,
    tag: u16,
    block: Block,
    value: Range<usize>,
}

/// The largest inode number and the number of blocks of the volume. Larger numbers in a record are invalid.
pub(super) struct Bounds {
    pub(super) inodes: u32,
    pub(super) blocks: u64,
}

impl FastCommits {
    /// Reads the fast commits after the last full commit. `sequence` is the number of the next transaction. Every valid fast commit
    /// contains this number.
    pub(super) fn read(log: &Log, sequence: u32, bounds: &Bounds) -> Result<Self> {
        let mut commits = Self::collect(log, sequence, bounds)?;
        commits.inodes.values_mut().for_each(InodeEdit::merge_ranges);
        Ok(commits)
    }

    fn collect(log: &Log, sequence: u32, bounds: &Bounds) -> Result<Self> {
        let mut commits = Self::default();
        let mut pending = Vec::new();
        let mut checksum = 0;
        let (mut bytes, mut records, mut opened) = (0, 0, false);
        for index in log.superblock.fast_commits.clone() {
            let (at, content) = log.read(index)?;
            bytes += content.len();
            if bytes > MAX_BYTES || records > MAX_RECORDS {
                let what = format!(
                    "the fast commits of {bytes} bytes and {records} records exceed the memory limit"
                );
                return Err(Error::new(ErrorKind::LimitExceeded, what));
            }
            let place = PLACE.block(at);
            let mut offset = 0;
            while let Some(record) = Record::at(&content, offset, place) {
                if !opened && record.tag != HEAD {
                    return Ok(commits);
                }
                opened = true;
                match record.tag {
                    HEAD => {
                        if record.head()? != sequence {
                            return Ok(commits);
                        }
                    }
                    TAIL => {
                        let (tid, stored) = record.tail()?;
                        let end = record.value.start + size_of::<U32>();
                        checksum = crc32c_raw(checksum, &content[offset..end]);
                        if tid != sequence || stored != checksum {
                            return Ok(commits);
                        }
                        for record in pending.drain(..) {
                            commits.apply(&record, bounds)?;
                        }
                        commits.count += 1;
                    }
                    ADD_RANGE | DEL_RANGE | CREAT | LINK | UNLINK | INODE | PAD => {}
                    _ => return Ok(commits),
                }
                let end = record.value.end;
                if record.tag == TAIL {
                    checksum = 0;
                } else {
                    checksum = crc32c_raw(checksum, &content[offset..end]);
                    if !matches!(record.tag, HEAD | PAD) {
                        records += 1;
                        pending.push(record);
                    }
                }
                offset = end;
            }
        }
        Ok(commits)
    }

    /// All inodes with changed fields or maps.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = (InodeNo, &InodeEdit)> {
        self.inodes.iter().map(|(number, edit)| (*number, edit))
    }

    /// All directories with changed entries.
    pub(crate) fn directories(&self) -> impl Iterator<Item = (InodeNo, &DirEdit)> {
        self.directories.iter().map(|(number, edit)| (*number, edit))
    }

    /// Whether the fast commits contain no changes.
    pub(crate) fn is_empty(&self) -> bool {
        self.inodes.is_empty() && self.directories.is_empty()
    }

    /// The changes of this inode and of its map.
    pub(crate) fn inode(&self, inode: InodeNo) -> Option<&InodeEdit> {
        self.inodes.get(&inode)
    }

    /// The changes of this directory's entries.
    pub(crate) fn edits_of(&self, directory: InodeNo) -> Option<&DirEdit> {
        self.directories.get(&directory)
    }

    fn apply(&mut self, record: &Record, bounds: &Bounds) -> Result<()> {
        match record.tag {
            ADD_RANGE => {
                let (inode, edit) = record.add_range(bounds)?;
                self.inodes.entry(inode).or_default().ranges.push(edit);
            }
            DEL_RANGE => {
                let (inode, edit) = record.del_range(bounds)?;
                self.inodes.entry(inode).or_default().ranges.push(edit);
            }
            INODE => {
                let (inode, bytes) = record.inode(bounds)?;
                let edit = self.inodes.entry(inode).or_default();
                edit.bytes = Some(bytes.into());
                edit.ranges_before = edit.ranges.len();
            }
            CREAT | LINK => {
                let (directory, inode, name) = record.dentry(bounds)?;
                self.directories.entry(directory).or_default().names.insert(name, Some(inode));
                if record.tag == CREAT {
                    self.create(inode, directory);
                }
            }
            UNLINK => {
                let (directory, inode, name) = record.dentry(bounds)?;
                let names = &mut self.directories.entry(directory).or_default().names;
                // The record removes the name of `inode`. If the name already refers to another inode, this newer name is kept.
                if !names.get(&name).is_some_and(|now| now.is_some_and(|now| now != inode)) {
                    names.insert(name, None);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Handles a creation record. In the log, the creation record follows the records of the new inode and of its ranges. Edits from
    /// earlier records belong to an older inode with the same number.
    fn create(&mut self, inode: InodeNo, directory: InodeNo) {
        let edit = self.inodes.entry(inode).or_default();
        edit.created = true;
        edit.ranges.drain(..edit.ranges_before);
        edit.ranges_before = 0;
        let is_directory = edit.bytes.as_ref().is_some_and(|bytes| bytes[1] & 0xF0 == 0x40);
        if is_directory {
            let new = DirEdit { created_in: Some(directory), ..DirEdit::default() };
            self.directories.insert(inode, new);
        } else {
            self.directories.remove(&inode);
        }
    }
}

impl RangeEdit {
    /// The part of the edit that begins at file block `block`; `None` if this part is empty.
    fn from(&self, block: u64) -> Option<Self> {
        let skipped = block.saturating_sub(self.blocks.start);
        let blocks = self.blocks.start + skipped..self.blocks.end;
        let start = self.start.map(|(start, state)| (FsBlock(start.0 + skipped), state));
        (!blocks.is_empty()).then_some(Self { blocks, start })
    }
}

impl InodeEdit {
    /// Splits overlapping ranges, so that all ranges are disjoint. Where ranges overlap, the newer edit applies. Applying the edits to the
    /// map one by one would take quadratic time.
    fn merge_ranges(&mut self) {
        let mut merged = BTreeMap::<u64, RangeEdit>::new();
        for edit in self.ranges.drain(..).filter(|edit| !edit.blocks.is_empty()) {
            let Range { start, end } = edit.blocks;
            if let Some((_, before)) = merged.range_mut(..start).next_back()
                && before.blocks.end > start
            {
                let behind = before.from(end);
                before.blocks.end = start;
                merged.extend(behind.map(|behind| (end, behind)));
            }
            while let Some((&covered, _)) = merged.range(start..end).next() {
                let behind = merged.remove(&covered).and_then(|old| old.from(end));
                merged.extend(behind.map(|behind| (end, behind)));
            }
            merged.insert(start, edit);
        }
        self.ranges = merged.into_values().collect();
    }

    /// Returns the bytes of the inode after the edits. `table` contains the bytes of the inode in the inode table.
    ///
    /// A fast commit records only the start of an inode. The bytes after it contain extended attributes and are kept. The root of the map
    /// is also kept: the recorded ranges are edits of this map. An inode that a fast commit created starts without attributes and with an
    /// empty map. Inline data and the targets of short symbolic links are replaced.
    pub(crate) fn inode(&self, table: &[u8]) -> Box<[u8]> {
        let mut inode: Box<[u8]> = table.into();
        let Some(bytes) = &self.bytes else { return inode };
        if self.created {
            inode.fill(0);
        }
        let len = bytes.len().min(inode.len());
        let map = offset_of!(RawInode, i_block)..offset_of!(RawInode, i_generation);
        let flags = U32::read_from_prefix(&bytes[offset_of!(RawInode, i_flags)..]);
        let flags = InodeFlags::from_bits_retain(flags.map_or(0, |(flags, _)| flags.get()));
        let kept = inode[map.clone()].to_vec();
        inode[..len].copy_from_slice(&bytes[..len]);
        if flags.contains(InodeFlags::EXTENTS) {
            let magic = kept.starts_with(&extent::MAGIC.to_le_bytes());
            let root = if magic { kept } else { extent::empty_root() };
            inode[map].copy_from_slice(&root);
        }
        inode
    }

    /// Returns the extents of a leaf after the edits. `blocks` are the file blocks that the leaf may map. Both `extents` and the result are
    /// sorted.
    pub(crate) fn ranges(&self, extents: Vec<Extent>, blocks: Range<FileBlock>) -> Vec<Extent> {
        let window = blocks.start.0..blocks.end.0;
        let extents = if self.created { Vec::new() } else { extents };
        let (mut edited, mut at) = (Vec::new(), 0);
        // Keeps the parts of the extents between two edits. Each extent is visited once.
        let mut keep = |between: Range<u64>, edited: &mut Vec<Extent>| {
            while let Some(extent) = extents.get(at).filter(|next| next.first.0 < between.end) {
                edited.extend(extent.within(&(FileBlock(between.start)..FileBlock(between.end))));
                if extent.end().0 > between.end {
                    break;
                }
                at += 1;
            }
        };
        let mut next = window.start;
        let first = self.ranges.partition_point(|edit| edit.blocks.end <= window.start);
        for edit in self.ranges[first..].iter().take_while(|edit| edit.blocks.start < window.end) {
            let changed = edit.blocks.start.max(window.start)..edit.blocks.end.min(window.end);
            keep(next..changed.start, &mut edited);
            edited.extend(edit.start.map(|(start, state)| Extent {
                first: FileBlock(changed.start),
                start: FsBlock(start.0 + (changed.start - edit.blocks.start)),
                len: (changed.end - changed.start) as u32,
                state,
            }));
            next = changed.end;
        }
        keep(next..window.end, &mut edited);
        edited
    }
}

impl Record {
    /// The record at an offset of a block; `None` if the rest of the block does not contain a complete record.
    fn at(block: &Block, offset: usize, place: Place) -> Option<Self> {
        let (raw, _) = RawTagLength::ref_from_prefix(block.get(offset..)?).ok()?;
        let start = offset + size_of::<RawTagLength>();
        let mut end = start + usize::from(raw.fc_len.get());
        let tag = raw.fc_tag.get();
        if tag == TAIL {
            // A tail record always extends to the end of its block. Its length field is ignored.
            end = block.len();
        }
        (end <= block.len()).then(|| Self { place, tag, block: block.clone(), value: start..end })
    }

    fn value<T: FromBytes>(&self) -> Result<(T, &[u8])> {
        T::read_from_prefix(&self.block[self.value.clone()])
            .map_err(|_| self.place.field("fc_len").corrupt("the fast-commit record is truncated"))
    }

    fn inode_number(&self, number: U32, bounds: &Bounds) -> Result<InodeNo> {
        let number = number.get();
        if (1..=bounds.inodes).contains(&number) {
            Ok(InodeNo(u64::from(number)))
        } else {
            let count = bounds.inodes;
            Err(self.place.field("fc_ino").corrupt(format!(
                "the record names inode {number}, but the volume has {count} inodes"
            )))
        }
    }

    /// The transaction number in a head record.
    fn head(&self) -> Result<u32> {
        let (raw, _) = self.value::<RawHead>()?;
        match raw.fc_features.get() {
            0 => Ok(raw.fc_tid.get()),
            features => Err(Error::unsupported(format!(
                "fast commits need the unknown features {features:#x}"
            ))),
        }
    }

    /// The transaction number and the checksum in a tail record.
    fn tail(&self) -> Result<(u32, u32)> {
        let (raw, _) = self.value::<RawTail>()?;
        Ok((raw.fc_tid.get(), raw.fc_crc.get()))
    }

    fn add_range(&self, bounds: &Bounds) -> Result<(InodeNo, RangeEdit)> {
        let (raw, _) = self.value::<RawAddRange>()?;
        let extent = raw.fc_ex;
        let first = u64::from(extent.ee_block.get());
        let (len, state) = match extent.ee_len.get() {
            len @ 0..=INIT_MAX_LEN => (len, ExtentState::Written),
            len => (len - INIT_MAX_LEN, ExtentState::Unwritten),
        };
        let start = u64::from(extent.ee_start_lo.get()) | u64::from(extent.ee_start_hi.get()) << 32;
        let end = first + u64::from(len);
        if len == 0 || end > 1 << 32 || start == 0 || start + u64::from(len) > bounds.blocks {
            return Err(self.place.field("fc_ex").corrupt(format!("{first}+{len} at {start}")));
        }
        let edit = RangeEdit { blocks: first..end, start: Some((FsBlock(start), state)) };
        Ok((self.inode_number(raw.fc_ino, bounds)?, edit))
    }

    fn del_range(&self, bounds: &Bounds) -> Result<(InodeNo, RangeEdit)> {
        let (raw, _) = self.value::<RawDelRange>()?;
        let first = u64::from(raw.fc_lblk.get());
        let end = first + u64::from(raw.fc_len.get());
        Ok((self.inode_number(raw.fc_ino, bounds)?, RangeEdit { blocks: first..end, start: None }))
    }

    fn inode(&self, bounds: &Bounds) -> Result<(InodeNo, &[u8])> {
        let (number, bytes) = self.value::<U32>()?;
        if bytes.len() < GOOD_OLD_SIZE {
            let len = bytes.len();
            return Err(self
                .place
                .field("fc_len")
                .corrupt(format!("the record contains an inode of only {len} bytes")));
        }
        Ok((self.inode_number(number, bounds)?, bytes))
    }

    fn dentry(&self, bounds: &Bounds) -> Result<(InodeNo, InodeNo, Vec<u8>)> {
        let (raw, name) = self.value::<RawDentry>()?;
        let valid =
            !name.is_empty() && name.len() <= 255 && !name.iter().any(|b| b"/\0".contains(b));
        if !valid {
            let len = name.len();
            return Err(self
                .place
                .field("fc_dname")
                .corrupt(format!("the record contains an invalid name of {len} bytes")));
        }
        let directory = self.inode_number(raw.fc_parent_ino, bounds)?;
        Ok((directory, self.inode_number(raw.fc_ino, bounds)?, name.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITTEN: ExtentState = ExtentState::Written;

    /// The first 64 blocks of a file, each as its block number on the device.
    fn blocks(extents: &[Extent]) -> [u64; 64] {
        let mut blocks = [0; 64];
        for extent in extents {
            for index in 0..u64::from(extent.len) {
                let at = (extent.first.0 + index) as usize;
                assert_eq!(blocks[at], 0, "two extents map block {at}");
                blocks[at] = extent.start.0 + index;
            }
        }
        blocks
    }

    /// Edits that are merged and then applied give the same map as edits that are applied one by one. The edits overlap at random. The
    /// random generator has seed 7.
    #[test]
    fn merged_ranges_are_those_of_the_edits_in_turn() {
        let mut state = 7_u64;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % bound
        };
        for _ in 0..2000 {
            let first = |number: u64| number * 16 + 3;
            let extents: Vec<_> = (0..4)
                .map(|number| Extent {
                    first: FileBlock(first(number)),
                    start: FsBlock(1000 + first(number)),
                    len: 9,
                    state: WRITTEN,
                })
                .collect();
            let mut expected = blocks(&extents);
            let mut edit = InodeEdit::default();
            for number in 1..=below(9) {
                let start = below(64);
                let end = start + below(65 - start);
                let device = (below(2) == 0).then_some(number * 10_000);
                for block in start..end {
                    expected[block as usize] = device.map_or(0, |device| device + block - start);
                }
                let start_of = device.map(|device| (FsBlock(device), WRITTEN));
                edit.ranges.push(RangeEdit { blocks: start..end, start: start_of });
            }
            edit.merge_ranges();
            let (low, high) = (below(32), 32 + below(33));
            let found = blocks(&edit.ranges(extents, FileBlock(low)..FileBlock(high)));
            expected[..low as usize].fill(0);
            expected[high as usize..].fill(0);
            assert_eq!(found, expected);
        }
    }
}
