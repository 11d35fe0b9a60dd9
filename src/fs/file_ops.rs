//! An inode that someone has open.

use std::ops::Deref;
use std::sync::Arc;

use super::{Access, Inode};
use crate::error::Result;
use crate::iomap::WriteFile;
use crate::open_file::OpenInode;
use crate::units::InodeNo;

/// An inode that is open: it stays when it loses its last name, until the last of these is dropped.
#[derive(Clone)]
pub struct Held(Arc<dyn FileOps>);

/// The operations of a format on an open inode. The name is Linux's `file_operations`.
pub trait FileOps: Send + Sync {
    /// Its number.
    fn number(&self) -> InodeNo;

    /// Its present state, with a name or without.
    ///
    /// # Errors
    /// What reading and checking gives.
    fn inode(&self) -> Result<Inode>;

    /// Leaves a time stamp without a transaction. Does nothing on a volume that is only read.
    fn stamp(&self, _access: Access) {}

    /// How its data are written, and what all share who have it open; `None` where it is only read.
    fn writes(self: Arc<Self>) -> Option<(Arc<OpenInode>, Arc<dyn WriteFile>)> {
        None
    }
}

impl Held {
    /// Of what a format has opened.
    pub fn new(file: impl FileOps + 'static) -> Self {
        Self(Arc::new(file))
    }

    /// How its data are written, and what all share who have it open.
    pub(crate) fn writes(&self) -> Option<(Arc<OpenInode>, Arc<dyn WriteFile>)> {
        Arc::clone(&self.0).writes()
    }
}

impl Deref for Held {
    type Target = dyn FileOps;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}
