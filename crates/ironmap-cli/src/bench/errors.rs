//! Errors that end a bench.

use ironmap::{Errno, Error, Result};

pub(super) use ironmap_load::files::io;

use crate::interrupt;

/// Fails once a signal came.
pub(super) fn go_on() -> Result<()> {
    if interrupt::caught() {
        return Err(Error::io(Errno::EINTR, "bench"));
    }
    Ok(())
}
