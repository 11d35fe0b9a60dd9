//! What of a file a copy keeps.

/// What a copy has of its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Permissions with set-id bits, and access lists.
    pub mode: bool,
    /// Owner and group.
    pub ownership: bool,
    /// What times it has.
    pub times: Times,
    /// Files with several names have them in the copy too.
    pub links: bool,
    /// Extended attributes other than access lists.
    pub xattrs: bool,
}

/// What times a copy has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Times {
    /// Those of the copying.
    #[default]
    Now,
    /// The source's.
    Kept,
    /// That of the source's last change, also as that of the last access: that the tree was read before does not show.
    Changed,
}

impl Keep {
    /// Everything.
    pub const ALL: Self =
        Self { mode: true, ownership: true, times: Times::Kept, links: true, xattrs: true };
    /// Mode, owner and times, as `cp -p` keeps them.
    pub const USUAL: Self =
        Self { mode: true, ownership: true, times: Times::Kept, links: false, xattrs: false };

    /// What either keeps, with the times of the other.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            mode: self.mode | other.mode,
            ownership: self.ownership | other.ownership,
            times: other.times,
            links: self.links | other.links,
            xattrs: self.xattrs | other.xattrs,
        }
    }

    /// Whether there is a reason to read extended attributes.
    pub(super) fn any_xattr(self) -> bool {
        self.xattrs || self.mode
    }

    /// Whether this one is kept: access lists are a part of the mode. XFS shows root their own form too.
    pub(super) fn xattr(self, name: &[u8]) -> bool {
        if is_access_list(name) {
            self.mode
        } else {
            self.xattrs && !name.starts_with(b"trusted.SGI_ACL_")
        }
    }
}

pub(super) fn is_access_list(attribute: &[u8]) -> bool {
    attribute.starts_with(b"system.posix_acl_")
}
