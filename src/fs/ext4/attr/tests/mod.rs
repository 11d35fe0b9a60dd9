//! What is changed here, as e2fsck, debugfs and the kernel see it.

mod fields;
mod image;
