//! The existing image that a new image replaces.

use std::ffi::{OsStr, OsString};
use std::fs::{Metadata, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;
use std::sync::Arc;

use ironmap::device::Device;
use rustix_libc::fs::{XattrFlags, lgetxattr, llistxattr, lremovexattr, lsetxattr};
use rustix_libc::io::Errno;

use crate::context::Context;
use crate::failure::Failure;

/// The size limit of an attribute's value, and of the list of names, in Linux.
const MAX_XATTR: usize = 64 << 10;
/// The permission bits that give a program the rights of the file's owner or group.
const SET_ID: u32 = 0o6000;

/// An existing image. While this value exists, the image is locked for writing, so no other program can change it.
pub struct Replaced {
    found: Metadata,
    /// The open device, which holds the lock of the image.
    _device: Arc<dyn Device>,
}

impl Replaced {
    /// Creates the value. `device` has the image open. `found` contains the attributes of the image.
    pub fn new(found: Metadata, device: Arc<dyn Device>) -> Self {
        Self { found, _device: device }
    }

    /// Whether a name refers to this image.
    pub fn has_name(&self, path: &Path) -> bool {
        path.symlink_metadata().is_ok_and(|named| is_same(&named, &self.found))
    }

    /// Gives the file at `new` the owner, the permissions and the extended attributes (including ACLs) of this image, whose path is `old`.
    /// Prints a warning if the owner or an attribute cannot be set.
    ///
    /// # Errors
    /// The permissions cannot be set, or the attributes of the image cannot be read.
    pub fn carry(&self, old: &Path, new: &Path, context: &Context) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::host(new.display(), error);
        let made = new.symlink_metadata().map_err(failed)?;
        let mut mode = self.found.mode() & 0o7777;
        let owner = |of: &Metadata| (of.uid(), of.gid());
        if owner(&made) != owner(&self.found) {
            let (uid, gid) = owner(&self.found);
            if let Err(error) = lchown(new, Some(uid), Some(gid)) {
                context.warning(format_args!(
                    "{}: the new image does not keep the owner {uid}:{gid}: {error}",
                    old.display()
                ));
                mode &= !SET_ID;
            }
        }
        for (name, error) in
            carry_xattrs(old, new).map_err(|error| Failure::host(old.display(), error))?
        {
            context.warning(format_args!(
                "{}: the new image does not keep the attribute {}: {error}",
                old.display(),
                name.display()
            ));
        }
        std::fs::set_permissions(new, Permissions::from_mode(mode)).map_err(failed)
    }
}

/// Gives the file at `new` the extended attributes of the file at `old`, and returns those that cannot be set.
///
/// # Errors
/// The attributes of `old` cannot be listed.
pub fn carry_xattrs(old: &Path, new: &Path) -> io::Result<Vec<(OsString, io::Error)>> {
    // The new file may have an ACL from its directory, which must not be kept. The code ignores an error, because the file usually has no
    // ACL.
    let _ = lremovexattr(new, "system.posix_acl_access");
    let mut names = vec![0; MAX_XATTR];
    let len = match llistxattr(old, &mut names[..]) {
        // The file system has no extended attributes.
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        listed => listed?,
    };
    let (mut value, mut present) = (vec![0; MAX_XATTR], vec![0; MAX_XATTR]);
    let mut failed = Vec::new();
    // The type `c_char` has a sign on some machines.
    let names: Vec<_> = names[..len].iter().map(|byte| *byte as u8).collect();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = OsStr::from_bytes(name);
        let carried = lgetxattr(old, name, &mut value[..]).and_then(|len| {
            // The user may not be permitted to set an attribute, such as a security label. This is not a failure if the new file already
            // has the correct value.
            match lgetxattr(new, name, &mut present[..]) {
                Ok(same) if present[..same] == value[..len] => Ok(()),
                _ => lsetxattr(new, name, &value[..len], XattrFlags::empty()),
            }
        });
        failed.extend(carried.err().map(|errno| (name.to_owned(), errno.into())));
    }
    Ok(failed)
}

/// Whether two results of `stat` describe the same file.
pub(crate) fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}
