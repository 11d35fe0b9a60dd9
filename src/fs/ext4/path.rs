//! Path walks: components are looked up one by one from the root, and the targets of symbolic links are inserted.

use std::borrow::Cow;
use std::sync::Arc;

use super::inode::Inode;
use super::operation::Shared;
use super::{Ext4, ROOT};
use crate::error::{Context, Result};
use crate::fs::path::{MAX_LINKS, next_component, not_a_directory, too_many_links};
use crate::fs::{FileType, Follow};
use crate::units::InodeNo;

impl Ext4 {
    /// The inode that a path refers to. The path and absolute links start at the root of the volume. `..` of the root is the root, and
    /// an empty path refers to the root. A path with a slash at its end must refer to a directory. Permissions are not checked.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NameTooLong`, `Loop` and the errors of [`Inode::lookup`], each with the path.
    pub fn resolve(self: &Arc<Self>, path: &[u8], follow: Follow) -> Result<Inode> {
        self.watch(|| self.walk(path, follow)).at(|| String::from_utf8_lossy(path).into_owned())
    }

    /// Looks up a name in a directory. If another thread is changing the directory, waits until the change is finished.
    ///
    /// # Errors
    /// The errors of [`Inode::lookup`].
    pub fn lookup(self: &Arc<Self>, dir: InodeNo, name: &[u8]) -> Result<Inode> {
        self.watch(|| self.enter(dir)?.inode.lookup(name))
    }

    fn walk(self: &Arc<Self>, path: &[u8], follow: Follow) -> Result<Inode> {
        let mut current = self.enter(ROOT)?;
        let mut links = 0;
        // The remaining path, into which the targets of at most MAX_LINKS links are inserted; each target is at most a block long. A position
        // advances through it, because removing components from the front would take quadratic time in a length that the volume controls.
        let (mut text, mut at) = (Cow::Borrowed(path), 0);
        while let Some((name, behind)) = next_component(&text[at..]) {
            let dir = &current.inode;
            if name == b"." || (name == b".." && dir.number == ROOT) {
                at = text.len() - behind.len();
                continue;
            }
            let last = behind.is_empty();
            let number = dir.entry_number(name)?;
            // The lock is taken before the entry can change, so the inode decoded here need not be decoded again.
            let lock = (!last).then(|| self.try_share(number));
            let found = dir.entry_inode(number, name)?;
            if found.file_type == FileType::Symlink && !(last && follow == Follow::NotLast) {
                links += 1;
                if links > MAX_LINKS {
                    return Err(too_many_links());
                }
                let mut target = found.read_link()?;
                if target.first() == Some(&b'/') {
                    drop((current, lock));
                    current = self.enter(ROOT)?;
                }
                target.extend_from_slice(behind);
                (text, at) = (Cow::Owned(target), 0);
                continue;
            }
            if last {
                return Ok(found);
            }
            if found.file_type != FileType::Directory {
                return Err(not_a_directory(name));
            }
            at = text.len() - behind.len();
            current = match lock {
                // Another thread is changing the directory. The walk releases the lock of the
                // parent before it waits, because a damaged directory may be below itself.
                Some(Err(_)) => {
                    drop(current);
                    self.enter(number)?
                }
                lock => Entered { inode: found, _lock: lock.and_then(Result::ok).flatten() },
            };
        }
        Ok(current.inode)
    }

    /// Waits until changes of the directory are finished.
    fn enter(self: &Arc<Self>, number: InodeNo) -> Result<Entered<'_>> {
        let _lock = self.share(number);
        Ok(Entered { inode: self.inode(number)?, _lock })
    }
}

/// A directory on the path. It does not change during one step of the walk.
struct Entered<'a> {
    inode: Inode,
    _lock: Option<Shared<'a>>,
}
