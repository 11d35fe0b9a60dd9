//! Failures: each has a message and a reason.

use std::fmt::{self, Display};
use std::io;

use ironmap::{Errno, Error, ErrorKind, Location};

use crate::needs::{Dimensions, Needs};

/// The reason why an operation failed, in order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The reader of the output has closed its pipe. Nothing failed.
    Unread,
    /// The operation failed.
    Failed,
    /// The arguments request an operation that is not possible.
    Usage,
    /// A volume cannot be opened.
    Refused,
    /// The device returned data that differs from the written data, or the metadata of a volume is inconsistent.
    Corrupt,
    /// The signal with this number arrived.
    Stopped(i32),
}

/// The failure of an operation.
#[derive(Clone, Debug)]
pub struct Failure {
    reason: Reason,
    /// The message. It is empty if the reader of the output has closed its pipe, because there is then nothing to report.
    message: String,
    /// The file or volume with which the message begins.
    place: Option<String>,
    /// The kind of the error, if the library returned it.
    kind: Option<ErrorKind>,
    /// The errno, if a host call failed.
    host: Option<Errno>,
    too_small: Option<Box<TooSmall>>,
    is_of_member: bool,
}

/// A new volume that is too small for its content.
#[derive(Clone, Debug)]
pub struct TooSmall {
    /// The space that all content needs.
    pub needs: Needs,
    /// The dimensions of the volume.
    pub volume: Dimensions,
}

/// Whether the device returned data that differs from the written data: damaged metadata, or a sector that does not match its guard tag.
fn is_corrupt(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io(Errno::EILSEQ))
}

impl Failure {
    /// Creates a failure with this message and [`Reason::Failed`].
    pub fn new(message: impl Into<String>) -> Self {
        Self::with(Reason::Failed, message)
    }

    /// Creates a failure with this reason and message.
    pub fn with(reason: Reason, message: impl Into<String>) -> Self {
        let message = message.into();
        let (place, kind, host, too_small) = (None, None, None, None);
        Self { reason, message, place, kind, host, too_small, is_of_member: false }
    }

    /// Creates the failure for content that does not fit.
    pub(crate) fn no_space(message: impl Into<String>) -> Self {
        Self { kind: Some(ErrorKind::NoSpace), ..Self::new(message) }
    }

    /// Creates the failure for arguments that request an impossible operation.
    pub fn usage(what: impl Display) -> Self {
        Self::with(Reason::Usage, what.to_string())
    }

    /// Creates the failure for arguments that the library refuses.
    pub fn refused_arguments(error: &Error) -> Self {
        Self { kind: Some(error.kind()), ..Self::usage(error) }
    }

    /// Creates the failure to open a volume. The text of the error names the volume.
    pub fn open(error: &Error) -> Self {
        let reason = if is_corrupt(error) { Reason::Corrupt } else { Reason::Refused };
        Self { kind: Some(error.kind()), ..Self::with(reason, error.to_string()) }
    }

    /// Creates the failure to overwrite a device that an array or a volume group uses.
    pub(crate) fn of_member(error: &Error) -> Self {
        Self { is_of_member: true, ..Self::open(error) }
    }

    /// Whether the failure means that an array or a volume group uses the device to overwrite.
    pub fn is_of_member(&self) -> bool {
        self.is_of_member
    }

    /// Creates the failure of an operation on a file of a volume. The message ends with Linux's errno for the error.
    pub fn at(place: impl Display, error: &Error) -> Self {
        let reason = if is_corrupt(error) { Reason::Corrupt } else { Reason::Failed };
        let (place, text) = (place.to_string(), error.to_string());
        // The text of the error may already begin with `place` or with its last component. The message must not contain this name twice.
        let name = place.rsplit('/').find(|name| !name.is_empty()).unwrap_or(&place);
        let named = [place.as_str(), name].into_iter().find_map(|name| text.strip_prefix(name));
        let rest = named.and_then(|rest| rest.strip_prefix(": "));
        let text = rest.unwrap_or(&text);
        let message = match error.kind() {
            ErrorKind::Io(_) => format!("{place}: {text}"),
            _ => format!("{place}: {text} ({:?})", error.errno()),
        };
        let place = Some(place);
        Self { place, kind: Some(error.kind()), ..Self::with(reason, message) }
    }

    /// Appends the cause to the message of the failure.
    pub fn because(self, cause: impl Display) -> Self {
        Self { message: format!("{}: {cause}", self.message), ..self }
    }

    pub(crate) fn needing(self, needs: Needs, volume: Dimensions) -> Self {
        Self { too_small: Some(Box::new(TooSmall { needs, volume })), ..self }
    }

    /// Returns the space that the content needs, if the failure means that a new volume is too small for its content.
    pub fn too_small(&self) -> Option<&TooSmall> {
        self.too_small.as_deref()
    }

    /// Whether a file, or one of the directories in its path, does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self.kind, Some(ErrorKind::NotFound | ErrorKind::NotADirectory))
    }

    /// The kind of the error, if the library returned it.
    pub fn kind(&self) -> Option<ErrorKind> {
        self.kind
    }

    /// Whether the failure is a library error of this kind.
    pub fn is_of(&self, kind: ErrorKind) -> bool {
        self.kind == Some(kind)
    }

    /// Returns the failure after `rename` has changed its texts.
    pub(crate) fn renamed(self, rename: impl Fn(&str) -> String) -> Self {
        let place = self.place.as_deref().map(&rename);
        Self { message: rename(&self.message), place, ..self }
    }

    /// Whether a device failed.
    pub fn is_io(&self) -> bool {
        matches!(self.kind, Some(ErrorKind::Io(_)))
    }

    /// Returns the errno of a host call, if such a call failed.
    pub fn host_errno(&self) -> Option<Errno> {
        self.host
    }

    /// Returns the failure with another reason, which must be more severe than the failure's own reason.
    pub(crate) fn worsened(self, reason: Reason) -> Self {
        Self { reason, ..self }
    }

    /// Whether the volume has no space.
    pub fn is_for_space(&self) -> bool {
        self.is_of(ErrorKind::NoSpace)
    }

    /// Whether the reader of standard output has closed its pipe. The rest of the output is then useless.
    pub fn is_unread(&self) -> bool {
        self.reason == Reason::Unread
    }

    /// Creates the failure for an inconsistency in the metadata of a volume that the library itself does not detect.
    pub fn corrupt(place: impl Display, what: &str) -> Self {
        Self::with(Reason::Corrupt, format!("{place}: {what}"))
    }

    /// Creates the failure of a job that a signal with this number has ended.
    pub fn interrupted(signal: i32) -> Self {
        Self::with(Reason::Stopped(signal), "interrupted")
    }

    /// Returns Linux's errno for the failure, if a call of the host or of the library has failed.
    pub fn errno(&self) -> Option<Errno> {
        self.host.or(self.kind.map(ErrorKind::errno))
    }

    /// Returns the file or volume with which the message begins, or `None` if the failed call does not concern a file or a volume.
    pub fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }

    /// The reason why the operation failed.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Creates the failure of a system call on a file of the host.
    pub fn host(place: impl Display, error: impl Into<io::Error>) -> Self {
        let (error, place) = (error.into(), place.to_string());
        let text = error.to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        let failure = Self::new(format!("{place}: {text}"));
        Self { place: Some(place), host: error.raw_os_error().map(Errno), ..failure }
    }

    /// Creates the failure of a write to standard output. If the reader has closed its pipe, nothing is reported, because the reader needs
    /// no more output.
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

impl std::error::Error for Failure {}

/// The operator `?` converts only errors of standard output. For other errors, [`Failure::host`] creates a failure that names the file.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::stdout(error)
    }
}

/// Adds the name of the volume to an error that does not contain the name of the volume or of its device.
pub fn named(volume: &Location, error: Error) -> Error {
    let (name, medium) = (volume.to_string(), volume.data().medium.to_string());
    if error.names(&name) || error.names(&medium) { error } else { error.at(name) }
}
