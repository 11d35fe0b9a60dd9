//! The time of the kernel's last tick.

/// Returns the time of the last tick, in seconds and nanoseconds since 1970. It is at most a few milliseconds old. The call does not access
/// a hardware clock. The kernel's file systems use this clock for their time stamps too.
#[inline]
pub(crate) fn coarse_time() -> (i64, u32) {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills this structure. It fails only for an unknown clock, and this clock exists since Linux 2.6.32.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut time) };
    (time.tv_sec, time.tv_nsec as u32)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use super::*;

    /// The time of the last tick is not later than the exact time. The test accepts a difference of up to a minute.
    #[test]
    fn it_is_the_time_of_the_system() {
        let (seconds, nanoseconds) = coarse_time();
        let fine = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let coarse = Duration::new(seconds as u64, nanoseconds);
        assert!(coarse <= fine && fine - coarse < Duration::from_secs(60), "{coarse:?}, {fine:?}");
    }
}
