//! The numbers of reserved inodes.
//!
//! Source: "Special inodes" in Linux's documentation, Documentation/filesystems/ext4.

/// The inode whose block map is the list of bad blocks.
pub(crate) const BAD_BLOCKS: u32 = 1;
pub(crate) const ROOT: u32 = 2;
pub(crate) const USER_QUOTA: u32 = 3;
pub(crate) const GROUP_QUOTA: u32 = 4;
pub(crate) const BOOT_LOADER: u32 = 5;
/// The resize inode, which owns the blocks that are reserved for the growth of the group descriptors.
pub(crate) const RESIZE: u32 = 7;
pub(crate) const JOURNAL: u32 = 8;
