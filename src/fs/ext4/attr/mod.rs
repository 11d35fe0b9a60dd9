//! Changing what an inode says of its file: fields, extended attributes, access lists, content that lies in the inode.

mod acl;
mod block;
mod change;
mod create;
mod fields;
mod inline;
mod lists;
mod name;
pub(in crate::fs::ext4) mod read;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use acl::Inherited;
pub(crate) use create::{Body, NewInode};
pub(crate) use fields::Times;
pub(super) use read::seal_xattr_block;
