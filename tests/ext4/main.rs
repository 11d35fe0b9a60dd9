//! Tests of ext4 volumes: reading, writing, recovery and checks. The oracles are e2fsck, debugfs and the kernel.

#[path = "../common/mod.rs"]
mod common;

mod broken_orphans;
mod check;
mod crash;
mod crash_data;
mod damaged_descriptors;
mod damaged_inodes;
mod damaged_reading;
mod deep_trees;
mod empty_nodes;
mod ext4_names;
mod garbage;
mod journal;
mod listing;
mod met_errors;
mod mkfs;
mod odd_inodes;
mod paths;
mod quota;
mod races;
mod resize;
mod resize_sizes;
mod revision_zero;
mod stamps;
mod sweep;
mod two_nodes;
mod write_open;
mod write_ops;
