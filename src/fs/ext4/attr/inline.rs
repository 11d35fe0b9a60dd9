//! Content in the inode (inline data). The first 60 bytes are in `i_block`, and the remaining bytes in the attribute `system.data`. This
//! attribute exists even if its value is empty.

use super::super::disk::extent;
use super::super::features::Incompat;
use super::super::jbd2::Handle;
use super::Attributes;
use super::change::set_area;
use super::fields::Times;
use super::lists::{Home, Lists};
use super::name::Name;
use super::read::{Entry, Value};
use crate::error::Result;
use crate::fs::InodeFlags;
use crate::units::FilePos;

/// The number of content bytes in `i_block`.
const FRONT: usize = 60;

impl Attributes<'_> {
    /// Stores the content of a file or symbolic link in the inode, and sets the size. The inode must have no blocks. Returns false if the
    /// inode has no space for the content.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn store_inline(&self, h: &mut Handle<'_>, content: &[u8]) -> Result<bool> {
        if !self.fs.superblock.incompat.contains(Incompat::INLINE_DATA) {
            return Ok(false);
        }
        let (front, rest) = content.split_at(content.len().min(FRONT));
        let Name { index, name } = Name::INLINE_DATA;
        let entry = Entry { index, name, value: Value::Here(rest), hash: 0 };
        let mut lists = Lists::new(self, None)?;
        lists.take(&Name::INLINE_DATA);
        if !lists.fits(&entry, Home::Inode) {
            return Ok(false);
        }
        lists.insert(entry, Home::Inode);
        let area = lists.inode_area()?;
        let flags = (self.flags - InodeFlags::EXTENTS) | InodeFlags::INLINE_DATA;
        h.update_inode(self.0, |raw| {
            let i_block = raw.i_block()?;
            i_block.fill(0);
            i_block[..front.len()].copy_from_slice(front);
            raw.set_flags(flags)?;
            raw.set_size(content.len() as u64)?;
            set_area(raw, area.as_deref());
            Ok(())
        })?;
        Ok(true)
    }

    /// Removes the content from the inode and returns it. On return, the map is empty and the size is unchanged. The caller writes the
    /// content to blocks.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn evict_inline(&self, h: &mut Handle<'_>) -> Result<Vec<u8>> {
        let mut content = vec![0; self.inline_len()?];
        self.read_inline_data(&mut content, FilePos(0))?;
        let mut lists = Lists::new(self, None)?;
        lists.take(&Name::INLINE_DATA);
        let area = lists.inode_area()?;
        let mapped = self.fs.superblock.incompat.contains(Incompat::EXTENTS);
        let mut flags = self.flags - InodeFlags::INLINE_DATA;
        flags.set(InodeFlags::EXTENTS, mapped);
        let now = h.now();
        h.update_inode(self.0, |raw| {
            let i_block = raw.i_block()?;
            i_block.fill(0);
            if mapped {
                i_block.copy_from_slice(&extent::empty_root());
            }
            raw.set_flags(flags)?;
            raw.set_times(&Times::changed(now))?;
            set_area(raw, area.as_deref());
            Ok(())
        })?;
        Ok(content)
    }
}
