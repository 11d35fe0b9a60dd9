//! Tests of attribute changes by ironmap. e2fsck, debugfs and the kernel check the results.

mod acls;
mod fields;
mod image;
mod inline;
mod room;
mod xattrs;
