//! Lends the memory of Python objects (bytearray, memoryview, arrays) to the library for one call.
//!
//! While a buffer is exported, Python does not free or resize it. The memory is released at the end of the call, even after an error.
#![allow(unsafe_code, reason = "Python exports memory by its address")]

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::{ptr, slice};

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// The exported memory of an object. After Python has filled `view`, this value must not move, because an exporter may keep the address of
/// the `Py_buffer`.
struct View {
    view: MaybeUninit<ffi::Py_buffer>,
    filled: bool,
}

impl View {
    const EMPTY: Self = Self { view: MaybeUninit::uninit(), filled: false };

    /// Exports the contiguous bytes of an object. Returns their address and their number.
    #[inline]
    fn fill(&mut self, object: &Bound<'_, PyAny>, flags: i32) -> PyResult<(*mut u8, usize)> {
        // Some arrays of numpy, such as arrays of times, have no format. They contain no references.
        if self.export(object, flags | ffi::PyBUF_ND | ffi::PyBUF_FORMAT).is_err() {
            self.export(object, flags | ffi::PyBUF_SIMPLE)?;
        }
        // SAFETY: Python has initialised `self.view`.
        let view = unsafe { self.view.assume_init_ref() };
        if flags & ffi::PyBUF_WRITABLE != 0 && has_references(view) {
            return Err(PyBufferError::new_err("the elements of the array are Python objects"));
        }
        let base = if view.buf.is_null() { ptr::dangling_mut() } else { view.buf.cast() };
        Ok((base, usize::try_from(view.len).unwrap_or(0)))
    }

    #[inline]
    fn export(&mut self, object: &Bound<'_, PyAny>, flags: i32) -> PyResult<()> {
        // SAFETY: the object is alive and the GIL is held, as `Bound` proves. Python initialises `self.view` if the call returns 0.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), self.view.as_mut_ptr(), flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        self.filled = true;
        Ok(())
    }
}

/// Whether the memory contains references to Python objects. If bytes of a file replaced them, Python would crash.
#[inline]
fn has_references(view: &ffi::Py_buffer) -> bool {
    if view.format.is_null() {
        return false;
    }
    // SAFETY: a format that is not null ends with a zero, and is valid until the view is released.
    let format = unsafe { CStr::from_ptr(view.format) };
    // Colons enclose the names of fields.
    format.to_bytes().split(|byte| *byte == b':').step_by(2).any(|kinds| kinds.contains(&b'O'))
}

impl Drop for View {
    #[inline]
    fn drop(&mut self) {
        if self.filled {
            // SAFETY: `self.view` is filled, and it is released only once. The GIL is held, because a view is not `Send`, and only
            // functions with a `Bound` have a view.
            unsafe { ffi::PyBuffer_Release(self.view.as_mut_ptr()) };
        }
    }
}

/// Calls `work` with the bytes of a writable object.
///
/// # Errors
/// `BufferError` if the object is read-only, its memory is not contiguous, or its elements are Python objects; `TypeError` if the object
/// has no memory.
#[inline]
pub(crate) fn with_writable<R>(
    object: &Bound<'_, PyAny>,
    work: impl FnOnce(&mut [u8]) -> R,
) -> PyResult<R> {
    let mut view = View::EMPTY;
    let (base, len) = view.fill(object, ffi::PyBUF_WRITABLE)?;
    // SAFETY: the memory is exported for writing until `view` is dropped, so it is valid for `len` bytes. Python does not guarantee
    // exclusive access: another thread can access the bytes during the call, as it can during `readinto` of any Python file. The library
    // only passes the memory to the kernel or copies to it, and makes no decision that depends on its content.
    Ok(work(unsafe { slice::from_raw_parts_mut(base, len) }))
}

/// Calls `work` with the bytes of an object.
///
/// # Errors
/// The errors of [`with_writable`], except for read-only objects.
#[inline]
pub(crate) fn with_readable<R>(
    object: &Bound<'_, PyAny>,
    work: impl FnOnce(&[u8]) -> R,
) -> PyResult<R> {
    let mut view = View::EMPTY;
    let (base, len) = view.fill(object, 0)?;
    // SAFETY: the memory is exported until `view` is dropped, so it is valid for `len` bytes. `work` only reads it. As in `with_writable`,
    // another thread can change the bytes during the call. The library only passes them to the kernel or copies them, and makes no decision
    // that depends on them.
    Ok(work(unsafe { slice::from_raw_parts(base, len) }))
}

/// Calls `work` with the bytes of all writable objects in a list of tuples `(position, object)`.
///
/// A view keeps its object alive, so no other reference to the object is needed, even if another thread changes the list.
///
/// # Errors
/// The errors of [`with_writable`] and of `position`; `TypeError` for other items; `ValueError` if two objects share bytes.
pub(crate) fn with_all_writable<R>(
    ranges: &Bound<'_, PyList>,
    position: impl Fn(i64) -> PyResult<u64>,
    work: impl FnOnce(Vec<(u64, &mut [u8])>) -> R,
) -> PyResult<R> {
    let mut views: Box<[View]> = (0..ranges.len()).map(|_| View::EMPTY).collect();
    let mut places = Vec::with_capacity(views.len());
    let mut ascending = true;
    let mut end = 0;
    for (range, view) in ranges.iter().zip(&mut views) {
        let pair = range.cast::<PyTuple>()?;
        if pair.len() != 2 {
            return Err(PyTypeError::new_err("a range is a tuple of a position and a buffer"));
        }
        let position = position(pair.get_borrowed_item(0)?.extract()?)?;
        let object = pair.get_borrowed_item(1)?;
        let (base, len) = view.fill(&object, ffi::PyBUF_WRITABLE)?;
        ascending &= len == 0 || base.addr() >= end;
        end = end.max(base.addr() + len);
        places.push((position, base, len));
    }
    if !ascending && overlap(&places) {
        return Err(PyValueError::new_err("two of the buffers share memory"));
    }
    let bytes = places.into_iter().map(|(position, base, len)| {
        // SAFETY: the memory is exported for writing until `views` is dropped, which happens after `work` has returned. No two slices
        // overlap. As in `with_writable`, another thread can access the bytes, but the library makes no decision that depends on them.
        (position, unsafe { slice::from_raw_parts_mut(base, len) })
    });
    let result = work(bytes.collect());
    drop(views);
    Ok(result)
}

fn overlap(places: &[(u64, *mut u8, usize)]) -> bool {
    let mut ranges: Vec<_> = places
        .iter()
        .filter(|(_, _, len)| *len > 0)
        .map(|(_, base, len)| (base.addr(), base.addr() + len))
        .collect();
    ranges.sort_unstable();
    ranges.windows(2).any(|pair| pair[0].1 > pair[1].0)
}
