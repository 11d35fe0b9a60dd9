//! Sets the owner, mode, extended attributes and times of a copy.

use ironmap::fs::{FileType, Inode, Stat, Timestamp, Xattr};
use rustix_libc::fs::{AtFlags, Timespec, Timestamps, XattrFlags};
use rustix_libc::io::Errno;
use rustix_libc::process::Uid;
use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{self, PermissionsExt};
use std::path::Path;

use super::entry::{DEFAULT_LIST, Directory, Entry};

const ACCESS_LISTS: [&str; 2] = ["system.posix_acl_access", DEFAULT_LIST];

/// Sets the attributes of copies, and counts the extended attributes that the host refuses.
pub(super) struct Attributes {
    user: Uid,
    /// For each extended attribute that the host refused: the number of files with this attribute, and a text with the first file and the
    /// reason.
    refused: BTreeMap<Vec<u8>, (u64, String)>,
}

impl Attributes {
    pub(super) fn new() -> Self {
        Self { user: rustix_libc::process::geteuid(), refused: BTreeMap::new() }
    }

    pub(super) fn is_root(&self) -> bool {
        self.user.is_root()
    }

    /// Sets the attributes of an open file.
    pub(super) fn set_file(
        &mut self,
        place: &Entry,
        file: &File,
        stat: &Stat,
        xattrs: &[Xattr],
    ) -> Result<(), Errno> {
        // A new file has an access control list only if its directory passes a list on to new files.
        if place.dir.has_default_list {
            drop_access_lists(file, xattrs)?;
        }
        self.set_open(file, stat, xattrs, &place.path())
    }

    /// Sets the attributes of an open directory. The caller must have copied everything in the directory.
    pub(super) fn set_directory(
        &mut self,
        dir: &Directory,
        inode: &Inode,
        xattrs: &[Xattr],
    ) -> Result<(), Errno> {
        drop_access_lists(&*dir.fd, xattrs)?;
        self.set_open(&dir.fd, inode.stat(), xattrs, dir.path())
    }

    /// Sets the owner first, because a change of owner clears set-id bits and capabilities. Sets the mode after the extended attributes,
    /// because a file without `w` in its mode refuses extended attributes.
    fn set_open(
        &mut self,
        file: &File,
        stat: &Stat,
        xattrs: &[Xattr],
        shown: &Path,
    ) -> Result<(), Errno> {
        if let Some((user, group)) = self.owner(stat) {
            fs::fchown(file, Some(user), Some(group)).map_err(|error| errno(&error))?;
        }
        for Xattr { name, value } in xattrs {
            let result = rustix_libc::fs::fsetxattr(file, &**name, value, XattrFlags::empty());
            self.note(name, result, shown);
        }
        // The standard library sets the mode through libc, so fakeroot sees the change. rustix would call the kernel directly.
        file.set_permissions(self.mode(stat)).map_err(|error| errno(&error))?;
        rustix_libc::fs::futimens(file, &times(stat))
    }

    /// Sets the attributes of a symbolic link, a FIFO, a socket or a device node, without opening it.
    pub(super) fn set_node(
        &mut self,
        place: &Entry,
        inode: &Inode,
        xattrs: &[Xattr],
    ) -> Result<(), Errno> {
        let (dir, stat) = (&*place.dir.fd, inode.stat());
        let path = place.proc_path();
        if let Some((user, group)) = self.owner(stat) {
            fs::lchown(&path, Some(user), Some(group)).map_err(|error| errno(&error))?;
        }
        if place.dir.has_default_list && inode.file_type() != FileType::Symlink {
            let list = ACCESS_LISTS[0];
            if !xattrs.iter().any(|xattr| xattr.name == list.as_bytes()) {
                removed(rustix_libc::fs::lremovexattr(&path, list))?;
            }
        }
        for Xattr { name, value } in xattrs {
            let result = rustix_libc::fs::lsetxattr(&path, &**name, value, XattrFlags::empty());
            self.note(name, result, &place.path());
        }
        if inode.file_type() != FileType::Symlink {
            std::fs::set_permissions(&path, self.mode(stat)).map_err(|error| errno(&error))?;
        }
        rustix_libc::fs::utimensat(dir, &place.name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Returns the owner to set, or `None` if the user is not root, because only root can change owners.
    fn owner(&self, stat: &Stat) -> Option<(u32, u32)> {
        self.is_root().then_some((stat.uid, stat.gid))
    }

    /// Returns the mode to set. Clears the set-id bits if the copy has another owner, because they would grant the rights of that owner.
    fn mode(&self, stat: &Stat) -> Permissions {
        let keeps_owner = self.is_root() || self.user.as_raw() == stat.uid;
        let mask = if keeps_owner { 0o7777 } else { 0o1777 };
        Permissions::from_mode(stat.mode & mask)
    }

    fn note(&mut self, name: &[u8], result: Result<(), Errno>, shown: &Path) {
        if let Err(errno) = result {
            let first =
                || (0, format!("{}: {}", shown.display(), ironmap::Errno(errno.raw_os_error())));
            self.refused.entry(name.to_vec()).or_insert_with(first).0 += 1;
        }
    }

    /// Returns the warnings: one for each extended attribute that the host refused.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        self.refused.iter().map(|(name, (count, first))| {
            let name = String::from_utf8_lossy(name);
            format!("the attribute {name} could not be set on {count} files, the first is {first}")
        })
    }
}

/// Removes access control lists that the source does not have but that the copy has inherited from its directory. These lists would grant
/// additional rights.
fn drop_access_lists(fd: impl AsFd, xattrs: &[Xattr]) -> Result<(), Errno> {
    for list in ACCESS_LISTS {
        if xattrs.iter().any(|xattr| xattr.name == list.as_bytes()) {
            continue;
        }
        removed(rustix_libc::fs::fremovexattr(&fd, list))?;
    }
    Ok(())
}

/// Returns the result of removing a list. It is not an error if the list does not exist, or if the file or file system does not support
/// lists.
fn removed(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::ACCESS) => Ok(()),
        result => result,
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn times(stat: &Stat) -> Timestamps {
    let time = |at: Timestamp| Timespec { tv_sec: at.seconds, tv_nsec: at.nanoseconds.into() };
    Timestamps { last_access: time(stat.accessed), last_modification: time(stat.modified) }
}
