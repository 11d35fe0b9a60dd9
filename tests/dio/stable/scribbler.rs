//! Threads that overwrite the memory of requests in flight.
// Only unsafe code can change the memory of a request in flight.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ironmap::bio::Buffer;

/// The number of threads that overwrite the memory at the same time.
const THREADS: u64 = 2;

/// Counts the rounds of the threads. In each round, a thread overwrites all of the memory once.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    on: AtomicBool,
    count: AtomicU64,
}

impl Rounds {
    /// Waits until one thread has overwritten all of the memory, in a round that began after this call. If no threads run, returns
    /// immediately.
    pub(crate) fn pass(&self) {
        let from = self.count.load(Ordering::Acquire);
        // After THREADS + 1 further rounds, at least one thread has completed two of them. The second of these two rounds began after the
        // call.
        let over = || self.count.load(Ordering::Acquire) > from + THREADS;
        while self.on.load(Ordering::Acquire) && !over() {
            std::thread::yield_now();
        }
    }

    /// Runs `work` while threads overwrite the buffers. The buffers must stay allocated until this function returns.
    pub(crate) fn during<R>(&self, memory: &[Range], work: impl FnOnce() -> R) -> R {
        self.on.store(true, Ordering::Release);
        std::thread::scope(|scope| {
            for seed in 0..THREADS {
                scope.spawn(move || self.scribble(memory, seed));
            }
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            self.on.store(false, Ordering::Release);
            result
        })
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn scribble(&self, memory: &[Range], seed: u64) {
        let mut value = seed;
        while self.on.load(Ordering::Acquire) {
            for range in memory {
                for at in (0..range.len).step_by(128) {
                    value = value.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(seed * 2 + 1);
                    let to = std::ptr::with_exposed_provenance_mut::<u8>(range.address + at);
                    // SAFETY: `during` requires that the memory stays allocated. The device also uses this byte at the same time: the test
                    // intends this data race.
                    unsafe { to.write_volatile((value >> 56) as u8) };
                }
            }
            self.count.fetch_add(1, Ordering::Release);
        }
    }
}

/// The address range of a buffer. The value does not borrow the buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    address: usize,
    len: usize,
}

impl Range {
    pub(crate) fn of(buffer: &mut Buffer) -> Self {
        Self { address: buffer.as_mut_ptr().expose_provenance(), len: buffer.len() }
    }
}
