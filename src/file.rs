//! A file of a volume, open for direct I/O.

use std::sync::Arc;

use crate::error::Result;
use crate::fs::ext4::Inode;
use crate::iomap::{Iomap, MapFile};
use crate::units::FilePos;

/// How to open a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileOptions {
    /// Take only what `O_DIRECT` takes: position and length in logical blocks, aligned memory. Otherwise what the device cannot
    /// take goes through bounce buffers.
    pub strict: bool,
}

/// A file open for direct I/O, shared by threads; each brings its own queue.
#[derive(Clone)]
pub struct File {
    inode: Arc<Inode>,
    #[allow(dead_code)]
    options: FileOptions,
}

impl File {
    pub(crate) fn new(inode: Arc<Inode>, options: FileOptions) -> Self {
        Self { inode, options }
    }

    /// Its inode.
    #[must_use]
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// The mapping at a position.
    ///
    /// # Errors
    /// What reading and checking the metadata gives.
    pub fn map(&self, pos: FilePos, len: u64) -> Result<Iomap> {
        self.inode.map(pos, len)
    }
}
