//! The reasons for which an operation on an object fails, before they become errors of a version of object_store.

use std::io;

use ironmap::{Error, ErrorKind};

#[derive(Debug)]
pub(crate) enum Failure {
    /// The tree or the device. The kind decides which error of object_store it becomes; the text names the file.
    Io(io::Error),
    /// The object is not the version that the caller wants to replace.
    Changed(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Io(error.into())
    }
}

impl Failure {
    /// The error for an object that ends before the range that was requested.
    pub(crate) fn ends_early(path: &str, end: u64, wanted: u64) -> Self {
        let what = format!("{path}: the object ends at {end}, before {wanted}: it was truncated");
        Self::Io(io::Error::new(io::ErrorKind::UnexpectedEof, what))
    }

    /// The error for a path that no object can have.
    pub(crate) fn path(path: &str, why: &str) -> Self {
        Self::Io(Error::new(ErrorKind::InvalidInput, format!("{path:?} {why}")).into())
    }
}
