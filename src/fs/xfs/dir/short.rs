//! Names in the inode.

use super::Entry;
use crate::error::{Place, Result};
use crate::fs::FileType;
use crate::fs::xfs::disk::dir::{ALIGN, DATA_HEADER, DATA_HEADER_V5};
use crate::fs::xfs::inode::XfsInode;
use crate::units::InodeNo;

const PLACE: Place = Place::new("short directory");

impl XfsInode {
    /// Returns all entries, including `.` and `..`. Each entry gets the address that it would have in a block.
    pub(super) fn short_entries(&self) -> Result<Vec<Entry>> {
        let place = PLACE.inode(self.stat.inode);
        let bytes = self.data.bytes.get(..self.stat.size as usize).unwrap_or_default();
        let mut reader = Reader { bytes, place };
        let (count, wide) = (reader.byte()?, reader.byte()?);
        let wide = wide > 0;
        let parent = reader.inode(wide)?;
        let header = if self.fs.superblock.is_v5() { DATA_HEADER_V5 } else { DATA_HEADER };
        let directory = Some(FileType::Directory).filter(|_| self.fs.superblock.has_ftype);
        let mut entries = Vec::with_capacity(usize::from(count) + 2);
        let mut next = header;
        for (name, inode) in [(&b"."[..], self.stat.inode), (b"..", parent)] {
            entries.push(self.entry(name, inode, directory, next));
            next += self.fs.entry_len(name.len());
        }
        for _ in 0..count {
            let len = usize::from(reader.byte()?);
            let at = usize::from(u16::from_be_bytes([reader.byte()?, reader.byte()?]));
            let name = reader.take(len)?;
            let has_type = self.fs.superblock.has_ftype;
            let file_type = if has_type { self.fs.file_type(reader.byte()?) } else { None };
            let inode = reader.inode(wide)?;
            if len == 0 || name.contains(&b'/') || name.contains(&0) {
                return Err(place
                    .field("name")
                    .corrupt("the name is empty, or contains a slash or a NUL"));
            }
            if at < next || !at.is_multiple_of(ALIGN) {
                return Err(place.field("offset").corrupt(format!("{at} after {next}")));
            }
            entries.push(self.entry(name, inode, file_type, at));
            next = at + self.fs.entry_len(len);
        }
        Ok(entries)
    }

    fn entry(&self, name: &[u8], inode: InodeNo, file_type: Option<FileType>, at: usize) -> Entry {
        let next = ((at + self.fs.entry_len(name.len())) / ALIGN) as u64;
        Entry { name: name.to_vec(), inode, file_type, at: (at / ALIGN) as u64, next }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    place: Place,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.bytes.split_at_checked(len) else {
            return Err(self.place.corrupt("the list of entries is truncated"));
        };
        self.bytes = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn inode(&mut self, wide: bool) -> Result<InodeNo> {
        let bytes = self.take(if wide { 8 } else { 4 })?;
        Ok(InodeNo(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))))
    }
}
