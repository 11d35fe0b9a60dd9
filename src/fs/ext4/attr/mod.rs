//! The attributes of an inode: fields, extended attributes, access control lists, and inline data. [`read`] decodes extended attributes.
//! The other modules change an inode within a transaction.

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

use std::ops::Deref;

use super::operation::InodeToChange;

pub(crate) use acl::Inherited;
pub(crate) use create::{Body, NewInode};
pub(crate) use fields::Times;
pub(super) use read::seal_xattr_block;

/// An inode whose attributes may be changed.
#[derive(Clone, Copy)]
pub(crate) struct Attributes<'i>(&'i InodeToChange<'i>);

impl<'i> Attributes<'i> {
    pub(crate) fn of(inode: &'i InodeToChange<'i>) -> Self {
        Self(inode)
    }
}

impl<'i> Deref for Attributes<'i> {
    type Target = InodeToChange<'i>;

    fn deref(&self) -> &InodeToChange<'i> {
        self.0
    }
}
