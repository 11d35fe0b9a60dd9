//! XFS's structures as they lie on disk, and nothing else.
//!
//! Every struct here has the size and the offsets that the book "XFS Algorithms & Data Structures" gives, held by assertions at compile time.
//! Integers are big-endian, except checksums. No value read here has been checked yet: the modules above turn these into types of their own.

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
