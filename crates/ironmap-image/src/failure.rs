//! Failures: a message each, and the reason.

use std::fmt::{self, Display};
use std::io;

use ironmap::{Errno, Error, ErrorKind};

/// Why an operation failed, from the least to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The reader of the output has gone, and wants no more of it: nothing failed.
    Unread,
    /// The operation failed.
    Failed,
    /// The arguments ask for something impossible.
    Usage,
    /// A volume cannot be opened.
    Refused,
    /// The device returned other data than were written, or a volume contradicts itself.
    Corrupt,
    /// The signal of this number came.
    Stopped(i32),
}

/// Something that failed.
#[derive(Debug)]
pub struct Failure {
    reason: Reason,
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
    pub fn new(message: impl Into<String>) -> Self {
        Self::with(Reason::Failed, message)
    }

    /// The same for another reason.
    pub fn with(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), kind: None }
    }

    /// Arguments that ask for something impossible.
    pub fn usage(what: impl Display) -> Self {
        Self::with(Reason::Usage, what.to_string())
    }

    /// A volume that cannot be opened. The error names it.
    pub fn open(error: &Error) -> Self {
        let reason = if is_corrupt(error) { Reason::Corrupt } else { Reason::Refused };
        Self { kind: Some(error.kind()), ..Self::with(reason, error.to_string()) }
    }

    /// An operation on something in a volume. The errno that Linux would have given stands at the end.
    pub fn at(place: impl Display, error: &Error) -> Self {
        let reason = if is_corrupt(error) { Reason::Corrupt } else { Reason::Failed };
        let (place, text) = (place.to_string(), error.to_string());
        // The end of a path is named already.
        let name = place.rsplit('/').find(|name| !name.is_empty()).unwrap_or(&place);
        let named = [place.as_str(), name].into_iter().find_map(|name| text.strip_prefix(name));
        let rest = named.and_then(|rest| rest.strip_prefix(": "));
        let text = rest.unwrap_or(&text);
        let message = match error.kind() {
            ErrorKind::Io(_) => format!("{place}: {text}"),
            _ => format!("{place}: {text} ({:?})", error.errno()),
        };
        Self { kind: Some(error.kind()), ..Self::with(reason, message) }
    }

    /// The same, and the cause beside it.
    pub fn because(self, cause: impl Display) -> Self {
        Self { message: format!("{}: {cause}", self.message), ..self }
    }

    /// Whether it says that a file is not there, nor could be.
    pub fn is_missing(&self) -> bool {
        matches!(self.kind, Some(ErrorKind::NotFound | ErrorKind::NotADirectory))
    }

    /// Whether the library failed for this reason.
    pub fn is_of(&self, kind: ErrorKind) -> bool {
        self.kind == Some(kind)
    }

    /// Whether a device failed.
    pub fn is_io(&self) -> bool {
        matches!(self.kind, Some(ErrorKind::Io(_)))
    }

    /// Whether it says that there is no room.
    pub fn is_for_space(&self) -> bool {
        self.is_of(ErrorKind::NoSpace)
    }

    /// Whether the reader of standard output has gone: nobody wants the rest.
    pub fn is_unread(&self) -> bool {
        self.reason == Reason::Unread
    }

    /// A volume that contradicts itself in a way that the library does not look for.
    pub fn corrupt(place: impl Display, what: &str) -> Self {
        Self::with(Reason::Corrupt, format!("{place}: {what}"))
    }

    /// The signal of this number asked for the end.
    pub fn interrupted(signal: i32) -> Self {
        Self::with(Reason::Stopped(signal), "interrupted")
    }

    /// Why it failed.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// An operation of the host's on something of the host's.
    pub fn host(place: impl Display, error: impl Into<io::Error>) -> Self {
        let text = error.into().to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        Self::new(format!("{place}: {text}"))
    }

    /// Writing to standard output. A reader that has gone is no failure: it has read what it wanted.
    pub fn stdout(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::with(Reason::Unread, "");
        }
        Self::host("standard output", error)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// `?` converts errors of standard output only. Other errors name their place.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::stdout(error)
    }
}
