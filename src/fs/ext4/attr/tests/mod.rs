//! Changes of attributes by ironmap, checked by e2fsck, debugfs and the kernel.

mod acls;
mod fields;
mod image;
mod inline;
mod room;
mod xattrs;
