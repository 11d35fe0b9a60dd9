//! The data that a job has from its caller: one value, which is passed.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;
use std::sync::{Arc, Mutex, OnceLock};

use ironmap::fs::{Clock, Timestamp};
use ironmap::{Location, Volume, VolumeOptions};

use crate::failure::Failure;
use crate::opening::Opening;
use crate::progress::Bar;
use crate::stop::Stop;

/// The caller's side of a job. Several threads call it.
pub trait Caller: Send + Sync {
    /// Takes an error, a warning or a note: one message, which may hold any character.
    fn print(&self, message: &str);

    /// Takes a message about finished work.
    ///
    /// # Errors
    /// `BrokenPipe`: nobody reads these messages.
    fn say(&self, message: &str) -> io::Result<()>;

    /// A copy begins. `None` if its progress is not shown.
    fn show_progress(&self) -> Option<Arc<dyn Bar>>;

    /// A volume is going to be changed: from now on a signal sets the job's [`Stop`], and ends the process no more.
    fn catch_signals(&self);

    /// Opens a volume.
    ///
    /// # Errors
    /// The library's.
    fn open(&self, location: &Location, options: &VolumeOptions) -> ironmap::Result<Volume> {
        options.open(location)
    }
}

/// The data that all parts of a job share.
pub struct Context {
    pub(crate) caller: Box<dyn Caller>,
    stop: Stop,
    pub(crate) opening: Opening,
    /// The time of a reproducible build, in seconds since 1970, or why the caller's text is not a time.
    source_date: Result<Option<i64>, String>,
    /// Faults of devices that were noted.
    pub(crate) told: Mutex<BTreeSet<String>>,
    /// The first volume that was opened with a realtime device.
    pub(crate) realtime_of: OnceLock<Location>,
}

impl Context {
    /// `source_date` is the time of a reproducible build, in seconds since 1970: everything is made at that time, and nothing is left to chance. Its error
    /// is that of the jobs that need it.
    pub fn new(
        caller: Box<dyn Caller>,
        stop: Stop,
        opening: Opening,
        source_date: Result<Option<i64>, String>,
    ) -> Arc<Self> {
        let (told, realtime_of) = (Mutex::default(), OnceLock::new());
        Arc::new(Self { caller, stop, opening, source_date, told, realtime_of })
    }

    /// The request to end the job early.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// The time of a reproducible build, in seconds since 1970; `None` where it is not set.
    ///
    /// # Errors
    /// It is set to something else than a time.
    pub fn source_date(&self) -> Result<Option<i64>, Failure> {
        self.source_date.clone().map_err(Failure::usage)
    }

    /// The same as a time stamp.
    ///
    /// # Errors
    /// As [`source_date`](Self::source_date).
    pub fn source_time(&self) -> Result<Option<Timestamp>, Failure> {
        let at = |seconds| Timestamp { seconds, nanoseconds: 0 };
        Ok(self.source_date()?.map(at))
    }

    /// A clock that stands at the time of a reproducible build, or the system's.
    ///
    /// # Errors
    /// As [`source_date`](Self::source_date).
    pub fn clock(&self) -> Result<Clock, Failure> {
        Ok(self.source_time()?.map_or(Clock::System, Clock::Fixed))
    }

    /// Prints a line for something that is not as the user may expect.
    pub fn warning(&self, message: impl Display) {
        self.print(&format!("warning: {message}"));
    }

    /// Prints a line for what went another way than the user may think.
    pub fn note(&self, message: impl Display) {
        self.print(&format!("note: {message}"));
    }

    pub(crate) fn print(&self, message: &str) {
        self.caller.print(message);
    }

    pub(crate) fn say(&self, message: &str) -> io::Result<()> {
        self.caller.say(message)
    }
}
