//! The list of all tables of handles, and forks. The child of a process shares the files and rings of its parent, but not its threads. So the handles of the parent are refused in
//! the child, and the child opens its own.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ironmap::{Errno, Error};
use parking_lot::RwLock;

use crate::failure;
use crate::handle::{AnyTable, Handle};
use crate::local::{FILES, QUEUES};
use crate::tables::{BUFFERS, DIRECTORIES, HOSTS, IMAGES, POOL_FILES, POOLS, VOLUMES};

/// Held for reading while a thread opens or closes something, because it may hold locks of the process. A fork waits for it.
static GATE: RwLock<()> = RwLock::new(());
static WATCHING: Once = Once::new();
static REFUSED: AtomicBool = AtomicBool::new(false);

fn tables() -> [&'static dyn AnyTable; 9] {
    [&VOLUMES, &HOSTS, &QUEUES, &FILES, &BUFFERS, &DIRECTORIES, &POOLS, &POOL_FILES, &IMAGES]
}

/// The table of the handles of this kind, if a handle can be of this kind.
pub(crate) fn table_of(handle: Handle) -> Option<&'static dyn AnyTable> {
    tables().into_iter().find(|table| table.kind() == handle.kind())
}

extern "C" fn before_fork() {
    std::mem::forget(GATE.write());
    for table in tables() {
        table.lock();
    }
    failure::lock_for_fork();
}

fn unlock() {
    // SAFETY: `before_fork` has locked it in this thread, or in the thread that this one continues.
    unsafe { failure::unlock_after_fork() };
    for table in tables() {
        // SAFETY: as above.
        unsafe { table.unlock() };
    }
    // SAFETY: as above.
    unsafe { GATE.force_unlock_write() };
}

extern "C" fn in_parent() {
    unlock();
}

extern "C" fn in_child() {
    for table in tables() {
        table.disown();
    }
    unlock();
}

/// Runs a call that opens or closes something. No fork happens meanwhile.
pub(crate) fn without_forks<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    WATCHING.call_once(|| {
        // SAFETY: the handlers change only the state of this library, which stays loaded: it is linked with `-z nodelete`.
        let refused =
            unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
        REFUSED.store(refused != 0, Ordering::Relaxed);
    });
    if REFUSED.load(Ordering::Relaxed) {
        return Err(Error::io(Errno::ENOMEM, "cannot watch for forks"));
    }
    // A call of a callback may open something too, so the lock is recursive.
    let _gate = GATE.read_recursive();
    work()
}
