//! XFS's on-disk structures.
//!
//! Every struct here has the size and the offsets from the book "XFS Algorithms & Data Structures". Sizes and offsets are checked at
//! compile time. Integers are big-endian, except checksums. The values in these structures are unchecked; other modules convert them into
//! checked types.

pub(crate) mod attr;
pub(crate) mod btree;
pub(crate) mod dir;
pub(crate) mod group;
pub(crate) mod inode;
pub(crate) mod log;
pub(crate) mod quota;
pub(crate) mod realtime;
pub(crate) mod superblock;
pub(crate) mod tree;

pub(crate) use crate::fs::layout::layout;
