//! Path walks. A walk looks up the components of a path one after another, starting at the root. If a component is a symbolic link, the
//! target of the link is inserted into the remaining path.

use std::borrow::Cow;
use std::sync::Arc;

use super::inode::Inode;
use super::operation::Shared;
use super::{Ext4, ROOT};
use crate::error::{Context, ErrorKind, Result};
use crate::fs::path::{MAX_LINKS, next_component, not_a_directory, too_many_links};
use crate::fs::{FileType, Follow};
use crate::units::InodeNo;

impl Ext4 {
    /// Returns the inode that a path refers to. The path and the targets of absolute links start at the root of the volume. The parent `..`
    /// of the root is the root. An empty path refers to the root. A path that ends with a slash must refer to a directory. Permissions are
    /// not checked.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NameTooLong`, `Loop` and the errors of [`Inode::lookup`]. Each error contains the path.
    pub fn resolve(self: &Arc<Self>, path: &[u8], follow: Follow) -> Result<Inode> {
        self.watch(|| self.walk(path, follow)).at(|| String::from_utf8_lossy(path).into_owned())
    }

    /// Looks up a name in a directory. If another thread is changing the directory, the function waits until the change is finished.
    ///
    /// # Errors
    /// The errors of [`Inode::lookup`].
    pub fn lookup(self: &Arc<Self>, dir: InodeNo, name: &[u8]) -> Result<Inode> {
        self.watch(|| self.enter(dir)?.inode.lookup(name))
    }

    fn walk(self: &Arc<Self>, path: &[u8], follow: Follow) -> Result<Inode> {
        let mut current = self.enter(ROOT)?;
        let mut links = 0;
        // `text` is the path. The walk inserts the targets of at most MAX_LINKS links into the text. Each target is at most as long as a
        // block. `at` is the position of the next component. Visited components stay in the text. Their removal would take quadratic time
        // on a hostile volume with long targets.
        let (mut text, mut at) = (Cow::Borrowed(path), 0);
        while let Some((name, behind)) = next_component(&text[at..]) {
            let dir = &current.inode;
            if name == b"." || (name == b".." && dir.number == ROOT) {
                at = text.len() - behind.len();
                continue;
            }
            let last = behind.is_empty();
            let number = dir.entry_number(name)?;
            // The inode is locked while the parent directory is still locked. The entry therefore cannot change before the inode is locked,
            // and the inode decoded here is current.
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
            let next = text.len() - behind.len();
            current = match lock {
                // Another thread is changing the directory. The walk releases the lock of the parent before it waits for this directory.
                // The reason is that a directory of a damaged tree may be its own descendant: two threads that kept the parent's lock could
                // wait for each other. If the directory is removed during the wait, the parent is searched again.
                Some(Err(_)) => {
                    let parent = current.leave();
                    match self.enter_again(&found) {
                        Err(error) if error.kind() == ErrorKind::NotFound => {
                            current = self.enter_again(&parent)?;
                            continue;
                        }
                        entered => entered?,
                    }
                }
                lock => Entered { inode: found, _lock: lock.and_then(Result::ok).flatten() },
            };
            at = next;
        }
        Ok(current.inode)
    }

    /// Locks a directory for one step of the walk, after all running changes of the directory are finished.
    fn enter(self: &Arc<Self>, number: InodeNo) -> Result<Entered<'_>> {
        let _lock = self.share(number);
        Ok(Entered { inode: self.inode(number)?, _lock })
    }

    /// Locks a directory that was read before. Returns an error if the directory was removed.
    fn enter_again(self: &Arc<Self>, earlier: &Inode) -> Result<Entered<'_>> {
        let entered = self.enter(earlier.number)?;
        entered.inode.check_is(earlier.stat())?;
        Ok(entered)
    }
}

/// A directory on the path. The lock prevents changes of the directory during one step of the walk.
struct Entered<'a> {
    inode: Inode,
    _lock: Option<Shared<'a>>,
}

impl Entered<'_> {
    /// Unlocks the directory.
    fn leave(self) -> Inode {
        self.inode
    }
}
