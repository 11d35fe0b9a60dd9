//! The attributes of an inode: fields, extended attributes, access lists, and content in the inode itself. [`read`] decodes extended
//! attributes; the other modules change an inode within a transaction.

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
