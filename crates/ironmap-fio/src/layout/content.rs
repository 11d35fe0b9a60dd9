//! The content of a file to create, and whether the job may create it.

use ironmap::{Error, ErrorKind, Result};

/// The content of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// No content: the writes extend the file.
    Grows,
    /// The full size, without allocated blocks.
    Sparse,
    /// The full size, with unwritten extents, which read as zeros.
    Preallocated,
    /// The full size, filled with the content of fio's buffers, so that the extents are written.
    Written,
}

/// How to create a missing file, or to extend a file that is too short.
pub(crate) struct Layout<'a> {
    pub(crate) size: u64,
    pub(crate) content: Content,
    /// Whether the job may create or extend the file.
    pub(crate) create: bool,
    /// The number of bytes to fill at a time.
    pub(crate) piece: usize,
    pub(crate) fill: &'a mut dyn FnMut(&mut [u8]),
}

impl Layout<'_> {
    pub(super) fn may_be_made(&self) -> Result<()> {
        let why = match self {
            Self { create: false, .. } => "no such file (allow_file_create=0)",
            Self { size: 0, .. } => {
                "no such file, and size= is missing, so the file cannot be made"
            }
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::NotFound, why))
    }
}
