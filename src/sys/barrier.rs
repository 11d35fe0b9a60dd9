//! A memory barrier between two threads. The frequent thread needs the barrier often; the rare thread needs it rarely. The kernel can move
//! the whole cost of the barrier to the rare thread.
//!
//! Each of the two threads writes a value, and then reads the value that the other thread writes. At least one thread must see the write of
//! the other thread (Dekker's algorithm), so each thread needs a barrier between its write and its read. The frequent thread needs this
//! barrier for each request. The rare thread can make the kernel run a barrier in all threads (`membarrier`). With this call, the frequent
//! thread needs no barrier of its own, and does not wait until its last stores, for example a copy of data, have left the processor.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

/// Whether the process is registered for `membarrier`. If so, the kernel runs the barriers of the frequent thread.
static PROMISED: AtomicBool = AtomicBool::new(false);

/// The barrier of the frequent thread, which needs it for each request.
#[inline(always)]
pub(crate) fn light() {
    if PROMISED.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The barrier of the rare thread. Every thread of the process executes a barrier before this function returns.
pub(crate) fn heavy() {
    fence(Ordering::SeqCst);
    if promise() {
        // The code ignores the result, because the call cannot fail after the registration.
        membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    }
    fence(Ordering::SeqCst);
}

/// Registers the process for `membarrier`, once. Returns false if the kernel refuses; [`light`] is then a full barrier.
pub(crate) fn promise() -> bool {
    static ASKED: OnceLock<bool> = OnceLock::new();
    *ASKED.get_or_init(|| {
        // Miri does not support the system call. The model checker runs only one thread at a time, so it needs no barrier.
        let promised = !cfg!(any(miri, shuttle))
            && membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
        PROMISED.store(promised, Ordering::SeqCst);
        promised
    })
}

fn membarrier(command: libc::c_int) -> libc::c_long {
    // SAFETY: the call has only numbers as arguments, and touches no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use super::*;

    /// The test runs many rounds of Dekker's algorithm. In each round, at least one of the two threads must see the write of the other
    /// thread.
    #[test]
    fn one_of_two_sees_what_the_other_wrote() {
        const ROUNDS: usize = if cfg!(miri) { 50 } else { 20_000 };
        promise();
        let (frequent, rare) = (AtomicU32::new(0), AtomicU32::new(0));
        let turn = Barrier::new(2);
        let missed = |own: &AtomicU32, other: &AtomicU32, barrier: fn()| {
            let mut missed = Vec::new();
            for round in 1..=ROUNDS as u32 {
                turn.wait();
                own.store(round, Ordering::Relaxed);
                barrier();
                missed.push(other.load(Ordering::Relaxed) < round);
            }
            missed
        };
        let (first, second) = thread::scope(|scope| {
            let other = scope.spawn(|| missed(&frequent, &rare, light));
            (missed(&rare, &frequent, heavy), other.join().unwrap())
        });
        assert!(!first.iter().zip(second).any(|(first, second)| *first && second));
    }
}
