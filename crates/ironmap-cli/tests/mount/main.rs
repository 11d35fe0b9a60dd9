//! `ironmap mount` beside the kernel's ext4: the same operations on equal images, one mounted by each. Whatever a program can see has to be
//! the same: results, errnos, attributes, contents, which time stamps move. What differs on purpose is in docs/MOUNT.md.

#[path = "../support/mod.rs"]
mod support;

mod cases;
mod killed;
mod programs;
mod sides;
