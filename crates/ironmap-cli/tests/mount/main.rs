//! `ironmap mount` beside the kernel's ext4: the same operations on equal images, one mounted by each. The results of scripts must be
//! the same: output, errnos, attributes, contents, times that are set. Intended differences are in docs/MOUNT.md.

#[path = "../support/mod.rs"]
mod support;

#[path = "../../../../tests/common/rng.rs"]
mod rng;

mod aligned;
mod attributes;
mod caches;
mod cases;
mod damaged;
mod ending;
mod faults;
mod flags;
mod fsx;
mod full;
mod handles;
mod killed;
mod known;
mod listings;
mod options;
mod programs;
mod random;
mod remount;
mod sides;
mod times;
mod unprivileged;
