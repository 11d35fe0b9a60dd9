//! Compares `ironmap mount` with the kernel's ext4. The same operations run on two equal images. ironmap mounts one image, and the kernel
//! mounts the other. Output, errnos, attributes, contents, and times that an operation sets explicitly must be equal. Intended differences
//! are in docs/MOUNT.md.

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
