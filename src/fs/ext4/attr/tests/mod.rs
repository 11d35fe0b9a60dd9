//! What is changed here, as e2fsck, debugfs and the kernel see it.

mod acls;
mod fields;
mod image;
mod inline;
mod room;
mod xattrs;
