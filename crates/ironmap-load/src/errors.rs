//! Errors that end a bench.

use std::borrow::Cow;
use std::sync::OnceLock;

use ironmap::{Errno, Error, Result};

/// The function that reports whether the bench must end.
static IS_TO_END: OnceLock<fn() -> bool> = OnceLock::new();

/// Ends a bench when `is_to_end` returns true, for example after a signal. Only the first call has an effect.
pub fn end_when(is_to_end: fn() -> bool) {
    let _ = IS_TO_END.set(is_to_end);
}

/// Fails if the bench must end.
///
/// # Errors
/// EINTR if the bench must end.
pub fn go_on() -> Result<()> {
    if IS_TO_END.get().is_some_and(|is_to_end| is_to_end()) {
        return Err(Error::io(Errno::EINTR, "bench"));
    }
    Ok(())
}

/// Converts an error of the host. `what` names the operation or the file that failed.
pub fn io(error: &std::io::Error, what: impl Into<Cow<'static, str>>) -> Error {
    Error::io(Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)), what)
}
