//! Removal of names.

use super::evict::{Fate, is_of_volume};
use super::refuse;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::ext4::Inode;
use crate::fs::ext4::attr::Times;
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::names::{CHANGE_CREDITS, Directory};
use crate::fs::ext4::operation::{InodeToChange, Operation};
use crate::fs::{FileType, InodeFlags};
use crate::units::InodeNo;

impl Operation<'_> {
    /// Removes a name of a file. If the file has no other name, the file is freed as soon as no program has it open.
    pub(in crate::fs::ext4) fn unlink(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        self.remove_name(dir, name, |inode| match inode.file_type() {
            FileType::Directory => Err(refuse(ErrorKind::IsADirectory, "is a directory")),
            _ => Ok(()),
        })
    }

    /// Removes an empty directory.
    pub(in crate::fs::ext4) fn rmdir(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        self.remove_name(dir, name, |inode| {
            if inode.file_type() != FileType::Directory {
                return Err(refuse(ErrorKind::NotADirectory, "not a directory"));
            }
            self.check_empty(inode)
        })
    }

    pub(super) fn check_empty(&self, dir: &Inode) -> Result<()> {
        if dir.is_empty_directory()? {
            return Ok(());
        }
        Err(refuse(ErrorKind::NotEmpty, "the directory has entries"))
    }

    fn remove_name(
        &self,
        dir: InodeNo,
        name: &[u8],
        check: impl FnOnce(&Inode) -> Result<()>,
    ) -> Result<()> {
        let locked = self.lock(dir);
        let dir = self.directory_to_shrink(&locked)?;
        let number = dir.lookup(name)?.number();
        if number == dir.number() {
            return Err(refuse(ErrorKind::IsADirectory, "is a directory"));
        }
        let locked = self.lock(number);
        let inode = locked.named()?;
        check(&inode)?;
        check_removable(&inode)?;
        let directory = inode.file_type() == FileType::Directory;
        let fate = self.fate(&inode)?;
        let credits = CHANGE_CREDITS + 1 + self.eviction_credits(&inode, fate);
        let failed = self.transact(credits, |handle| {
            Directory::of(&dir).remove_entry(handle, name)?;
            self.touch_directory(handle, &dir, -i16::from(directory))?;
            self.drop_name(handle, &inode, fate)
        })?;
        self.finish(&locked, fate, failed)
    }

    /// Decrements the link count of an inode, and frees the inode or makes it an orphan, as `fate` requires. The link count of a directory
    /// becomes 0, because its entry `.` is also removed. If the inode cannot be freed because its metadata are damaged, it becomes an
    /// orphan. In this case the caller passes the returned error to [`finish`](Self::finish).
    pub(super) fn drop_name(
        &self,
        handle: &mut Handle<'_>,
        inode: &InodeToChange<'_>,
        fate: Fate,
    ) -> Result<Option<Error>> {
        let now = handle.now();
        let directory = inode.file_type() == FileType::Directory;
        handle.update_inode(inode, |raw| {
            raw.set_times(&Times::changed(now))?;
            let links = if directory { 0 } else { raw.links()?.saturating_sub(1) };
            raw.set_links(links)
        })?;
        match fate {
            Fate::Stays => Ok(None),
            Fate::EndsNow => {
                let released = self.release_content(handle, inode);
                let ended = released.and_then(|()| self.end_inode(handle, inode, directory));
                match ended {
                    Err(why) if is_of_volume(&why) => {
                        self.add_orphan(handle, inode)?;
                        Ok(Some(why))
                    }
                    ended => ended.map(|()| None),
                }
            }
            Fate::EndsLater | Fate::EndsWhenClosed => {
                self.add_orphan(handle, inode)?;
                Ok(None)
            }
        }
    }
}

pub(super) fn check_removable(inode: &Inode) -> Result<()> {
    if inode.flags().intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
        return Err(refuse(ErrorKind::NotPermitted, "the file is immutable or append-only"));
    }
    Ok(())
}

/// Refuses the names `.` and `..`, which every directory has.
pub(in crate::fs::ext4) fn check_removed(name: &[u8]) -> Result<()> {
    match name {
        b"." => Err(Error::invalid("`.` cannot be removed")),
        b".." => Err(refuse(ErrorKind::NotEmpty, "`..` has entries")),
        _ => Ok(()),
    }
}
