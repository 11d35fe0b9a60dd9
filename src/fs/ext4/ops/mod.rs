//! The operations of a volume that is open for writing. Each function is one operation. An operation uses one transaction if its changes
//! fit into one.
//!
//! Inodes are passed by number and read under their locks. An operation checks all conditions before its first change. If a later step
//! fails for lack of space, the earlier steps are undone. The types enforce the order of the steps: all steps are methods of [`Operation`],
//! and each step needs the result of the previous step.

mod attributes;
mod content;
mod create;
mod direct;
mod evict;
mod fallocate;
mod fast_commits;
mod orphans;
mod rename;
mod size;
mod space;
mod unlink;

pub(super) use create::check_file;
pub use evict::Ext4Held;
pub(super) use unlink::check_removed;

use super::attr::Times;
use super::jbd2::Handle;
use super::names::ADD_CREDITS;
use super::operation::{InodeToChange, Locked, MayChange, Operation};
use super::{Ext4, Inode, RoCompat};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{FileType, InodeFlags};

/// The maximum number of names of a file. On a volume without dir_nlink, this is also the maximum number of subdirectories of a directory.
const MAX_LINKS: u32 = 65_000;

fn refuse(kind: ErrorKind, what: &'static str) -> Error {
    Error::new(kind, what)
}

impl Operation<'_> {
    /// The maximum number of blocks that change when a name is added to a directory, including the directory's inode.
    fn name_credits(&self, dir: &InodeToChange<'_>) -> u32 {
        ADD_CREDITS + dir.credits_for_map() + 1
    }

    /// Reads an inode for a change. The inode must have a name or be open, and must not be internal.
    fn inode_to_change<'f>(&self, file: &'f Locked<'_>) -> Result<InodeToChange<'f>> {
        let inode = file.inode()?;
        self.check_kept(&inode)?;
        check_not_internal(&inode)?;
        Ok(inode)
    }

    /// Reads a directory for a change of its entries.
    fn directory<'d>(&self, dir: &'d Locked<'_>) -> Result<InodeToChange<'d>> {
        let dir = dir.named()?;
        if dir.file_type() != FileType::Directory {
            return Err(refuse(ErrorKind::NotADirectory, "not a directory"));
        }
        if dir.flags().contains(InodeFlags::IMMUTABLE) {
            return Err(refuse(ErrorKind::NotPermitted, "the directory is immutable"));
        }
        if dir.flags().contains(InodeFlags::ENCRYPT) {
            return Err(refuse(ErrorKind::Encrypted, "the directory's names are encrypted"));
        }
        Ok(dir)
    }

    /// Reads a directory for the removal of entries. An append-only directory is refused.
    fn directory_to_shrink<'d>(&self, dir: &'d Locked<'_>) -> Result<InodeToChange<'d>> {
        let dir = self.directory(dir)?;
        if dir.flags().contains(InodeFlags::APPEND) {
            return Err(refuse(ErrorKind::NotPermitted, "the directory is append-only"));
        }
        Ok(dir)
    }

    /// The inode of a name, if the name exists.
    fn entry(&self, dir: &Inode, name: &[u8]) -> Result<Option<Inode>> {
        match dir.lookup(name) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets the times of a directory whose entries have changed, and updates its number of subdirectories.
    fn touch_directory(
        &self,
        handle: &mut Handle<'_>,
        dir: &InodeToChange<'_>,
        subdirectories: i16,
    ) -> Result<()> {
        let now = handle.now();
        let uncounted = self.may_lose_count(dir);
        handle.update_inode(dir, |inode| {
            inode.set_times(&Times { modified: Some(now), ..Times::changed(now) })?;
            let links = inode.links()?;
            // A link count of 1 means that the number of subdirectories has exceeded the maximum of the field. The link count then stays 1.
            if subdirectories != 0 && !(uncounted && links == 1) {
                let links = links.saturating_add_signed(subdirectories);
                let uncountable = uncounted && u32::from(links) > MAX_LINKS;
                inode.set_links(if uncountable { 1 } else { links })?;
            }
            Ok(())
        })
    }

    /// Sets the time of an inode's last change.
    fn touch_changed(&self, handle: &mut Handle<'_>, inode: &impl MayChange) -> Result<()> {
        let now = handle.now();
        handle.update_inode(inode, |inode| inode.set_times(&Times::changed(now)))
    }

    /// Whether a directory may have more subdirectories than the link count can record. Such a directory needs the feature dir_nlink and,
    /// as in Linux, an htree.
    fn may_lose_count(&self, dir: &Inode) -> bool {
        self.superblock.ro_compat.contains(RoCompat::DIR_NLINK)
            && dir.flags().contains(InodeFlags::INDEX)
    }

    /// Refuses a further subdirectory if the directory's link count cannot be incremented.
    fn check_room_for_link(&self, dir: &Inode) -> Result<()> {
        if dir.stat().links >= MAX_LINKS && !self.may_lose_count(dir) {
            return Err(refuse(
                ErrorKind::TooManyLinks,
                "the directory has too many subdirectories",
            ));
        }
        Ok(())
    }
}

impl Ext4 {
    /// Refuses an inode that has no name and is not open. The caller must have read the inode while it was locked.
    fn check_kept(&self, inode: &Inode) -> Result<()> {
        if inode.stat().links == 0 && !self.writing()?.locks.is_open(inode.number()) {
            return Err(refuse(ErrorKind::NotFound, "the file has been removed"));
        }
        Ok(())
    }
}

/// Refuses an inode that belongs to the file system itself. A caller may pass the number of a removed file. This number may have been
/// reused for the inode of an attribute's value.
fn check_not_internal(inode: &Inode) -> Result<()> {
    if inode.is_internal() {
        return Err(refuse(ErrorKind::NotPermitted, "the inode belongs to the file system itself"));
    }
    Ok(())
}

/// Refuses a file of another project if entries of the directory inherit the directory's project. If such a file were accepted, it would
/// have to be charged to the directory's project.
fn check_project(dir: &Inode, file: &Inode) -> Result<()> {
    let inherits = dir.flags().contains(InodeFlags::PROJECT_INHERIT);
    if inherits && dir.stat().project != file.stat().project {
        return Err(refuse(ErrorKind::CrossDevice, "the directory belongs to another project"));
    }
    Ok(())
}

/// Checks a new name.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > 255 {
        return Err(refuse(ErrorKind::NameTooLong, "a name has at most 255 bytes"));
    }
    if name.is_empty() {
        return Err(refuse(ErrorKind::NotFound, "the name is empty"));
    }
    if name == b"." || name == b".." {
        return Err(refuse(ErrorKind::Exists, "the directory exists already"));
    }
    if name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err(Error::invalid("a name cannot contain `/` or NUL"));
    }
    Ok(())
}
