//! Memory and texts that C code passes.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{ptr, slice};

use ironmap::{Errno, Error};

#[cold]
fn null(what: &'static str) -> Error {
    Error::invalid(format!("{what} is NULL"))
}

#[cold]
fn too_long() -> Error {
    Error::invalid("the memory is longer than the address space")
}

/// Returns the memory of a read as a slice.
///
/// # Safety
/// The memory can be written to for `len` bytes during `'a`, and no other code accesses it.
#[inline(always)]
pub(crate) unsafe fn bytes_mut<'a>(memory: *mut c_void, len: usize) -> Result<&'a mut [u8], Error> {
    if memory.is_null() || len > isize::MAX as usize {
        return empty_or_wrong(memory, len).map(|()| &mut [][..]);
    }
    // SAFETY: the caller guarantees that `memory` can be written to for `len` bytes, and the length was checked.
    Ok(unsafe { slice::from_raw_parts_mut(memory.cast(), len) })
}

/// Returns the memory of a write as a slice.
///
/// # Safety
/// The memory can be read for `len` bytes during `'a`.
#[inline(always)]
pub(crate) unsafe fn bytes<'a>(memory: *const c_void, len: usize) -> Result<&'a [u8], Error> {
    if memory.is_null() || len > isize::MAX as usize {
        return empty_or_wrong(memory, len).map(|()| &[][..]);
    }
    // SAFETY: the caller guarantees that `memory` can be read for `len` bytes, and the length was checked.
    Ok(unsafe { slice::from_raw_parts(memory.cast(), len) })
}

/// Refuses memory at NULL, and memory that is too long. NULL is accepted if the length is 0.
#[cold]
fn empty_or_wrong(memory: *const c_void, len: usize) -> Result<(), Error> {
    match len {
        0 => Ok(()),
        _ if memory.is_null() => Err(Error::io(Errno::EFAULT, "the memory is NULL")),
        _ => Err(too_long()),
    }
}

/// Returns a list of structures that C code passes, as a slice.
///
/// # Safety
/// `list` points to `count` structures that no other code accesses during `'a`.
pub(crate) unsafe fn list_mut<'a, T>(list: *mut T, count: usize) -> Result<&'a mut [T], Error> {
    if count == 0 {
        return Ok(&mut []);
    }
    if list.is_null() {
        return Err(null("the list"));
    }
    if !list.is_aligned() || count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(too_long());
    }
    // SAFETY: the caller guarantees that `list` points to `count` structures, and the length was checked.
    Ok(unsafe { slice::from_raw_parts_mut(list, count) })
}

/// Returns the bytes of a text that C code passes.
///
/// # Safety
/// A text that is not null ends with a zero byte, and does not change during `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &'static str) -> Result<&'a [u8], Error> {
    if text.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller guarantees that a text that is not NULL ends with a zero byte.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Returns a path that C code passes.
///
/// # Safety
/// A path that is not null ends with a zero byte, and does not change during `'a`.
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Result<&'a Path, Error> {
    // SAFETY: the caller guarantees that a path that is not NULL ends with a zero byte.
    let bytes = unsafe { text(path, "the path") }?;
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// Copies a text into a C array, which then ends with a zero byte. A text that is too long is cut at a character boundary.
pub(crate) fn copy_text(text: &[u8], to: &mut [c_char]) {
    let mut len = text.len().min(to.len().saturating_sub(1));
    while len < text.len() && len > 0 && text[len] & 0xc0 == 0x80 {
        len -= 1;
    }
    for (to, from) in to.iter_mut().zip(&text[..len]) {
        *to = from.cast_signed();
    }
    if let Some(end) = to.get_mut(len) {
        *end = 0;
    }
}

/// The maximum size in bytes of a structure in any version.
const MOST: usize = 1 << 16;

/// The caller's memory for a result. The caller may be compiled for another version of the library, in which the structure has another
/// size.
pub(crate) struct Out<T> {
    place: *mut T,
    size: usize,
}

impl<T: Copy> Out<T> {
    /// # Safety
    /// `place` can be written to for `size` bytes until the value has been [set](Self::set).
    ///
    /// # Errors
    /// `InvalidInput` if the place is NULL, or the size of the structure is too large.
    pub(crate) unsafe fn new(place: *mut T, size: usize) -> Result<Self, Error> {
        match () {
            () if place.is_null() => Err(null("the structure")),
            () if size > MOST => Err(Error::invalid("the size of the structure is too large")),
            () => Ok(Self { place, size }),
        }
    }

    /// Writes the part of the value that the caller knows. If the structure of a newer caller is larger, the rest becomes zero.
    pub(crate) fn set(self, value: T) {
        let known = self.size.min(size_of::<T>());
        // SAFETY: `new` requires that the place can be written to for `size` bytes, and `known` is at most `size` and at most the size of
        // the value.
        unsafe {
            ptr::copy_nonoverlapping(ptr::from_ref(&value).cast::<u8>(), self.place.cast(), known);
        };
        // SAFETY: the offset is not larger than the size of the place.
        let rest = unsafe { self.place.cast::<u8>().add(known) };
        // SAFETY: after `known` bytes, the place has `size - known` more bytes.
        unsafe { ptr::write_bytes(rest, 0, self.size - known) };
    }
}

/// Reads a structure of options. The caller may be compiled for another version of the library, in which the structure has another size.
/// NULL means the default options.
///
/// # Safety
/// `options` is NULL or can be read for `size` bytes. A value of `T` may have any bytes.
///
/// # Errors
/// `Io` with E2BIG if a larger structure, of a newer caller, has an option that this version does not know.
pub(crate) unsafe fn options<T: Copy + Default>(
    options: *const T,
    size: usize,
) -> Result<T, Error> {
    let mut known = T::default();
    if options.is_null() {
        return Ok(known);
    }
    if size > MOST {
        return Err(Error::invalid("the size of the structure is too large"));
    }
    // SAFETY: the caller guarantees that `options` can be read for `size` bytes.
    let given = unsafe { slice::from_raw_parts(options.cast::<u8>(), size) };
    let (given, unknown) = given.split_at(size.min(size_of::<T>()));
    if unknown.iter().any(|byte| *byte != 0) {
        let what = "this version of the library does not know one of the options";
        return Err(Error::io(Errno::E2BIG, what));
    }
    // SAFETY: `given` is at most as long as the structure, and any bytes are a valid value of the structure.
    unsafe {
        ptr::copy_nonoverlapping(given.as_ptr(), ptr::from_mut(&mut known).cast(), given.len());
    };
    Ok(known)
}

/// Returns the place of a new handle, and sets it to NULL. It stays NULL if the call fails.
///
/// # Safety
/// `place` is NULL or can be written to.
pub(crate) unsafe fn place_of_handle<'a, T>(place: *mut *mut T) -> Result<&'a mut *mut T, Error> {
    // SAFETY: the caller guarantees that `place` is NULL or can be written to.
    match unsafe { place.as_mut() } {
        Some(place) => {
            *place = ptr::null_mut();
            Ok(place)
        }
        None => Err(null("the place of the handle")),
    }
}

/// Copies a value to memory of the caller, as `getxattr` and `readlink` do: with a size of 0, only the length is returned.
///
/// # Safety
/// The memory can be written to for `size` bytes.
///
/// # Errors
/// `Io` with ERANGE if the value is longer than the memory.
pub(crate) unsafe fn copy_value(
    value: &[u8],
    memory: *mut c_void,
    size: usize,
) -> Result<usize, Error> {
    if size > 0 {
        // SAFETY: the caller guarantees that `memory` can be written to for `size` bytes.
        let memory = unsafe { bytes_mut(memory, size) }?;
        let too_small = || {
            Error::io(
                Errno::ERANGE,
                format!("the value has {} bytes, but the memory has only {size}", value.len()),
            )
        };
        memory.get_mut(..value.len()).ok_or_else(too_small)?.copy_from_slice(value);
    }
    Ok(value.len())
}
