//! Checks a directory whose entries are in the inode.

use super::super::disk::dir::ALIGN;
use super::Checker;
use super::directories::{Dir, Entry};
use crate::fs::check::Kind;
use crate::units::InodeNo;

/// Reads numbers from the front of a slice.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, len: usize) -> Option<u64> {
        Some(self.take(len)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
}

impl Checker<'_> {
    pub(super) fn check_short_directory(&mut self, dir: &mut Dir<'_>) {
        let place = dir.found.part("short directory");
        let size = dir.found.size() as usize;
        let bytes = dir.found.data().get(..size).unwrap_or_default();
        let mut reader = Reader(bytes);
        if self.short_entries(dir, &mut reader).is_none() {
            let what = "the list of entries is truncated".into();
            self.findings.add(place, Kind::Damaged { what });
        } else if !reader.0.is_empty() {
            let what = format!("{} bytes follow the last entry", reader.0.len());
            self.wrong(place.field("di_size"), what);
        }
    }

    fn short_entries(&mut self, dir: &mut Dir<'_>, reader: &mut Reader<'_>) -> Option<()> {
        let place = dir.found.part("short directory");
        let (count, large) = (reader.number(1)?, reader.number(1)?);
        let width = if large > 0 { 8 } else { 4 };
        let parent = reader.number(width)?;
        self.set_dot_dot(dir, InodeNo(parent));
        let is_large = |number: u64| u64::from(number > u32::MAX.into());
        let mut larger = is_large(parent);
        let has_type = self.fs.superblock.has_ftype;
        let dots = self.fs.entry_len(1) + self.fs.entry_len(2);
        let mut next = self.fs.dir_header() + dots;
        for _ in 0..count {
            let len = reader.number(1)? as usize;
            let at = reader.number(2)? as usize;
            let name = reader.take(len)?;
            let file_type = if has_type { Some(reader.number(1)? as u8) } else { None };
            let target = reader.number(width)?;
            larger += is_large(target);
            if at < next || !at.is_multiple_of(ALIGN) {
                let what = format!("{at} after {next}");
                self.findings.add(place.field("offset"), Kind::Damaged { what });
            }
            next = next.max(at + self.fs.entry_len(len));
            if len == 0 || matches!(name, b"." | b"..") {
                let name = name.to_vec();
                self.findings.add(place, Kind::BadName { name });
                continue;
            }
            let (target, address) = (InodeNo(target), (at / ALIGN) as u32);
            self.check_entry(dir, &Entry { name, target, file_type, address }, place);
        }
        self.findings.expect(place.field("i8count"), large, larger);
        // If the directory becomes too large for the inode, its entries move to one block. The entries and a hash index must fit into this
        // block.
        let index = (count as usize + 2) * 8 + 8;
        if next + index > self.fs.superblock.geometry.dir_block() {
            let what = format!("the entries up to offset {next} would not fit into a block");
            self.findings.add(place.field("offset"), Kind::Damaged { what });
        }
        Some(())
    }
}
