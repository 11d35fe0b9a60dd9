//! Directories whose entries lie in the inode: 56 bytes in `i_block`, after the parent's number, and the value of the attribute
//! `system.data`.

use std::ops::Range;

use super::super::Ext4;
use super::super::inline_data::{FRONT, PARENT};
use super::super::inode::Inode;
use super::super::jbd2::Handle;
use super::entries::{Entries, Target, length};
use super::{Addition, PLACE, Step};
use crate::error::{Error, Result};
use crate::units::InodeNo;

/// The parts of an inline directory that hold entries.
const PARTS: Range<u64> = 1..3;

impl Ext4 {
    /// Makes a new directory an inline one, where the volume has such and the inode has room; says whether it did.
    pub(super) fn init_inline_directory(
        &self,
        h: &mut Handle<'_>,
        dir: &Inode,
        parent: InodeNo,
    ) -> Result<bool> {
        let parent = u32::try_from(parent.0).map_err(|_| Error::invalid("the parent's number"))?;
        let mut content = [0; FRONT];
        let (number, entries) = content.split_at_mut(PARENT);
        number.copy_from_slice(&parent.to_le_bytes());
        Entries(entries).pack(std::iter::empty());
        self.store_inline(h, dir, &content)
    }

    /// Adds a name where there is room in the inode; else moves all entries to a block.
    pub(super) fn add_inline(
        &self,
        h: &mut Handle<'_>,
        dir: &Inode,
        addition: &Addition<'_>,
    ) -> Result<Step> {
        let (name, target) = (addition.wanted.name, addition.target);
        for part in PARTS {
            let Some(area) = dir.inline_dir_part(part)? else { continue };
            if let Some(gap) = area.gap(name, self)? {
                let insert = |mut entries: Entries<'_>| entries.insert(gap, name, target);
                self.change_inline(h, dir, part, insert)?;
                return Ok(Step::Added);
            }
        }
        // The attribute grows by an entry.
        let mut content = dir.inline_content()?;
        let at = content.len() - FRONT;
        content.resize(content.len() + length(name), 0);
        Entries(&mut content[FRONT..]).put(at, at + length(name), name, target);
        if self.store_inline(h, dir, &content)? {
            return Ok(Step::Added);
        }
        self.move_to_block(h, dir)?;
        Ok(Step::Grown)
    }

    /// Changes the entries of a part.
    pub(super) fn change_inline(
        &self,
        h: &mut Handle<'_>,
        dir: &Inode,
        part: u64,
        change: impl FnOnce(Entries<'_>),
    ) -> Result<()> {
        let mut content = dir.inline_content()?;
        let (front, rest) = content.split_at_mut(FRONT);
        change(Entries(if part == 1 { &mut front[PARENT..] } else { rest }));
        self.replace_inline_directory(h, dir, &content)
    }

    /// Changes what `..` stands for.
    pub(super) fn set_inline_parent(
        &self,
        h: &mut Handle<'_>,
        dir: &Inode,
        parent: Target,
    ) -> Result<()> {
        let mut content = dir.inline_content()?;
        content[..PARENT].copy_from_slice(&parent.number().to_le_bytes());
        self.replace_inline_directory(h, dir, &content)
    }

    /// Stores a content that is as long as the one before.
    fn replace_inline_directory(
        &self,
        h: &mut Handle<'_>,
        dir: &Inode,
        content: &[u8],
    ) -> Result<()> {
        if self.store_inline(h, dir, content)? {
            return Ok(());
        }
        Err(PLACE.inode(dir.number).corrupt("its entries share their place with other attributes"))
    }

    /// Gives an inline directory a block, with all its entries. Where there is no space, nothing has changed.
    fn move_to_block(&self, h: &mut Handle<'_>, dir: &Inode) -> Result<()> {
        let parts = PARTS.map(|part| dir.inline_dir_part(part)).collect::<Result<Vec<_>>>()?;
        let parent = dir.inline_parent();
        if parent.0 == 0 || parent.0 > u64::from(self.superblock.inodes_count) {
            let place = PLACE.inode(dir.number).field("parent");
            return Err(place.corrupt(format!("{parent} is not an inode")));
        }
        let mut entries = self.dots(dir.number, parent)?.to_vec();
        for area in parts.iter().flatten() {
            entries.extend(area.used_entries(0, self)?);
        }
        let before = self.update_inode(h, dir.number, |inode| Ok(inode.bytes().to_vec()))?;
        self.evict_inline(h, dir)?;
        self.update_inode(h, dir.number, |inode| inode.set_size(0))?;
        let empty = dir.fs.inode_or_orphan(dir.number)?;
        let moved = self.append_leaf(h, &empty, |mut block| block.pack(entries.into_iter()));
        if moved.is_err() {
            self.update_inode(h, dir.number, |inode| {
                inode.bytes().copy_from_slice(&before);
                Ok(())
            })?;
        }
        moved.map(|_| ())
    }
}

impl Inode {
    /// All of an inline directory: its parent's number and its entries.
    fn inline_content(&self) -> Result<Vec<u8>> {
        Ok([&self.i_block[..], self.inline_rest()?].concat())
    }
}
