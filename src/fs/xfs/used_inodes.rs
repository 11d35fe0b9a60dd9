//! Lists the inodes in use, with or without a name.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Xfs;
use super::disk::inode::MAGIC;
use crate::error::Result;
use crate::fs::Inode;
use crate::units::{FsBlock, InodeNo};

impl Xfs {
    /// Calls `found` with each inode that is in use: see [`FileSystem::used_inodes`](crate::fs::FileSystem::used_inodes).
    pub(super) fn used_inodes(
        self: &Arc<Self>,
        found: &mut dyn FnMut(InodeNo, Result<Inode>) -> Result<()>,
    ) -> Result<()> {
        for group in 0..self.superblock.geometry.groups {
            let (chunks, fault) = self.chunks(group);
            let used: BTreeSet<_> =
                chunks.iter().flat_map(|chunk| self.used_in(group, chunk)).collect();
            if let Some(fault) = &fault
                && self.superblock.is_v5()
            {
                self.notices.lock().push(format!(
                    "the inode tree of group {group} is damaged, so all blocks of the group are searched for inodes: {fault}"
                ));
                self.search(group, &used, found)?;
                continue;
            }
            used.into_iter().try_for_each(|number| self.used_inode(number, false, found))?;
            if let Some(fault) = fault {
                // On a version 4 volume, no search is made: an inode does not contain its own number, so content of a file can look like an
                // inode.
                let first = self.superblock.geometry.group_block(group);
                let first = self.superblock.geometry.inode_number(first, 0);
                found(InodeNo(first), Err(fault))?;
            }
        }
        Ok(())
    }

    /// Passes an inode to `found` if the inode is in use. If `is_guessed` is set, the position may contain no inode, so errors are ignored.
    fn used_inode(
        self: &Arc<Self>,
        number: InodeNo,
        is_guessed: bool,
        found: &mut dyn FnMut(InodeNo, Result<Inode>) -> Result<()>,
    ) -> Result<()> {
        match self.inode_or_orphan(number) {
            Ok(inode) if inode.is_metadata => Ok(()),
            Ok(inode) => found(number, Ok(Inode::new(inode))),
            Err(_) if is_guessed => Ok(()),
            Err(error) => found(number, Err(error)),
        }
    }

    /// Searches all blocks of a group for inodes. An inode is accepted only if its checksum is valid, its number matches its position, and
    /// it contains the UUID of the volume. `known` contains the inodes that the undamaged part of the inode tree marks as in use.
    fn search(
        self: &Arc<Self>,
        group: u32,
        known: &BTreeSet<InodeNo>,
        found: &mut dyn FnMut(InodeNo, Result<Inode>) -> Result<()>,
    ) -> Result<()> {
        let geometry = self.superblock.geometry;
        let start = geometry.group_block(group).0;
        let (mut block, end) = (start, start + geometry.group_len(group));
        let inodes_per_block = 1 << geometry.inodes_per_block_log;
        while block < end {
            let run = geometry.inode_blocks(FsBlock(block));
            let numbers = geometry.inode_number(FsBlock(block), 0)
                ..geometry.inode_number(FsBlock(run.end - 1), 0) + inodes_per_block;
            let mut inodes: BTreeSet<_> =
                known.range(InodeNo(numbers.start)..InodeNo(numbers.end)).copied().collect();
            for block in block..run.end {
                let Ok((content, at)) = self.metadata.inodes(FsBlock(block)) else { continue };
                let bytes = content[at..at + geometry.block.bytes()].chunks(geometry.inode);
                let is_inode = |bytes: &[u8]| bytes.starts_with(&MAGIC.to_be_bytes());
                let indices = bytes.enumerate().filter(|(_, bytes)| is_inode(bytes));
                let number = |index| InodeNo(geometry.inode_number(FsBlock(block), index));
                inodes.extend(indices.map(|(index, _)| number(index)));
            }
            for number in inodes {
                self.used_inode(number, !known.contains(&number), found)?;
            }
            block = run.end;
        }
        Ok(())
    }
}
