//! Errors of requests: the errno that the kernel gets, and lines for errors that no program has asked for.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ironmap::{Errno, Error, ErrorKind, Volume};

use super::daemon;
use crate::terminal::one_line;

/// A line on standard error. A terminal that is gone, so that nobody reads the line, is no reason to end.
pub(super) fn tell(what: impl Display) {
    let _ = writeln!(io::stderr(), "ironmap: {}", one_line(&what.to_string()));
}

/// A request that failed.
#[derive(Debug)]
pub(super) struct Fail {
    errno: Errno,
    /// The library's error, if it is one.
    cause: Option<Box<Error>>,
}

pub(super) type Result<T> = std::result::Result<T, Fail>;

impl Fail {
    pub(super) fn new(errno: Errno) -> Self {
        Self { errno, cause: None }
    }
}

impl From<Error> for Fail {
    fn from(error: Error) -> Self {
        Self { errno: error.errno(), cause: Some(Box::new(error)) }
    }
}

/// The lines of one mount: an errno says nothing of the place.
pub(super) struct Log {
    volume: Volume,
    /// Nobody watches standard error.
    is_unwatched: AtomicBool,
    aborted: Once,
}

impl Log {
    pub(super) fn new(volume: Volume) -> Self {
        Self { volume, is_unwatched: AtomicBool::new(false), aborted: Once::new() }
    }

    /// From now on errors go to the system's log too.
    pub(super) fn is_in_background(&self) {
        self.is_unwatched.store(true, Ordering::Relaxed);
    }

    /// Tells the system's log, where nobody watches standard error.
    pub(super) fn to_system(&self, what: impl Display) {
        if self.is_unwatched.load(Ordering::Relaxed) {
            daemon::log(what);
        }
    }

    /// The errno of a failed request. An error of the device or of the volume is told on standard error too. That an error has made the volume
    /// read-only is told once, to the system's log as well: the kernel itself refuses changes of a mount that is read-only by its options.
    pub(super) fn told(&self, fail: &Fail) -> fuser::Errno {
        if let Some(error) = &fail.cause {
            self.tell_error(error);
        }
        fuser::Errno::from_i32(fail.errno.0)
    }

    fn tell_error(&self, error: &Error) {
        match error.kind() {
            ErrorKind::Io(Errno::EILSEQ) => {
                tell(error);
                self.tell_wrong_sectors();
            }
            ErrorKind::Corrupt | ErrorKind::Io(_) => tell(error),
            ErrorKind::ReadOnly => self.aborted.call_once(|| {
                tell(error);
                self.to_system(error);
            }),
            _ => {}
        }
    }

    /// Tells, and the system's log too, which sectors of those that were read do not fit their tags.
    fn tell_wrong_sectors(&self) {
        let (wrong, dropped) = self.volume.events().take_wrong_tuples();
        if dropped > 0 {
            tell(format_args!(
                "{dropped} sectors did not fit their tags, and were too many to be named"
            ));
        }
        for sector in wrong {
            tell(sector);
            self.to_system(sector);
        }
    }
}
