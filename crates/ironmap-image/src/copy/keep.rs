//! The attributes of a file that a copy keeps.

/// The attributes that a copy takes from its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// The permissions with set-id bits, and access control lists.
    pub mode: bool,
    /// The owner and the group.
    pub ownership: bool,
    /// The source of the copy's timestamps.
    pub times: Times,
    /// Hard links between the copied files.
    pub links: bool,
    /// Extended attributes other than access control lists.
    pub xattrs: bool,
}

/// The timestamps of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Times {
    /// The time at which the copy is made.
    #[default]
    Now,
    /// The timestamps of the source.
    Kept,
    /// The modification time of the source, which the copy also gets as its access time. Earlier reads of the source then do not change the
    /// copy.
    Changed,
}

impl Keep {
    /// All attributes.
    pub const ALL: Self =
        Self { mode: true, ownership: true, times: Times::Kept, links: true, xattrs: true };
    /// The attributes that `cp -p` keeps: mode, owner and times.
    pub const USUAL: Self =
        Self { mode: true, ownership: true, times: Times::Kept, links: false, xattrs: false };

    /// Keeps each attribute that `self` or `other` keeps. The times are those of `other`.
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

    /// Whether the copy needs the extended attributes of the source.
    pub(super) fn any_xattr(self) -> bool {
        self.xattrs || self.mode
    }

    /// Whether an attribute is kept. Access control lists count as a part of the mode. XFS also shows these lists to root as attributes in
    /// its own form; these attributes are skipped.
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
