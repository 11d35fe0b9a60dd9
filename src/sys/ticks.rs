//! The processor's own clock: what a reader can ask after every read without leaving its function.
//!
//! A call of the vDSO would do too, but its `ret` behind a system call can cost a third of a read (docs/BENCHMARKS.md, "Returns
//! across a system call").

use std::time::{Duration, Instant};

/// A count that grows at a constant rate. It may begin anew when the machine was suspended: whoever compares two counts must take
/// an enormous difference for a long time.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
pub(crate) fn ticks() -> u64 {
    // SAFETY: RDTSC is there on every x86-64 processor. Where a process was forbidden to use it (PR_SET_TSC) it faults, which ends
    // the process.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// As above: the virtual counter.
#[inline(always)]
#[cfg(target_arch = "aarch64")]
pub(crate) fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: Linux lets user space read the virtual counter, and reading it changes nothing.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
    ticks
}

/// As above: the monotonic clock in nanoseconds.
#[inline(always)]
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn ticks() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Ticks a second, measured for about a millisecond: right within a percent.
pub(crate) fn rate() -> u64 {
    let (begin, first) = (Instant::now(), ticks());
    let elapsed = loop {
        let elapsed = begin.elapsed();
        if elapsed >= Duration::from_millis(1) {
            break elapsed;
        }
        std::hint::spin_loop();
    };
    let counted = u128::from(ticks().wrapping_sub(first));
    (counted * 1_000_000_000 / elapsed.as_nanos()) as u64
}
