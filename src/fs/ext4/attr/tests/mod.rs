//! Changes by this crate, judged by e2fsck, debugfs and the kernel.

mod acls;
mod fields;
mod image;
mod inline;
mod room;
mod xattrs;
