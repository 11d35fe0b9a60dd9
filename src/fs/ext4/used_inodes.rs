//! Lists the inodes in use, with or without a name.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Ext4, ROOT};
use crate::error::{ErrorKind, Place, Result};
use crate::fs::{Inode, InodeFlags};
use crate::units::{FsBlock, InodeNo};

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
        // The group descriptors beside a backup superblock are outdated, so their counts of unused inodes are ignored.
        let end = match (sb.copy, self.fast_commits.is_empty()) {
            (0, true) if group.inodes_uninit => 0,
            (0, true) => sb.inodes_per_group.saturating_sub(group.unused_inodes),
            // A fast commit can create an inode in the part of the table that the descriptor counts as unused.
            _ => sb.inodes_per_group,
        };
        let per_block = (sb.block_size.bytes() / usize::from(sb.inode_size)) as u32;
        for index in (0..end).step_by(per_block as usize) {
            let block = FsBlock(group.inode_table.0 + u64::from(index / per_block));
            let inodes =
                first.0 + u64::from(index)..first.0 + u64::from(end.min(index + per_block));
            // Without this read, an unreadable block would cause an error for each of its inodes.
            if let Err(error) = self.blocks.read(block, Place::new("inode table").block(block)) {
                found(InodeNo(inodes.start), Err(error))?;
                continue;
            }
            for inode in inodes.map(InodeNo).filter(|inode| !self.is_internal(*inode)) {
                match self.inode_or_orphan(inode) {
                    Ok(inode) if inode.flags.contains(InodeFlags::EA_INODE) => {}
                    Ok(known) if known.stat().links == 0 && !orphans.contains(&inode) => {}
                    Ok(known) => found(inode, Ok(Inode::new(known)))?,
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => found(inode, Err(error))?,
                }
            }
        }
        Ok(())
    }

    /// The orphans before the first fault of the orphan list, and those of the orphan file.
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
