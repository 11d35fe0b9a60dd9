//! Converts errors of the library to exceptions of Python.

use ironmap::{Errno, Error};
use ironmap_image::{Failure as ImageFailure, Reason};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

/// The failure of a call that runs without the GIL.
pub(crate) enum Failure {
    /// The handle or its store was closed.
    Closed,
    Library(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

/// Returns the exception for a closed handle. It is the exception that the module io uses.
pub(crate) fn closed() -> PyErr {
    PyValueError::new_err("I/O operation on closed file or volume")
}

impl Failure {
    /// Converts the failure to an exception. An error of the library becomes the subclass of `OSError` for its errno.
    #[cold]
    pub(crate) fn at(self, py: Python<'_>, path: &[u8]) -> PyErr {
        let error = match self {
            Self::Closed => return closed(),
            Self::Library(error) => error,
        };
        let name = String::from_utf8_lossy(path);
        // Python shows the name after the text, so this code removes the name from the start of the text.
        let line = error.shown_at(&name).to_string();
        let text = line.strip_prefix(&format!("{name}: ")).unwrap_or(&line).to_owned();
        match decoded(py, path) {
            Ok(path) => PyOSError::new_err((error.errno().0, text, path)),
            Err(error) => error,
        }
    }
}

/// Returns the exception for a failure of a job on an image: the subclass of `OSError` for its errno, with the name of the file that
/// failed.
#[cold]
pub(crate) fn of_image(py: Python<'_>, failure: &ImageFailure, image: &[u8]) -> PyErr {
    let errno = failure.errno().unwrap_or(match failure.reason() {
        Reason::Usage => Errno::EINVAL,
        Reason::Corrupt => Errno::EUCLEAN,
        _ => Errno::EIO,
    });
    let (line, name) = (failure.to_string(), String::from_utf8_lossy(image));
    // `place` is the name with which the text begins: the name of the image or of another file. This code removes it from the text, because
    // Python shows the name after the text.
    let place = failure.place().unwrap_or(&name);
    let Some(text) = line.strip_prefix(place).and_then(|rest| rest.strip_prefix(": ")) else {
        return PyOSError::new_err((errno.0, line));
    };
    let text = text.strip_suffix(&format!(" ({errno:?})")).unwrap_or(text).to_owned();
    let bytes = if place == name { image } else { place.as_bytes() };
    match decoded(py, bytes) {
        Ok(place) => PyOSError::new_err((errno.0, text, place)),
        Err(error) => error,
    }
}

/// Returns a name or a path as a `str`. The encoding depends on the locale, so that `os.fsencode` gives the same bytes again.
pub(crate) fn decoded(py: Python<'_>, bytes: &[u8]) -> PyResult<Py<PyAny>> {
    static FSDECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let fsdecode = FSDECODE.import(py, "os", "fsdecode")?;
    Ok(fsdecode.call1((PyBytes::new(py, bytes),))?.unbind())
}
