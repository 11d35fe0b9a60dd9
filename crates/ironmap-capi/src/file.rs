//! Files that were opened on a queue: the calls like those of POSIX.
//!
//! These calls wait until they are complete. Only the thread of the queue may use its files. A position or a length need not be aligned, except
//! for a file that was opened with O_DIRECT.

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ironmap::dio::DioFlags;
use ironmap::fs::{Fallocate, SetAttributes, Stat};
use ironmap::units::FilePos;
use ironmap::{Errno, Error, File, HostReport};
use smallvec::SmallVec;

use crate::handle::Handle;
use crate::local::{
    FILES, LocalQueue, OpenFile, Store, add_file, close_file, enter_file, is_in_call,
    is_in_call_of_file, with_file, with_queue,
};
use crate::memory::{Out, bytes, bytes_mut, copy_text, list_mut, path, place_of_handle};
use crate::queue::call_of_queue;
use crate::rwf::{OpenFlags, dio_flags, open_flags, read_flags};
use crate::stat::{ironmap_stat, shown};
use crate::tables::{ironmap_file, ironmap_queue};

/// Opens a file on a queue.
///
/// `flags` are those of `open(2)`: O_RDONLY, O_WRONLY or O_RDWR; O_CREAT, O_EXCL, O_TRUNC, O_APPEND; O_SYNC, O_DSYNC; O_DIRECT, which
/// refuses misaligned requests; and IRONMAP_O_ASSUME_NO_DEDUPE. `mode` is the mode of a file that O_CREAT creates; no umask is applied.
/// Files of the host can be read but not written. A file that was opened with O_WRONLY can also be read. In a volume, a path begins at its root,
/// with or without a slash. The caller closes the file with `ironmap_close`; `ironmap_queue_free` closes it too.
///
/// Returns 0; -ENOENT, -EEXIST, -EISDIR, -ENOTDIR, -ELOOP, -ENAMETOOLONG as for `open(2)`; -EROFS to write without permission; -ENOSPC, -EDQUOT
/// with O_CREAT; -EINVAL for other flags, for O_CREAT without O_WRONLY or O_RDWR, and for a file that is not regular; -ENOKEY for an
/// encrypted file; -EUCLEAN, -EIO for a damaged volume; -EMFILE if too many files are open; -EBUSY with O_TRUNC if the thread has requests
/// in flight; -EBADF, -EPERM or -EBUSY as for any call on a queue.
///
/// # Safety
/// `path` ends with a zero byte, and `file` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_open(
    queue: *mut ironmap_queue,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    file: *mut *mut ironmap_file,
) -> c_int {
    call_of_queue(is_in_call(queue), || {
        with_queue(queue, |local| {
            // SAFETY: the caller guarantees that `file` is NULL or can be written to.
            let place = unsafe { place_of_handle(file) }?;
            // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
            let path = unsafe { self::path(path) }?;
            let OpenFlags { options, durable, writes, empties } = open_flags(flags, mode)?;
            let reserved = FILES.reserve()?;
            let file = local.store.open(path, options)?;
            let (path, handle) = (path.as_os_str().as_bytes().into(), reserved.handle());
            let open = OpenFile { file, durable, writes, path, handle };
            if empties {
                local.writable()?.truncate(open.file.inode(), 0)?;
            }
            *place = add_file(reserved, Handle::of(queue), local, open).pointer();
            Ok(())
        })
    })
}

/// Closes a file. Its requests in flight are carried out.
///
/// Returns 0; -EBADF for a file that is already closed; -EPERM or -EBUSY as for any call on a queue.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_close(file: *mut ironmap_file) -> c_int {
    call_of_queue(is_in_call_of_file(file), || close_file(file))
}

/// Reads up to `len` bytes from position `pos`, and waits.
///
/// Returns the number of bytes, which is smaller than `len` only at the end of the file, and 0 past the end; -EINVAL for a misaligned
/// request on a file with O_DIRECT; -EFAULT for NULL; -EIO and other errnos of the device; -EUCLEAN if the extent map of the file is
/// damaged; -EBADF for a closed file; -EPERM in any thread other than that of the queue; -EBUSY in a signal handler that has interrupted a
/// call on the queue.
///
/// # Safety
/// `memory` can be written to for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_pread(
    file: *mut ironmap_file,
    memory: *mut c_void,
    len: usize,
    pos: u64,
) -> isize {
    enter_file(file, move |open, local| {
        // SAFETY: the caller guarantees that `memory` can be written to for `len` bytes. The function belongs to the queue and to the kind
        // of the file.
        unsafe { (local.calls.read[open.file.kind()])(open, memory, len, pos, local) }
    })
}

/// Writes `len` bytes at position `pos`, and waits. With O_APPEND the position is the end of the file.
///
/// The data are durable after `ironmap_fsync`, or at once with O_DSYNC or O_SYNC.
///
/// Returns the number of bytes, which is smaller than `len` only if there is no space for all; -ENOSPC, -EDQUOT, -EFBIG, -EROFS; -EBUSY if
/// the call would have to wait while another queue of the thread has requests in flight (section WAITS of ironmap(3)); and the errors of
/// `ironmap_pread`.
///
/// # Safety
/// `memory` can be read for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_pwrite(
    file: *mut ironmap_file,
    memory: *const c_void,
    len: usize,
    pos: u64,
) -> isize {
    enter_file(file, move |open, local| {
        // SAFETY: the caller guarantees that `memory` can be read for `len` bytes. The function belongs to the queue and to the kind of the
        // file.
        unsafe { (local.calls.write[open.file.kind()])(open, memory, len, pos, local) }
    })
}

/// Returns the memory ranges that C code passes. At most as many ranges are accepted as in `preadv`.
///
/// # Safety
/// `iov` points to `count` structures.
unsafe fn ranges<'a>(iov: *const libc::iovec, count: c_int) -> Result<&'a [libc::iovec], Error> {
    let count = usize::try_from(count).ok().filter(|count| *count <= 1024);
    let count =
        count.ok_or_else(|| Error::invalid("the number of ranges must be from 0 to 1024"))?;
    // SAFETY: the caller guarantees that `iov` points to `count` structures.
    Ok(unsafe { list_mut(iov.cast_mut(), count) }?)
}

/// Reads from position `pos` into several ranges of memory, and waits. `flags` are 0 or RWF_NOWAIT and RWF_HIPRI of `preadv2`.
///
/// Returns the same as `ironmap_pread`; -EAGAIN if the call has RWF_NOWAIT and would have to wait; -EINVAL for other flags or a `count`
/// that is not 0 to 1024.
///
/// # Safety
/// `iov` points to `count` structures, whose memory can be written to and does not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_preadv(
    file: *mut ironmap_file,
    iov: *const libc::iovec,
    count: c_int,
    pos: u64,
    flags: c_int,
) -> isize {
    with_file(file, |open, local| {
        let flags = read_flags(flags)?;
        let mut slices: SmallVec<[IoSliceMut<'_>; 8]> = SmallVec::new();
        // SAFETY: the caller guarantees that `iov` points to `count` structures.
        for range in unsafe { ranges(iov, count) }? {
            // SAFETY: the caller guarantees that the memory of each structure can be written to, and does not overlap.
            slices.push(IoSliceMut::new(unsafe { bytes_mut(range.iov_base, range.iov_len) }?));
        }
        open.file.read_vectored_at(&mut local.queue, &mut slices, pos, flags)
    })
}

/// Writes several ranges of memory at position `pos`, and waits. `flags` are 0 or RWF_DSYNC, RWF_SYNC, RWF_NOWAIT, RWF_HIPRI and RWF_ATOMIC
/// of `pwritev2`.
///
/// Returns the same as `ironmap_pwrite` and `ironmap_preadv`; -EOPNOTSUPP if the device cannot write the data atomically as RWF_ATOMIC requires.
///
/// # Safety
/// `iov` points to `count` structures, whose memory can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_pwritev(
    file: *mut ironmap_file,
    iov: *const libc::iovec,
    count: c_int,
    pos: u64,
    flags: c_int,
) -> isize {
    with_file(file, |open, local| {
        let flags = dio_flags(flags)? | open.durable;
        let mut slices: SmallVec<[IoSlice<'_>; 8]> = SmallVec::new();
        // SAFETY: the caller guarantees that `iov` points to `count` structures.
        for range in unsafe { ranges(iov, count) }? {
            // SAFETY: the caller guarantees that the memory of each structure can be read.
            slices.push(IoSlice::new(unsafe { bytes(range.iov_base, range.iov_len) }?));
        }
        open.file.write_vectored_at(&mut local.queue, &slices, pos, flags)
    })
}

/// Writes all `len` bytes at the end of the file, and waits. `pos` may be NULL; otherwise the call stores the position of the data there.
///
/// Returns 0, or the errors of `ironmap_pwrite`. After -ENOSPC nothing was written.
///
/// # Safety
/// `memory` can be read for `len` bytes, and `pos` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_append(
    file: *mut ironmap_file,
    memory: *const c_void,
    len: usize,
    pos: *mut u64,
) -> c_int {
    with_file(file, |open, local| {
        // SAFETY: the caller guarantees that `memory` can be read for `len` bytes.
        let memory = unsafe { bytes(memory, len) }?;
        let flags = open.durable | DioFlags::WHOLE;
        let FilePos(at) = open.file.append(&mut local.queue, memory, flags)?;
        // SAFETY: the caller guarantees that `pos` is NULL or can be written to.
        if let Some(pos) = unsafe { pos.as_mut() } {
            *pos = at;
        }
        Ok(())
    }) as c_int
}

/// Makes all completed writes of the file and its metadata durable.
///
/// Returns 0; -EIO and other errnos of the device if the data or the metadata cannot be made durable; -EROFS if an earlier error has made
/// the volume read-only; -EBADF, -EPERM or -EBUSY as for any call on a queue.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_fsync(file: *mut ironmap_file) -> c_int {
    with_file(file, |open, local| open.file.sync(&mut local.queue)) as c_int
}

/// Makes all completed writes of the file durable, with the metadata that a read needs. Returns the same as `ironmap_fsync`.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_fdatasync(file: *mut ironmap_file) -> c_int {
    with_file(file, |open, local| open.file.sync_data(&mut local.queue)) as c_int
}

/// The size of the file in bytes, or -EBADF, -EPERM or -EBUSY as for any call on a queue.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_size(file: *mut ironmap_file) -> i64 {
    with_file(file, |open, _| Ok(usize::try_from(open.file.size()).unwrap_or(usize::MAX))) as i64
}

impl OpenFile {
    fn stat(&self, local: &LocalQueue) -> Result<Stat, Error> {
        match &local.store {
            Store::Volume(volume) => {
                // The attributes are read by inode number, because the file may no longer have a name.
                volume.volume.fs().inspect(self.file.inode(), |inode| Ok(inode.stat().clone()))
            }
            Store::Host(host) => {
                let stat = host.metadata(Path::new(OsStr::from_bytes(&self.path)))?;
                if stat.inode == self.file.inode() {
                    return Ok(stat);
                }
                let what =
                    "the path no longer names this file: the file was renamed, replaced or removed";
                Err(Error::io(Errno(libc::ESTALE), what))
            }
        }
    }
}

/// Stores the attributes of the file. `size` is `sizeof(struct ironmap_stat)`.
///
/// Returns 0; -EINVAL for NULL; -ESTALE for a host file whose path names another file; -EUCLEAN, -EIO; -EBADF, -EPERM or -EBUSY as for any
/// call on a queue.
///
/// # Safety
/// `stat` can be written to for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_fstat(
    file: *mut ironmap_file,
    stat: *mut ironmap_stat,
    size: usize,
) -> c_int {
    with_file(file, |open, local| {
        // SAFETY: the caller guarantees that `stat` is NULL or can be written to for `size` bytes.
        let out = unsafe { Out::new(stat, size) }?;
        out.set(shown(&open.stat(local)?));
        Ok(())
    }) as c_int
}

/// Sets the size of a file of a volume. If the file becomes larger, the added range reads as zeros.
///
/// The call waits for the requests in flight on the file: section WAITS of ironmap(3).
///
/// Returns 0; -EFBIG; -EROFS, also for a host file; -EIO; -EBUSY if the thread has requests in flight; -EBADF, -EPERM or -EBUSY as for any
/// call on a queue.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_ftruncate(file: *mut ironmap_file, len: u64) -> c_int {
    with_file(file, |open, local| open.writer(local)?.truncate(open.file.inode(), len)) as c_int
}

/// Sets the permissions of a file of a volume: the lower twelve bits of its mode. Returns the same as `ironmap_ftruncate`.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_fchmod(file: *mut ironmap_file, mode: u32) -> c_int {
    with_file(file, |open, local| {
        let change = SetAttributes::new().permissions(mode & 0o7777);
        local.writable()?.set_attributes(open.file.inode(), &change)
    }) as c_int
}

impl OpenFile {
    /// Returns the interface through which the metadata of the file system are changed. Fails if the file was not opened for writing.
    fn writer<'a>(&self, local: &'a LocalQueue) -> Result<&'a dyn ironmap::fs::Writer, Error> {
        if !self.writes {
            let what = "the file was not opened for writing";
            return Err(Error::new(ironmap::ErrorKind::ReadOnly, what));
        }
        local.writable()
    }
}

impl LocalQueue {
    fn writable(&self) -> Result<&dyn ironmap::fs::Writer, Error> {
        match &self.store {
            Store::Volume(volume) => volume.volume.fs().writable(),
            Store::Host(_) => Err(Error::new(
                ironmap::ErrorKind::ReadOnly,
                "host files can be read but not written",
            )),
        }
    }
}

/// Allocates, frees or moves the blocks of a range of a file of a volume. `mode` is that of `fallocate(2)`: 0, FALLOC_FL_KEEP_SIZE, or
/// FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE, FALLOC_FL_COLLAPSE_RANGE or FALLOC_FL_INSERT_RANGE.
///
/// The call waits for the requests in flight on the file: section WAITS of ironmap(3).
///
/// Returns 0; -ENOSPC, -EFBIG; -EOPNOTSUPP for another mode; -EINVAL for a range that the mode does not accept; -EROFS, also for a host
/// file; -EBUSY if the thread has requests in flight; -EBADF, -EPERM or -EBUSY as for any call on a queue.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_fallocate(
    file: *mut ironmap_file,
    mode: c_int,
    pos: u64,
    len: u64,
) -> c_int {
    with_file(file, |open, local| {
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let how = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Fallocate::Allocate { keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Fallocate::Punch,
            libc::FALLOC_FL_ZERO_RANGE => Fallocate::Zero { keep_size },
            libc::FALLOC_FL_COLLAPSE_RANGE if !keep_size => Fallocate::Collapse,
            libc::FALLOC_FL_INSERT_RANGE if !keep_size => Fallocate::Insert,
            _ => return Err(Error::unsupported(format!("fallocate with mode {mode:#x}"))),
        };
        open.writer(local)?.fallocate(open.file.inode(), how, FilePos(pos), len)
    }) as c_int
}

/// Finds the next data (`whence` is SEEK_DATA) or the next hole (SEEK_HOLE) at or after a position, as `lseek(2)` does.
///
/// Returns the position; -ENXIO past the end of the file, or if no data follow; -EINVAL for another `whence`; -EUCLEAN, -EIO; -EBADF, -EPERM
/// or -EBUSY as for any call on a queue.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_seek(file: *mut ironmap_file, pos: u64, whence: c_int) -> i64 {
    with_file(file, |open, _| {
        let found = match whence {
            libc::SEEK_DATA => open.file.seek_data(pos)?,
            libc::SEEK_HOLE => open.file.seek_hole(pos)?,
            _ => return Err(Error::invalid("whence must be SEEK_DATA or SEEK_HOLE")),
        };
        let none = || {
            Error::io(
                Errno::ENXIO,
                "the file has no data after this position, or the position is past its end",
            )
        };
        let FilePos(found) = found.ok_or_else(none)?;
        Ok(usize::try_from(found).unwrap_or(usize::MAX))
    }) as i64
}

/// How a host file is read.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_host_report {
    /// 1 if the file is read from its device; 0 if the kernel reads it.
    pub raw: u32,
    /// 1 if the reason is temporary: the file may be read from its device later.
    pub temporary: u32,
    /// The number of times that the kernel has taken the lease of the file back.
    pub breaks: u64,
    /// The reason why the kernel reads the file; empty if `raw` is 1.
    pub why: [c_char; 256],
}

fn report(report: &HostReport) -> ironmap_host_report {
    let refusal = report.refusal.as_ref();
    let mut shown = ironmap_host_report {
        raw: report.is_raw().into(),
        temporary: refusal.is_some_and(ironmap::Refusal::is_temporary).into(),
        breaks: report.breaks,
        why: [0; _],
    };
    if let Some(refusal) = refusal {
        copy_text(refusal.to_string().as_bytes(), &mut shown.why);
    }
    shown
}

/// Stores the report on how a host file is read.
///
/// # Safety
/// `place` can be written to for `size` bytes.
///
/// # Errors
/// `InvalidInput` for a file of a volume.
pub(crate) unsafe fn store_report(
    file: &File,
    place: *mut ironmap_host_report,
    size: usize,
) -> Result<(), Error> {
    // SAFETY: the caller guarantees that `place` is NULL or can be written to for `size` bytes.
    let out = unsafe { Out::new(place, size) }?;
    let found = file.host();
    let found = found.ok_or_else(|| Error::invalid("the file is not a host file"))?;
    out.set(report(&found));
    Ok(())
}

/// Stores the report on how a host file is read. `size` is `sizeof(struct ironmap_host_report)`.
///
/// Returns 0; -EINVAL for a file of a volume, or for NULL; -EBADF, -EPERM or -EBUSY as for any call on a queue.
///
/// # Safety
/// `report` can be written to for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_file_report(
    file: *mut ironmap_file,
    report: *mut ironmap_host_report,
    size: usize,
) -> c_int {
    // SAFETY: the caller guarantees that `report` is NULL or can be written to for `size` bytes.
    with_file(file, |open, _| unsafe { store_report(&open.file, report, size) }) as c_int
}
