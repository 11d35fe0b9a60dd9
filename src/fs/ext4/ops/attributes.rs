//! Attributes of a file: permissions, owner, times, flags, extended attributes.

use super::refuse;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::ext4::attr::{Attributes, Times};
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::operation::{InodeToChange, Locked, Operation};
use crate::fs::ext4::{Ext4, Inode, RoCompat};
use crate::fs::{FileType, InodeFlags, KeepSetId, SetAttributes, SetXattr};
use crate::units::InodeNo;

/// The extended attribute that contains a program's capabilities.
const CAPABILITY: &[u8] = b"security.capability";
/// The maximum number of blocks that a change of an inode modifies, including the inode's block and the superblock.
const CREDITS: u32 = 4;

impl SetAttributes {
    fn sets_only_times(&self) -> bool {
        let Self { permissions, uid, gid, project, .. } = self;
        permissions.or(*uid).or(*gid).or(*project).is_none()
    }
}

impl Ext4 {
    /// Whether a write must remove set-id bits or capabilities from the file.
    pub(crate) fn has_privileges(inode: &Inode, keep: KeepSetId) -> Result<bool> {
        let mode = inode.stat().mode;
        Ok(keep.of(mode) != mode || inode.xattr(CAPABILITY)?.is_some())
    }
}

impl Operation<'_> {
    fn change_xattrs(
        &self,
        number: InodeNo,
        change: impl FnOnce(&InodeToChange<'_>) -> Result<()>,
    ) -> Result<()> {
        let file = self.lock(number);
        let inode = self.inode_to_change(&file)?;
        if inode.flags().intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
            return Err(refuse(ErrorKind::NotPermitted, "the file is immutable or append-only"));
        }
        change(&inode)
    }

    /// Changes the attributes of a file. A change of a program's owner also removes its set-id bits and its capabilities.
    pub(in crate::fs::ext4) fn set_attributes(
        &self,
        number: InodeNo,
        set: &SetAttributes,
    ) -> Result<()> {
        let file = self.lock(number);
        let inode = self.inode_to_change(&file)?;
        let used = set.times_of_use && set.sets_only_times();
        let refused = if used { InodeFlags::empty() } else { InodeFlags::APPEND };
        if inode.flags().intersects(refused | InodeFlags::IMMUTABLE) {
            return Err(refuse(ErrorKind::NotPermitted, "the file is immutable or append-only"));
        }
        let projects = self.superblock.ro_compat.contains(RoCompat::PROJECT);
        if set.project.is_some_and(|project| project != 0) && !projects {
            return Err(Error::unsupported("the volume does not have the feature project"));
        }
        let stat = inode.stat();
        let owned = set.uid.is_some() || set.gid.is_some();
        let mut mode = stat.mode;
        if let Some(permissions) = set.permissions {
            mode = mode & !0o7777 | permissions & 0o7777;
        }
        let program = inode.file_type() != FileType::Directory;
        if owned && program {
            mode = KeepSetId::No.of(mode);
        }
        self.admit_owners(&inode, [set.uid, set.gid, set.project])?;
        let stripped = owned && program && inode.xattr(CAPABILITY)?.is_some();
        self.transact_for_space(CREDITS + inode.xattr_credits(), |handle| {
            if set.permissions.is_some() {
                Attributes::of(&inode).chmod_acl(handle, mode)?;
            }
            if stripped {
                Attributes::of(&file.inode()?).remove_xattr(handle, CAPABILITY)?;
            }
            let mut values = 0;
            if self.quota_of(number).is_some() && (owned || set.project.is_some()) {
                values = file.inode()?.value_inodes()?;
            }
            let now = handle.now();
            handle.update_inode(&inode, |raw| {
                raw.has_values(values);
                // The project id is set before the other fields. This change fails if the inode has no space for a project id, and a
                // failure must not leave other fields changed.
                set.project.map_or(Ok(()), |project| raw.set_project(project))?;
                raw.set_mode(mode)?;
                if owned {
                    raw.set_owner(set.uid.unwrap_or(stat.uid), set.gid.unwrap_or(stat.gid))?;
                }
                let (accessed, modified) = (set.accessed, set.modified);
                let changed = set.changed.unwrap_or(now);
                raw.set_times(&Times { accessed, modified, ..Times::changed(changed) })
            })
        })
    }

    /// Sets the flags that users may change (`chattr`). Other flags keep their values.
    pub(in crate::fs::ext4) fn set_flags(&self, number: InodeNo, flags: InodeFlags) -> Result<()> {
        let file = self.lock(number);
        let inode = self.inode_to_change(&file)?;
        let changed = inode.flags().symmetric_difference(flags);
        let of_other_types = InodeFlags::refused_by(inode.file_type());
        let refused = (changed - InodeFlags::CHANGEABLE) | (changed & flags & of_other_types);
        if !refused.is_empty() {
            let bits = refused.bits();
            return Err(Error::unsupported(format!("the inode flags {bits:#x} cannot be changed")));
        }
        self.transact_for_space(CREDITS, |handle| {
            let now = handle.now();
            handle.update_inode(&inode, |raw| {
                raw.set_flags(flags)?;
                raw.set_times(&Times::changed(now))
            })
        })
    }

    /// Sets an extended attribute. If the attribute already has this value, the attribute and the file's times are not changed.
    pub(in crate::fs::ext4) fn setxattr(
        &self,
        number: InodeNo,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        self.change_xattrs(number, |inode| {
            if how != SetXattr::Create && inode.xattr(name)?.as_deref() == Some(value) {
                return Ok(());
            }
            self.transact_for_space(inode.xattr_credits() + CREDITS, |handle| {
                Attributes::of(inode).set_xattr(handle, name, value, how)?;
                self.touch_changed(handle, inode)
            })
        })
    }

    /// Removes an extended attribute.
    pub(in crate::fs::ext4) fn removexattr(&self, number: InodeNo, name: &[u8]) -> Result<()> {
        self.change_xattrs(number, |inode| {
            self.transact_for_space(inode.xattr_credits() + CREDITS, |handle| {
                Attributes::of(inode).remove_xattr(handle, name)?;
                self.touch_changed(handle, inode)
            })
        })
    }

    /// Removes the file's capabilities, because they were granted for the old content. Returns the changed inode.
    /// [`strip_privileges`](Ext4::strip_privileges) removes set-id bits, depending on the user that writes.
    pub(super) fn without_capabilities<'f>(
        &self,
        file: &'f Locked<'_>,
        inode: InodeToChange<'f>,
    ) -> Result<InodeToChange<'f>> {
        if inode.xattr(CAPABILITY)?.is_none() {
            return Ok(inode);
        }
        self.transact_for_space(CREDITS + inode.xattr_credits(), |handle| {
            Attributes::of(&inode).remove_xattr(handle, CAPABILITY)
        })?;
        file.inode()
    }

    /// Removes set-id bits and capabilities.
    pub(super) fn strip(
        &self,
        handle: &mut Handle<'_>,
        inode: &InodeToChange<'_>,
        keep: KeepSetId,
    ) -> Result<()> {
        if inode.xattr(CAPABILITY)?.is_some() {
            Attributes::of(inode).remove_xattr(handle, CAPABILITY)?;
        }
        let (mode, now) = (keep.of(inode.stat().mode), handle.now());
        handle.update_inode(inode, |raw| {
            raw.set_mode(mode)?;
            raw.set_times(&Times::changed(now))
        })
    }
}
