//! Forks. A child process shares the files and rings of its parent, but not its threads. Therefore, the child cannot use the handles of the
//! parent, and opens its own handles.
//!
//! A thread that opens or closes an object may hold locks of the process, so a fork waits until no other thread opens or closes an object.
//! All locks here are mutexes of std. A mutex of parking_lot could pass its lock to a waiting thread. In the child, this thread does not
//! exist, and the lock would never be released.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};

use ironmap::{Errno, Error};

use crate::failure::lock_handles;
use crate::handle::{LockedTable, Refusal};
use crate::tables::tables;

/// Counts the threads that are in a call that opens or closes an object. A fork waits until no other thread is in such a call.
struct Gate {
    threads: usize,
    /// Whether a thread is forking, or waits for other threads before it forks.
    forks: bool,
}

static GATE: Mutex<Gate> = Mutex::new(Gate { threads: 0, forks: false });
static CHANGED: Condvar = Condvar::new();
static WATCHING: Once = Once::new();
static REFUSED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The number of calls of this thread that open or close an object. A callback of such a call may also open an object, or fork.
    static CALLS: Cell<usize> = const { Cell::new(0) };
    /// Whether this thread is about to lock the mutex `GATE`, or has locked it. A signal handler of this thread must not wait for this
    /// mutex.
    static AT_GATE: Cell<bool> = const { Cell::new(false) };
}

/// The fork in progress. It is not thread-local, because a fork may happen after the thread-local values were destroyed.
struct Forking(UnsafeCell<Option<Fork>>);

// SAFETY: only the thread that has locked the mutex `GATE` for a fork accesses the value.
unsafe impl Sync for Forking {}

static FORK: Forking = Forking(UnsafeCell::new(None));

/// Registers the handlers for forks when the library is loaded. The program registers its handlers later, so the program's handlers can use
/// the library: the program's `prepare` handlers run before those of the library, and its handlers in the parent and in the child run after
/// those of the library.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = watch;

/// All locks of the library. A thread that forks holds them.
struct Fork {
    gate: MutexGuard<'static, Gate>,
    tables: Vec<Box<dyn LockedTable>>,
    _failures: Box<dyn Any>,
}

fn gate() -> MutexGuard<'static, Gate> {
    GATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait_while(
    gate: MutexGuard<'static, Gate>,
    wrong: impl FnMut(&mut Gate) -> bool,
) -> MutexGuard<'static, Gate> {
    CHANGED.wait_while(gate, wrong).unwrap_or_else(PoisonError::into_inner)
}

/// Returns the value that `Gate::threads` has while no other thread opens or closes an object: 1 if this thread is in a call that does so,
/// otherwise 0.
fn alone() -> usize {
    usize::from(CALLS.get() > 0)
}

extern "C" fn before_fork() {
    AT_GATE.set(true);
    let mut gate = wait_while(gate(), |gate| gate.forks);
    gate.forks = true;
    let gate = wait_while(gate, |gate| gate.threads > alone());
    let tables = tables().iter().map(|table| table.lock()).collect();
    let fork = Fork { gate, tables, _failures: Box::new(lock_handles()) };
    // SAFETY: this thread has locked the mutex `GATE`.
    unsafe { *FORK.0.get() = Some(fork) };
}

fn after_fork(in_child: bool) {
    // SAFETY: `before_fork` has locked the mutex `GATE` in this thread, and the child has no other thread.
    let Some(mut fork) = unsafe { &mut *FORK.0.get() }.take() else { return };
    if in_child {
        fork.tables.iter().for_each(|table| table.disown());
        fork.gate.threads = alone();
    }
    fork.gate.forks = false;
    drop(fork);
    CHANGED.notify_all();
    AT_GATE.set(false);
}

extern "C" fn in_parent() {
    after_fork(false);
}

extern "C" fn in_child() {
    after_fork(true);
}

/// Runs `work`, which locks the mutex `GATE`. Meanwhile, `AT_GATE` is set, so that calls in signal handlers are refused.
fn at_gate(work: impl FnOnce()) {
    AT_GATE.set(true);
    // The fences order the accesses for signal handlers of this thread.
    compiler_fence(Ordering::SeqCst);
    work();
    compiler_fence(Ordering::SeqCst);
    AT_GATE.set(false);
}

/// A call that opens or closes an object. `GATE` counts the thread of the call.
struct Inside;

impl Inside {
    /// # Errors
    /// `InCall` in a signal handler that has interrupted this thread while it locked or held the mutex `GATE`, and in a handler of a fork.
    fn enter() -> Result<Self, Refusal> {
        if AT_GATE.get() {
            return Err(Refusal::InCall);
        }
        if CALLS.get() == 0 {
            at_gate(|| wait_while(gate(), |gate| gate.forks).threads += 1);
        }
        CALLS.set(CALLS.get() + 1);
        Ok(Self)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        CALLS.set(CALLS.get() - 1);
        if CALLS.get() > 0 {
            return;
        }
        at_gate(|| {
            let mut gate = gate();
            gate.threads -= 1;
            if gate.forks {
                CHANGED.notify_all();
            }
        });
    }
}

/// Blocks all signals in the calling thread until the value is dropped.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn new() -> Self {
        let (mut all, mut old) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the call initializes the set.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: `all` is initialized, and the call stores the old set of signals in `old`.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), old.as_mut_ptr()) };
        // SAFETY: the call has set `old`, because it can fail only for a wrong first argument.
        Self(unsafe { old.assume_init() })
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: `new` has stored this set.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}

/// Registers the handlers for forks, once.
extern "C" fn watch() {
    WATCHING.call_once(|| {
        // SAFETY: the handlers change only the state of this library, which stays loaded: it is linked with `-z nodelete`.
        let refused =
            unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
        REFUSED.store(refused != 0, Ordering::Relaxed);
    });
}

/// Runs a call that starts threads. The new threads inherit the blocked signals, so the program's signal handlers run only in the program's
/// own threads.
pub(crate) fn starting_threads<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let _blocked = Blocked::new();
    without_forks(work)
}

/// Runs a job in a thread in which all signals are blocked, and waits for it. The threads that the job starts inherit the blocked signals,
/// and the calling thread can still run the program's signal handlers.
pub(crate) fn in_quiet_thread<T: Send>(job: impl FnOnce() -> T + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let blocked = Blocked::new();
        let thread = std::thread::Builder::new().name("ironmap-job".to_owned());
        let thread = thread.spawn_scoped(scope, job);
        drop(blocked);
        let thread = thread.map_err(|_| Error::io(Errno::EAGAIN, "cannot start a thread"))?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Runs a call that opens or closes an object. Other threads cannot fork during the call.
pub(crate) fn without_forks<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    watch();
    if REFUSED.load(Ordering::Relaxed) {
        return Err(Error::io(Errno::ENOMEM, "cannot watch for forks"));
    }
    let _inside = Inside::enter()?;
    work()
}
