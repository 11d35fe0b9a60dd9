//! Inline directories. Their entries are stored in the inode: in the 56 bytes of `i_block` after the parent's inode number, and in the
//! value of the attribute `system.data`.

use std::ops::Range;

use super::super::attr::Attributes;
use super::super::inline_data::{FRONT, PARENT};
use super::super::inode::Inode;
use super::super::jbd2::Handle;
use super::entries::{Entries, Target, length};
use super::{Addition, Directory, PLACE, Step};
use crate::error::{Error, Result};
use crate::units::InodeNo;

/// An inline directory has numbered parts. The parts with these numbers contain entries.
const PARTS: Range<u64> = 1..3;

impl Directory<'_> {
    /// Makes a new directory inline, if the volume has the feature inline_data and the inode has enough space. Returns whether the
    /// directory is inline.
    pub(super) fn init_inline_directory(
        &self,
        h: &mut Handle<'_>,
        parent: InodeNo,
    ) -> Result<bool> {
        let parent = u32::try_from(parent.0).map_err(|_| {
            Error::invalid("the inode number of the parent directory exceeds 32 bits")
        })?;
        let mut content = [0; FRONT];
        let (number, entries) = content.split_at_mut(PARENT);
        number.copy_from_slice(&parent.to_le_bytes());
        Entries(entries).pack(std::iter::empty());
        Attributes::of(self.0).store_inline(h, &content)
    }

    /// Adds a name if the inode has enough space. Otherwise, moves all entries to a block.
    pub(super) fn add_inline(&self, h: &mut Handle<'_>, addition: &Addition<'_>) -> Result<Step> {
        let (name, target) = (addition.wanted.name, addition.target);
        for part in PARTS {
            let Some(area) = self.inline_dir_part(part)? else { continue };
            if let Some(gap) = area.gap(name, &self.fs)? {
                let insert = |mut entries: Entries<'_>| entries.insert(gap, name, target);
                self.change_inline(h, part, insert)?;
                return Ok(Step::Added);
            }
        }
        // No part has a large enough gap. The new entry is therefore appended to the attribute's value.
        let mut content = self.inline_content()?;
        let at = content.len() - FRONT;
        content.resize(content.len() + length(name), 0);
        Entries(&mut content[FRONT..]).put(at, at + length(name), name, target);
        if Attributes::of(self.0).store_inline(h, &content)? {
            return Ok(Step::Added);
        }
        self.move_to_block(h)?;
        Ok(Step::Grown)
    }

    /// Changes the entries of one part of an inline directory.
    pub(super) fn change_inline(
        &self,
        h: &mut Handle<'_>,
        part: u64,
        change: impl FnOnce(Entries<'_>),
    ) -> Result<()> {
        let mut content = self.inline_content()?;
        let (front, rest) = content.split_at_mut(FRONT);
        change(Entries(if part == 1 { &mut front[PARENT..] } else { rest }));
        self.replace_inline_directory(h, &content)
    }

    /// Changes the parent of an inline directory, which is the target of `..`.
    pub(super) fn set_inline_parent(&self, h: &mut Handle<'_>, parent: Target) -> Result<()> {
        let mut content = self.inline_content()?;
        content[..PARENT].copy_from_slice(&parent.number().to_le_bytes());
        self.replace_inline_directory(h, &content)
    }

    /// Stores new content of the same length as the old content.
    fn replace_inline_directory(&self, h: &mut Handle<'_>, content: &[u8]) -> Result<()> {
        if Attributes::of(self.0).store_inline(h, content)? {
            return Ok(());
        }
        Err(PLACE
            .inode(self.number)
            .corrupt("the entries of the inline directory overlap other attributes"))
    }

    /// Moves all entries of an inline directory to a block. If the volume has no free block, nothing is changed.
    fn move_to_block(&self, h: &mut Handle<'_>) -> Result<()> {
        let parts = PARTS.map(|part| self.inline_dir_part(part)).collect::<Result<Vec<_>>>()?;
        let parent = self.inline_parent();
        if parent.0 == 0 || parent.0 > u64::from(self.fs.superblock.inodes_count) {
            let place = PLACE.inode(self.number).field("parent");
            return Err(place.corrupt(format!("the parent {parent} is not a valid inode number")));
        }
        let mut entries = self.dots(parent)?.to_vec();
        for area in parts.iter().flatten() {
            entries.extend(area.used_entries(0, &self.fs)?);
        }
        let before = h.update_inode(self.0, |inode| Ok(inode.bytes().to_vec()))?;
        Attributes::of(self.0).evict_inline(h)?;
        h.update_inode(self.0, |inode| inode.set_size(0))?;
        let empty = self.again()?;
        let moved = Directory(&empty).append_leaf(h, |mut block| block.pack(entries.into_iter()));
        if moved.is_err() {
            h.update_inode(self.0, |inode| {
                inode.bytes().copy_from_slice(&before);
                Ok(())
            })?;
        }
        moved.map(|_| ())
    }
}

impl Inode {
    /// The complete content of an inline directory: the parent's inode number and the entries.
    fn inline_content(&self) -> Result<Vec<u8>> {
        Ok([&self.i_block[..], self.inline_rest()?].concat())
    }
}
