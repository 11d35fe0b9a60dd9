//! Volumes that others made and damaged: the images of e2fsprogs' own tests.
//!
//! Each image is read through ironmap and through the kernel's read-only mount, changed by each operation with `e2fsck -fn` after it, and
//! checked by ironmap and by `e2fsck -fn`. The images come with Debian's source package: `./x foreign` and `./x test` fetch it, and set
//! `IRONMAP_FOREIGN_IMAGES` to their directory. [`differences`] names the intended differences, each with its reason.

#[path = "../common/mod.rs"]
mod common;

#[path = "../hostile/watch.rs"]
mod watch;

mod change;
mod checking;
mod differences;
mod fsck;
mod images;
mod read;
mod shrink;
