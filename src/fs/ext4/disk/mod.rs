//! ext4's structures as they lie on disk, and nothing else.
//!
//! Every struct here has the size and the offsets that Linux's documentation (Documentation/filesystems/ext4) gives, held
//! by assertions at compile time. Integers keep their on-disk byte order in their type. No value read here has been
//! checked yet: the modules above turn these into types of their own.

pub(crate) mod dir;
pub(crate) mod extent;
pub(crate) mod fast_commit;
pub(crate) mod group;
pub(crate) mod inode;
pub(crate) mod journal;
pub(crate) mod mmp;
pub(crate) mod orphan;
pub(crate) mod quota;
pub(crate) mod superblock;
pub(crate) mod xattr;

pub(crate) use crate::fs::layout::layout;
