//! What of a file a copy keeps.

use super::Args;

/// What `--preserve` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kept {
    Mode,
    Ownership,
    Timestamps,
    Links,
    Xattr,
    Context,
    All,
}

/// What a copy has of its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Keep {
    /// Permissions with set-id bits, and access lists.
    pub(super) mode: bool,
    pub(super) ownership: bool,
    pub(super) times: Times,
    /// Files with several names have them in the copy too.
    pub(super) links: bool,
    pub(super) xattrs: bool,
}

/// What times a copy has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Times {
    /// Those of the copying.
    #[default]
    Now,
    /// The source's.
    Kept,
    /// That of the source's last change, also as that of the last access: that the tree was read before does not show.
    Changed,
}

impl Keep {
    pub(super) const ALL: Self =
        Self { mode: true, ownership: true, times: Times::Kept, links: true, xattrs: true };
    const USUAL: Self =
        Self { mode: true, ownership: true, times: Times::Kept, links: false, xattrs: false };

    pub(super) fn of(args: &Args) -> Self {
        let mut keep = if args.archive { Self::ALL } else { Self::default() };
        keep.links |= args.links;
        if args.preserve_usual || args.preserve.as_ref().is_some_and(Vec::is_empty) {
            keep = keep.or(Self::USUAL);
        }
        for kept in args.preserve.iter().flatten() {
            match kept {
                Kept::Mode => keep.mode = true,
                Kept::Ownership => keep.ownership = true,
                Kept::Timestamps => keep.times = Times::Kept,
                Kept::Links => keep.links = true,
                Kept::Xattr | Kept::Context => keep.xattrs = true,
                Kept::All => keep = Self::ALL,
            }
        }
        keep
    }

    /// What either keeps, with the times of the other.
    fn or(self, other: Self) -> Self {
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
