//! Inodes: allocated near their directory, and freed. Only bitmaps and counts: the caller writes the inode itself.

use super::bitmap::{self, Bits};
use super::loading::{DESCRIPTOR, INODE_BITMAP};
use super::summary::get;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::ext4::Ext4;
use crate::fs::ext4::group::Group;
use crate::fs::ext4::jbd2::Handle;
use crate::units::{FsBlock, InodeNo};

/// The changes in a group when one of its inodes is allocated or freed.
struct Change {
    bit: u32,
    in_use: bool,
    free_inodes: u32,
    directories: u32,
    unused_inodes: u32,
}

impl Ext4 {
    /// An inode that is free. Changes three blocks at most: a part of the table that was never in use is zeroed.
    ///
    /// # Errors
    /// `NoSpace` if no inode is free, and nothing has been changed; `Corrupt`.
    pub(crate) fn allocate_inode(
        &self,
        handle: &mut Handle<'_>,
        parent: InodeNo,
        directory: bool,
    ) -> Result<InodeNo> {
        let (sb, allocator) = (&self.superblock, self.allocator()?);
        let first = if directory {
            allocator.group_for_directory(sb, parent)
        } else {
            allocator.group_for_file(sb, parent)
        };
        for group in allocator.groups_with_inodes(first) {
            if let Some(number) = self.allocate_inode_in(handle, group, directory)? {
                return Ok(number);
            }
        }
        Err(Error::new(ErrorKind::NoSpace, "no inodes are left"))
    }

    fn allocate_inode_in(
        &self,
        handle: &mut Handle<'_>,
        number: u32,
        directory: bool,
    ) -> Result<Option<InodeNo>> {
        let (sb, allocator) = (&self.superblock, self.allocator()?);
        let state = allocator.group(number);
        let locked = &mut *state.lock();
        if get(&state.free_inodes) == 0 {
            return Ok(None);
        }
        let group = self.group(number)?;
        let content = self.inode_bitmap(&group, locked)?;
        let reserved = if number == 0 { sb.first_inode - 1 } else { 0 };
        let from = locked.first_inode.max(reserved);
        let bit = Bits::new(&content, None).next_clear(from, sb.inodes_per_group);
        drop(content);
        if bit == sb.inodes_per_group {
            let place = INODE_BITMAP.block(group.inode_bitmap);
            return Err(place.corrupt("it has no free inode, the descriptor counts some"));
        }
        self.take_inode(handle, number, &group, bit, directory)?;
        locked.first_inode = bit + 1;
        let index = u64::from(number) * u64::from(sb.inodes_per_group) + u64::from(bit);
        Ok(Some(InodeNo(index + 1)))
    }

    /// This inode and no other, which a recovery says is in use.
    ///
    /// # Errors
    /// `Corrupt` for one that is in use or reserved; nothing has been changed then.
    pub(crate) fn claim_inode(
        &self,
        handle: &mut Handle<'_>,
        inode: InodeNo,
        directory: bool,
    ) -> Result<()> {
        let (number, bit) = self.place_of_bit(inode)?;
        let locked = &mut *self.allocator()?.group(number).lock();
        let group = self.group(number)?;
        let content = self.inode_bitmap(&group, locked)?;
        if Bits::new(&content, None).is_set(bit..bit + 1) {
            let place = INODE_BITMAP.block(group.inode_bitmap).inode(inode);
            return Err(place.corrupt("it is in use already"));
        }
        drop(content);
        self.take_inode(handle, number, &group, bit, directory)
    }

    /// Whether the bitmap says so.
    ///
    /// # Errors
    /// `Corrupt` for a number that is reserved or out of range.
    pub(crate) fn is_inode_in_use(&self, inode: InodeNo) -> Result<bool> {
        let (number, bit) = self.place_of_bit(inode)?;
        let locked = &mut *self.allocator()?.group(number).lock();
        let content = self.inode_bitmap(&self.group(number)?, locked)?;
        Ok(Bits::new(&content, None).is_set(bit..bit + 1))
    }

    /// The group and the bit of an inode that is not reserved.
    fn place_of_bit(&self, inode: InodeNo) -> Result<(u32, u32)> {
        let sb = &self.superblock;
        let numbers = u64::from(sb.first_inode)..=u64::from(sb.inodes_count);
        if !numbers.contains(&inode.0) {
            return Err(INODE_BITMAP.inode(inode).corrupt("it is not an inode of a file"));
        }
        let bit = ((inode.0 - 1) % u64::from(sb.inodes_per_group)) as u32;
        Ok((sb.group_of(inode), bit))
    }

    /// Takes a free inode of a group, whose lock is held.
    fn take_inode(
        &self,
        handle: &mut Handle<'_>,
        number: u32,
        group: &Group,
        bit: u32,
        directory: bool,
    ) -> Result<()> {
        let sb = &self.superblock;
        self.zero_table(handle, group, bit)?;
        let change = Change {
            bit,
            in_use: true,
            free_inodes: group.free_inodes.saturating_sub(1),
            directories: group.directories + u32::from(directory),
            unused_inodes: group.unused_inodes.min(sb.inodes_per_group - bit - 1),
        };
        self.mark_inode(handle, number, group, &change)?;
        self.allocator()?.take_inode(number, directory);
        Ok(())
    }

    /// Zeroes the blocks of the table that come into use with an inode. The device may hold garbage there: mke2fs need not write them.
    fn zero_table(&self, handle: &mut Handle<'_>, group: &Group, bit: u32) -> Result<()> {
        let sb = &self.superblock;
        let per_block = sb.block_size.bytes() as u32 / u32::from(sb.inode_size);
        let used = sb.inodes_per_group - group.unused_inodes;
        for block in used.div_ceil(per_block)..=bit / per_block {
            handle.create(FsBlock(group.inode_table.0 + u64::from(block)), |_| ())?;
        }
        Ok(())
    }

    /// Frees an inode whose bytes say so already. Its number can be allocated again at once. Changes two blocks.
    ///
    /// # Errors
    /// `Corrupt` for one that is free or reserved; nothing has been changed then.
    pub(crate) fn free_inode(
        &self,
        handle: &mut Handle<'_>,
        inode: InodeNo,
        directory: bool,
    ) -> Result<()> {
        let allocator = self.allocator()?;
        let (number, bit) = self.place_of_bit(inode)?;
        let locked = &mut *allocator.group(number).lock();
        let group = self.group(number)?;
        let content = self.inode_bitmap(&group, locked)?;
        let place = INODE_BITMAP.block(group.inode_bitmap).inode(inode);
        if !Bits::new(&content, None).is_set(bit..bit + 1) {
            return Err(place.corrupt("it is freed and is free"));
        }
        drop(content);
        let Some(directories) = group.directories.checked_sub(u32::from(directory)) else {
            let place = DESCRIPTOR.block(self.descriptor_block(number));
            return Err(place
                .field("bg_used_dirs_count")
                .corrupt("a directory is freed, it counts none"));
        };
        let (free_inodes, unused_inodes) = (group.free_inodes + 1, group.unused_inodes);
        let change = Change { bit, in_use: false, free_inodes, directories, unused_inodes };
        self.mark_inode(handle, number, &group, &change)?;
        locked.first_inode = locked.first_inode.min(bit);
        allocator.give_inode(number, directory);
        Ok(())
    }

    fn mark_inode(
        &self,
        handle: &mut Handle<'_>,
        number: u32,
        group: &Group,
        change: &Change,
    ) -> Result<()> {
        let range = change.bit..change.bit + 1;
        let mark = |bytes: &mut [u8]| {
            if change.in_use {
                bitmap::set(bytes, range);
            } else {
                bitmap::clear(bytes, range);
            }
            self.superblock.inode_bitmap_checksum(bytes)
        };
        let sum = if group.inodes_uninit {
            handle.create(group.inode_bitmap, |bytes| {
                self.fill_inode_bitmap(bytes);
                mark(bytes)
            })?
        } else {
            handle.update(group.inode_bitmap, INODE_BITMAP, |bytes| Ok(mark(bytes)))?
        };
        let tracked = group.unused_inodes != change.unused_inodes;
        self.update_group(handle, number, |group| {
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
