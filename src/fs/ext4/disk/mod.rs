//! ext4's on-disk structures.
//!
//! Every struct here has the size and the offsets that Linux's documentation (Documentation/filesystems/ext4) gives, checked at compile
//! time. Integers keep their on-disk byte order in their type. Values of these structures are unchecked: other modules turn them into
//! checked types.

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
