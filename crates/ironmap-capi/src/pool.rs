//! Pools of threads, and files that any thread may use.
//!
//! A request of a pool has its own memory. The data are copied between this memory and that of the caller. The copy costs little compared
//! with the two context switches: to the thread of the pool, and back to the thread of the caller.

use std::ffi::{c_char, c_int, c_void};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use ironmap::dio::DioFlags;
use ironmap::units::FilePos;
use ironmap::{Buffer, Error, Files, Host, ReadAt};
use ironmap_async::{AsyncFile, Pool, PoolOptions};
use smallvec::SmallVec;

use crate::failure::{call, forget, keep, returned};
use crate::file::{ironmap_host_report, store_report};
use crate::handle::Handle;
use crate::local::with_queue;
use crate::memory::{bytes, bytes_mut, list_mut, path, place_of_handle};
use crate::process::{starting_threads, without_forks};
use crate::rwf::{OpenFlags, open_flags};
use crate::tables::{
    HOSTS, IN_USE, POOL_FILES, POOLS, VOLUMES, ironmap_host, ironmap_pool, ironmap_pool_file,
    ironmap_queue, ironmap_volume,
};
use crate::volume::OpenVolume;

/// A pool of a volume or host.
pub(crate) struct OpenPool {
    pool: Pool,
    /// Keeps the volume or host open: it cannot be closed before the pool is freed.
    store: Store,
}

enum Store {
    Volume(Arc<OpenVolume>),
    Host { _host: Arc<Host> },
}

impl Store {
    /// Removes the content of a file that was opened for writing.
    fn empty(&self, file: &AsyncFile) -> Result<(), Error> {
        match self {
            Self::Volume(open) => open.volume.fs().writable()?.truncate(file.file().inode(), 0),
            Self::Host { .. } => Ok(()),
        }
    }
}

/// A file of a pool.
pub(crate) struct PoolFile {
    file: AsyncFile,
    durable: DioFlags,
    /// Keeps the pool alive: it cannot be freed before this file is closed.
    _pool: Arc<OpenPool>,
}

/// Wakes the thread that waits for a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future.
fn wait<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn open(
    files: impl Files + Send + Sync + 'static,
    store: Store,
    (threads, depth): (u32, u32),
) -> Result<Handle, Error> {
    let mut options = PoolOptions::new();
    if threads > 0 {
        options = options.threads(threads as usize);
    }
    if depth > 0 {
        options = options.depth(depth);
    }
    POOLS.add(OpenPool { pool: Pool::new(files, options)?, store })
}

/// Starts a pool of threads for the files of a volume.
///
/// `threads` is the number of threads, and `depth` the number of requests that each has in flight; 0 lets the library choose. Any thread may
/// use the pool and its files. The caller frees the pool with `ironmap_pool_free`.
///
/// Returns 0; -EBADF for a closed volume; -EMFILE, -ENOMEM, -EAGAIN if descriptors, memory or threads are exhausted.
///
/// # Safety
/// `pool` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_volume_pool(
    volume: *mut ironmap_volume,
    threads: u32,
    depth: u32,
    pool: *mut *mut ironmap_pool,
) -> c_int {
    let handle = Handle::of(volume);
    call(Some(handle), || {
        // SAFETY: the caller guarantees that `pool` is NULL or can be written to.
        let place = unsafe { place_of_handle(pool) }?;
        starting_threads(|| {
            let open_volume = VOLUMES.get(handle)?;
            let files = open_volume.volume.clone();
            let store = Store::Volume(open_volume);
            *place = open(files, store, (threads, depth))?.pointer();
            Ok(())
        })
    }) as c_int
}

/// Starts a pool of threads for the files of the host. In all other respects, the call is like `ironmap_volume_pool`.
///
/// Returns the same as `ironmap_volume_pool`.
///
/// # Safety
/// `pool` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_host_pool(
    host: *mut ironmap_host,
    threads: u32,
    depth: u32,
    pool: *mut *mut ironmap_pool,
) -> c_int {
    let handle = Handle::of(host);
    call(Some(handle), || {
        // SAFETY: the caller guarantees that `pool` is NULL or can be written to.
        let place = unsafe { place_of_handle(pool) }?;
        starting_threads(|| {
            let open_host = HOSTS.get(handle)?;
            let files = Host::clone(&open_host);
            *place = open(files, Store::Host { _host: open_host }, (threads, depth))?.pointer();
            Ok(())
        })
    }) as c_int
}

/// Ends the threads of a pool. Returns 0; -EBUSY while a file of the pool is open; -EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_pool_free(pool: *mut ironmap_pool) -> c_int {
    let handle = Handle::of(pool);
    call(Some(handle), || {
        without_forks(|| {
            drop(POOLS.remove_unused(handle, IN_USE)?);
            forget(handle);
            Ok(())
        })
    }) as c_int
}

/// Opens a file on a pool. `flags` and `mode` are those of `ironmap_open`. The caller closes the file with `ironmap_pool_close`.
///
/// Returns the same as `ironmap_open`.
///
/// # Safety
/// `path` ends with a zero byte, and `file` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_pool_open(
    pool: *mut ironmap_pool,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    file: *mut *mut ironmap_pool_file,
) -> c_int {
    let handle = Handle::of(pool);
    call(Some(handle), || {
        // SAFETY: the caller guarantees that `file` is NULL or can be written to.
        let place = unsafe { place_of_handle(file) }?;
        // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
        let path = unsafe { self::path(path) }?;
        let OpenFlags { options, durable, empties, .. } = open_flags(flags, mode)?;
        without_forks(|| {
            let open = POOLS.get(handle)?;
            let reserved = POOL_FILES.reserve()?;
            let file = wait(open.pool.open_with(path, options))?;
            if empties {
                open.store.empty(&file)?;
            }
            *place = reserved.add(PoolFile { file, durable, _pool: open }).pointer();
            Ok(())
        })
    }) as c_int
}

/// Closes a file of a pool. Calls of other threads on it are carried out. Returns 0 or -EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_pool_close(file: *mut ironmap_pool_file) -> c_int {
    let handle = Handle::of(file);
    call(Some(handle), || {
        without_forks(|| {
            drop(POOL_FILES.remove(handle)?);
            forget(handle);
            Ok(())
        })
    }) as c_int
}

/// Reads up to `len` bytes from position `pos`, and waits. Returns the same as `ironmap_pread`; any thread may call it.
///
/// # Safety
/// `memory` can be written to for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_pool_pread(
    file: *mut ironmap_pool_file,
    memory: *mut c_void,
    len: usize,
    pos: u64,
) -> isize {
    let handle = Handle::of(file);
    call(Some(handle), || {
        let open = POOL_FILES.get(handle)?;
        // SAFETY: the caller guarantees that `memory` can be written to for `len` bytes.
        let memory = unsafe { bytes_mut(memory, len) }?;
        let buffer = Buffer::aligned(within(&open, len, pos))?;
        let (count, buffer) = wait(open.file.read_at(buffer, pos))?;
        memory[..count].copy_from_slice(&buffer[..count]);
        Ok(count)
    })
}

/// Writes `len` bytes at position `pos`, and waits. Returns the same as `ironmap_pwrite`; any thread may call it, but not while it has
/// requests in flight on the same file (section WAITS of ironmap(3)).
///
/// # Safety
/// `memory` can be read for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_pool_pwrite(
    file: *mut ironmap_pool_file,
    memory: *const c_void,
    len: usize,
    pos: u64,
) -> isize {
    let handle = Handle::of(file);
    call(Some(handle), || {
        let open = POOL_FILES.get(handle)?;
        // SAFETY: the caller guarantees that `memory` can be read for `len` bytes.
        let buffer = copied(unsafe { bytes(memory, len) }?)?;
        Ok(wait(open.file.write_at(buffer, pos, open.durable))?.0)
    })
}

/// Limits the length of a read to about the rest of the file, because the pool allocates memory of this length. If the file grows
/// meanwhile, the read is short, like a read before the growth.
fn within(open: &PoolFile, len: usize, pos: u64) -> usize {
    /// The unit of the limit in bytes. A read of at most one unit is never shortened. Direct I/O needs lengths in multiples of the device's
    /// blocks, and a multiple of this unit is such a length.
    const ALWAYS: usize = 1 << 20;
    let rest = open.file.file().size().saturating_sub(pos);
    let rest = usize::try_from(rest).unwrap_or(usize::MAX).saturating_add(ALWAYS - 1);
    len.min(rest / ALWAYS * ALWAYS).max(len.min(ALWAYS))
}

fn copied(bytes: &[u8]) -> Result<Buffer, Error> {
    let mut buffer = Buffer::aligned(bytes.len())?;
    buffer.copy_from_slice(bytes);
    Ok(buffer)
}

/// Writes all `len` bytes at the end of the file, and waits. Returns the same as `ironmap_append`; any thread may call it.
///
/// # Safety
/// `memory` can be read for `len` bytes, and `pos` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_pool_append(
    file: *mut ironmap_pool_file,
    memory: *const c_void,
    len: usize,
    pos: *mut u64,
) -> c_int {
    let handle = Handle::of(file);
    call(Some(handle), || {
        let open = POOL_FILES.get(handle)?;
        // SAFETY: the caller guarantees that `memory` can be read for `len` bytes.
        let buffer = copied(unsafe { bytes(memory, len) }?)?;
        let (FilePos(at), _) = wait(open.file.append(buffer, open.durable | DioFlags::WHOLE))?;
        // SAFETY: the caller guarantees that `pos` is NULL or can be written to.
        if let Some(pos) = unsafe { pos.as_mut() } {
            *pos = at;
        }
        Ok(())
    }) as c_int
}

/// A read of `ironmap_pool_read_many`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_pool_read {
    /// The memory that receives the data.
    pub memory: *mut c_void,
    /// The number of bytes to read.
    pub len: usize,
    /// The position in the file, in bytes.
    pub pos: u64,
    /// Set by the call: the number of bytes that were read, or an errno with a minus sign.
    pub result: isize,
}

/// Reads several ranges of a file, and waits for all of them. The reads are in flight together. The call sets the `result` of each. `size` is
/// `sizeof(struct ironmap_pool_read)`. Any thread may call it.
///
/// Returns 0 if the reads have results; -EBADF; -EINVAL for another `size` or a NULL `reads`.
///
/// # Safety
/// `reads` points to `count` structures, whose memory can be written to and does not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_pool_read_many(
    file: *mut ironmap_pool_file,
    reads: *mut ironmap_pool_read,
    count: usize,
    size: usize,
) -> c_int {
    let handle = Handle::of(file);
    call(Some(handle), || {
        if size != size_of::<ironmap_pool_read>() {
            return Err(Error::invalid("the size does not match struct ironmap_pool_read"));
        }
        let open = POOL_FILES.get(handle)?;
        // SAFETY: the caller guarantees that `reads` points to `count` structures.
        let reads = unsafe { list_mut(reads, count) }?;
        let mut ranges = Vec::with_capacity(reads.len());
        let mut places = Vec::with_capacity(reads.len());
        for read in reads.iter_mut() {
            // SAFETY: the caller guarantees that the memory of each read can be written to, and does not overlap.
            let memory = unsafe { bytes_mut(read.memory, read.len) };
            let len = within(&open, read.len, read.pos);
            let range = memory.and_then(|memory| Ok((memory, Buffer::aligned(len)?)));
            match range {
                Ok((memory, buffer)) => {
                    ranges.push((FilePos(read.pos), buffer));
                    places.push((memory, &mut read.result));
                }
                Err(error) => read.result = keep(Some(handle), &error) as isize,
            }
        }
        for ((memory, result), done) in places.into_iter().zip(wait(open.file.read_ranges(ranges)))
        {
            *result = match done {
                Ok((count, buffer)) => {
                    memory[..count].copy_from_slice(&buffer[..count]);
                    count as isize
                }
                Err(failed) => keep(Some(handle), &failed.into()) as isize,
            };
        }
        Ok(())
    }) as c_int
}

/// Reads up to `len` bytes from position `pos` of a file of a pool, and waits. The read uses a queue of the calling thread. So no other
/// thread takes part, and no data are copied. The queue must belong to the volume or host of the pool.
///
/// Returns the same as `ironmap_pread`; -EINVAL for a queue of another volume or host.
///
/// # Safety
/// `memory` can be written to for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_pread_on(
    queue: *mut ironmap_queue,
    file: *mut ironmap_pool_file,
    memory: *mut c_void,
    len: usize,
    pos: u64,
) -> isize {
    with_queue(queue, |local| {
        let open = POOL_FILES.get(Handle::of(file))?;
        // SAFETY: the caller guarantees that `memory` can be written to for `len` bytes.
        let memory = unsafe { bytes_mut(memory, len) }?;
        open.file.file().read_at(&mut local.queue, memory, pos)
    })
}

/// Reads several ranges of a file of a pool through a queue of the calling thread, and waits for all of them. In all other respects, the
/// call works in the same way as `ironmap_pool_read_many` and `ironmap_pread_on`.
///
/// Returns 0 if the reads have results; -EBADF, -EPERM or -EBUSY as for any call on a queue; -EINVAL for another `size` or a NULL `reads`.
///
/// # Safety
/// `reads` points to `count` structures, whose memory can be written to and does not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_read_many_on(
    queue: *mut ironmap_queue,
    file: *mut ironmap_pool_file,
    reads: *mut ironmap_pool_read,
    count: usize,
    size: usize,
) -> c_int {
    with_queue(queue, |local| {
        if size != size_of::<ironmap_pool_read>() {
            return Err(Error::invalid("the size does not match struct ironmap_pool_read"));
        }
        let open = POOL_FILES.get(Handle::of(file))?;
        // SAFETY: the caller guarantees that `reads` points to `count` structures.
        let reads = unsafe { list_mut(reads, count) }?;
        let mut list: SmallVec<[ReadAt<'_>; 64]> = SmallVec::new();
        let mut results = Vec::with_capacity(reads.len());
        for read in reads.iter_mut() {
            // SAFETY: the caller guarantees that the memory of each read can be written to, and does not overlap.
            match unsafe { bytes_mut(read.memory, read.len) } {
                Ok(memory) => {
                    list.push(ReadAt::new(open.file.file(), memory, read.pos));
                    results.push(&mut read.result);
                }
                Err(error) => read.result = keep(Some(Handle::of(queue)), &error) as isize,
            }
        }
        local.queue.read_many(&mut list);
        for (result, done) in results.into_iter().zip(list) {
            *result = returned(Some(Handle::of(queue)), done.result);
        }
        Ok(())
    }) as c_int
}

/// Stores the report on how a host file of a pool is read, in the same way as `ironmap_file_report`. Any thread may call it.
///
/// # Safety
/// `report` can be written to for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_pool_file_report(
    file: *mut ironmap_pool_file,
    report: *mut ironmap_host_report,
    size: usize,
) -> c_int {
    let handle = Handle::of(file);
    call(Some(handle), || {
        let open = POOL_FILES.get(handle)?;
        // SAFETY: the caller guarantees that `report` is NULL or can be written to for `size` bytes.
        unsafe { store_report(open.file.file(), report, size) }
    }) as c_int
}

/// Makes all completed writes of the file durable, with all metadata. If `data_only` is not 0, only the metadata that a read needs are made
/// durable. Returns the same as `ironmap_fsync`; any thread may call it.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_pool_fsync(file: *mut ironmap_pool_file, data_only: c_int) -> c_int {
    let handle = Handle::of(file);
    call(Some(handle), || {
        let open = POOL_FILES.get(handle)?;
        wait(if data_only == 0 { open.file.sync() } else { open.file.sync_data() })
    }) as c_int
}

/// The size of the file in bytes, or -EBADF. Any thread may call it.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_pool_size(file: *mut ironmap_pool_file) -> i64 {
    let handle = Handle::of(file);
    call(Some(handle), || {
        let size = POOL_FILES.get(handle)?.file.file().size();
        Ok(usize::try_from(size).unwrap_or(usize::MAX))
    }) as i64
}
