//! A dirty volume, opened read-only, shows what Linux or e2fsck make of it by a recovery that writes.
//!
//! - `debugfs`: journals written by debugfs, in every checksum version; the oracle is e2fsck on a copy. Also broken ones.
//! - `kernel`: journals that a live mount left; the oracle is the kernel's own recovery of a copy. Needs root.

mod debugfs;
mod image;
mod kernel;
