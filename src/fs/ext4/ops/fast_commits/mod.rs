//! Recovery of fast commits on the device.
//!
//! When a volume is opened read-only, its fast commits are stored in memory as edits of inodes, block maps and directories. This module
//! applies the same edits to the volume on the device in one transaction, with the functions that all operations use.
//!
//! A crash cannot lose the fast commits, and it cannot leave them partly applied:
//!
//! - First, the blocks in the log are written to their home locations. After a crash, a second recovery writes the same content again.
//! - Fast commits are valid if they contain the number of the next transaction. A single write of the journal's superblock empties the log
//!   and sets the next transaction number to the number in the fast commits. The fast commits therefore stay valid, and they apply to the
//!   blocks at their home locations.
//! - All changes are made in memory and then committed as the transaction with this number. A crash before the commit block is written
//!   changes nothing: a second recovery finds the same fast commits and the same home blocks. When the commit block is written, the log
//!   contains the changes. The next transaction number has then increased, so the fast commits are invalid. As in every transaction, the
//!   commit block is written after the other blocks are durable.
//!
//! The changes are written as one transaction. In Linux, the changes were part of one transaction, whose maximum size is a quarter of the
//! log. Here the transaction may use the complete log. The changes should therefore fit. If they do not fit into the log, nothing is
//! written.
//!
//! Fast commits record inodes and the blocks of files. These inodes and blocks are marked as used before other blocks are allocated. Fast
//! commits do not record the blocks of directories and the nodes of maps. These blocks are allocated here. The link counts are computed
//! from the names. If an inode was created and removed within the fast commits, its records are ignored. An inode that has lost its last
//! name becomes an orphan. The opening of the volume then removes the orphans.

mod content;
mod names;

use std::sync::Arc;

use self::content::MapEdit;
use self::names::{Plan, Touched};
use super::MAX_LINKS;
use crate::device::Device;
use crate::error::{Context, Error, Place, Result};
use crate::events::Events;
use crate::fs::ext4::jbd2::{self, Handle};
use crate::fs::ext4::names::Directory;
use crate::fs::ext4::operation::{InodeToChange, MayChange, Operation};
use crate::fs::ext4::{Ext4, RoCompat};
use crate::fs::{Clock, FileType};
use crate::units::InodeNo;

const PLACE: Place = Place::new("fast commit");
/// The journal credits for all changes: the number of blocks that the transaction may change. This number exceeds the size of any log. The
/// transaction is therefore never split into two.
const CREDITS: u32 = 1 << 30;

impl Ext4 {
    /// Applies the fast commits of a volume that was opened read-only. On return, the changes are durable. Returns the errors of orphans
    /// that could not be freed.
    ///
    /// # Errors
    /// `ReadOnly` for fast commits that only Linux can recover; `NoSpace`; `Corrupt` for fast commits that contradict the volume or that do
    /// not fit into the log; `Io`. After an error the fast commits are still valid.
    pub(in crate::fs::ext4) fn recover_fast_commits(
        self: &Arc<Self>,
        device: &Arc<dyn Device>,
        events: &Arc<Events>,
        clock: Clock,
    ) -> Result<Vec<Error>> {
        if self.superblock.ro_compat.intersects(RoCompat::BIGALLOC | RoCompat::QUOTA) {
            let what = "ironmap cannot recover fast commits on a volume with bigalloc or quota: run e2fsck, or mount the volume with the kernel";
            return Err(Error::read_only(what));
        }
        let mut log = jbd2::restore_log(self)?;
        let fs = Self::for_one_transaction(self, device, events, clock)?;
        let wrong =
            fs.operate(|op| op.apply_fast_commits(self)).context(|| "recovery of fast commits")?;
        fs.commit_to(&mut log)?;
        log.close(&fs.blocks)?;
        Ok(wrong)
    }
}

/// An inode of a volume that is still being opened. No other thread uses the volume.
struct Replayed(InodeNo);

impl MayChange for Replayed {
    fn number(&self) -> InodeNo {
        self.0
    }
}

impl Operation<'_> {
    /// Applies the recorded changes to this volume in memory. Returns the errors of the orphans that cannot be freed.
    fn apply_fast_commits(&self, found: &Arc<Ext4>) -> Result<Vec<Error>> {
        let plan = Plan::of(self, found)?;
        let maps: Result<Vec<_>> =
            plan.survivors().map(|(number, inode)| Ok((number, MapEdit::of(inode)?))).collect();
        let maps = maps?;
        let (_, wrong) = self.adopt_orphans()?;
        self.transact(CREDITS, |handle| {
            maps.iter().try_for_each(|(_, map)| map.claim(handle))?;
            for (number, inode) in plan.survivors() {
                self.apply_inode(handle, number, inode)?;
            }
            for (number, map) in &maps {
                map.apply(handle, &InodeToChange::read(self, &Replayed(*number))?)?;
            }
            self.apply_names(handle, &plan)?;
            for (number, inode) in &plan.inodes {
                self.apply_links(handle, *number, inode)?;
            }
            Ok(())
        })?;
        Ok(wrong)
    }

    /// Writes the recorded inode, except for its map and its link count.
    fn apply_inode(
        &self,
        handle: &mut Handle<'_>,
        number: InodeNo,
        inode: &Touched<'_>,
    ) -> Result<()> {
        let replayed = Replayed(number);
        if let Some(before) = &inode.before {
            if before.stat().links == 0 || inode.is_new() {
                self.remove_orphan(handle, &replayed)?;
            }
            if inode.is_new() {
                let directory = before.file_type() == FileType::Directory;
                self.release_content(handle, &InodeToChange::read(self, &replayed)?)?;
                self.end_inode(handle, &replayed, directory)?;
            }
        }
        let Some(after) = &inode.after else { return Ok(()) };
        if inode.is_new() {
            let directory = after.file_type() == FileType::Directory;
            handle.claim_inode(number, directory)?;
        }
        self.note_large_size(handle, after.size())?;
        self.write_recorded(handle, &replayed, inode)
    }

    /// Applies the changes of names. Removals come before additions, because a removed name may be added again for another inode.
    fn apply_names(&self, handle: &mut Handle<'_>, plan: &Plan<'_>) -> Result<()> {
        for change in plan.changes.iter().filter(|change| change.old.is_some()) {
            let replayed = Replayed(change.dir);
            let dir = InodeToChange::read(self, &replayed)?;
            Directory::of(&dir).remove_entry(handle, change.name)?;
        }
        let new_directories = plan.survivors().filter(|(_, inode)| inode.is_new());
        for (number, inode) in new_directories {
            if let Some(parent) = inode.parent {
                let replayed = Replayed(number);
                let dir = InodeToChange::read(self, &replayed)?;
                Directory::of(&dir).init(handle, parent)?;
            }
        }
        for change in &plan.changes {
            let Some((target, inode)) = plan.target(change) else { continue };
            let replayed = Replayed(change.dir);
            let dir = InodeToChange::read(self, &replayed)?;
            Directory::of(&dir).add_entry(handle, change.name, target, inode.file_type())?;
        }
        Ok(())
    }

    /// Sets the link count of an inode. An inode without names becomes an orphan.
    fn apply_links(
        &self,
        handle: &mut Handle<'_>,
        number: InodeNo,
        inode: &Touched<'_>,
    ) -> Result<()> {
        let before = inode.before.as_ref().map_or(0, |before| before.stat().links);
        let links = match &inode.after {
            Some(after) if after.file_type() == FileType::Directory => {
                self.directory_links(number, inode)?
            }
            Some(_) => inode.names as u16,
            None if before == 0 => return Ok(()),
            None => {
                let gone = self.inode_or_orphan(number)?;
                if gone.file_type() == FileType::Directory && !gone.is_empty_directory()? {
                    return Err(PLACE
                        .inode(number)
                        .corrupt("a directory removed by the fast commit has entries"));
                }
                0
            }
        };
        let replayed = Replayed(number);
        handle.update_inode(&replayed, |inode| inode.set_links(links))?;
        if links == 0 { self.add_orphan(handle, &replayed) } else { Ok(()) }
    }

    /// The link count of a directory: 2 plus the number of subdirectories, or 1 if this sum is too large for the field.
    fn directory_links(&self, number: InodeNo, inode: &Touched<'_>) -> Result<u16> {
        let before = inode.before.as_ref().filter(|_| !inode.is_new());
        let before = before.map_or(2, |before| before.stat().links);
        let uncounted = self.superblock.ro_compat.contains(RoCompat::DIR_NLINK);
        if uncounted && before == 1 {
            return Ok(1);
        }
        match u32::try_from(i64::from(before) + inode.subdirectories) {
            Ok(links @ 2..MAX_LINKS) => Ok(links as u16),
            Ok(MAX_LINKS..) if uncounted => Ok(1),
            _ => Err(PLACE.inode(number).field("i_links_count").corrupt("subdirectories")),
        }
    }
}
