//! Updates the directory entries of inodes that get new numbers.

use zerocopy::FromBytes;

use super::Volume;
use super::edits::{Edits, Rank};
use super::numbers::Numbers;
use super::plan::Plan;
use super::scan::Item;
use super::shape::Shape;
use crate::error::{Error, Place, Result};
use crate::fs::ext4::Superblock;
use crate::fs::ext4::dir_block::{HEADER, record_length, seal_dir_block};
use crate::fs::ext4::disk::dir::RawDirEntry;
use crate::fs::ext4::htree::seal_dx_block;
use crate::fs::ext4::inode::Inode;
use crate::units::{FileBlock, FsBlock};

const PLACE: Place = Place::new("directory block");

impl Volume {
    /// Changes the inode numbers in all directory entries to the new numbers.
    pub(super) fn edit_names(
        &self,
        plan: &Plan,
        shape: &Shape,
        items: &[Item],
        edits: &mut Edits<'_>,
    ) -> Result<()> {
        if plan.numbers.is_empty() {
            return Ok(());
        }
        for item in items.iter().filter(|item| item.directory && !item.inline) {
            let inode = self.found.inode_or_orphan(item.number)?;
            for extent in &item.map.extents {
                for offset in 0..u64::from(extent.len) {
                    let old = FsBlock(extent.start.0 + offset);
                    let logical = FileBlock(extent.first.0 + offset);
                    self.edit_block(plan, &shape.sb, &inode, (logical, old), edits)?;
                }
            }
        }
        Ok(())
    }

    fn edit_block(
        &self,
        plan: &Plan,
        sb: &Superblock,
        inode: &Inode,
        (logical, old): (FileBlock, FsBlock),
        edits: &mut Edits<'_>,
    ) -> Result<()> {
        let fs = &self.found;
        let place = PLACE.inode(inode.number).block(old);
        let number = plan.numbers.of(inode.number);
        let mut content = fs.blocks.read(old, place)?;
        let dx = inode.is_dx_block(logical, &content);
        let bytes = content.for_change()?;
        let end = if dx { bytes.len() } else { sb.entries_end() };
        let named = rename(plan, sb, &mut bytes[..end])
            .ok_or_else(|| place.corrupt("an entry of the directory is not valid"))?;
        if !named && number == inode.number {
            return Ok(());
        }
        let seed = sb.inode_seed(number, inode.generation);
        if dx {
            seal_dx_block(seed, logical, bytes);
        } else {
            seal_dir_block(seed, bytes);
        }
        let new = FsBlock(plan.moves.place(old.0));
        edits.edit(fs, new, Rank::Entries, |to| to.copy_from_slice(bytes))
    }
}

/// Refuses the resize if an entry of an inline directory refers to an inode that gets a new number.
pub(super) fn check_inline(volume: &Volume, numbers: &Numbers, items: &[Item]) -> Result<()> {
    if numbers.is_empty() {
        return Ok(());
    }
    for number in items.iter().filter(|item| item.directory && item.inline).map(|item| item.number)
    {
        let mut changes = numbers.of(number) != number;
        for entry in volume.found.inode_or_orphan(number)?.read_dir()? {
            let named = entry?.inode;
            changes |= numbers.of(named) != named;
        }
        if changes {
            return Err(Error::unsupported(format!(
                "directory {number} has inline data and names inodes beyond the new end: use resize2fs"
            )));
        }
    }
    Ok(())
}

/// Changes the inode numbers in the entries of a block. Returns whether any entry changed, or `None` if an entry is damaged.
fn rename(plan: &Plan, sb: &Superblock, bytes: &mut [u8]) -> Option<bool> {
    let (mut at, mut changed) = (0, false);
    while at < bytes.len() {
        let (entry, _) = RawDirEntry::mut_from_prefix(&mut bytes[at..]).ok()?;
        let len = record_length(entry.rec_len.get(), sb.block_size);
        if let Some(new) = plan.numbers.of_raw(entry.inode.get()) {
            entry.inode.set(new);
            changed = true;
        }
        if len < HEADER {
            return None;
        }
        at += len;
    }
    Some(changed)
}
