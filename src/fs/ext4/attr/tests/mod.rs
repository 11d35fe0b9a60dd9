//! Changes by this crate, as e2fsck, debugfs and the kernel see them.

mod acls;
mod fields;
mod image;
mod inline;
mod room;
mod xattrs;
