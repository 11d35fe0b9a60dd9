//! The frequent calls of a queue and its files.
//!
//! These functions are compiled once for each kind of file and of device. A queue has pointers to the functions for its device. So a
//! function does not examine any kind, and is small enough to need few registers.
//!
//! The functions are not inlined into the guard against panics, so their arguments are passed in registers. The arguments have the same
//! order as those of the C functions, so they stay in their registers.

use std::ffi::c_void;
use std::hint::assert_unchecked;

use ironmap::dio::{Completion, DioFlags};
use ironmap::{Error, File, ForKind, Memory, Queue};

use crate::failure::Count;
use crate::handle::Handle;
use crate::local::{LocalQueue, OpenFile, failed};
use crate::memory::{bytes, bytes_mut};
use crate::queue::{Direction, ironmap_completion, submit};

/// A read or write that waits. Its arguments are the file, the memory, the length, the position and the queue.
type Transfer<M> = unsafe fn(&OpenFile, M, usize, u64, &mut LocalQueue) -> isize;
/// The submission of a read or write. The last argument is the pointer of the caller.
type Submit = unsafe fn(&OpenFile, *mut c_void, usize, u64, &mut LocalQueue, *mut c_void) -> isize;

/// The functions for the kind of a queue's device, and for each kind of file. A function that transfers data returns the result for C code.
///
/// # Safety
/// The queue of a call is the queue that has these functions, and the kind of the file of a call is the index of the function. The memory
/// of a read can be written to for its length, and the memory of a write can be read for its length. For a submitted request, this is true
/// until the request is complete, and no other code uses the memory before that.
#[derive(Clone, Copy)]
pub(crate) struct Calls {
    pub(crate) read: [Transfer<*mut c_void>; File::KINDS],
    pub(crate) write: [Transfer<*const c_void>; File::KINDS],
    pub(crate) submit_read: [Submit; File::KINDS],
    pub(crate) submit_write: [Submit; File::KINDS],
    /// Takes completions from the queue with this handle. Returns their number.
    pub(crate) reap: unsafe fn(&mut LocalQueue, Handle, &mut [ironmap_completion]) -> usize,
}

impl Calls {
    /// The functions for a queue without registered memory.
    pub(crate) fn of(queue: &Queue) -> Self {
        queue.for_kind(Choice::<false>)
    }

    /// The functions for a queue with registered memory.
    pub(crate) fn with_registered(queue: &Queue) -> Self {
        queue.for_kind(Choice::<true>)
    }
}

/// The choice of functions for a queue with or without registered memory.
struct Choice<const REGISTERED: bool>;

impl<const REGISTERED: bool> ForKind for Choice<REGISTERED> {
    type Output = Calls;

    fn run<const KIND: u8>(self) -> Calls {
        Calls {
            read: [read::<0, KIND>, read::<1, KIND>, read::<2, KIND>],
            write: [write::<0, KIND>, write::<1, KIND>, write::<2, KIND>],
            submit_read: [
                submit_read::<0, KIND, REGISTERED>,
                submit_read::<1, KIND, REGISTERED>,
                submit_read::<2, KIND, REGISTERED>,
            ],
            submit_write: [
                submit_write::<0, KIND, REGISTERED>,
                submit_write::<1, KIND, REGISTERED>,
                submit_write::<2, KIND, REGISTERED>,
            ],
            reap: reap::<KIND>,
        }
    }
}

/// Tells the compiler the kinds of the file and of the queue's device.
///
/// # Safety
/// See [`Calls`].
#[inline(always)]
unsafe fn expect<const FILE: usize, const KIND: u8>(open: &OpenFile, local: &LocalQueue) {
    // SAFETY: the file has the kind that is the index of the function, and the kind of a file never changes.
    unsafe { assert_unchecked(open.file.kind() == FILE) };
    // SAFETY: `Calls::of` has chosen the functions of the queue by its kind, and the kind of a queue never changes.
    unsafe { assert_unchecked(local.queue.has_kind::<KIND>()) };
}

/// # Safety
/// See [`Calls`].
unsafe fn read<const FILE: usize, const KIND: u8>(
    open: &OpenFile,
    memory: *mut c_void,
    len: usize,
    pos: u64,
    local: &mut LocalQueue,
) -> isize {
    // SAFETY: the caller guarantees that `memory` can be written to for `len` bytes.
    let memory = match unsafe { bytes_mut(memory, len) } {
        Ok(memory) => memory,
        Err(error) => return open.failed(error),
    };
    // SAFETY: the caller guarantees this.
    unsafe { expect::<FILE, KIND>(open, local) };
    open.returned(open.file.read_at(&mut local.queue, memory, pos))
}

/// # Safety
/// See [`Calls`].
unsafe fn write<const FILE: usize, const KIND: u8>(
    open: &OpenFile,
    memory: *const c_void,
    len: usize,
    pos: u64,
    local: &mut LocalQueue,
) -> isize {
    // SAFETY: the caller guarantees that `memory` can be read for `len` bytes.
    let memory = match unsafe { bytes(memory, len) } {
        Ok(memory) => memory,
        Err(error) => return open.failed(error),
    };
    // SAFETY: the caller guarantees this.
    unsafe { expect::<FILE, KIND>(open, local) };
    open.returned(open.file.write_at_with(&mut local.queue, memory, pos, open.durable))
}

/// # Safety
/// See [`Calls`].
unsafe fn submit_read<const FILE: usize, const KIND: u8, const REGISTERED: bool>(
    open: &OpenFile,
    memory: *mut c_void,
    len: usize,
    pos: u64,
    local: &mut LocalQueue,
    user: *mut c_void,
) -> isize {
    // SAFETY: the caller guarantees that the memory stays valid, and is not used otherwise, until the request is complete.
    let buffer = match unsafe { local.borrow::<REGISTERED>(memory, len) } {
        Ok(buffer) => buffer,
        Err(error) => return open.failed(error),
    };
    // SAFETY: the caller guarantees this.
    unsafe { expect::<FILE, KIND>(open, local) };
    let request = (pos, DioFlags::empty(), user);
    open.returned(submit(open, &mut local.queue, Direction::Read, buffer, request))
}

/// # Safety
/// See [`Calls`].
unsafe fn submit_write<const FILE: usize, const KIND: u8, const REGISTERED: bool>(
    open: &OpenFile,
    memory: *mut c_void,
    len: usize,
    pos: u64,
    local: &mut LocalQueue,
    user: *mut c_void,
) -> isize {
    // SAFETY: the caller guarantees that the memory stays valid, and is not used otherwise, until the request is complete.
    let buffer = match unsafe { local.borrow::<REGISTERED>(memory, len) } {
        Ok(buffer) => buffer,
        Err(error) => return open.failed(error),
    };
    // SAFETY: the caller guarantees this.
    unsafe { expect::<FILE, KIND>(open, local) };
    let request = (pos, DioFlags::empty(), user);
    open.returned(submit(open, &mut local.queue, Direction::Write, buffer, request))
}

/// # Safety
/// See [`Calls`].
unsafe fn reap<const KIND: u8>(
    local: &mut LocalQueue,
    handle: Handle,
    places: &mut [ironmap_completion],
) -> usize {
    let all = places.len();
    let mut left = places.iter_mut();
    while let Some(place) = left.next() {
        // SAFETY: as in `expect`.
        unsafe { assert_unchecked(local.queue.has_kind::<KIND>()) };
        let Some((token, result)) = local.queue.pop_as(completed) else {
            return all - left.len() - 1;
        };
        let user = std::ptr::with_exposed_provenance_mut(token as usize);
        let result = match result {
            Ok(count) => count.count(),
            Err(error) => failed(handle, error),
        };
        *place = ironmap_completion { user, result };
    }
    all
}

/// Returns the token and the result of a request. The memory of the request belongs to the caller again.
#[inline(always)]
fn completed(Completion { token, memory, result, .. }: Completion) -> (u64, Result<usize, Error>) {
    match memory {
        Memory::Flat(buffer) => drop(buffer),
        Memory::Vectored(buffers) => drop_several(buffers),
    }
    (token, result)
}

/// This function is not inlined, so that the memory of a usual request need not be copied.
#[cold]
#[inline(never)]
fn drop_several<T>(buffers: T) {
    drop(buffers);
}
