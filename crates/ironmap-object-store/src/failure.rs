//! The reasons why an operation on an object fails. Each version of object_store converts these reasons to its own errors.

use std::io;

use ironmap::{Error, ErrorKind};

#[derive(Debug)]
pub(crate) enum Failure {
    /// The tree or the device returned an error. The kind of this error determines the error of object_store. The text names the file.
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
    /// Returns the error for an object that ends before the end of the requested range.
    pub(crate) fn ends_early(path: &str, end: u64, wanted: u64) -> Self {
        let what = format!("{path}: the object ends at {end}, before {wanted}: it was truncated");
        Self::Io(io::Error::new(io::ErrorKind::UnexpectedEof, what))
    }

    /// Returns the error for a path that no object can have.
    pub(crate) fn path(path: &str, why: &str) -> Self {
        Self::Io(Error::new(ErrorKind::InvalidInput, format!("{path:?} {why}")).into())
    }
}
