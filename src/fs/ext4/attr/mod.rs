//! Changing what an inode says of its file: fields, extended attributes, access lists, content that lies in the inode.

mod create;
mod fields;

pub(crate) use create::{Body, NewInode};
pub(crate) use fields::Times;

#[cfg(test)]
mod tests;
