//! Extended attributes and ACLs. The kernel checks permissions. A new ACL changes the mode, and a new mode changes the ACL.

use ironmap::fs::SetXattr;
use ironmap::units::InodeNo;
use ironmap::{Errno, Error, ErrorKind};

use super::fail::{Fail, Result};
use super::{Asker, Mount};

const CREATE: i32 = 1;
const REPLACE: i32 = 2;
const TRUSTED: &[u8] = b"trusted.";
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
const BOTH: i32 = CREATE | REPLACE;
/// The prefixes of the attribute names that the kernel's ext4 supports.
const PREFIXES: [&[u8]; 4] = [b"user.", TRUSTED, b"security.", b"gnu."];

/// Refuses a name that no attribute can have. The kernel checks the names only for its own file systems.
fn check(name: &[u8]) -> Result<()> {
    match PREFIXES.iter().find_map(|prefix| name.strip_prefix(*prefix)) {
        Some(b"") => Err(Fail::new(Errno::EINVAL)),
        None if !ACLS.contains(&name) => Err(Fail::new(Errno::EOPNOTSUPP)),
        _ => Ok(()),
    }
}

impl Mount {
    pub(super) fn getxattr(&self, inode: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        if let Some(value) = self.own_xattr(inode, name) {
            return Ok(value);
        }
        check(name)?;
        let value = self.fs().inspect(inode, |inode| inode.xattr(name))?;
        value.ok_or_else(|| Fail::new(Errno::ENODATA))
    }

    /// Returns the names of all attributes, each with a final NUL. Names with the prefix `trusted.` are returned only to the superuser.
    pub(super) fn listxattr(&self, inode: InodeNo, asker: Asker) -> Result<Vec<u8>> {
        let all = self.fs().inspect(inode, |inode| inode.xattrs())?;
        let shown = all.iter().filter(|xattr| asker.uid == 0 || !xattr.name.starts_with(TRUSTED));
        Ok(shown.flat_map(|xattr| [&xattr.name[..], b"\0"].concat()).collect())
    }

    pub(super) fn setxattr(
        &self,
        inode: InodeNo,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        check(name)?;
        let how = match flags {
            0 => SetXattr::Any,
            CREATE => SetXattr::Create,
            REPLACE => SetXattr::Replace,
            // `XATTR_CREATE` together with `XATTR_REPLACE` always fails. The error depends on whether the attribute exists.
            BOTH => {
                return Err(self
                    .getxattr(inode, name)
                    .map_or_else(|fail| fail, |_| Fail::new(Errno::EEXIST)));
            }
            _ => return Err(Fail::new(Errno::EINVAL)),
        };
        self.fs().writable()?.setxattr(inode, name, value, how)?;
        self.changed(&[inode])
    }

    /// Removes an attribute. The removal of an ACL that does not exist succeeds.
    pub(super) fn removexattr(&self, inode: InodeNo, name: &[u8]) -> Result<()> {
        check(name)?;
        let gone = |error: &Error| error.kind() == ErrorKind::NoData && ACLS.contains(&name);
        match self.fs().writable().and_then(|writer| writer.removexattr(inode, name)) {
            Err(error) if !gone(&error) => Err(error.into()),
            _ => self.changed(&[inode]),
        }
    }
}
