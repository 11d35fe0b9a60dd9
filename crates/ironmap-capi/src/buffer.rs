//! Buffers: memory that requests may use after the caller has freed it.
//!
//! A request holds its buffer, so the memory stays valid until the request is complete. Any thread may use a buffer.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ironmap::{Buffer, Errno, Error, Queue};
use parking_lot::Mutex;

use crate::failure::{call, forget};
use crate::handle::Handle;
use crate::memory::place_of_handle;
use crate::tables::{BUFFERS, ironmap_buffer};

/// The memory of a buffer. Requests use aliases of it.
pub(crate) struct Memory {
    buffer: Mutex<Buffer>,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: `base` is the address of memory that the buffer owns. C code and requests access the memory as the contract of each function
// states.
unsafe impl Send for Memory {}
// SAFETY: the proof of `Send` also applies here: `base` is memory that the buffer owns, and the contract of each function states how C code
// and requests access the memory.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(mut buffer: Buffer) -> Self {
        let len = buffer.len();
        let base = NonNull::new(buffer.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Self { buffer: Mutex::new(buffer), base, len }
    }

    /// A part of the memory, for one request.
    ///
    /// # Safety
    /// No other code uses these bytes until the part is dropped.
    ///
    /// # Errors
    /// `Io` with ERANGE for bytes outside the buffer.
    pub(crate) unsafe fn part(&self, offset: usize, len: usize) -> Result<Buffer, Error> {
        if offset > self.len || len > self.len - offset {
            let what = format!("{len} bytes from byte {offset} are outside the buffer");
            return Err(Error::io(Errno::ERANGE, what));
        }
        // SAFETY: the offset is not larger than the length of the memory.
        let base = unsafe { self.base.add(offset) };
        // SAFETY: the bytes are in the buffer. The caller guarantees that no other code uses these bytes until the part is dropped.
        Ok(unsafe { self.buffer.lock().alias(base, len) })
    }

    /// Registers the memory with a queue, and returns an alias of all of it.
    pub(crate) fn register(&self, queue: &mut Queue) -> Result<Buffer, Error> {
        let mut buffer = self.buffer.lock();
        queue.register_memory(&mut buffer)?;
        // SAFETY: no code accesses the memory through this alias. Other aliases, for single requests, are made from it.
        Ok(unsafe { buffer.alias(self.base, self.len) })
    }
}

/// A function of the caller that releases memory.
struct Release {
    function: Mutex<Option<unsafe extern "C" fn(*mut c_void)>>,
    arg: *mut c_void,
}

// SAFETY: the contract of `ironmap_buffer_wrap` states that any thread may call the function.
unsafe impl Send for Release {}
// SAFETY: the contract of `ironmap_buffer_wrap` states that any thread may call the function.
unsafe impl Sync for Release {}

impl Drop for Release {
    fn drop(&mut self) {
        if let Some(function) = self.function.get_mut().take() {
            // SAFETY: the caller of `ironmap_buffer_wrap` guarantees that the function can be called once with this argument.
            unsafe { function(self.arg) };
        }
    }
}

/// Allocates a buffer of `size` zeroed bytes, aligned for direct I/O. The caller frees it with `ironmap_buffer_free`.
///
/// Returns 0; -ENOMEM; -EMFILE if too many buffers exist.
///
/// # Safety
/// `buffer` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_buffer_new(
    size: usize,
    buffer: *mut *mut ironmap_buffer,
) -> c_int {
    call(None, || {
        // SAFETY: the caller guarantees that `buffer` is NULL or can be written to.
        let place = unsafe { place_of_handle(buffer) }?;
        *place = BUFFERS.add(Memory::new(Buffer::aligned(size)?))?.pointer();
        Ok(())
    }) as c_int
}

/// Makes a buffer from memory that the caller owns, such as huge pages or the buffer pool of a database.
///
/// `release` may be NULL. Otherwise the library calls it with `arg`, in any thread, after the buffer and all queues with which it is
/// registered were freed, and all its requests are complete. If the call fails, `release` is not called.
///
/// Returns 0; -EFAULT for NULL; -EINVAL for more bytes than the address space has; -EMFILE if too many buffers exist.
///
/// # Safety
/// The `size` bytes from `memory` can be read and written until `release` is called. `buffer` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_buffer_wrap(
    memory: *mut c_void,
    size: usize,
    release: Option<unsafe extern "C" fn(*mut c_void)>,
    arg: *mut c_void,
    buffer: *mut *mut ironmap_buffer,
) -> c_int {
    call(None, || {
        // SAFETY: the caller guarantees that `buffer` is NULL or can be written to.
        let place = unsafe { place_of_handle(buffer) }?;
        let base = NonNull::new(memory.cast::<u8>())
            .ok_or_else(|| Error::io(Errno::EFAULT, "the memory is NULL"))?;
        if size > isize::MAX as usize {
            return Err(Error::invalid("the memory is longer than the address space"));
        }
        let owner = Arc::new(Release { function: Mutex::new(None), arg });
        // SAFETY: the caller guarantees that the memory is valid until the release, which drops the owner.
        let whole = unsafe { Buffer::from_raw_parts(base, size, Arc::clone(&owner)) };
        let handle = BUFFERS.add(Memory::new(whole))?;
        // `release` is set after the last step that can fail, so a call that fails does not run `release`.
        *owner.function.lock() = release;
        *place = handle.pointer();
        Ok(())
    }) as c_int
}

/// The address of the memory of a buffer, or NULL if the handle is not open.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_buffer_data(buffer: *mut ironmap_buffer) -> *mut c_void {
    let handle = Handle::of(buffer);
    let mut data = ptr::null_mut();
    call(Some(handle), || {
        data = BUFFERS.get(handle)?.base.as_ptr().cast();
        Ok(())
    });
    data
}

/// The number of bytes of a buffer, or -EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_buffer_size(buffer: *mut ironmap_buffer) -> isize {
    let handle = Handle::of(buffer);
    call(Some(handle), || Ok(BUFFERS.get(handle)?.len))
}

/// Frees a buffer. The memory is released when its requests in flight are complete.
///
/// Returns 0 or -EBADF. Any thread may call it.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_buffer_free(buffer: *mut ironmap_buffer) -> c_int {
    let handle = Handle::of(buffer);
    call(Some(handle), || {
        drop(BUFFERS.remove(handle)?);
        forget(handle);
        Ok(())
    }) as c_int
}
