//! ext4's on-disk structures.
//!
//! Every struct here has the size and the offsets that Linux's documentation (Documentation/filesystems/ext4)
//! gives; the compiler checks them. The types of integer fields include the on-disk byte order. Values of
//! these structs are unchecked; other modules turn them into checked types.

pub(crate) mod dir;
pub(crate) mod extent;
pub(crate) mod fast_commit;
pub(crate) mod group;
pub(crate) mod inode;
pub(crate) mod journal;
pub(crate) mod mmp;
pub(crate) mod orphan;
pub(crate) mod quota;
pub(crate) mod reserved;
pub(crate) mod superblock;
pub(crate) mod xattr;

pub(crate) use crate::fs::layout::layout;
