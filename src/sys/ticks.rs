//! The processor's cycle counter. A thread can read it after every request without a function call.
//!
//! This module does not use the vDSO, because a call of it executes a `ret` soon after a system call, which can cost a third of the time of
//! a read (docs/BENCHMARKS.md, "Returns across a system call").

use std::time::{Duration, Instant};

/// The maximum number of attempts to measure the rate. The first attempt in which the thread was not interrupted is used.
const ATTEMPTS: u32 = 16;

/// Returns the number of ticks, which increases at a constant rate. It may restart at 0 after the machine was suspended. A caller that
/// subtracts two numbers must treat a very large difference as a long time.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has RDTSC. If the process must not use the instruction (PR_SET_TSC), it faults and ends the process.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Returns the value of the processor's virtual counter. It has the same properties as the counter of x86-64.
#[inline(always)]
#[cfg(target_arch = "aarch64")]
pub(crate) fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: Linux permits user space to read the virtual counter, and reading it changes nothing.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
    ticks
}

/// Returns the monotonic clock in nanoseconds.
#[inline(always)]
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn ticks() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the structure whose address it gets.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the number of ticks per second, from a measurement of one millisecond. The result is never too high. It is at most one percent
/// too low, unless the thread was interrupted in every attempt.
pub(crate) fn rate() -> u64 {
    // This closure reads both clocks. The thread may be interrupted between the calls, so the time belongs to some moment between the two
    // counts.
    let moment = || (ticks(), Instant::now(), ticks());
    let mut attempts = 0;
    loop {
        let (first, begin, after_first) = moment();
        let (before_last, elapsed, last) = loop {
            let (before, now, after) = moment();
            let elapsed = now - begin;
            if elapsed >= Duration::from_millis(1) {
                break (before, elapsed, after);
            }
            std::hint::spin_loop();
        };
        let least = before_last.wrapping_sub(after_first);
        let most = last.wrapping_sub(first);
        attempts += 1;
        // After the last attempt, the result is accepted even if the thread was interrupted. The rate may then be far too low, but never
        // too high.
        if most - least <= least / 100 || attempts == ATTEMPTS {
            return (u128::from(least) * 1_000_000_000 / elapsed.as_nanos()) as u64;
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// The measured rate is never too high, even if other threads compete for the processors. With a rate that is too high, ironmap would
    /// rely on a check of the leases for too long.
    #[test]
    fn the_rate_is_not_too_high_on_a_busy_machine() {
        const THREADS: usize = 8;
        // The thread may be interrupted between the calls, so the real rate is only known as a range.
        let moment = || (ticks(), Instant::now(), ticks());
        let (first, begin, after_first) = moment();
        let mut rates = std::thread::scope(|scope| {
            let measure = || (0..300).map(|_| rate()).collect::<Vec<_>>();
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(measure)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let (before_last, end, last) = moment();
        let rate =
            |ticks: u64| (u128::from(ticks) * 1_000_000_000 / (end - begin).as_nanos()) as u64;
        let (least, most) = (rate(before_last - after_first), rate(last - first));
        rates.sort_unstable();
        let (median, highest) = (rates[rates.len() / 2], rates[rates.len() - 1]);
        assert!(highest <= most + most / 50, "{highest} instead of {most}");
        assert!(median >= least - least / 50, "{median} instead of {least}");
    }
}
