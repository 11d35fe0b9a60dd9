//! Quota: the usage and the limits of each user, group and project.
//!
//! [`Handle::update_inode`] makes every change of an inode. It compares the inode's usage before and after the change, and charges the
//! difference in the same transaction. No other code charges usage. Limits are checked before space is allocated. Hard limits, and soft
//! limits whose grace time has expired, apply to all users, including the superuser. Blocks of a file's block map are charged but not
//! checked, and may exceed a limit. Simultaneous allocations for the same owner may together exceed a limit.

mod file;

use std::sync::Arc;

use zerocopy::FromBytes;

pub(super) use self::file::entries;

use self::file::QuotaFile;
use super::disk::inode::{GOOD_OLD_SIZE, RawInode, RawInodeExtra};
use super::inode::{InodePlace, sectors};
use super::jbd2::Handle;
use super::operation::Operation;
use super::superblock::Superblock;
use super::{Ext4, Inode};
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::InodeFlags;
use crate::units::InodeNo;

/// The maximum number of blocks of entries that an operation changes. An operation charges up to three inodes. Each inode has an entry for
/// its user, its group and its project.
const CREDITS: u32 = 9;

/// The quota files of a volume, for users, groups and projects.
pub(crate) struct Quota {
    files: [Option<QuotaFile>; 3],
}

/// The usage of an inode, and the owners that are charged for the usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    owners: [u32; 3],
    /// The space in bytes.
    bytes: i64,
    inodes: i64,
}

/// The space and the number of inodes that an owner may still use.
#[derive(Clone, Copy)]
struct Headroom {
    /// The space in bytes.
    bytes: u64,
    inodes: u64,
}

impl Usage {
    /// The usage of an inode, computed from the inode's bytes. The inode of an attribute's value has no usage: the value is charged to the
    /// inode that has the attribute.
    pub(super) fn of(sb: &Superblock, bytes: &[u8]) -> Self {
        let Ok((raw, rest)) = RawInode::ref_from_prefix(bytes) else {
            return Self { owners: [0; 3], bytes: 0, inodes: 0 };
        };
        let value = InodeFlags::from_bits_retain(raw.i_flags.get()).contains(InodeFlags::EA_INODE);
        // The limit of 2^52 sectors is larger than any volume. With this limit, the difference of two usages fits into an i64.
        let bytes = (sectors(sb, raw).min(1 << 52) as i64) << 9;
        let owners = owners(raw, rest);
        if value { Self { owners, bytes: 0, inodes: 0 } } else { Self { owners, bytes, inodes: 1 } }
    }

    /// Adds the charge for attribute values in separate inodes: each reference to a value is charged as one inode.
    pub(super) fn add_values(&mut self, count: i64) {
        self.inodes += count;
    }

    /// Sets the usage to zero.
    pub(super) fn clear(&mut self) {
        (self.bytes, self.inodes) = (0, 0);
    }
}

/// The user, the group and the project of an inode. `rest` must be the inode's bytes after the first 128.
pub(super) fn owners(raw: &RawInode, rest: &[u8]) -> [u32; 3] {
    debug_assert_eq!(size_of::<RawInode>(), GOOD_OLD_SIZE);
    let project = RawInodeExtra::ref_from_prefix(rest).map_or(0, |(extra, _)| {
        let there = usize::from(extra.i_extra_isize.get()) >= size_of::<RawInodeExtra>();
        if there { extra.i_projid.get() } else { 0 }
    });
    [
        u32::from(raw.i_uid.get()) | u32::from(raw.i_uid_high.get()) << 16,
        u32::from(raw.i_gid.get()) | u32::from(raw.i_gid_high.get()) << 16,
        project,
    ]
}

impl Quota {
    fn files(&self) -> impl Iterator<Item = (usize, &QuotaFile)> {
        self.files.iter().enumerate().filter_map(|(kind, file)| Some((kind, file.as_ref()?)))
    }

    /// Charges the difference between an inode's usage `before` and `after` a change.
    pub(super) fn charge(
        &self,
        handle: &mut Handle<'_>,
        before: &Usage,
        after: &Usage,
    ) -> Result<()> {
        if before == after {
            return Ok(());
        }
        for (kind, file) in self.files() {
            let (old, new) = (before.owners[kind], after.owners[kind]);
            if old == new {
                let bytes = after.bytes - before.bytes;
                file.add(handle, new, bytes, after.inodes - before.inodes)?;
            } else {
                file.add(handle, old, -before.bytes, -before.inodes)?;
                file.add(handle, new, after.bytes, after.inodes)?;
            }
        }
        Ok(())
    }

    /// The space and the number of inodes that all of these owners may still use: the smallest of the owners' values.
    fn left(&self, fs: &Ext4, owners: [Option<u32>; 3]) -> Result<Headroom> {
        let mut least = Headroom { bytes: u64::MAX, inodes: u64::MAX };
        for (kind, file) in self.files() {
            let Some(id) = owners[kind] else { continue };
            let left = file.left(fs, id)?;
            least.bytes = least.bytes.min(left.bytes);
            least.inodes = least.inodes.min(left.inodes);
        }
        Ok(least)
    }

    fn check_left(
        &self,
        fs: &Ext4,
        owners: [Option<u32>; 3],
        bytes: u64,
        inodes: u64,
    ) -> Result<()> {
        let left = self.left(fs, owners)?;
        if left.bytes < bytes || left.inodes < inodes { Err(used_up()) } else { Ok(()) }
    }
}

impl Ext4 {
    /// The maximum number of blocks of the quota files that an operation changes. 0 if the volume has no quota files.
    pub(super) fn quota_credits(&self) -> u32 {
        if self.quota.get().is_some() { CREDITS } else { 0 }
    }

    /// Loads the quota files. This function is called when a volume is opened for writing.
    pub(super) fn load_quota(self: &Arc<Self>) -> Result<()> {
        let mut files = [None, None, None];
        for (kind, number) in self.superblock.quota_files.into_iter().enumerate() {
            files[kind] = number.map(|number| QuotaFile::load(self, kind, number)).transpose()?;
        }
        if files.iter().any(Option::is_some) {
            // `quota` is set only here. No other thread uses the volume, because the open has not returned yet.
            let _ = self.quota.set(Quota { files });
        }
        Ok(())
    }

    /// The quota files in which the usage of an inode is recorded. `None` for internal inodes, whose usage is not recorded.
    pub(super) fn quota_of(&self, number: InodeNo) -> Option<&Quota> {
        let quota = self.quota.get()?;
        (!self.superblock.is_reserved(number)).then_some(quota)
    }
}

impl Inode {
    /// Refuses additional usage that would exceed a limit of the inode's owners. Callers that allocate data blocks use
    /// [`quota_allows`](Self::quota_allows) instead.
    ///
    /// # Errors
    /// `Quota`; the errors of reading the quota files.
    pub(super) fn check_quota(&self, blocks: u64, inodes: u64) -> Result<()> {
        match self.fs.quota_of(self.number()) {
            Some(quota) => {
                let clusters = blocks.next_multiple_of(self.fs.superblock.cluster_blocks.into());
                let bytes = clusters << self.fs.superblock.block_size.shift();
                quota.check_left(&self.fs, owners_of(self).map(Some), bytes, inodes)
            }
            None => Ok(()),
        }
    }

    /// The number of blocks that a file may still use within the limits of its owners, from 1 to `want`.
    ///
    /// # Errors
    /// `Quota` if the limits do not permit even one cluster; the errors of reading the quota files.
    pub(super) fn quota_allows(&self, want: u32) -> Result<u32> {
        let Some(quota) = self.fs.quota_of(self.number()) else { return Ok(want) };
        let left = quota.left(&self.fs, owners_of(self).map(Some))?;
        let cluster = u64::from(self.fs.superblock.cluster_blocks);
        let blocks = (left.bytes >> self.fs.superblock.block_size.shift()) / cluster * cluster;
        match u32::try_from(blocks).unwrap_or(u32::MAX).min(want) {
            0 => Err(used_up()),
            allowed => Ok(allowed),
        }
    }
}

impl Operation<'_> {
    /// Refuses a new inode if it would exceed a limit of these owners. The call must be outside of a transaction: if an owner has no entry
    /// in the quota file, the entry is created in a separate transaction.
    ///
    /// # Errors
    /// `Quota`; `NoSpace`; errors of reading the quota files.
    pub(super) fn admit_inode(&self, owners: [u32; 3]) -> Result<()> {
        match self.quota.get() {
            Some(quota) => self.admit(quota, owners.map(Some), 0, 1),
            None => Ok(()),
        }
    }

    /// Refuses new owners of an inode if the inode's usage would exceed a limit of these owners. The call must be outside of a transaction,
    /// as for [`admit_inode`](Self::admit_inode).
    ///
    /// # Errors
    /// The errors of [`admit_inode`](Self::admit_inode).
    pub(super) fn admit_owners(&self, inode: &Inode, new: [Option<u32>; 3]) -> Result<()> {
        let Some(quota) = self.quota_of(inode.number()) else { return Ok(()) };
        let old = owners_of(inode);
        let new = std::array::from_fn(|kind| new[kind].filter(|new| *new != old[kind]));
        if new == [None; 3] {
            return Ok(());
        }
        let InodePlace { block, at, .. } = self.inode_place(inode.number())?;
        let content = self.blocks.read(block, Place::new("inode").inode(inode.number()))?;
        let usage = Usage::of(&self.superblock, &content[at..]);
        let inodes = 1 + inode.value_inodes()? as u64;
        self.admit(quota, new, usage.bytes as u64, inodes)
    }

    fn admit(
        &self,
        quota: &Quota,
        owners: [Option<u32>; 3],
        bytes: u64,
        inodes: u64,
    ) -> Result<()> {
        for (kind, file) in quota.files() {
            if let Some(id) = owners[kind] {
                file.insert(self, id)?;
            }
        }
        quota.check_left(self, owners, bytes, inodes)
    }
}

fn owners_of(inode: &Inode) -> [u32; 3] {
    let stat = inode.stat();
    [stat.uid, stat.gid, stat.project.unwrap_or(0)]
}

fn used_up() -> Error {
    Error::new(ErrorKind::Quota, "the quota of the user, the group or the project is used up")
}
