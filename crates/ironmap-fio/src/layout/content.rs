//! The wanted content of a file, and whether it may be made.

use ironmap::{Error, ErrorKind, Result};

/// The content of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Nothing: it grows as it is written.
    Grows,
    /// Its size, and no space.
    Sparse,
    /// Its size, and space that reads as zeros.
    Preallocated,
    /// The fill of fio's buffers, so that reads find written extents.
    Written,
}

/// How a file is made that is not there, or too short.
pub(crate) struct Layout<'a> {
    pub(crate) size: u64,
    pub(crate) content: Content,
    /// Whether it may be made at all.
    pub(crate) create: bool,
    /// Bytes that are filled at once.
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
