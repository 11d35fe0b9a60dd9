//! The context of a job, such as a copy: one value with all data that the caller passes to the job. All parts of the job use this value.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ironmap::device::BlockFile;
use ironmap::fs::{Clock, Timestamp};
use ironmap::{Location, Volume, VolumeOptions};

use crate::failure::Failure;
use crate::opening::Opening;
use crate::progress::Bar;
use crate::stop::Stop;

/// The functions of a job's caller. Several threads call them.
pub trait Caller: Send + Sync {
    /// Prints one message: an error, a warning or a note. The message may contain any character.
    fn print(&self, message: &str);

    /// Prints a message that reports finished work.
    ///
    /// # Errors
    /// `BrokenPipe` if the reader of these messages has closed its pipe.
    fn say(&self, message: &str) -> io::Result<()>;

    /// Starts the progress display of a copy. Returns `None` if the progress is not shown.
    fn show_progress(&self) -> Option<Arc<dyn Bar>>;

    /// Prepares for signals. The job calls this function before it changes a volume. From this call on, a signal must set the job's
    /// [`Stop`], and must not end the process.
    fn catch_signals(&self);

    /// Opens a volume.
    ///
    /// # Errors
    /// The errors of the library.
    fn open(&self, location: &Location, options: &VolumeOptions) -> ironmap::Result<Volume> {
        options.open(location)
    }
}

/// The data that all parts of a job use.
pub struct Context {
    pub(crate) caller: Box<dyn Caller>,
    stop: Stop,
    pub(crate) opening: Opening,
    /// The time of a reproducible build, in seconds since 1970, or the reason why the caller's text is not a time.
    source_date: Result<Option<i64>, String>,
    /// The faults of devices that were already reported.
    pub(crate) told: Mutex<BTreeSet<String>>,
    /// The first volume that was opened with a realtime device.
    pub(crate) realtime_of: OnceLock<Location>,
    /// The location of the new image that the job makes, and its current location under a temporary name.
    aside: Mutex<Option<(Location, Location)>>,
    /// The location that the job holds, with the open file that has the locks.
    pub(crate) held: Mutex<Option<(Location, BlockFile)>>,
}

impl Context {
    /// Creates a context. `source_date` is the time of a reproducible build, in seconds since 1970. If it is set, all timestamps are this
    /// time, and no value is random. If `source_date` is an error, only jobs that need the time fail.
    pub fn new(
        caller: Box<dyn Caller>,
        stop: Stop,
        opening: Opening,
        source_date: Result<Option<i64>, String>,
    ) -> Arc<Self> {
        let (told, realtime_of) = (Mutex::default(), OnceLock::new());
        let (aside, held) = (Mutex::default(), Mutex::default());
        Arc::new(Self { caller, stop, opening, source_date, told, realtime_of, aside, held })
    }

    /// Makes the job use the file at `path`, a temporary name, in place of the file of `volume`, until [`end_aside`](Self::end_aside) is
    /// called.
    pub(crate) fn make_aside(&self, volume: &Location, path: &Path) {
        let aside = volume.with_paths(&|_| Some(path.to_owned()));
        *self.aside() = Some((volume.clone(), aside));
    }

    /// Ends the use of a temporary name after the image has been given its final name or has been removed.
    ///
    /// # Errors
    /// The failure of `made`, with the final name instead of the temporary name.
    pub fn end_aside<T>(&self, made: Result<T, Failure>) -> Result<T, Failure> {
        let made = made.map_err(|failure| failure.renamed(|text| self.with_final_name(text)));
        *self.aside() = None;
        made
    }

    /// Returns the text in which the final name of the new image replaces its temporary name.
    fn with_final_name(&self, text: &str) -> String {
        let Some((volume, aside)) = &*self.aside() else { return text.to_owned() };
        let text = text.replace(&aside.to_string(), &volume.to_string());
        // If a source tree contains the image, the text may name the image by a path that differs from its location. Therefore, this code
        // also replaces the last component of the path.
        match [aside, volume].map(|location| location.whole_file().and_then(Path::file_name)) {
            [Some(aside), Some(name)] => {
                text.replace(&*aside.to_string_lossy(), &name.to_string_lossy())
            }
            _ => text,
        }
    }

    /// Returns the location at which a volume can be opened now. For a new image that is not complete, this is its temporary name.
    pub(crate) fn place_of(&self, location: &Location) -> Location {
        match &*self.aside() {
            Some((volume, aside)) if volume == location => aside.clone(),
            _ => location.clone(),
        }
    }

    fn aside(&self) -> MutexGuard<'_, Option<(Location, Location)>> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the request to end the job early.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Returns the time of a reproducible build, in seconds since 1970, or `None` if it is not set.
    ///
    /// # Errors
    /// Fails if the time is set, but its text is not a time.
    pub fn source_date(&self) -> Result<Option<i64>, Failure> {
        self.source_date.clone().map_err(Failure::usage)
    }

    /// Returns the time of a reproducible build as a timestamp.
    ///
    /// # Errors
    /// The errors of [`source_date`](Self::source_date).
    pub fn source_time(&self) -> Result<Option<Timestamp>, Failure> {
        let at = |seconds| Timestamp { seconds, nanoseconds: 0 };
        Ok(self.source_date()?.map(at))
    }

    /// Returns a clock that always shows the time of a reproducible build, or the system's clock.
    ///
    /// # Errors
    /// The errors of [`source_date`](Self::source_date).
    pub fn clock(&self) -> Result<Clock, Failure> {
        Ok(self.source_time()?.map_or(Clock::System, Clock::Fixed))
    }

    /// Prints a warning.
    pub fn warning(&self, message: impl Display) {
        self.print(&format!("warning: {message}"));
    }

    /// Prints a note: the job did something that the user may not expect.
    pub fn note(&self, message: impl Display) {
        self.print(&format!("note: {message}"));
    }

    pub(crate) fn print(&self, message: &str) {
        self.caller.print(&self.with_final_name(message));
    }

    pub(crate) fn say(&self, message: &str) -> io::Result<()> {
        self.caller.say(message)
    }
}
