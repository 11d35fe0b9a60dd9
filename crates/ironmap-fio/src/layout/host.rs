//! Files of mounted file systems. Jobs only read these files, so a new file is written completely.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind::NotFound, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ironmap::{Errno, Error, ErrorKind, Result};

use super::content::Layout;

fn path(name: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(name))
}

fn failed(operation: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |error| match error.kind() {
        NotFound => Error::new(ErrorKind::NotFound, operation),
        _ => Error::io(Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)), operation),
    }
}

pub(super) fn size(name: &[u8]) -> Result<Option<u64>> {
    match fs::metadata(path(name)) {
        Ok(found) if found.is_file() => Ok(Some(found.len())),
        Ok(_) => Err(Error::new(ErrorKind::WrongFileType, "is not a regular file")),
        Err(error) if error.kind() == NotFound => Ok(None),
        Err(error) => Err(failed("stat")(error)),
    }
}

pub(super) fn lay_out(name: &[u8], layout: &mut Layout<'_>) -> Result<()> {
    if size(name)?.is_none() {
        layout.may_be_made()?;
        if let Some(above) = path(name).parent() {
            DirBuilder::new().recursive(true).create(above).map_err(failed("mkdir"))?;
        }
    }
    write(path(name), layout).map_err(failed("write"))
}

/// Writes the content and syncs it, so that the file has no dirty page and no unwritten extent.
fn write(path: &Path, layout: &mut Layout<'_>) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(false).open(path)?;
    let mut piece = vec![0; layout.piece.max(1)];
    let mut rest = layout.size;
    while rest > 0 {
        let count = rest.min(piece.len() as u64) as usize;
        (layout.fill)(&mut piece[..count]);
        file.write_all(&piece[..count])?;
        rest -= count as u64;
    }
    file.sync_all()
}

pub(super) fn unlink(name: &[u8]) -> Result<()> {
    fs::remove_file(path(name)).map_err(failed("unlink"))
}
