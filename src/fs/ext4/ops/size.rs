//! Changes the size of files.

use std::sync::atomic::Ordering;

use super::refuse;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::ext4::attr::Times;
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::operation::{InodeToChange, Locked, MayChange, Operation};
use crate::fs::ext4::superblock::change_features;
use crate::fs::ext4::{Ext4, Inode, RoCompat};
use crate::fs::{FileType, InodeFlags};
use crate::units::{FileBlock, InodeNo};

/// A file of at least this size needs the feature large_file.
const LARGE: u64 = 1 << 31;
const CREDITS: u32 = 40;

impl Ext4 {
    /// Checks that an inode is a regular file and that its content may be changed.
    pub(super) fn check_content_changes(&self, inode: &Inode) -> Result<()> {
        match inode.file_type() {
            FileType::Regular => {}
            FileType::Directory => {
                return Err(refuse(ErrorKind::IsADirectory, "is a directory"));
            }
            _ => return Err(refuse(ErrorKind::WrongFileType, "is not a regular file")),
        }
        if inode.flags().intersects(InodeFlags::IMMUTABLE | InodeFlags::VERITY) {
            return Err(refuse(ErrorKind::NotPermitted, "the file is immutable"));
        }
        if inode.flags().contains(InodeFlags::ENCRYPT) {
            return Err(refuse(
                ErrorKind::Encrypted,
                "the content is encrypted, and the key is not available",
            ));
        }
        if inode.flags().contains(InodeFlags::JOURNAL_DATA) {
            return Err(Error::unsupported(
                "a file whose data is journalled (chattr +j) cannot be written",
            ));
        }
        Ok(())
    }

    /// Returns the error `FileTooLarge` if the file's map cannot map a file of this size.
    pub(super) fn check_size(&self, inode: &Inode, size: u64) -> Result<()> {
        let limit = inode.most_blocks() << self.superblock.block_size.shift();
        if size > limit {
            return Err(refuse(
                ErrorKind::FileTooLarge,
                "the size is larger than the file's map can address",
            ));
        }
        Ok(())
    }
}

impl Operation<'_> {
    /// Sets the size of a regular file. Content past the new size is removed. Added content reads as zeros.
    pub(in crate::fs::ext4) fn truncate(&self, number: InodeNo, size: u64) -> Result<()> {
        let file = self.quiesce(number)?;
        let inode = self.file_to_change(&file)?;
        if inode.flags().contains(InodeFlags::APPEND) {
            return Err(refuse(ErrorKind::NotPermitted, "the file is append-only"));
        }
        self.check_size(&inode, size)?;
        let inode = self.without_capabilities(&file, inode)?;
        let is_cut = size <= inode.size();
        self.resize(&file, &inode, size)?;
        if is_cut {
            file.is_cut(inode.has_small_map());
        }
        Ok(())
    }

    /// Reads a regular file whose content is about to change.
    pub(super) fn file_to_change<'f>(&self, file: &'f Locked<'_>) -> Result<InodeToChange<'f>> {
        let inode = self.inode_to_change(file)?;
        self.check_content_changes(&inode)?;
        Ok(inode)
    }

    pub(super) fn resize(
        &self,
        file: &Locked<'_>,
        inode: &InodeToChange<'_>,
        size: u64,
    ) -> Result<()> {
        if inode.has_inline_data() {
            return self.resize_inline(file, inode, size);
        }
        // Even if the size does not change, preallocated blocks past the size are freed, as in Linux.
        if size > inode.size() {
            self.zero_past(inode, size)?;
            return self.transact(CREDITS, |handle| self.set_size(handle, file, size));
        }
        self.zero_tail(inode, size)?;
        let end = FileBlock(self.superblock.block_size.blocks_for(size));
        let whole = end..FileBlock(1 << 32);
        if inode.has_small_map() {
            return self.transact(CREDITS + inode.credits_for_unmap(), |handle| {
                self.set_size(handle, file, size)?;
                inode.unmap_range(handle, whole)
            });
        }
        self.transact(CREDITS, |handle| {
            self.add_orphan(handle, file)?;
            self.set_size(handle, file, size)
        })?;
        self.finish_truncation(&file.inode()?, false)
    }

    /// Sets the size and the times.
    pub(super) fn set_size(
        &self,
        handle: &mut Handle<'_>,
        inode: &impl MayChange,
        size: u64,
    ) -> Result<()> {
        let now = handle.now();
        handle.update_inode(inode, |inode| {
            inode.set_size(size)?;
            inode.set_times(&Times { modified: Some(now), ..Times::changed(now) })
        })?;
        self.note_large_size(handle, size)
    }

    /// Sets the feature large_file in the superblock, if `size` requires the feature and it is not set yet.
    pub(super) fn note_large_size(&self, handle: &mut Handle<'_>, size: u64) -> Result<()> {
        if size < LARGE || self.superblock.ro_compat.contains(RoCompat::LARGE_FILE) {
            return Ok(());
        }
        handle.update_superblock(|raw| {
            change_features(raw, |features| features.ro_compat.insert(RoCompat::LARGE_FILE));
            Ok(())
        })?;
        self.writing.features_switched.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Inode {
    /// The maximum number of file blocks that the inode's map can address.
    fn most_blocks(&self) -> u64 {
        if self.flags().contains(InodeFlags::EXTENTS) || self.has_inline_data() {
            return u64::from(u32::MAX);
        }
        let pointers = self.block_size().bytes() as u64 / 4;
        (12 + pointers + pointers.pow(2) + pointers.pow(3)).min(u64::from(u32::MAX))
    }
}
