//! Queues, and requests that are submitted and reaped.
//!
//! A queue keeps many requests in flight in one thread. `ironmap_submit_read` and the other calls that submit do not wait; `ironmap_reap`
//! returns the completions. Only the thread that made a queue may use it.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use ironmap::device::QueueOptions;
use ironmap::dio::DioFlags;
use ironmap::{Buffer, Errno, Error, Queue, ReadAt, Rejected};
use smallvec::SmallVec;

use crate::calls::Calls;
use crate::failure::{call, keep, refused, returned};
use crate::handle::{Handle, Refusal};
use crate::local::{
    LocalQueue, OpenFile, Store, add_queue, enter_file, free_queue, is_in_call, open_file,
    with_file, with_queue,
};
use crate::memory::{bytes_mut, list_mut, place_of_handle};
use crate::process::without_forks;
use crate::rwf::{dio_flags, read_flags};
use crate::tables::{
    BUFFERS, HOSTS, VOLUMES, ironmap_buffer, ironmap_file, ironmap_host, ironmap_queue,
    ironmap_volume,
};

/// A read of `ironmap_read_many`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_read {
    /// The file, which was opened on the queue of the call.
    pub file: *mut ironmap_file,
    /// The memory. No other read of the call may use it.
    pub memory: *mut c_void,
    /// The number of bytes to read.
    pub len: usize,
    /// The position in the file, in bytes.
    pub pos: u64,
    /// Set by the call: the number of bytes that were read, or an errno with a minus sign.
    pub result: isize,
}

/// The completion of a request.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_completion {
    /// The pointer that was passed with the request.
    pub user: *mut c_void,
    /// The number of bytes that were transferred, or an errno with a minus sign.
    pub result: isize,
}

/// Returns the options of a queue with this depth. 0 stands for the default.
fn options(depth: u32) -> QueueOptions {
    if depth == 0 { QueueOptions::new() } else { QueueOptions::new().depth(depth) }
}

fn open(
    place: &mut *mut ironmap_queue,
    make: impl FnOnce() -> Result<LocalQueue, Error>,
) -> Result<(), Error> {
    *place = add_queue(make()?)?.pointer();
    Ok(())
}

/// Makes a queue for the files of a volume, for the calling thread.
///
/// `depth` is the number of requests that the device has at a time, at most 4096; 0 stands for 256. The caller frees the queue in the same
/// thread with `ironmap_queue_free`. If the thread ends before that, no thread can use or free the queue, and the volume cannot be closed.
///
/// Returns 0; -EBADF for a closed volume; -EMFILE if too many queues or descriptors are open; -ENOMEM.
///
/// # Safety
/// `queue` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_volume_queue(
    volume: *mut ironmap_volume,
    depth: u32,
    queue: *mut *mut ironmap_queue,
) -> c_int {
    call(Some(Handle::of(volume)), || {
        // SAFETY: the caller guarantees that `queue` is NULL or can be written to.
        let place = unsafe { place_of_handle(queue) }?;
        let volume = VOLUMES.get(Handle::of(volume))?;
        without_forks(|| {
            open(place, || {
                let queue = volume.volume.queue(&options(depth))?;
                Ok(LocalQueue::new(queue, Store::Volume(volume)))
            })
        })
    }) as c_int
}

/// Makes a queue for the files of the host, for the calling thread. In all other respects, the call is like `ironmap_volume_queue`.
///
/// Returns the same as `ironmap_volume_queue`.
///
/// # Safety
/// `queue` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_host_queue(
    host: *mut ironmap_host,
    depth: u32,
    queue: *mut *mut ironmap_queue,
) -> c_int {
    call(Some(Handle::of(host)), || {
        // SAFETY: the caller guarantees that `queue` is NULL or can be written to.
        let place = unsafe { place_of_handle(queue) }?;
        let host = HOSTS.get(Handle::of(host))?;
        without_forks(|| {
            open(place, || Ok(LocalQueue::new(host.queue(&options(depth))?, Store::Host(host))))
        })
    }) as c_int
}

/// Frees a queue, closes the files that were opened on it, and waits for its requests. Their completions are lost.
///
/// Returns 0; -EBADF; -EPERM in any thread other than that of the queue; -EBUSY in a signal handler that has interrupted a call on the queue.
/// -EIO and other errnos if the kernel no longer serves the queue: the queue is then freed, but the memory of its requests must stay
/// valid until the process ends.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_queue_free(queue: *mut ironmap_queue) -> c_int {
    call_of_queue(is_in_call(queue), || free_queue(queue))
}

/// Runs a call that opens or closes a queue or a file. Other threads cannot fork during the call. If the thread is already in a call on the
/// queue, the function refuses before it waits for a fork.
pub(crate) fn call_of_queue(is_in_call: bool, work: impl FnOnce() -> isize) -> c_int {
    if is_in_call {
        return refused(Refusal::InCall) as c_int;
    }
    without_forks(|| Ok(work())).unwrap_or_else(|error| keep(None, &error) as isize) as c_int
}

/// Reads several ranges of one or more files of a queue, and waits for all of them. As many reads are in flight together as the depth of
/// the queue allows.
///
/// The call sets the `result` of each read to the number of bytes, or to an errno with a minus sign. The number is smaller than `len` only
/// at the end of the file. `size` is `sizeof(struct ironmap_read)`.
///
/// Returns 0 if the reads have results; -EBADF, -EPERM or -EBUSY as for any call on a queue; -EINVAL for another `size` or a NULL `reads`. If
/// the call returns an error, it does not change the results.
///
/// # Safety
/// `reads` points to `count` structures. The memory of each read can be written to, and the memory of two reads does not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_read_many(
    queue: *mut ironmap_queue,
    reads: *mut ironmap_read,
    count: usize,
    size: usize,
) -> c_int {
    with_queue(queue, |local| {
        if size != size_of::<ironmap_read>() {
            return Err(Error::invalid("the size does not match struct ironmap_read"));
        }
        // SAFETY: the caller guarantees that `reads` points to `count` structures.
        let reads = unsafe { list_mut(reads, count) }?;
        let mut list: SmallVec<[ReadAt<'_>; 64]> = SmallVec::new();
        for read in reads.iter_mut() {
            read.result = 0;
            // SAFETY: this call is the only one on its queue, and no file of the queue is closed during it.
            let open = unsafe { open_file(read.file, queue) };
            // SAFETY: the caller guarantees that the memory of each read can be written to, and does not overlap.
            let memory = unsafe { bytes_mut(read.memory, read.len) };
            match (open, memory) {
                (Ok(open), Ok(memory)) => list.push(ReadAt::new(&open.file, memory, read.pos)),
                (Err(error), _) | (_, Err(error)) => {
                    read.result = keep(Some(Handle::of(queue)), &error) as isize;
                }
            }
        }
        local.queue.read_many(&mut list);
        let refused = |read: &&mut ironmap_read| read.result == 0;
        for (read, done) in reads.iter_mut().filter(refused).zip(list) {
            read.result = returned(Some(Handle::of(queue)), done.result);
        }
        Ok(())
    }) as c_int
}

/// The direction of a request.
#[derive(Clone, Copy)]
pub(crate) enum Direction {
    Read,
    Write,
}

impl Direction {
    #[inline(always)]
    fn flags(self, flags: c_int) -> Result<DioFlags, Error> {
        match self {
            Self::Read => read_flags(flags),
            Self::Write => dio_flags(flags),
        }
    }
}

/// Submits a request. The memory of the request belongs to the queue until the request is complete.
#[inline(always)]
pub(crate) fn submit(
    open: &OpenFile,
    queue: &mut Queue,
    direction: Direction,
    buffer: Buffer,
    (pos, flags, user): (u64, DioFlags, *mut c_void),
) -> Result<(), Error> {
    let token = user.expose_provenance() as u64;
    let submitted = match direction {
        Direction::Read => open.file.submit_read(queue, buffer, pos, flags, token),
        Direction::Write => open.file.submit_write(queue, buffer, pos, flags | open.durable, token),
    };
    submitted.map_err(rejected)
}

#[cold]
#[allow(clippy::boxed_local, reason = "the library returns a box")]
fn rejected(rejected: Box<Rejected>) -> Error {
    rejected.error
}

impl LocalQueue {
    /// Takes completions from the queue, which has this handle. Returns their number.
    fn reap(&mut self, handle: Handle, places: &mut [ironmap_completion]) -> usize {
        // SAFETY: this queue has these functions.
        unsafe { (self.calls.reap)(self, handle, places) }
    }

    /// Returns a buffer for memory of the caller. If the memory is in the registered buffer of the queue, the request uses registered
    /// memory. `REGISTERED` is false if the queue has no registered buffer.
    ///
    /// # Safety
    /// The memory stays valid until the request is complete.
    #[inline(always)]
    pub(crate) unsafe fn borrow<const REGISTERED: bool>(
        &self,
        memory: *mut c_void,
        len: usize,
    ) -> Result<Buffer, Error> {
        let base = NonNull::new(memory.cast::<u8>())
            .filter(|_| len <= isize::MAX as usize)
            .ok_or_else(no_memory)?;
        let mut owner = &self.lent;
        if REGISTERED && let Some(registered) = &self.registered {
            let offset = memory.addr().wrapping_sub(registered.address());
            if offset <= registered.len() && len <= registered.len() - offset {
                owner = registered;
            }
        }
        // SAFETY: the caller guarantees that the memory is valid and that no other request uses it.
        Ok(unsafe { owner.alias(base, len) })
    }
}

#[cold]
fn no_memory() -> Error {
    Error::io(Errno::EFAULT, "the memory of a request is NULL or too long")
}

/// Submits a request with flags. The arguments have the same order as in the calling functions, so they stay in their registers.
///
/// # Safety
/// The memory stays valid, and is not used otherwise, until the request is complete.
#[inline(never)]
unsafe fn submit_with_flags<const READS: bool>(
    file: *mut ironmap_file,
    memory: *mut c_void,
    len: usize,
    pos: u64,
    flags: c_int,
    user: *mut c_void,
) -> c_int {
    let direction = if READS { Direction::Read } else { Direction::Write };
    with_file(file, |open, local| {
        let flags = direction.flags(flags)?;
        // SAFETY: the caller guarantees that the memory stays valid, and is not used otherwise, until the request is complete.
        let buffer = unsafe { local.borrow::<true>(memory, len) }?;
        submit(open, &mut local.queue, direction, buffer, (pos, flags, user))
    }) as c_int
}

/// Submits a read of `len` bytes from position `pos` into memory. `ironmap_reap` returns its completion with the pointer `user`.
///
/// `flags` are 0 or RWF_NOWAIT and RWF_HIPRI of `preadv2`. This call, or a later call on the queue, sends the request to the device.
///
/// If the queue is full, the call waits for the device.
///
/// Returns 0; -EAGAIN with RWF_NOWAIT if the call would have to wait; -EINVAL, -EIO and other errors of `ironmap_pread`. After an error there
/// is no completion. After 0 the completion may have any of these errors.
///
/// # Safety
/// The memory stays valid, and nothing else accesses it, until `ironmap_reap` has returned the completion or `ironmap_queue_free` has
/// returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_submit_read(
    file: *mut ironmap_file,
    memory: *mut c_void,
    len: usize,
    pos: u64,
    flags: c_int,
    user: *mut c_void,
) -> c_int {
    if flags != 0 {
        // SAFETY: the caller guarantees that the memory stays valid, and is not used otherwise, until the request is complete.
        return unsafe { submit_with_flags::<true>(file, memory, len, pos, flags, user) };
    }
    enter_file(file, move |open, local| {
        // SAFETY: the caller guarantees that the memory stays valid, and is not used otherwise, until the request is complete. The function
        // belongs to the queue and to the kind of the file.
        unsafe { (local.calls.submit_read[open.file.kind()])(open, memory, len, pos, local, user) }
    }) as c_int
}

/// Submits a write of `len` bytes at position `pos`. `flags` may also have RWF_DSYNC, RWF_SYNC and RWF_ATOMIC. In all other respects, the
/// call is like `ironmap_submit_read`.
///
/// Returns the same as `ironmap_submit_read`; -EROFS, -ENOSPC and other errors of `ironmap_pwrite`.
///
/// # Safety
/// The memory stays valid, and nothing changes it, until `ironmap_reap` has returned the completion or `ironmap_queue_free` has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_submit_write(
    file: *mut ironmap_file,
    memory: *const c_void,
    len: usize,
    pos: u64,
    flags: c_int,
    user: *mut c_void,
) -> c_int {
    // The library only reads the memory of a write.
    let memory = memory.cast_mut();
    if flags != 0 {
        // SAFETY: the caller guarantees that the memory stays valid, and is not used otherwise, until the request is complete.
        return unsafe { submit_with_flags::<false>(file, memory, len, pos, flags, user) };
    }
    enter_file(file, move |open, local| {
        // SAFETY: the caller guarantees that the memory stays valid, and is not used otherwise, until the request is complete. The function
        // belongs to the queue and to the kind of the file.
        unsafe { (local.calls.submit_write[open.file.kind()])(open, memory, len, pos, local, user) }
    }) as c_int
}

/// # Safety
/// No other request uses the same bytes of the buffer.
unsafe fn submit_buffer(
    file: *mut ironmap_file,
    direction: Direction,
    (buffer, offset, len): (*mut ironmap_buffer, usize, usize),
    (pos, flags, user): (u64, c_int, *mut c_void),
) -> c_int {
    with_file(file, |open, local| {
        let flags = direction.flags(flags)?;
        let memory = BUFFERS.get(Handle::of(buffer))?;
        // SAFETY: the caller guarantees that no other code uses these bytes of the buffer until the request is complete.
        let buffer = unsafe { memory.part(offset, len) }?;
        submit(open, &mut local.queue, direction, buffer, (pos, flags, user))
    }) as c_int
}

/// Submits a read of `len` bytes from position `pos` into a buffer, at the byte `offset` of the buffer. In all other respects, the call is
/// like `ironmap_submit_read`. The buffer may be freed while the request is in flight: its memory is then released after the request.
///
/// Returns the same as `ironmap_submit_read`; -EBADF for a buffer that was freed; -ERANGE for bytes outside the buffer.
///
/// # Safety
/// Nothing else accesses these bytes of the buffer until the request is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_submit_read_buffer(
    file: *mut ironmap_file,
    buffer: *mut ironmap_buffer,
    offset: usize,
    len: usize,
    pos: u64,
    flags: c_int,
    user: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees that nothing else uses these bytes of the buffer until the request is complete.
    unsafe { submit_buffer(file, Direction::Read, (buffer, offset, len), (pos, flags, user)) }
}

/// Submits a write of `len` bytes at position `pos`. The data begin at the byte `offset` of the buffer. In all other respects, the call is
/// like `ironmap_submit_write` and `ironmap_submit_read_buffer`.
///
/// Returns the same as `ironmap_submit_write` and `ironmap_submit_read_buffer`.
///
/// # Safety
/// Nothing changes these bytes of the buffer until the request is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_submit_write_buffer(
    file: *mut ironmap_file,
    buffer: *mut ironmap_buffer,
    offset: usize,
    len: usize,
    pos: u64,
    flags: c_int,
    user: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees that no other code changes these bytes of the buffer until the request is complete.
    unsafe { submit_buffer(file, Direction::Write, (buffer, offset, len), (pos, flags, user)) }
}

/// Sends the submitted requests to the device, and waits until `min` of them are complete, or all of them if there are fewer.
///
/// Returns 0; -EBADF, -EPERM or -EBUSY as for any call on a queue; -EIO and other errnos if the kernel no longer serves the queue.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_wait(queue: *mut ironmap_queue, min: usize) -> c_int {
    with_queue(queue, |local| local.queue.wait(min)) as c_int
}

/// Sends the submitted requests to the device, and returns up to `max` completions. The call does not wait for the device.
///
/// If the call returns `max` completions, there may be more. Otherwise the descriptor of `ironmap_queue_fd` becomes readable at the next
/// completion. The completions are in the order in which the device completed them. `size` is `sizeof(struct ironmap_completion)`.
///
/// Returns the number of completions; -EBADF, -EPERM or -EBUSY as for any call on a queue; -EINVAL for another `size` or a NULL `completions`.
///
/// # Safety
/// `completions` has place for `max` structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_reap(
    queue: *mut ironmap_queue,
    completions: *mut ironmap_completion,
    max: usize,
    size: usize,
) -> isize {
    with_queue(queue, |local| {
        if size != size_of::<ironmap_completion>() {
            return Err(Error::invalid("the size does not match struct ironmap_completion"));
        }
        // SAFETY: the caller guarantees that `completions` points to `max` structures.
        let places = unsafe { list_mut(completions, max) }?;
        let mut count = local.reap(Handle::of(queue), places);
        if places.is_empty() {
            local.queue.poll()?;
        } else if count < places.len() {
            // A completion that arrives after this call makes the descriptor readable.
            if let Some(readiness) = &local.readiness {
                readiness.clear();
            }
            let polled = local.queue.poll();
            count += local.reap(Handle::of(queue), &mut places[count..]);
            // If completions were collected before the error, they are returned, and the error is not.
            if let (0, Err(error)) = (count, polled) {
                return Err(error);
            }
        }
        Ok(count)
    })
}

/// The number of requests that were submitted to a queue and not reaped, or -EBADF, -EPERM or -EBUSY.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_outstanding(queue: *mut ironmap_queue) -> isize {
    with_queue(queue, |local| Ok(local.queue.outstanding()))
}

/// A descriptor that becomes readable when a request completes, for `poll` and `epoll`. It belongs to the queue, which closes it.
///
/// When the descriptor is readable, the caller calls `ironmap_reap` until it returns fewer completions than it has place for. The caller
/// does not read the descriptor. After it has submitted requests, the caller calls `ironmap_reap` before it waits. This call sends the
/// requests. It also returns the requests that are complete without the device, such as a read of a hole, because these do not make the
/// descriptor readable. io_uring may interrupt a wait with EINTR, also without a signal. The caller then waits again.
///
/// Returns the descriptor; -EBADF, -EPERM or -EBUSY as for any call on a queue; -EOPNOTSUPP if the engine polls its device; -EMFILE.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_queue_fd(queue: *mut ironmap_queue) -> c_int {
    with_queue(queue, |local| {
        if local.readiness.is_none() {
            local.readiness = Some(local.queue.readiness()?);
        }
        Ok(local.readiness.as_ref().map_or(0, |readiness| readiness.as_raw_fd() as usize))
    }) as c_int
}

/// Registers a buffer with the kernel. So the kernel need not pin the pages of the buffer for each request of this queue. A queue can
/// register one buffer of at most 1 GiB. A request whose memory is in the buffer uses registered memory, even if it was submitted by
/// address.
///
/// The buffer may be freed before the queue: its memory is released after the queue was freed.
///
/// Returns 0; -EBADF; -EPERM or -EBUSY as for any call on a queue; -EBUSY for a second buffer, or for a buffer that is registered with another
/// queue; -ENOMEM if the process may not lock so much memory; -EINVAL for an empty or too long buffer.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_queue_register(
    queue: *mut ironmap_queue,
    buffer: *mut ironmap_buffer,
) -> c_int {
    with_queue(queue, |local| {
        let memory = BUFFERS.get(Handle::of(buffer))?;
        local.registered = Some(memory.register(&mut local.queue)?);
        local.calls = Calls::with_registered(&local.queue);
        Ok(())
    }) as c_int
}
