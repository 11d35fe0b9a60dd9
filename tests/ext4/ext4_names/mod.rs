//! The names of ext4, compared with three sources: the tree that mke2fs copied, debugfs, and the kernel.

mod corrupt;
mod directories;
mod inodes;
mod links_and_paths;
mod xattrs;
