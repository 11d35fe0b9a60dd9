//! The C interface: the functions and structures of `shim/shim.h`. These functions catch panics, because a panic must not unwind into C
//! code.

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::slice;

use ironmap::dio::DioFlags;
use ironmap::error::Context;
use ironmap::units::FilePos;
use ironmap::{Engine, Errno, Error, ErrorKind, FileOptions};

use crate::job::{Job, Op, Queued, Request};
use crate::layout::{self, Content, Layout};
use crate::options::{Options, Source, stable_pages};
use crate::tell::tell;
use crate::version;

/// The Rust form of `struct ironmap_job` in shim.h.
#[repr(C)]
pub(crate) struct RawJob {
    volume: *const c_char,
    engine: *const c_char,
    integrity: *const c_char,
    max_block: u64,
    pad: u64,
    depth: u32,
    durable: u32,
    writes: u8,
    strict: u8,
    fixedbufs: u8,
    simple: u8,
    host: u8,
    unused: [u8; 3],
}

/// The Rust form of `struct ironmap_layout` in shim.h.
#[repr(C)]
pub(crate) struct RawLayout {
    size: u64,
    piece: u64,
    fill: unsafe extern "C" fn(*mut c_void, *mut c_void, u64),
    job: *mut c_void,
    content: u32,
    create: u8,
    unused: [u8; 3],
}

/// The Rust form of `struct ironmap_request` in shim.h.
#[repr(C)]
pub(crate) struct RawRequest {
    memory: *mut u8,
    len: u64,
    pos: u64,
    file: u64,
    op: u32,
    index: u32,
}

/// The Rust form of `struct ironmap_end` in shim.h.
#[repr(C)]
pub(crate) struct RawEnd {
    done: u64,
    index: u32,
    error: i32,
}

// shim.h contains assertions of the same structure sizes.
const _: () = assert!(size_of::<RawJob>() == 56);
const _: () = assert!(size_of::<RawLayout>() == 40);
const _: () = assert!(size_of::<RawRequest>() == 40);
const _: () = assert!(size_of::<RawEnd>() == 16);

// The values of `enum ironmap_queued` in shim.h.
const COMPLETED: c_int = 0;
const QUEUED: c_int = 1;
const BUSY: c_int = 2;

#[cfg(all(fio, not(test)))]
unsafe extern "C" {
    fn ironmap_fio_ops() -> *mut c_void;
}

/// Passes the engine to fio. If the version of fio is wrong, reports the reason instead.
///
/// # Safety
/// `ops` can be written to.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn get_ioengine(ops: *mut *mut c_void) {
    guard((), || match version::check() {
        Ok(()) => {
            #[cfg(all(fio, not(test)))]
            // SAFETY: the function only returns the address of a static.
            let engine = unsafe { ironmap_fio_ops() };
            #[cfg(not(all(fio, not(test))))]
            let engine = ptr::null_mut();
            // SAFETY: the caller guarantees that `ops` can be written to.
            unsafe { ops.write(engine) }
        }
        Err(line) => tell(&line),
    });
}

/// Runs `work` for a call from C. If `work` panics, reports the panic and returns `otherwise`.
#[inline(always)]
fn guard<T>(otherwise: T, work: impl FnOnce() -> T) -> T {
    // A panic may leave the state of the job inconsistent. fio gets an error, so the job ends.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        tell(&format!("a bug in the engine: {}", message(&*panic)));
        otherwise
    })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

/// The name of a file in error messages: `PATH`, or `VOLUME:PATH` for a file of a volume.
fn named(options: &Options, path: &CStr) -> String {
    let path = path.to_string_lossy();
    match &options.source {
        Source::Volume(name) => format!("{name}:{path}"),
        Source::Host => path.into_owned(),
    }
}

/// # Safety
/// A string that is not null ends with a zero byte, and stays valid while it is used.
unsafe fn text<'a>(string: *const c_char) -> Option<&'a str> {
    if string.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees that the string ends with a zero byte and stays valid while it is used.
    unsafe { CStr::from_ptr(string) }.to_str().ok().filter(|text| !text.is_empty())
}

/// # Safety
/// The strings of `raw` are valid as [`text`] requires.
unsafe fn options(raw: &RawJob) -> Result<Options, Error> {
    // SAFETY: the caller guarantees that the string is valid as [`text`] requires.
    let volume = unsafe { text(raw.volume) };
    // SAFETY: the caller guarantees that the string is valid as [`text`] requires.
    let engine = unsafe { text(raw.engine) };
    // SAFETY: the caller guarantees that the string is valid as [`text`] requires.
    let integrity = unsafe { text(raw.integrity) };
    let source = Source::of(volume, raw.host != 0, raw.writes != 0)?;
    let file = FileOptions::new()
        .direct(raw.strict != 0)
        .stable_pages(integrity.map(stable_pages).transpose()?);
    Ok(Options {
        source,
        engine: engine.map(str::parse::<Engine>).transpose()?.unwrap_or_default(),
        writes: raw.writes != 0,
        file,
        durable: match raw.durable {
            0 => DioFlags::empty(),
            1 => DioFlags::DSYNC,
            _ => DioFlags::SYNC,
        },
        depth: raw.depth.max(1),
        max_block: usize::try_from(raw.max_block).unwrap_or(usize::MAX),
        pad: usize::try_from(raw.pad).unwrap_or(usize::MAX),
        fixed_buffers: raw.fixedbufs != 0,
        simple: raw.simple != 0,
    })
}

/// Calls `work` with a job's options and a path. Reports an error of `work`, and an error in the options.
///
/// # Safety
/// Both pointers and their strings can be read.
unsafe fn with_options(
    job: *const RawJob,
    path: *const c_char,
    work: impl FnOnce(&Options, &CStr) -> Result<(), Error>,
) -> c_int {
    guard(Errno::EIO.0, || {
        // SAFETY: the caller guarantees that `job` can be read.
        let job = unsafe { &*job };
        // SAFETY: the caller guarantees that the string `path` can be read.
        let path = unsafe { CStr::from_ptr(path) };
        // SAFETY: the caller guarantees that the strings of `job` can be read.
        let options = unsafe { options(job) };
        let error = match options.and_then(|options| work(&options, path)) {
            Ok(()) => return 0,
            Err(error) => error,
        };
        tell(&error.to_string());
        error.errno().0
    })
}

/// # Safety
/// `job` and `path` can be read, `size` and `exists` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ironmap_fio_file_size(
    job: *const RawJob,
    path: *const c_char,
    size: *mut u64,
    exists: *mut c_int,
) -> c_int {
    let work = |options: &Options, path: &CStr| {
        let found = layout::size(options, path.to_bytes());
        let found = found.at(|| named(options, path))?;
        // SAFETY: the caller guarantees that `size` can be written.
        unsafe { size.write(found.unwrap_or(0)) };
        // SAFETY: the caller guarantees that `exists` can be written.
        unsafe { exists.write(found.is_some().into()) };
        Ok(())
    };
    // SAFETY: the caller guarantees that `job` and `path` can be read.
    unsafe { with_options(job, path, work) }
}

/// # Safety
/// The pointers can be read, and the function `fill` of `raw` can be called with the `job` of `raw`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ironmap_fio_lay_out(
    job: *const RawJob,
    path: *const c_char,
    raw: *const RawLayout,
) -> c_int {
    let work = |options: &Options, path: &CStr| {
        // SAFETY: the caller guarantees that `raw` can be read.
        let raw = unsafe { &*raw };
        let fill = &mut |memory: &mut [u8]| {
            // SAFETY: `memory` has the given length, and the slice is exclusive until the call returns.
            unsafe { (raw.fill)(raw.job, memory.as_mut_ptr().cast(), memory.len() as u64) };
        };
        let content = match raw.content {
            0 => Content::Grows,
            1 => Content::Sparse,
            2 => Content::Preallocated,
            _ => Content::Written,
        };
        let piece = usize::try_from(raw.piece).unwrap_or(usize::MAX);
        let mut layout = Layout { size: raw.size, content, create: raw.create != 0, piece, fill };
        layout::lay_out(options, path.to_bytes(), &mut layout).at(|| named(options, path))
    };
    // SAFETY: the caller guarantees that `job` and `path` can be read.
    unsafe { with_options(job, path, work) }
}

/// # Safety
/// The pointers can be read.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ironmap_fio_unlink(
    job: *const RawJob,
    path: *const c_char,
) -> c_int {
    let mut gone = false;
    let work = |options: &Options, path: &CStr| {
        let unlinked = layout::unlink(options, path.to_bytes());
        gone = unlinked.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if gone { Ok(()) } else { unlinked.at(|| named(options, path)) }
    };
    // SAFETY: the caller guarantees that `job` and `path` can be read.
    let told = unsafe { with_options(job, path, work) };
    // fio removes each file twice, before and after it closes the file. Therefore the failure of the second removal is not reported.
    if gone { Errno::ENOENT.0 } else { told }
}

/// # Safety
/// `job` can be read. Only the calling thread uses and closes the job.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ironmap_fio_open_job(job: *const RawJob) -> *mut c_void {
    let mut opened = ptr::null_mut();
    let work = |options: &Options, _: &CStr| {
        opened = Box::into_raw(Box::new(Job::open(options.clone())?)).cast();
        Ok(())
    };
    // SAFETY: the caller guarantees that `job` can be read.
    unsafe { with_options(job, c"".as_ptr(), work) };
    opened
}

/// # Safety
/// `job` is open. No other thread uses it during the call, and no thread uses it after the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ironmap_fio_close_job(job: *mut c_void) -> c_int {
    guard(Errno::EIO.0, || {
        // SAFETY: the caller guarantees that `job` was opened, so `Box::into_raw` has returned it.
        let job = unsafe { Box::from_raw(job.cast::<Job>()) };
        let Err(error) = job.close() else { return 0 };
        tell(&error.to_string());
        error.errno().0
    })
}

/// # Safety
/// `job` was opened, and no other thread uses it during `'a`.
unsafe fn job<'a>(job: *mut c_void) -> &'a mut Job {
    // SAFETY: the caller guarantees that `job` was opened, and that no other thread uses it during `'a`.
    unsafe { &mut *job.cast::<Job>() }
}

/// # Safety
/// `raw` is an open job, and no other thread uses it during the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ironmap_fio_buffer(raw: *mut c_void, index: u32) -> *mut c_void {
    // SAFETY: the caller guarantees that `raw` is an open job, and that no other thread uses it during the call.
    let job = unsafe { job(raw) };
    guard(ptr::null_mut(), || job.buffer(index as usize).unwrap_or(ptr::null_mut()).cast())
}

/// # Safety
/// `raw` is an open job, and no other thread uses it during the call. `path` can be read, and `error` can be written to.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ironmap_fio_open_file(
    raw: *mut c_void,
    path: *const c_char,
    error: *mut c_int,
) -> u64 {
    // SAFETY: the caller guarantees that `raw` is an open job, and that no other thread uses it during the call.
    let job = unsafe { job(raw) };
    // SAFETY: the caller guarantees that `path` can be read.
    let path = unsafe { CStr::from_ptr(path) };
    guard(0, || match job.open_file(path.to_bytes()) {
        Ok(file) => file as u64 + 1,
        Err(failed) => {
            tell(&format!("{}: {failed}", path.to_string_lossy()));
            // SAFETY: the caller guarantees that `error` can be written.
            unsafe { error.write(failed.errno().0) };
            0
        }
    })
}

/// # Safety
/// `raw` is an open job, and no other thread uses it during the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ironmap_fio_close_file(raw: *mut c_void, file: u64) {
    // SAFETY: the caller guarantees that `raw` is an open job, and that no other thread uses it during the call.
    let job = unsafe { job(raw) };
    guard((), || job.close_file((file as usize).wrapping_sub(1)));
}

/// # Safety
/// `raw` is an open job, and no other thread uses it during the call. `request` can be read, and `end` can be written to. The memory of a
/// read or a write has `len` bytes, and fio does not access the memory during the call. If the request is still in flight after the call,
/// fio does not access the memory before it has reaped the end of the request.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ironmap_fio_queue(
    raw: *mut c_void,
    request: *const RawRequest,
    end: *mut RawEnd,
) -> c_int {
    // SAFETY: the caller guarantees that `raw` is an open job, and that no other thread uses it during the call.
    let job = unsafe { job(raw) };
    // SAFETY: the caller guarantees that `request` can be read.
    let raw = unsafe { &*request };
    let op = match raw.op {
        0 => Op::Read,
        1 => Op::Write,
        2 => Op::Trim,
        3 => Op::Sync,
        _ => Op::DataSync,
    };
    let request = Request {
        op,
        index: raw.index as usize,
        file: (raw.file as usize).wrapping_sub(1),
        pos: FilePos(raw.pos),
        address: raw.memory as usize,
        len: raw.len as usize,
    };
    let work = || {
        if job.owns(&request) {
            return Some(job.submit(&request));
        }
        let memory = match op {
            // SAFETY: the caller guarantees that the memory has this length. No request in flight uses the memory.
            Op::Read | Op::Write => unsafe { slice::from_raw_parts_mut(raw.memory, request.len) },
            _ => &mut [],
        };
        Some(job.run(&request, memory))
    };
    let (done, error) = match guard(None, work) {
        Some(Queued::InFlight) => return QUEUED,
        Some(Queued::Busy) => return BUSY,
        Some(Queued::Completed(Ok(done))) => (done as u64, 0),
        Some(Queued::Completed(Err(error))) => (0, error.errno().0),
        None => (0, Errno::EIO.0),
    };
    // SAFETY: the caller guarantees that `end` can be written.
    unsafe { end.write(RawEnd { done, index: raw.index, error }) };
    COMPLETED
}

/// # Safety
/// `raw` is an open job, and no other thread uses it during the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ironmap_fio_commit(raw: *mut c_void) -> c_int {
    // SAFETY: the caller guarantees that `raw` is an open job, and that no other thread uses it during the call.
    let job = unsafe { job(raw) };
    guard(Errno::EIO.0, || job.commit().map_or_else(|error| error.errno().0, |()| 0))
}

/// Returns the number of ended requests, or a negative errno.
///
/// # Safety
/// `raw` is an open job, and no other thread uses it during the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ironmap_fio_reap(raw: *mut c_void, min: u32, max: u32) -> c_int {
    // SAFETY: the caller guarantees that `raw` is an open job, and that no other thread uses it during the call.
    let job = unsafe { job(raw) };
    let reaped = || match job.reap(min as usize, max as usize) {
        Ok(count) => count as c_int,
        Err(error) => -error.errno().0,
    };
    guard(-Errno::EIO.0, reaped)
}

/// # Safety
/// `raw` is an open job, and no other thread uses it during the call. `number` is below the count that the last reap returned.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ironmap_fio_end(raw: *mut c_void, number: u32) -> RawEnd {
    // SAFETY: the caller guarantees that `raw` is an open job, and that no other thread uses it during the call.
    let job = unsafe { job(raw) };
    match job.end(number as usize) {
        Some(end) => {
            let (done, error) = match end.result {
                Ok(done) => (done as u64, 0),
                Err(errno) => (0, errno.0),
            };
            RawEnd { done, index: end.index as u32, error }
        }
        None => RawEnd { done: 0, index: 0, error: Errno::EIO.0 },
    }
}
