//! The content of a file to create, and whether the job may create it.

use ironmap::{Error, ErrorKind, Result};

/// The content of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Nothing: the file grows with the writes.
    Grows,
    /// The size, without space.
    Sparse,
    /// The size, with space that reads as zeros.
    Preallocated,
    /// The fill of fio's buffers, so that reads find written extents.
    Written,
}

/// The way to create a file that is missing or too short.
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
            Self { size: 0, .. } => "no such file, and no size= to make it of",
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::NotFound, why))
    }
}
