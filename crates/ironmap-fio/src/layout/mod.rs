//! Files before the jobs begin: how large they are, and how they are made.

mod host;
mod volume;

use ironmap::{Error, ErrorKind, Result};

use crate::options::{Options, Place};
use crate::shared;

/// What a file that is made has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Nothing: it grows as it is written.
    Grows,
    /// Its size, and no space.
    Sparse,
    /// Its size, and space that reads as zeros.
    Preallocated,
    /// What fio fills its buffers with, so that reads find extents that are written.
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
    fn may_be_made(&self) -> Result<()> {
        let why = match self {
            Self { create: false, .. } => "no such file (allow_file_create=0)",
            Self { size: 0, .. } => "no such file, and no size= to make it of",
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::NotFound, why))
    }
}

/// The size of a regular file; `None` where there is none.
pub(crate) fn size(options: &Options, path: &[u8]) -> Result<Option<u64>> {
    let Place::Volume(name) = &options.place else { return host::size(path) };
    shared::expect(name, options.writes);
    let lent = shared::open(name, options.engine, false)?;
    let size = volume::size(lent.volume(), path);
    lent.close().and(size)
}

/// Makes a file, with the directories that lead to it, or extends it. What it has is kept, but of a file that is to be written all
/// is written anew.
pub(crate) fn lay_out(options: &Options, path: &[u8], layout: &mut Layout<'_>) -> Result<()> {
    let Place::Volume(name) = &options.place else { return host::lay_out(path, layout) };
    let lent = shared::open(name, options.engine, true)?;
    let laid_out = volume::lay_out(lent.volume(), path, layout);
    laid_out.and(lent.close())
}

/// Removes a file's name.
pub(crate) fn unlink(options: &Options, path: &[u8]) -> Result<()> {
    let Place::Volume(name) = &options.place else { return host::unlink(path) };
    let lent = shared::open(name, options.engine, true)?;
    let unlinked = volume::unlink(lent.volume(), path);
    unlinked.and(lent.close())
}
