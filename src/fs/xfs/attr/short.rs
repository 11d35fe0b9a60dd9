//! Attributes in the inode.

use zerocopy::FromBytes;

use super::Attributes;
use crate::error::{Place, Result};
use crate::fs::xfs::disk::attr::{RawShort, RawShortEntry};
use crate::fs::xfs::inode::XfsInode;

impl XfsInode {
    pub(super) fn short_attributes(&self, bytes: &[u8], found: &mut Attributes) -> Result<()> {
        let place = Place::new("short attributes").inode(self.stat.inode);
        let cut = || place.corrupt("the list of attributes is truncated");
        let Ok((header, _)) = RawShort::ref_from_prefix(bytes) else { return Err(cut()) };
        let size = usize::from(header.totsize.get());
        let Some(mut rest) = bytes.get(size_of::<RawShort>()..size) else {
            let what = format!("the list has {size} bytes, but the fork has {}", bytes.len());
            return Err(place.field("totsize").corrupt(what));
        };
        for _ in 0..header.count {
            let Ok((entry, content)) = RawShortEntry::ref_from_prefix(rest) else {
                return Err(cut());
            };
            let (name, value) = (usize::from(entry.namelen), usize::from(entry.valuelen));
            let Some((content, after)) = content.split_at_checked(name + value) else {
                return Err(cut());
            };
            let (name, value) = content.split_at(name);
            found.add(name, entry.flags, place, || Ok(value.to_vec()))?;
            rest = after;
        }
        Ok(())
    }
}
