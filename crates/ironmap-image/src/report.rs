//! Records the failures of a job, and passes its messages to the caller.

use std::fmt::{self, Display};
use std::sync::Arc;

use crate::context::Context;
use crate::failure::{Failure, Reason};
use crate::progress::Progress;
use crate::stop::Stop;

/// The state of a job: its worst failure so far, and its progress.
pub struct Report {
    worst: Option<Reason>,
    first: Option<Failure>,
    /// The progress of the job. It is not shown until [`show_progress`](Self::show_progress) is called.
    pub progress: Progress,
    context: Arc<Context>,
}

impl Report {
    /// The report of a job without failures.
    pub fn new(context: Arc<Context>) -> Self {
        Self { worst: None, first: None, progress: Progress::hidden(), context }
    }

    /// Returns the data that the job got from its caller.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the request to end the job early.
    pub fn stop(&self) -> &Stop {
        self.context.stop()
    }

    /// Shows the progress of a copy whose totals are not known.
    pub fn show_progress(&mut self) {
        self.progress = Progress::shown(&self.context);
    }

    /// Prints a failure and records its reason.
    pub fn error(&mut self, failure: &Failure) {
        let (reason, stopped) = (failure.reason(), |reason| matches!(reason, Reason::Stopped(_)));
        if stopped(reason) && self.worst.is_some_and(stopped) {
            return;
        }
        self.worst = self.worst.max(Some(reason));
        let message = failure.to_string();
        if !message.is_empty() {
            self.context.print(&message);
        }
        self.first.get_or_insert_with(|| failure.clone());
    }

    /// Fails if any failure was reported.
    ///
    /// # Errors
    /// Returns the first failure. Its reason is the most severe reason of all failures.
    pub fn result(&self) -> Result<(), Failure> {
        match (self.worst, &self.first) {
            (Some(worst), Some(first)) => Err(first.clone().worsened(worst)),
            _ => Ok(()),
        }
    }

    /// Calls a function for each of several files. A failure is reported, and the other files are still processed.
    ///
    /// # Errors
    /// Fails if the reader of the output has closed its pipe.
    pub fn each<T>(
        &mut self,
        items: &[T],
        mut work: impl FnMut(&T, &mut Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for item in items {
            match work(item, self) {
                Err(failure) if failure.is_unread() => return Err(failure),
                Err(failure) => self.error(&failure),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Prints a warning, which does not change the result.
    pub fn warning(&self, message: impl Display) {
        self.context.warning(message);
    }

    /// Prints a note, which does not change the result.
    pub fn note(&self, message: impl Display) {
        self.context.note(message);
    }

    /// Prints a line about finished work on standard output, for `-v`. If the reader of standard output has closed its pipe, the work
    /// continues.
    ///
    /// # Errors
    /// Fails if the line cannot be written.
    pub fn say(&self, message: impl Display) -> Result<(), Failure> {
        let said = self.context.say(&message.to_string()).map_err(Failure::stdout);
        said.or_else(|failure| if failure.is_unread() { Ok(()) } else { Err(failure) })
    }

    /// The most severe reason of all failures.
    pub fn worst(&self) -> Option<Reason> {
        self.worst
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Report").field("worst", &self.worst).finish_non_exhaustive()
    }
}
