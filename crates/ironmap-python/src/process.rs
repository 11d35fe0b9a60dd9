//! The events of the process that end calls in other threads: a fork, and the end of the interpreter.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::{PyImportError, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;

/// The number of forks between the first process and this process.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// The number of threads that open or close stores. `FORKING` is the number of forks that wait for these threads.
static OPENING: AtomicUsize = AtomicUsize::new(0);
static FORKING: AtomicUsize = AtomicUsize::new(0);
/// The number of calls that run without the GIL. It is changed only while the GIL is held.
static CALLS: AtomicUsize = AtomicUsize::new(0);
/// Whether the interpreter is about to end. `ENDER` identifies the thread that ends it.
static ENDING: AtomicBool = AtomicBool::new(false);
static ENDER: AtomicU64 = AtomicU64::new(0);

/// The interval at which a waiting thread checks whether its wait can end. These threads use only atomic variables, because if a thread
/// held a lock during a fork, the child would wait for this lock forever.
const PAUSE: Duration = Duration::from_micros(100);

/// Returns the number of forks between the first process and this process. A value that was made with another number belongs to a parent
/// process and is leaked: its threads do not run in this process, and its locks may never be released.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Runs in each forked child. Only the thread that forked exists in the child, and this thread is not in a call.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    OPENING.store(0, Ordering::SeqCst);
    FORKING.store(0, Ordering::SeqCst);
    CALLS.store(0, Ordering::Relaxed);
    ENDING.store(false, Ordering::Relaxed);
}

/// Python calls this function in each interpreter that imports the package.
///
/// # Errors
/// `ImportError` in a subinterpreter, because the state of this module, such as the end of the interpreter, belongs to the process.
#[pyfunction]
#[allow(unsafe_code, reason = "a call of Python's C interface")]
pub(crate) fn require_main_interpreter(_py: Python<'_>) -> PyResult<()> {
    // SAFETY: the GIL is held, so the thread has an interpreter.
    let interpreter = unsafe { ffi::PyInterpreterState_Get() };
    // SAFETY: the interpreter of this thread is valid.
    match unsafe { ffi::PyInterpreterState_GetID(interpreter) } {
        0 => Ok(()),
        _ => Err(PyImportError::new_err("ironmap cannot be used in a subinterpreter")),
    }
}

/// Starts to count forks.
#[allow(unsafe_code, reason = "a call of the C library")]
pub(crate) fn watch_forks() -> PyResult<()> {
    // SAFETY: the handler only stores to atomic variables, so it may run in a child of a process with threads. The module is never unloaded.
    match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
        0 => Ok(()),
        errno => Err(std::io::Error::from_raw_os_error(errno).into()),
    }
}

/// Marks a thread that opens or closes a store. Such a thread may hold locks of the whole process, so a fork waits for the thread. Marks
/// are made and dropped only without the GIL.
pub(crate) struct Opening;

impl Opening {
    pub(crate) fn begin() -> Self {
        loop {
            OPENING.fetch_add(1, Ordering::SeqCst);
            if FORKING.load(Ordering::SeqCst) == 0 {
                return Self;
            }
            OPENING.fetch_sub(1, Ordering::SeqCst);
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        OPENING.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Opening {
    /// Runs `work` while forks do not wait for this thread. The thread must have an [`Opening`], and must not hold a lock of the whole
    /// process.
    pub(crate) fn pause<R>(work: impl FnOnce() -> R) -> R {
        struct Paused;
        impl Drop for Paused {
            fn drop(&mut self) {
                mem::forget(Opening::begin());
            }
        }
        OPENING.fetch_sub(1, Ordering::SeqCst);
        let _paused = Paused;
        work()
    }
}

/// Waits until no thread opens or closes a store. From then on, no thread begins to open or close a store until `after_fork` is called.
/// Python calls this function before each fork.
#[pyfunction]
pub(crate) fn before_fork(py: Python<'_>) {
    FORKING.fetch_add(1, Ordering::SeqCst);
    py.detach(|| {
        while OPENING.load(Ordering::SeqCst) > 0 {
            thread::sleep(PAUSE);
        }
    });
}

/// Permits opens and closes of stores again after a fork. Python calls this function only in the parent. In the child, `in_child` has the
/// same effect.
#[pyfunction]
pub(crate) fn after_fork() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

fn this_thread() -> u64 {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr() as u64)
}

/// A call in progress. The end of the interpreter waits for it. The call ends when this value is dropped, even after a panic.
pub(crate) struct Call;

impl Call {
    /// # Errors
    /// `RuntimeError` if the interpreter is about to end.
    #[inline]
    pub(crate) fn begin(_py: Python<'_>) -> PyResult<Self> {
        check_ending()?;
        CALLS.store(CALLS.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Ok(Self)
    }
}

/// # Errors
/// `RuntimeError` if another thread is about to end the interpreter.
#[inline]
pub(crate) fn check_ending() -> PyResult<()> {
    if ENDING.load(Ordering::Relaxed) && ENDER.load(Ordering::Relaxed) != this_thread() {
        return Err(PyRuntimeError::new_err("the interpreter is about to end"));
    }
    Ok(())
}

impl Drop for Call {
    fn drop(&mut self) {
        CALLS.store(CALLS.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }
}

/// Runs `work` without the GIL.
///
/// If a thread requests the GIL after the interpreter has ended, the interpreter ends this thread and destroys its Rust frames. Therefore,
/// the end of the interpreter waits for all calls in flight (`end`), and other threads cannot begin a call after that.
#[inline]
pub(crate) fn detached<R: Send>(py: Python<'_>, work: impl FnOnce() -> R + Send) -> PyResult<R> {
    let _call = Call::begin(py)?;
    Ok(py.detach(work))
}

/// Waits for the calls of other threads, and refuses new calls. Python calls this function when the interpreter is about to end.
#[pyfunction]
pub(crate) fn end(py: Python<'_>) -> PyResult<()> {
    ENDER.store(this_thread(), Ordering::Relaxed);
    ENDING.store(true, Ordering::Relaxed);
    while CALLS.load(Ordering::Relaxed) > 0 {
        py.detach(|| thread::sleep(PAUSE));
        py.check_signals()?;
    }
    Ok(())
}
