//! New numbers for the inodes of removed groups, and the inode bitmaps that mark these numbers as used.

use std::collections::{BTreeMap, HashMap};

use super::Volume;
use super::bitmaps::Descriptors;
use super::edits::{Edits, Rank};
use super::scan::Item;
use super::shape::Shape;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::InodeFlags;
use crate::fs::ext4::alloc::bitmap::{self, Bits};
use crate::fs::ext4::group::GroupMut;
use crate::fs::ext4::mkfs::layout::Tables;
use crate::fs::ext4::{Compat, Superblock};
use crate::sys::Buffer;
use crate::units::{FsBlock, InodeNo};

const INODE_BITMAP: Place = Place::new("inode bitmap");

/// The inode bitmap and the counts of a group that receives inodes from removed groups.
struct Taking {
    bytes: Buffer,
    free: u32,
    directories: u32,
    /// The inodes from this index on were never in use. `unused_from` is the index before the resize, `used_to` the index after it.
    unused_from: u32,
    used_to: u32,
}

/// The new inode numbers.
#[derive(Default)]
pub(super) struct Numbers {
    new: HashMap<u32, u32>,
    groups: BTreeMap<u32, Taking>,
}

impl Volume {
    /// The purpose of the inode, such as `lost+found`, if a field of the superblock contains the inode's number. Otherwise `None`.
    fn role(&self, number: InodeNo) -> Option<&'static str> {
        let raw = &self.raw;
        let roles = [
            (raw.s_orphan_file_inum, "the orphan file"),
            (raw.s_prj_quota_inum, "the project quota file"),
            (raw.s_lpf_ino, "lost+found"),
        ];
        roles.into_iter().find(|(inode, _)| u64::from(inode.get()) == number.0).map(|role| role.1)
    }
}

impl Numbers {
    /// Finds a new number for each inode of a removed group.
    ///
    /// # Errors
    /// `NoSpace` if too few inodes are free; `Unsupported`, with the reason, for an inode whose number cannot change.
    pub(super) fn new(volume: &Volume, items: &[Item], sb: &Superblock) -> Result<Self> {
        let mut numbers = Self::default();
        let mut group = 0;
        let last = u64::from(sb.inodes_count);
        for item in items.iter().filter(|item| item.number.0 > last) {
            if sb.compat.contains(Compat::STABLE_INODES) {
                return Err(Error::unsupported(
                    "inodes beyond the new end cannot get other numbers, because stable_inodes is set",
                ));
            }
            if let Some(what) = volume.role(item.number) {
                // A field of the superblock refers to this inode. The field can change only together with the size, but the old copy of the
                // inode is deleted earlier. Between these two writes, the field would refer to a deleted inode.
                let number = item.number;
                return Err(Error::unsupported(format!(
                    "inode {number} is beyond the new end and is {what}: disable the feature first (tune2fs, e2fsck -f)"
                )));
            }
            if item.flags.contains(InodeFlags::EA_INODE) {
                let number = item.number;
                return Err(Error::unsupported(format!(
                    "inode {number} is beyond the new end and contains an attribute's value (ea_inode): use resize2fs"
                )));
            }
            loop {
                if group == sb.groups {
                    return Err(Error::new(
                        ErrorKind::NoSpace,
                        "the smaller volume has too few free inodes for the existing files: choose a larger size",
                    ));
                }
                if let Some(bit) = numbers.take(volume, sb, group, item.directory)? {
                    let number = group * sb.inodes_per_group + bit + 1;
                    numbers.new.insert(item.number.0 as u32, number);
                    break;
                }
                group += 1;
            }
        }
        Ok(numbers)
    }

    fn take(
        &mut self,
        volume: &Volume,
        sb: &Superblock,
        group: u32,
        directory: bool,
    ) -> Result<Option<u32>> {
        let taking = match self.groups.entry(group) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let found = volume.found.group(group)?;
                if found.free_inodes == 0 {
                    return Ok(None);
                }
                let mut bytes = Buffer::aligned(sb.block_size.bytes())?;
                if found.inodes_uninit {
                    let bits = bytes.len() as u32 * 8;
                    bitmap::set(&mut bytes, sb.inodes_per_group..bits);
                } else {
                    bytes.copy_from_slice(
                        &volume.found.blocks.read(found.inode_bitmap, INODE_BITMAP)?,
                    );
                }
                let used = sb.inodes_per_group - found.unused_inodes;
                entry.insert(Taking {
                    bytes,
                    free: found.free_inodes,
                    directories: found.directories,
                    unused_from: used,
                    used_to: used,
                })
            }
        };
        let from = if group == 0 { sb.first_inode - 1 } else { 0 };
        let bit = Bits::new(&taking.bytes, None).next_clear(from, sb.inodes_per_group);
        if bit == sb.inodes_per_group || taking.free == 0 {
            return Ok(None);
        }
        bitmap::set(&mut taking.bytes, bit..bit + 1);
        taking.free -= 1;
        taking.directories += u32::from(directory);
        taking.used_to = taking.used_to.max(bit + 1);
        Ok(Some(bit))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.new.is_empty()
    }

    /// The number of an inode in the new volume.
    pub(super) fn of(&self, number: InodeNo) -> InodeNo {
        u32::try_from(number.0)
            .ok()
            .and_then(|old| self.of_raw(old))
            .map_or(number, |new| InodeNo(u64::from(new)))
    }

    /// The new number of an inode. `None` if the number does not change.
    pub(super) fn of_raw(&self, number: u32) -> Option<u32> {
        self.new.get(&number).copied()
    }

    /// Adds the changed inode bitmaps and the newly used blocks of inode tables to `edits`, the blocks to write. Stores the new counts in
    /// the descriptors.
    pub(super) fn store(
        &self,
        shape: &Shape,
        tables: &[Tables],
        descriptors: &mut Descriptors,
        edits: &mut Edits<'_>,
    ) -> Result<()> {
        let sb = &shape.sb;
        let per_block = sb.block_size.bytes() as u32 / u32::from(sb.inode_size);
        for (group, taking) in &self.groups {
            let place = &tables[*group as usize];
            let mut bytes = Buffer::aligned(taking.bytes.len())?;
            bytes.copy_from_slice(&taking.bytes);
            descriptors.change(sb, *group, |descriptor| {
                sb.seal_inode_bitmap(&bytes, descriptor);
                let mut group = GroupMut::new(descriptor);
                group.set_free_inodes(taking.free);
                group.set_directories(taking.directories);
                if sb.has_uninit_groups() {
                    group.set_unused_inodes(sb.inodes_per_group - taking.used_to);
                }
                group.set_inodes_initialised();
            });
            edits.put(FsBlock(place.inode_bitmap), Rank::Bitmaps, bytes);
            // The newly used blocks of the inode table have undefined content on the device, and are zeroed.
            for block in taking.unused_from.div_ceil(per_block)..taking.used_to.div_ceil(per_block)
            {
                let zeros = Buffer::aligned(sb.block_size.bytes())?;
                edits.put(FsBlock(place.inode_table + u64::from(block)), Rank::Bitmaps, zeros);
            }
        }
        Ok(())
    }
}
