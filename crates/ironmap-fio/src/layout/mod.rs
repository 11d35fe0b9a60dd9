//! Determines the sizes of files, and creates files, before the jobs begin.

mod content;
mod host;
mod volume;

use ironmap::Result;

pub(crate) use self::content::{Content, Layout};
use crate::options::{Options, Source};
use crate::shared;

/// The size of a regular file. `None` if the file does not exist.
pub(crate) fn size(options: &Options, path: &[u8]) -> Result<Option<u64>> {
    let Source::Volume(name) = &options.source else { return host::size(path) };
    shared::expect(name, options.writes);
    let lent = shared::open(name, options.engine, false)?;
    let size = volume::size(lent.volume(), path);
    lent.close().and(size)
}

/// Creates a file and the directories above it, or extends an existing file. Existing content is kept, except in two cases: with
/// `Content::Written`, and in a file of the host, the complete file is overwritten.
pub(crate) fn lay_out(options: &Options, path: &[u8], layout: &mut Layout<'_>) -> Result<()> {
    let Source::Volume(name) = &options.source else { return host::lay_out(path, layout) };
    let lent = shared::open(name, options.engine, true)?;
    let laid_out = volume::lay_out(lent.volume(), path, layout);
    laid_out.and(lent.close())
}

/// Removes a file's name.
pub(crate) fn unlink(options: &Options, path: &[u8]) -> Result<()> {
    let Source::Volume(name) = &options.source else { return host::unlink(path) };
    let lent = shared::open(name, options.engine, true)?;
    let unlinked = volume::unlink(lent.volume(), path);
    unlinked.and(lent.close())
}
