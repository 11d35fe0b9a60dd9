//! The number of a thread, and its end.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;

use ironmap::{Errno, Error, ErrorKind};

use crate::local::revoke;

/// Returns a number that no two running threads share. It is the address of a word, so it is even, and not 0.
#[inline(always)]
pub(crate) fn this_thread() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let pointer: usize;
        // SAFETY: the ABI of x86-64 for thread-local storage has the thread pointer at this address, and the instruction only reads it.
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
        }
        pointer
    }
    #[cfg(target_arch = "aarch64")]
    {
        let pointer: usize;
        // SAFETY: the instruction reads the thread pointer from a register that every program may read.
        unsafe {
            std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags));
        }
        pointer
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        thread_local!(static MARK: u64 = const { 0 });
        MARK.with(|mark| ptr::from_ref(mark).addr())
    }
}

/// The number of rounds in which glibc and musl call the destructors of a thread that ends.
const ROUNDS: usize = 4;

/// The key of a thread-local value. Each thread that has made a queue sets this value, so that `thread_ends` is called when the thread
/// ends.
static END: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();

thread_local! {
    /// Whether the thread is about to end.
    static ENDS: Cell<bool> = const { Cell::new(false) };
}

/// Requests a notification of the end of the calling thread, which is about to make a queue.
///
/// # Errors
/// `Busy` if the thread is already ending; `Io` with ENOMEM.
pub(crate) fn watch_end() -> Result<(), Error> {
    if ENDS.get() {
        return Err(Error::new(
            ErrorKind::Busy,
            "a thread that is ending cannot create another queue",
        ));
    }
    if !at_end_of_thread(1) {
        return Err(Error::io(Errno::ENOMEM, "cannot watch for the end of the thread"));
    }
    Ok(())
}

/// Requests a call of [`thread_ends`] in a round of destructors at the thread's end.
fn at_end_of_thread(round: usize) -> bool {
    let key = *END.get_or_init(|| {
        let mut key = 0;
        // SAFETY: the key can be written to. The library stays loaded, as it is linked with `-z nodelete`.
        (unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } == 0).then_some(key)
    });
    let value = ptr::without_provenance(round);
    // SAFETY: the key exists, and its value is a number.
    key.is_some_and(|key| unsafe { libc::pthread_setspecific(key, value) } == 0)
}

/// Runs when a thread ends. A later thread may have the same number, so this function revokes the thread's permission for all queues that
/// the thread has not freed. It waits for the last round of destructors, because destructors of the program may still free queues before
/// that.
extern "C" fn thread_ends(round: *mut c_void) {
    let round = round.addr();
    ENDS.set(true);
    if round < ROUNDS && at_end_of_thread(round + 1) {
        return;
    }
    revoke(this_thread());
}
