//! Errors of requests, and their report to the kernel.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::{Once, OnceLock};

use ironmap::{Errno, Error, ErrorKind, Volume};

use super::daemon;
use crate::terminal::one_line;

/// Prints a line on standard error. A failure, such as a closed terminal, does not end the program.
pub(super) fn tell(what: impl Display) {
    let _ = writeln!(io::stderr(), "ironmap: {}", one_line(&what.to_string()));
}

/// The mounted volume.
static VOLUME: OnceLock<Volume> = OnceLock::new();

/// Sets the volume whose sectors with wrong tags are reported.
pub(super) fn name_sectors_of(volume: &Volume) {
    let _ = VOLUME.set(volume.clone());
}

/// Reports the sectors that did not fit their tags, on standard error and in the system's log.
fn tell_wrong_sectors() {
    let Some(volume) = VOLUME.get() else { return };
    let (wrong, dropped) = volume.events().take_wrong_tuples();
    if dropped > 0 {
        tell(format_args!(
            "{dropped} other sectors did not fit their tags, and were too many to be listed"
        ));
    }
    for sector in wrong {
        tell(sector);
        daemon::log(sector);
    }
}

/// The errno of a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fail(pub(super) Errno);

pub(super) type Result<T> = std::result::Result<T, Fail>;

impl From<Error> for Fail {
    /// Errors that no program can have caused are also printed on standard error, because an errno names no place. An error that made the
    /// volume read-only is reported once, to the system's log too. On a mount that is read-only by its options the kernel itself refuses changes.
    fn from(error: Error) -> Self {
        static ABORTED: Once = Once::new();
        match error.kind() {
            ErrorKind::Io(Errno::EILSEQ) => {
                tell(&error);
                tell_wrong_sectors();
            }
            ErrorKind::Corrupt | ErrorKind::Io(_) => tell(&error),
            ErrorKind::ReadOnly => ABORTED.call_once(|| {
                tell(&error);
                daemon::log(&error);
            }),
            _ => {}
        }
        Self(error.errno())
    }
}

impl From<Fail> for fuser::Errno {
    fn from(fail: Fail) -> Self {
        Self::from_i32(fail.0.0)
    }
}
