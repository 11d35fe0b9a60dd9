//! One system call a request: `pread` and `preadv2`.

use std::sync::Arc;

use super::{BlockFile, Device, Limits};
use crate::error::Result;
use crate::units::DevOffset;

/// A block device or image, read and written by one system call a request.
#[derive(Debug)]
pub struct Psync {
    file: Arc<BlockFile>,
}

impl Psync {
    /// The device over an open file.
    #[must_use]
    pub fn new(file: Arc<BlockFile>) -> Self {
        Self { file }
    }
}

impl Device for Psync {
    fn limits(&self) -> &Limits {
        self.file.limits()
    }

    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read_exact_at(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
        self.file.read_exact_at(buf, at)
    }
}
