//! Directory entries as bytes: writing, removing and packing. The caller must have checked the bytes.

use std::mem::offset_of;

use zerocopy::IntoBytes;

use super::super::Ext4;
use super::super::dir_block::{Area, HEADER, Spot, entry_code, raw_record_length};
use super::super::disk::dir::RawDirEntry;
use super::super::features::Incompat;
use crate::error::{Error, Result};
use crate::fs::FileType;
use crate::units::InodeNo;

/// The inode that an entry refers to, and the type code in the entry.
#[derive(Clone, Copy)]
pub(super) struct Target {
    inode: u32,
    /// The byte `file_type` of the entry. Without the feature filetype, this byte is the upper half of the name's length. This half is
    /// always 0.
    kind: u8,
}

impl Target {
    pub(super) fn new(fs: &Ext4, inode: InodeNo, kind: FileType) -> Result<Self> {
        let number = u32::try_from(inode.0).ok().filter(|number| *number != 0);
        let Some(number) = number else { return Err(Error::invalid(format!("inode {inode}"))) };
        let typed = fs.superblock.incompat.contains(Incompat::FILETYPE);
        Ok(Self { inode: number, kind: if typed { entry_code(kind) } else { 0 } })
    }

    pub(super) fn number(self) -> u32 {
        self.inode
    }

    /// The target of an existing entry.
    fn of(entry: &[u8]) -> Self {
        let [a, b, c, d, .., kind] = entry[..HEADER] else { return Self { inode: 0, kind: 0 } };
        Self { inode: u32::from_le_bytes([a, b, c, d]), kind }
    }
}

/// The length, in bytes, of an entry with this name.
pub(super) fn length(name: &[u8]) -> usize {
    (HEADER + name.len()).next_multiple_of(4)
}

/// The unused bytes at the end of a record. The record extends from `at` to `end`, and its entry uses the first `used` bytes. `used` is 0
/// if the record contains no entry.
#[derive(Clone, Copy)]
pub(super) struct Gap {
    at: usize,
    used: usize,
    end: usize,
}

impl Area {
    /// The first gap (unused bytes at the end of a record) that is large enough for an entry with this name.
    pub(super) fn gap(&self, name: &[u8], fs: &Ext4) -> Result<Option<Gap>> {
        let need = length(name);
        let mut at = 0;
        while at < self.end {
            let entry = self.entry(at, fs)?;
            let used = if entry.inode.is_some() { length(entry.name) } else { 0 };
            if entry.next - at - used >= need {
                return Ok(Some(Gap { at, used, end: entry.next }));
            }
            at = entry.next;
        }
        Ok(None)
    }

    /// The used entries from byte `from` on.
    pub(super) fn used_entries(&self, from: usize, fs: &Ext4) -> Result<Vec<(&[u8], Target)>> {
        let mut entries = Vec::new();
        let mut at = from;
        while at < self.end {
            let entry = self.entry(at, fs)?;
            if entry.inode.is_some() {
                entries.push((entry.name, Target::of(&self.bytes[at..])));
            }
            at = entry.next;
        }
        Ok(entries)
    }
}

/// The bytes of the entries in a block, or in a part of an inline directory, without the block's checksum.
pub(super) struct Entries<'a>(pub(super) &'a mut [u8]);

impl Entries<'_> {
    /// Inserts an entry into unused bytes between entries (a gap).
    pub(super) fn insert(&mut self, gap: Gap, name: &[u8], target: Target) {
        let at = gap.at + gap.used;
        if gap.used > 0 {
            self.set_length(gap.at, gap.used);
        }
        self.put(at, gap.end, name, target);
    }

    /// Removes an entry and erases its name. The record of the previous entry is extended over the removed entry. If no entry precedes the
    /// removed entry in these bytes, the removed entry becomes an unused entry.
    pub(super) fn remove(&mut self, spot: Spot) {
        self.0[spot.at..spot.next].fill(0);
        let begin = spot.before.unwrap_or(spot.at);
        self.set_length(begin, spot.next - begin);
    }

    pub(super) fn set_target(&mut self, at: usize, target: Target) {
        self.0[at..at + 4].copy_from_slice(&target.inode.to_le_bytes());
        self.0[at + offset_of!(RawDirEntry, file_type)] = target.kind;
    }

    /// Replaces all entries in these bytes by `entries`, without gaps between them.
    pub(super) fn pack<'n>(&mut self, entries: impl Iterator<Item = (&'n [u8], Target)>) {
        let end = self.0.len();
        self.0.fill(0);
        let (mut last, mut at) = (0, 0);
        for (name, target) in entries {
            let next = at + length(name);
            self.put(at, next, name, target);
            (last, at) = (at, next);
        }
        self.set_length(last, end - last);
    }

    /// Writes an entry whose record extends from `at` to `end`.
    pub(super) fn put(&mut self, at: usize, end: usize, name: &[u8], target: Target) {
        let raw = RawDirEntry {
            inode: target.inode.into(),
            rec_len: raw_record_length(end - at).into(),
            name_len: name.len() as u8,
            file_type: target.kind,
        };
        let behind = at + HEADER;
        self.0[at..behind].copy_from_slice(raw.as_bytes());
        self.0[behind..behind + name.len()].copy_from_slice(name);
        self.0[behind + name.len()..at + length(name)].fill(0);
    }

    pub(super) fn set_length(&mut self, at: usize, length: usize) {
        let at = at + offset_of!(RawDirEntry, rec_len);
        self.0[at..at + 2].copy_from_slice(&raw_record_length(length).to_le_bytes());
    }
}
