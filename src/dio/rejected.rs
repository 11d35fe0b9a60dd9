//! The error of a request that was not started. The error returns the memory to the caller.

use std::fmt;

use crate::bio::Memory;
use crate::error::Error;

/// The error of a request that was not started, with the memory of the request.
#[derive(Debug)]
#[non_exhaustive]
pub struct Rejected {
    /// The reason.
    pub error: Error,
    /// The memory that the request was to use.
    pub memory: Memory,
}

impl Rejected {
    /// Creates the error in a box, so that the result of a submission fits in one register.
    #[cold]
    pub(crate) fn boxed(error: Error, memory: Memory) -> Box<Self> {
        Box::new(Self { error, memory })
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Rejected {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl From<Rejected> for Error {
    fn from(rejected: Rejected) -> Self {
        rejected.error
    }
}

impl From<Box<Rejected>> for Error {
    fn from(rejected: Box<Rejected>) -> Self {
        rejected.error
    }
}
