//! Errors that end a bench.

use std::borrow::Cow;

use ironmap::{Errno, Error, Result};

use crate::interrupt;

/// Fails once a signal came.
pub(super) fn go_on() -> Result<()> {
    if interrupt::caught() {
        return Err(Error::io(Errno::EINTR, "bench"));
    }
    Ok(())
}

/// An error of the host, with what failed.
pub(super) fn io(error: &std::io::Error, what: impl Into<Cow<'static, str>>) -> Error {
    Error::io(Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)), what)
}
