//! The program: every command, its output, its refusals, and its exit codes.

#[path = "../../../../tests/common/mod.rs"]
mod common;
#[path = "../support/results.rs"]
mod results;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/trees.rs"]
mod trees;

mod agreeing_with_fio;
mod archiving;
mod changing;
mod checking;
mod cloning;
mod coarse;
mod comparing;
mod completing;
mod copying;
#[cfg(feature = "disk")]
mod disks;
mod dumping;
mod edges;
mod exports;
mod filling;
mod host;
mod images;
mod integrity;
mod looking;
mod making;
mod measuring;
mod members;
mod messages;
#[cfg(feature = "disk")]
mod new_images;
mod oci;
mod outputs;
mod pages;
mod partitioning;
mod power_cuts;
mod reading;
mod refusing;
mod reproducing;
mod rescuing;
mod rescuing_xfs;
mod resizing;
mod salvaging;
mod salvaging_parts;
mod searching;
mod signatures;
mod sources;
mod terminals;
mod tuning;
mod undeleting;
#[cfg(feature = "disk")]
mod verity;
mod virtual_disks;
mod xfs;

#[allow(dead_code, reason = "these tests use a part of the file")]
#[path = "../../../../tests/lvm/shape.rs"]
mod lvm_shape;
#[allow(dead_code, reason = "these tests use a part of the file")]
#[path = "../../../../tests/md/shape.rs"]
mod md_shape;
