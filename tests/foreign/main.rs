//! Volumes that other authors made and damaged: the images of e2fsprogs' tests.
//!
//! Each image is read twice: by ironmap, and through a read-only kernel mount. Each operation changes a copy, which `e2fsck -fn` then
//! checks. Finally ironmap and `e2fsck -fn` check the image itself. The images are part of Debian's source package. `./x foreign` and `./x
//! test` fetch the package, and set `IRONMAP_FOREIGN_IMAGES` to their directory. [`differences`] names the intended differences, each with
//! its reason.

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
