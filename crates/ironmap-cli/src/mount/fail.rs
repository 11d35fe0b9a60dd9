//! Why a request fails, as the kernel is told it.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::{Once, OnceLock};

use ironmap::{Errno, Error, ErrorKind, Volume};

use super::daemon;
use crate::terminal::one_line;

/// A line on standard error. Where nobody reads it, as behind a terminal that is gone, that is no reason to end.
pub(super) fn tell(what: impl Display) {
    let _ = writeln!(io::stderr(), "ironmap: {}", one_line(&what.to_string()));
}

/// The one that is mounted.
static VOLUME: OnceLock<Volume> = OnceLock::new();

/// From now on sectors of this volume are named that do not fit their tags.
pub(super) fn name_sectors_of(volume: &Volume) {
    let _ = VOLUME.set(volume.clone());
}

/// Tells, and the system's log too, which sectors of those that were read do not fit their tags.
fn tell_wrong_sectors() {
    let Some(volume) = VOLUME.get() else { return };
    let (wrong, dropped) = volume.events().take_wrong_tuples();
    if dropped > 0 {
        tell(format_args!(
            "{dropped} sectors did not fit their tags, and were too many to be named"
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
    /// What no program has asked for is told on standard error too: the errno says nothing of the place. That an error has made the volume
    /// read-only is told once, to the system's log as well: the kernel itself refuses changes of a mount that was to be so.
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
