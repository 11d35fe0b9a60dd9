//! Allocation of inodes near their directories, and release of inodes. This module changes bitmaps, descriptors and counters. The caller
//! writes the inode.

use super::bitmap::{self, Bits};
use super::group::LockedGroup;
use super::loading::{DESCRIPTOR, INODE_BITMAP};
use super::summary::get;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::operation::{Exclusive, MayChange, Open};
use crate::fs::ext4::{Ext4, Superblock};
use crate::units::{FsBlock, InodeNo};

/// The allocation or the release of one inode in a group.
struct Change {
    bit: u32,
    in_use: bool,
    free_inodes: u32,
    directories: u32,
    unused_inodes: u32,
}

/// An inode that this transaction has allocated. No directory entry refers to the inode yet. The inode number may have belonged to a
/// removed file that another thread still uses. The new inode therefore stays locked until it is complete.
pub(crate) struct FreshInode<'a>(Exclusive<'a>);

impl FreshInode<'_> {
    /// Opens the inode.
    pub(crate) fn open(&self) -> Open {
        self.0.open()
    }
}

impl MayChange for FreshInode<'_> {
    fn number(&self) -> InodeNo {
        self.0.number()
    }
}

impl<'a> Handle<'a> {
    /// Allocates a free inode. Changes at most three blocks: the bitmap, the descriptor, and an inode table block. If this inode table
    /// block was never in use, it is zeroed first.
    ///
    /// # Errors
    /// `NoSpace` if no inode is free, or if other threads have locked all free inodes; nothing is changed in these cases. `Corrupt`.
    pub(crate) fn allocate_inode(
        &mut self,
        parent: InodeNo,
        directory: bool,
    ) -> Result<FreshInode<'a>> {
        let (sb, allocator) = (&self.fs.superblock, &self.writing.alloc);
        let first = if directory {
            allocator.group_for_directory(sb, parent)
        } else {
            allocator.group_for_file(sb, parent)
        };
        for group in allocator.groups_with_inodes(first) {
            if let Some(fresh) = self.allocate_inode_in(group, directory)? {
                return Ok(fresh);
            }
        }
        Err(Error::new(ErrorKind::NoSpace, "no free inodes remain"))
    }

    /// Allocates an inode of a group: the first free inode whose number no other thread has locked. Returns `None` if the group has no such
    /// inode. Also records whether the group has free inodes whose numbers are locked.
    fn allocate_inode_in(
        &mut self,
        number: u32,
        directory: bool,
    ) -> Result<Option<FreshInode<'a>>> {
        let (sb, allocator) = (&self.fs.superblock, &self.writing.alloc);
        let free_inodes = &allocator.group(number).free_inodes;
        if get(free_inodes) == 0 {
            return Ok(None);
        }
        let mut group = allocator.lock_group(self.fs, number)?;
        // Another thread may have allocated the last free inode before this thread locked the group.
        if get(free_inodes) == 0 {
            return Ok(None);
        }
        let content = group.inode_bitmap()?;
        let reserved = if number == 0 { sb.first_inode - 1 } else { 0 };
        let from = group.state.first_inode.max(reserved);
        let next = |from| Bits::new(&content, None).next_clear(from, sb.inodes_per_group);
        let first = u64::from(number) * u64::from(sb.inodes_per_group) + 1;
        let lock = |bit| self.writing.locks.try_exclusive(InodeNo(first + u64::from(bit)));
        let (free, mut bit) = (next(from), next(from));
        if free == sb.inodes_per_group {
            let place = INODE_BITMAP.block(group.descriptor.inode_bitmap);
            return Err(place.corrupt(
                "the bitmap has no free inode, but the group descriptor counts free inodes",
            ));
        }
        let fresh = loop {
            if bit == sb.inodes_per_group {
                return Ok(None);
            }
            match lock(bit) {
                Some(locked) => break FreshInode(locked),
                None => {
                    self.met_locked_inode = true;
                    bit = next(bit + 1);
                }
            }
        };
        drop(content);
        group.take_inode(self, bit, directory)?;
        group.state.first_inode = if bit == free { bit + 1 } else { free };
        Ok(Some(fresh))
    }

    /// Allocates exactly this inode. A recovery has found that the inode is in use.
    ///
    /// # Errors
    /// `Corrupt` for an inode that is in use or reserved; nothing is changed in that case.
    pub(crate) fn claim_inode(&mut self, inode: InodeNo, directory: bool) -> Result<()> {
        let (number, bit) = self.fs.superblock.place_of_bit(inode)?;
        let mut group = self.writing.alloc.lock_group(self.fs, number)?;
        let content = group.inode_bitmap()?;
        if Bits::new(&content, None).is_set(bit..bit + 1) {
            let place = INODE_BITMAP.block(group.descriptor.inode_bitmap).inode(inode);
            return Err(place.corrupt("the inode is already in use"));
        }
        drop(content);
        group.take_inode(self, bit, directory)
    }

    /// Frees an inode. The caller has already marked the inode in the inode table as unused. The inode number is available immediately.
    /// Changes two blocks.
    ///
    /// # Errors
    /// `Corrupt` for an inode that is free or reserved; nothing is changed in that case.
    pub(crate) fn free_inode(&mut self, inode: &impl MayChange, directory: bool) -> Result<()> {
        let inode = inode.number();
        let allocator = &self.writing.alloc;
        let (number, bit) = self.fs.superblock.place_of_bit(inode)?;
        let mut group = allocator.lock_group(self.fs, number)?;
        let content = group.inode_bitmap()?;
        let place = INODE_BITMAP.block(group.descriptor.inode_bitmap).inode(inode);
        if !Bits::new(&content, None).is_set(bit..bit + 1) {
            return Err(place.corrupt("the inode is to be freed, but is already free"));
        }
        drop(content);
        let Some(directories) = group.descriptor.directories.checked_sub(u32::from(directory))
        else {
            let place = DESCRIPTOR.block(self.fs.descriptor_block(number));
            return Err(place.field("bg_used_dirs_count").corrupt(
                "a directory is to be freed, but the group descriptor counts no directories",
            ));
        };
        let (free_inodes, unused_inodes) =
            (group.descriptor.free_inodes + 1, group.descriptor.unused_inodes);
        let change = Change { bit, in_use: false, free_inodes, directories, unused_inodes };
        group.mark_inode(self, &change)?;
        group.state.first_inode = group.state.first_inode.min(bit);
        allocator.give_inode(number, directory);
        Ok(())
    }
}

impl Ext4 {
    /// Whether the inode bitmap marks an inode as used.
    ///
    /// # Errors
    /// `Corrupt` for a number that is reserved or larger than the volume's number of inodes.
    pub(crate) fn is_inode_in_use(&self, inode: InodeNo) -> Result<bool> {
        let (number, bit) = self.superblock.place_of_bit(inode)?;
        let content = self.allocator()?.lock_group(self, number)?.inode_bitmap()?;
        Ok(Bits::new(&content, None).is_set(bit..bit + 1))
    }
}

impl Superblock {
    /// The group of an inode, and its bit number in the group's inode bitmap. The inode must not be reserved.
    fn place_of_bit(&self, inode: InodeNo) -> Result<(u32, u32)> {
        let numbers = u64::from(self.first_inode)..=u64::from(self.inodes_count);
        if !numbers.contains(&inode.0) {
            return Err(INODE_BITMAP
                .inode(inode)
                .corrupt("the inode is reserved or does not exist"));
        }
        let bit = ((inode.0 - 1) % u64::from(self.inodes_per_group)) as u32;
        Ok((self.group_of(inode), bit))
    }
}

impl LockedGroup<'_> {
    /// Marks a free inode of the locked group as used.
    fn take_inode(&self, handle: &mut Handle<'_>, bit: u32, directory: bool) -> Result<()> {
        let sb = &self.fs.superblock;
        self.zero_table(handle, bit)?;
        let change = Change {
            bit,
            in_use: true,
            free_inodes: self.descriptor.free_inodes.saturating_sub(1),
            directories: self.descriptor.directories + u32::from(directory),
            unused_inodes: self.descriptor.unused_inodes.min(sb.inodes_per_group - bit - 1),
        };
        self.mark_inode(handle, &change)?;
        self.allocator.take_inode(self.number, directory);
        Ok(())
    }

    /// Zeros the blocks of the inode table that were never in use, up to the block of this inode. The content of these blocks on the device
    /// is undefined.
    fn zero_table(&self, handle: &mut Handle<'_>, bit: u32) -> Result<()> {
        let sb = &self.fs.superblock;
        let per_block = sb.block_size.bytes() as u32 / u32::from(sb.inode_size);
        let used = sb.inodes_per_group - self.descriptor.unused_inodes;
        for block in used.div_ceil(per_block)..=bit / per_block {
            handle.create(FsBlock(self.descriptor.inode_table.0 + u64::from(block)), |_| ())?;
        }
        Ok(())
    }

    fn mark_inode(&self, handle: &mut Handle<'_>, change: &Change) -> Result<()> {
        let range = change.bit..change.bit + 1;
        let mark = |bytes: &mut [u8]| {
            if change.in_use {
                bitmap::set(bytes, range);
            } else {
                bitmap::clear(bytes, range);
            }
            self.fs.superblock.inode_bitmap_checksum(bytes)
        };
        let sum = if self.descriptor.inodes_uninit {
            handle.create(self.descriptor.inode_bitmap, |bytes| {
                self.fill_inode_bitmap(bytes);
                mark(bytes)
            })?
        } else {
            handle.update(self.descriptor.inode_bitmap, INODE_BITMAP, |bytes| Ok(mark(bytes)))?
        };
        let tracked = self.descriptor.unused_inodes != change.unused_inodes;
        handle.update_group(self.number, |group| {
            group.set_free_inodes(change.free_inodes);
            group.set_directories(change.directories);
            if tracked {
                group.set_unused_inodes(change.unused_inodes);
            }
            group.set_inodes_initialised();
            if let Some(sum) = sum {
                group.set_inode_bitmap_checksum(sum);
            }
            Ok(())
        })
    }
}
