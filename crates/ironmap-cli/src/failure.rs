//! Failures: one line on standard error each, and the exit code.

use std::fmt::{self, Display};
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::error::{ContextKind, ContextValue, ErrorKind as ClapKind};
use ironmap::{Errno, Error, ErrorKind};

use crate::progress::Progress;
use crate::terminal::{one_line, print_line};

/// The exit codes; the help of the program and docs/CLI.md describe them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Code {
    Success = 0,
    Failed = 1,
    Usage = 2,
    Refused = 3,
    Corrupt = 4,
    /// This and the next: 128 and the signal's number, as shells have it.
    HungUp = 129,
    Interrupted = 130,
    Terminated = 143,
}

/// Whether all failures have one code.
static ONE_CODE: AtomicBool = AtomicBool::new(false);

/// From now on each failure ends the program with code 1, as the programs of e2fsprogs end.
pub(crate) fn set_one_code() {
    ONE_CODE.store(true, Ordering::Relaxed);
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        let failed = code > Code::Success && code < Code::HungUp;
        let code = if failed && ONE_CODE.load(Ordering::Relaxed) { Code::Failed } else { code };
        Self::from(code as u8)
    }
}

/// Something that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    code: Code,
    /// Empty where there is nothing to say: the reader of a pipe has gone.
    message: String,
    /// The library's kind of error.
    kind: Option<ErrorKind>,
}

/// Whether the device returned other data than were written: damaged metadata, or a sector that does not match its tag.
fn is_corrupt(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io(Errno::EILSEQ))
}

impl Failure {
    /// An operation that failed for the reason given.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::with(Code::Failed, message)
    }

    fn with(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), kind: None }
    }

    /// A command line that asks for something impossible, and that the parser lets through.
    pub(crate) fn usage(what: impl Display) -> Self {
        Self::with(Code::Usage, what.to_string())
    }

    /// A volume that cannot be opened. The error names it.
    pub(crate) fn open(error: &Error) -> Self {
        let code = if is_corrupt(error) { Code::Corrupt } else { Code::Refused };
        Self { kind: Some(error.kind()), ..Self::with(code, error.to_string()) }
    }

    /// An operation on something in a volume. The errno that Linux would have given stands at the end.
    pub(crate) fn at(place: impl Display, error: &Error) -> Self {
        let code = if is_corrupt(error) { Code::Corrupt } else { Code::Failed };
        let place = place.to_string();
        let message = match error.kind() {
            ErrorKind::Io(_) => error.shown_at(&place).to_string(),
            _ => format!("{} ({:?})", error.shown_at(&place), error.errno()),
        };
        Self { kind: Some(error.kind()), ..Self::with(code, message) }
    }

    /// The same, and the cause beside it.
    pub(crate) fn because(self, cause: impl Display) -> Self {
        Self { message: format!("{}: {cause}", self.message), ..self }
    }

    /// The last commit of a mounted volume: programs that wrote to it get no other error.
    pub(crate) fn lost(volume: impl Display, error: &Error) -> Self {
        Self::with(
            Code::Corrupt,
            format!(
                "{volume}: closed with an error; changes that were not synced may be lost: {error}"
            ),
        )
    }

    /// The same, as the program told it that served the volume.
    pub(crate) fn lost_with(message: &str) -> Self {
        Self::with(Code::Corrupt, message)
    }

    /// A mounted volume whose server has ended without a word.
    pub(crate) fn not_closed(place: impl Display) -> Self {
        Self::with(
            Code::Corrupt,
            format!(
                "{place}: its server ended without closing the volume: changes that were not synced are lost, and the rest is recovered when \
                 it is opened"
            ),
        )
    }

    /// Whether it says that a file is not there, nor could be.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self.kind, Some(ErrorKind::NotFound | ErrorKind::NotADirectory))
    }

    /// Whether the library failed for this reason.
    pub(crate) fn is_of(&self, kind: ErrorKind) -> bool {
        self.kind == Some(kind)
    }

    /// Whether a device failed.
    pub(crate) fn is_io(&self) -> bool {
        matches!(self.kind, Some(ErrorKind::Io(_)))
    }

    /// Whether it says that there is no room.
    pub(crate) fn is_for_space(&self) -> bool {
        self.is_of(ErrorKind::NoSpace)
    }

    /// Whether the reader of standard output has gone: nobody wants the rest.
    pub(crate) fn is_unread(&self) -> bool {
        self.code == Code::Success
    }

    /// A volume that contradicts itself in a way that the library does not look for.
    pub(crate) fn corrupt(place: impl Display, what: &str) -> Self {
        Self::with(Code::Corrupt, format!("{place}: {what}"))
    }

    /// The user wanted no more of it.
    pub(crate) fn interrupted(code: Code) -> Self {
        Self::with(code, "interrupted")
    }

    /// A failure that another process has reported already; it ended with this code.
    pub(crate) fn told(code: i32) -> Self {
        let codes = [Code::Usage, Code::Refused, Code::Corrupt];
        let code = codes.into_iter().find(|known| *known as i32 == code);
        Self::with(code.unwrap_or(Code::Failed), "")
    }

    /// An operation of the host's on something of the host's.
    pub(crate) fn host(place: impl Display, error: impl Into<io::Error>) -> Self {
        let text = error.into().to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        Self::new(format!("{place}: {text}"))
    }

    /// Writing to standard output. A reader that has gone is no failure: it has read what it wanted.
    pub(crate) fn stdout(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::with(Code::Success, "");
        }
        Self::host("standard output", error)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The only errors of this kind that commands meet with `?` are those of standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::stdout(error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::stdout(error.into())
    }
}

/// The failures so far.
pub(crate) struct Report {
    worst: Code,
    /// Lines are printed above it.
    pub(crate) progress: Progress,
}

impl Default for Report {
    fn default() -> Self {
        Self { worst: Code::Success, progress: Progress::hidden() }
    }
}

impl Report {
    /// Prints a failure and remembers its code.
    pub(crate) fn error(&mut self, failure: &Failure) {
        if failure.code >= Code::HungUp && self.worst >= Code::HungUp {
            return;
        }
        self.worst = self.worst.max(failure.code);
        if !failure.message.is_empty() {
            self.line(&failure.message);
        }
    }

    /// Works on each of several files: a failure is reported, and the rest goes on.
    pub(crate) fn each<T>(
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

    /// Prints a line that does not change the exit code.
    pub(crate) fn warning(&self, message: impl Display) {
        self.line(&format!("warning: {message}"));
    }

    /// The same for what went another way than the user may think.
    pub(crate) fn note(&self, message: impl Display) {
        self.line(&format!("note: {message}"));
    }

    /// A line on standard output about finished work, for `-v`. Where its reader has gone the work goes on.
    pub(crate) fn say(&self, message: impl Display) -> Result<(), Failure> {
        let line = one_line(&message.to_string());
        let said = self.progress.suspend(|| print_line(&line));
        said.map_err(Failure::stdout).or_else(|failure| match failure.is_unread() {
            true => Ok(()),
            false => Err(failure),
        })
    }

    fn line(&self, message: &str) {
        // Where nobody reads it, the exit code tells.
        let print = || writeln!(io::stderr(), "ironmap: {}", one_line(message));
        let _ = self.progress.suspend(print);
    }

    /// The worst code of all.
    pub(crate) fn exit_code(&self) -> ExitCode {
        self.worst.into()
    }
}

/// Prints a line for what went another way than the user may think, before anything is done.
pub(crate) fn note(message: impl Display) {
    Report::default().note(message);
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Report").field("worst", &self.worst).finish_non_exhaustive()
    }
}

/// The output of the command line's parser: help and version as they are, an error as one line that names the help of the command.
pub(crate) fn usage(error: &clap::Error, command: &str) -> ExitCode {
    if matches!(error.kind(), ClapKind::DisplayHelp | ClapKind::DisplayVersion) {
        let mut report = Report::default();
        if let Err(error) = error.print().and_then(|()| io::stdout().flush()) {
            report.error(&Failure::stdout(error));
        }
        return report.exit_code();
    }
    if error.kind() == ClapKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return misused("a command is missing", command);
    }
    let text = error.to_string();
    let message = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    let message = match (error.kind(), error.get(ContextKind::ValidSubcommand)) {
        (ClapKind::MissingSubcommand, Some(ContextValue::Strings(names))) => {
            format!("a command is missing: one of {}", names.join(", "))
        }
        (ClapKind::MissingRequiredArgument, _) => {
            let usage = text.lines().find_map(|line| line.strip_prefix("Usage: "));
            match (error.get(ContextKind::InvalidArg), usage) {
                (Some(ContextValue::Strings(missing)), Some(usage)) => {
                    format!("missing {}: write {usage}", missing.join(" "))
                }
                _ => message.to_owned(),
            }
        }
        _ => message.to_owned(),
    };
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    misused(&one_line(&message), command)
}

fn misused(what: &str, command: &str) -> ExitCode {
    // Where nobody reads it, the exit code tells.
    let _ = writeln!(io::stderr(), "ironmap: {what}; see {command} --help");
    Code::Usage.into()
}
