//! Lists the inodes in use, with or without a name.

use std::collections::HashSet;
use std::sync::Arc;

use super::features::RoCompat;
use super::group::PLACE;
use super::{Ext4, ROOT};
use crate::error::{ErrorKind, Result};
use crate::fs::{Inode, InodeFlags};
use crate::units::InodeNo;

impl Ext4 {
    /// Calls `found` with each inode that is in use: see [`FileSystem::used_inodes`](crate::fs::FileSystem::used_inodes).
    pub(super) fn used_inodes(
        self: &Arc<Self>,
        found: &mut dyn FnMut(InodeNo, Result<Inode>) -> Result<()>,
    ) -> Result<()> {
        let orphans = self.known_orphans();
        for group in 0..self.superblock.groups {
            self.used_inodes_of(group, &orphans, found)?;
        }
        Ok(())
    }

    fn used_inodes_of(
        self: &Arc<Self>,
        number: u32,
        orphans: &HashSet<InodeNo>,
        found: &mut dyn FnMut(InodeNo, Result<Inode>) -> Result<()>,
    ) -> Result<()> {
        let sb = &self.superblock;
        let first = InodeNo(u64::from(number * sb.inodes_per_group) + 1);
        let group = match self.group(number) {
            Ok(group) => group,
            Err(error) => return found(first, Err(error)),
        };
        // Without its descriptor, the unused part of the table is unknown. It may contain inodes of an earlier file system on the device. Only a
        // checksum distinguishes them.
        let is_doubtful = self.has_only_positions(number);
        if is_doubtful && !sb.ro_compat.contains(RoCompat::METADATA_CSUM) {
            let why = format!(
                "the descriptor of group {number} is damaged: files without a name are not searched in this group"
            );
            return found(first, Err(PLACE.corrupt(why)));
        }
        let end = match self.fast_commits.is_empty() {
            true if group.inodes_uninit => 0,
            true => sb.inodes_per_group.saturating_sub(group.unused_inodes),
            // A fast commit can create an inode in the part of the table that the descriptor counts as unused.
            false => sb.inodes_per_group,
        };
        let inodes = (first.0..first.0 + u64::from(end)).map(InodeNo);
        for number in inodes.filter(|number| !self.is_internal(*number)) {
            match self.inode_or_orphan(number) {
                Ok(inode) if inode.flags.contains(InodeFlags::EA_INODE) => {}
                Ok(_) if is_doubtful && self.left.inode_fault(number).is_some() => {}
                Ok(inode) if inode.stat().links == 0 && !orphans.contains(&number) => {}
                Ok(inode) => found(number, Ok(Inode::new(inode)))?,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => found(number, Err(error))?,
            }
        }
        Ok(())
    }

    /// The inodes in the orphan list and in the orphan file. If the orphan list has a fault, only the orphans before the fault are
    /// included.
    fn known_orphans(self: &Arc<Self>) -> HashSet<InodeNo> {
        let listed = self.follow_orphans(|number| self.inode_or_orphan(number));
        let mut orphans: HashSet<_> =
            listed.map(|(listed, _)| listed).unwrap_or_default().into_iter().collect();
        let filed = self.filed_orphans().unwrap_or_default();
        orphans.extend(filed.into_iter().map(|orphan| orphan.inode));
        orphans
    }

    /// Whether an inode contains metadata of the file system, and not a file of a user.
    fn is_internal(&self, inode: InodeNo) -> bool {
        let sb = &self.superblock;
        inode.0 < u64::from(sb.first_inode) && inode != ROOT
            || [sb.journal_inode, sb.orphan_file].contains(&Some(inode))
            || sb.quota_files.contains(&Some(inode))
    }
}
