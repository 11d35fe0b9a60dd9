//! Directories whose entries lie in the inode: 56 bytes in `i_block`, behind the parent's number, and what the attribute `system.data`
//! holds.

use std::mem::offset_of;
use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use super::super::Ext4;
use super::super::disk::extent::empty_root;
use super::super::disk::inode::GOOD_OLD_SIZE;
use super::super::disk::xattr::{MAGIC, RawXattrEntry};
use super::super::features::Incompat;
use super::super::inline_data::{FRONT, PARENT};
use super::super::inode::{Inode, InodeFlags};
use super::super::jbd2::Handle;
use super::super::raw::InodeMut;
use super::entries::{Entries, Target};
use super::{Addition, PLACE, Step};
use crate::error::{Error, Result};
use crate::units::InodeNo;

/// `e_name_index` and name of the attribute that holds what `i_block` does not.
const SYSTEM: u8 = 7;
const DATA: &[u8] = b"data";
/// Its entry.
const ENTRY: usize = size_of::<RawXattrEntry>() + DATA.len();
/// The parts of an inline directory that hold entries.
const PARTS: Range<u64> = 1..3;

impl Ext4 {
    /// Makes a new directory an inline one, where the volume has such and the inode has room; says whether it did.
    pub(super) fn init_inline_directory(
        &self,
        h: &mut Handle<'_>,
        dir: InodeNo,
        parent: InodeNo,
    ) -> Result<bool> {
        if !self.superblock.incompat.contains(Incompat::INLINE_DATA) {
            return Ok(false);
        }
        let parent = u32::try_from(parent.0).map_err(|_| Error::invalid("the parent's number"))?;
        self.update_inode(h, dir, |inode| {
            let Some(area) = attributes(inode) else { return Ok(false) };
            // The list begins with its magic number and ends with four zeros.
            if area.len() < 4 + ENTRY + 4 || area.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            let entry = RawXattrEntry {
                e_name_len: DATA.len() as u8,
                e_name_index: SYSTEM,
                e_value_offs: 0.into(),
                e_value_inum: 0.into(),
                e_value_size: 0.into(),
                e_hash: 0.into(),
            };
            area[..4].copy_from_slice(&MAGIC.to_le_bytes());
            area[4..4 + size_of::<RawXattrEntry>()].copy_from_slice(entry.as_bytes());
            area[4 + size_of::<RawXattrEntry>()..4 + ENTRY].copy_from_slice(DATA);
            let flags = inode.flags()?;
            inode.set_flags(flags - InodeFlags::EXTENTS | InodeFlags::INLINE_DATA)?;
            inode.set_size(FRONT as u64)?;
            let (front, entries) = inode.i_block()?.split_at_mut(PARENT);
            front.copy_from_slice(&parent.to_le_bytes());
            Entries(entries).pack(std::iter::empty());
            Ok(true)
        })
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
        self.move_to_block(h, dir)?;
        Ok(Step::Grown)
    }

    /// Changes the entries of a part that the directory has.
    pub(super) fn change_inline(
        &self,
        h: &mut Handle<'_>,
        dir: &Inode,
        part: u64,
        change: impl FnOnce(Entries<'_>),
    ) -> Result<()> {
        self.update_inode(h, dir.number, |inode| {
            if part == 1 {
                change(Entries(&mut inode.i_block()?[PARENT..]));
                return Ok(());
            }
            let place = PLACE.inode(dir.number);
            let area = attributes(inode).ok_or_else(|| place.corrupt("no attributes"))?;
            let Some(data) = DataAttribute::find(area) else {
                return Err(place.corrupt("no attribute system.data"));
            };
            change(Entries(&mut area[data.value]));
            Ok(())
        })
    }

    /// Changes what `..` stands for.
    pub(super) fn set_inline_parent(
        &self,
        h: &mut Handle<'_>,
        dir: &Inode,
        parent: Target,
    ) -> Result<()> {
        self.update_inode(h, dir.number, |inode| {
            inode.i_block()?[..PARENT].copy_from_slice(&parent.number().to_le_bytes());
            Ok(())
        })
    }

    /// Gives an inline directory a block, with all its entries. Where there is no space, nothing has changed.
    fn move_to_block(&self, h: &mut Handle<'_>, dir: &Inode) -> Result<()> {
        let parts = PARTS.map(|part| dir.inline_dir_part(part)).collect::<Result<Vec<_>>>()?;
        let mut entries = self.dots(dir.number, dir.inline_parent())?.to_vec();
        for area in parts.iter().flatten() {
            entries.extend(area.used_entries(0, self)?);
        }
        let before = self.update_inode(h, dir.number, |inode| {
            let before = inode.bytes().to_vec();
            self.empty_inline(inode)?;
            Ok(before)
        })?;
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

    /// Makes an inline directory one without any block.
    fn empty_inline(&self, inode: &mut InodeMut<'_>) -> Result<()> {
        if let Some(area) = attributes(inode)
            && let Some(data) = DataAttribute::find(area)
        {
            data.remove(area);
        }
        let mut flags = inode.flags()? - InodeFlags::INLINE_DATA;
        inode.i_block()?.fill(0);
        if self.superblock.incompat.contains(Incompat::EXTENTS) {
            flags |= InodeFlags::EXTENTS;
            inode.i_block()?.copy_from_slice(&empty_root());
        }
        inode.set_flags(flags)?;
        inode.set_size(0)
    }
}

/// The bytes of an inode that hold attributes, if it has room for any.
fn attributes<'a>(inode: &'a mut InodeMut<'_>) -> Option<&'a mut [u8]> {
    let extra = inode.extra_size();
    if extra == 0 { None } else { inode.bytes().get_mut(GOOD_OLD_SIZE + extra..) }
}

/// Where `system.data` lies among the attributes of an inode.
struct DataAttribute {
    entry: Range<usize>,
    value: Range<usize>,
}

impl DataAttribute {
    fn find(area: &[u8]) -> Option<Self> {
        list(area).find_map(|(entry, raw)| {
            let name = area.get(entry.start + size_of::<RawXattrEntry>()..)?;
            if raw.e_name_index != SYSTEM
                || usize::from(raw.e_name_len) != DATA.len()
                || !name.starts_with(DATA)
            {
                return None;
            }
            let start = VALUES + usize::from(raw.e_value_offs.get());
            let value = start..start.checked_add(raw.e_value_size.get() as usize)?;
            // The place of an empty value means nothing.
            let value = if value.is_empty() { 0..0 } else { value };
            (value.end <= area.len()).then_some(Self { entry, value })
        })
    }

    /// Takes it out: the entries behind it and the values before its own move together.
    fn remove(&self, area: &mut [u8]) {
        let others: Vec<_> = list(area).filter(|(entry, _)| *entry != self.entry).collect();
        let Some(last) = others.last().map(|(entry, _)| entry.end) else {
            // Not even the magic number stays.
            area.fill(0);
            return;
        };
        let size = self.value.len().next_multiple_of(4);
        let mut first_value = self.value.start;
        for (entry, raw) in &others {
            let at = VALUES + usize::from(raw.e_value_offs.get());
            if raw.e_value_inum.get() == 0 && raw.e_value_size.get() > 0 && at < self.value.start {
                first_value = first_value.min(at);
                let moved = (at - VALUES + size) as u16;
                let field = entry.start + offset_of!(RawXattrEntry, e_value_offs);
                area[field..field + 2].copy_from_slice(&moved.to_le_bytes());
            }
        }
        area.copy_within(first_value..self.value.start, first_value + size);
        area[first_value..first_value + size].fill(0);
        let end = last.max(self.entry.end);
        area.copy_within(self.entry.end..end, self.entry.start);
        area[end - self.entry.len()..end].fill(0);
    }
}

/// From where the places of values are counted: behind the magic number.
const VALUES: usize = 4;

/// The entries of the list of attributes, as far as they lie within the area.
fn list(area: &[u8]) -> impl Iterator<Item = (Range<usize>, RawXattrEntry)> {
    let mut at = if area.starts_with(&MAGIC.to_le_bytes()) { VALUES } else { area.len() };
    std::iter::from_fn(move || {
        let (raw, _) = RawXattrEntry::read_from_prefix(area.get(at..)?).ok()?;
        if raw.as_bytes()[..4] == [0; 4] {
            return None;
        }
        let length = size_of::<RawXattrEntry>() + usize::from(raw.e_name_len).next_multiple_of(4);
        let entry = at..at + length;
        at = entry.end;
        (entry.end <= area.len()).then_some((entry, raw))
    })
}
