//! The time of the kernel's last tick.

/// Seconds since 1970 and nanoseconds, as of the last tick: some milliseconds old at most, and read without asking the hardware. The
/// kernel's file systems take their time stamps from it too.
#[inline]
pub(crate) fn coarse_time() -> (i64, u32) {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure that it is given. It fails for clocks that are not there only, and this is as old as Linux 2.6.32.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut time) };
    (time.tv_sec, time.tv_nsec as u32)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use super::*;

    /// It is never later than the fine clock, and at most a tick earlier.
    #[test]
    fn it_is_the_time_of_the_system() {
        let (seconds, nanoseconds) = coarse_time();
        let fine = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let coarse = Duration::new(seconds as u64, nanoseconds);
        assert!(coarse <= fine && fine - coarse < Duration::from_secs(60), "{coarse:?}, {fine:?}");
    }
}
