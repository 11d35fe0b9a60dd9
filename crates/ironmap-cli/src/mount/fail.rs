//! Errors of requests. The kernel gets an errno. If the errno does not show the cause, a message is printed.

use std::fmt::Display;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ironmap::{Errno, Error, ErrorKind, Volume};

use super::daemon;
use crate::failure::print;

/// A request that failed.
#[derive(Debug)]
pub(super) struct Fail {
    errno: Errno,
    /// The error of the library, if the library refused the request.
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

/// Reports the errors of one mount. The program that made the request gets only an errno, without the place or the cause.
pub(super) struct Log {
    volume: Volume,
    /// Whether this process runs in the background, where standard error is /dev/null.
    in_background: AtomicBool,
    aborted: Once,
}

impl Log {
    pub(super) fn new(volume: Volume) -> Self {
        Self { volume, in_background: AtomicBool::new(false), aborted: Once::new() }
    }

    /// Sends later errors to the system's log too.
    pub(super) fn enter_background(&self) {
        self.in_background.store(true, Ordering::Relaxed);
    }

    /// Writes a message to the system's log. In the foreground, does nothing.
    pub(super) fn to_system(&self, what: impl Display) {
        if self.in_background.load(Ordering::Relaxed) {
            daemon::log(what);
        }
    }

    /// Returns the errno of a failed request, and reports its cause.
    pub(super) fn report(&self, fail: &Fail) -> fuser::Errno {
        if let Some(error) = &fail.cause {
            self.report_error(error);
        }
        fuser::Errno::from_i32(fail.errno.0)
    }

    /// Prints errors of the device and of the volume. The kernel itself refuses changes of a mount with the option `ro`. Therefore
    /// `ReadOnly` here means that an error made the volume read-only. This error is reported once, also to the system's log.
    fn report_error(&self, error: &Error) {
        match error.kind() {
            ErrorKind::Io(Errno::EILSEQ) => {
                print(error);
                self.report_wrong_sectors();
            }
            ErrorKind::Corrupt | ErrorKind::Io(_) => print(error),
            ErrorKind::ReadOnly => self.aborted.call_once(|| {
                print(error);
                self.to_system(error);
            }),
            _ => {}
        }
    }

    /// Reports sectors that did not match their guard tags in a read. The report also goes to the system's log.
    fn report_wrong_sectors(&self) {
        let (wrong, dropped) = self.volume.events().take_wrong_tuples();
        if dropped > 0 {
            print(format_args!(
                "{dropped} more sectors did not match their tags, too many to name each"
            ));
        }
        for sector in wrong {
            print(sector);
            self.to_system(sector);
        }
    }
}
