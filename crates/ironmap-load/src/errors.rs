//! Errors that end a bench.

use std::borrow::Cow;
use std::sync::OnceLock;

use ironmap::{Errno, Error, Result};

/// Says whether the bench is to end.
static IS_TO_END: OnceLock<fn() -> bool> = OnceLock::new();

/// From now on a bench ends when this says so, as after a signal. Only the first call counts.
pub fn end_when(is_to_end: fn() -> bool) {
    let _ = IS_TO_END.set(is_to_end);
}

/// Fails once the bench is to end.
///
/// # Errors
/// EINTR.
pub fn go_on() -> Result<()> {
    if IS_TO_END.get().is_some_and(|is_to_end| is_to_end()) {
        return Err(Error::io(Errno::EINTR, "bench"));
    }
    Ok(())
}

/// An error of the host, with what failed.
pub fn io(error: &std::io::Error, what: impl Into<Cow<'static, str>>) -> Error {
    Error::io(Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)), what)
}
