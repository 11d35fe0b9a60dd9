//! An open inode.

use std::ops::Deref;
use std::sync::Arc;

use super::{Access, Inode};
use crate::error::Result;
use crate::iomap::WriteFile;
use crate::open_file::OpenInode;
use crate::units::InodeNo;

/// An open inode. An inode can lose its last name. The file system then frees the inode when the last clone of this handle is dropped.
#[derive(Clone)]
pub struct Held(Arc<dyn FileOps>);

/// The operations of a format on an open inode. The trait is named after Linux's `file_operations`.
pub trait FileOps: Send + Sync {
    /// The inode number.
    fn number(&self) -> InodeNo;

    /// Reads the present state of the inode, even if the inode has no name.
    ///
    /// # Errors
    /// The errors of reading and checking the inode.
    fn inode(&self) -> Result<Inode>;

    /// Records an access in a time stamp, without a transaction. Does nothing on a volume that is open for reading.
    fn stamp(&self, _access: Access) {}

    /// Returns the writer of the inode's data and the inode's shared state. All open handles of the inode share this state. Returns `None`
    /// if the volume is open for reading.
    fn writes(self: Arc<Self>) -> Option<(Arc<OpenInode>, Arc<dyn WriteFile>)> {
        None
    }
}

impl Held {
    /// A handle for an inode that a format has opened.
    pub fn new(file: impl FileOps + 'static) -> Self {
        Self(Arc::new(file))
    }

    /// The code that writes the inode's data, and the state that all open handles of the inode share.
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
