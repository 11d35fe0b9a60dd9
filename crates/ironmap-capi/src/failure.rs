//! The reason of a failure, and the version of the library.
//!
//! A call that fails returns an errno with a minus sign. The library keeps the reason of the failure for the handle and for the thread, as a
//! kind, a place on disk and one line of text.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ironmap::{Errno, Error, ErrorKind};

use crate::handle::{Handle, Refusal};
use crate::memory::{Out, copy_text};
use crate::tables::{is_open, tables};

/// The reason for the failure of a call.
///
/// `error` is the errno that the call has returned with a minus sign. `kind` is a name of the kind of failure, such as "NotFound" or
/// "Corrupt": the names of the Rust library's `ErrorKind`. `structure` and `field` name the structure on disk and its field, and are empty if
/// the failure concerns none. `inode` and `block` are UINT64_MAX if they are unknown. `message` is one line, which names the operation, the
/// place and the cause. All texts end with a zero byte.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_failure {
    /// The errno.
    pub error: c_int,
    /// The name of the kind of failure.
    pub kind: [c_char; 28],
    /// The name of the structure on disk.
    pub structure: [c_char; 64],
    /// The name of the field in the structure.
    pub field: [c_char; 64],
    /// The inode number.
    pub inode: u64,
    /// The block number.
    pub block: u64,
    /// The message.
    pub message: [c_char; 1024],
}

/// A stored failure of a thread or of a handle. The next failure replaces it.
#[derive(Clone)]
struct Kept {
    errno: Errno,
    kind: String,
    structure: &'static str,
    field: &'static str,
    inode: Option<u64>,
    block: Option<u64>,
    message: String,
}

thread_local! {
    /// The last failure of this thread.
    static OF_THREAD: RefCell<Option<Box<Kept>>> = const { RefCell::new(None) };
    /// The reason why a handle was refused in this thread's last failed call, if one was refused. A signal handler may write this value.
    static REFUSED: Cell<Option<Refusal>> = const { Cell::new(None) };
}

/// The last failure of each open handle.
static OF_HANDLES: Mutex<Option<HashMap<Handle, Kept>>> = Mutex::new(None);

/// Locks the stored failures of all handles. A thread that forks holds this lock, so that it is not locked forever in the child.
pub(crate) fn lock_handles() -> MutexGuard<'static, impl Sized> {
    of_handles()
}

fn of_handles() -> MutexGuard<'static, Option<HashMap<Handle, Kept>>> {
    OF_HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    fn of(error: &Error) -> Self {
        let place = error.place();
        let kind = match error.kind() {
            ErrorKind::Io(_) => "Io".to_owned(),
            kind => format!("{kind:?}"),
        };
        Self {
            errno: error.errno(),
            kind,
            structure: place.map_or("", |place| place.structure),
            field: place.map_or("", |place| place.field),
            inode: place.and_then(|place| place.inode).map(|inode| inode.0),
            block: place.and_then(|place| place.block).map(|block| block.0),
            message: error.to_string(),
        }
    }

    fn show(&self) -> ironmap_failure {
        let mut shown = ironmap_failure {
            error: self.errno.0,
            kind: [0; _],
            structure: [0; _],
            field: [0; _],
            inode: self.inode.unwrap_or(u64::MAX),
            block: self.block.unwrap_or(u64::MAX),
            message: [0; _],
        };
        copy_text(self.kind.as_bytes(), &mut shown.kind);
        copy_text(self.structure.as_bytes(), &mut shown.structure);
        copy_text(self.field.as_bytes(), &mut shown.field);
        copy_text(self.message.as_bytes(), &mut shown.message);
        shown
    }
}

/// Stores the reason of a failure, for the thread and the handle.
#[cold]
#[inline(never)]
pub(crate) fn keep(handle: Option<Handle>, error: &Error) -> c_int {
    let kept = Kept::of(error);
    let errno = kept.errno.0;
    if let Some(handle) = handle {
        let mut failures = of_handles();
        // The failure is stored only if the handle is still open. A later close of the handle calls `forget`, which locks `OF_HANDLES` and
        // removes the failure.
        if is_open(handle) {
            failures.get_or_insert_default().insert(handle, kept.clone());
        }
    }
    let _ = REFUSED.try_with(|refused| refused.set(None));
    // At the end of a thread, its storage no longer exists, so the failure cannot be stored. The thread runs no more code that could query
    // the failure.
    let _ = OF_THREAD.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = Some(Box::new(kept));
        }
    });
    -errno
}

/// Records for the thread that a call on a queue or file was refused. This is safe in a signal handler, because it neither locks nor
/// allocates.
#[cold]
#[inline(never)]
pub(crate) fn refused(refusal: Refusal) -> isize {
    let _ = REFUSED.try_with(|refused| refused.set(Some(refusal)));
    -(refusal.errno() as isize)
}

/// Accesses the storage of the thread. In a library that was loaded at run time, the first access allocates it.
pub(crate) fn prepare_thread() {
    let _ = REFUSED.try_with(Cell::get);
}

/// Forgets the failure of a handle that is closed.
pub(crate) fn forget(handle: Handle) {
    if let Some(kept) = &mut *of_handles() {
        kept.remove(&handle);
    }
}

/// Returns the error for a panic. The error contains the message of the panic.
#[cold]
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
    Error::io(Errno(libc::ENOTRECOVERABLE), format!("a bug in ironmap: {text}"))
}

/// Runs a call from C. The outer error means that `work` has panicked. The objects that `work` has changed are then in an unknown state.
#[inline(always)]
pub(crate) fn catch<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<Result<T, Error>, Error> {
    // After a panic, the caller of `catch` makes the objects of the call unusable.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panicked(&*panic))
}

/// A number that a successful call returns. It is not negative.
pub(crate) trait Count {
    fn count(self) -> isize;
}

impl Count for usize {
    #[inline(always)]
    fn count(self) -> isize {
        // A count is the length of data in memory, so it is at most the largest `isize`.
        self as isize
    }
}

impl Count for () {
    #[inline(always)]
    fn count(self) -> isize {
        0
    }
}

/// Returns the result of a call for C code: the count, or the errno with a minus sign. The reason of a failure is stored for the handle.
#[inline(always)]
pub(crate) fn returned<T: Count>(handle: Option<Handle>, result: Result<T, Error>) -> isize {
    match result {
        Ok(value) => value.count(),
        Err(error) => keep(handle, &error) as isize,
    }
}

/// Runs a call from C on objects that any thread may use. After a panic, the handle of the call can only be closed.
pub(crate) fn call<T: Count>(
    handle: Option<Handle>,
    work: impl FnOnce() -> Result<T, Error>,
) -> isize {
    let result = catch(work).unwrap_or_else(|panicked| {
        if let Some(handle) = handle {
            tables().iter().for_each(|table| table.poison(handle));
        }
        Err(panicked)
    });
    returned(handle, result)
}

/// Stores the reason of a failure in `failure`.
///
/// With a handle of any type, the reason is that of the last failed call on this handle, in any thread. With NULL, the reason is that of
/// the last failed call of the calling thread. This may be a call without a handle, such as a call that opens something. `size` is
/// `sizeof(struct ironmap_failure)`. A successful call does not change the reason. If a call was refused because of its handle or its
/// thread, the reason is returned only with NULL.
///
/// Returns 0, -ENODATA if no call has failed, or -EINVAL if `failure` is NULL. Any thread may call it.
///
/// # Safety
/// `failure` can be written to for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_failure(
    handle: *const c_void,
    failure: *mut ironmap_failure,
    size: usize,
) -> c_int {
    let kept = if !handle.is_null() {
        let failures = of_handles();
        failures
            .as_ref()
            .and_then(|kept| kept.get(&Handle::unchecked(handle)))
            .cloned()
            .map(Box::new)
    } else if let Ok(Some(refusal)) = REFUSED.try_with(Cell::get) {
        Some(Box::new(Kept::of(&refusal.into())))
    } else {
        let last = OF_THREAD.try_with(|last| last.try_borrow().ok().and_then(|last| last.clone()));
        last.unwrap_or_default()
    };
    let Some(kept) = kept else { return -libc::ENODATA };
    // SAFETY: the caller guarantees that `failure` is NULL or can be written to for `size` bytes.
    let out = unsafe { Out::new(failure, size) };
    match out {
        Ok(out) => {
            out.set(kept.show());
            0
        }
        Err(_) => -libc::EINVAL,
    }
}

/// The version of the library, such as "0.1.0". The text is static. Any thread may call it.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
