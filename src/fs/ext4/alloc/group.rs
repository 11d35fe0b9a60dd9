//! A locked group.

use std::ops::Range;

use super::Allocator;
use super::summary::Locked;
use crate::error::Result;
use crate::fs::ext4::Ext4;
use crate::fs::ext4::group::Group;
use crate::fs::ext4::order::Ordered;
use crate::sync::MutexGuard;

/// A locked group. The group's descriptor and bitmaps are changed only while this lock is held.
pub(super) struct LockedGroup<'a> {
    pub(super) fs: &'a Ext4,
    pub(super) allocator: &'a Allocator,
    pub(super) number: u32,
    pub(super) descriptor: Group,
    pub(super) state: Ordered<MutexGuard<'a, Locked>>,
}

impl Allocator {
    /// Locks a group.
    ///
    /// # Errors
    /// `Corrupt` for a damaged descriptor.
    pub(super) fn lock_group<'a>(&'a self, fs: &'a Ext4, number: u32) -> Result<LockedGroup<'a>> {
        let state = self.group(number).lock();
        Ok(LockedGroup { fs, allocator: self, number, descriptor: fs.group(number)?, state })
    }
}

impl LockedGroup<'_> {
    /// The clusters of the file system's own structures. The list is empty until the block bitmap has been read.
    pub(super) fn system(&self) -> &[Range<u32>] {
        self.state.system.as_deref().unwrap_or_default()
    }
}
