//! ext4's on-disk structures.
//!
//! Every struct in this module has the size and the field offsets of Linux's documentation (Documentation/filesystems/ext4). The macro
//! `layout!` checks them at compile time. The types of integer fields include the on-disk byte order. Other modules check the values in
//! these structs and convert them to other types.

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
